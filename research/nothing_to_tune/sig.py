import sys
from collections import defaultdict
from sim import done, RESULTS
rows=done(RESULTS/"grid.jsonl")
opt,sched=sys.argv[1].split(":")
for n in sys.argv[2:]:
    d=defaultdict(list)
    for r in rows:
        if r["task"]==n and r["opt"]==opt and r["sched"]==sched and r["clip"]=="auto": d[(r["eps"],r["lr"])].append(r)
    for (e,lr) in sorted(d):
        rs=d[(e,lr)]
        m=lambda k,i:sum(r[k][i] for r in rs)/len(rs)
        print(n,e,f"{lr:<6g} last {m('last',-1):.1f} p8 {m('p8',-1):.1f} p1 {m('p1',-1):.1f} | p8@ "+" ".join(f"{m('p8',i):.1f}" for i in range(9))+" | gw0 "+" ".join(f"{1e3*m('gw0',i):.1f}" for i in range(9))+" | gavg "+" ".join(f"{1e3*m('gavg',i):.1f}" for i in range(9))+" | J "+" ".join(f"{m('J',i):.2g}" for i in range(0,9,2))+ f" disp/lrsqT {m('disp',-1)/lr/200**.5:.2f}")
