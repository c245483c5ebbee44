"""The rig: small runs on small data, each in a folder of its own, and the judgement of what they leave behind."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from clipwise.accounting import Ledger, epsilon
from clipwise.accounting.events import StepEvent
from clipwise.durable import sha256
from clipwise.lab.faults.strikes import DRAWS, Strike

RECORDS, FEATURES, BATCH, EPOCHS = 400, 6, 40, 6  # 10 steps an epoch, 60 in all: a run takes about half a second
STEPS = EPOCHS * RECORDS // BATCH
KEPT_EVERY = 7  # steps: no divisor of an epoch, so that checkpoints fall inside and on its end
TARGET, DELTA = 3.0, 1e-4  # of the runs that are struck: any would do
_RUN = ("train", "--data", "data.npz", "--model", "linear", "--epochs", EPOCHS, "--batch", BATCH, "--delta", DELTA)
_WAYS = ("--accountant", "rdp", "--method", "quantile", "--average-weights", 0.9, "--checkpoint-every", KEPT_EVERY)
TRAIN = tuple(map(str, (*_RUN, *_WAYS, "--out", "run", "--json")))
RESUME = ("resume", "run", "--checkpoint-every", str(KEPT_EVERY), "--json")
# How a run gets its noise. Both secure ones draw it from a key that dies with the process.
MODES: dict[str, tuple[str, ...]] = {
    "reproducible": ("--epsilon", str(TARGET), "--seed", "5"),
    "secure": ("--noise-multiplier", "1.5"),
    "secure, target": ("--epsilon", str(TARGET)),
}


class Lost(Exception):
    """A trial in which something was lost; the message says what."""


@dataclass(frozen=True)
class Ended:
    """How a run ended: its exit code, or minus the signal; and what it said."""

    code: int
    pid: int
    out: str
    err: str

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL

    @property
    def result(self) -> dict[str, Any]:
        try:
            return json.loads(self.out)
        except ValueError:
            return {}

    @property
    def named_error(self) -> str | None:
        """The kind of an error that has a name and a message; None where the run ended well, or without a name."""
        expected = "this was not expected" not in self.result.get("error", "this was not expected")
        return self.result.get("kind") if self.code > 0 and expected else None

    def __str__(self) -> str:
        return f"exit {self.code}: {(self.out + self.err).strip()[-400:]}"


class Rig:
    """Runs that are struck. Use as a context: the server ends with it, and the folder goes."""

    def __init__(self, seed: int = 0):
        self.chance = random.Random(seed)
        self._number = 0

    def __enter__(self) -> Rig:
        self.folder = Path(tempfile.mkdtemp(prefix="clipwise-faults-"))
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "clipwise.lab.faults.server"]
        self._server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._answer()  # it is ready
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server.stdin is not None:
            self._server.stdin.close()
        self._server.wait(timeout=60)
        if self._server.stdout is not None:
            self._server.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def place(self, copy_of: Path | None = None) -> Path:
        """A new folder with the data in it, or with all that another holds."""
        self._number += 1
        place = self.folder / f"{self._number:05d}"
        if copy_of is not None:
            shutil.copytree(copy_of, place, symlinks=True)
            config = place / "run" / "config.toml"
            config.write_text(config.read_text().replace(str(copy_of), str(place)))  # it names its data in full
        else:
            place.mkdir()
            write_data(place / "data.npz")
        return place

    def run(self, place: Path, words: tuple[str, ...], *strikes: Strike, **more: Any) -> Ended:
        """The command line with these words in that folder."""
        return self._job(place, {"words": words, "strikes": [asdict(strike) for strike in strikes], **more})

    def go_on(self, place: Path, pid: int) -> Ended:
        """A run that was paused."""
        return self._job(place, {"continue": pid})

    def _job(self, place: Path, job: Mapping[str, Any]) -> Ended:
        if self._server.stdin is None:
            raise RuntimeError("the rig is closed")
        print(json.dumps({"folder": str(place), **job}), file=self._server.stdin, flush=True)
        answer = self._answer()
        if answer["hung"]:
            raise Lost("the run hung and was killed")
        out, err = ((place / name).read_text(encoding="utf-8", errors="replace") for name in ("out.txt", "err.txt"))
        return Ended(answer["code"], answer["pid"], out, err)

    def _answer(self) -> dict[str, Any]:
        line = self._server.stdout.readline() if self._server.stdout is not None else ""
        if not line:
            raise RuntimeError("the rig's server has died; run with --debug for its messages")
        return json.loads(line)

    # -- what a run should have become

    @cached_property
    def whole(self) -> dict[str, Path]:
        """Runs that nothing struck, by mode."""
        return {mode: self._finished(mode) for mode in MODES}

    def _finished(self, mode: str) -> Path:
        place = self.place()
        ended = self.run(place, (*TRAIN, *MODES[mode]))
        if ended.code:
            raise RuntimeError(f"a run that nothing struck failed ({ended})")
        return place

    @cached_property
    def cut(self) -> dict[str, Path]:
        """Runs that were killed after three quarters of their steps, by mode: two checkpoints, and charges after them."""
        return {mode: self._killed(mode) for mode in ("reproducible", "secure")}

    def _killed(self, mode: str) -> Path:
        place = self.place()
        at = STEPS * 3 // 4 + 1
        if not self.run(place, (*TRAIN, *MODES[mode]), Strike("between noise and update", at)).killed:
            raise RuntimeError("a run outlived its kill")
        return place

    @cached_property
    def visits(self) -> dict[str, int]:
        """How often a run visits each point."""
        return json.loads((self.whole["reproducible"] / "visits.json").read_text())

    @cached_property
    def calls(self) -> int:
        """How many functions a run calls."""
        place = self.place()
        self.run(place, (*TRAIN, *MODES["reproducible"]), Strike("anywhere", 0))
        return json.loads((place / "visits.json").read_text())["anywhere"]

    def judge_spent(self, place: Path) -> str:
        """A run that cannot go on within its target: what it had is there, and its target holds."""
        spent = Ledger.read(place / "run" / "ledger.jsonl").epsilon(DELTA, "rdp").value
        if spent > TARGET:
            raise Lost(f"epsilon {spent:.6g} is above its target")
        if not any((place / "run" / "checkpoints").glob("step-*/manifest.json")):
            raise Lost("no checkpoint is left")
        return "steps that do not fit the target refused, weights kept"

    def judge(self, place: Path, mode: str) -> str:
        """What a finished run's folder proves, in a few words; raises `Lost`."""
        whole = self.whole[mode]
        for name in ("model.safetensors", "result.json", "statement.md", "config.toml", "metrics.jsonl"):
            if not (place / "run" / name).exists():
                raise Lost(f"the run has no {name}")
        leftovers = [path.name for path in (place / "run").rglob("*") if ".part" in path.name or path.name == ".lock"]
        if leftovers:
            raise Lost(f"{', '.join(leftovers)} was left behind")
        ledger, draws = Ledger.read(place / "run" / "ledger.jsonl"), read_draws(place)
        charged = sum(event.count for event in ledger.events())
        if mode == "reproducible":
            same_files(place / "run", whole / "run")
            if charged != STEPS:
                raise Lost(f"{charged} steps are charged, not {STEPS}")
            if len({(step, digest) for step, digest, _ in draws}) != STEPS:
                raise Lost("a redone step was another release than the first")
            return "equal weights"
        spent = ledger.epsilon(DELTA, "rdp").value
        if len({digest for _, digest, _ in draws}) != len(draws):
            raise Lost("noise was drawn twice")
        drawn = epsilon([StepEvent(BATCH / RECORDS, noise) for *_, noise in draws], DELTA, "rdp").value
        if charged < len(draws) or spent < drawn:
            raise Lost(f"epsilon {spent:.6g} for {charged} steps, but {len(draws)} were drawn, worth {drawn:.6g}")
        if mode == "secure" and spent < Ledger.read(whole / "run" / "ledger.jsonl").epsilon(DELTA, "rdp").value:
            raise Lost("a smaller epsilon than without the fault")
        if mode == "secure, target" and spent > TARGET:
            raise Lost(f"epsilon {spent:.6g} is above its target")
        return "no smaller epsilon"


