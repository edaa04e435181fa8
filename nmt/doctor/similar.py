"""Pairs of a sample that are nearly equal: by min-hash of character shingles (Broder 1997), then verified.

A shingle is five characters of the letters and digits of source and target in lower case. Two pairs are
similar when they share 80% of their shingles; pairs with all of them in common are duplicates, not here.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nmt.data.parallel_text import ParallelText
from nmt.doctor.characters import MAX_LOOKED, tables
from nmt.doctor.hashes import Hashes, combined, mixed, powers

SHINGLE = 5
SIMILAR = 0.8
"""Share of common shingles from which two pairs are similar."""
BANDS, BAND_ROWS = 8, 4
"""Pairs whose min-hashes agree in all rows of a band are compared; at 80% that finds 98% of them."""


def similar_pairs(text: ParallelText) -> list[tuple[int, int, float]]:
    """Return rows of `text` with a similar row before them, that row, and the share of common shingles."""
    sets = [shingles(f"{src}\n{tgt}") for src, tgt in zip(text.src, text.tgt, strict=True)]
    rows = [row for row, one in enumerate(sets) if len(one)]
    if len(rows) < 2:
        return []
    signatures = _signatures([sets[row] for row in rows])
    found = dict[int, tuple[int, float]]()
    for band in range(BANDS):
        keys = signatures[:, band * BAND_ROWS]
        for other in range(1, BAND_ROWS):
            keys = combined(keys, signatures[:, band * BAND_ROWS + other])
        order = np.argsort(keys, kind="stable")
        head = 0
        for place in range(1, len(order)):
            if keys[order[place]] != keys[order[head]]:
                head = place
                continue
            first, second = rows[order[head]], rows[order[place]]
            share = _common(sets[first], sets[second])
            if SIMILAR <= share < 1.0 and share > found.get(second, (0, 0.0))[1]:
                found[second] = first, share
    return [(row, first, share) for row, (first, share) in sorted(found.items())]


def shingles(text: str) -> Hashes:
    """Return the different shingles of a text, each as a hash."""
    codes = np.frombuffer(text[: 2 * MAX_LOOKED].encode("utf-32-le", "surrogatepass"), np.uint32)
    plain = tables().plain[codes]
    plain = plain[(plain > 0) & (plain != 10)].astype(np.uint64)
    if len(plain) < SHINGLE:
        return np.empty(0, np.uint64)
    windows = np.lib.stride_tricks.sliding_window_view(plain, SHINGLE)
    return np.unique(mixed((windows * powers(SHINGLE)).sum(axis=1, dtype=np.uint64)))


def _signatures(sets: list[Hashes]) -> Hashes:
    """Return the least of each of several hashes of the shingles of each text: (texts, hashes)."""
    every = np.concatenate(sets)
    starts = np.cumsum([0, *map(len, sets)])[:-1]
    columns = [np.minimum.reduceat(mixed(every, seed), starts) for seed in range(1, BANDS * BAND_ROWS + 1)]
    return np.stack(columns, axis=1)


def _common(one: Hashes, other: Hashes) -> float:
    both = len(np.intersect1d(one, other, assume_unique=True))
    return both / (len(one) + len(other) - both)


class Sample:
    """Pairs of a stream, chosen at random by a hash of the seed and of their number: the smallest hashes."""

    def __init__(self, most: int, seed: int):
        self._most, self._seed = most, seed
        self._pairs = list[tuple[int, int, str, str]]()
        self._limit = 1 << 64

    def add(self, src: list[str], tgt: list[str], lines: NDArray[np.int64]) -> None:
        """Offer pairs with their numbers."""
        chances = mixed(lines.astype(np.uint64), self._seed + 1)
        rows = np.flatnonzero(chances < self._limit) if self._limit < 1 << 64 else np.arange(len(lines))
        for row in rows.tolist() if self._most else ():
            texts = src[row][:MAX_LOOKED], tgt[row][:MAX_LOOKED]
            self._pairs.append((int(chances[row]), int(lines[row]), *texts))
        if len(self._pairs) > 2 * self._most:
            self._prune()

    def _prune(self) -> None:
        self._pairs.sort()
        del self._pairs[self._most :]
        if len(self._pairs) == self._most > 0:
            self._limit = self._pairs[-1][0]

    def taken(self) -> tuple[list[int], ParallelText]:
        """Return the numbers of the chosen pairs and the pairs, in the order of the stream."""
        self._prune()
        pairs = sorted(self._pairs, key=lambda pair: pair[1])
        return [pair[1] for pair in pairs], ParallelText([p[2] for p in pairs], [p[3] for p in pairs])
