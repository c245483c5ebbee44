"""`clipwise data`: which data sets are at hand, where, and how to get the others."""

from __future__ import annotations

from typing import Any

import typer

from clipwise.cli import output


def data(as_json: output.JsonOption = False) -> None:
    """The data sets: what is found, where, and how to get the rest."""
    from clipwise.data import DATASETS, roots

    rows: list[dict[str, Any]] = []
    for source in DATASETS.values():
        root = source.find()
        where = None if root is None else str(root.resolve()) if source.files else "embedded"
        rows.append(
            {
                "name": source.name,
                "summary": source.summary,
                "found": root is not None,
                "where": where,
                "train": source.train_count,
                "test": source.test_count,
                "shape": list(source.shape),
                "classes": source.classes,
                "licence": source.licence,
                "how_to_get": source.how_to_get,
            }
        )
    if as_json:
        output.print_json({"datasets": rows, "looked_in": [str(root) for root in roots()]})
        return
    cells = [
        [r["name"], r["where"] or "not found", r["train"], r["test"], "x".join(map(str, r["shape"])), r["classes"]]
        for r in rows
    ]
    output.print_table("data sets", ["name", "where", "train", "test", "shape", "classes"], cells)
    typer.echo(f"Looked in {', '.join(map(str, roots()))}.")
    for r in rows:
        typer.echo(f"{r['name']}: {r['summary']}; licence: {r['licence']}")
        if not r["found"]:
            typer.echo(f"  to get it: {r['how_to_get']}")
    typer.echo("Data of your own: --data FILE.npz (arrays x, y), or --data FILE.csv --label COLUMN.")
