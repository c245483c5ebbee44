"""Every command that README and the docs print is one that the command line takes: names, options and kinds of values.

What the commands do is run by the tests of each; the heavy ones (studies, benches, MNIST) would take hours here.
"""

import re
import shlex
from pathlib import Path

import pytest
import typer

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


def test_an_option_that_does_not_exist_is_found():
    command = typer.main.get_command(cli.app).commands["account"]
    with pytest.raises(Exception, match="no-such-option"):
        command.make_context("clipwise", ["--no-such-option", "1"])
