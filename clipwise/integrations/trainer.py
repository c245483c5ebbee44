"""Hugging Face's Trainer, made private: `PrivateTrainer(model, args, train_dataset=..., epsilon=3.0)` in the place of `Trainer(...)`.

One step of the Trainer is one logical step: a Poisson batch of per_device_train_batch_size * gradient_accumulation_steps *
(number of processes) records on average, in parts of per_device_train_batch_size; clipped, charged, noised; then the Trainer's
own optimizer and scheduler. Processes that torchrun starts train together as everywhere (ranks.py): one sample, of which each
takes its part, and one ledger, by the first. Evaluation, logging, callbacks, checkpoints and resume are the Trainer's. Its checkpoints hold the run's own state
too (`checkpoint-N/clipwise`), the ledger lies in output_dir, and the log and the model card say epsilon.

What the Trainer would show of the training records, and does not here: their loss (train_loss is NaN), how many words were
seen, floating-point operations, the norm of a gradient. Figures on eval_dataset are shown as they are: its records are not
protected.
"""

from __future__ import annotations

import copy
import logging
import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from clipwise.checking import Moved
from clipwise.run import Run
from clipwise.statement import Statement
from clipwise.step import backward_pass
from clipwise.types import BadArgument, LoopMisuse, Unsupported

try:
    import transformers
except ModuleNotFoundError as error:
    raise BadArgument("clipwise.hf.PrivateTrainer needs transformers; run pip install 'clipwise[hf]'") from error

LEDGER, STATE = "ledger.jsonl", "clipwise"  # in output_dir; in a checkpoint
# Threshold-free: a gradient is brought to the bound whatever its norm is, and an Adam step does not mind which bound.
METHOD = "auto-s"
# Adam moves a weight by about the rate a step. The Trainer's own 5e-5 is for some 6,000 steps, which is this way in all; a private
# run takes few steps of many records, and would stand still. Adapters begin at nothing, and may go faster than weights that
# were trained before, which noise would wash out. Chosen by this reasoning, and not tuned.
WAY, FASTEST = 0.3, {True: 1e-2, False: 1e-3}
_OF_RECORDS = ("loss", "train_loss", "grad_norm", "total_flos", "num_input_tokens_seen", "train_tokens_per_second")


class _Batches:
    """What the Trainer takes for its data loader: an epoch's number of logical batches, each as its physical parts."""

    def __init__(self, loader: DataLoader[Any]):
        self.plain, self.dataset = loader, loader.dataset
        self.batch_size = loader.batch_size
        self.run: Run | None = None

    def __len__(self) -> int:
        return math.ceil(len(self.dataset) / (self.batch_size or 1))  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        if self.run is None:
            raise LoopMisuse("the training batches belong to trainer.train(); nothing was drawn")
        left = (self.run.plan.steps or 0) - self.run.state.step
        wanted = min(len(self), left)
        affordable = self.run.affordable(wanted)
        yield from self.run.logical_batches(affordable)
        if affordable < wanted:
            raise self.run.exhausted()


