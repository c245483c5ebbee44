"""An earlier release in the rounds of this one: `--release FOLDER`, a checkout (`git worktree add FOLDER COMMIT`).

Two copies of a package cannot be in one process, and both would watch torch's backward passes. So the earlier one runs in a
process of its own, which takes a step when it is told to and says how long it took by its own clock; our steps wait meanwhile, so that
the two are interleaved as all methods are. It is given the workloads and the peer of now: only the library differs.

Run as a script, this is that process. What it imports before it knows the folder is of the standard library alone.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clipwise.lab.bench.workloads import Workload

NAME = "release"
_HERE = Path(__file__).parent


class Release:
    """A stepper (timing.py) whose steps another process takes."""

    parts = 1

    def __init__(self, workload: Workload, folder: Path, *, cpu_time: bool):
        spec = {"folder": str(folder.resolve()), "model": workload.name, "cpu_time": cpu_time}
        command = [sys.executable, __file__, json.dumps(spec)]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.version = str(self._answer())

    def whole_step(self) -> float:
        """Seconds, as the other process measured them."""
        if self._child.stdin is None:
            raise RuntimeError("the process of the release cannot be told anything")
        self._child.stdin.write("step\n")
        self._child.stdin.flush()
        return float(self._answer())

    def _answer(self) -> Any:
        line = self._child.stdout.readline() if self._child.stdout else ""
        if not line:
            raise RuntimeError(f"the process of the release ended with code {self._child.wait()}")
        answer = json.loads(line)
        if isinstance(answer, dict):
            raise RuntimeError(f"the release failed: {answer['failed']}")
        return answer

    def prepare(self) -> None: ...

    def step(self) -> None: ...

    def tidy(self) -> None: ...

    def facts(self) -> dict[str, Any]:
        return {"note": f"clipwise {self.version}, in a process of its own"}

    def close(self) -> None:
        self._child.terminate()
        self._child.wait()


def _load(name: str, file: str) -> types.ModuleType:
    """A module of the bench of now, under a name of the release's."""
    spec = importlib.util.spec_from_file_location(name, _HERE / file)
    if spec is None or spec.loader is None:
        raise ImportError(file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _serve(folder: str, model: str, cpu_time: bool) -> None:
    import io
    import os

    out: io.TextIOBase = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not come between the answers

    def say(answer: Any) -> None:
        print(json.dumps(answer), file=out, flush=True)

    try:
        # In the place of this script's folder: the installed package, if there is one, must not be found first.
        sys.path[0] = folder
        sys.meta_path = [finder for finder in sys.meta_path if "__editable__" not in repr(finder)]
        import clipwise

        if Path(clipwise.__file__).resolve().parent.parent != Path(folder):
            raise ImportError(f"{clipwise.__file__} was found and not the package in {folder}")
        for parent in ("clipwise.lab", "clipwise.lab.bench"):
            sys.modules.setdefault(parent, types.ModuleType(parent))
        workload = _load("clipwise.lab.bench.workloads", "workloads.py").WORKLOADS[model]
        peer = _load("peers_of_now", "peers.py").Clipwise(workload)
        whole_step = _load("timing_of_now", "timing.py").whole_step
        say(clipwise.__version__)
        for _ in sys.stdin:
            say(whole_step(peer, time.process_time if cpu_time else time.perf_counter))
        peer.close()
    except Exception as error:
        say({"failed": f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]})


if __name__ == "__main__":
    _serve(**json.loads(sys.argv[1]))
