"""Whether line i of one side translates line i of the other, judged by the lengths of lines alone.

A long sentence has a long translation. Where one line is missing on one side, the lengths of all lines after
it fit those of a neighbour better than their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MAX_SHIFT = 5
"""Lines by which the sides may be shifted."""
PART_PAIRS = 1_000
"""Pairs of the parts for which a shift is told."""
MIN_GAIN = 0.25
"""Gain in correlation from which a shift is believed."""


@dataclass
class Shift:
    """The first part of a corpus in which the sides are shifted."""

    first: int
    """Number of the first pair of the part, from 1."""
    lines: int
    """Line i of the source fits line i + `lines` of the target."""
    parts: int
    """Parts in which the sides are shifted."""
    of: int
    """Parts in which this can be told."""


class Alignment:
    """The correlation of the lengths of the two sides, overall and under shifts of each part."""

    def __init__(self) -> None:
        self._sums = np.zeros(6)
        self._shifts = list[tuple[int, int]]()
        self._parts = 0

    def add(self, src: NDArray[np.int64], tgt: NDArray[np.int64], first: int) -> None:
        """Add the lengths of pairs; the first of them has the number `first`, from 1."""
        logs, others = np.log1p(src), np.log1p(tgt)
        products = (logs @ logs, others @ others, logs @ others)
        self._sums += np.array([len(logs), logs.sum(), others.sum(), *products])
        for start in range(0, len(logs) - PART_PAIRS + 1, PART_PAIRS):
            part = slice(start, start + PART_PAIRS)
            self._parts += 1
            if lines := _shift_of(logs[part], others[part]):
                self._shifts.append((first + start, lines))

    @property
    def correlation(self) -> float | None:
        """Correlation of the logarithms of the lengths; None where the lengths are all the same."""
        n, x, y, xx, yy, xy = self._sums.tolist()
        spread = (n * xx - x * x) * (n * yy - y * y)
        return (n * xy - x * y) / spread**0.5 if n > 1 and spread > 1e-6 * n**4 else None

    @property
    def shift(self) -> Shift | None:
        """The first part in which the sides are shifted, or None."""
        if not self._shifts:
            return None
        first, lines = self._shifts[0]
        return Shift(first, lines, len(self._shifts), self._parts)


def _shift_of(logs: NDArray[np.float64], others: NDArray[np.float64]) -> int:
    """Return the shift under which the lengths fit, 0 unless it is clear."""
    fits = {lines: _correlation(logs, others, lines) for lines in range(-MAX_SHIFT, MAX_SHIFT + 1)}
    best = max(fits, key=lambda lines: (fits[lines], -abs(lines)))
    return best if fits[best] > fits[0] + MIN_GAIN else 0


def _correlation(logs: NDArray[np.float64], others: NDArray[np.float64], lines: int) -> float:
    a = logs[: len(logs) - lines] if lines >= 0 else logs[-lines:]
    b = others[lines:] if lines >= 0 else others[:lines]
    a, b = a - a.mean(), b - b.mean()
    spread = (a @ a) * (b @ b)
    return float(a @ b / spread**0.5) if spread > 1e-9 else 0.0
