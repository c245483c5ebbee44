"""The privacy statement: one page that says what is guaranteed, for whom, under which assumptions, and what is not.

It is made from the plan and the ledger, never from what was measured.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, fields
from typing import Any

_HEAD = re.compile(r"head ([0-9a-f]{16})\b")


# What bounds an attacker's rates, in words
ATTACK_SOURCES = {
    "pld": "from the whole trade-off curve of all charged steps together (PLD), a record added or removed",
    "epsilon": "from epsilon and delta alone (e^epsilon x rate + delta), which is weaker than a whole curve would be: there is "
    "none for this sampling, accountant or search",
}
_PLAIN_RATE = 0.01  # the false-positive rate of the sentence in plain words


@dataclass(frozen=True, kw_only=True)
class Statement:
    private: bool
    epsilon: float
    delta: float | None
    accountant: str
    target_epsilon: float | None
    method: str
    method_options: dict[str, Any]
    reference: str
    sound: bool
    unit: str = "one record (one row) of the training set"
    neighbours: str = "add or remove one record"
    sampler: str = "Poisson: each record joins each batch with probability q, independently"
    sample_rate: float
    expected_batch_size: float
    steps: int
    planned_steps: int | None
    attack: tuple[
        dict[str, float], ...
    ] = ()  # the most that any attack reaches: {false_positive_rate, true_positive_rate}
    attack_source: str = ""  # a key of ATTACK_SOURCES
    noise_multiplier: float
    noise_schedule: str = "constant"
    claimed_epsilon: float | None = None
    side_queries: tuple[dict[str, Any], ...] = ()
    size_is_public: bool
    size_released: dict[str, Any] | None = None  # where it is private, and was counted with noise
    loss: str = "not recorded"  # how it is known that each record's loss depends on that record alone
    seeded: bool
    ledger: str
    ledger_head: str
    tuning: str = "nothing was tuned on this data by Clipwise; runs made before this one are not counted here"
    search_charged: bool = True  # where a search chose options of this run
    searched: tuple[str, ...] = ()  # options whose choice is covered by epsilon
    figures_by_group: str = "none were computed by Clipwise"
    unsafe_diagnostics: bool = False
    automatic: tuple[str, ...] = ()  # what was found or chosen by rule, and what it cost
    notes: tuple[str, ...] = ()
    versions: str

    def to_dict(self) -> dict[str, Any]:
        values = asdict(self)
        return {f.name: None if _infinite(values[f.name]) else values[f.name] for f in fields(self)}

    def __str__(self) -> str:
        return self.to_markdown()

    def short(self) -> str:
        """In a few words: what was spent, in how many steps, by which method."""
        if not self.private:
            return f"no privacy, {self.steps} steps"
        spent = "no delta" if self.delta is None else f"epsilon {shown_epsilon(self.epsilon)} at delta {self.delta:g}"
        return f"{spent}, {self.steps} steps, method {self.method}"

    def to_markdown(self) -> str:
        lines = ["# Privacy statement", "", *self._headline(), "", *self._plain_words()]
        lines += ["| what | value |", "| --- | --- |"]
        lines += [f"| {what} | {value} |" for what, value in self._rows()]
        if self.automatic:
            lines += ["", "## What was automatic", "", *[f"- {line}" for line in self.automatic]]
        lines += ["", "## What is not covered", ""]
        lines += [f"- {line}" for line in self._limits()]
        if self.notes:
            lines += ["", "## Notes", "", *[f"- {note}" for note in self.notes]]
        return "\n".join(lines) + "\n"

    def _headline(self) -> list[str]:
        if not self.private:
            return ["**This model was trained without privacy.** No guarantee holds: epsilon is infinite."]
        if self.delta is None:
            return ["Trained with differential privacy; give a delta to state epsilon."]
        if not math.isfinite(self.epsilon):
            return [f"**No meaningful guarantee holds**: epsilon is infinite at delta = {self.delta}."]
        return [
            f"The released model is **({shown_epsilon(self.epsilon)}, {self.delta:g})-differentially private** with respect to {self.unit}, "
            f"under the relation: {self.neighbours}."
            + (
                ""
                if self.search_charged
                else " **The search for its options was NOT CHARGED: this counts one run of several on the same data.**"
            )
        ]

    def _plain_words(self) -> list[str]:
        """For people who do not know what epsilon means."""
        found = next((each for each in self.attack if each["false_positive_rate"] == _PLAIN_RATE), None)
        what = self.unit + (" rather than on another" if self.neighbours.startswith("replace") else "")
        return [] if found is None else [plain_words(found["true_positive_rate"], what), ""]

    def _rows(self) -> list[tuple[str, str]]:
        target = "none" if self.target_epsilon is None else f"{self.target_epsilon:g}"
        rows = [
            ("unit of privacy", self.unit),
            ("neighbouring relation", self.neighbours),
            (
                "epsilon at delta",
                f"{shown_epsilon(self.epsilon)} at {self.delta if self.delta is None else format(self.delta, 'g')}",
            ),
            ("accountant", self.accountant),
            ("target epsilon", target),
            *self._attack_rows(),
            ("sampler", self.sampler),
            ("sample rate q", f"{self.sample_rate:.10g}"),
            ("expected batch size (the denominator)", f"{self.expected_batch_size:g}"),
            (
                "steps charged",
                f"{self.steps}" + ("" if self.planned_steps is None else f" of {self.planned_steps} planned"),
            ),
            ("noise multiplier (noise std / l2 bound, all queries of a step together)", f"{self.noise_multiplier:.6g}"),
            ("noise schedule", self.noise_schedule),
            ("clipping method", f"{self.method} {self.method_options or ''} ({self.reference})"),
        ]
        rows += [
            ("side query", f"{q['name']}: l2 bound {q['l2_bound']:g}, noise multiplier {q['noise_multiplier']:g}")
            for q in self.side_queries
        ]
        if self.claimed_epsilon is not None:
            rows.append(("epsilon *claimed* by the method's paper (not a guarantee)", f"{self.claimed_epsilon:.4f}"))
        return [
            *rows,
            ("size of the data set", self._size()),
            ("loss of a record, from that record alone", self.loss),
            (
                "randomness",
                "AES-128 keystream in counter mode (on a device ChaCha20's for the noise), key from "
                + ("a seed" if self.seeded else "the operating system, never stored"),
            ),
            ("ledger", f"{self.ledger}, head {self.ledger_head[:16]}"),
            ("tuning", self.tuning),
            ("figures by group", self.figures_by_group),
            ("software", self.versions),
        ]

    def _attack_rows(self) -> list[tuple[str, str]]:
        if not self.attack:
            return []
        rows = [
            (
                f"true-positive rate of any attack, where its false-positive rate is {100 * each['false_positive_rate']:g} %",
                f"at most {shown_percent(each['true_positive_rate'])}",
            )
            for each in self.attack
        ]
        return [*rows, ("these rates", ATTACK_SOURCES.get(self.attack_source, self.attack_source))]

    def _size(self) -> str:
        if self.size_is_public:
            return "treated as public"
        if self.size_released is None:
            return "not used: rate and batch size were given, and the batches of an epoch follow from the rate"
        return (
            f"private: a count with noise was released once, {self.size_released['records']} (noise std "
            f"{self.size_released['noise_multiplier']:.4g}), and is charged above; rate and steps follow from it"
        )

    def _but_searched(self) -> str:
        return f" (other than {', '.join(self.searched)}, whose choice epsilon covers)" if self.searched else ""

    def _limits(self) -> list[str]:
        limits = [
            f"Architecture, hyper-parameters{self._but_searched()}, the number of steps and the code were chosen outside the guarantee; if they were "
            "chosen by looking at this data, that choice is not covered.",
            "Accuracy and other figures on test data are functions of the test data, which this statement does not protect.",
            "Losses, outputs and gradients that the training loop itself printed or stored are not covered; Clipwise releases only noised gradients.",
            "Sums and noise are floating-point numbers: attacks on their last bits (Mironov 2012) are outside the guarantee.",
        ]
        if self.seeded:
            limits.insert(
                0,
                "**The randomness came from a seed.** The guarantee holds only while the seed stays secret and is used for no other run on this data: "
                "for studies and tests, not for release.",
            )
        if self.unsafe_diagnostics:
            limits.insert(
                0,
                "**Exact figures on the training records were printed (--unsafe-diagnostics).** They are not private: the "
                "guarantee says nothing to whoever sees them.",
            )
        if not self.sound and self.private:
            limits.insert(0, "**The clipping method has no valid guarantee.** Epsilon is reported as infinite.")
        return limits


def stated_head(statement: str | None) -> str | None:
    """The line of the ledger (the beginning of its SHA-256) that a statement was made after."""
    found = _HEAD.search(statement or "")
    return found and found[1]


def plain_words(true_positive_rate: float, unit: str) -> str:
    """What the true-positive rate at a false-positive rate of 1 % says, without epsilon."""
    what = (
        f"somebody who has this model and knows all the rest of the data wants to tell whether it was trained on {unit}"
    )
    if true_positive_rate >= 1:
        return f"**In plain words:** where {what}, nothing proven here stands in the way."
    return (
        f"**In plain words:** {what}. If they may be wrong about 1 in 100 that were not used, they recognise at most "
        f"{shown_percent(true_positive_rate).removesuffix(' %')} in 100 that were, whatever they try; guessing blindly recognises 1."
    )


def shown_percent(share: float) -> str:
    """For people: two decimals, rounded up."""
    return f"{min(100.0, math.ceil(share * 1e4 - 1e-9) / 100):.2f} %"


def _infinite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def shown_epsilon(epsilon: float) -> str:
    """For people: rounded up, so that what is shown is never below what was computed."""
    return "infinity" if not math.isfinite(epsilon) else f"{math.ceil(epsilon * 1e4) / 1e4:.4f}"
