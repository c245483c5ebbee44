"""Runs one module after another, each in a fork of a process that has imported what they need: a run costs no start.

    python -m clipwise.lab.processes.warm LEASH

Every line of standard input is a JSON object, `module` (the module and its words), `threads`, and `output` and `messages`, the files that
standard output and standard error of that run go to; the answer is a line with its exit code. LEASH is the reading end of a pipe
that closes with the process that started this one: then a run under way ends too, and this process at the end of its standard input.

For seeded runs alone: a fork has the random states of its parent, so that two runs that draw no seed of their own would be alike.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Sequence

from clipwise.lab.processes.leash import watch

IMPORTED = (  # what a training run imports, most of it late: torch._dynamo comes with the first optimizer
    "clipwise.cli",
    "clipwise.training.execute",
    "clipwise.training.unfinished",
    "torch._dynamo",
    "scipy.stats",
    "sklearn.datasets",
)


def main() -> None:
    leash = int(sys.argv[1])
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # meant for the run, and this process ends with its standard input
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # so that a run's collections leave the pages that are shared alone
    for line in sys.stdin:
        asked = json.loads(line)
        run = os.fork()
        if run == 0:
            _run(asked["module"], asked["threads"], leash, asked["output"], asked["messages"])
        _, status = os.waitpid(run, 0)
        print(json.dumps({"code": os.waitstatus_to_exitcode(status)}), flush=True)


def _run(module: Sequence[str], threads: int, leash: int, output: str, messages: str) -> None:
    """In the fork, which never returns from here."""
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, path in ((0, os.devnull), (1, output), (2, messages)):
            os.dup2(os.open(path, os.O_RDWR), number)
        threading.Thread(target=watch, args=(leash,), daemon=True, name="leash").start()
        _one_share(threads)
        sys.argv = list(module)
        runpy.run_module(module[0], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # without taking the imports apart, which takes as long as a short run


def _one_share(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
    os.environ["OMP_NUM_THREADS"] = str(threads)


if __name__ == "__main__":
    main()
