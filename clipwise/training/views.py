"""Several views of each image in a step: augmentation multiplicity.

A record's loss is the mean over random crops and flips of its image, so that its gradient, of which there is one to clip, is the mean over
them: less of it is chance, and the privacy of a step is the same, whatever the number of views.

Formal guarantee: a view is made of its own image and of torch's generator alone, so that rows stay apart; sensitivity, sampling and
accounting are those of a run without views.

Reference: De et al., Unlocking High-Accuracy Differentially Private Image Classification through Scale (2022), section 3.4.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from clipwise.data import DataSet
from clipwise.models import get_architecture
from clipwise.models.freezing import FeaturesAndHead, trains_last_layer_only
from clipwise.training.options import TrainConfig
from clipwise.types import BadArgument

_SHIFT = 4  # pixels to every side, of 32x32 images as in the reference; an eighth of the width of others


class Views(Dataset[Any]):
    """The records of a TensorDataset whose images are (views, channels, height, width), made anew each time that they are read, with the
    target once a view."""

    def __init__(self, records: TensorDataset, views: int):
        self._records, self._views = records, views
        self._shift = max(1, _SHIFT * records.tensors[0].shape[-1] // 32)

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        image, target, *more = self._records[index]
        return self._seen(image), target.expand(self._views), *more

    def _seen(self, image: Tensor) -> Tensor:
        """The image moved by up to `_shift` pixels, its edges mirrored, and turned over with probability 1/2."""
        height, width = image.shape[-2:]
        wide = F.pad(image, [self._shift] * 4, mode="reflect")
        places = torch.randint(2 * self._shift + 1, (self._views, 2)).tolist()
        turned = torch.randint(2, (self._views,)).tolist()
        views = (wide[:, top : top + height, left : left + width] for top, left in places)
        return torch.stack([view.flip(-1) if turn else view for view, turn in zip(views, turned, strict=True)])


class OfViews(nn.Module):
    """A model of images on several views of each: (rows, views, ...) to (rows, classes, views). Images as they are go through as ever."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        if images.dim() == 4:
            out: Tensor = self.model(images)
            return out
        # One call a view: the engine adds up a record's gradients over calls, and its fast rules hold for each.
        return torch.stack([self.model(view) for view in images.unbind(1)], -1)


def check_views(settings: TrainConfig, dataset: DataSet, network: nn.Module) -> None:
    """Refuses views of what has none, or would not be seen."""
    if settings.views is None:
        return
    why = None
    if dataset.kind != "image":
        why = f"data={settings.data!r} holds no images"
    elif dataset.numbers or get_architecture(str(settings.model)).reconstructs:
        why = "the model learns numbers, and a crop or a flip may change what is right"
    elif isinstance(network, FeaturesAndHead) and trains_last_layer_only(network):
        why = "only a last layer is trained, on features that are computed once; add --freeze none"
    elif settings.group_counts is not None or settings.clipped_counts is not None:
        why = "group_counts and clipped_counts are of the images as they are"
    if why:
        raise BadArgument(f"views={settings.views!r}: {why}; leave views out")


def note(views: int) -> str:
    return f"in each step a record's gradient is the mean over {views} random crops and flips of its image, clipped once (views={views})"


__all__ = ["OfViews", "Views", "check_views", "note"]
