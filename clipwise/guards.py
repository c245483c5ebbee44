"""What a run refuses of the world around it: processes, wrappers, optimizers and threads that its guarantee does not cover.

The guarantee is about one model, changed by one optimizer, in one process and one thread. Formally: while a run holds a
model's parameters, no other run holds any of them, and no other torch optimizer moves them. Weights may still be changed by
hand between steps (an average copied back, a clamp): with the engine in place no raw gradient reaches `p.grad`, so that
such changes are functions of released values and of what the loop knows anyway.

Hooks on parameters are honoured: they see the *released* gradient, once a logical step (`through_hooks`).
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import LBFGS, Optimizer, SparseAdam
from torch.optim.optimizer import register_optimizer_step_pre_hook

from clipwise.types import BadArgument, LoopMisuse, Unsupported

_SPLIT_OVER_DEVICES = ("torch.nn.parallel", "torch.distributed")  # where torch's wrappers live: DataParallel, DDP, FSDP
_HAS_GROUPS = torch.distributed.is_available()
_FULLY_SHARD = "torch.distributed.fsdp._fully_shard"  # FSDP2, which is no wrapper and can be trained (shards.py)


# -- what cannot be attached -------------------------------------------------------------------------------------------


def refuse_other_ranks(known: int) -> None:
    """Raise where the processes that train together are not as many as when the run began."""
    group = torch.distributed
    now = group.get_world_size() if _HAS_GROUPS and group.is_initialized() else 1
    if now != known:
        raise LoopMisuse(
            f"this run began with {known} process{'es' if known > 1 else ''}, and torch.distributed has {now} now: each would train a model of its own "
            "on its own noise, and each claim the whole epsilon. Call init_process_group() before attach, and destroy_process_group() after "
            "detach"
        )


def refuse_model(model: nn.Module) -> None:
    """Raise for wrappers and kinds of modules that the engine cannot see through."""
    for name, module in model.named_modules():
        where = f"model: {name!r} is" if name else "model: it is"
        kind = type(module)
        wrappers = [base for base in kind.__mro__ if base.__module__.startswith(_SPLIT_OVER_DEVICES)]
        if any(base.__name__ != "FSDPModule" and not base.__module__.startswith(_FULLY_SHARD) for base in wrappers):
            remedy = "attach the module inside it (model.module), and train on one device"
            if kind.__module__.startswith("torch.distributed") or "FSDP" in kind.__name__:
                remedy = (
                    "shard its modules by torch's fully_shard, or leave it whole in each process (docs/distributed.md)"
                )
            raise Unsupported(f"{where} a {kind.__name__}, which splits batches or weights over devices; {remedy}")
        if kind.__module__.startswith("keras."):
            raise Unsupported(
                f"{where} of Keras ({kind.__name__}), whose layers read their weights from variables of their own, past torch's modules, so that they cannot "
                "be recorded; build the model of torch.nn layers, and load the weights into it"
            )
        if isinstance(module, torch.jit.ScriptModule):
            raise Unsupported(
                f"{where} a torch.jit module ({kind.__name__}), whose compiled forward pass cannot be recorded; attach the Python "
                "module that it was made from, and script or trace it after training"
            )
    for name, p in model.named_parameters():
        if p.requires_grad and p.is_complex():
            raise Unsupported(
                f"model: parameter {name!r} is complex ({p.dtype}), and the norm of its gradient is not measured; keep its real and "
                "imaginary parts as one real parameter, and use torch.view_as_complex in the forward pass"
            )


def refuse_optimizer(optimizer: Optimizer) -> None:
    if isinstance(optimizer, LBFGS):
        raise Unsupported(
            "optimizer: LBFGS evaluates the loss several times a step; use SGD, Adam or another first-order optimizer"
        )
    if isinstance(optimizer, SparseAdam):
        raise Unsupported(
            "optimizer: SparseAdam takes sparse gradients alone, and a released gradient has noise at every place; use Adam"
        )


def trained(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """Those that require a gradient; none is refused, before torch's optimizers do without saying why."""
    if not (found := [p for p in parameters if p.requires_grad]):
        raise BadArgument("model: no parameter requires a gradient; unfreeze at least one layer")
    return found


