"""Sentence pairs as text, and streams of them.

A split is a stream of chunks, so that a corpus may be larger than memory; only splits to evaluate on, which
are small, are read whole. No line contains a line feed or a NUL, so that one sentence is one line in every
file that is written.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from nmt.errors import UserError

CHUNK_PAIRS = 50_000
"""Pairs of a stream that exist as Python strings at a time."""
MAX_LINE_CHARS = 1 << 20
"""Longest line that is read whole. A longer one has `MAX_LINE_CHARS` + 1 characters, its beginning, and must
neither be trained nor scored on."""
LEAST_WEIGHT = 1e-20
"""The least weight of a pair but for 0, and its inverse the largest one: sums of float32 hold them."""
ONE_FOR_EACH = "it needs one for each, in the same order, also where a blank line ends a document"
"""What an error says of numbers beside the lines of a corpus, of which there are too few or too many."""
MAX_SHOWN_CHARS = 30
"""Characters of a name or a value of a corpus that an error shows."""

T = TypeVar("T")

_UNUSUAL = re.compile("[\r\n\0\ud800-\udfff]")
_LINE_BREAKS = re.compile("[\r\n\0]+")
_SURROGATES = re.compile("[\ud800-\udfff]")


class Split(Enum):
    """The three parts of a parallel corpus."""

    train = "train"
    validation = "validation"
    test = "test"


@dataclass
class ParallelText:
    """Sentence pairs: line i of `src` and line i of `tgt` are translations of each other."""

    src: list[str] = field(default_factory=list)
    tgt: list[str] = field(default_factory=list)
    references: list[list[str]] = field(default_factory=list)
    """Further references of the lines, to score against: each a list like `tgt`."""
    weights: list[float] = field(default_factory=list)
    """The weight of each pair in the loss of a training; empty: 1 each."""

    def __len__(self) -> int:
        return len(self.src)

    def part(self, rows: slice) -> ParallelText:
        """Return some pairs to train on, without further references."""
        return ParallelText(self.src[rows], self.tgt[rows], weights=self.weights[rows])

    def first(self, count: int | None) -> ParallelText:
        """Return the first `count` pairs, with all that they have; None: all."""
        references = [one[:count] for one in self.references]
        return ParallelText(self.src[:count], self.tgt[:count], references, self.weights[:count])

    def spread(self, count: int) -> ParallelText:
        """Return `count` pairs at even distances, with all that they have, or all where there are fewer."""
        if count >= len(self):
            return self
        rows = [len(self) * number // count for number in range(count)]
        src, tgt, *references = (
            [side[row] for row in rows] for side in (self.src, self.tgt, *self.references)
        )
        return ParallelText(src, tgt, references, [self.weights[row] for row in rows if self.weights])

    def kept(self, mask: Sequence[Any] | Any) -> ParallelText:
        """Return the pairs to train on whose value in `mask` is true."""
        src, tgt = (list(itertools.compress(side, mask)) for side in (self.src, self.tgt))
        return ParallelText(src, tgt, weights=list(itertools.compress(self.weights, mask)))

    def extend(self, other: ParallelText) -> None:
        """Add the pairs of another text, without further references."""
        if self.weights or other.weights:
            self.weights = self.all_weights + other.all_weights
        self.src += other.src
        self.tgt += other.tgt

    @property
    def all_weights(self) -> list[float]:
        """The weight of each pair."""
        return self.weights or [1.0] * len(self)


class PairStream(NamedTuple):
    """One split as chunks of pairs, aligned and unfiltered, that can be read any number of times."""

    stamp: Callable[[], str]
    """A function that names the content without reading it: equal stamps mean equal pairs."""
    chunks: Callable[[], Iterator[ParallelText]]
    """A function that yields the pairs from the first to the last, chunk by chunk."""

    def read(self) -> ParallelText:
        """Read all pairs at once."""
        return concatenated(self.chunks())


def joined_streams(sources: Sequence[PairStream], between: ParallelText | None = None) -> PairStream:
    """Return several streams as one, one after the other, perhaps with pairs between any two."""

    def chunks() -> Iterator[ParallelText]:
        for number, source in enumerate(sources):
            if number and between is not None:
                yield between
            yield from source.chunks()

    def stamp() -> str:
        return hashlib.sha256(repr([source.stamp() for source in sources]).encode()).hexdigest()

    return PairStream(stamp, chunks)


def concatenated(texts: Iterable[ParallelText]) -> ParallelText:
    """Return the pairs of all `texts`, one after the other."""
    whole = ParallelText()
    for text in texts:
        whole.extend(text)
    return whole


def in_blocks(chunks: Iterable[ParallelText], size: int) -> Iterator[ParallelText]:
    """Cut the pairs of all chunks into blocks of `size` pairs, and a last one of fewer."""
    rest = ParallelText()
    for chunk in chunks:
        rest.extend(chunk)
        while len(rest) >= size:
            yield rest.part(slice(size))
            rest = rest.part(slice(size, None))
    if len(rest):
        yield rest


def chunked(items: Iterable[T]) -> Iterator[list[T]]:
    """Yield lists of `CHUNK_PAIRS` items, the last one perhaps shorter."""
    remaining = iter(items)
    while chunk := list(itertools.islice(remaining, CHUNK_PAIRS)):
        yield chunk


def stamp_of_files(files: Iterable[Path], *options: object) -> str:
    """Return a hash of the paths, sizes and times of change of files, and of the `options` of reading them.

    It covers the time of the last change of the inode, which no program can set back.
    """
    states = [(str(file.resolve()), file.stat()) for file in files]
    described = [(path, state.st_size, state.st_mtime_ns, state.st_ctime_ns) for path, state in states]
    return hashlib.sha256(repr((described, options)).encode()).hexdigest()


def weight_of(value: str, where: str) -> float:
    """Return the weight of a pair that `value` spells; raise `UserError` at `where` if it is none."""
    try:
        weight = float(value)
    except ValueError:
        weight = math.nan
    if weight != 0.0 and not LEAST_WEIGHT <= weight <= 1.0 / LEAST_WEIGHT:
        limits = f"0, or from {LEAST_WEIGHT:g} to {1.0 / LEAST_WEIGHT:g}"
        limits = limits if 0.0 < weight < math.inf else "a number from 0"
        raise UserError(f"{where}: a weight must be {limits}, but is {value[:MAX_SHOWN_CHARS]!r}")
    return weight


def known_weight(value: str) -> float:
    """Return the weight that a checked value spells; 1 in a blank row, or in one too long to be a pair."""
    return float(value) if value and len(value) <= MAX_LINE_CHARS else 1.0


def one_line(text: str) -> str:
    """Return `text` with a space for line breaks and NULs, and U+FFFD for lone surrogates."""
    return _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", _LINE_BREAKS.sub(" ", text))


def one_line_each(texts: list[str]) -> list[str]:
    """Return `one_line` of each text; fast where no text needs a change."""
    return [one_line(text) for text in texts] if _UNUSUAL.search("".join(texts)) else texts
