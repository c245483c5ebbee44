"""`clipwise.check(model)`: before anything is trained, which parameters are private, and by which way; which are left out, and why.

    print(clipwise.check(model))                  # by its layers
    print(clipwise.check(model, batch))           # by its code too: a made-up or public batch goes through it once

| way | meaning |
| --- | --- |
| fast | trained; its gradients a record come from its layer's rule |
| slow | trained; exact as well, but by torch.func |
| left out | trainable, and the model does not use it: noise alone would move it |
| refused | cannot be trained as it is; `why` says what to do |
| frozen | requires no gradient: public, and stays as it is |

Nothing is trained, measured or released, and model and generators are as they were afterwards. What comes out hangs on the model's
code and on the shapes of the batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from clipwise import guards
from clipwise.norms import Bookkeeping, mixing_layers
from clipwise.own_loss import own_loss
from clipwise.randomness import held
from clipwise.types import BadArgument, ClipwiseError

FAST, SLOW, LEFT_OUT, REFUSED, FROZEN = WAYS = ("fast", "slow", "left out", "refused", "frozen")
_SHOWN = 3  # names a way
UNUSED = (
    "the model did not use it for this batch, so that noise alone would move it; freeze it with requires_grad_(False)"
)


@dataclass(frozen=True)
class Parameter:
    """One of the model's."""

    name: str
    numbers: int
    way: str
    layer: str  # the class of what answers for it
    why: str = ""


@dataclass(frozen=True)
class Check:
    """What `check` found, a parameter a row; as text, a table."""

    parameters: tuple[Parameter, ...]
    looked: bool  # a batch went through the model
    notices: tuple[str, ...] = ()

    def of(self, way: str) -> list[str]:
        """Names of the parameters that go this way."""
        return [p.name for p in self.parameters if p.way == way]

    @property
    def ok(self) -> bool:
        """Something is trained, and nothing is refused or left out."""
        return bool(self.of(FAST) or self.of(SLOW)) and not (self.of(REFUSED) or self.of(LEFT_OUT))

    def __str__(self) -> str:
        trained = sum(p.numbers for p in self.parameters if p.way in (FAST, SLOW))
        whole = sum(p.numbers for p in self.parameters)
        lines = [f"{trained:,} of {whole:,} numbers are trained privately", ""]
        lines += [f"{'way':<9} {'parameters':>10} {'numbers':>13}  layers, and the first names"]
        for way in WAYS:
            if mine := [p for p in self.parameters if p.way == way]:
                lines.append(f"{way:<9} {len(mine):>10,} {sum(p.numbers for p in mine):>13,}  {_where(mine)}")
        lines += [f"{way}: {why}" for way, why in dict.fromkeys((p.way, p.why) for p in self.parameters if p.why)]
        lines += [*self.notices]
        if not self.looked:
            lines.append("told by its layers alone; check(model, batch) looks at the model's code too")
        return "\n".join(lines)


def check(model: nn.Module, batch: Any = None) -> Check:
    """Which parameters would be trained privately, and how.

    batch: made-up or public records, as the model is called with them: a mapping (`model(**batch)`), a tuple (`model(*batch)`)
        or a tensor; two records or more. With labels, the loss of a model that computes its own is taken apart too.
    """
    if not isinstance(model, nn.Module):
        raise BadArgument(f"model={type(model).__name__} is not a torch.nn.Module; give the model itself")
    guards.refuse_claimed(model)
    call = None if batch is None else _call(batch)
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    try:
        guards.refuse_model(model)
        for refusal in mixing_layers(model):
            raise refusal
        if not named:
            return Check(_rows(model, {}), looked=False)
        notices: list[str] = []
        engine = Bookkeeping(model, named, loss_reduction="sum", own_loss=own_loss(model, "sum"), notify=notices.append)
        used = None if call is None else _used(model, engine, *call)
    except ClipwiseError as refusal:
        ways = {id(p): (REFUSED, type(model).__name__, str(refusal)) for p in named.values()}
        return Check(_rows(model, ways), looked=batch is not None)
    ways = {}
    for unit in engine.units:
        for p in unit.parameters():
            layer, left_out = type(unit.module).__name__, used is not None and id(p) not in used
            if unit.is_generic or id(p) not in ways:  # of two places that a parameter stands in, the slow one
                way = LEFT_OUT if left_out else SLOW if unit.is_generic else FAST
                ways[id(p)] = (way, layer, UNUSED if left_out else "")
    return Check(_rows(model, ways), batch is not None, tuple(dict.fromkeys(notices)))


def _call(batch: Any) -> tuple[int, Sequence[Any], Mapping[str, Any]]:
    """How many records, and the arguments that the model is called with."""
    named = dict(batch) if isinstance(batch, Mapping) else {}
    args = () if isinstance(batch, Mapping) else batch if isinstance(batch, Sequence) else (batch,)
    rows = next((len(x) for x in tree_flatten((args, named))[0] if isinstance(x, Tensor) and x.dim()), 0)
    if rows < 2:
        raise BadArgument("batch: no tensor of two records or more is in it; give what the model is called with")
    return rows, args, named


def _used(model: nn.Module, engine: Bookkeeping, rows: int, args: Sequence[Any], named: Mapping[str, Any]) -> set[int]:
    """Ids of the parameters that a forward pass uses."""
    engine.install()
    try:
        with held({p.device for p in engine.parameters if p.is_cuda}), torch.enable_grad():
            engine.open(rows)
            model(*args, **named)
            return engine.used
    finally:
        engine.remove()


def _rows(model: nn.Module, ways: Mapping[int, tuple[str, str, str]]) -> tuple[Parameter, ...]:
    kept = (FROZEN, "", "")
    return tuple(
        Parameter(name, p.numel(), *(ways.get(id(p), kept) if p.requires_grad else kept))
        for name, p in model.named_parameters()
    )


def _where(found: list[Parameter]) -> str:
    layers = sorted(p.layer for p in found if p.layer)
    counts = ", ".join(f"{len(list(same))} of {layer}" for layer, same in groupby(layers))
    names = ", ".join(p.name for p in found[:_SHOWN]) + (", ..." if len(found) > _SHOWN else "")
    return f"{counts}: {names}" if counts else names


# -- against a step that does nothing ------------------------------------------------------------------------------------


class Moved:
    """After the first step at a rate above zero every trained parameter has moved: noise moves them all. One that has not lost its
    step (a weight in half precision that is too large for it, an optimizer that leaves it out), which a loss would not show."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]):
        self._parameters = parameters
        self._before: dict[str, Tensor] | None = None
        self.over = False

    def begin(self, rates: Iterable[float]) -> None:
        """Before a step."""
        if not self.over and all(rate > 0 for rate in rates):
            self._before = {name: p.detach().clone() for name, p in self._parameters.items()}

    def end(self) -> None:
        """After it: a warning that names those that stayed, once."""
        if self._before is None:
            return
        stayed = [name for name, p in self._parameters.items() if torch.equal(p, self._before[name])]
        self._before, self.over = None, True
        if stayed:
            warnings.warn(
                f"clipwise: {len(stayed)} trained parameters did not move in the first step ({', '.join(stayed[:_SHOWN])}"
                f"{', ...' if len(stayed) > _SHOWN else ''}), though its noise alone moves all: the step is too small for their "
                "number format, or the optimizer leaves them out. Raise the learning rate, keep trained weights in float32, or look "
                "at the optimizer",
                stacklevel=3,
            )