class PrivateTrainer(transformers.Trainer):
    """`Trainer`, with an epsilon. Every argument of `Trainer`, and:

    epsilon: the budget of the whole run (args.num_train_epochs or args.max_steps).
    delta: by default n^-1.1 for n training records.
    and by name the options of `clipwise.attach` (method, threshold, noise_multiplier, earlier, ...).
    """

    def __init__(self, *args: Any, epsilon: float | None = None, delta: float | None = None, **kwargs: Any):
        own = {name: kwargs.pop(name) for name in list(kwargs) if name in _options()}
        super().__init__(*args, **kwargs)
        self.args = _checked(self.args, self)  # type: ignore[has-type]
        self._physical = self.args.per_device_train_batch_size
        mine = self._physical * self.args.gradient_accumulation_steps
        self._logical = mine * self.args.world_size
        self.args.gradient_accumulation_steps, self.args.per_device_train_batch_size = 1, mine
        self._train_batch_size = mine
        if hasattr(self.accelerator, "gradient_accumulation_steps"):
            self.accelerator.gradient_accumulation_steps = 1
        self.model_accepts_loss_kwargs = False  # which would count the words of the batch
        self._options = {"method": METHOD, **own, "epsilon": epsilon, "delta": delta}
        self.run: Run | None = None
        self._coming: Any = None  # what the next run is made of, while it is made

    # -- what the user asks -----------------------------------------------------------------------------------------------

    def statement(self) -> Statement:
        """What is guaranteed, under which assumptions, and what is not."""
        return self._run().statement()

    def epsilon(self) -> float:
        """Epsilon so far, from the ledger."""
        return self._run().epsilon()

    def loss_of(self, model: torch.nn.Module, inputs: dict[str, Any]) -> Tensor:
        """The model's own loss, taken apart by record; override it for one of your own: one loss a record, of shape (rows,)."""
        loss: Tensor = model(**inputs).loss
        return loss

    def collate(self) -> Any:
        """What makes a batch of training records, with one row a record; the Trainer's own unless it is overridden."""
        return self.data_collator

    def _run(self) -> Run:
        if self.run is None:
            raise LoopMisuse("trainer.train() has not begun; there is nothing to say of its privacy")
        return self.run

    # -- the Trainer's loop -----------------------------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        try:
            done = super().train(resume_from_checkpoint, *args, **kwargs)
        finally:
            if self.run is not None:
                self.run.close()
        return done._replace(training_loss=math.nan)

    def get_train_dataloader(self) -> Any:
        dataset, collate = self.train_dataset, self.collate()
        if dataset is None or isinstance(dataset, IterableDataset):
            raise BadArgument(
                f"train_dataset={type(dataset).__name__}: records are drawn by number; give a data set with a length"
            )
        if type(dataset).__module__.startswith("datasets."):
            dataset = self._remove_unused_columns(dataset, description="training")
        else:
            collate = self._get_collator_with_removed_columns(collate, description="training")
        workers = self.args.dataloader_num_workers
        plain = DataLoader(dataset, self._logical, shuffle=True, collate_fn=collate, num_workers=workers)
        return _Batches(plain)

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any) -> Any:
        self._coming = (max_steps, train_dataloader, resume_from_checkpoint)
        said = self._choose_rate(max_steps)
        try:
            prepared = super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
        finally:
            self._coming = None
        loaded = {name: p.detach().clone() for name, p in _trained(self._run().model)} if resume_from_checkpoint else {}
        self._run().restore()
        _say_of_other_weights(self._run().model, loaded)
        self._run().automatic += said
        self._run().engine.install()
        return prepared

    def _choose_rate(self, steps: int) -> list[str]:
        """Where no rate is stated, one for so few steps; what the statement says of it."""
        usual = type(self.args).__dataclass_fields__["learning_rate"].default
        adam = "adam" in str(getattr(self.args.optim, "value", self.args.optim))
        if self.args.learning_rate != usual or self.optimizer is not None or not adam:
            return []
        adapters = hasattr(self.model, "peft_config")
        self.args.learning_rate = min(FASTEST[adapters], max(usual, WAY / steps))
        said = (
            f"learning rate {self.args.learning_rate:.2g}, for {steps} steps: none was stated, or the {usual:g} that stands for none, which is for "
            "thousands of steps without noise"
        )
        logging.getLogger(__name__).warning("clipwise: %s. State another to have it", said)
        return [said]

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Here the optimizer is made, and the state of an earlier run not yet loaded: a run that goes on looks as it began."""
        made = super().create_scheduler(num_training_steps, optimizer)
        if self._coming is not None:
            self.run = self._made(*self._coming)
        return made

    def _made(self, max_steps: int, batches: _Batches, resume: Any) -> Run:
        optimizer: Any = getattr(
            self.optimizer, "optimizer", self.optimizer
        )  # accelerate's is around the one that was made
        output = Path(str(self.args.output_dir))
        output.mkdir(parents=True, exist_ok=True)
        own = {**self._options, "epochs": max_steps / len(batches), "max_physical_batch": self._physical}
        own["delta"] = own["delta"] or len(batches.dataset) ** -1.1  # type: ignore[arg-type]
        batches.run = Run(
            self.model,  # type: ignore[arg-type]
            optimizer,
            batches.plain,
            **own,
            loss_reduction="sum",  # also in half precision
            ledger=output / LEDGER,
            resume=None if resume is None else _state_in(resume),
            notify=lambda message: warnings.warn(message, stacklevel=2),
        )
        batches.run.on_close(_step_by(batches.run, optimizer))
        return batches.run

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> Any:  # noqa: ARG002
        """No count of their words."""
        batch = next(epoch_iterator, None)
        return ([] if batch is None else [batch]), None

    def training_step(self, model: torch.nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:  # noqa: ARG002
        run, model = self._run(), self.model  # type: ignore[assignment]  # inside DDP: sums are added up by the step
        model.train()
        for batch, records in inputs:
            records = self._prepare_inputs(records)
            run.stepper.begin(batch, records)
            with self.compute_loss_context_manager():
                loss = self.loss_of(model, records)
            backward_pass(run.engine, loss)
            run.stepper.absorb()
        return torch.zeros((), device=self.args.device)  # the loss of training records is not shown

    def floating_point_ops(self, inputs: Any) -> int:  # noqa: ARG002
        return 0  # they would tell the words of the batch

    def _track_num_input_tokens(self, inputs: Any) -> None:
        """They are the records'."""

    # -- what is shown and kept -------------------------------------------------------------------------------------------

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if self.run is not None and self.is_in_train:
            logs["epsilon"] = self.run.epsilon()
        for name in _OF_RECORDS:
            logs.pop(name, None)
        super().log(logs, *args, **kwargs)

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
        folder.mkdir(parents=True, exist_ok=True)
        self._run().save(folder / STATE)  # before trainer_state.json, which comes last: a checkpoint with it is whole
        super()._save_checkpoint(model, trial)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        super()._save(output_dir, state_dict)
        if self.run is not None:
            folder = Path(str(output_dir or self.args.output_dir))
            (folder / "privacy_statement.md").write_text(self.statement().to_markdown(), encoding="utf-8")

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        super().create_model_card(*args, **kwargs)
        card = Path(str(self.args.output_dir)) / "README.md"
        if self.is_world_process_zero() and card.is_file() and self.run is not None:
            card.write_text(
                f"{card.read_text(encoding='utf-8').rstrip()}\n\n{self.statement().to_markdown()}", encoding="utf-8"
            )


