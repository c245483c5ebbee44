"""A run that dies goes on: the same weights where it is seeded, never a smaller epsilon where it is not."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import clipwise
from clipwise.accounting import Ledger, LedgerError, epsilon
from clipwise.checkpoint import CheckpointCorrupt, Checkpoints
from clipwise.clipping import METHODS
from clipwise.loop.keeping import Keeping, Stopped
from clipwise.types import BadArgument, BudgetExhausted, LoopMisuse

torch.manual_seed(0)
X = torch.randn(90, 4)
DATA = TensorDataset(X, (X[:, 0] > 0).long(), torch.arange(90) % 2)
PLAN = {
    "method": "fixed",
    "delta": 1e-4,
    "epochs": 2,
    "expected_batch_size": 18,
    "accountant": "rdp",
}  # 5 steps an epoch


class Killed(Exception):
    pass


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 2))


def run(folder, *, die_at=None, resume=False, seed=7, keep=True, model=None, **options):
    """`fit` with a checkpoint every second step; killed after a step by an exception that nothing catches."""
    Path(folder).mkdir(exist_ok=True)
    torch.manual_seed(3)

    def on_step(values, _):
        if values["step"] == die_at:
            raise Killed

    settings = {"epsilon": 3.0, **PLAN, **options}
    if METHODS[settings.get("method", "fixed")].needs_groups:
        settings |= {"groups": lambda batch: batch[2], "number_of_groups": 2}
    return clipwise.fit(
        model or network(),
        DATA,
        test=TensorDataset(*DATA.tensors[:2]),
        ledger=Path(folder) / "ledger.jsonl",
        checkpoints=Keeping(Path(folder) / "kept", every_steps=2) if keep else None,
        resume=Path(folder) / "kept" if resume else None,
        seed=seed,
        on_step=on_step,
        **settings,
    )


def charged(folder):
    return sum(event.count for event in Ledger.read(Path(folder) / "ledger.jsonl").events())


def weights(fit):
    return torch.cat([p.detach().flatten() for p in fit.model.parameters()])


def die(folder, at, **options):
    """A kill: the ledger is not closed, so that its file is as SIGKILL leaves it."""
    close, Ledger.close = Ledger.close, lambda self, facts=None: self._release()  # noqa: ARG005
    try:
        with pytest.raises(Killed):
            run(folder, die_at=at, **options)
    finally:
        Ledger.close = close


SOUND = [name for name, kind in METHODS.items() if kind.sound]


@pytest.mark.parametrize("method", SOUND)
def test_the_same_weights_for_every_method(method, tmp_path):
    whole = run(tmp_path / "whole", method=method)
    die(tmp_path / "cut", 7, method=method)
    again = run(tmp_path / "cut", resume=True, method=method)
    assert torch.equal(weights(whole), weights(again))
    assert [line["epoch"] for line in again.history] == [1, 2]
    assert again.history == whole.history
    assert (again.epsilon, again.steps) == (whole.epsilon, whole.steps)
    measured = whole.steps - 10  # histogram, race and scores, once
    assert charged(tmp_path / "cut") == charged(tmp_path / "whole") == measured + 10
    assert bool(measured) == METHODS[method].automatic


WAYS = {
    "adam": {"optimizer": lambda p: torch.optim.Adam(p, lr=0.01)},
    "adamw": {"optimizer": lambda p: torch.optim.AdamW(p, lr=0.01)},
    "rmsprop": {"optimizer": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5)},
    "one-cycle": {"lr_schedule": "one-cycle"},
    "plateau": {"lr_schedule": "plateau:on=public-test,patience=1"},
    "average": {"average_weights": 0.9},
    "split": {"max_physical_batch": 5},
    "fixed size": {"sampling": "fixed-size"},
    "schedule": {"schedule": "step:decay=0.5,every=1"},
    "no privacy": {"epsilon": math.inf},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("at", [1, 5, 10])
def test_the_same_weights_for_every_way_to_train(way, at, tmp_path):
    whole = run(tmp_path / "whole", **WAYS[way])
    die(tmp_path / "cut", at, **WAYS[way])
    again = run(tmp_path / "cut", resume=True, **WAYS[way])
    assert torch.equal(weights(whole), weights(again))
    assert again.epsilon == whole.epsilon
    assert again.history == whole.history


def test_killed_twice(tmp_path):
    whole = run(tmp_path / "whole", method="quantile")
    die(tmp_path / "cut", 3, method="quantile")
    die(tmp_path / "cut", 8, method="quantile", resume=True)
    again = run(tmp_path / "cut", method="quantile", resume=True)
    assert torch.equal(weights(whole), weights(again))
    assert charged(tmp_path / "cut") == 10


def test_without_a_seed_redone_steps_are_charged_again(tmp_path):
    """And the target still holds: the steps that are left get more noise."""
    die(tmp_path, 7, seed=None)
    again = run(tmp_path, resume=True, seed=None)
    assert charged(tmp_path) > 10
    assert again.epsilon <= 3.0
    assert again.epsilon == pytest.approx(3.0, rel=1e-3)
    noise = {event.noise_multiplier for event in Ledger.read(tmp_path / "ledger.jsonl").events()}
    assert len(noise) == 2


@pytest.mark.parametrize("changed", [{"max_physical_batch": 5}, {"seed": 8}])
def test_another_plan_is_charged_again(changed, tmp_path):
    """The same noise under other sums would cancel: a new segment draws its own, and pays for it."""
    die(tmp_path, 7)
    if "seed" in changed:  # the data's fingerprint is keyed by the seed
        with pytest.raises(BadArgument, match="other data"):
            run(tmp_path, resume=True, **changed)
        return
    again = run(tmp_path, resume=True, **changed)
    assert charged(tmp_path) > 10
    assert again.epsilon <= 3.0


def test_a_target_that_cannot_hold_any_more(tmp_path):
    for at in (7, 7, 7, 7, 7, 7):
        die(tmp_path, at, seed=None, epsilon=0.8, resume=(tmp_path / "kept").exists()) if not (
            tmp_path / "kept"
        ).exists() else None
    # charge the ledger to its end by hand: nothing is left for the steps that remain
    with Ledger.open(tmp_path / "ledger.jsonl") as ledger:
        event = Ledger.read(tmp_path / "ledger.jsonl").events()[0]
        for step in range(40):
            ledger.charge(step, type(event)(event.sample_rate, event.noise_multiplier))
    before = charged(tmp_path)
    with pytest.raises(BudgetExhausted, match="do not fit"):
        run(tmp_path, seed=None, epsilon=0.8, resume=True)
    assert charged(tmp_path) == before


def test_other_data_is_refused(tmp_path):
    die(tmp_path, 5)
    DATA.tensors[0][3, 1] += 1
    try:
        with pytest.raises(BadArgument, match="other data"):
            run(tmp_path, resume=True)
    finally:
        DATA.tensors[0][3, 1] -= 1


def test_another_method_is_refused(tmp_path):
    die(tmp_path, 5)
    with pytest.raises(BadArgument, match="method='fixed'"):
        run(tmp_path, resume=True, method="auto-s")


def test_another_model_or_optimizer_is_refused(tmp_path):
    die(tmp_path, 5)
    with pytest.raises(BadArgument, match="model does not fit"):
        run(tmp_path, resume=True, model=nn.Linear(4, 2))
    with pytest.raises(BadArgument, match="optimizer does not fit"):
        run(tmp_path, resume=True, optimizer=lambda p: torch.optim.SGD([{"params": [each]} for each in p], lr=0.1))


def test_a_ledger_that_was_rolled_back_is_refused(tmp_path):
    die(tmp_path, 3)
    old = (tmp_path / "ledger.jsonl").read_bytes()
    die(tmp_path, 7, resume=True)
    (tmp_path / "ledger.jsonl").write_bytes(old)
    with pytest.raises(LedgerError, match="does not contain"):
        run(tmp_path, resume=True)
    (tmp_path / "ledger.jsonl").unlink()
    with pytest.raises(BadArgument, match="does not exist"):
        run(tmp_path, resume=True)


def test_a_damaged_checkpoint_is_skipped_with_a_word(tmp_path):
    whole = run(tmp_path / "whole")
    die(tmp_path / "cut", 7)
    newest = sorted((tmp_path / "cut" / "kept").iterdir())[-1]
    file = newest / "tensors.safetensors"
    content = bytearray(file.read_bytes())
    content[-3] ^= 4
    file.write_bytes(content)
    with pytest.warns(UserWarning, match="is not what was written"):
        again = run(tmp_path / "cut", resume=True)
    assert torch.equal(weights(whole), weights(again))
    assert charged(tmp_path / "cut") == 10


def test_the_last_two_are_kept_and_nothing_else_is_left(tmp_path):
    die(tmp_path, 7)
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["step-00000004", "step-00000006"]


def test_a_stop_is_kept_and_goes_on(tmp_path):
    whole = run(tmp_path / "whole")
    asked = iter([None, None, None, "asked to stop"])
    (tmp_path / "cut").mkdir()
    keeping = Keeping(tmp_path / "cut" / "kept", every_steps=100, stop=lambda: next(asked))
    torch.manual_seed(3)
    with pytest.raises(Stopped, match="asked to stop"):
        clipwise.fit(
            network(),
            DATA,
            epsilon=3.0,
            seed=7,
            ledger=tmp_path / "cut" / "ledger.jsonl",
            checkpoints=keeping,
            test=TensorDataset(*DATA.tensors[:2]),
            **PLAN,
        )
    assert charged(tmp_path / "cut") == 4
    assert torch.equal(weights(whole), weights(run(tmp_path / "cut", resume=True)))


def test_a_full_disk_does_not_end_the_run(tmp_path, monkeypatch):
    calls = []

    def full(self, *_, **__):
        calls.append(self.folder)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Checkpoints, "save", full)
    with pytest.warns(UserWarning, match="could not be written"):
        found = run(tmp_path)
    assert found.steps == 10
    assert len(calls) == 12  # at the start, after every second step; and each time elsewhere


def test_out_of_memory_halves_the_batch_and_redoes_it(tmp_path):
    """The same logical batches and one noise draw each: only rounding may differ."""

    class Greedy(nn.Module):
        most = 90

        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 2)

        def forward(self, x):
            if len(x) > self.most and torch.is_grad_enabled():
                raise torch.OutOfMemoryError("CUDA out of memory")
            return self.inner(x)

    def train(most, folder):
        torch.manual_seed(0)
        model = Greedy()
        Greedy.most = most
        return run(folder, model=model)

    plain, cut = train(90, tmp_path / "a"), train(7, tmp_path / "b")
    torch.testing.assert_close(weights(plain), weights(cut), rtol=1e-4, atol=1e-6)
    assert charged(tmp_path / "b") == 10
    with pytest.raises(torch.OutOfMemoryError):
        train(0, tmp_path / "c")


@pytest.mark.parametrize("die_at", [5, 7])  # the last state was kept before the batch was halved, or after
def test_a_run_that_halved_its_batches_is_not_redone_with_the_same_noise(die_at, tmp_path):
    """Its sums differ by rounding from those of a redo in whole batches: the same noise on both would be two releases."""

    class GreedyOnce(nn.Module):
        calls = 0

        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 2)

        def forward(self, x):
            if self.training and torch.is_grad_enabled():
                GreedyOnce.calls += len(x) > 3  # the engine's own look has fewer rows
                if GreedyOnce.calls == 5:
                    raise torch.OutOfMemoryError("CUDA out of memory")
            return self.inner(x)

    torch.manual_seed(0)
    die(tmp_path, die_at, model=GreedyOnce())
    assert GreedyOnce.calls >= 5
    before = charged(tmp_path)
    torch.manual_seed(0)
    found = run(tmp_path, resume=True, model=GreedyOnce())
    book = Ledger.read(tmp_path / "ledger.jsonl").book
    assert book.current.stream == book.current.number == 2
    assert charged(tmp_path) == before + 10 - 2 * ((die_at - 1) // 2)  # all that follows the last kept state, again
    assert found.steps == charged(tmp_path)


@pytest.mark.parametrize("seed", [7, None])
def test_a_run_is_ended_with_the_weights_as_they_are(seed, tmp_path):
    """Also where the budget holds no more steps."""
    die(tmp_path, 7, seed=seed)
    saved, before = Checkpoints(tmp_path / "kept").newest(), charged(tmp_path)
    done = run(tmp_path, resume=True, finish=True, seed=seed)
    assert torch.equal(weights(done), torch.cat([x.flatten() for x in saved.state["model"].values()]))
    assert charged(tmp_path) == done.steps == before  # nothing was given back, nothing more was charged
    book = Ledger.read(tmp_path / "ledger.jsonl")
    assert book.closed
    assert done.epsilon == book.epsilon(1e-4, "rdp").value
    assert done.history[-1]["step"] == 6
    assert done.history[-1]["accuracy"] == done.accuracy
    assert "ended after 6 of 10 planned steps" in done.statement.to_markdown()


def test_only_a_run_that_was_kept_can_be_ended(tmp_path):
    with pytest.raises(BadArgument, match="finish=True ends a run that was kept"):
        run(tmp_path, finish=True)


class CountReleased:
    """A release after training, as `fairness` makes them: charged, then noised."""

    name, noise_multiplier = "count", 5.0

    def release(self, trained):
        trained.ledger.charge(trained.step, trained.event, note={"release": self.name})
        (noised,) = trained.noise.add(
            [torch.tensor([float(len(trained.train))])], trained.event.noise_multiplier, step=trained.step
        )
        return float(noised)


@pytest.mark.parametrize("seed", [7, None])
def test_a_run_killed_while_it_releases_what_follows_training(seed, tmp_path, monkeypatch):
    """It goes on after its last step: the release is made again, bit for bit and charged once, or charged again."""
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    options = {"seed": seed, "after": [CountReleased()], "epsilon": 3.0}
    whole = run(tmp_path / "a", **options)
    release = CountReleased.release

    def killed(self, trained):
        release(self, trained)
        raise Killed

    monkeypatch.setattr(CountReleased, "release", killed)
    die(tmp_path / "b", None, **options)
    monkeypatch.undo()
    if seed is None:  # two releases do not fit into what one was planned for
        with pytest.raises(BudgetExhausted, match="releases that follow the last step were charged before"):
            run(tmp_path / "b", resume=True, **options)
        done = run(tmp_path / "b", resume=True, finish=True, **options)
        assert done.released == {}
        assert done.epsilon <= 3.0
    else:
        done = run(tmp_path / "b", resume=True, **options)
        assert done.released == whole.released
        assert done.epsilon == whole.epsilon
        assert charged(tmp_path / "b") == charged(tmp_path / "a") == 11


def test_another_runs_checkpoints_in_the_folder_are_refused(tmp_path):
    """They would be taken for this run's own when it goes on."""
    die(tmp_path, 5)
    (tmp_path / "other").mkdir()
    with pytest.raises(BadArgument, match="holds the state of another run"):
        clipwise.fit(
            network(),
            TensorDataset(*DATA.tensors[:2]),
            ledger=tmp_path / "other" / "ledger.jsonl",
            checkpoints=Keeping(tmp_path / "kept", every_steps=2),
            noise_multiplier=1.0,
            **PLAN,
        )
    assert charged(tmp_path / "other") == 0
    assert run(tmp_path, resume=True).steps == 10  # what was kept is still there


