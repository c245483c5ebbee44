"""Runs a module as `python -m` would, and ends when the process that started it ends, whatever ended that.

    python -m clipwise.lab.processes.leash MODULE WORD...

Standard input is the leash: a pipe whose other end only the parent holds. The kernel closes that end when the parent
dies, also by SIGKILL, and a thread that waits for it ends this process at once. Steps are charged before they are
taken, so that nothing is lost from a ledger.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading


def watch(leash: int = 0) -> None:
    while os.read(leash, 1):
        pass
    os._exit(1)  # nobody is left to read what this process would say


def main() -> None:
    threading.Thread(target=watch, daemon=True, name="leash").start()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
