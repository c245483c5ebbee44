"""Collate functions that keep records apart, in all their layouts, and those that do not."""

import pickle
import random
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

from clipwise.sampling import check_collate, pad_to
from clipwise.types import Unsupported


def texts(rows=40, shortest=2, longest=12):
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(shortest, longest + 1, (rows,), generator=generator).tolist()
    return [(torch.randint(1, 30, (n,), generator=generator), i % 3) for i, n in enumerate(sizes)]


def look(collate, data=None, **options):
    return check_collate(DataLoader(data or texts(), batch_size=4, collate_fn=collate), **options)[1]


def padded(records, **options):
    return pad_sequence([x for x, _ in records], batch_first=True, **options), torch.tensor([y for _, y in records])


def as_dict(records):
    x, y = padded(records)
    return {"ids": x, "mask": (x != 0).long(), "labels": y, "lengths": torch.tensor([len(t) for t, _ in records])}


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


@dataclass
class Batch:
    x: Tensor
    y: Tensor
    note: str = "mine"


def left(records):
    x, y = padded([(x.flip(0), y) for x, y in records])
    return x.flip(1), y


def images(records):
    height, width = (max(x.shape[d] for x, _ in records) for d in (1, 2))
    rows = [F.pad(x, (0, width - x.shape[2], 0, height - x.shape[1])) for x, _ in records]
    return torch.stack(rows), torch.tensor([y for _, y in records])


def masked_words(records):
    """As for language models: drawn for the whole batch at once."""
    x, y = padded(records)
    chosen = torch.bernoulli(torch.full(x.shape, 0.15)).bool() & (x != 0)
    return torch.where(chosen, torch.randint(30, x.shape), x), y


PICTURES = [(torch.randn(3, 4 + i % 3, 5 + i % 2), i % 2) for i in range(20)]


@pytest.mark.parametrize(
    ("collate", "data", "dims", "fills"),
    [
        (padded, None, [(1,)], [0]),
        (lambda r: (pad_sequence([x for x, _ in r]), torch.tensor([y for _, y in r])), None, [(0,)], [0]),
        (left, None, [(1,)], [0]),
        (as_dict, None, [(1,), (1,)], [0, 0]),
        (lambda r: Pair(*padded(r)), None, [(1,)], [0]),
        (lambda r: Batch(*padded(r)), None, [(1,)], [0]),
        (lambda r: [t.numpy() for t in padded(r)], None, [(1,)], [0]),
        (lambda r: padded(r, padding_value=7), None, [(1,)], [7]),
        (images, PICTURES, [(2, 3)], [0.0]),
        (padded, [(torch.arange(1, 6), 0)] * 10, [(1,)], [0]),  # equally long: a cut copy shows it
        (padded, texts(1), [(1,)], [0]),
        (lambda r: ([x for x, _ in r], ["a" * y for _, y in r], "mine", len(r)), None, [], []),
        (masked_words, None, [(1,)], [0]),
        (lambda r: padded([(x.flip(0) if random.random() < 0.5 else x, y) for x, y in r]), None, [(1,)], [0]),
        (lambda r: padded([(x[np.random.permutation(len(x))], y) for x, y in r]), None, [(1,)], [0]),
        (default_collate, Subset(TensorDataset(torch.randn(9, 3)), [1, 2, 5]), [], []),
    ],
)
def test_what_keeps_records_apart_goes_through(collate, data, dims, fills):
    layout = look(collate, data)
    assert [p.dims for p in layout.padded] == dims
    assert [p.fill for p in layout.padded] == fills
    assert layout.leading is (collate is left)
    assert [path[-1] for path in layout.lengths] == ([("key", "lengths")] if collate is as_dict else [])


class Running:
    mean = 0.0

    def __call__(self, records):
        x, y = padded(records)
        self.mean = 0.9 * self.mean + 0.1 * float(x.float().mean())
        return x - self.mean, y


def mixed(records, order, share=0.7):
    x, y = padded(records)
    return share * x + (1 - share) * x[order(len(x))], y


def sometimes(records):
    return mixed(records, lambda n: random.sample(range(n), n)) if random.random() < 0.5 else mixed(records, range, 1.0)


class TakenTogether(Dataset):
    """Batches that the data set itself makes."""

    def __init__(self, centred):
        self.centred = centred

    def __len__(self):
        return 30

    def __getitem__(self, i):
        return torch.full((3,), float(i))

    def __getitems__(self, indices):
        rows = [self[i] for i in indices]
        return [x - self.centred * sum(rows) / len(rows) for x in rows]


