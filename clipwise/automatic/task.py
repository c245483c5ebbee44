"""What a model learns, as far as the measuring must know it: the losses of a batch, and how right each row is where that can be counted.

Right answers can be counted where the targets are classes; otherwise rates are compared by the losses of rows. Row i of all of them
comes from record i alone: of the losses the engine proves it, of the others it is so because the model treats rows alone, which
the same engine has looked at, and the functions here work row by row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader

from clipwise.automatic import rule
from clipwise.losses import Loss, make_loss
from clipwise.modes import evaluating, tried
from clipwise.types import BadArgument

Compare = Callable[[Any, Tensor], Tensor]  # output and target to one loss a row, or to their mean
OfBatch = Callable[[nn.Module, Any], Any]  # model and batch to one loss a row, or to (losses, how right each row is)

_REMEDY = (
    "give loss=, a function of model and batch that returns one loss a row, or (losses, right) with right in 0..1 for each row; or state "
    "a learning rate (lr=), and nothing is measured"
)


_BEND = 1e-3  # of the way: far above rounding, far below what two layers in a row have
_SCORED = "a record's score is l / (l + loss), with l the released median of the losses at the first weights"


class Task(NamedTuple):
    kind: rule.Kind
    losses: Callable[[Any], Tensor]  # of a batch, for the backward pass
    row_losses: Callable[[Any], Tensor]  # of a batch: (rows,)
    right: Callable[[Any], Tensor] | None  # of a batch: (rows,), in 0..1; None where the model learns values
    said: str
    linear: bool = False  # whether outputs are linear in the parameters that are trained: a public fact of the model
    # Lengths of gradients of made records, public too; None where that cannot be tried:
    blank_norm: float | None = None  # an input of zeros, and the first class
    made_norm: float | None = (
        None  # an input of noise, and the first class, or a value 1 from the output; over the root of the loss of values
    )


def of_outputs(model: nn.Module, compare: Compare, loader: DataLoader[Any]) -> Task:
    """From a loss of (output, target), on batches that begin with inputs and targets."""
    device = next(model.parameters()).device
    rows = compare.each if isinstance(compare, Loss) else compare

    def of(batch: Any) -> tuple[Any, Tensor]:
        inputs, targets = (x.to(device) for x in batch[:2])
        return model(inputs), targets

    output, target = _of_one(model, loader, of)
    classes = compare.wants_classes if isinstance(compare, Loss) else _compares_classes(output, target)
    if classes and output.shape[1:2] == (1,):
        raise BadArgument(
            f"model: it has one output, and targets are {target.dtype}, the numbers of classes: give it an output for each class, or real "
            "targets (y.float()) to learn a value"
        )

    name = str(compare) if isinstance(compare, Loss) else getattr(compare, "__name__", "of your own")
    inputs = loader.collate_fn([loader.dataset[0]])[0].to(device)
    linear = is_linear(model, inputs)
    said = f"loss {name}; {'right answers are counted' if classes else _SCORED}"
    said += "; outputs are linear in what is trained" if linear else ""
    return Task(
        "classes" if classes else "values",
        lambda batch: rows(*of(batch)),
        lambda batch: _by_row(rows, *of(batch)),
        (lambda batch: right(*of(batch))) if classes else None,
        said,
        linear,
        *_of_made(model, rows, inputs, target, classes),
    )


def of_batches(model: nn.Module, loss: OfBatch, loader: DataLoader[Any]) -> Task:
    """From the user's function of model and batch."""
    found = _of_one(model, loader, lambda batch: loss(model, batch))
    counts = isinstance(found, tuple)
    if not all(isinstance(x, Tensor) and x.shape == (1,) for x in (found if counts else (found,))):
        raise BadArgument(
            "loss= gave something else than one number a row on a batch of one record; it returns losses of shape (rows,), or (losses, "
            "right), both of that shape"
        )

    def losses(batch: Any) -> Tensor:
        return loss(model, batch)[0] if counts else loss(model, batch)

    said = f"loss= as given; {'what it counts as right is its score' if counts else _SCORED}"
    right = (lambda batch: loss(model, batch)[1]) if counts else None
    return Task("classes" if counts else "values", losses, losses, right, said)


