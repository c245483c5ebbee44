"""Which preconditions of tCDP's amplification lemma fail at some noise levels: a table for the introductions."""

from __future__ import annotations

import math
from collections.abc import Iterable

from clipwise.accounting.tcdp import LemmaFails, amplify, gaussian


def preconditions(noises: Iterable[float], rate: float) -> str:
    """A Markdown table, a row a noise multiplier; the verdicts are those of `tcdp.amplify`."""
    lines = ["| sigma | rho | what the lemma says | omega |", "| --- | --- | --- | --- |"]
    for noise in noises:
        step = gaussian(noise)
        try:
            amplify(step, rate)
            verdict = "covered"
        except LemmaFails as refusal:
            verdict = "not covered: " + ", ".join(f"{each.precondition} fails" for each in refusal.broken)
        lines.append(f"| {noise:g} | {step.rho:.4g} | {verdict} | {math.log(1 / rate) / (4 * step.rho):.3g} |")
    return "\n".join(lines)
