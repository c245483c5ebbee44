"""Every fault of the design's table, F1 to F23, with a test of its own; the rig's runs are its short version.

`clipwise faults` does the same some hundred times (docs/reliability.md). The rig has a process that forks runs of 60 steps:
see clipwise/lab/faults.
"""

import json
import locale
import math
import shutil

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import clipwise
from clipwise.accounting import Ledger, LedgerRollback, LedgerTampered
from clipwise.checkpoint import CheckpointCorrupt, Checkpoints, read
from clipwise.lab.faults import damages, table, troubles
from clipwise.lab.faults.kills import kill
from clipwise.lab.faults.rig import MODES, RESUME, STEPS, TRAIN, Lost, Rig, read_draws
from clipwise.lab.faults.strikes import Strike
from clipwise.loop.keeping import Keeping
from clipwise.types import BadArgument, BudgetExhausted

torch.manual_seed(0)
X = torch.randn(60, 3)
DATA = TensorDataset(X, (X[:, 0] > 0).long())
PLAN = {"method": "fixed", "delta": 1e-4, "epochs": 1, "expected_batch_size": 12, "accountant": "rdp"}  # 5 steps


@pytest.fixture(scope="module")
def rig():
    with Rig(seed=11) as rig:
        yield rig


def fit(folder, data=DATA, **options):
    torch.manual_seed(1)
    folder.mkdir(exist_ok=True)
    return clipwise.fit(
        nn.Linear(3, 2),
        data,
        ledger=folder / "ledger.jsonl",
        **{"checkpoints": Keeping(folder / "kept", every_steps=2), "noise_multiplier": 1.0, **PLAN, **options},
    )


def kept(folder):
    """The newest checkpoint of a run."""
    return max((folder / "kept").glob("step-*"))


def charged(ledger):
    return sum(event.count for event in Ledger.read(ledger).events())


@pytest.mark.parametrize(("point", "mode"), [("backward", "reproducible"), ("anywhere", "secure"), ("rename", "secure, target")])  # fmt: skip
def test_f01_kill_anywhere_and_go_on(rig, point, mode):
    assert kill(rig, point, mode)


def test_f02_a_step_stays_charged_though_it_was_never_applied(rig):
    place = rig.place()
    assert rig.run(place, (*TRAIN, *MODES["secure"]), Strike("between charge and noise", 20)).killed
    assert len(read_draws(place)) == 19
    assert charged(place / "run" / "ledger.jsonl") == 20
    assert rig.run(place, RESUME).code == 0
    assert rig.judge(place, "secure") == "no smaller epsilon"


def test_f03_a_checkpoint_that_was_half_written_is_not_seen(rig):
    place = rig.place()
    assert rig.run(place, (*TRAIN, *MODES["reproducible"]), Strike("checkpoint", 14)).killed
    folder = place / "run" / "checkpoints"
    assert any(path.name.endswith(".part") for path in folder.iterdir())
    assert Checkpoints(folder).newest().step % 7 == 0
    assert rig.run(place, RESUME).code == 0
    assert rig.judge(place, "reproducible") == "equal weights"


@pytest.mark.parametrize("name", ["damage: a bit flipped", "damage: truncated", "damage: missing", "damage: checkpoints mixed"])  # fmt: skip
def test_f04_damaged_files_are_never_silent(rig, name):
    assert table.FAULTS[name].trial(rig, "reproducible")


def test_f04_a_flipped_bit_names_the_file(tmp_path):
    fit(tmp_path)
    file = kept(tmp_path) / "state.json"
    file.write_bytes(file.read_bytes().replace(b"1", b"2", 1))
    with pytest.raises(CheckpointCorrupt, match=r"state\.json is not what was written"):
        read(kept(tmp_path))


def test_f05_a_full_disk_at_a_checkpoint(rig):
    assert troubles.full_at(rig, "reproducible", "checkpoint").startswith("went on")


