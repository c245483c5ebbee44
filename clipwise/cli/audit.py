"""`clipwise audit`: the step, the edges, or the layers, tried through the public API."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from clipwise.cli import output
from clipwise.cli.together import together
from clipwise.types import ClipwiseError

app = typer.Typer(
    no_args_is_help=True, help="Try the guarantee: the private step, the edges where user code meets it, or the layers."
)


@app.command()
def edges(
    only: Annotated[str | None, typer.Option(help="Attacks whose edge or name holds this text.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="The table as docs/threat_model.md has it.")] = False,
    as_json: output.JsonOption = False,
) -> None:
    """Attack the edges (loss, padding, state, loop): each attack is refused, or one record more moves the sum by at most the bound."""
    from clipwise.lab.audit.edges import ATTACKS, try_attack

    chosen = [one for one in ATTACKS if only is None or only in f"{one.edge} {one.name}"]
    outcomes = [
        try_attack(one) for one in track(chosen, "attacks", console=output.messages(), disable=as_json, transient=True)
    ]
    rows: list[dict[str, Any]] = [
        {"edge": o.attack.edge, "attack": o.attack.name, "held": o.held, "how": o.how} for o in outcomes
    ]
    held = sum(o.held for o in outcomes)
    if as_json:
        output.print_json({"tried": len(rows), "held": held, "attacks": rows})
    elif markdown:
        typer.echo("| edge | attack | held | how |\n| --- | --- | --- | --- |")
        for row in rows:
            typer.echo(f"| {row['edge']} | {row['attack']} | {'yes' if row['held'] else '**no**'} | {row['how']} |")
    else:
        table = Table("edge", "attack", "held", "how", title=f"{held} of {len(rows)} attacks held")
        for row in rows:
            table.add_row(row["edge"], row["attack"], "yes" if row["held"] else "[bold red]NO[/]", row["how"])
        Console().print(table)
    if held < len(rows):
        raise ClipwiseError(f"{len(rows) - held} of {len(rows)} attacks got through")


@app.command()
def layers(
    only: Annotated[str | None, typer.Option(help="Kinds of layers whose name holds this text.")] = None,
    declared: Annotated[bool, typer.Option(help="Say which dimension has the records (batch_dim).")] = True,
    as_json: output.JsonOption = False,
) -> None:
    """Every kind of layer over a grid of shapes and options, against a loop over single records: fast, generic, refused or wrong."""
    from collections import Counter

    from clipwise.lab.audit import layers as grid

    found = list(grid.survey(lambda kind: only is None or only in kind, declared=declared))
    counts = Counter((each.kind, each.verdict) for each in found)
    verdicts = (grid.FAST, grid.GENERIC, grid.REFUSED, grid.WRONG)
    if as_json:
        odd = [each._asdict() for each in found if each.verdict in (grid.REFUSED, grid.WRONG)]
        output.print_json({"cases": len(found), **Counter(each.verdict for each in found), "odd": odd})
    else:
        table = Table("layer", *verdicts, title=f"{len(found)} cases")
        for kind in dict.fromkeys(each.kind for each in found):
            table.add_row(kind, *(str(counts[kind, verdict]) for verdict in verdicts))
        Console().print(table)
    if wrong := [each for each in found if each.verdict == grid.WRONG]:
        raise ClipwiseError(
            f"{len(wrong)} of {len(found)} cases are wrong, the first: {wrong[0].kind} {wrong[0].case}: {wrong[0].why}"
        )


@app.command()
@together
def step(
    method: Annotated[str, typer.Argument(help="A name from `clipwise methods`.")] = "fixed",
    steps: Annotated[int, typer.Option(help="Of the statistical part: more find smaller faults.")] = 40,
    as_json: output.JsonOption = False,
) -> None:
    """Audit the private step with a method: sensitivity by replay, noise by statistics (see docs/threat_model.md); of an automatic
    one, a whole run with all that it measures. Under torchrun, of several processes together."""
    from clipwise import validate
    from clipwise.clipping import make_method
    from clipwise.lab.audit import audit_run, audit_step

    validate.count("steps", steps)
    audited = make_method(method)
    audit = audit_step(audited, steps=steps)
    if audited.automatic:
        audit.findings += audit_run().findings
    if as_json:
        output.print_json({"passed": audit.passed, "findings": [finding._asdict() for finding in audit.findings]})
    else:
        table = Table("check", "passed", "detail", title=f"the step with method {method}")
        for finding in audit.findings:
            table.add_row(finding.check, "yes" if finding.passed else "[bold red]NO[/]", finding.detail)
        Console().print(table)
    if not audit.passed:
        raise ClipwiseError(f"the step with method {method!r} failed {len(audit.failures)} checks")
