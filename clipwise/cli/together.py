"""A command that several processes carry out together, started by torchrun:

torchrun --nproc-per-node 2 -m clipwise train --data mnist --epsilon 3 --out runs/mnist
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import wraps
from typing import Any


def together(command: Callable[..., None]) -> Callable[..., None]:
    """The command, with the processes as one group while it lasts. The first one speaks, the others are silent."""

    @wraps(command)
    def run(*args: Any, **options: Any) -> None:
        if int(os.environ.get("WORLD_SIZE") or 1) <= 1:
            command(*args, **options)
            return
        from clipwise.ranks import joined

        with (
            joined() as world,
            open(os.devnull, "w") as nowhere,
            redirect_stdout(sys.stdout if world.leads else nowhere),
        ):
            command(*args, **{**options, "as_json": options["as_json"] or not world.leads})

    return run
