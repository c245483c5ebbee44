"""Writes the table of docs/tuning.md. Run: .venv/bin/python docs/make_tuning.py"""

from pathlib import Path

from clipwise.accounting import StepEvent
from clipwise.lab.tuning import STRATEGIES
from clipwise.lab.tuning.calibrate import smallest_noise
from clipwise.lab.tuning.exponential import Exponential
from clipwise.lab.tuning.free import Public

PAGE = Path(__file__).parent / "tuning.md"
BEGIN, END = "<!-- made by docs/make_tuning.py -->\n", "<!-- end -->"
RECORDS, BATCH, EPOCHS, DELTA = 60_000, 256, 10, 1e-5
SEARCHES = ((2, 3.0), (10, 3.0), (45, 3.0), (90, 3.0), (10, 1.0), (90, 1.0))


def noise(strategy: str, candidates: int, epsilon: float) -> float:
    made = STRATEGIES[strategy]()
    records = RECORDS // (candidates + 1) if isinstance(made, Exponential) else RECORDS
    steps = EPOCHS * -(-records // BATCH)
    return smallest_noise(made, [lambda sigma: [StepEvent(BATCH / records, sigma, steps)]] * candidates, epsilon, DELTA)


def table() -> str:
    names = ["grid-rdp", "liu-talwar", "repeat-select", "exponential", Public.name]
    lines = [
        f"Noise multiplier of each run; {RECORDS:,} records, batches of {BATCH}, {EPOCHS} epochs, delta {DELTA:g}.",
        "`exponential` trains on a part of the data, with as many epochs. `public` is what a run without any search gets.",
        "",
        f"| candidates | total epsilon | {' | '.join(names)} |",
        f"| ---: | ---: |{' ---: |' * len(names)}",
    ]
    for candidates, epsilon in SEARCHES:
        row = [f"{noise(name, candidates, epsilon):.3f}" for name in names]
        lines.append(f"| {candidates} | {epsilon:g} | {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    PAGE.write_text(before + BEGIN + table() + END + rest.split(END)[1], encoding="utf-8")
