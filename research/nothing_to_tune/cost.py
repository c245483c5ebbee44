"""What measuring costs, as more noise on every step: python cost.py"""
import math
from auto import mu_of
from sim import DELTA, sigma_for
from clipwise.accounting.calibrate import calibrate_shape
from clipwise.accounting.events import StepEvent
def cost(eps, q, T, K, length, noise, cut, hist, score):
    mu = mu_of(eps)
    m = round(length * T)
    shape = lambda s: [StepEvent(q, float(s), T), StepEvent(q / cut, float(noise * s / cut), K * m), StepEvent(1.0, 1 / (mu * math.sqrt(hist)), 1), StepEvent(1.0, 1 / (mu * math.sqrt(score)), 1)]
    return calibrate_shape(eps, DELTA, shape) / sigma_for(eps, q, T) - 1
if __name__ == "__main__":
    print("| | epsilon 1 | 3 | 8 | more computation |\n| --- | --- | --- | --- | --- |")
    for what, q, args, work in (("first rule", 0.1, (5, 0.08, 3.0, 1, 0.01, 0.02), 0.4), ("this rule, batches / 3", 0.1, (5, 0.25, 6.0, 3, 0.01, 0.01), 1.25 / 3), ("this rule, whole batches", 0.1, (5, 0.25, 6.0, 1, 0.01, 0.01), 1.25), ("this rule, batches / 3, q = 1/20", 0.05, (5, 0.25, 6.0, 3, 0.01, 0.01), 1.25 / 3)):
        print(f"| {what} |", " | ".join(f"{100 * cost(e, q, 200, *args):+.1f} %" for e in (1.0, 3.0, 8.0)), f"| {100 * work:.0f} % |", flush=True)
