"""Correlations with known values, and the chrF of single sentences."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sacrebleu.metrics.chrf import CHRF

from nmt.metrics.confidence import correlations
from nmt.metrics.scoring import sentence_chrf


def test_correlations_of_known_values() -> None:
    """Ranks 0, 1.5, 1.5, 3 and 0, 1, 3, 2."""
    found = correlations([-4.0, -1.0, -1.0, 0.0], [10.0, 20.0, 90.0, 30.0])
    assert found.pearson == pytest.approx(np.corrcoef([-4, -1, -1, 0], [10, 20, 90, 30])[0, 1])
    assert found.spearman == pytest.approx(np.corrcoef([0, 1.5, 1.5, 3], [0, 1, 3, 2])[0, 1])
    assert correlations([1.0, 2.0, 3.0], [1.0, 8.0, 27.0]).spearman == pytest.approx(1.0)
    assert correlations([1.0, 2.0, 3.0], [5.0, 4.0, 3.0]).pearson == pytest.approx(-1.0)


def test_what_has_no_confidence_does_not_count() -> None:
    found = correlations([-math.inf, -1.0, -2.0, -3.0], [99.0, 3.0, 2.0, 1.0])
    assert found.num_sentences == 3
    assert found.pearson == pytest.approx(1.0)
    assert str(found) == "Pearson 1.000  Spearman 1.000  3 sentences"


@pytest.mark.parametrize("values", [[], [1.0], [2.0, 2.0]])
def test_where_nothing_varies_there_is_no_correlation(values: list[float]) -> None:
    found = correlations(values, values)
    assert math.isnan(found.pearson)
    assert math.isnan(found.spearman)


def test_the_chrf_of_single_sentences() -> None:
    hyps, refs = ["a dog runs", "", "snow"], ["a dog ran", "a", "snow"]
    expected = [CHRF().sentence_score(hyp, [ref]).score for hyp, ref in zip(hyps, refs, strict=True)]
    assert sentence_chrf(hyps, refs) == expected
