"""Several processes that train one model (gloo, on the CPU): the same law as one, one ledger, and no update without all of them."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ranks_worker
import torch

from clipwise.accounting import Ledger

TESTS = Path(__file__).parent


def together(folder, scenario, size=2, failing=()):
    """What each process found. Those in `failing` are to die."""
    folder.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([str(TESTS.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, str(TESTS / "ranks_worker.py"), scenario, str(folder)]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(size)],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(size)
    ]
    try:
        said = [process.communicate(timeout=240)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for rank, process in enumerate(processes):
        assert (process.returncode != 0) == (rank in failing), said[rank]
    return [None if rank in failing else json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Everything that two processes can show while both live, in one start of them."""
    folder = tmp_path_factory.mktemp("ranks")
    return folder, together(folder, "loops,ledger,wrapped,refusals,audits,sharded")


@pytest.mark.parametrize("name", ranks_worker.LOOPS)
def test_two_processes_end_with_the_weights_of_one(two, name):
    first, second = (found["loops"][name] for found in two[1])
    alone = ranks_worker.weights(ranks_worker.run(**ranks_worker.LOOPS[name]).model)
    assert first == second
    assert first == pytest.approx(alone, abs=2e-4), "other than by the order in which numbers were added"


def test_one_ledger_one_key_one_count(two):
    folder, found = two
    first, second = (one["ledger"] for one in found)
    assert first["weights"] == second["weights"], "without a seed the key is the leader's, in both"
    assert first["epsilon"] == second["epsilon"]
    assert first["records"] == second["records"]
    charged = Ledger.read(folder / "ledger.jsonl")
    assert sum(event.count for event in charged.events()) == first["steps"] + 1, "the count, and each step once"
    assert charged.epsilon(1e-3).value == first["epsilon"]
    assert any("2 processes trained together" in note for note in first["notes"])


def test_distributed_data_parallel_around_the_model(two):
    first, second = (found["wrapped"] for found in two[1])
    assert first["weights"] == second["weights"] == two[1][0]["loops"]["fixed"]
    assert first["given back"]


def test_what_is_not_the_same_everywhere_is_refused_in_every_process(two):
    for found in two[1]:
        told = found["refusals"]
        assert "DistributedSampler" in told["sampler"]
        assert "same data, model and options" in told["other options"]
        assert "same data, model and options" in told["other data"]
        assert "same data, model and options" in told["other data, no seed"]
        assert "same step, thresholds, learning rate and weights" in told["another rate"]
    assert two[1][0]["refusals"]["weights"] == two[1][1]["refusals"]["weights"], "no process took the step alone"


def test_the_step_audit_passes_and_finds_the_slips_of_several_processes(two):
    for found in two[1]:
        audits = found["audits"]
        assert audits["sound"] == []
        assert audits["own noise"], "noise of its own in each process must not pass"
        assert audits["deaf"], "sums that are not added up must not pass"
        assert audits["twice"], "a record that counts twice must not pass"


@pytest.mark.parametrize("name", ranks_worker.SHARDED)
def test_weights_cut_over_processes_end_as_those_of_one(two, name):
    """fully_shard: sums are reduce-scattered, and each part gets the noise that it would get in the whole."""
    first, second = (found["sharded"]["weights"][name] for found in two[1])
    alone = ranks_worker.of_words(shard=False, **ranks_worker.SHARDED[name])
    assert first == second == pytest.approx(alone, abs=2e-4)


@pytest.mark.skipif(
    os.environ.get("CLIPWISE_RANKS") != "4", reason="CLIPWISE_RANKS=4 asks for it: over a minute of CPU"
)
def test_four_processes_with_and_without_cut_weights_end_as_one(tmp_path):
    found = together(tmp_path, "loops,sharded", size=4)
    for name, options in ranks_worker.LOOPS.items():
        alone = ranks_worker.weights(ranks_worker.run(**options).model)
        assert all(one["loops"][name] == pytest.approx(alone, abs=2e-4) for one in found), name
    for name, options in ranks_worker.SHARDED.items():
        alone = ranks_worker.of_words(shard=False, **options)
        assert all(one["sharded"]["weights"][name] == pytest.approx(alone, abs=2e-4) for one in found), name


