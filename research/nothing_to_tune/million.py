"""10^6 made records through `clipwise.fit` at epsilon 1, and Adam without privacy beside it: run.sh research/nothing_to_tune/million.py"""

import torch, time, clipwise
from torch import nn
torch.manual_seed(0)
n,d=1_000_000,20
w=torch.randn(d,4); X=torch.rand(n,d); y=((X-.5)@w*3+torch.randn(n,4)*.7).argmax(1)
Xt=torch.rand(20000,d); yt=((Xt-.5)@w*3+torch.randn(20000,4)*.7).argmax(1)
t=time.process_time()
done=clipwise.fit(nn.Sequential(nn.Linear(d,32),nn.Tanh(),nn.Linear(32,4)),(X,y),test=(Xt,yt),epsilon=1,max_physical_batch=16384,seed=0)
print(done, "cpu", time.process_time()-t)
print([x for x in done.statement.automatic][:12])
m=nn.Sequential(nn.Linear(d,32),nn.Tanh(),nn.Linear(32,4)); o=torch.optim.Adam(m.parameters(),1e-2)
for e in range(3):
    for i in torch.randperm(n).split(4096):
        o.zero_grad(); nn.functional.cross_entropy(m(X[i]),y[i]).backward(); o.step()
print("plain", (m(Xt).argmax(1)==yt).float().mean().item())
