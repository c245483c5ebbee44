"""Every command that README and the docs print is one that the command line takes: names, options and kinds of values.

README's own are run as well, as they are printed, where they need no file or run of the reader's and take seconds. The others (MNIST,
studies, benches, audits, faults) would take minutes to hours here; what they do is run by the tests of each on less.
"""

import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from clipwise import cli

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_TORCHRUN = re.compile(r"^(torchrun .*? -m )?(?=clipwise )")


def commands(page):
    """Indented lines that begin with clipwise (or with torchrun -m clipwise), without what stands behind # or a pipe."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")  # a command that goes on in the next line
    for line in text.splitlines():
        if not line.startswith("    "):
            continue
        for part in line.strip().split(" #")[0].split(" | "):
            words = _TORCHRUN.sub("", part.strip())
            if words.startswith("clipwise ") and "..." not in words:
                yield words


ALL = sorted({words for page in PAGES for words in commands(page)})


def test_the_pages_have_commands():
    assert len(ALL) > 30


@pytest.mark.parametrize("words", ALL)
def test_a_printed_command_is_understood(words):
    command, rest = typer.main.get_command(cli.app), cli._with_values(shlex.split(words)[1:])
    while hasattr(command, "commands") and rest and rest[0] in command.commands:
        command = command.commands[rest.pop(0)]
    command.make_context("clipwise", rest)  # raises for an unknown option, or a value of the wrong kind


QUICK = ("account", "calibrate", "data", "methods", "models", "plan", "plot-schedule", "study --list")
LONG = re.compile(r"--data |--config |--out runs|mine\.csv|people\.csv")
RUN = [
    words
    for words in sorted(set(commands(ROOT / "README.md")))
    if words.startswith(tuple(f"clipwise {name}" for name in (*QUICK, "train"))) and not LONG.search(words)
]


def test_most_of_the_quick_ones_are_there():
    assert len(RUN) >= 12


@pytest.mark.parametrize("words", RUN)
def test_a_printed_command_runs(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "--log-to mlflow" in words:
        pytest.importorskip("mlflow")
    done = CliRunner().invoke(cli.app, shlex.split(words)[1:])
    assert done.exit_code == 0, done.output


def test_an_option_that_does_not_exist_is_found():
    command = typer.main.get_command(cli.app).commands["account"]
    with pytest.raises(Exception, match="no-such-option"):
        command.make_context("clipwise", ["--no-such-option", "1"])
