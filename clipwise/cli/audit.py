"""`clipwise audit`: the step, or the edges, tried through the public API."""

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
    no_args_is_help=True, help="Try the guarantee: the private step, or the edges where user code meets it."
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
