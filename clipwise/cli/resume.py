"""`clipwise resume`: go on with a run that was stopped or killed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clipwise.cli import output
from clipwise.cli.together import together
from clipwise.cli.train import CheckpointEvery, Rescue, run_and_show
from clipwise.types import BadArgument


@together
def resume(
    run: Annotated[Path, typer.Argument(help="The folder of a run that did not finish.")],
    finish: Annotated[
        bool, typer.Option("--finish", help="Take no more steps: end it with the weights of its last checkpoint.")
    ] = False,
    checkpoint_every: CheckpointEvery = None,
    rescue: Rescue = None,
    as_json: output.JsonOption = False,
) -> None:
    """Go on with a run that was stopped or killed, from its last checkpoint, with its own options and ledger; or end it."""
    from clipwise.training.config import make_config, read_config
    from clipwise.training.unfinished import begun

    folder = begun(str(run))
    if folder is None:
        raise BadArgument(f"run={str(run)!r} holds no checkpoint of a run; give the folder of one that did not finish")
    settings = make_config(read_config(folder.path / "config.toml"), str(folder.path / "config.toml"))
    from clipwise.training.execute import load_asked, make_network

    dataset = load_asked(settings)
    network = make_network(settings, dataset)
    run_and_show(
        folder,
        settings,
        dataset,
        network,
        resume=True,
        finish=finish,
        every=checkpoint_every,
        rescue=rescue,
        as_json=as_json,
    )
