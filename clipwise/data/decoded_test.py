"""What is decoded once: kept whole, checked on each use, made again when it is not sound."""

import os
import time

import numpy as np
import pytest

from clipwise.data.decoded import decoded

ARRAY = np.arange(12, dtype=np.uint8).reshape(3, 4)
KEY, OTHER = "a" * 64, "b" * 64


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "clipwise" / "decoded"


def count():
    calls = []

    def make():
        calls.append(1)
        return ARRAY

    return make, calls


def test_made_once(cache):
    make, calls = count()
    for _ in range(3):
        assert np.array_equal(decoded("toy", KEY, make), ARRAY)
    assert (len(calls), len(list(cache.iterdir()))) == (1, 1)
    decoded("toy", OTHER, make)
    decoded("toys", KEY, make)
    assert len(calls) == 3


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_one_is_made_again(cache, damage):
    make, calls = count()
    decoded("toy", KEY, make)
    (path,) = cache.iterdir()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes({"flip": bytes(data), "cut": bytes(data[:-1]), "empty": b""}[damage])
    assert np.array_equal(decoded("toy", KEY, make), ARRAY)
    assert len(calls) == 2
    assert np.array_equal(decoded("toy", KEY, make), ARRAY)
    assert (len(calls), len(list(cache.iterdir()))) == (2, 1)


def test_a_failure_leaves_nothing(cache, monkeypatch):
    def fail():
        raise ValueError("cannot decode")

    with pytest.raises(ValueError, match="cannot decode"):
        decoded("toy", KEY, fail)
    assert not cache.exists() or not list(cache.iterdir())
    make, _ = count()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.warns(UserWarning, match="will be decoded again"):
        assert np.array_equal(decoded("toy", KEY, make), ARRAY)
    assert not list(cache.iterdir())


def test_what_a_dead_process_left_is_taken_away(cache):
    cache.mkdir(parents=True)
    for name, age in ((".writing-old", 7200), (".writing-new", 0)):
        (cache / name).write_bytes(b"half")
        os.utime(cache / name, (time.time() - age,) * 2)
    decoded("toy", KEY, count()[0])
    assert sorted(path.name for path in cache.iterdir() if path.name.startswith(".")) == [".writing-new"]