def test_f05_a_folder_that_takes_no_checkpoint_does_not_stop_the_run(tmp_path):
    (tmp_path / "kept").write_text("a file where the folder should be")
    told = []
    done = fit(tmp_path, checkpoints=Keeping(tmp_path / "kept", every_steps=1, rescue=tmp_path, notify=told.append))
    assert done.steps == 5
    assert len(told) == 1
    assert "kept in" in told[0]
    (rescued,) = tmp_path.glob("clipwise-rescue-*")
    assert Checkpoints(rescued).newest().step == 5


def test_f06_a_full_disk_at_the_ledger_stops_before_the_step(rig):
    place = rig.place()
    ended = rig.run(place, (*TRAIN, *MODES["secure"]), Strike("ledger line", 12, "full"))
    assert ended.named_error == "LedgerError"
    assert "nothing was charged, no noise may be drawn" in ended.result["error"]
    assert len(read_draws(place)) <= charged(place / "run" / "ledger.jsonl")
    assert rig.run(place, RESUME).code == 0


def test_f07_out_of_memory_redoes_the_batch_with_one_draw(rig):
    assert troubles.out_of_memory(rig, "reproducible") == "went on, weights equal but for rounding"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_f08_bad_features_count_as_records_without_a_gradient(bad, tmp_path):
    done = fit(tmp_path, TensorDataset(torch.full_like(X, bad), DATA.tensors[1]))
    assert done.steps == 5
    assert all(p.isfinite().all() for p in done.model.parameters())


@pytest.mark.parametrize(
    "targets",
    [DATA.tensors[1] + 1, DATA.tensors[1].float(), DATA.tensors[1][:, None], DATA.tensors[1] - 1],
    ids=["out of range", "dtype", "shape", "negative"],
)
def test_f09_bad_labels_are_refused_before_training_by_their_kind(targets, tmp_path):
    with pytest.raises(BadArgument, match="target") as told:
        fit(tmp_path, TensorDataset(X, targets))
    assert "record 0" not in str(told.value)
    assert not (tmp_path / "ledger.jsonl").exists()


def test_f10_an_empty_batch_is_a_step_of_noise_alone(tmp_path):
    """On one rank; on several: tests/test_ranks.py."""
    rate = {"expected_batch_size": 1, "epochs": 1}  # 60 steps at rate 1/60: about 22 batches are empty
    done = fit(tmp_path, **rate, checkpoints=None)
    assert done.steps == charged(tmp_path / "ledger.jsonl") == 60


@pytest.mark.parametrize("damage", [damages.edited, damages.rolled_back, damages.shortened, damages.forged])
def test_f11_a_ledger_that_was_changed_or_rolled_back_is_refused(rig, damage):
    assert damages.damaged(rig, "secure", damage) == "refused by name"


def test_f11_the_error_says_which(tmp_path):
    fit(tmp_path)
    ledger = tmp_path / "ledger.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join(lines[:-1]))
    with pytest.raises(LedgerRollback):
        fit(tmp_path, resume=tmp_path / "kept")
    ledger.write_bytes(b"".join([lines[0], *lines[2:]]))
    with pytest.raises(LedgerTampered):
        fit(tmp_path, resume=tmp_path / "kept")


@pytest.mark.parametrize(
    ("field", "value"), [("noise_multiplier", 1e9), ("noise_multiplier", -1.0), ("sample_rate", 1.5), ("count", -5)]
)
def test_f12_impossible_numbers_are_refused_on_reading(field, value, rig, monkeypatch):
    monkeypatch.setattr(damages, "_FORGERIES", {field: (value,)})
    place = rig.place(copy_of=rig.cut["secure"])
    (place / "run" / ".ledger.jsonl.head").unlink()
    damages.forged(rig, "secure", place)
    with pytest.raises(LedgerTampered, match=field):
        Ledger.read(place / "run" / "ledger.jsonl")


