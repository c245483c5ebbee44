"""Train and test parts of a data set that was published without them.

By a rule on each record alone: records with equal content land on the same side, so the test part never holds what
was trained on.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from clipwise.data.source import Array

_TEST_SHARE = 5  # one in five
_KEY = b"clipwise: train or test"  # public, and the same for every run: a file is split once and for all


def held_out(contents: Iterable[str]) -> Array:
    """True for the records of the test part, about a fifth."""
    digests = (hashlib.blake2b(content.encode(), digest_size=8).digest() for content in contents)
    return np.array([int.from_bytes(digest, "big") % _TEST_SHARE == 0 for digest in digests])


def by_content(records: Iterable[bytes], sizes: Sequence[int], key: bytes) -> Array:
    """The part (0, 1, ...) of each record, by a keyed hash of its own content: parts have about these sizes, or these shares of
    what there is."""
    ends = [int(end * 2**64) for end in np.cumsum(sizes) / sum(sizes)]
    digests = (hashlib.blake2b(record, digest_size=8, key=key).digest() for record in records)
    return np.array([bisect.bisect_right(ends[:-1], int.from_bytes(digest, "big")) for digest in digests], int)


def held_out_share(records: Iterable[bytes], share: float) -> Array:
    """True for the records of the test part, each by a keyed hash of its own content: about this share of them.

    One record more is one record more on one side, and moves no other. Drawing a fixed number out of the whole would tell of
    every record on which side it is by how many others there are.
    """
    below = int(share * 2**64)
    digests = (hashlib.blake2b(record, digest_size=8, key=_KEY).digest() for record in records)
    return np.array([int.from_bytes(digest, "big") < below for digest in digests], bool)
