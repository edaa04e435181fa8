"""Correlations of the confidence of a model with the quality of its translations, sentence by sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Correlations(NamedTuple):
    """Correlations of confidence and sentence chrF, from -1 to 1; nan where one of the two never varies."""

    pearson: float
    """Correlation of the values."""
    spearman: float
    """Correlation of the ranks; equal values share the mean of their ranks."""
    num_sentences: int
    """Sentences: those that have a finite confidence."""

    def __str__(self) -> str:
        return f"Pearson {self.pearson:.3f}  Spearman {self.spearman:.3f}  {self.num_sentences:,} sentences"


def correlations(confidence: Sequence[float], quality: Sequence[float]) -> Correlations:
    """Return how well the confidence of each sentence agrees with its quality."""
    values = np.array([confidence, quality], np.float64)
    values = values[:, np.isfinite(values).all(axis=0)]
    return Correlations(_pearson(*values), _pearson(*map(_ranks, values)), values.shape[1])


def _pearson(x: Floats, y: Floats) -> float:
    if len(x) < 2 or not np.ptp(x) or not np.ptp(y):
        return float("nan")
    return float(np.corrcoef(x, y)[0, 1])


def _ranks(values: Floats) -> Floats:
    """Return the rank of each value, from 0; equal values share the mean of their ranks."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(counts) - (counts + 1) / 2)[places]
    return ranks
