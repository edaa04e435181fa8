"""The ids of many sentences, in memory or in files; of a file, only the ids of each batch are read.

A corpus is two flat arrays per side: all ids end to end, and the length of each sentence. Where a sentence
begins is computed from the lengths, or is in a file, too. Ids in files are read, not mapped; lengths and
beginnings in files are mapped, so that the processes of a machine share their pages. Text is unknown here.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

STRIDE = 64
"""The beginning of every sentence with a multiple of this number is stored."""

Ids = NDArray[Any]
"""Ids of any integer type."""
Lengths = NDArray[Any]
"""Tokens of each sentence, EOS included."""


class IdsLike(Protocol):
    """Ids end to end: an array, or an object that is sliced like one."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Ids: ...


class FileIds:
    """The ids in a file; each slice is read from disk anew."""

    def __init__(self, path: Path, kind: str):
        self._file = os.open(path, os.O_RDONLY)
        finalize(self, os.close, self._file)
        self._type = np.dtype(kind)

    def __len__(self) -> int:
        return os.fstat(self._file).st_size // self._type.itemsize

    def __getitem__(self, part: slice, /) -> Ids:
        start, stop, _ = part.indices(len(self))
        size = self._type.itemsize
        return np.frombuffer(os.pread(self._file, (stop - start) * size, start * size), self._type)


class InParts(Protocol):
    """The pairs of an epoch in one part, or in several that are planned and trained on one by one."""

    @property
    def num_parts(self) -> int: ...

    def part(self, number: int, /) -> EncodedPairs: ...


class JoinedIds:
    """The ids of several corpora, end to end; a slice must lie within one corpus."""

    def __init__(self, parts: Sequence[IdsLike]):
        self._parts = parts
        self._starts = np.cumsum([0, *map(len, parts)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, part: slice, /) -> Ids:
        start, stop, _ = part.indices(len(self))
        corpus = min(int(np.searchsorted(self._starts, start, side="right")), len(self._parts)) - 1
        first = int(self._starts[corpus])
        return self._parts[corpus][start - first : stop - first]


class RaggedIds:
    """The ids of many sentences, such as one side of a corpus: all of them end to end, and their lengths."""

    def __init__(self, ids: IdsLike, lengths: Lengths, starts: NDArray[np.int64] | None = None):
        """Hold the ids of all sentences; `starts` are those of `starts_of`, where they are known."""
        self.ids: Any = ids
        self.lengths = lengths
        self._known_starts = starts

    @classmethod
    def of(cls, sentences: Sequence[Sequence[int]]) -> RaggedIds:
        """Lay the ids of sentences end to end."""
        lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
        return cls(np.fromiter(itertools.chain.from_iterable(sentences), np.int32, lengths.sum()), lengths)

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        known = self._known_starts
        return starts_of(self.lengths) if known is None else known

    def __getitem__(self, i: int) -> Ids:
        """Return the ids of sentence `i`."""
        return self.take([i])[0]

    def start(self, row: int) -> int:
        """Return the index of the first id of sentence `row`, or of the end of all ids."""
        near = row // STRIDE
        return int(self._starts[near]) + int(self.lengths[near * STRIDE : row].sum(dtype=np.int64))

    def take(self, indices: Sequence[int] | NDArray[np.int64]) -> list[Ids]:
        """Return the ids of the sentences `indices`."""
        rows = np.asarray(indices, np.int64)  # (B,)
        near = rows[:, None] // STRIDE * STRIDE + np.arange(STRIDE)  # (B, STRIDE)
        before = near < rows[:, None]
        lengths = self.lengths[np.where(before, near, rows[:, None])].astype(np.int64)
        starts = self._starts[rows // STRIDE] + (lengths * before).sum(1)
        ends = starts + self.lengths[rows]
        return [self.ids[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]

    def turned(self) -> RaggedIds:
        """Return each sentence from its last id to its first, but for EOS, which stays at the end."""
        lengths = np.asarray(self.lengths, np.int64)
        ends = np.cumsum(lengths)
        places = np.arange(len(self.ids))
        mirrored = np.repeat(2 * ends - lengths - 2, lengths) - places
        mirrored[ends - 1] = ends - 1
        return RaggedIds(self.ids[mirrored], self.lengths)

    def after(self, first: int) -> RaggedIds:
        """Return each sentence with the id `first` in front of it."""
        lengths = np.asarray(self.lengths, np.int64)
        return RaggedIds(np.insert(self.ids, np.cumsum(lengths) - lengths, first), lengths + 1)

    def behind(self, firsts: Sequence[int | None]) -> RaggedIds:
        """Return each sentence behind an id of its own, or behind none; EOS alone stays alone."""
        lengths = np.asarray(self.lengths, np.int64)
        ids = np.array([-1 if first is None else first for first in firsts], np.int64)
        given = (ids >= 0) & (lengths > 1)
        starts = np.cumsum(lengths) - lengths
        return RaggedIds(np.insert(self.ids, starts[given], ids[given]), lengths + given)


def starts_of(lengths: Lengths) -> NDArray[np.int64]:
    """Return the index of the first id of every `STRIDE`th sentence, and the number of ids."""
    sums = np.add.reduceat(lengths, np.arange(0, len(lengths), STRIDE), dtype=np.int64)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sums)])


