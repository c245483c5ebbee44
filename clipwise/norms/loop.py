"""The reference: per-example gradients by a loop over single examples, in plain autograd. What every engine is tested
against.

`assert_agrees` is the conformance test of a layer: whoever adds a rule joins it with one line a case.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from clipwise.norms.bookkeeping import Bookkeeping
from clipwise.norms.kernels.kernel import as_rows
from clipwise.norms.record.tape import Tape

Loss = Callable[[Any], Tensor]  # the model's output for some rows -> the sum of these rows' losses


def squared_output(out: Any) -> Tensor:
    """A loss that reaches every output tensor, with a different gradient at each place."""
    leaves = [x for x in torch.utils._pytree.tree_flatten(out)[0] if isinstance(x, Tensor) and x.is_floating_point()]
    return torch.stack(
        [
            ((x + 0.3).square() * torch.linspace(0.5, 1.5, x[0].numel()).view(x[0].shape).expand_as(x).to(x)).sum()
            for x in leaves
        ]
    ).sum()


def per_example_gradients(
    model: nn.Module, inputs: tuple[Any, ...], loss: Loss, *, rows_dim: int = 0
) -> dict[str, Tensor]:
    """name -> (rows, *shape): the gradient of each example's own loss. Every tensor of `inputs` has its rows in
    `rows_dim`."""
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    rows = inputs[0].shape[rows_dim]
    each = []
    for i in range(rows):
        one = tree_map(lambda x: x.narrow(rows_dim, i, 1) if isinstance(x, Tensor) else x, inputs)  # noqa: B023
        grads = torch.autograd.grad(loss(model(*one)), list(trainable.values()), allow_unused=True)
        each.append([torch.zeros_like(p) if g is None else g for p, g in zip(trainable.values(), grads, strict=True)])
    return dict(zip(trainable, (torch.stack(column) for column in zip(*each, strict=True)), strict=True))


def assert_agrees(
    model: nn.Module,
    inputs: tuple[Any, ...],
    *,
    loss: Loss = squared_output,
    rows_dim: int = 0,
    allow_generic: bool = False,
    tolerance: float = 1e-9,
) -> None:
    """Every candidate kernel of every layer, in float64, against the loop: norms and weighted sums to a relative
    `tolerance`.

    Fails too if the model fell back to the generic engine, unless that is what is being tested.
    """
    model = model.double()
    inputs = tree_map(lambda x: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x, inputs)
    truth = per_example_gradients(model, inputs, loss, rows_dim=rows_dim)
    rows = inputs[0].shape[rows_dim]
    norms = torch.stack([as_rows(g).square().sum(1) for g in truth.values()]).sum(0).sqrt()
    weights = torch.linspace(0.1, 1.7, rows, dtype=torch.float64)
    sums = {name: torch.einsum("r,r...->...", weights, g) for name, g in truth.items()}
    scale = torch.stack([s.norm() for s in sums.values()]).norm()

    for pick in range(8):  # the n-th candidate of each kernel; kernels with fewer repeat their last
        engine = Bookkeeping(
            model,
            {name: p for name, p in model.named_parameters() if p.requires_grad},
            loss_reduction="sum",
            notify=_ignore if allow_generic else _refuse,
        )
        chooser = _Nth(pick)
        engine._chooser = chooser  # type: ignore[assignment]
        engine.install()
        try:
            engine.open(rows)
            loss(model(*inputs)).backward()
            tape = engine.close()
        finally:
            engine.remove()
        got, found = sums_and_norms(tape, weights)
        # Norms of nothing at all may still carry their guard against cancellation.
        allowed = tolerance * float(norms.max()) or 1e-4
        torch.testing.assert_close(found, norms, rtol=tolerance, atol=allowed, msg=lambda m: f"norms: {m}")
        for (name, want), value in zip(sums.items(), got, strict=True):
            error = float((value - want).norm() / scale.clamp_min(1e-300))
            if not error <= tolerance:
                raise AssertionError(f"weighted sum of {name!r} is off by {error:.2e} (candidates {chooser.used})")
        if pick >= chooser.most - 1:
            return


def sums_and_norms(tape: Tape, weights: Tensor) -> tuple[list[Tensor], Tensor]:
    """Both as the private step gets them: the rows all at once, or block by block."""
    seen = []

    def weigh(norms: Tensor, rows: slice) -> dict[str, Tensor]:
        seen.append(norms)
        return {"sum": weights[rows]}

    return tape.weighted_sums(weigh)["sum"], torch.cat(seen)


class _Nth:
    """Takes the n-th candidate everywhere, so that each is tested."""

    def __init__(self, pick: int):
        self.pick, self.most, self.used = pick, 1, []  # type: ignore[var-annotated]

    def part(self, call: Any, saved: Any, b: Tensor) -> Any:
        ways = list(call.kernel.candidates(call, saved, b).items())
        self.most = max(self.most, len(ways))
        name, way = ways[min(self.pick, len(ways) - 1)]
        self.used.append(f"{type(call.kernel).__name__}.{name}")
        return way(call, saved, b)


def _refuse(message: str) -> None:
    raise AssertionError(f"fell back to the generic engine: {message}")


def _ignore(message: str) -> None:  # noqa: ARG001
    return
