"""Scores of labels: intervals and p values against those by hand, of sacreBLEU's kind, and ties."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from nmt.comparison import paired_tests
from nmt.comparison.paired_tests import PredictedLabels, SentenceScores
from nmt.comparison.significance import with_tests
from nmt.metrics.label_scores import SCORES, label_scores
from tests.comparison.made import scored

ACCURACY = "metric:accuracy|labels:3"


def texts(number: int = 300) -> tuple[list[str], list[str], list[str]]:
    """Return true labels, and those of two systems; d is never true."""
    rng = random.Random(1)
    true = rng.choices("abc", k=number)
    first = [rng.choice("abd") if rng.random() < 0.3 else label for label in true]
    other = [rng.choice("abcd") if rng.random() < 0.15 else label for label in true]
    return true, first, other


@pytest.mark.parametrize("metric", SCORES)
def test_scores_are_those_of_the_metric(metric: str) -> None:
    true, first, other = texts()
    found = PredictedLabels(metric, true, [first, other])
    chosen = np.array([label != "a" for label in true])
    part = [[x for x, is_chosen in zip(lines, chosen, strict=True) if is_chosen] for lines in (first, true)]
    assert found.score_on(0)(chosen) == pytest.approx(SCORES[metric](label_scores(*part)))
    rows = scored(f"metric:{metric}|labels:3", [first, other], [true], samples=100, trials=0)
    assert [row.value for row in rows] == pytest.approx(
        [SCORES[metric](label_scores(system, true)) for system in (first, other)]
    )


def test_the_interval_and_the_p_value_of_an_accuracy_are_those_of_its_distribution() -> None:
    true, first, other = texts()
    rows = scored(ACCURACY, [first, other], [true], samples=4000, trials=4000)
    share = rows[0].value / 100
    assert rows[0].interval == pytest.approx(196 * math.sqrt(share * (1 - share) / len(true)), rel=0.06)
    only = [
        sum(x == y != z for x, y, z in zip(a, true, b, strict=True))
        for a, b in ((first, other), (other, first))
    ]
    total = sum(only)  # McNemar's exact test: either system wins each such text with probability 1/2
    tail = 2 * sum(math.comb(total, k) for k in range(min(only) + 1)) / 2**total
    assert rows[1].randomisation_p == pytest.approx(tail, abs=0.004)
    assert rows[1].bootstrap_p == pytest.approx(tail, abs=0.01)


def test_three_texts_that_one_system_wins_are_chance() -> None:
    true = ["a", "b"] * 50
    other = [*true]
    first = ["b", "a", "b", *true[3:]]
    rows = scored(ACCURACY, [first, other], [true], samples=100, trials=2000)
    assert rows[1].difference == pytest.approx(3.0)
    assert rows[1].randomisation_p == pytest.approx(0.25, abs=0.04)  # 2 of 8 ways to share them out


def test_equal_predictions_have_p_1_and_one_run_none() -> None:
    true, first, _ = texts()
    rows = scored(ACCURACY, [first, [*first]], [true], samples=100, trials=100)
    assert (rows[1].difference, rows[1].bootstrap_p, rows[1].randomisation_p) == (0.0, 1.0, 1.0)
    (row,) = scored(ACCURACY, [first], [true], samples=100, trials=100)
    assert (row.interval > 0, row.randomisation_p) == (True, None)


def test_the_seed_is_that_of_sacrebleu(monkeypatch: pytest.MonkeyPatch) -> None:
    true, *systems = texts()
    rows = [scored(ACCURACY, systems, [true], samples=100, trials=100) for _ in range(2)]
    assert rows[0] == rows[1]
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    assert scored(ACCURACY, systems, [true], samples=100, trials=100) != rows[0]
    monkeypatch.setenv("SACREBLEU_SEED", "none")
    assert paired_tests.seed() is None


@pytest.mark.parametrize("better", [0.05, 0.2, 0.4])
def test_means_of_scores_by_sentence_are_tested_as_means(better: float) -> None:
    """A p value of a half, a tenth, and one beyond chance."""
    rng = np.random.default_rng(1)
    first, noise = rng.normal(80, 5, 400), rng.normal(0, 4, 400)
    systems = [first, first + noise - noise.mean() + better, first]
    scores = SentenceScores(np.array(systems), "")
    lines = [[str(value) for value in values] for values in systems]
    rows = with_tests(scores, lines, samples=2000, trials=2000)
    assert [row.value for row in rows] == pytest.approx([values.mean() for values in systems])
    assert rows[0].interval == pytest.approx(1.96 * first.std() / 20, rel=0.06)
    gaps = systems[1] - first
    tail = math.erfc(gaps.mean() / (gaps.std() / 20) / math.sqrt(2))  # that of a z-test of the paired gaps
    assert rows[1].difference == pytest.approx(gaps.mean())
    for p in (rows[1].bootstrap_p, rows[1].randomisation_p):
        assert p == pytest.approx(tail, abs=0.03)
    assert (rows[2].bootstrap_p, rows[2].randomisation_p) == (1.0, 1.0)
    assert scores.score_on(1)(np.array([3, 3, 5])) == pytest.approx(systems[1][[3, 3, 5]].mean())
