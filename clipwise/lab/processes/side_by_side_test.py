"""Runs in processes of their own, and in forks of one that has done the imports: the same ends, and none is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clipwise.lab.processes import Ended, side_by_side

BODY = """
import json, os, signal, sys, threading
what = sys.argv[1]
if what == "fail":
    raise ValueError("no such thing")
if what == "refuse":
    print(json.dumps({"error": "refused"})); sys.exit(2)
if what == "die":
    os.kill(os.getpid(), signal.SIGKILL)
if what == "wait":
    open(sys.argv[2], "w").write(str(os.getpid())); threading.Event().wait(60)
print(json.dumps({"what": what, "parent": os.getppid(), "threads": os.environ["OMP_NUM_THREADS"]}))
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "said_by_test.py").write_text(BODY)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    return "said_by_test"


@pytest.mark.parametrize("seeded", [False, True])
def test_every_end_is_told_and_the_next_run_goes_on(module: str, seeded: bool) -> None:
    words = ["one", "fail", "refuse", "die", "two"]
    found: dict[str, Ended] = dict(side_by_side(words, lambda word: [module, word], 1, seeded=seeded))
    said = {word: (ended.result or {}).get("what") for word, ended in found.items()}
    assert said == {"one": "one", "two": "two", "fail": None, "refuse": None, "die": None}
    assert "no such thing" in str(found["fail"].error)
    assert found["refuse"].error == "refused"
    assert {word: ended.killed for word, ended in found.items()} == {word: word == "die" for word in words}
    assert found["one"].result is not None
    assert found["two"].result is not None
    assert found["one"].result["threads"] == found["two"].result["threads"]
    assert (
        found["one"].result["parent"] == found["two"].result["parent"] != os.getpid()
    ) == seeded  # one process forked both


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_fork_ends_with_the_process_that_asked_for_it(module: str, tmp_path: Path, how: signal.Signals) -> None:
    asks = (
        "import signal; from clipwise.lab.processes import side_by_side; signal.signal(signal.SIGTERM, signal.default_int_handler); "
        f"list(side_by_side(['wait'], lambda word: ['{module}', word, '{tmp_path / 'pid'}'], 1, seeded=True))"
    )
    asking = subprocess.Popen([sys.executable, "-c", asks], stderr=subprocess.DEVNULL)
    pid = int(_waited(lambda: (tmp_path / "pid").read_text() if (tmp_path / "pid").exists() else ""))
    asking.send_signal(how)
    asking.wait(60)
    assert _waited(lambda: not Path(f"/proc/{pid}").exists())


def _waited(found):  # type: ignore[no-untyped-def]
    """What it gives as soon as that is something, within a minute."""
    for _ in range(1200):
        if value := found():
            return value
        time.sleep(0.05)
    raise TimeoutError
