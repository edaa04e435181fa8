"""Random numbers that are hashes of a key and a counter: the same on every machine, in any order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Uint64s = NDArray[np.uint64]
T = TypeVar("T")

GOLDEN, FACTORS = 0x9E3779B97F4A7C15, ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""The constants of SplitMix64."""


def hashes(keys: Uint64s, counters: Uint64s) -> Uint64s:
    """Return output number `counters` of the generator SplitMix64 (Steele et al. 2014) seeded with `keys`."""
    x = keys + (counters + np.uint64(1)) * np.uint64(GOLDEN)
    for shift, factor in FACTORS:
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(31))


class Draws:
    """The outputs of the generator seeded with one key, one after the other, without numpy."""

    def __init__(self, key: int):
        self._state = key

    def _next(self) -> int:
        self._state = x = (self._state + GOLDEN) % 2**64
        for shift, factor in FACTORS:
            x = (x ^ (x >> shift)) * factor % 2**64
        return x ^ (x >> 31)

    def below(self, size: int) -> int:
        """Return a number from 0 to `size` - 1."""
        return self._next() * size >> 64

    def chance(self, rate: float) -> bool:
        """Return True with probability `rate`."""
        return self._next() < rate * 2.0**64

    def uniform(self) -> float:
        """Return a number from 0 on, below 1."""
        return (self._next() >> 11) * 2.0**-53

    def choice(self, items: Sequence[T]) -> T:
        """Return one of the items."""
        return items[self.below(len(items))]
