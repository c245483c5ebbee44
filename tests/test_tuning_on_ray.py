"""A search on a local Ray: the same runs and the same record as on local processes, also when workers are killed."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

import clipwise
from clipwise.accounting import Ledger, epsilon
from clipwise.lab.study import read_study, run_study
from clipwise.lab.tuning.executors import get_executor
from clipwise.lab.tuning.record import AGAIN, ON
from clipwise.lab.tuning.trial import Spec, run_trial
from clipwise.types import BadArgument

OPTIONS = {"data": "digits", "model": "linear", "epochs": 2, "batch": 4, "seed": 6}


def worker_of(spec):
    """The Ray worker that runs this trial: the parent of the process with the file among its words."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            if str(spec).encode() in words:
                return int((process / "stat").read_text().rsplit(")")[-1].split()[1])
        except OSError:
            continue  # it has just ended
    return None


def kill_when_there(file, spec, killed, not_yet=None):
    """SIGKILL to the worker of a trial as soon as it has left this file; says whether `not_yet` was there as well."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if file.exists() and (worker := worker_of(spec)) is not None:
            os.kill(worker, signal.SIGKILL)
            killed[spec.stem] = not_yet is not None and not_yet.exists()
            return
        time.sleep(0.002)


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="finds the worker in /proc")
@pytest.mark.filterwarnings("ignore")  # of Ray's own
def test_workers_of_ray_are_killed_in_the_middle(tmp_path):
    pytest.importorskip("ray", reason="clipwise[ray] is not installed")
    trials, killed = tmp_path / "out" / "trials", {}
    early = (trials / "0" / "ledger.jsonl", trials / "0.json", killed, trials / "0" / "metrics.jsonl")
    late = (trials / "1" / "metrics.jsonl", trials / "1.json", killed)
    killers = [threading.Thread(target=kill_when_there, args=words, daemon=True) for words in (early, late)]
    for killer in killers:
        killer.start()
    tuned = clipwise.tune(OPTIONS, {"lr": [0.1, 0.5]}, epsilon=8.0, out=str(tmp_path / "out"), executor="ray", jobs=2)
    assert killed == {"0": False, "1": False}, "one before it left figures, one after"
    lines = [json.loads(line) for line in (tmp_path / "out" / "search.jsonl").read_text().splitlines()]
    events = {name: [line["event"] for line in lines if line["id"] == name] for name in ("0", "1")}
    assert events["0"][1] in (AGAIN, ON)  # there was a checkpoint by then, or there was none
    assert events["1"][1] == ON  # with a seed nothing of it is charged twice
    assert all([first, *rest] == ["started", "started", "ended"] for first, _, *rest in events.values())
    # Charged once each, and together within what was planned.
    ledgers = [Ledger.read(trials / run / "ledger.jsonl").events() for run in ("0", "1")]
    steps = [sum(event.count for event in each) for each in ledgers]
    assert steps[0] == steps[1] == tuned.result["steps"]
    assert epsilon([event for each in ledgers for event in each], tuned.plan.delta).value <= tuned.plan.epsilon_total
    # The same trial as anywhere else: the run of its options and seed, in this process, gives the same model.
    here = Spec.read(_spec(tmp_path, trials / "0" / "config.toml"))
    run_trial(here)
    weights = [Path(folder) / "model.safetensors" for folder in (here.out, trials / "0")]
    assert len({file.read_bytes() for file in weights}) == 1


@pytest.mark.filterwarnings("ignore")  # of Ray's own
def test_a_study_on_ray_has_the_lines_of_a_local_one(tmp_path):
    pytest.importorskip("ray", reason="clipwise[ray] is not installed")
    common = '[common]\ndata = "digits"\nmodel = "linear"\nepochs = 1\nepsilon = 8\n[grid]\nseed = [0, 1]\n'
    (tmp_path / "small.toml").write_text(f'title = "small"\n{common}[[variant]]\nname = "fixed"\nmethod = "fixed"\n')
    study = read_study(tmp_path / "small.toml")
    both = []
    for executor in ("ray", "local"):
        lines, failures = run_study(study, tmp_path / executor, jobs=2, executor=executor)
        assert not failures
        both.append([{name: value for name, value in line.items() if "seconds" not in name} for line in lines])
    assert both[0] == both[1]


def _spec(tmp_path, config):
    from clipwise.training.config import make_config, read_config

    spec = tmp_path / "here.json"
    spec.write_text(Spec(make_config(read_config(config)), str(tmp_path / "here"), None).to_json())
    return spec


def test_an_unknown_or_missing_executor_is_refused(monkeypatch):
    with pytest.raises(BadArgument, match="executor='slurm'"):
        get_executor("slurm")
    monkeypatch.setattr("clipwise.lab.tuning.executors.find_spec", lambda _: None)
    with pytest.raises(BadArgument, match=r"clipwise\[ray\]"):
        get_executor("ray")
