"""Which parameters are trained. Frozen ones take no noise and no budget; what they compute is a public function of a
record, so where only the last layer is trained, it is computed once a record instead of once a step.

A rule is one of the architecture's (`features`), `none`, or the user's own: `but:NAME,NAME` freezes all parameters but those
whose names begin so. In a name, `{last}` stands for the largest number at that place.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from clipwise.data.decoded import decoded
from clipwise.data.source import Array
from clipwise.models.architecture import Architecture
from clipwise.types import BadArgument

if TYPE_CHECKING:
    from clipwise.data import DataSet

ROWS = 16  # records at a time: few enough to stay in the processor's caches


class FeaturesAndHead(nn.Module):
    """A model that is one linear layer on top of features of a record."""

    def features(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def parts(self, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Records that are best computed together, with their places in x. The part of a record depends on it alone."""
        return [(torch.arange(len(x)), x)]

    @property
    def last_layer(self) -> nn.Module:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return self.last_layer(self.features(x))


def freeze(model: nn.Module, architecture: Architecture, rule: str) -> None:
    """Only what the rule leaves is trained."""
    if rule == "none":
        return
    if rule.startswith("but:"):
        kept = tuple(part.strip() for part in rule[4:].split(",") if part.strip())
    elif rule in architecture.freezing:
        kept = architecture.freezing[rule]
    else:
        known = ", ".join(("none", *architecture.freezing, "but:NAME,NAME"))
        raise BadArgument(f"freeze={rule!r} is not a rule of model={architecture.name!r}; choose one of {known}")
    names = [name for name, _ in model.named_parameters()]
    prefixes = tuple(_numbered(prefix, names) for prefix in kept)
    for prefix in prefixes:
        # A rule of ours may name a part that this model lacks (a pooler); a user's own name must be there.
        if rule.startswith("but:") and not any(name.startswith(prefix) for name in names):
            raise BadArgument(
                f"freeze={rule!r}: no parameter's name begins with {prefix!r}; they are like {names[0]!r}"
            )
    for name, p in model.named_parameters():
        p.requires_grad_(name.startswith(prefixes))
    if not any(p.requires_grad for p in model.parameters()):
        raise BadArgument(f"freeze={rule!r} leaves nothing to train; name what is to be trained")


def _numbered(prefix: str, names: list[str]) -> str:
    before, place, after = prefix.partition("{last}")
    if not place:
        return prefix
    found = [re.match(re.escape(before) + r"(\d+)" + re.escape(after), name) for name in names]
    return f"{before}{max((int(match[1]) for match in found if match), default=0)}{after}"


def trains_last_layer_only(model: nn.Module) -> bool:
    if not isinstance(model, FeaturesAndHead):
        return False
    last = {id(p) for p in model.last_layer.parameters()}
    return all(id(p) in last for p in model.parameters() if p.requires_grad)


def on_features(
    model: FeaturesAndHead,
    dataset: DataSet,
    *,
    keep: bool = False,
    on_rows: Callable[[int, int], None] = lambda *_: None,
) -> tuple[nn.Module, DataSet]:
    """The last layer, and the data set as features, so that training it there is training the model on the records.

    `keep` leaves the features in the user's cache for the next run: for data sets that are public anyway. `on_rows` hears
    how many records are done, and of how many, for the train part and then for the test part.
    """

    def features_of(data: TensorDataset) -> Array:
        x, done = data.tensors[0], 0
        found: Tensor | None = None
        for places, part in model.parts(x):
            for at, some in zip(places.split(ROWS), part.split(ROWS), strict=True):
                rows = model.features(some)
                found = rows.new_empty(len(x), *rows.shape[1:]) if found is None else found
                found[at] = rows
                done += len(some)
                on_rows(done, len(x))
        if found is None:
            raise BadArgument("data: no records; features of an empty data set cannot be computed")
        return found.numpy()

    def computed(data: TensorDataset) -> TensorDataset:
        if keep:
            found = np.array(decoded("features", _key(model, data), lambda: features_of(data)))
        else:
            found = features_of(data)
        return TensorDataset(torch.from_numpy(found), *data.tensors[1:])

    was_training = model.training
    model.eval()
    with torch.no_grad():
        train = computed(dataset.train)
        test = None if dataset.test is None else computed(dataset.test)
    model.train(was_training)
    return model.last_layer, dataclasses.replace(
        dataset, train=train, test=test, shape=tuple(train.tensors[0].shape[1:]), kind="tabular"
    )


def _key(model: FeaturesAndHead, data: TensorDataset) -> str:
    """Names the frozen weights, the records and the code: features are kept as long as all three are the same."""
    last = {id(t) for t in model.last_layer.state_dict(keep_vars=True).values()}
    digest = hashlib.sha256(inspect.getsource(inspect.getmodule(type(model)) or type(model)).encode())
    tensors = model.state_dict(keep_vars=True).items()
    for name, value in (*((n, t) for n, t in tensors if id(t) not in last), ("records", data.tensors[0])):
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        digest.update(np.ascontiguousarray(value.detach().numpy()).data)
    return digest.hexdigest()
