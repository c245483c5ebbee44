"""Draws docs/report.png, the picture of a report page: trains on digits, reports, and photographs the page in Chromium.
Run: .venv/bin/python docs/make_report_picture.py"""

import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent / "tests"))
from browser import Browser  # noqa: E402

TRAIN = ("train", "--method", "dc-sgd-e", "--schedule", "step", "--every", "8", "--epochs", "20", "--seed", "1")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for words in ([*TRAIN, "--out", "runs/digits"], ["report", "runs/digits"]):
            subprocess.run([sys.executable, "-m", "clipwise.cli", *words], cwd=folder, check=True)
        browser = Browser()
        browser.open(Path(folder, "runs/digits/report.html"), width=1100)
        end = browser.js("document.querySelector('.charts').getBoundingClientRect().bottom + 16")
        browser.screenshot(DOCS / "report.png", height=end, scale=0.8)
        browser.close()


if __name__ == "__main__":
    main()
