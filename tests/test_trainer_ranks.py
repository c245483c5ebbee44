"""PrivateTrainer on two processes, one of which dies: torchrun starts them again, and they go on from the checkpoint."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clipwise.accounting import Ledger

pytest.importorskip("transformers")
pytest.importorskip("accelerate")
TESTS = Path(__file__).parent


@pytest.mark.filterwarnings("ignore")
def test_a_killed_process_is_started_again_and_the_run_ends_as_that_of_one(tmp_path):
    import trainer_worker

    folder = tmp_path / "two"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, "--max-restarts", "1", TESTS / "trainer_worker.py", folder, "5"],
        capture_output=True,
        text=True,
        timeout=300,
        # torchrun would keep the addresses of the dead in its store (docs/distributed.md)
        env={
            **os.environ,
            "PYTHONPATH": str(TESTS.parent),
            "OMP_NUM_THREADS": "1",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        },
    )
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((folder / f"{rank}.json").read_text()) for rank in range(2))
    assert all(one["restarted"] for one in (first, second)), "nobody died: this test shows nothing"
    assert first["weights"] == second["weights"]
    assert first["expected"] == trainer_worker.BATCH, "of both together"
    assert any("2 processes trained together" in note for note in first["notes"])
    charged = Ledger.read(folder / "ledger.jsonl")
    assert sum(event.count for event in charged.events()) == trainer_worker.STEPS, "redone with the same noise"
    card = (folder / "README.md").read_text()
    assert card.count("Privacy statement") == 1, "by one of them"

    alone = trainer_worker.trainer(tmp_path / "one")
    alone.train()
    whole = trainer_worker.found(alone)
    assert first["weights"] == pytest.approx(whole["weights"], abs=2e-4)
    assert first["eval_loss"] == pytest.approx(whole["eval_loss"], abs=1e-4)
    assert first["epsilon"] == whole["epsilon"]