def trainable_parameters(model: nn.Module, optimizer: Optimizer) -> dict[str, nn.Parameter]:
    """The parameters that will be trained, by name, after refusing what cannot be trained privately."""
    if not isinstance(model, nn.Module):
        raise BadArgument(f"model={type(model).__name__} is not a torch.nn.Module; give the model itself")
    if not isinstance(optimizer, Optimizer):
        raise BadArgument(
            f"optimizer={type(optimizer).__name__} is not a torch.optim optimizer; make one on model.parameters()"
        )
    refuse_model(model)
    refuse_optimizer(optimizer)
    refuse_claimed(model)
    held = {id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    trained(model.parameters())
    own = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if strange := held - {id(p) for p in own.values()}:
        raise BadArgument(
            f"optimizer: {len(strange)} of its parameters are not the model's; put every module that is trained into one model"
        )
    if forgotten := [name for name, p in own.items() if id(p) not in held]:
        raise BadArgument(
            f"optimizer: it does not hold {', '.join(forgotten[:5])}{' ...' if len(forgotten) > 5 else ''}; "
            "add them, or freeze them with requires_grad_(False)"
        )
    return own


def check_groups(name: str, needed: bool, groups: Any) -> None:
    if needed and groups is None:
        raise BadArgument(f"groups=None: method {name!r} wants the group of each record; give a function of the batch")
    if groups is not None and not callable(groups):
        raise BadArgument(
            f"groups={groups!r} is not a function; give one of the batch, that tells the group of each row"
        )


# -- one run, one optimizer --------------------------------------------------------------------------------------------


class Claim:
    """A run's hold on its parameters, for as long as the run lives or until it is given up."""

    def __init__(
        self,
        model: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        optimizer: Optimizer,
        close: Callable[[], None],
    ):
        self.model = weakref.ref(model)
        self.optimizer = weakref.ref(optimizer)
        self.held = {id(p): name for name, p in parameters.items()}
        self.close = weakref.WeakMethod(close)  # a claim keeps no run alive
        _watch_optimizers()
        _claims.add(self)

    def give_up(self) -> None:
        _claims.discard(self)


_claims: weakref.WeakSet[Claim] = weakref.WeakSet()
_stepping = threading.local()
_watching: list[object] = []


def refuse_claimed(model: nn.Module) -> None:
    """Raise where another run holds a parameter of this model: it, a part of it, or something around it is attached."""
    shared = _sharing(model)
    if shared:
        gc.collect()  # a run that nobody can reach any more holds nothing
        shared = _sharing(model)
    if not shared:
        return
    claim, name = shared
    what = (
        "it is"
        if claim.model() is model
        else "a part of it, or something that contains it or shares its parameters, is"
    )
    raise BadArgument(
        f"model: {what} attached already (parameter {name!r} is held by a run); call detach() on the earlier run first, or "
        "clipwise.detach(model) where no variable holds that run any more (a notebook cell that was run again)"
    )


def detach(model: nn.Module) -> None:
    """Give the model (and its optimizer and scheduler) back from whatever run holds its parameters, and close that run's
    ledger: `private.detach()` for a run that no variable holds any more."""
    found = _sharing(model)
    if found is None:
        raise BadArgument("model: no run holds it; nothing is to be detached")
    while found is not None:
        close = found[0].close()
        if close is not None:
            close()
        found[0].give_up()
        found = _sharing(model)


def _sharing(model: nn.Module) -> tuple[Claim, str] | None:
    for claim in list(_claims):
        for p in model.parameters():
            if id(p) in claim.held:
                return claim, claim.held[id(p)]
    return None


@contextmanager
def own_step() -> Iterator[None]:
    """The optimizer's own step on released gradients; optimizers that it is made of may step too."""
    _stepping.inside = True
    try:
        yield
    finally:
        _stepping.inside = False


def _refuse_second_optimizer(optimizer: Optimizer, args: object, kwargs: object) -> None:  # noqa: ARG001
    if getattr(_stepping, "inside", False):
        return
    for claim in list(_claims):
        if claim.optimizer() is optimizer:
            continue
        for group in optimizer.param_groups:
            for p in group["params"]:
                if id(p) in claim.held:
                    raise LoopMisuse(
                        f"a second optimizer ({type(optimizer).__name__}) was about to move {claim.held[id(p)]!r}, which a private run trains; "
                        "nothing was changed. Only the attached optimizer may: leave the other one's parameters to it, or detach() first"
                    )


def _watch_optimizers() -> None:
    if not _watching:
        _watching.append(register_optimizer_step_pre_hook(_refuse_second_optimizer))


# -- hooks on released gradients ---------------------------------------------------------------------------------------


def through_hooks(parameters: Iterable[nn.Parameter]) -> None:
    """Let the user's hooks on the parameters see the released gradients, as backward() would have let them see raw ones:
    first those of `register_hook`, which may replace it, then those of `register_post_accumulate_grad_hook`."""
    for p in parameters:
        hooks = p._backward_hooks
        # Most parameters have the engine's own alone.
        if not p._post_accumulate_grad_hooks and (not hooks or (len(hooks) == 1 and _is_ours(*hooks.values()))):
            continue
        for hook in list((hooks or {}).values()):
            if not _is_ours(hook) and (changed := hook(p.grad)) is not None:  # type: ignore[arg-type]
                p.grad = changed
        for hook in list((p._post_accumulate_grad_hooks or {}).values()):
            hook(p)


def _is_ours(hook: object) -> bool:
    return hasattr(hook, "of_the_engine")


# -- one process, one thread -------------------------------------------------------------------------------------------


class Whereabouts:
    """Where a run takes place: the process that made it, and the one thread whose loop is under way."""

    def __init__(self, processes: int = 1) -> None:
        self._processes = processes
        self._process = os.getpid()
        self._turn = threading.Lock()
        self._thread: threading.Thread | None = None
        self._number = 0  # of that thread; 0: none

    def refuse_elsewhere(self) -> None:
        """Raise in a fork, in one of several ranks, or while another thread is at work."""
        if os.getpid() != self._process:
            raise LoopMisuse(
                "this run was begun in another process, of which this one is a copy (a fork): both would draw the same noise, and the "
                "ledger would count it once. Attach in the process that trains"
            )
        refuse_other_ranks(self._processes)
        other = self._thread
        if other is not None and self._number != threading.get_ident() and other.is_alive():
            raise LoopMisuse(
                f"thread {threading.current_thread().name!r} takes part in a loop that thread {other.name!r} has begun and not left; nothing "
                "was changed. Go through private.loader and call optimizer.step() in one thread"
            )

    def begin(self) -> None:
        if self._number == threading.get_ident():
            return  # its turn already; the step asks for the rest, before anything is charged or released
        with self._turn:
            self.refuse_elsewhere()
            self._thread, self._number = threading.current_thread(), threading.get_ident()

    def end(self) -> None:
        self._thread, self._number = None, 0