def test_what_is_not_built_for_cut_weights_is_refused_by_name(two):
    for found in two[1]:
        told = found["sharded"]["told"]
        assert "method='oso'" in told["oso"]
        assert "resume" in told["resume"]
        assert "save()" in told["save"]
        assert "epsilon=inf" in told["plain"]
        assert "mp_policy" in told["policy"]


def test_a_process_that_dies_ends_the_others_without_an_update(tmp_path):
    """F15; then on with one process (F17: another number of them draws other noise, and is charged for what it redoes) and with
    two as before (the same weights as a run that nobody killed, and nothing charged twice)."""
    found = together(tmp_path, "killed", failing=(1,))[0]["killed"]
    assert found["error"]
    before = Ledger.read(tmp_path / "ledger.jsonl")
    assert sum(event.count for event in before.events()) in (7, 8), "charged, whether or not it was taken"
    shutil.copytree(tmp_path, tmp_path / "again")
    (tmp_path / "again" / "store").unlink(missing_ok=True)

    alone = together(tmp_path / "again", "resumed", size=1)[0]["resumed"]
    assert alone["steps"] == 12
    assert alone["epsilon"] > before.epsilon(1e-3).value
    assert sum(event.count for event in Ledger.read(tmp_path / "again" / "ledger.jsonl").events()) > 12

    (tmp_path / "store").unlink(missing_ok=True)
    both = together(tmp_path, "resumed")
    whole = ranks_worker.weights(ranks_worker.run(ranks_worker.network()).model)
    assert both[0]["resumed"]["weights"] == both[1]["resumed"]["weights"] == pytest.approx(whole, abs=2e-4)
    assert sum(event.count for event in Ledger.read(tmp_path / "ledger.jsonl").events()) == 12


def test_torchrun_trains_into_one_folder(tmp_path):
    """The command line; SIGTERM and a run that goes on are those of one process (tests/test_resume_cli.py)."""
    out = tmp_path / "run"
    options = ["--method", "fixed", "--epochs", "2", "--seed", "1", "--out", str(out), "--json"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    done = subprocess.run(
        [*torchrun, "--rdzv-endpoint", "localhost:0", "-m", "clipwise", "train", *options],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PYTHONPATH": str(TESTS.parent), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert "2 processes trained together" in (out / "statement.md").read_text()
    assert result["steps"] == sum(event.count for event in Ledger.read(out / "ledger.jsonl").events())
    assert torch.isfinite(torch.tensor(result["accuracy"]))


def test_torchrun_starts_a_killed_process_again_and_the_run_goes_on(tmp_path):
    """One of two is killed from outside: torchrun ends the other, starts both, and they go on from the checkpoint. By torchrun's
    static rendezvous, which keeps its store; what was redone has the same noise and was charged once."""
    out = tmp_path / "run"
    options = ["--method", "fixed", "--epochs", "6", "--seed", "1", "--out", str(out), "--checkpoint-every", "3"]
    command = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1", "--master-port", _free()]
    started = subprocess.Popen(
        [sys.executable, *command, "-m", "clipwise", "train", *options, "--resume", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(TESTS.parent), "OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 120
    while not any((out / "checkpoints").glob("step-*")) and started.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    _kill_rank_1_of(started.pid)
    said, told = started.communicate(timeout=240)
    assert started.returncode == 0, told
    assert "Sending process" in told, "nobody died: this test shows nothing"
    steps = json.loads(said.strip().splitlines()[-1])["steps"]
    assert sum(event.count for event in Ledger.read(out / "ledger.jsonl").events()) == steps
    assert Ledger.read(out / "ledger.jsonl").segment > 0, "the second attempt's own"
    assert "2 processes trained together" in (out / "statement.md").read_text()


def _free():
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return str(one.getsockname()[1])


def _kill_rank_1_of(torchrun):
    for task in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((task / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == torchrun and b"RANK=1" in (task / "environ").read_bytes().split(b"\0"):
                os.kill(int(task.name), signal.SIGKILL)
        except OSError:
            continue
