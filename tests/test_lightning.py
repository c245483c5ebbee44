"""`clipwise.lightning.PrivateCallback`: the drop-in loop's weights, what it shows, how it goes on, what it refuses."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import clipwise
from clipwise.types import BadArgument, Unsupported

lightning = pytest.importorskip("lightning")
from clipwise.lightning import PrivateCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
RECORDS, BATCH, EPOCHS = 120, 20, 3
STEPS = RECORDS // BATCH * EPOCHS
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
OPTIONS = {"epsilon": 5.0, "delta": 1e-3, "method": "fixed", "threshold": 1.0, "seed": 5}


def data():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(RECORDS, 4, generator=generator)
    return TensorDataset(inputs, inputs[:, :3].argmax(1))


def loader():
    return DataLoader(data(), batch_size=BATCH, shuffle=True)


class Module(lightning.LightningModule):
    def __init__(self, manual=False, reduction="mean", logs=False):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        self.automatic_optimization = not manual
        self.reduction, self.logs = reduction, logs
        self.seen = []

    def training_step(self, batch, batch_idx):  # noqa: ARG002
        inputs, targets = batch
        loss = nn.functional.cross_entropy(self.net(inputs), targets, reduction=self.reduction)
        if self.logs:
            self.log("train_loss", loss.mean(), prog_bar=True)
        if self.automatic_optimization:
            return loss
        optimizer = self.optimizers()
        optimizer.zero_grad()
        if self.reduction == "none":
            self.private.backward(loss)
        else:
            self.manual_backward(loss)
        optimizer.step()
        if self.trainer.is_last_batch:
            self.lr_schedulers().step()
        return None

    def validation_step(self, batch, batch_idx):  # noqa: ARG002
        inputs, targets = batch
        self.log("accuracy", (self.net(inputs).argmax(1) == targets).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)]


def trainer(folder, *callbacks, **options):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu", "logger": False}
    named = {**quiet, "max_epochs": EPOCHS, "default_root_dir": folder, **options}
    return lightning.Trainer(callbacks=list(callbacks), **named)


def by_drop_in():
    """The same training by a loop of one's own."""
    module = Module()
    (optimizer,), (scheduler,) = module.configure_optimizers()
    private = clipwise.attach(module.net, optimizer, loader(), epochs=EPOCHS, **OPTIONS)
    for _ in private.epochs():
        for inputs, targets in private.loader:
            optimizer.zero_grad()
            private.backward(nn.functional.cross_entropy(module.net(inputs), targets, reduction="none"))
            optimizer.step()
        scheduler.step()
    private.detach()
    return private, module


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def near(one, other):
    return all(torch.allclose(a, b, atol=1e-5) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("manual", [False, True])
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_the_weights_are_those_of_the_drop_in_loop(tmp_path, manual, reduction):
    private, expected = by_drop_in()
    module, callback = Module(manual, reduction), PrivateCallback(**OPTIONS)
    trainer(tmp_path, callback).fit(module, loader(), DataLoader(data(), batch_size=60))
    assert (same if reduction == "none" else near)(module, expected)
    assert callback.epsilon() == private.epsilon()
    assert callback.statement().steps == STEPS
    assert (tmp_path / "clipwise" / "privacy_statement.md").read_text() == callback.statement().to_markdown()
    assert not hasattr(module, "private")  # and everything was given back
    assert "backward" not in module.__dict__
    with pytest.raises(BadArgument, match="no run holds it"):
        clipwise.detach(module)


def test_epsilon_is_shown_and_no_figure_of_training_records(tmp_path):
    module, callback = Module(logs=True), PrivateCallback(**OPTIONS)
    logger = lightning.pytorch.loggers.CSVLogger(tmp_path)
    with pytest.warns(UserWarning, match="'train_loss' of training_step is a figure of training records"):
        trainer(tmp_path, callback, logger=logger, log_every_n_steps=1).fit(module, loader(), loader())
    written = (Path(logger.log_dir) / "metrics.csv").read_text()
    names = set(written.splitlines()[0].split(","))
    assert {"epsilon", "accuracy"} <= names <= {"epsilon", "accuracy", "epoch", "step"}
    assert any("was not shown" in note for note in callback.statement().notes)


def test_a_checkpoint_goes_on_bit_for_bit_and_charges_nothing_twice(tmp_path):
    class Stop(lightning.Callback):
        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step == 8:  # in the middle of the second epoch
                trainer.save_checkpoint(tmp_path / "kept.ckpt")
            if trainer.global_step == 10:
                raise RuntimeError("killed")

    expected, callback = by_drop_in()[1], PrivateCallback(**OPTIONS)
    with pytest.raises(RuntimeError, match="killed"):
        trainer(tmp_path, callback, Stop()).fit(Module(reduction="none"), loader())
    after = PrivateCallback(**OPTIONS)
    module = Module(reduction="none")
    for p in module.parameters():
        nn.init.zeros_(p)
    trainer(tmp_path, after).fit(module, loader(), ckpt_path=tmp_path / "kept.ckpt")
    assert same(module, expected)
    assert after.statement().steps == STEPS
    assert after.epsilon() == by_drop_in()[0].epsilon()


def test_a_killed_process_goes_on_and_pays_for_what_it_redoes(tmp_path):
    """Without a seed, killed by the system: the ledger has every step that was taken, also those that are taken again."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import lightning\n"
        "from test_lightning import *\n"
        "class Kill(lightning.Callback):\n"
        "    def on_train_batch_end(self, trainer, *_):\n"
        "        if trainer.global_step == 8:\n"
        "            trainer.save_checkpoint('kept.ckpt')\n"
        "        if trainer.global_step == 11:\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "options = {k: v for k, v in OPTIONS.items() if k not in ('seed', 'epsilon')} | {'noise_multiplier': 2.0}\n"
        "trainer('.', PrivateCallback(**options), Kill()).fit(Module(), loader())\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=ENVIRONMENT, check=False, capture_output=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]
    options = {k: v for k, v in OPTIONS.items() if k not in ("seed", "epsilon")} | {"noise_multiplier": 2.0}
    callback = PrivateCallback(**options)
    again = trainer(tmp_path, callback)
    again.fit(Module(), loader(), ckpt_path=tmp_path / "kept.ckpt")
    assert again.global_step == STEPS
    assert callback.private.step == STEPS
    assert callback.statement().steps >= STEPS + 3  # 8, 9 and 10 were taken twice


def test_a_checkpoint_without_private_state_is_refused(tmp_path):
    plain = trainer(tmp_path, max_epochs=1)
    plain.fit(Module(), loader())
    plain.save_checkpoint(tmp_path / "plain.ckpt")
    with pytest.raises(BadArgument, match="holds no state of a private run"):
        trainer(tmp_path, PrivateCallback(**OPTIONS)).fit(Module(), loader(), ckpt_path=tmp_path / "plain.ckpt")
    assert not (tmp_path / "clipwise").exists()


class Two(Module):
    def configure_optimizers(self):
        return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.net[0], self.net[2])]


class Clips(Module):
    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        """Nothing of it would be seen."""


@pytest.mark.parametrize(
    ("words", "module", "options"),
    [
        ("configure_optimizers: .*2 optimizers", lambda: Two(manual=True), {}),
        ("Clips.configure_gradient_clipping", Clips, {}),
        ("gradient_clip_val=0.5", Module, {"gradient_clip_val": 0.5}),
        ("accumulate_grad_batches=4", Module, {"accumulate_grad_batches": 4}),
        ("limit_train_batches=0.5", Module, {"limit_train_batches": 0.5}),
        ("limit_train_batches=1: .*use max_steps", Module, {"fast_dev_run": True}),
        ("overfit_batches=2", Module, {"overfit_batches": 2}),
        ("precision='bf16-true'", Module, {"precision": "bf16-true"}),
        ("precision='16-true'", Module, {"precision": "16-true"}),
        ("reload_dataloaders_every_n_epochs=1", Module, {"reload_dataloaders_every_n_epochs": 1}),
        ("LearningRateFinder", Module, {"callbacks": ["LearningRateFinder"]}),
        ("GradientAccumulationScheduler", Module, {"callbacks": ["GradientAccumulationScheduler"]}),
    ],
)
def test_what_would_break_the_guarantee_or_do_nothing_is_refused_by_name(tmp_path, words, module, options):
    given = {"LearningRateFinder": {}, "GradientAccumulationScheduler": {"scheduling": {0: 2}}}
    named, options = options.get("callbacks", []), {k: v for k, v in options.items() if k != "callbacks"}
    others = [getattr(lightning.pytorch.callbacks, name)(**given[name]) for name in named]
    one = module()
    before = [p.detach().clone() for p in one.parameters()]
    with pytest.raises(Unsupported, match=words):
        trainer(tmp_path, PrivateCallback(**OPTIONS), *others, **options).fit(one, loader())
    assert all(torch.equal(a.to(b.dtype), b) for a, b in zip(before, one.parameters(), strict=True))
    assert not (tmp_path / "clipwise").exists()


def test_an_endless_trainer_is_refused(tmp_path):
    with pytest.raises(BadArgument, match="max_epochs=-1"):
        trainer(tmp_path, PrivateCallback(**OPTIONS), max_epochs=-1).fit(Module(), loader())


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("epochs=3: with Lightning this is said by Trainer", {"epochs": 3}),
        ("lr='auto': .*configure_optimizers", {"lr": "auto"}),
        ("resume='x': .*ckpt_path", {"resume": "x"}),
        ("max_physical_batch", {"max_physical_batch": 8}),
        ("epsilon=-1", {"epsilon": -1.0}),
    ],
)
def test_options_that_belong_elsewhere(words, options):
    with pytest.raises((BadArgument, Unsupported), match=words):
        PrivateCallback(**{**OPTIONS, **options})


def test_max_steps_in_half_precision(tmp_path):
    callback = PrivateCallback(**OPTIONS)
    one = trainer(tmp_path, callback, max_steps=8, precision="bf16-mixed")
    one.fit(Module(reduction="none"), loader())
    assert one.global_step == callback.statement().steps == 8
    assert 4.5 < callback.epsilon() <= 5.0  # the noise was set for 8 steps


def test_the_page(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parent.parent / "docs" / "lightning.md").read_text()
    (block,) = [part.split("```")[0] for part in page.split("```python\n")[1:]]
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "lightning.md", "exec"), {"__name__": "page"})
    shown = float(capsys.readouterr().out.partition("epsilon ")[2].partition(";")[0])
    assert 2.5 < shown <= 3.0
    assert (tmp_path / "lightning_run" / "clipwise" / "ledger.jsonl").is_file()
