"""Tests of systems that are several runs each, which differ in their seed alone.

The difference of two mean scores has two chances in it: other sentences would have been scored, and other
seeds trained (Clark et al. 2011). The variance of the first is that of the difference over samples of the
sentences, the same for all runs (paired bootstrap, Koehn 2004); of the second that of the scores of each
system, divided by its runs. A test of Welch (1947) on their sum takes in both. A few seeds tell little of
their variance, which its degrees of freedom say: of two systems of three runs they are about four.

Shapes: N sentences.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nmt.comparison.paired_tests import ScoreOn

CONFIDENCE = 0.95


@dataclass
class SeedTest:
    """The mean score of a system beside that of the first one."""

    difference: float
    interval: float
    """Half of the width of the 95% interval of the difference, over sentences and seeds."""
    p_value: float
    holm: float | None = None
    """`p_value` corrected for the number of systems that are tested (Holm 1979)."""


def differences_over_seeds(
    systems: Sequence[Sequence[ScoreOn]], num_sentences: int, samples: int, seed: int | None
) -> list[SeedTest]:
    """Return the test of each system but the first against the first; each has two runs or more."""
    rng, everything = np.random.default_rng(seed), np.arange(num_sentences)
    first, *others = [[score_on(everything) for score_on in runs] for runs in systems]
    means = np.empty((samples, len(systems)))
    for row in means:
        chosen = rng.choice(num_sentences, size=num_sentences)
        row[:] = [statistics.fmean(score_on(chosen) for score_on in runs) for runs in systems]
    over_sentences = np.var(means[:, 1:] - means[:, :1], axis=0, ddof=1)
    return [_welch(own, first, float(known)) for own, known in zip(others, over_sentences, strict=True)]


def _welch(own: Sequence[float], first: Sequence[float], known: float) -> SeedTest:
    """Return the test of two samples of scores, whose difference has `known` more variance."""
    difference = statistics.fmean(own) - statistics.fmean(first)
    parts = [statistics.variance(scores) / len(scores) for scores in (own, first)]
    variance = known + sum(parts)
    if variance == 0:  # no sentence and no seed makes a difference
        return SeedTest(difference, 0.0, float(difference == 0))
    uncertain = sum(part**2 / (len(scores) - 1) for part, scores in zip(parts, (own, first), strict=True))
    freedom = variance**2 / uncertain if uncertain else math.inf
    error = math.sqrt(variance)
    return SeedTest(difference, _quantile(freedom) * error, 1 - _within(abs(difference) / error, freedom))


def _within(t: float, freedom: float) -> float:
    """Return the probability that a number of Student's distribution is within `t` of 0.

    With x = sqrt(freedom) tan(angle) the density is a power of the cosine, on a bounded interval.
    """
    if freedom > 1e6:
        return math.erf(t / math.sqrt(2))
    angles = np.linspace(0, math.atan(t / math.sqrt(freedom)), 2001)
    density = np.cos(angles) ** (freedom - 1)
    area = float(density.sum() - (density[0] + density[-1]) / 2) * float(angles[1])
    scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(math.pi) / 2
    return min(1.0, 2 * math.exp(scale) * area)


def _quantile(freedom: float) -> float:
    """Return the number within which Student's distribution has a share of `CONFIDENCE`."""
    low, high = 0.0, 20.0  # one degree of freedom has 12.7, and there are no fewer
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < CONFIDENCE else (low, middle)
    return high
