"""Bench: what a private step costs, beside a plain one and beside other libraries.

    workloads.py  the models, their batches and the figures they are meant to reach
    peers.py      the methods: a plain step, Clipwise, Opacus; one class each
    timing.py     interleaved rounds, paired ratios
    memory.py     peak memory of a process, from /proc
    worker.py     the child process in which one measurement runs
    compare.py    starts the workers and collects the rows
    report.py     rows as tables, for people and for Markdown
    machine.py    where a figure was measured
    growth.py     how the ratio grows with batch, parameters, layers, words, sequence and split
    ranks.py      several processes beside plain DistributedDataParallel: time and bytes
    scale.py      sampling, accounting and noise by records and parameters
    checks.py     the part of a run that its checks take
    accounting.py the time of accounting, beside two other libraries

What is compared is the *step*: zero_grad, forward, loss, backward, optimizer.step, with the same weights, the same
fixed batch and the same SGD. Loading data is nobody's part of it, and so neither is drawing a Poisson batch.
"""
