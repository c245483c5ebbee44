"""Texts as token numbers: by hand, the same everywhere, and nothing learned from them unless asked for."""

import numpy as np
import pytest

from clipwise.data.text import (
    PADDING,
    SEPARATOR,
    UNKNOWN,
    Characters,
    HashedWords,
    ListedWords,
    in_full,
    make_encoder,
    words,
)
from clipwise.types import BadArgument

DEFAULT = HashedWords(size=100, length=4)


def test_words():
    assert words("It's GREAT, isn't it?! 3.5 ﬁlms – Ünal's") == [
        *("it's", "great", "isn't", "it", "?", "!", "3", "5", "films", "ünal's"),
    ]
    assert words(" \t\n,.-") == []


def test_hashed_words_are_the_same_on_every_machine():
    # printf good | b2sum -l 64, modulo 16381, past the three reserved numbers; likewise film
    row = HashedWords(size=16384, length=5).encode(["good good film"])[0]
    assert row.tolist() == [10412, 10412, 15781, PADDING, PADDING]


def test_hashed_words_use_all_buckets_and_no_reserved_number():
    numbers = HashedWords(size=53, length=1).encode([f"w{i}" for i in range(5000)])[:, 0]
    assert set(numbers.tolist()) == set(range(3, 53))
    assert np.bincount(numbers)[3:].max() < 150  # 100 each, and a deviation of 10


def test_a_row_depends_on_its_own_text_alone():
    texts = ["one two", "three", "", "one two three four five six"]
    together = DEFAULT.encode(texts)
    assert together.shape == (4, 4)
    for i, text in enumerate(texts):
        assert DEFAULT.encode([text])[0].tolist() == together[i].tolist()
    assert together[2].tolist() == [PADDING] * 4


def test_pairs():
    encoder = ListedWords(tuple("abcdef"), length=6, origin="")
    a, b, c, d, e, f = range(3, 9)
    assert encoder.encode([("a b", "c")]).tolist() == [[a, b, SEPARATOR, c, 0, 0]]
    assert encoder.encode([("a b c d e", "f a b")]).tolist() == [[a, b, c, SEPARATOR, f, a]]
    assert encoder.encode([("", "e d x")]).tolist() == [[SEPARATOR, e, d, UNKNOWN, 0, 0]]


def test_characters():
    encoder = Characters("abcn", length=5)
    assert encoder.size == 7
    assert encoder.encode(["cañ", "bx", "abcabcabc"]).tolist() == [
        [5, 3, 6, 0, 0],
        [4, UNKNOWN, 0, 0, 0],
        [3, 4, 5, 3, 4],
    ]


def test_a_vocabulary_of_the_training_text_says_that_it_is_not_private():
    texts = ["b a b", "c b a", ("d", "zebra")]
    encoder = make_encoder("training:5", DEFAULT, texts)
    assert (encoder.size, encoder.listed, encoder.length) == (5, ("b", "a"), 4)  # two words beside the reserved numbers
    assert encoder.encode(["a zebra b"]).tolist() == [[4, UNKNOWN, 3, PADDING]]
    assert "not private" in encoder.note
    assert make_encoder("training", DEFAULT, texts[::-1]).listed == ("b", "a", "c", "d", "zebra")


def test_the_default_looks_at_no_text():
    assert make_encoder("hashed", DEFAULT, None) == DEFAULT
    assert "looks at no text" in DEFAULT.note


def test_a_vocabulary_of_a_public_text(tmp_path):
    path = tmp_path / "public:text.txt"
    path.write_text("the cat\nthe dog\n")
    encoder = make_encoder(str(path), DEFAULT, ["secret"])
    assert encoder.listed == ("the", "cat", "dog")
    assert "public:text.txt" in encoder.note
    assert "states is public" in encoder.note
    assert make_encoder(f"{path}:4", DEFAULT, ["secret"]).listed == ("the",)
    assert in_full(str(path), 9) == f"{path}:9"
    assert (in_full(None, 9), in_full("training", 9), in_full("hashed:7", 9)) == ("hashed:9", "training:9", "hashed:7")


@pytest.mark.parametrize(
    "vocabulary", ["", "gone.txt", "training:3", "hashed:0", "hashed:-5", "hashed:99999999", "hashed:x", "/"]
)
def test_no_such_vocabulary(vocabulary):
    with pytest.raises(BadArgument, match="vocabulary="):
        make_encoder(vocabulary, DEFAULT, ["a"])


def test_a_public_text_that_is_none(tmp_path):
    for content, problem in ((b"", "holds no words"), (b"\xff\xfe\x00", "cannot be read as text")):
        (tmp_path / "a.txt").write_bytes(content)
        with pytest.raises(BadArgument, match=problem):
            make_encoder(str(tmp_path / "a.txt"), DEFAULT, ["a"])
    with (tmp_path / "a.txt").open("wb") as handle:
        handle.truncate(5 * 1024**3)  # a sparse file of one line
    with pytest.raises(BadArgument, match="a line above"):
        make_encoder(str(tmp_path / "a.txt"), DEFAULT, ["a"])
