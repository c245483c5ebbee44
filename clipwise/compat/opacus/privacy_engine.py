"""`opacus.PrivacyEngine` over `clipwise.attach`: the same arguments, the same names back.

Guarantee: that of `attach` with method `fixed` at max_grad_norm. Batches are Poisson samples at rate 1 / len(data_loader), as
Opacus draws them; the denominator is that rate x the number of records. Without a target the run is open-ended: epsilon is
what the ledger says. With one, training stops before the step that would exceed it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from clipwise import validate
from clipwise.accounting import Event
from clipwise.compat.opacus.accountants import Accountant, bound_of, refuse_rest
from clipwise.compat.opacus.optimizer import as_dp_optimizer
from clipwise.compat.opacus.validators import ModuleValidator
from clipwise.dropin import Private, attach
from clipwise.sampling import check_loader
from clipwise.statement import Statement
from clipwise.types import BadArgument, LoopMisuse, Unsupported

_MODES = ("hooks", "functorch", "ew", "ghost")  # ways to the same clipped sum; Clipwise takes its own
_ACCOUNT = "privacy_accountant_state_dict"


class PrivacyEngine:
    def __init__(self, *, accountant: str = "prv", secure_mode: bool = False):  # noqa: ARG002
        """`secure_mode` changes nothing: noise and batches are drawn from the system's own randomness in any case."""
        self._bound = bound_of(accountant)
        self.accountant = Accountant(accountant, self._events, self._epsilon)
        self._private: Private | None = None
        self._ledger: Path | None = None  # of a checkpoint that was loaded before make_private

    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer,
        criterion: Any = None,
        data_loader: DataLoader[Any],
        noise_multiplier: float,
        max_grad_norm: float,
        **named: Any,
    ) -> tuple[Any, ...]:
        """(module, optimizer, data_loader), or with grad_sample_mode="ghost" the criterion before the loader. By name also
        batch_first, loss_reduction, poisson_sampling, clipping, noise_generator, grad_sample_mode, wrap_model and rand_on_empty."""
        return self._made(
            (module, optimizer, data_loader), criterion, max_grad_norm, named, noise_multiplier=noise_multiplier
        )

    def make_private_with_epsilon(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer,
        criterion: Any = None,
        data_loader: DataLoader[Any],
        target_epsilon: float,
        target_delta: float,
        epochs: int,
        max_grad_norm: float,
        **named: Any,
    ) -> tuple[Any, ...]:
        """As `make_private`, with the noise that `epochs` epochs need for the target."""
        target = {"epsilon": target_epsilon, "delta": target_delta, "epochs": epochs}
        return self._made((module, optimizer, data_loader), criterion, max_grad_norm, named, **target)

    def _made(
        self,
        loop: tuple[nn.Module, Optimizer, DataLoader[Any]],
        criterion: Any,
        max_grad_norm: float,
        named: dict[str, Any],
        **budget: Any,
    ) -> tuple[Any, ...]:
        if self._private is not None:
            raise LoopMisuse(
                "this PrivacyEngine has made a loop private already; make another for another model (each says what it has spent itself), or use "
                "clipwise.attach(ledger=FILE) twice with one file, which counts both"
            )
        reduction, ghost = _checked(max_grad_norm, named)
        module, optimizer, loader = loop
        private = self._private = attach(
            module,
            optimizer,
            loader,
            method="fixed",
            threshold=float(max_grad_norm),
            expected_batch_size=_expected(loader),
            accountant=self._bound,
            loss_reduction=reduction,
            ledger=self._ledger,
            **budget,
        )
        as_dp_optimizer(optimizer, private)
        _point_to_itself(private, module)
        made = (module, optimizer, private.loader)
        return (*made[:2], nn.CrossEntropyLoss() if criterion is None else criterion, made[2]) if ghost else made

    def get_epsilon(self, delta: float) -> float:
        """Epsilon so far, from the ledger."""
        return self._epsilon(delta)

    def statement(self) -> Statement:
        """What Opacus does not have: what is guaranteed, under which assumptions, and what is not."""
        return self._run().statement()

    def detach(self) -> None:
        """Model and optimizer as they were; the ledger is closed."""
        self._run().detach()

    @classmethod
    def get_compatible_module(cls, module: nn.Module) -> nn.Module:
        return ModuleValidator.fix_and_validate(module)

    def validate(self, *, module: nn.Module, optimizer: Any = None, data_loader: Any = None) -> None:  # noqa: ARG002
        ModuleValidator.validate(module, strict=True)

    def is_compatible(self, *, module: nn.Module, optimizer: Any = None, data_loader: Any = None) -> bool:  # noqa: ARG002
        return ModuleValidator.is_valid(module)

    # -- checkpoints ------------------------------------------------------------------------------------------------------

    def save_checkpoint(
        self,
        *,
        path: str | os.PathLike[str],
        module: nn.Module,
        optimizer: Optimizer | None = None,
        noise_scheduler: Any = None,
        grad_clip_scheduler: Any = None,
        checkpoint_dict: dict[str, Any] | None = None,
        module_state_dict_kwargs: dict[str, Any] | None = None,
        torch_save_kwargs: dict[str, Any] | None = None,
    ) -> None:
        """Weights and states in one file, as Opacus writes it. From the first one on the ledger is a file beside it, so that
        what is spent after a checkpoint counts too when that is loaded again."""
        where, run = _file(path), self._run().run
        if run.stepper.waits or run.stepper.unfinished:
            raise LoopMisuse("save_checkpoint came in the middle of a batch; call it after optimizer.step()")
        if self._ledger is None:
            self._ledger = where.with_name(f"{where.name}.{run.ledger.run_id[:8]}.ledger.jsonl").absolute()
            run.charge_to(self._ledger)
        plan = run.plan
        account: dict[str, Any] = {
            "ledger": str(self._ledger),
            "ledger_head": run.ledger.head,
            "mechanism": self.accountant.mechanism(),
        }
        account |= {"noise_multiplier": plan.noise_multiplier, "max_grad_norm": run.state.method.threshold}
        parts = {"optimizer": optimizer, "noise_scheduler": noise_scheduler, "grad_clip_scheduler": grad_clip_scheduler}
        whole = {
            **(checkpoint_dict or {}),
            "module_state_dict": module.state_dict(**(module_state_dict_kwargs or {})),
            _ACCOUNT: account,
            **{f"{name}_state_dict": part.state_dict() for name, part in parts.items() if part is not None},
        }
        torch.save(whole, where, **(torch_save_kwargs or {}))

    def load_checkpoint(
        self,
        *,
        path: str | os.PathLike[str],
        module: nn.Module,
        optimizer: Optimizer | None = None,
        noise_scheduler: Any = None,
        grad_clip_scheduler: Any = None,
        module_load_dict_kwargs: dict[str, Any] | None = None,
        torch_load_kwargs: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Everything that `save_checkpoint` wrote, and what was charged since then. Only tensors and plain values are read,
        unless torch_load_kwargs={"weights_only": False} says that the file is trusted."""
        where = _file(path)
        whole: dict[str, Any] = torch.load(where, **{"weights_only": True, **(torch_load_kwargs or {})})
        account = whole.get(_ACCOUNT, {})
        ledger = _ledger_of(where, account)
        if self._private is not None and ledger != self._ledger:
            self._private.run.charge_to(ledger)
        self._ledger = ledger
        module.load_state_dict(whole["module_state_dict"], **(module_load_dict_kwargs or {}))
        parts = {"optimizer": optimizer, "noise_scheduler": noise_scheduler, "grad_clip_scheduler": grad_clip_scheduler}
        for name, part in parts.items():
            if part is not None and (state := whole.pop(f"{name}_state_dict", None)):
                part.load_state_dict(state)
        for scheduler in (noise_scheduler, grad_clip_scheduler):
            if scheduler is not None:  # the value that it had reached, which its own state does not hold
                setattr(scheduler.optimizer, scheduler.sets, account[scheduler.sets])
        return whole

    # -- the run ----------------------------------------------------------------------------------------------------------

    def _run(self) -> Private:
        if self._private is None:
            raise LoopMisuse("make_private was not called; there is nothing to say of a run")
        return self._private

    def _events(self) -> list[Event]:
        return [] if self._private is None else self._private.run.ledger.events()

    def _epsilon(self, delta: float) -> float:
        return 0.0 if self._private is None else self._private.epsilon(delta)


def _checked(max_grad_norm: Any, named: dict[str, Any]) -> tuple[str, bool]:
    """How the loss is reduced, and whether the criterion is wanted back; after refusing what is not honoured."""
    rest = dict(named)
    clipping, mode = rest.pop("clipping", "flat"), rest.pop("grad_sample_mode", "hooks")
    if clipping == "per_layer" or isinstance(max_grad_norm, list | tuple):
        raise Unsupported(
            f"clipping={clipping!r} with max_grad_norm={max_grad_norm!r}: a bound a layer counts as one bound only where every layer's is in it; "
            "use clipping='flat' with the whole gradient's norm, sqrt(sum of the squares of the layers' bounds)"
        )
    if clipping == "adaptive":
        raise Unsupported(
            "clipping='adaptive': Opacus divides its noised count by the batch's true size, which nothing pays for; use "
            "clipwise.attach(method='quantile'), which divides by the expected one"
        )
    validate.choice("clipping", clipping, ("flat",))
    if rest.pop("poisson_sampling", True) is not True:
        raise Unsupported(
            "poisson_sampling=False: shuffled batches counted as Poisson samples give an epsilon that does not hold; leave it out, or for "
            "batches of one size use clipwise.attach(sampling='fixed-size'), which is accounted for as such"
        )
    if rest.pop("noise_generator", None) is not None:
        raise Unsupported(
            "noise_generator: whoever knows its seed can take the noise off again; leave it out, or for studies use clipwise.attach(seed=...)"
        )
    if mode not in _MODES:
        raise Unsupported(
            f"grad_sample_mode={mode!r} is not offered: sharded weights and gradients of the script's own are not measured; leave it out"
        )
    if rest.pop("wrap_model", True) is not True:
        raise Unsupported(
            "wrap_model=False: nothing is wrapped here in any case, and the model itself is returned; leave it out"
        )
    reduction = validate.choice("loss_reduction", rest.pop("loss_reduction", "mean"), ("mean", "sum"))
    for harmless in (
        "batch_first",
        "rand_on_empty",
    ):  # where the rows are is found out; an empty batch is a row of weight 0
        rest.pop(harmless, None)
    refuse_rest(rest)
    return reduction, mode == "ghost"


def _expected(loader: DataLoader[Any]) -> float:
    """Records in a batch on average, at Opacus' rate: 1 / (batches of the loader)."""
    records, batches = check_loader(loader), len(loader)
    if not batches:
        raise BadArgument(
            f"data_loader: drop_last leaves no batch of {loader.batch_size} of {records} records; leave it out"
        )
    return records / batches


def _point_to_itself(private: Private, module: nn.Module) -> None:
    """`model._module`, which a script may ask for: the model that Opacus has wrapped is the model itself here."""
    if not hasattr(module, "_module"):
        module.__dict__["_module"] = module  # not a child of itself
        private.run.on_close(lambda: module.__dict__.pop("_module", None))


def _file(path: Any) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise Unsupported(
            f"path={type(path).__name__}: the ledger lies beside the checkpoint, so that no step is forgotten; give the name of a file"
        )
    return Path(path)


def _ledger_of(where: Path, account: dict[str, Any]) -> Path:
    if "ledger" not in account:
        raise BadArgument(
            f"path={str(where)!r} was not written by clipwise.compat.opacus: it says nothing of a ledger, and what was spent on its weights is "
            "unknown. Load its module_state_dict with torch, and count its epsilon beside this run's"
        )
    named = Path(account["ledger"])
    for place in (named, where.absolute().parent / named.name):
        if place.is_file():
            return place
    raise BadArgument(
        f"path={str(where)!r}: its ledger {named} is gone, and with it what was spent; put it back, beside the checkpoint"
    )
