"""Times the three commands of docs/own_data.md on a made-up table, and writes the figures there.

    python docs/make_own_data.py                 # run and time them, and write the page's table
    python docs/make_own_data.py people.csv      # only write the table of people

The people are drawn from a fixed seed: 4,000 rows with words, gaps, categories and dates. Nobody is among them.
"""

import csv
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PAGE = Path(__file__).parent / "own_data.md"
BEGIN, END = "<!-- made by docs/make_own_data.py -->\n", "<!-- end -->"
COMMANDS = (
    "clipwise init people.csv",
    "clipwise train --config clipwise.toml --out run",
    "clipwise predict run people.csv --out predictions.csv",
)


def write_people(path: Path) -> None:
    draw = random.Random(0)
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "age", "income", "city", "since", "outcome"])
        for number in range(4000):
            age, income = max(0, draw.gauss(45, 15)), draw.lognormvariate(10, 0.6)
            city = draw.choice(["Paris", "Lyon", "Nantes", "Lille", "Nice"])
            likes = (age - 45) / 15 + 1.2 * (income > 22_000) + (city in ("Paris", "Lyon")) - 1 + draw.gauss(0, 0.5)
            since = f"20{draw.randint(10, 23)}-0{draw.randint(1, 9)}-1{draw.randint(0, 9)}"
            gaps = draw.random() < 0.05, draw.random() < 0.03
            rows.writerow(
                [
                    number,
                    "" if gaps[0] else round(age),
                    round(income, 2),
                    "" if gaps[1] else city,
                    since,
                    "yes" if likes > 0 else "no",
                ]
            )


def timed(command: str, folder: str) -> tuple[float, float, str]:
    """Seconds, seconds of processor, and what it printed."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    words = [sys.executable, "-m", "clipwise", *command.split()[1:]]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - begun, spent, done.stdout


def table() -> str:
    found = None
    lines = ["| command | seconds | of processor |", "| --- | ---: | ---: |"]
    with tempfile.TemporaryDirectory() as folder:
        write_people(Path(folder) / "people.csv")
        for command in COMMANDS:
            seconds, spent, said = timed(command, folder)
            lines.append(f"| `{command}` | {seconds:.0f} | {spent:.1f} |")
            found = accuracy(said) or found
        config = Path(folder) / "clipwise.toml"
        config.write_text(config.read_text().replace("learn_ranges = true", ""))
        _, _, said = timed("clipwise train --config clipwise.toml --out bare", folder)
    threads = os.environ.get("OMP_NUM_THREADS", "all")
    lines += [
        "",
        f"Accuracy on the records that were held out: {found}; without the line `learn_ranges = true`, which leaves numbers as they "
        f"are, {accuracy(said)} (one run each, no seed). Threads: {threads}; the machine had other work beside.",
    ]
    return "\n".join(lines) + "\n"


def accuracy(said: str) -> str | None:
    return next((line.strip("│ ").split()[1] for line in said.splitlines() if "accuracy" in line), None)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        write_people(Path(sys.argv[1]))
    else:
        text = PAGE.read_text(encoding="utf-8")
        before, rest = text.split(BEGIN)
        PAGE.write_text(before + BEGIN + table() + END + rest.split(END)[1], encoding="utf-8")
