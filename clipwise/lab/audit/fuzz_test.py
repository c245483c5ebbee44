"""The fuzzer finds what it is for, and finds nothing in the readers (seconds here; `clipwise fuzz` goes on for minutes)."""

from __future__ import annotations

import os
import pickle
import time

import pytest

from clipwise.lab.audit import fuzz as fuzzing
from clipwise.lab.audit.fuzz import READERS, Reader, fuzz
from clipwise.types import BadArgument


@pytest.mark.parametrize("name", READERS)
def test_the_readers_stand_it(name):
    outcome = fuzz(READERS[name](), seconds=30, seed=1, trials=150)
    assert outcome.failures == []
    assert outcome.refused > 30
    assert outcome.trials == 150


def crashes(place):
    int((place / "f").read_bytes())


def hangs(place):
    if (place / "f").read_bytes() != b"12":
        time.sleep(60)


def unpickles(place):
    try:
        pickle.loads((place / "f").read_bytes())
    except Exception as error:
        raise BadArgument("no pickle") from error


def writes(place):
    if (place / "f").read_bytes() != b"12":
        os.close(os.open(place.parent / "canary", os.O_WRONLY | os.O_CREAT))
        (place.parent / "canary").unlink()


def passes(place):
    return (place / "f").read_bytes()


@pytest.mark.parametrize(
    ("read", "content", "failure"),
    [
        (crashes, b"12", "ValueError"),
        (hangs, b"12", "hang"),
        (unpickles, b"cos\nsystem\n(S'true'\ntR.", "pickle.find_class"),
        (writes, b"12", "to write"),
        (passes, b"12", "silent"),
    ],
)
def test_each_kind_of_failure_is_seen(monkeypatch, read, content, failure):
    monkeypatch.setattr(fuzzing, "_PATIENCE", 0.05)
    outcome = fuzz(Reader("bad", {"f": content}, read, strict=True), seconds=5, seed=0, trials=12)
    assert any(failure in each for each in outcome.failures)
    assert not outcome.good


def test_the_same_seed_makes_the_same_files():
    def failures(seed):
        return fuzz(Reader("bad", {"f": b"12"}, crashes), seconds=5, seed=seed, trials=20).failures

    assert failures(3) == failures(3) != failures(4)