@pytest.mark.parametrize(
    ("collate", "data", "message"),
    [
        (lambda r: mixed(r, torch.randperm), None, r"batch\[0\]"),
        (lambda r: mixed(r, np.random.permutation), None, r"batch\[0\]"),
        (sometimes, None, r"batch\[0\]"),
        (lambda r: (padded(r)[0] / padded(r)[0].max(), padded(r)[1]), None, r"batch\[0\]"),
        (lambda r: (F.normalize(padded(r)[0].float(), dim=0), padded(r)[1]), None, r"batch\[0\]"),
        (lambda r: padded([(x[: min(len(t) for t, _ in r)], y) for x, y in r]), None, r"batch\[0\]"),
        (lambda r: padded(sorted(r, key=lambda record: -len(record[0]))), None, "another order"),
        (lambda r: padded(sorted(r, key=lambda record: record[1])), None, "another order"),
        (lambda r: (padded(r)[0], padded(r)[1].roll(1)), None, r"batch\[1\]"),
        (lambda r: (*padded(r), sum(len(x) for x, _ in r)), None, r"batch\[2\]"),
        (lambda r: (*padded(r), padded(r)[0].float().mean()), None, r"batch\[2\]"),
        (lambda r: padded(r[:2]), None, "no dimension"),
        (lambda r: padded(r, padding_value=max(len(x) for x, _ in r)), None, "padded with a value"),
        (
            lambda r: (torch.cat([x for x, _ in r]), torch.tensor([len(x) for x, _ in r]).cumsum(0)),
            None,
            "no dimension",
        ),
        (lambda r: pack_sequence([x for x, _ in r], enforce_sorted=False), None, "enforce_sorted=False"),
        (Running(), None, r"batch\[0\]"),
        (default_collate, TakenTogether(centred=True), "the whole"),
    ],
)
def test_what_mixes_records_is_refused_without_their_values(collate, data, message):
    with pytest.raises(Unsupported, match=message) as refusal:
        look(collate, data)
    assert "tensor(" not in str(refusal.value)


def test_a_data_set_that_makes_batches_row_by_row_goes_through():
    assert look(default_collate, TakenTogether(centred=False)).padded == ()


class Untouched(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, i):
        raise AssertionError("the look is not needed here")


def test_no_record_is_read_where_nothing_has_to_be_shown():
    assert look(default_collate, Untouched()).padded == ()


def test_generators_and_records_stay_as_they_are():
    data = [{"x": torch.ones(2), "y": 1} for _ in range(9)]

    def emptied(records):
        return torch.stack([r.pop("x") for r in records]) + random.random()

    random.seed(3)
    torch.manual_seed(3)
    look(emptied, data)
    assert all(set(r) == {"x", "y"} for r in data)
    first = random.random(), torch.rand(())
    random.seed(3)
    torch.manual_seed(3)
    assert first == (random.random(), torch.rand(()))


def test_the_row_that_is_padded_most():
    records = [(torch.arange(1, n + 1), 0) for n in (4, 9, 2, 9)]
    layout = look(as_dict, records)
    padding = layout.padding(as_dict(records))
    assert (padding.row, padding.own_length, padding.leading) == (2, {9: 2}, False)
    assert layout.padding(as_dict(records[1:2])) is None
    # A word that looks like padding is none where the mask or the length says so.
    batch = as_dict(records)
    batch["ids"][2] = 0
    assert layout.padding(batch).own_length == {9: 2}
    batch["mask"][2] = 0
    assert layout.padding(batch).own_length == {9: 2}
    batch["lengths"][2] = 0
    assert layout.padding(batch).own_length == {9: 0}
    turned = look(left, records).padding(left(records))
    assert (turned.row, turned.own_length, turned.leading) == (2, {9: 2}, True)


def test_a_batch_of_another_shape_than_was_seen_is_refused():
    def by_parity(records):  # grows for records that the look does not meet
        wide = any(int(x[0]) % 2 for x in records)
        return torch.stack([F.pad(x, (0, 3 if wide else 0)) for x in records])

    even = [torch.full((2,), 2.0 * i) for i in range(10)]
    layout = look(by_parity, even)
    layout.padding(by_parity(even[:3]))
    with pytest.raises(Unsupported, match="pad_to=LENGTH"):
        layout.padding(by_parity([torch.ones(2)]))


@pytest.mark.parametrize("length", [3, 12, 40])
@pytest.mark.parametrize("collate", [as_dict, left, images])
def test_every_batch_has_the_public_length(collate, length):
    data = PICTURES if collate is images else texts()
    fixed = pad_to(collate, length)
    for records in (data[:1], data[:5], data):
        made, plain = fixed(records), collate(records)
        if collate is as_dict:
            assert made["ids"].shape == made["mask"].shape == (len(records), length)
            assert torch.equal(made["lengths"], plain["lengths"].clamp(max=length))
            assert torch.equal(made["labels"], plain["labels"])
            for (x, _), row in zip(records, made["ids"], strict=True):
                assert torch.equal(row[: min(length, len(x))], x[:length])
        elif collate is left:
            for (x, _), row in zip(records, made[0], strict=True):
                assert len(row) == length
                assert torch.equal(row[length - min(length, len(x)) :], x[-length:])
        else:
            assert made[0].shape == (len(records), 3, length, length)
    assert pickle.loads(pickle.dumps(fixed))(data[:2])


def test_a_length_is_asked_for_once_more():
    """The look at a collate function that pads to a public length finds nothing that follows its records."""
    assert look(pad_to(padded, 7)).padded == ()
    assert look(as_dict, pad_to=7).padded == ()
    with pytest.raises(Unsupported, match="no tensor of a batch"):
        pad_to(default_collate, 5)([torch.tensor(1), torch.tensor(2)])
