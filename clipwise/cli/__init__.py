"""The command line, `clipwise`: a sub-command a file, registered by one line below.

Exit codes: 0; 1 for a run that failed; 2 for arguments that cannot be honoured. Command files import torch inside their
functions, so that `clipwise account` and `clipwise --help` answer at once.
"""

from __future__ import annotations

import errno
import sys
import traceback
from collections.abc import Sequence
from itertools import dropwhile, zip_longest
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from clipwise import __version__
from clipwise.cli import (
    account,
    audit,
    bench,
    calibrate,
    claims,
    data,
    evaluate,
    fairness,
    faults,
    figures,
    fuzz,
    init,
    ledger,
    methods,
    models,
    output,
    plan,
    plot_schedule,
    predict,
    report,
    resume,
    study,
    train,
    tune,
    verify,
    watch,
)
from clipwise.types import ClipwiseError

# Old typer builds on click, new typer carries a copy of it: this is the parser's error class in both.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


class _Group(TyperGroup):
    """Turns every error into a message and an exit code, in one place."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        debug, as_json = "--debug" in words, "--json" in words
        # --debug may stand anywhere; it is looked for before the parser, whose own errors it is for as well.
        words = _with_values(_json_last([word for word in words if word != "--debug"]))
        try:
            sys.exit(super().main(words, *rest, **{**options, "standalone_mode": False}))
        except Exception as error:
            if debug:
                traceback.print_exc()
            code, kind, message = _explain(error)
            if as_json:
                output.print_json({"error": message, "kind": kind})
            else:
                output.messages().print(f"[bold red]{kind}[/]: ", end="")
                output.messages().print(message, markup=False, highlight=False)
            sys.exit(code)


def _json_last(words: list[str]) -> list[str]:
    """`clipwise --json account ...` as `clipwise account ... --json`."""
    rest = list(dropwhile(lambda word: word == "--json", words))
    return [*rest, "--json"] if rest and not rest[0].startswith("-") and len(rest) < len(words) else words


def _with_values(words: list[str]) -> list[str]:
    """An option whose value may be left out, with an empty one: the parser wants a value."""
    alone = [
        word == "--tensorboard" and (after is None or after.startswith("-"))
        for word, after in zip_longest(words, words[1:])
    ]
    return [f"{word}=" if bare else word for word, bare in zip(words, alone, strict=True)]


def _explain(error: BaseException) -> tuple[int, str, str]:
    """Exit code, kind and message."""
    if isinstance(error, ClipwiseError):
        return error.exit_code, type(error).__name__, str(error)
    if isinstance(error, _UsageError):
        return 2, "BadArgument", f"{error.format_message()} (see --help)"  # type: ignore[attr-defined]
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return 2, "BadArgument", f"{str(error.filename)[:60]!r}... is longer than a file's name can be; give another"
    return 1, type(error).__name__, f"{error} (this was not expected; --debug shows where it happened)"


app = typer.Typer(cls=_Group, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def _clipwise(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    as_json: output.JsonOption = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,  # noqa: ARG001
) -> None:
    """Train PyTorch models under differential privacy."""
    if version:
        if as_json:
            output.print_json({"version": __version__})
        else:
            typer.echo(f"clipwise {__version__}")
        raise typer.Exit


_COMMANDS = (
    plan.plan,
    train.train,
    init.init,
    resume.resume,
    predict.predict,
    evaluate.evaluate,
    report.report,
    watch.watch,
    account.account,
    calibrate.calibrate,
    ledger.ledger,
    verify.verify,
    plot_schedule.plot_schedule,
    bench.bench,
    claims.claims,
    figures.figures,
    methods.methods,
    models.models,
    study.study,
    tune.tune,
    fairness.fairness,
    faults.faults,
    fuzz.fuzz,
)
for command in _COMMANDS:
    app.command()(command)
app.add_typer(data.app, name="data")
app.add_typer(audit.app, name="audit")


def main() -> None:
    app(prog_name="clipwise")