@pytest.mark.parametrize("target", [0.5, 2.0])
def test_f13_the_target_holds_at_the_end_and_no_step_beyond_it_is_taken(target, tmp_path):
    done = fit(tmp_path, noise_multiplier=None, epsilon=target)
    assert done.epsilon <= target
    with pytest.raises(BudgetExhausted, match="it was not taken"):
        fit(tmp_path, noise_multiplier=None, epsilon=target, checkpoints=None)
    assert Ledger.read(tmp_path / "ledger.jsonl").epsilon(1e-4, "rdp").value <= target


def test_f14_other_noise_on_resume_is_a_segment_of_its_own_and_composes(tmp_path):
    class Cut(Exception):
        pass

    def on_step(values, _):
        if values["step"] == 3:
            raise Cut

    with pytest.raises(Cut):
        fit(tmp_path, seed=1, on_step=on_step)
    before = Ledger.read(tmp_path / "ledger.jsonl").epsilon(1e-4, "rdp").value
    done = fit(tmp_path, seed=1, noise_multiplier=4.0, resume=tmp_path / "kept")
    ledger = Ledger.read(tmp_path / "ledger.jsonl")
    assert {event.noise_multiplier: event.count for event in ledger.events()} == {1.0: 3, 4.0: 3}
    assert ledger.segment == 1
    assert before < done.epsilon == ledger.epsilon(1e-4, "rdp").value


# F15 (a process that dies), F16 (processes that disagree) and F17 (another number of them): tests/test_ranks.py


def test_f18_nothing_in_a_checkpoint_is_executed(rig):
    for _ in range(3):
        assert damages.damaged(rig, "reproducible", damages.poisoned).startswith("said and skipped")


def test_f18_a_manifest_cannot_lead_out_of_its_folder(tmp_path):
    fit(tmp_path)
    shutil.copytree(tmp_path / "kept", tmp_path / "other")
    manifest = kept(tmp_path) / "manifest.json"
    known = json.loads(manifest.read_text())
    known["files"]["../../other/tensors.safetensors"] = known["files"].pop("tensors.safetensors")
    manifest.write_bytes(damages.sealed(known))
    with pytest.raises(CheckpointCorrupt, match="tensors"):
        read(kept(tmp_path))


def test_f19_nothing_hangs_on_the_clock(rig):
    assert troubles.jumping_clock(rig, "reproducible") == "went on, equal weights"


def test_f19_nor_on_the_locale_the_home_or_the_network(tmp_path, monkeypatch):
    before = fit(tmp_path / "a", seed=3)
    monkeypatch.setattr(locale, "localeconv", lambda: {"decimal_point": ",", "thousands_sep": "."})
    monkeypatch.setenv("HOME", "/nowhere")
    monkeypatch.setenv("LC_ALL", "tr_TR.UTF-8")
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("the network was used"))
    after = fit(tmp_path / "b", seed=3)
    assert torch.equal(before.model.weight, after.model.weight)
    assert before.epsilon == after.epsilon


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_f20_a_signal_keeps_the_state_and_closes_the_ledger(rig, name):
    assert table.FAULTS[name].trial(rig, "secure")


def test_f21_a_checkpoint_of_another_format_is_refused_by_name(tmp_path):
    """(Ledgers of schema 1 are read and gone on with: ledger_test.py has a golden one.)"""
    fit(tmp_path)
    manifest = kept(tmp_path) / "manifest.json"
    manifest.write_bytes(damages.sealed(json.loads(manifest.read_text()) | {"format": 99}))
    with pytest.raises(CheckpointCorrupt, match="has format 99; this version reads"):
        read(kept(tmp_path))


