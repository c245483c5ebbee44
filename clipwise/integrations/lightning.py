"""Lightning's Trainer, made private by a callback: `Trainer(callbacks=[PrivateCallback(epsilon=3.0)])`.

The callback attaches (dropin.py) the LightningModule, the one optimizer of its `configure_optimizers` and the training loader when
`fit` begins, and gives them back when it ends. Loops, schedulers, evaluation, loggers and checkpoints are Lightning's: one
training batch of Lightning is one logical step. A checkpoint of Lightning holds the run's own state too, and `fit(ckpt_path=...)`
goes on from it with the ledger, which lies in `folder`.

What Lightning would show of the training records, and does not here: what is logged where their batch is at hand
(training_step, ...). What a module writes about them by other ways is its own affair, as in any loop.

Guarantee: that of `attach`. An option of Trainer that would break it, or have no effect, is refused by name.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clipwise.dropin import Private, attach
from clipwise.mechanism import split
from clipwise.statement import Statement
from clipwise.step import backward_pass
from clipwise.types import BadArgument, LoopMisuse, Unsupported

try:
    import lightning.pytorch as lightning
    from lightning.pytorch.callbacks import BatchSizeFinder, GradientAccumulationScheduler, LearningRateFinder
    from lightning.pytorch.strategies import SingleDeviceStrategy
    from lightning.pytorch.utilities.model_helpers import is_overridden
except ModuleNotFoundError as error:
    raise BadArgument(
        "clipwise.lightning.PrivateCallback needs lightning; run pip install 'clipwise[lightning]'"
    ) from error

LEDGER, STATEMENT = "ledger.jsonl", "privacy_statement.md"  # in the folder of the callback
_OF_ATTACH = ("loss_reduction", "loss_declared", "pad_to", "batch_dim", "groups", "earlier")
_ELSEWHERE = {
    "epochs": "Trainer(max_epochs=...) or Trainer(max_steps=...)",
    "expected_batch_size": "DataLoader(batch_size=...)",
    "batch": "DataLoader(batch_size=...)",
    "sample_rate": "DataLoader(batch_size=...)",
    "lr": "configure_optimizers",
    "lr_scheduler": "configure_optimizers",
    "loss": "training_step",
    "ledger": "PrivateCallback(folder=...), which holds it",
    "resume": "trainer.fit(ckpt_path=...)",
}
_PRECISIONS = ("32-true", "64-true", "bf16-mixed")
_RAW_GRADIENTS = ("configure_gradient_clipping", "on_before_optimizer_step", "on_after_backward", "optimizer_step")
NOT_SHOWN = (
    "What the module logged where a training batch was at hand (self.log in training_step, ...) was not shown: it would have been "
    "a figure of training records without noise"
)


class PrivateCallback(lightning.Callback):
    """Trains privately what the Trainer fits.

    epsilon: the budget of the whole run (Trainer's max_epochs or max_steps).
    delta: by default a power of ten below 1 / number of training records.
    folder: for ledger.jsonl and privacy_statement.md, by default `clipwise` in the Trainer's default_root_dir. A ledger that is
        there goes on, and what it holds counts.
    and by name the options of `clipwise.attach` (method, threshold, noise_multiplier, pad_to, earlier, ...).

    During `fit` the module has `self.private`: `self.private.backward(losses)` for manual optimisation.
    """

    def __init__(
        self,
        epsilon: float | None = None,
        delta: float | None = None,
        *,
        folder: str | Path | None = None,
        **options: Any,
    ):
        for name in (name for name in options if name in _ELSEWHERE):
            raise BadArgument(f"{name}={options[name]!r}: with Lightning this is said by {_ELSEWHERE[name]}")
        if options.get("max_physical_batch") is not None:
            raise Unsupported(
                "max_physical_batch: how many parts a batch has tells its size, and Lightning counts its steps by them; train in a loop of your "
                "own (clipwise.attach)"
            )
        self._options = {"epsilon": epsilon, "delta": delta, **options}
        split({name: value for name, value in self._options.items() if name not in _OF_ATTACH})  # misspelt ones, now
        self._folder = None if folder is None else Path(folder)
        self._saved: Mapping[str, Tensor] | None = None  # of a checkpoint that is gone on from
        self._give_back: list[Callable[[], None]] = []
        self._holds = False
        self.private: Private | None = None

    # -- what the user asks -----------------------------------------------------------------------------------------------

    def statement(self) -> Statement:
        """What is guaranteed, under which assumptions, and what is not."""
        return self._private().statement()

    def epsilon(self) -> float:
        """Epsilon so far, from the ledger."""
        return self._private().epsilon()

    def _private(self) -> Private:
        if self.private is None:
            raise LoopMisuse("trainer.fit() has not begun; there is nothing to say of its privacy")
        return self.private

    # -- in and out of the Trainer -----------------------------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":  # before any other callback sees a record
            _refuse(trainer, pl_module)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        if (count := len(trainer.optimizers)) != 1:
            raise Unsupported(
                f"configure_optimizers: it returns {count} optimizers, and a private run has one; return one over all parameters, or train "
                "the others' part in a loop of its own (docs/loops.md)"
            )
        if trainer.ckpt_path and self._saved is None:
            raise BadArgument(
                f"ckpt_path={str(trainer.ckpt_path)!r} holds no state of a private run: it was saved without PrivateCallback, or as weights "
                "alone; load its weights into the module yourself if they are public, and fit without ckpt_path"
            )
        loader = trainer.fit_loop._data_source.dataloader()
        folder = self._folder or Path(trainer.default_root_dir) / "clipwise"
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        (optimizer,) = trainer.optimizers
        with tempfile.TemporaryDirectory() as kept:
            self.private = private = attach(
                _model(pl_module),
                optimizer,
                loader,
                **self._options,
                epochs=_epochs(trainer, loader),
                ledger=folder / LEDGER,
                resume=None if self._saved is None else _unpacked(self._saved, Path(kept)),
            )
        self._saved, self._holds = None, True
        self._give_back = [*_shown_to(trainer, private), *_backward_by(pl_module, private)]

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        pl_module.log("epsilon", self.epsilon(), prog_bar=True)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self._end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        self._end()

    def _end(self) -> None:
        """Everything as it was, also after an error; the statement is written of what was spent by then."""
        while self._give_back:
            self._give_back.pop()()
        if self.private is not None and self._holds and self._folder is not None:
            self._holds = False
            self.private.detach()
            (self._folder / STATEMENT).write_text(self.statement().to_markdown(), encoding="utf-8")

    # -- checkpoints ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The run's own state, as `private.save` keeps it; none in the middle of a step (a Trainer that saves after an error)."""
        if self.private is None or not self._holds:
            return {}
        stepper = self.private.run.stepper
        if stepper.waits or stepper.unfinished:
            return {}
        with tempfile.TemporaryDirectory() as kept:
            return _packed(self.private.save(kept))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._saved = state_dict


def _refuse(trainer: Any, module: Any) -> None:
    """What a private run cannot honour, by the name that Trainer or the module has for it."""
    own = [name for name in _RAW_GRADIENTS if is_overridden(name, module)]
    found = {
        f"strategy={type(trainer.strategy).__name__}": (
            type(trainer.strategy) is not SingleDeviceStrategy,
            "the callback trains on one device; use Trainer(devices=1), or several processes in a loop of your own (docs/distributed.md)",
        ),
        f"precision={trainer.precision!r}": (
            trainer.precision not in _PRECISIONS,
            f"its scaler or its rounding of weights acts on raw gradients; use one of {', '.join(_PRECISIONS)}",
        ),
        f"gradient_clip_val={trainer.gradient_clip_val!r}": (
            bool(trainer.gradient_clip_val),
            "gradients are clipped by record already, and there is none to clip when Lightning does; leave it out",
        ),
        f"accumulate_grad_batches={trainer.accumulate_grad_batches!r}": (
            trainer.accumulate_grad_batches != 1,
            "each batch is clipped, charged and noised as one step; multiply the DataLoader's batch_size instead",
        ),
        f"overfit_batches={trainer.overfit_batches!r}": (
            bool(trainer.overfit_batches),
            "every batch is drawn anew from all records; leave it out",
        ),
        f"limit_train_batches={trainer.limit_train_batches!r}": (
            isinstance(trainer.limit_train_batches, int) or trainer.limit_train_batches != 1.0,
            "every batch is drawn from all records, and the noise is set for whole epochs (fast_dev_run asks for it too); use max_steps",
        ),
        f"reload_dataloaders_every_n_epochs={trainer.reload_dataloaders_every_n_epochs!r}": (
            bool(trainer.reload_dataloaders_every_n_epochs),
            "the records are those that the run began with; leave it out",
        ),
        **{
            f"{type(module).__name__}.{name}": (True, "gradients are not there until the step is released")
            for name in own
        },
    }
    for callback in trainer.callbacks:
        if isinstance(callback, BatchSizeFinder | LearningRateFinder | GradientAccumulationScheduler):
            found[type(callback).__name__] = (
                True,
                "it would train on the records before or in other steps than the budget knows; leave it out",
            )
    if sum(isinstance(callback, PrivateCallback) for callback in trainer.callbacks) > 1:
        found["callbacks"] = (True, "a run has one PrivateCallback, and one budget")
    for name, (there, why) in found.items():
        if there:
            raise Unsupported(f"{name}: PrivateCallback cannot honour it: {why}")


def _model(module: Any) -> nn.Module:
    """The part that is recorded: the one child that holds all parameters (`self.net`, which training_step calls, mostly by itself), or
    the module, whose training_step then has to call `self(...)`."""
    held = [part for part in module.children() if next(part.parameters(), None) is not None]
    alone = len(held) == 1 and not list(module.parameters(recurse=False))
    return held[0] if alone else module  # type: ignore[no-any-return]


def _epochs(trainer: Any, loader: Any) -> float:
    """All that the Trainer may train, in passes over the data."""
    epochs, steps = trainer.max_epochs, trainer.max_steps
    if steps == -1 and epochs == -1:
        raise BadArgument(
            "max_epochs=-1: the noise is set for a length that is known; give Trainer(max_epochs=...) or max_steps"
        )
    by_steps = steps / len(loader) if steps != -1 and hasattr(loader, "__len__") else None
    return float(min(n for n in (by_steps, None if epochs in (-1, None) else epochs) if n is not None))


def _shown_to(trainer: Any, private: Private) -> list[Callable[[], None]]:
    """Private batches for the Trainer's loop, and no figures of theirs for its loggers; how to undo both."""
    loop = trainer.fit_loop
    source, results = loop._data_source, loop.epoch_loop._results
    loop._data_source, loop._combined_loader = type(source)(private.loader, ""), None
    plain = results.log

    def log(fx: str, name: str, *args: Any, **kwargs: Any) -> None:
        if "epoch" in fx or fx == "on_train_start":
            plain(fx, name, *args, **kwargs)
        elif NOT_SHOWN not in private.run._notes:
            private.run.note(NOT_SHOWN)
            warnings.warn(
                f"clipwise: {name!r} of {fx} is a figure of training records, and is not logged", stacklevel=3
            )

    results.log = log

    def give_back() -> None:
        loop._data_source, loop._combined_loader = source, None
        results.__dict__.pop("log", None)

    return [give_back]


def _backward_by(module: Any, private: Private) -> list[Callable[[], None]]:
    """`self.private` for the module, and a backward pass that takes one loss a row as well as their mean; how to undo it."""

    def backward(loss: Tensor, *args: Any, **kwargs: Any) -> None:
        if args or kwargs:
            raise Unsupported(
                "backward(...) with more than the loss: a private step has one backward pass; give the loss alone"
            )
        backward_pass(private.run.engine, loss)

    own = [] if is_overridden("backward", module) else [("backward", backward)]
    for name, value in (*own, ("private", private)):
        object.__setattr__(module, name, value)
    return [lambda name=name: module.__dict__.pop(name, None) for name, _ in (*own, ("private", None))]  # type: ignore[misc]


def _packed(folder: Path) -> dict[str, Tensor]:
    """A checkpoint of Clipwise as tensors of bytes, by file, which a checkpoint of Lightning can hold."""
    return {
        f"{folder.name}/{file.name}": torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.uint8)
        for file in sorted(folder.iterdir())
    }


def _unpacked(content: Mapping[str, Tensor], folder: Path) -> Path:
    for name, values in content.items():
        where = folder / Path(name).parent.name / Path(name).name  # never outside of the folder, whatever the names say
        where.parent.mkdir(exist_ok=True)
        where.write_bytes(values.cpu().numpy().tobytes())
    return folder