def write_data(path: Path, **changed: Any) -> None:
    """Data of one file, the same each time."""
    chance = np.random.default_rng(1)
    x = chance.normal(size=(RECORDS + 100, FEATURES)).astype(np.float32)
    y = (x[:, 0] + 0.5 * x[:, 1] > 0).astype(np.int64)
    arrays = {"x": x[:RECORDS], "y": y[:RECORDS], "x_test": x[RECORDS:], "y_test": y[RECORDS:]}
    np.savez(path, **{**arrays, **changed})


def read_draws(place: Path) -> list[tuple[int, str, float]]:
    """Step, digest and noise multiplier of each release, from the witness's log."""
    lines = (place / DRAWS).read_text().splitlines() if (place / DRAWS).exists() else []
    return [(int(step), digest, float(noise)) for step, digest, noise in (line.split() for line in lines)]


def same_files(one: Path, other: Path) -> None:
    """Weights, path, predictions and result of two runs are equal, bit for bit, but for the place of the data. (Of the epochs'
    lines epsilon may be larger: an epoch that is redone says what was spent by then, with the steps after it.)"""
    for name in ("model.safetensors", "path.jsonl", "predictions.npz"):
        if sha256((one / name).read_bytes()) != sha256((other / name).read_bytes()):
            raise Lost(f"{name} differs from that of a run without the fault")
    results = [json.loads((folder / "result.json").read_text()) | {"data": None} for folder in (one, other)]
    if results[0] != results[1]:
        raise Lost("result.json differs from that of a run without the fault")