OPTIMIZERS = sorted(
    name
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
)


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "Optimizer"])
def test_every_optimizer_of_torch_is_kept_or_refused_before_training(name, tmp_path):
    kind = getattr(torch.optim, name)

    def make(parameters):
        return kind([p for p in parameters if p.dim() > 1] if name == "Muon" else parameters, lr=0.01)

    def model():
        torch.manual_seed(0)
        return nn.Linear(4, 2, bias=name != "Muon")

    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    if name in ("LBFGS", "SparseAdam"):
        with pytest.raises(clipwise.Unsupported, match=name):
            run(tmp_path / "a", model=model(), optimizer=make)
        assert not (tmp_path / "a" / "ledger.jsonl").exists()
        return
    whole = run(tmp_path / "a", model=model(), optimizer=make)
    die(tmp_path / "b", 3, model=model(), optimizer=make)
    assert torch.equal(weights(whole), weights(run(tmp_path / "b", resume=True, model=model(), optimizer=make)))


def test_an_optimizer_whose_state_cannot_be_kept_is_named_at_its_first_step(tmp_path):
    class Odd(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            for p in self.param_groups[0]["params"]:
                self.state[p]["odd"] = object()

    with pytest.raises(BadArgument, match=r"optimizer.*odd holds a object, which a checkpoint cannot keep"):
        clipwise.fit(
            network(),
            TensorDataset(*DATA.tensors[:2]),
            optimizer=lambda parameters: Odd(parameters, lr=0.1),
            ledger=tmp_path / "ledger.jsonl",
            checkpoints=tmp_path / "kept",  # every five minutes
            noise_multiplier=1.0,
            **PLAN,
        )
    assert charged(tmp_path) == 1


# The drop-in


def loop(folder, *, die_at=None, resume=False, **options):
    torch.manual_seed(1)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3)
    loader = DataLoader(TensorDataset(*DATA.tensors[:2]), batch_size=18)
    private = clipwise.attach(
        model,
        optimizer,
        loader,
        lr_scheduler=scheduler,
        ledger=Path(folder) / "ledger.jsonl",
        resume=Path(folder) / "kept" if resume else None,
        **{"epsilon": 3.0, "delta": 1e-4, "epochs": 2, "method": "quantile", "accountant": "rdp", "seed": 5, **options},
    )
    try:
        for _ in private.epochs():
            for x, y in private.loader:
                if private.step == die_at:
                    raise Killed
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                scheduler.step()
                if private.stepped:
                    private.save(Path(folder) / "kept")
    finally:
        private.detach()
    return private, model


