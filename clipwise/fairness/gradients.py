"""Why a group pays: what clipping does to the gradients of each group (after Esipova et al.).

For a model, a clipping method and the method's state, over some records of group m with gradients g_i and weights w_i:

    clipped share     how many records have a smaller weight than a vanishing gradient of their group would have
    direction error   angle between sum_i w_i g_i and sum_i g_i, in degrees: 0 where clipping only shortens
    kept              |sum_i w_i g_i| / |sum_i g_i|, over that of the group which keeps most (1 for that one): a scale
                      common to all groups folds into the learning rate, and what counts is who loses more

The weights come from the method's own `decide`, so that any method can be asked. One that normalises (auto-s) clips every
gradient: there the other two figures tell groups apart. A gradient that is not finite has weight 0, and counts as clipped.

Guarantee: none. These are exact functions of the records they are given: public ones, or protected ones under a name
that says so. `clipped_records` is for `release.py`, which adds the noise. All of it looks at one state, that of a finished
run, and at clipping alone: noise hurts small groups besides.

Reference: Esipova et al., "Disparate Impact in Differential Privacy from Gradient Misalignment", ICLR 2023.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset

from clipwise import validate
from clipwise.clipping import Method
from clipwise.fairness.metrics import NO_MEMBERS, Measure
from clipwise.norms import Bookkeeping, Tape
from clipwise.step import backward_pass
from clipwise.types import BadArgument

MOST_RECORDS = 500  # of a group: a share is then known to 2 per cent
ROWS = 256  # at once
_VANISHING = 1e-12  # a norm so small that no method clips for its length
_ROUNDING = 1e-9  # relative: a weight within it of the one for a vanishing norm is not clipped

Loss = Callable[[Any, Tensor], Tensor]  # (output, target) -> one loss a row, or the mean over the rows


class GroupGradients(NamedTuple):
    records: int  # that were looked at
    clipped: Measure  # share
    direction_error: Measure  # degrees
    kept: Measure  # beside the group that keeps most

    def to_dict(self) -> dict[str, Any]:
        notes = dict.fromkeys(m.note for m in (self.clipped, self.direction_error, self.kept) if m.note)
        return {
            "records": self.records,
            "clipped_share": self.clipped.value,
            "direction_error": self.direction_error.value,
            "kept": self.kept.value,
            **({"note": "; ".join(notes)} if notes else {}),
        }


class _Sums(NamedTuple):
    """Of one group: counts, and lengths and angle of its two mean gradients."""

    records: int
    clipped: int
    not_finite: int
    plain: float
    weighted: float
    angle: float | None


def gradients_by_group(
    model: nn.Module,
    data: Dataset,
    *,
    loss: Loss,
    groups: Tensor,
    number_of_groups: int,
    method: Method,
    state: Any,
    device: torch.device | None = None,
    most_records: int = MOST_RECORDS,
    rows: int = ROWS,
) -> list[GroupGradients]:
    """One entry a group. `groups` numbers the group of each record of `data`; of a larger group, `most_records` are
    looked at, evenly spread over the data set. The model is asked in evaluation mode, and left as it was."""
    validate.count("number_of_groups", number_of_groups)
    validate.count("most_records", most_records)
    validate.count("rows", rows)
    groups = groups.long().cpu()
    if groups.shape != (len(data),):  # type: ignore[arg-type]
        raise BadArgument(f"groups: shape {tuple(groups.shape)} for {len(data)} records; give one a record")  # type: ignore[arg-type]
    if len(groups) and not 0 <= int(groups.min()) <= int(groups.max()) < number_of_groups:
        raise BadArgument(f"groups: a number lies outside 0..{number_of_groups - 1}; number the groups from 0")
    with _recording(model, loss, device) as taped:
        found = []
        for group in range(number_of_groups):
            members = _spread((groups == group).nonzero().flatten().tolist(), most_records)
            batches = DataLoader(Subset(data, members), batch_size=rows)
            found.append(_of_group(group, (taped(batch) for batch in batches), method, state) if members else None)
    kept = [s.weighted / s.plain for s in found if s is not None and s.plain > 0]
    return [_measured(s, max(kept, default=0.0)) for s in found]


def clipped_records(
    model: nn.Module,
    data: Dataset,
    groups: Callable[[Any], Tensor],
    *,
    loss: Loss,
    method: Method,
    state: Any,
    device: torch.device | None = None,
    rows: int = ROWS,
) -> tuple[Tensor, Tensor]:
    """Private, row by row: whether a record's gradient is clipped, and the record's group."""
    clipped, group = [], []
    with _recording(model, loss, device) as taped:
        for batch in DataLoader(data, batch_size=rows):
            own = groups(batch).cpu()
            clipped.append(_clipped(method, state, taped(batch).norms, own)[0].cpu())
            group.append(own)
    return torch.cat(clipped), torch.cat(group)


@contextmanager
def _recording(model: nn.Module, loss: Loss, device: torch.device | None) -> Iterator[Callable[[Any], Tape]]:
    """A function from a batch to its tape. In evaluation mode: dropout would make the figures depend on chance."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    engine = Bookkeeping(model, parameters, loss_reduction="mean", notify=lambda _: None)
    was_training = model.training
    model.eval()
    engine.install()

    def taped(batch: Any) -> Tape:
        inputs, targets = (x.to(device) for x in batch[:2])
        engine.open(len(targets))
        backward_pass(engine, loss(model(inputs), targets))
        return engine.close()

    try:
        yield taped
    finally:
        engine.remove()
        model.train(was_training)


