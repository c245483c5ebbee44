import sys
from sim import done, RESULTS
from collections import defaultdict
d=defaultdict(lambda: defaultdict(list))
for r in done(RESULTS/"grid.jsonl"):
    if r["task"] in sys.argv[1:] and r["clip"]=="auto" and r["opt"]=="adam" and r["sched"] in("const","linear","tail"):
        for k in ("last","p8"): d[r["task"],r["eps"],r["sched"],k][r["lr"]].append(r[k][-1])
for k in sorted(d): print(k, " ".join(f"{lr:g}:{sum(v)/len(v):.1f}" for lr,v in sorted(d[k].items())))