@pytest.mark.parametrize("options", [{}, {"max_physical_batch": 4}])
@pytest.mark.parametrize("at", [3, 5, 8])
def test_a_loop_of_ones_own_goes_on(at, options, tmp_path):
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    whole, model = loop(tmp_path / "a", **options)
    with pytest.raises(Killed):
        loop(tmp_path / "b", die_at=at, **options)
    again, same = loop(tmp_path / "b", resume=True, **options)
    assert torch.equal(model.weight, same.weight)
    assert again.step == 10
    assert again.epsilon() == whole.epsilon()
    assert again.run.state == whole.run.state


def test_save_wants_a_ledger_file_and_a_whole_batch(tmp_path):
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(*DATA.tensors[:2]), batch_size=18)
    private = clipwise.attach(
        model, optimizer, loader, noise_multiplier=1.0, epochs=1, max_physical_batch=4, method="fixed"
    )
    with pytest.raises(BadArgument, match="ledger=None"):
        private.save(tmp_path / "kept")
    for x, y in private.loader:
        nn.functional.cross_entropy(model(x), y).backward()
        with pytest.raises(LoopMisuse, match="middle of a logical batch"):
            private.save(tmp_path / "kept")
        break
    private.detach()
    with pytest.raises(BadArgument, match="no checkpoint"):
        clipwise.attach(
            model, optimizer, loader, noise_multiplier=1.0, epochs=1, resume=tmp_path / "kept", method="fixed"
        )