def _clipped(method: Method, state: Any, norms: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """Which rows are clipped, and the weights."""
    weights = method.decide(state, norms, groups).weights
    of_vanishing = method.decide(state, torch.full_like(norms, _VANISHING), groups).weights
    return weights < of_vanishing * (1 - _ROUNDING), weights


def _of_group(group: int, tapes: Iterable[Tape], method: Method, state: Any) -> _Sums:
    records = clipped = not_finite = 0
    plain: list[Tensor] = []
    weighted: list[Tensor] = []
    for tape in tapes:
        own = torch.full((tape.rows,), group, device=tape.norms.device)
        which, weights = _clipped(method, state, tape.norms, own)
        records += tape.rows
        clipped += int(which.sum())
        not_finite += int((~tape.norms.isfinite()).sum())
        plain = _plus(plain, tape.weighted_sum(torch.ones_like(weights)))
        weighted = _plus(weighted, tape.weighted_sum(weights, last=True))
    lengths = _length(plain), _length(weighted)
    return _Sums(records, clipped, not_finite, *lengths, _angle(plain, weighted, *lengths))


def _plus(total: list[Tensor], more: Sequence[Tensor]) -> list[Tensor]:
    return [a + b for a, b in zip(total, more, strict=True)] if total else [m.double() for m in more]


def _length(parts: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float(part.square().sum()) for part in parts))


def _angle(a: Sequence[Tensor], b: Sequence[Tensor], length_a: float, length_b: float) -> float | None:
    """In degrees; by the two halves of a rhombus, which is exact for small angles, where a cosine is not."""
    if not length_a or not length_b:
        return None
    across = _length([x / length_a - y / length_b for x, y in zip(a, b, strict=True)])
    along = _length([x / length_a + y / length_b for x, y in zip(a, b, strict=True)])
    return math.degrees(2 * math.atan2(across, along))


def _measured(sums: _Sums | None, most_kept: float) -> GroupGradients:
    if sums is None:
        return GroupGradients(0, *(Measure(None, NO_MEMBERS) for _ in range(3)))
    note = f"gradients that are not finite: {sums.not_finite}" if sums.not_finite else ""
    share = Measure(sums.clipped / sums.records, note)
    if not sums.plain:
        nothing = Measure(None, "the mean gradient is 0")
        return GroupGradients(sums.records, share, nothing, nothing)
    if sums.angle is None:
        return GroupGradients(sums.records, share, Measure(None, "every gradient was dropped"), Measure(0.0))
    return GroupGradients(sums.records, share, Measure(sums.angle), Measure(sums.weighted / sums.plain / most_kept))


def _spread(members: list[int], most: int) -> list[int]:
    """At most so many, evenly spread: the same ones every time."""
    return members if len(members) <= most else [members[i * len(members) // most] for i in range(most)]