class SampleCounts(NamedTuple):
    """The number of pairs of a corpus that an epoch takes."""

    size: int
    """Pairs in the corpus."""
    taken: int
    """Pairs to take; no pair is taken more than once more often than another."""


class EncodedPairs:
    """The ids of sentence pairs, EOS included; an epoch of them is one part."""

    num_parts = 1

    def __init__(
        self,
        src: RaggedIds,
        tgt: RaggedIds,
        *,
        draws: Sequence[SampleCounts] = (),
        digest: str = "",
        weights: NDArray[Any] | None = None,
    ):
        """Hold both sides, and perhaps the weight of each pair in the loss.

        `draws` are the counts of each corpus, in order; by default every pair once. `digest` is a hash of the
        pairs, by which ranks make sure that they have the same, and a resumed run that it goes on with them.
        """
        self.src, self.tgt, self.draws, self.digest = src, tgt, draws, digest
        self.weights = weights
        self.digest_before: str | None = None
        """The digest of the buffer before this one of a stream."""

    def __len__(self) -> int:
        return len(self.tgt.lengths)

    def part(self, number: int) -> EncodedPairs:
        """Return all pairs."""
        return self

    @property
    def src_lengths(self) -> Lengths:
        """Tokens of each source."""
        return self.src.lengths

    @property
    def tgt_lengths(self) -> Lengths:
        """Tokens of each target."""
        return self.tgt.lengths


def joined(corpora: Sequence[EncodedPairs], shares: Sequence[float]) -> EncodedPairs:
    """Return several corpora as one; an epoch has as many pairs as all corpora, of each corpus its share.

    Corpora whose share is 0 are left out; of every other one at least one pair is taken.
    """
    corpora = [pairs for pairs, share in zip(corpora, shares, strict=True) if share]
    shares = [share for share in shares if share]
    if len(corpora) == 1:
        return corpora[0]
    sizes = list(map(len, corpora))
    draws = [SampleCounts(*counts) for counts in zip(sizes, num_taken(sum(sizes), shares), strict=True)]
    sides = (
        RaggedIds(JoinedIds([side.ids for side in of_all]), np.concatenate([side.lengths for side in of_all]))
        for of_all in ([pairs.src for pairs in corpora], [pairs.tgt for pairs in corpora])
    )
    digest = hashlib.sha256(repr([pairs.digest for pairs in corpora]).encode()).hexdigest()
    weights = _joined_weights([pairs.weights for pairs in corpora])
    return EncodedPairs(*sides, draws=draws, digest=digest, weights=weights)


def num_taken(total: int, shares: Sequence[float]) -> list[int]:
    """Return how many of `total` pairs an epoch takes of each corpus, given its share: at least 1."""
    return [max(1, round(total * share)) for share in shares]


def _joined_weights(parts: Sequence[NDArray[Any] | None]) -> NDArray[Any] | None:
    """Return the weights of several corpora end to end; all of them have some, or none has."""
    found = [part for part in parts if part is not None]
    return np.concatenate(found) if found else None


def windows(pairs: EncodedPairs, length: int, first: int = 0) -> EncodedPairs:
    """Return the targets as one text, cut after `first` tokens and then every `length`; sources are empty."""
    ids = pairs.tgt.ids
    cuts = np.arange(first, len(ids), length, dtype=np.int64)
    lengths = np.diff(np.unique(np.concatenate([[0], cuts, [len(ids)]])))
    nothing = RaggedIds(np.empty(0, np.int32), np.zeros(len(lengths), np.int32))
    return EncodedPairs(nothing, RaggedIds(ids, lengths), digest=pairs.digest)
