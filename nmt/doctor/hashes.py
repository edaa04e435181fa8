"""64-bit hashes of lines, computed for many lines at once, and what repeats among them in bounded memory."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.data.draws import hashes

Hashes = NDArray[np.uint64]

MAX_KEYS = 10_000_000
"""Hashes that are kept of one kind; of more, the share whose first bits are 0, and counts are estimates."""
SEEN_BYTES = 1 << 24
"""Size of the table that tells, during the reading, which lines have probably been there before."""
MAX_REMEMBERED = 5_000
"""Lines that have probably been there before whose text is kept until their number is known."""


def mixed(values: Hashes, seed: int = 0) -> Hashes:
    """Return a hash of each number; a permutation of 64-bit numbers."""
    with np.errstate(over="ignore"):
        return hashes(values, np.full(1, seed, np.uint64))


@functools.cache
def _digits() -> Hashes:
    """Return a random number for each code point."""
    return mixed(np.arange(0x110000, dtype=np.uint64), 7)


@functools.cache
def powers(length: int) -> Hashes:
    """Return the first powers of an odd number modulo 2**64."""
    factors = np.full(length, 0xD1342543DE82EF95, np.uint64)
    factors[0] = 1
    return np.multiply.accumulate(factors)


def line_hashes(codes: NDArray[np.uint32], starts: NDArray[np.int64], longest: int) -> Hashes:
    """Return a hash of each line of `codes`; a line begins at one of `starts` and is not empty.

    The hash is a polynomial in a random number for each code point, modulo 2**64: equal lines have equal
    hashes, in every process.
    """
    sizes = np.diff(starts, append=len(codes))
    position = np.arange(len(codes)) - np.repeat(starts, sizes)
    terms = _digits()[codes] * powers(longest)[position]
    return mixed(np.add.reduceat(terms, starts))


def combined(first: Hashes, second: Hashes) -> Hashes:
    """Return a hash of each pair of hashes, in this order."""
    return mixed(first * np.uint64(3) + mixed(second, 11))


class Group(NamedTuple):
    """A line that is there several times."""

    times: int
    variants: int
    """Different lines on the other side."""
    first: int
    """Number of the line where it is first, from 1."""
    texts: tuple[str, str]


class Repetition(NamedTuple):
    """What repeats among lines; scaled up where only a share of the hashes was kept."""

    repeated: int
    """Lines that have been there before."""
    ambiguous: int
    """Different lines with several different lines on the other side."""
    variants: int
    """Different lines on the other side beyond the first, over all lines."""
    groups: list[Group]
    """The lines that are there most often, as far as their text is known."""
    is_exact: bool


class Repeats:
    """A finder of what repeats; texts of the lines that are there most often are kept along the way."""

    def __init__(self) -> None:
        self._keys: list[Hashes] = []
        self._others: list[Hashes] = []
        self._rows: list[NDArray[np.int64]] = []
        self._held = 0
        self._dropped_bits = 0
        self._seen = np.zeros(SEEN_BYTES, np.uint8)
        self._texts: dict[int, tuple[str, str]] = {}

    def add(
        self,
        keys: Hashes,
        others: Hashes,
        rows: NDArray[np.int64],
        sides: tuple[list[str], list[str]],
        places: NDArray[np.int64],
    ) -> None:
        """Add the hashes of lines, those of the other side, the numbers of the lines and their texts.

        `places` are the indexes of the lines in `sides`.
        """
        again = self._been_there(keys)
        for place in np.flatnonzero(again).tolist():
            if len(self._texts) >= MAX_REMEMBERED:
                break
            row = int(places[place])
            self._texts.setdefault(int(keys[place]), (sides[0][row], sides[1][row]))
        chosen = self._chosen(keys)
        self._keys.append(keys[chosen])
        self._others.append(others[chosen])
        self._rows.append(rows[chosen])
        self._held += int(chosen.sum())
        while self._held > MAX_KEYS:
            self._thin_out()

    def _been_there(self, keys: Hashes) -> NDArray[np.bool_]:
        """Return which keys were probably there before, and note all of them."""
        slots = (keys >> np.uint64(3)) % np.uint64(SEEN_BYTES)
        bits = np.uint8(1) << (keys & np.uint64(7)).astype(np.uint8)
        before = (self._seen[slots] & bits) > 0
        _, first = np.unique(keys, return_index=True)
        within = np.ones(len(keys), bool)
        within[first] = False
        np.bitwise_or.at(self._seen, slots, bits)
        return before | within

    def _chosen(self, keys: Hashes) -> NDArray[np.bool_]:
        return (keys >> np.uint64(64 - self._dropped_bits)) == 0 if self._dropped_bits else keys == keys

    def _thin_out(self) -> None:
        """Keep the half of the hashes whose next bit is 0."""
        self._dropped_bits += 1
        for number, keys in enumerate(self._keys):
            chosen = self._chosen(keys)
            self._keys[number] = keys[chosen]
            self._others[number] = self._others[number][chosen]
            self._rows[number] = self._rows[number][chosen]
        self._held = sum(map(len, self._keys))

    def found(self, most: int) -> Repetition:
        """Return what repeats, with at most `most` groups, and forget everything."""
        keys, others = _joined(self._keys, np.uint64), _joined(self._others, np.uint64)
        rows = _joined(self._rows, np.int64)
        self._keys, self._others, self._rows = [], [], []
        order = np.lexsort((rows, others, keys))
        keys, others, rows = keys[order], others[order], rows[order]
        new = np.ones(len(keys), bool)
        new[1:] = keys[1:] != keys[:-1]
        different = new.copy()
        different[1:] |= others[1:] != others[:-1]
        starts = np.flatnonzero(new)
        counts = np.diff(starts, append=len(keys))
        variants = np.add.reduceat(different, starts, dtype=np.int64) if len(keys) else counts
        first = np.minimum.reduceat(rows, starts) if len(keys) else rows
        scale = 1 << self._dropped_bits
        several = np.flatnonzero(counts > 1)
        ranked = several[np.lexsort((first[several], -counts[several]))]
        groups = list[Group]()
        for place in ranked.tolist():
            if len(groups) == most:
                break
            if (texts := self._texts.get(int(keys[starts[place]]))) is not None:
                groups.append(Group(int(counts[place]), int(variants[place]), int(first[place]), texts))
        repeated = int((counts - 1).sum()) * scale
        ambiguous, further = int((variants > 1).sum()) * scale, int((variants - 1).sum()) * scale
        return Repetition(repeated, ambiguous, further, groups, scale == 1)


def _joined(parts: list[Any], kind: Any) -> Any:
    return np.concatenate(parts) if parts else np.empty(0, kind)
