"""The epochs of large corpora, part by part: blocks of consecutive pairs in random order, read in sequence.

A large corpus lies on disk in random order (see `nmt.data.batches.shards`). An epoch takes its blocks, each
of `BLOCK_PAIRS` pairs, in an order of its own and cuts them into parts. A part is read into memory whole, in
one piece a block, and is planned as if it were a corpus; a thread reads the next part meanwhile. So the
memory of a process and the time between two epochs do not depend on the size of the corpora.

A part is a pure function of the corpora, their shares, the seed, and the numbers of epoch and part. Corpora
that together are not large are one part, in the order in which they were read. Text is unknown here.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.data.encoded_pairs import EncodedPairs, Ids, InParts, RaggedIds, joined, num_taken
from nmt.errors import TrainingStopped
from nmt.runtime import derive_seed

LARGE_PAIRS = 1_000_000
"""Corpora of together more pairs are read in parts."""
BLOCK_PAIRS = 1 << 14
"""Consecutive pairs of a large corpus that are read together."""
PART_PAIRS, PART_BYTES = 1 << 18, 1 << 25
"""Pairs, and bytes of ids, that a part has at most, on average."""
TAKEN_ROWS = 1 << 12
"""Sentences that are looked up at once, each of which takes a kilobyte meanwhile."""
THREAD = "nmt-read"
"""How the name of the thread that reads a part begins."""


def epochs_of(
    corpora: Sequence[EncodedPairs], shares: Sequence[float], seed: int
) -> Callable[[int], InParts]:
    """Return the function that gives the pairs of epoch number n, from 1.

    An epoch has as many pairs as all corpora whose share is not 0, of each corpus its share.
    """
    if sum(len(pairs) for pairs, share in zip(corpora, shares, strict=True) if share) > LARGE_PAIRS:
        return LargeCorpora(corpora, shares, seed).epoch
    whole = joined(corpora, shares)
    return lambda number: whole


class LargeCorpora:
    """Corpora that are read in parts, one part ahead."""

    def __init__(self, corpora: Sequence[EncodedPairs], shares: Sequence[float], seed: int):
        chosen = [(pairs, share) for pairs, share in zip(corpora, shares, strict=True) if share]
        self._corpora, self._seed = [pairs for pairs, _ in chosen], seed
        total = sum(map(len, self._corpora))
        self._taken = num_taken(total, [share for _, share in chosen])
        num_bytes = sum(
            taken * _num_bytes(pairs) / len(pairs)
            for pairs, taken in zip(self._corpora, self._taken, strict=True)
        )
        self.num_parts = int(max(-(-sum(self._taken) // PART_PAIRS), -(-num_bytes // PART_BYTES)))
        layout = "parts", BLOCK_PAIRS, self.num_parts, self._taken, [pairs.digest for pairs in self._corpora]
        self._digest = hashlib.sha256(repr(layout).encode()).hexdigest()
        self._thread = ThreadPoolExecutor(1, THREAD)
        self._ahead: tuple[tuple[int, int], Future[EncodedPairs]] | None = None

    def epoch(self, number: int) -> LargeEpoch:
        """Return the pairs of an epoch."""
        return LargeEpoch(self, number)

    def read_ahead(self, epoch: int, number: int) -> EncodedPairs:
        """Return a part of an epoch, and begin to read the next one."""
        ahead, self._ahead = self._ahead, None
        found = ahead[1].result() if ahead else None
        if ahead is None or found is None or ahead[0] != (epoch, number):
            found = self.read(epoch, number)
        following = (epoch, number + 1) if number + 1 < self.num_parts else (epoch + 1, 0)
        self._ahead = following, self._thread.submit(self.read, *following)
        return found

    def read(self, epoch: int, number: int) -> EncodedPairs:
        """Return part `number`, from 0, of an epoch.

        Raises:
            TrainingStopped: the files of the ids can be read no more.
        """
        src, tgt, weights = list[_Piece](), list[_Piece](), list[NDArray[Any]]()
        for corpus, (pairs, taken) in enumerate(zip(self._corpora, self._taken, strict=True)):
            first, last = (taken * place // self.num_parts for place in (number, number + 1))
            for rows in self._rows(corpus, epoch, first, last):
                src.append(_Piece(pairs.src, rows))
                tgt.append(_Piece(pairs.tgt, rows))
                if pairs.weights is not None:
                    weights.append(np.asarray(pairs.weights[rows]))
        try:
            of_pairs = np.concatenate(weights) if weights else None
            return EncodedPairs(_read(src), _read(tgt), digest=self._digest, weights=of_pairs)
        except OSError as error:
            raise TrainingStopped(
                f"the training pairs cannot be read: {error.strerror}; what was saved is intact, and the "
                "same command goes on"
            ) from error

    def _rows(self, corpus: int, epoch: int, first: int, last: int) -> Iterator[slice | NDArray[np.int64]]:
        """Yield the pairs that are number `first` to `last` - 1 of those that an epoch takes of a corpus.

        These are passes over the corpus, one after the other, each in an order of its own.
        """
        size = len(self._corpora[corpus])
        while first < last:
            turn, start = divmod(first, size)
            stop = min(size, start + last - first)
            rng = np.random.default_rng(derive_seed("blocks", self._seed, epoch, corpus, turn))
            if size > LARGE_PAIRS:
                yield from _in_blocks(rng.permutation(-(-size // BLOCK_PAIRS)), size, start, stop)
            else:  # in the order in which it was read
                yield np.sort(rng.permutation(size)[start:stop])
            first += stop - start


class LargeEpoch(NamedTuple):
    """One epoch of large corpora."""

    corpora: LargeCorpora
    number: int

    @property
    def num_parts(self) -> int:
        """The number of parts, the same in each epoch."""
        return self.corpora.num_parts

    def part(self, number: int) -> EncodedPairs:
        """Return a part, from 0."""
        return self.corpora.read_ahead(self.number, number)


class _Piece(NamedTuple):
    side: RaggedIds
    rows: slice | NDArray[np.int64]


def _num_bytes(pairs: EncodedPairs) -> int:
    """Return the size of the ids of both sides."""
    return sum(len(side.ids) * side.ids[0:0].itemsize for side in (pairs.src, pairs.tgt))


def _in_blocks(order: NDArray[np.int64], size: int, start: int, stop: int) -> list[slice]:
    """Return pairs `start` to `stop` - 1 of all blocks in an `order`, as slices in the order on disk."""
    ends = np.cumsum(np.minimum(BLOCK_PAIRS, size - order * BLOCK_PAIRS))
    first, last = np.searchsorted(ends, [start, stop - 1], side="right")
    slices = []
    for place in range(int(first), int(last) + 1):
        begin, end = int(order[place]) * BLOCK_PAIRS, min((int(order[place]) + 1) * BLOCK_PAIRS, size)
        before = int(ends[place]) - (end - begin)
        slices.append(slice(begin + max(0, start - before), min(end, begin + stop - before)))
    return sorted(slices, key=lambda rows: rows.start)


def _read(pieces: Sequence[_Piece]) -> RaggedIds:
    """Return sentences of several files in memory; a slice of them is read in one piece."""
    lengths = np.concatenate([np.asarray(side.lengths[rows]) for side, rows in pieces])
    total, end = int(lengths.sum(dtype=np.int64)), 0
    ids = np.empty(total, np.result_type(*{side.ids[0:0].dtype for side, _ in pieces}))
    for side, rows in pieces:
        for found in _ids(side, rows):
            ids[end : end + len(found)] = found
            end += len(found)
    if end < total:
        raise OSError(errno.EIO, "a file of ids in the cache was cut short")
    return RaggedIds(ids, lengths)


def _ids(side: RaggedIds, rows: slice | NDArray[np.int64]) -> list[Ids]:
    if isinstance(rows, slice):
        return [side.ids[side.start(rows.start) : side.start(rows.stop)]]
    parts = (side.take(rows[first : first + TAKEN_ROWS]) for first in range(0, len(rows), TAKEN_ROWS))
    return list(itertools.chain.from_iterable(parts))