def inferred(model: nn.Module, loader: DataLoader[Any]) -> Task:
    """From what a batch looks like: whole-number targets are classes, real ones are values."""
    batch = loader.collate_fn([loader.dataset[0]])
    pair = isinstance(batch, list | tuple) and len(batch) == 2 and all(isinstance(x, Tensor) for x in batch)
    if not pair:
        raise BadArgument(
            f"loss=None: a batch of this loader is no pair of tensors (inputs, targets), so that its loss cannot be inferred; {_REMEDY}"
        )
    _, targets = batch
    loss = make_loss("squared-error" if targets.is_floating_point() else "cross-entropy")
    task = of_outputs(model, loss, loader)
    try:
        with evaluating(model):
            task.losses(batch)
            task.row_losses(batch)
    except (BadArgument, RuntimeError, TypeError, AttributeError) as error:
        raise BadArgument(
            f"loss=None: {loss} was tried, because targets are {targets.dtype}, and does not fit the model's output ({error}); {_REMEDY}"
        ) from error
    return task._replace(said=f"{task.said} (inferred: targets are {targets.dtype})")


def is_linear(model: nn.Module, like: Tensor) -> bool:
    """Whether the outputs are linear in the trained parameters: tried on made inputs of a record's shape (noise, or 0 and 1 for whole
    numbers), with the parameters moved there and back. False where that cannot be tried."""
    generator = torch.Generator().manual_seed(0)
    made = (
        torch.randn(like.shape, generator=generator)
        if like.is_floating_point()
        else torch.rand(like.shape, generator=generator).round()
    )
    trained = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    moves = {name: torch.randn(p.shape, generator=generator).to(p) for name, p in trained.items()}
    try:
        with evaluating(model), torch.no_grad():
            back, here, there = (
                functional_call(model, {name: p + k * moves[name] for name, p in trained.items()}, (made.to(like),))
                for k in (-1, 0, 1)
            )
        return float((back + there - 2 * here).norm()) <= _BEND * float((there - back).norm())
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):  # a model that takes more than this
        return False


def _of_made(
    model: nn.Module, rows: Compare, inputs: Tensor, target: Tensor, classes: bool
) -> tuple[float | None, float | None]:
    """`blank_norm` and `made_norm` of a task."""
    if not inputs.is_floating_point():
        return None, None
    first = torch.zeros_like(target)
    noise = torch.randn(inputs.shape, generator=torch.Generator().manual_seed(0)).to(inputs)
    if classes:
        blank, made = (
            length_of(model, partial(lambda x: rows(model(x), first), x)) for x in (torch.zeros_like(inputs), noise)
        )
        return blank, made

    def root() -> Tensor:
        out = model(noise)
        return 2 * rows(out, out.detach() + 1).sqrt()  # whose gradient is that of the loss over the root of the loss

    return None, length_of(model, root)


def length_of(model: nn.Module, losses: Callable[[], Tensor]) -> float | None:
    """Of the gradient of these losses. None where that cannot be tried."""
    trained = [p for p in model.parameters() if p.requires_grad]
    try:
        with evaluating(model), torch.enable_grad():
            found = [g for g in torch.autograd.grad(losses().sum(), trained, allow_unused=True) if g is not None]
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):
        return None
    return float(torch.cat([g.flatten() for g in found]).norm()) if found else None


def right(output: Tensor, target: Tensor) -> Tensor:
    """1 for each row whose largest output is its class, 0 for any other; of rows with many places, the share of them."""
    hits = (output.argmax(1) == target).double()
    return hits.flatten(1).mean(1) if hits.dim() > 1 else hits


def _compares_classes(output: Any, target: Any) -> bool:
    if not (isinstance(output, Tensor) and isinstance(target, Tensor)) or target.is_floating_point():
        return False
    return output.dim() >= 2 and target.shape == (output.shape[0], *output.shape[2:])


def _by_row(compare: Compare, output: Any, target: Tensor) -> Tensor:
    """One loss a row; a loss that takes a mean is asked of each row by itself."""
    losses = compare(output, target)
    if losses.dim() == 1 and len(losses) == len(target):
        return losses
    each = [compare(*tree_map(lambda x, i=i: x[i : i + 1], (output, target))) for i in range(len(target))]
    return torch.stack([loss.reshape(()) for loss in each])


def _of_one(model: nn.Module, loader: DataLoader[Any], of: Callable[[Any], Any]) -> Any:
    """Of a batch of the first record, whose types and shapes are treated as public; the model is left as it was."""
    return tried(model, lambda: of(loader.collate_fn([loader.dataset[0]])))


__all__ = ["Task", "inferred", "of_batches", "of_outputs", "right"]
