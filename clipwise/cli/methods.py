"""`clipwise methods`: the clipping methods, and the options of one."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from clipwise.cli import output


def methods(
    name: Annotated[str | None, typer.Argument(help="Show this method's options.")] = None,
    as_json: output.JsonOption = False,
) -> None:
    """The clipping methods, or the options of one."""
    from clipwise import validate
    from clipwise.clipping import METHODS

    if name is not None:
        validate.choice("method", name, METHODS)
        described = describe(name)
        if as_json:
            output.print_json(described)
            return
        typer.echo(f"{name}: {described['summary']}\n{described['reference']}\n")
        if not described["sound"]:
            typer.echo("No valid guarantee: it runs only when allowed by name, and its epsilon is infinite.\n")
        rows = [[o["name"], o["type"], o["default"], o["help"]] for o in described["options"]]
        output.print_table("options (--method-option NAME=VALUE)", ["name", "type", "default", "meaning"], rows)
        return
    every = [describe(each) for each in METHODS]
    if as_json:
        output.print_json(every)
        return
    rows = [
        [m["name"], "yes" if m["sound"] else "NO", ", ".join(m["side_queries"]) or "none", m["summary"], m["reference"]]
        for m in every
    ]
    output.print_table("clipping methods", ["name", "sound", "side queries", "what it does", "reference"], rows)


def describe(name: str) -> dict[str, Any]:
    """A method's public facts. Its side queries are those it asks with default options, in a run of ordinary size."""
    from clipwise.clipping import METHODS, Context, make_method, method_options

    context = Context(expected_batch_size=256.0, noise_multiplier=1.0, parameters=10_000, steps=1000, sample_rate=0.01)
    kind = METHODS[name]
    return {
        "name": name,
        "summary": kind.summary,
        "sound": kind.sound,
        "side_queries": [query.name for query in make_method(name).side_queries(context)],
        "options": method_options(name),
        "reference": kind.reference,
    }
