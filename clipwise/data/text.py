"""From text to rows of token numbers of one fixed length, without a look at private text unless the user asks for it.

A vocabulary that is read off the protected training text is not private: a rare word in it shows that somebody's record
holds that word. So the default hashes words into a fixed number of buckets, which needs no text at all. A list of words
can come from a public text, or, by name, from the training text; `note` says which, for the privacy statement.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Protocol

import numpy as np

from clipwise.data.lines import bounded_lines
from clipwise.data.source import Array, sha256_of
from clipwise.types import BadArgument

Text = str | tuple[str, str]  # a pair is two texts with a separator between them

PADDING, UNKNOWN, SEPARATOR = 0, 1, 2  # numbers of tokens that stand for no word
_RESERVED = 3  # the three above
_MOST_TOKENS = 1_000_000  # in a vocabulary: more is a typing error
_BY_NAME = ("hashed", "training")
_WORD = re.compile(r"\w+(?:'\w+)?|[!?]")  # words, contractions whole; of the punctuation only what carries a mood


class Encoder(Protocol):
    """Makes token numbers of texts. A tokeniser of another library joins by these five names."""

    @property
    def size(self) -> int: ...  # token numbers lie in 0..size-1
    @property
    def padding(self) -> int: ...
    @property
    def length(self) -> int: ...  # tokens in a record, a public figure: longer texts are cut, shorter ones padded
    @property
    def note(self) -> str: ...  # where the vocabulary comes from, for the privacy statement
    def encode(self, texts: Sequence[Text]) -> Array: ...  # (texts, length), int64


def words(text: str) -> list[str]:
    """The words of a text, in small letters."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


@dataclass(frozen=True)
class HashedWords:
    """Each word's number is its hash: no vocabulary is stored or learned, and words that collide share a number."""

    size: int
    length: int
    padding: int = PADDING

    @property
    def note(self) -> str:
        return (
            f"vocabulary: words hashed into {self.size - _RESERVED} buckets, a public rule that looks at no text; "
            f"records cut or padded to {self.length} tokens"
        )

    def encode(self, texts: Sequence[Text]) -> Array:
        buckets = self.size - _RESERVED

        @cache
        def number(word: str) -> int:  # blake2b: the same on every machine, unlike Python's own hash
            digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
            return _RESERVED + int.from_bytes(digest, "big") % buckets

        return _fill(texts, lambda text: [number(word) for word in words(text)], self.length)


@dataclass(frozen=True)
class ListedWords:
    """Words of a list have numbers of their own, all others share one."""

    listed: tuple[str, ...] = field(repr=False)
    length: int
    origin: str  # for the note
    padding: int = PADDING

    @property
    def size(self) -> int:
        return _RESERVED + len(self.listed)

    @property
    def note(self) -> str:
        return f"vocabulary: {self.origin}; records cut or padded to {self.length} tokens"

    def encode(self, texts: Sequence[Text]) -> Array:
        numbers = {word: _RESERVED + i for i, word in enumerate(self.listed)}
        return _fill(texts, lambda text: [numbers.get(word, UNKNOWN) for word in words(text)], self.length)


@dataclass(frozen=True)
class Characters:
    """One token a character of a fixed, public alphabet; accents are taken off first, other characters share one number."""

    alphabet: str
    length: int
    padding: int = PADDING

    @property
    def size(self) -> int:
        return _RESERVED + len(self.alphabet)

    @property
    def note(self) -> str:
        return f"alphabet: {len(self.alphabet)} characters, a public list; records cut or padded to {self.length} characters"

    def encode(self, texts: Sequence[Text]) -> Array:
        numbers = {letter: _RESERVED + i for i, letter in enumerate(self.alphabet)}

        def row(text: str) -> list[int]:
            plain = (c for c in unicodedata.normalize("NFD", text) if unicodedata.category(c) != "Mn")
            return [numbers.get(c, UNKNOWN) for c in plain]

        return _fill(texts, row, self.length)


def in_full(vocabulary: str | None, size: int) -> str:
    """The user's words with nothing left to a default: `hashed:16384`, or a whole path with a size."""
    vocabulary = "hashed" if vocabulary is None else vocabulary
    name, _, number = vocabulary.rpartition(":")
    if not (name and number.isdecimal()):
        name, number = vocabulary, str(size)
    return f"{name if name in _BY_NAME else Path(name).resolve()}:{number}"


def make_encoder(vocabulary: str, default: Encoder, training: Sequence[Text]) -> Encoder:
    """The encoder that the user's words name: `hashed`, `training` or the path of a public text, each perhaps with a size
    (`hashed:8192`). The size counts every token number, the three reserved ones too."""
    name, _, number = in_full(vocabulary, default.size).rpartition(":")
    size = int(number)
    if not _RESERVED < size <= _MOST_TOKENS:
        raise BadArgument(f"vocabulary={vocabulary!r}: a size of {size} is not in {_RESERVED + 1}..{_MOST_TOKENS}")
    if name == "hashed":
        return HashedWords(size, default.length)
    most = size - _RESERVED
    if name == "training":
        listed = _frequent((part for text in training for part in _parts(text)), most)
        origin = (
            f"the {len(listed)} most frequent words of the protected training text. **This list is not private**: it is outside "
            "the guarantee, and a word in it can show what a record holds"
        )
        return ListedWords(listed, default.length, origin)
    path = Path(name)
    if not path.is_file():
        raise BadArgument(
            f"vocabulary={vocabulary!r} is not known and not a file; give hashed, training, or the path of a public text, "
            "each perhaps with a size (hashed:8192)"
        )
    listed = _frequent(bounded_lines(path), most)
    if not listed:
        raise BadArgument(f"vocabulary={vocabulary!r}: the file holds no words; give a text in UTF-8")
    origin = f"the {len(listed)} most frequent words of {path.name} (sha256 {sha256_of(path)}), which the user states is public"
    return ListedWords(listed, default.length, origin)


def _frequent(texts: Iterable[str], most: int) -> tuple[str, ...]:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(words(text))
    # Ties in the order of the words themselves, so that the list does not depend on the order of the records.
    return tuple(sorted(counts, key=lambda word: (-counts[word], word))[:most])


def _parts(text: Text) -> Sequence[str]:
    return (text,) if isinstance(text, str) else text


def _fill(texts: Sequence[Text], numbers: Callable[[str], Sequence[int]], length: int) -> Array:
    """Rows of `length` token numbers, padded at the end. The first text of a pair gets half the row at most."""
    rows = np.full((len(texts), length), PADDING, np.int64)
    for row, text in zip(rows, texts, strict=True):
        if isinstance(text, str):
            tokens = numbers(text)[:length]
        else:
            tokens = [*numbers(text[0])[: length // 2], SEPARATOR, *numbers(text[1])][:length]
        row[: len(tokens)] = tokens
    return rows
