"""Sampled batches from a user's own DataLoader: same data set, collate function and workers; another sampler.

A logical batch is split into physical ones of at most `max_physical_batch` rows. An empty logical batch is delivered
as one *masked* row of zeros (with a one in front where it holds integers, so that a text has a word, and a length is at
least 1), because user code (a mean loss, an LSTM) fails on no rows; its weight is zero, so that it contributes nothing. What a Poisson sampler cannot honour (an IterableDataset, a weighted sampler, ...) is refused
by name.
"""

from __future__ import annotations

import copy
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)
from torch.utils.data.distributed import DistributedSampler

from clipwise.keystream import Key
from clipwise.sampling.collate import Collate, stacked
from clipwise.sampling.layout import Layout
from clipwise.sampling.parts import map_tensors
from clipwise.sampling.sampler import Sampler
from clipwise.types import BadArgument, Padding, Unsupported


@dataclass(frozen=True)
class PhysicalBatch:
    """What the step must know of a batch beside its records. Private: the realised size never leaves the step."""

    step: int
    rows: int  # as delivered, the masked row included
    masked: bool  # the one row stands for an empty batch
    last: bool  # of its logical batch
    padding: Padding | None = None  # where it was padded to its longest record
    lengths: tuple[int, ...] = ()  # of dimensions that follow the longest record, whether or not a row is padded


class _Collate:
    """The user's collate function, and the masked row for an empty batch. A class, so that workers can be spawned."""

    def __init__(self, collate: Collate, masked: Any):
        self._collate, self._masked = stacked if collate is default_collate else collate, masked

    def __call__(self, records: list[Any]) -> Any:
        return self._collate(records) if records else map_tensors(Tensor.clone, self._masked)


def _masked(x: Tensor) -> Tensor:
    """Zeros like a batch of one record; of integers the first is a one (a word, a length), unless it may be a class of 0."""
    zeros = torch.zeros_like(x)
    if zeros.numel() and not x.is_floating_point() and not x.is_complex() and x.dtype != torch.bool:
        zeros.view(-1)[0] = 1 if x.numel() > 1 else x.clamp(0, 1).item()
    return zeros


class _Table(Dataset[Any]):
    """A TensorDataset whose batches are taken whole: what default_collate makes of its records one by one."""

    def __init__(self, tensors: tuple[Tensor, ...]):
        self._tensors = tensors

    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        return [t[indices] for t in self._tensors] if indices else []


def _as_it_is(batch: list[Any]) -> list[Any]:
    return batch


