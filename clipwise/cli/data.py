"""`clipwise data`: which data sets are at hand, where, and how to get the others; `clipwise data get` fetches one;
`clipwise data FILE` says what is understood of a file of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from clipwise.cli import output
from clipwise.types import BadArgument

if TYPE_CHECKING:
    from clipwise.data import Source
    from clipwise.data.fetch import Progress
    from clipwise.data.table import Table

_SHOWN = 100  # columns in the table of a file: more are counted


class _NamesOrFile(TyperGroup):
    """`clipwise data FILE` is `clipwise data show FILE`: what is no command is a file."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        known = args and args[0] in self.commands
        return super().resolve_command(ctx, args if known or not args else ["show", *args])


app = typer.Typer(add_completion=False, cls=_NamesOrFile)


@app.callback(invoke_without_command=True)
def data(context: typer.Context, as_json: output.JsonOption = False) -> None:
    """The data sets: what is found, where, and how to get the rest."""
    if context.invoked_subcommand is not None:
        context.obj = as_json
        return
    from clipwise.data import DATASETS, roots

    rows = [_row(source) for source in DATASETS.values()]
    if as_json:
        output.print_json({"datasets": rows, "looked_in": [str(root) for root in roots()]})
        return
    places = {str(root.resolve()): f"[{number}]" for number, root in reversed(list(enumerate(roots(), 1)))}
    cells = [
        [
            *(r["name"], r["kind"], f"{r['train']:,}", f"{r['test']:,}", "x".join(map(str, r["shape"])), r["classes"]),
            places.get(r["where"], "here") if r["found"] else "no",
        ]
        for r in rows
    ]
    output.print_table("data sets", ["name", "kind", "train", "test", "record", "classes", "found"], cells)
    typer.echo(f"Looked in {', '.join(f'[{number}] {root}' for number, root in enumerate(roots(), 1))}.")
    for r in rows:
        typer.echo(f"{r['name']}: {r['summary']}; licence: {r['licence']}")
        if r["edition"]:
            typer.echo(f"  {r['edition']}")
        if not r["found"]:
            typer.echo(f"  to get it: {r['how_to_get']}")
    typer.echo(
        "Data of your own: `clipwise data FILE` says what is understood of it, `clipwise init FILE` writes a config."
    )


def _row(source: Source) -> dict[str, Any]:
    """The public facts of a data set: of the edition that is found, or of the one that can be had."""
    found = source.find()
    edition = source.editions[0] if found is None else found.edition
    return {
        "name": source.name,
        "summary": source.summary,
        "kind": source.kind,
        "found": found is not None,
        "where": None if found is None else str(found.root.resolve()) if edition.files else "embedded",
        "train": edition.train_count,
        "test": edition.test_count,
        "edition": edition.note,
        "shape": list(source.shape),
        "classes": source.classes,
        "class_names": list(source.class_names),
        "vocabulary_size": source.vocabulary_size,
        "groups": {name: list(names) for name, names in source.groups.items()},
        "licence": source.licence,
        "how_to_get": source.how_to_get,
        "fetchable": source.fetchable is not None,
    }


@app.command(hidden=True)
def show(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="A table or a folder of your own.")],
    label: Annotated[str | None, typer.Option(help="The column to be predicted.")] = None,
    as_json: output.JsonOption = False,
) -> None:
    """What is understood of a file of your own (names and types, no values), and what is still to be said."""
    from clipwise.data.columns import some
    from clipwise.data.describe import describe, missing_words, unscaled_columns
    from clipwise.data.schema import unscaled

    found = describe(read_own(file), label, file)
    missing, bare = missing_words(found), unscaled_columns(found)
    warnings = [unscaled(bare)] if bare else []
    if as_json or context.obj:
        columns = [{"name": g.name, "kind": g.kind, "has_gaps": g.gaps} for g in found.guesses]
        output.print_json(
            {"file": str(file), "label": found.label, "columns": columns, "missing": missing, "warnings": warnings}
        )
        return
    rows = [
        [some([g.name]), g.kind, "yes" if g.gaps else "", "the label" if g.name == found.label else ""]
        for g in found.guesses[:_SHOWN]
    ]
    output.print_table(f"{file}: as it looks (no values are shown)", ["column", "kind", "gaps", ""], rows)
    if len(found.guesses) > _SHOWN:
        typer.echo(f"and {len(found.guesses) - _SHOWN:,} columns more")
    typer.echo("Still to be said:" if missing else "Nothing else has to be said.")
    for line in missing:
        typer.echo(f"  {line}")
    for line in warnings:
        typer.echo(f"warning: {line}")
    name = found.label or "COLUMN"
    typer.echo(f"A config with all of it, to read and to change: clipwise init {file} --label {name}")


def read_own(file: Path) -> Table:
    """A user's own table; arrays have no columns to tell of."""
    from clipwise.data.table import TABLES, read_table
    from clipwise.files import is_folder

    if file.suffix.lower() == ".npz":
        raise BadArgument(
            f"{file} holds arrays x and y, without columns: clipwise train --data {file} --range LOW:HIGH trains on it"
        )
    if not is_folder(file) and file.suffix.lower() not in TABLES:
        raise BadArgument(
            f"{str(file)[-200:]!r} is no file that can be read; give {', '.join(TABLES)}, or a folder of images or texts (data sets by "
            "name: `clipwise data`)"
        )
    return read_table(file)


@app.command()
def get(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A name from `clipwise data`.")],
    as_json: output.JsonOption = False,
) -> None:
    """Fetch a data set from where its publisher keeps it into the user's cache, checked by sha256; a cut transfer goes on."""
    from clipwise.data import get_source
    from clipwise.data.fetch import fetch

    source = get_source(name)
    as_json = as_json or bool(context.obj)
    with _progress(quiet=as_json) as progress:
        if source.editions[0].files:
            root, files = fetch(source, progress)
        else:
            root, files = None, []
    found = source.find()
    where = "embedded" if root is None else str(root.resolve())
    earlier = (
        None if root is None or found is None or found.root.resolve() == root.resolve() else str(found.root.resolve())
    )
    if as_json:
        output.print_json({"name": name, "where": where, "files": files, "found_earlier_in": earlier})
        return
    new = sum(1 for file in files if file["fetched"])
    total = sum(int(str(file["bytes"])) for file in files)
    typer.echo(
        f"{name}: {source.how_to_get}; there is nothing to fetch."
        if root is None
        else f"{name}: {len(files)} files, {total:,} bytes in {where}, {new} of them fetched now; sha256 checked."
    )
    if earlier:
        typer.echo(f"Note: {earlier} has it too, and comes first (see CLIPWISE_DATA).")


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Progress | None]:
    """A bar a file on stderr; none in a log file or for a program."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = output.messages()
    if quiet or not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, Any] = {}

        def show(file: str, have: int, size: int) -> None:
            if file not in tasks:
                tasks[file] = bars.add_task(file, total=size)
            bars.update(tasks[file], completed=have)

        yield show