def _options() -> set[str]:
    """What may be said of a run by name; epochs, steps, batches and the ledger come from the Trainer's arguments."""
    from clipwise.mechanism import Mechanism, Performance

    named = {
        *Mechanism.model_fields,
        *Performance.model_fields,
        "threshold",
        "earlier",
        "pad_to",
        "groups",
        "loss_declared",
    }
    return named - {"epsilon", "delta", "epochs", "steps", "expected_batch_size", "max_physical_batch"}


def _checked(args: Any, trainer: Any) -> Any:
    """A copy of the arguments, after refusing what a private run cannot honour."""
    refused = {
        "fp16": (args.fp16, "fp16 needs a loss scaler, which looks at raw gradients; use bf16=True"),
        "n_gpu": (
            args.n_gpu > 1,
            "DataParallel splits batches over devices; make one visible (CUDA_VISIBLE_DEVICES=0)",
        ),
        "deepspeed": (bool(args.deepspeed), "DeepSpeed keeps gradients of its own; leave it out"),
        "fsdp": (bool(args.fsdp), "FSDP is not built yet; leave it out"),
        "auto_find_batch_size": (
            args.auto_find_batch_size,
            "it tries records in vain; set per_device_train_batch_size",
        ),
        "label_smoothing_factor": (
            args.label_smoothing_factor,
            "override loss_of with clipwise.losses.cross_entropy(..., label_smoothing=)",
        ),
        "compute_loss_func": (trainer.compute_loss_func is not None, "override loss_of: one loss a record"),
    }
    for name, (there, remedy) in refused.items():
        if there:
            raise Unsupported(f"{name}: PrivateTrainer cannot honour it: {remedy}")
    args = copy.copy(args)
    args.max_grad_norm = 0.0  # gradients are clipped by record
    args.ignore_data_skip = True  # a resumed run goes on with batches that it draws anew
    return args


def _state_in(checkpoint: str) -> Path:
    folder = Path(checkpoint) / STATE
    if not folder.is_dir():
        raise BadArgument(
            f"resume_from_checkpoint={str(checkpoint)!r} holds no folder {STATE!r}: it was not saved by a PrivateTrainer, or not to its end; "
            "give another checkpoint"
        )
    return folder


def _trained(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    return ((name, p) for name, p in model.named_parameters() if p.requires_grad)


def _say_of_other_weights(model: torch.nn.Module, loaded: dict[str, Tensor]) -> None:
    """A checkpoint of the Trainer that does not hold what was trained (a head that an adapter leaves out, say) is seen here: the
    run keeps all of it itself."""
    others = [name for name, p in _trained(model) if name in loaded and not torch.equal(p, loaded[name])]
    if others:
        warnings.warn(
            f"clipwise: the Trainer's own checkpoint does not hold {len(others)} of the trained parameters as they were ({others[0]}, ...); the run's "
            "own state has them, and goes on. A model loaded from that checkpoint would not be the one that was trained: for peft name the "
            "module in modules_to_save",
            stacklevel=3,
        )


def _step_by(run: Run, optimizer: Any) -> Any:
    """optimizer.step() completes the logical step of the run; what is returned gives it back."""
    own, plain = optimizer.__dict__.get("step"), optimizer.step
    moved = Moved(dict(_trained(run.model)))

    def step(_: Any, closure: Any = None) -> Any:  # noqa: ARG001
        moved.begin(group["lr"] for group in optimizer.param_groups)
        done = run.stepper.complete(plain)
        moved.end()
        run.stepper.whereabouts.end()
        return done

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # a scheduler has been made on it
    optimizer.step = MethodType(step, optimizer)

    def give_back() -> None:
        if own is None:
            optimizer.__dict__.pop("step", None)
        else:
            optimizer.step = own

    return give_back
