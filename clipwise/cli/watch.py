"""`clipwise watch`: a run, live in a browser on this machine."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from clipwise.cli import output


def watch(
    run: Annotated[Path, typer.Argument(help="The folder of a run, while it trains or afterwards.")],
    port: Annotated[int, typer.Option(help="Where to serve on 127.0.0.1; 0 takes any port that is free.")] = 0,
    as_json: output.JsonOption = False,
) -> None:
    """Serve a page that shows a run as it trains, to browsers on this machine alone; Ctrl-C ends it."""
    from clipwise.lab.watch import Watch

    with Watch(run, port) as served, suppress(KeyboardInterrupt):
        if as_json:
            output.print_json({"run": str(run), "url": served.url, "port": served.port})
        else:
            typer.echo(f"watching {run} at {served.url} (Ctrl-C ends it)")
        threading.Event().wait()
