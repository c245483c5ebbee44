"""A process that has imported the library once and forks a child for each run: `python -m clipwise.lab.faults.server`.

To import torch takes seconds, a run of the rig a fraction of one. Jobs come as lines of JSON on standard input, answers go
to standard output in the same order. This process runs no training itself, so that it has no threads when it forks; it
ends when its input does.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import sys
import time
from typing import Any

from clipwise.lab.faults import strikes

PATIENCE = 120.0  # seconds; a run of the rig takes about one, on a machine that is busy some
COMMAND_LINE = "clipwise.cli"


def warm() -> None:
    """Import all that a run will; making an optimizer is what makes torch import its compiler."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    importlib.import_module(COMMAND_LINE)
    for name in ("clipwise.training.execute", "clipwise.training.unfinished", "sklearn.metrics", "scipy.optimize"):
        importlib.import_module(name)
    torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    gc.freeze()


def serve() -> None:
    for line in sys.stdin:
        job = json.loads(line)
        pid = job.get("continue") or _fork(job)
        if "continue" in job:
            os.kill(pid, signal.SIGCONT)
        print(json.dumps({"pid": pid, **_ended(pid)}), flush=True)


def _fork(job: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        code = _child(job)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _child(job: dict[str, Any]) -> int:
    os.chdir(job["folder"])
    for number, name in ((0, os.devnull), (1, "out.txt"), (2, "err.txt")):
        file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, number)
        os.close(file)
    points = strikes.Points([strikes.Strike(**each) for each in job.get("strikes", ())])
    points.install()
    if job.get("read_only"):
        sys.addaudithook(strikes.read_only)
    if job.get("clock") is not None:
        strikes.jumping_clock(job["clock"])
    sys.argv = ["clipwise", *job["words"]]
    code: Any = 0
    try:
        runpy.run_module(COMMAND_LINE, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code or 0
    with contextlib.suppress(OSError), open("visits.json", "w") as file:
        json.dump(points.visits, file)
    return code if isinstance(code, int) else 1


def _ended(pid: int) -> dict[str, Any]:
    """Its exit code, or minus the signal that killed or stopped it; one that hangs is killed and said to."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
        if found:
            stopped = os.WIFSTOPPED(status)
            return {"code": -signal.SIGSTOP if stopped else os.waitstatus_to_exitcode(status), "hung": False}
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return {"code": -signal.SIGKILL, "hung": True}


if __name__ == "__main__":
    warm()
    print(json.dumps({"ready": os.getpid()}), flush=True)
    serve()
