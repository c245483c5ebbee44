"""Truncated concentrated differential privacy: the four lemmas, each of which checks what it needs and refuses by name.

A mechanism is (rho, omega)-tCDP if its Renyi divergence of every order 1 < a < omega is at most rho a.

    gaussian      noise multiplier s                        rho = 1 / (2 s^2), omega = infinity
    compose       one after another, *every step*           rho = sum of rho_i, omega = min of omega_i
    amplify       on a random share q of the records        rho' = 13 q^2 rho, omega' = ln(1/q) / (4 rho)
    to_epsilon    at delta                                  epsilon = rho + 2 sqrt(rho ln(1/delta))

Formal guarantee: where a function answers, its lemma's preconditions held for the values given. The amplification lemma
is proved for batches of fixed size drawn without replacement, and neighbours that *replace* one record, where a sum of
gradients clipped to C moves by up to 2 C: the noise multiplier is then noise std / 2 C. No report of Clipwise uses this
file: tCDP is looser than RDP wherever it applies, and most training runs are outside what the lemma covers.

Reference: Bun, Dwork, Rothblum, Steinke, "Composable and versatile privacy via truncated CDP" (2018).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from clipwise import validate
from clipwise.types import BadArgument

_MOST_RHO, _MOST_RATE, _LEAST_ORDERS = 0.1, 0.1, 3.0  # where the published amplification holds


class Tcdp(NamedTuple):
    rho: float
    omega: float


class Broken(NamedTuple):
    """A precondition that does not hold: its text, the values, and what would satisfy it."""

    precondition: str
    values: str
    remedy: str


class LemmaFails(BadArgument):
    """A lemma that does not cover these values; `broken` names every precondition that fails."""

    def __init__(self, lemma: str, broken: list[Broken]) -> None:
        said = "; ".join(f"{b.precondition} fails for {b.values} ({b.remedy})" for b in broken)
        super().__init__(f"tCDP, {lemma}: {said}")
        self.lemma, self.broken = lemma, tuple(broken)


def gaussian(noise_multiplier: float) -> Tcdp:
    """One Gaussian release, noise std / l2 sensitivity under the neighbours that are meant."""
    noise = validate.positive("noise_multiplier", noise_multiplier, "give noise std / l2 sensitivity")
    return Tcdp(0.5 / noise / noise, math.inf)


def compose(parts: Iterable[tuple[Tcdp, int]]) -> Tcdp:
    """Each part as many times as it ran: a part for each *step* of a run, not for each epoch."""
    counted = [(part, validate.count("count", count, least=0)) for part, count in parts]
    ran = [(part, count) for part, count in counted if count]
    return Tcdp(sum(count * part.rho for part, count in ran), min((part.omega for part, _ in ran), default=math.inf))


def amplify(mechanism: Tcdp, sample_rate: float) -> Tcdp:
    """The mechanism on a random share of the records; refuses wherever the amplification lemma does not apply."""
    rate = validate.probability("sample_rate", sample_rate, one_allowed=False, remedy="give the share of a batch")
    rho, omega = validate.positive("rho", mechanism.rho), mechanism.omega
    log_rate = math.log(1 / rate)
    needed, orders = 3 * rho * (2 + math.log2(1 / rho)), log_rate / (2 * rho)
    least_noise = math.sqrt(1 / (2 * _MOST_RHO))
    broken = []
    if not rho <= _MOST_RHO:
        remedy = f"a noise multiplier of at least {least_noise:.5g} satisfies it"
        broken.append(Broken("rho <= 0.1", f"rho = {rho:.6g}", remedy))
    if not rate <= _MOST_RATE:
        broken.append(Broken("q <= 0.1", f"q = {rate:.6g}", "a sample rate of at most 0.1 satisfies it"))
    if not log_rate >= needed:
        values = f"ln(1/q) = {log_rate:.6g}, rho = {rho:.6g}, which needs {needed:.6g}"
        remedy = f"a sample rate of at most {math.exp(-needed):.5g} satisfies it"
        broken.append(Broken("ln(1/q) >= 3 rho (2 + log2(1/rho))", values, remedy))
    if not orders >= _LEAST_ORDERS:
        values = f"ln(1/q) / (2 rho) = {orders:.6g}"
        remedy = f"a rho of at most {log_rate / (2 * _LEAST_ORDERS):.5g} satisfies it"
        broken.append(Broken("ln(1/q) / (2 rho) >= 3", values, remedy))
    if not omega >= orders:
        remedy = f"an omega of at least {orders:.6g} satisfies it; one Gaussian release has no limit"
        broken.append(Broken("omega >= ln(1/q) / (2 rho)", f"omega = {omega:.6g}", remedy))
    if broken:
        raise LemmaFails("amplification by sampling", broken)
    return Tcdp(13 * rate**2 * rho, log_rate / (4 * rho))


def to_epsilon(mechanism: Tcdp, delta: float) -> float:
    """Epsilon at delta; refuses a delta so small that omega does not reach it."""
    delta = validate.probability("delta", delta, one_allowed=False, remedy="give a probability such as 1e-5")
    rho, omega = validate.non_negative("rho", mechanism.rho), mechanism.omega
    if rho == 0:
        return 0.0
    log_delta = math.log(1 / delta)
    if not omega > 1:
        remedy = "no order is bounded; more noise in the least noisy step raises omega"
        raise LemmaFails("conversion to (epsilon, delta)", [Broken("omega > 1", f"omega = {omega:.6g}", remedy)])
    if not log_delta <= (omega - 1) ** 2 * rho:
        values = f"delta = {delta:.6g}, omega = {omega:.6g}, rho = {rho:.6g}"
        least, reach = math.exp(-((omega - 1) ** 2) * rho), 1 + math.sqrt(log_delta / rho)
        remedy = f"a delta of at least {least:.5g} satisfies it, or an omega of at least {reach:.5g}"
        raise LemmaFails("conversion to (epsilon, delta)", [Broken("delta >= exp(-(omega - 1)^2 rho)", values, remedy)])
    return rho + 2 * math.sqrt(rho * log_delta)


def tcdp_epsilon(levels: Iterable[tuple[float, int]], sample_rate: float, delta: float) -> float:
    """Epsilon of a run of (noise multiplier, steps) levels, every step amplified and composed; or a refusal by name."""
    steps = [(gaussian(noise), count) for noise, count in levels]
    if sample_rate != 1:
        steps = [(amplify(step, sample_rate), count) for step, count in steps]
    return to_epsilon(compose(steps), delta)