class SampledLoader:
    """Delivers (PhysicalBatch, batch) for the steps that it is asked for."""

    def __init__(
        self,
        loader: DataLoader[Any],
        sampler: Sampler,
        key: Key,
        *,
        max_physical_batch: int | None,
        collated: tuple[Collate, Layout] | None = None,
        part: tuple[int, int] = (0, 1),
    ):
        """`collated` is what `check_collate` gives: the collate function to use, and what it pads. `part` (k, of how many) is this
        process's share of each sample: every process draws all of it, from the same key."""
        self._loader, self._sampler, self._key, self._part = loader, sampler, key, part
        self._most = max_physical_batch
        self._worker_seed = int.from_bytes(key.derive("workers").secret[:7], "big")
        collate, self._layout = collated or (loader.collate_fn, Layout())
        masked = map_tensors(_masked, collate([loader.dataset[0]]))
        self._dataset, self._collate = loader.dataset, _Collate(collate, masked)
        if type(loader.dataset) is TensorDataset and collate is default_collate:
            self._dataset, self._collate = _Table(loader.dataset.tensors), _Collate(_as_it_is, masked)

    def drawing(self, sampler: Sampler) -> SampledLoader:
        """The same records, other batches of them."""
        other = copy.copy(self)
        other._sampler = sampler
        return other

    def in_parts(self, most: int) -> SampledLoader:
        """The same batches, at most so many rows in memory at once."""
        other = copy.copy(self)
        other._most = most
        return other

    def halve(self, rows: int) -> bool:
        """From now on at most half of so many rows in memory; False where that is less than one."""
        self._most = rows // 2 or self._most
        return rows > 1

    def batches(self, steps: Iterable[int]) -> Iterator[tuple[PhysicalBatch, Any]]:
        """The batches of the given steps. Workers may draw ahead; a draw is a function of the step, so nothing is
        lost if they do."""
        waiting: deque[PhysicalBatch] = deque()

        def indices() -> Iterator[list[int]]:
            for step in steps:
                sample, (rank, of) = self._sampler.draw(self._key, step), self._part
                drawn, largest = sample[rank::of].tolist(), -(-len(sample) // of)
                most = self._most or max(1, len(drawn))
                # Every process has as many batches, of no rows at the end if need be: weights that are cut over processes are
                # put together for each batch by all of them.
                ends = range(0, largest if self._most else 1, most)
                pieces = [drawn[i : i + most] for i in ends] or [[]]
                for i, piece in enumerate(pieces):
                    waiting.append(PhysicalBatch(step, max(1, len(piece)), masked=not piece, last=i == len(pieces) - 1))
                    yield piece

        old = self._loader
        inner = DataLoader(
            self._dataset,
            batch_sampler=indices(),
            collate_fn=self._collate,
            num_workers=old.num_workers,
            pin_memory=old.pin_memory,
            timeout=old.timeout,
            worker_init_fn=old.worker_init_fn,
            multiprocessing_context=old.multiprocessing_context,
            prefetch_factor=old.prefetch_factor,
            # Its own: an iterator draws a seed for its workers, and must not move the generator that dropout draws from.
            generator=torch.Generator().manual_seed(self._worker_seed),
        )
        for batch in inner:
            info = waiting.popleft()
            yield (
                info
                if info.masked
                else replace(info, padding=self._layout.padding(batch), lengths=self._layout.sizes(batch)),
                batch,
            )


def check_loader(loader: DataLoader[Any]) -> int:
    """The number of records, after refusing what a Poisson sampler cannot honour."""
    if not isinstance(loader, DataLoader):
        raise BadArgument(
            f"loader={type(loader).__name__} is not a torch DataLoader; give the DataLoader of the training set"
        )
    if isinstance(loader.dataset, IterableDataset):
        raise Unsupported(
            "loader: an IterableDataset has no records to sample by index; use a map-style data set (with __getitem__ and __len__)"
        )
    if type(loader).__module__.startswith("accelerate."):
        raise Unsupported(
            "loader: it was prepared by accelerate, which draws and cuts batches in its own way, and the DataLoader inside it cannot be found; give "
            "the DataLoader as it was before accelerator.prepare(), and go through private.loader (docs/accelerate.md)"
        )
    if loader.batch_size is None:
        raise Unsupported(
            "loader: batch_size=None or a batch_sampler of your own decides the batches; give a DataLoader with a batch_size"
        )
    if isinstance(loader.sampler, DistributedSampler):
        raise Unsupported(
            "loader: a DistributedSampler cuts each epoch into shuffled parts, which is no Poisson sample; give every process the same DataLoader, "
            "of all records, with shuffle=True and the batch size of all processes together: Clipwise draws one sample and gives each its part"
        )
    if type(loader.sampler) not in (RandomSampler, SequentialSampler) or getattr(loader.sampler, "replacement", False):
        raise Unsupported(
            f"loader: {type(loader.sampler).__name__} draws records at other rates than Poisson sampling, and the privacy figure would not hold; "
            "give a DataLoader with shuffle=True and no sampler (for class balance, weight the loss instead)"
        )
    if loader.drop_last:
        warnings.warn(
            "clipwise: drop_last has no meaning for Poisson batches (none is the last), and is ignored", stacklevel=3
        )
    size = len(loader.dataset)  # type: ignore[arg-type]
    if size < 1:
        raise BadArgument("loader: the data set is empty; give one with at least one record")
    return size
