"""The idx format: read by hand, and refused when it is not what it says."""

import gzip

import pytest

from clipwise.data.idx import read_idx
from clipwise.types import BadArgument


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\0\x08",
        gzip.compress(b"\0\0\x08\x01\0\0\0\x09ab"),
        gzip.compress(b"\0\0\x0d\x01\0\0\0\0"),
        gzip.compress(b"\0\0\x08\x01\0\0\0\x01ab"),
        gzip.compress(b"\0\0\x08\x02" + b"\xff" * 8),
    ],
    ids=[
        "empty",
        "not gzip",
        "too short",
        "not bytes",
        "too long",
        "huge",
    ],  # gzip writes the time: as a name, it would differ by worker
)
def test_bad_idx(tmp_path, content):
    path = tmp_path / "x.gz"
    path.write_bytes(content)
    with pytest.raises(BadArgument, match="idx"):
        read_idx(path)


def test_idx_by_hand(tmp_path):
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\x02\0\0\0\x02\0\0\0\x03" + bytes(range(6))))
    assert read_idx(path).tolist() == [[0, 1, 2], [3, 4, 5]]
