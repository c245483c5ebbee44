"""Name an epsilon, tune nothing: what a run finds out for itself, and pays for in the same budget.

rule      what is decided, from public facts and released values alone: pure functions and their constants
measure   a histogram of gradient norms over all records, with noise
race      a few rates, a few steps each, thrown away; their noised scores say which
pilot     the rate of each step, and the average of the weights
prepare   all of it put together, before the first step of the training proper
"""