def test_f22_what_cannot_be_repeated_bit_for_bit_is_charged_again(tmp_path):
    """Another number of threads adds in another order: a resumed run then draws noise of its own, and pays for it."""

    class Cut(Exception):
        pass

    def on_step(values, _):
        if values["step"] == 4:
            raise Cut

    with pytest.raises(Cut):
        fit(tmp_path, seed=1, on_step=on_step, checkpoints=Keeping(tmp_path / "kept", every_steps=3))
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        fit(tmp_path, seed=1, resume=tmp_path / "kept")
    finally:
        torch.set_num_threads(threads)
    ledger = Ledger.read(tmp_path / "ledger.jsonl")
    assert ledger.stream == ledger.segment == 1
    assert charged(tmp_path / "ledger.jsonl") == 6  # the fourth twice


def test_f23_other_data_is_refused(rig, tmp_path):
    assert damages.damaged(rig, "reproducible", damages.other_data) == "refused by name"
    fit(tmp_path)
    wider = TensorDataset(X.double(), DATA.tensors[1])
    with pytest.raises(BadArgument, match="other data"):
        clipwise.fit(nn.Linear(3, 2).double(), wider, ledger=tmp_path / "ledger.jsonl", resume=tmp_path / "kept", noise_multiplier=1.0, **PLAN)  # fmt: skip


# What the rig is worth


def test_the_rig_sees_other_weights(rig):
    place = rig.place(copy_of=rig.whole["reproducible"])
    model = place / "run" / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-1] + b"\x01")
    with pytest.raises(Lost, match=r"model\.safetensors differs"):
        rig.judge(place, "reproducible")


def test_the_rig_sees_draws_that_are_not_on_record_or_not_new(rig):
    place = rig.place(copy_of=rig.whole["secure"])
    log = place / "draws.log"
    lines = log.read_text().splitlines()
    assert len(lines) == STEPS
    log.write_text("\n".join([*lines, "60 0123456789abcdef 1.5"]) + "\n")
    with pytest.raises(Lost, match="61 were drawn"):
        rig.judge(place, "secure")
    log.write_text("\n".join([*lines[:-1], "59 " + lines[0].split(maxsplit=1)[1]]) + "\n")
    with pytest.raises(Lost, match="drawn twice"):
        rig.judge(place, "secure")


def test_a_table_of_trials(rig, monkeypatch):
    monkeypatch.setattr(table, "Rig", lambda _: rig)
    monkeypatch.setattr(Rig, "__enter__", lambda self: self)
    monkeypatch.setattr(Rig, "__exit__", lambda *_: None)
    fault = table.Fault("odd numbers", table.TROUBLE, lambda _, mode: _judged(mode))
    (row,) = table.run([fault], trials=3, seed=0)
    assert (row.trials, row.survived, row.lost, row.losses) == (3, 2, 1, ["secure: gone"])
    text = table.markdown([row], "clipwise faults", "here")
    assert "| odd numbers | 3 | 2 | 1 | fine 2 |" in text
    assert "| **all troubles** | 3 | 2 | 1 |" in text
    with pytest.raises(BadArgument, match="no fault"):
        table.choose(["earthquake"])
    assert [fault.name for fault in table.choose(["SIGTERM"])] == ["SIGTERM"]


def _judged(mode):
    if mode == "secure":
        raise Lost("gone")
    return "fine"


def test_load_figures():
    from clipwise.lab.faults import load

    figures = [*load.ledger(2000, levels=2000), *load.long_run(2000), *load.layers(3)]
    assert all(np.isfinite(figure.value) for figure in figures)
    assert "| ledger of 2,000 steps, 2,000 levels of noise: read" in load.markdown(
        figures, "clipwise faults --load", "here"
    )
    assert not load.Figure("slow", 4.0, "s", 3.0).reached
    slower = [load.Block(1.0 + n / 100, 0.1, 100.0 + n) for n in range(100)]
    more, longer, *_ = load.growth(slower, 1000, 100_000)
    assert (more.value, more.reached, longer.reached) == (90.0, False, False)
    busy = [load.Block(1.0 + n / 100, 0.1 + n / 1000, 100.0) for n in range(100)]  # the machine, not the run
    assert all(figure.reached for figure in load.growth(busy, 1000, 100_000))