def test_earlier_runs_count(tmp_path):
    """A new run after one that died, in the same budget: its noise makes room for what was spent."""
    die(tmp_path / "first", 7, seed=None, keep=False)
    plain = run(tmp_path / "apart", seed=None)
    after = run(tmp_path / "second", seed=None, earlier=[tmp_path / "first" / "ledger.jsonl"])
    assert after.noise_multiplier > 1.05 * plain.noise_multiplier
    assert after.epsilon <= 3.0
    events = [
        *Ledger.read(tmp_path / "first" / "ledger.jsonl").events(),
        *[type(e)(e.sample_rate, e.noise_multiplier, 10) for e in Ledger.read(tmp_path / "second" / "ledger.jsonl").events() if e.noise_multiplier == after.noise_multiplier],
    ]  # fmt: skip
    assert after.epsilon == pytest.approx(epsilon(events, 1e-4, "rdp").value)


# The files


def kept(tmp_path):
    run(tmp_path)
    return sorted((tmp_path / "kept").iterdir())[-1]


def test_every_flipped_byte_is_found(tmp_path):
    from clipwise.checkpoint import read

    path = kept(tmp_path)
    whole = read(path)
    for file in path.iterdir():
        content = file.read_bytes()
        for place in range(0, len(content), max(1, len(content) // 60)):
            file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            try:
                found = read(path)
            except CheckpointCorrupt:
                continue
            # only white space or a fact that nothing hangs on may read the same; and then the digest differs
            assert file.name == "manifest.json"
            assert found.digest != whole.digest
        file.write_bytes(content)
    assert read(path).digest == whole.digest


def test_links_pickles_and_mixed_files_are_refused(tmp_path):
    from clipwise.checkpoint import _sealed, read

    path = kept(tmp_path)
    tensors = path / "tensors.safetensors"
    content = tensors.read_bytes()
    tensors.unlink()
    (tmp_path / "elsewhere").write_bytes(content)
    tensors.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointCorrupt):
        read(path)
    tensors.unlink()
    torch.save({"a": torch.zeros(3)}, tensors)
    manifest = json.loads((path / "manifest.json").read_text())
    import hashlib

    manifest["files"]["tensors.safetensors"] = {
        "bytes": tensors.stat().st_size,
        "sha256": hashlib.sha256(tensors.read_bytes()).hexdigest(),
    }
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointCorrupt, match="sum differs"):
        read(path)
    del manifest["sum"]
    (path / "manifest.json").write_bytes(_sealed(manifest))  # as whoever knows the format can
    with pytest.raises(CheckpointCorrupt, match="cannot be read"):
        read(path)
    path.rename(path.with_name("step-00000099"))
    tensors = path.with_name("step-00000099") / "tensors.safetensors"
    tensors.write_bytes(content)
    with pytest.raises(CheckpointCorrupt):
        read(path.with_name("step-00000099"))
