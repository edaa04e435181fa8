"""Tests over seeds: what they call chance, and the numbers of Student's distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from nmt.comparison.paired_tests import ScoreOn
from nmt.comparison.seed_tests import SeedTest, differences_over_seeds

Numbers = NDArray[Any]
SLOW = pytest.mark.slow


def mean_of(values: Numbers) -> ScoreOn:
    return lambda chosen: float(values[chosen].mean())


def found_of(*systems: list[Numbers], samples: int = 200) -> list[SeedTest]:
    score_on = [[mean_of(values) for values in runs] for runs in systems]
    return differences_over_seeds(score_on, len(systems[0][0]), samples, 1)


def drawn(rng: np.random.Generator, *, sentences: float, seeds: float, shift: float = 0.0) -> list[Numbers]:
    """Return three runs of a system on 40 sentences, where the system, each run and each sentence differ."""
    own = rng.normal(size=40) * sentences  # of the system, the same in all of its runs
    return [shift + own + rng.normal() * seeds + rng.normal(size=40) for _ in range(3)]


@pytest.mark.parametrize(
    ("sentences", "seeds"),
    [pytest.param(0.0, 1.0, marks=SLOW), (1.0, 0.3), pytest.param(3.0, 0.0, marks=SLOW)],
)
def test_equal_systems_rarely_differ_beyond_chance(sentences: float, seeds: float) -> None:
    """About one time in twenty, wherever the chance is; the sentences alone see too little of it."""
    rng, found = np.random.default_rng(5), 0
    for _ in range(120):
        pair = (drawn(rng, sentences=sentences, seeds=seeds) for _ in range(2))
        (test,) = found_of(*pair, samples=60)
        found += test.p_value < 0.05
        assert (test.p_value < 0.05) == (abs(test.difference) > test.interval)
    assert found / 120 < 0.1


def test_a_large_difference_is_found() -> None:
    rng = np.random.default_rng(1)
    first, better = (drawn(rng, sentences=1.0, seeds=0.3, shift=shift) for shift in (0.0, 3.0))
    (test,) = found_of(first, better)
    assert test.p_value < 0.01
    assert test.difference == pytest.approx(np.mean(better) - np.mean(first))
    assert 0 < test.difference - test.interval < 3 < test.difference + test.interval


def test_with_seeds_alone_it_is_the_test_of_welch() -> None:
    """All sentences are alike, so that only the seeds differ; the numbers are those of SciPy's ttest_ind."""
    first, other = ([np.full(9, value) for value in values] for values in ((1.0, 2.0, 4.0), (5.0, 6.5, 9.5)))
    (test,) = found_of(first, other)
    assert test.p_value == pytest.approx(0.0504974, abs=1e-6)
    assert test.difference - test.interval == pytest.approx(-0.0174491, abs=1e-5)


def test_what_is_the_same_does_not_differ() -> None:
    runs = [np.arange(7.0)] * 2
    (test,) = found_of(runs, runs)
    assert test == SeedTest(0.0, 0.0, 1.0)
