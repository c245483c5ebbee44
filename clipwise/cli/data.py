"""`clipwise data`: which data sets are at hand, where, and how to get the others; `clipwise data get` fetches one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clipwise.cli import output

if TYPE_CHECKING:
    from clipwise.data import Source
    from clipwise.data.fetch import Progress

app = typer.Typer(add_completion=False)


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
    typer.echo("Data of your own: --data FILE.npz (arrays x, y), or --data FILE.csv --label COLUMN.")


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
