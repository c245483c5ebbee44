"""Puts the table of `clipwise audit edges --markdown` into docs/threat_model.md: python docs/make_attacks.py"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parent / "threat_model.md"
START, END = "<!-- attacks: made by docs/make_attacks.py -->", "<!-- end of attacks -->"


def main() -> None:
    command = [sys.executable, "-m", "clipwise.cli", "audit", "edges", "--markdown"]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{START}\n{table}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
