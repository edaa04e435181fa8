"""Utilities of texts for each other: those of sacreBLEU, and their means."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from nmt.metrics import utility
from nmt.metrics.configs import Utility
from nmt.metrics.utility import expected_utility

TEXTS = [
    "Ein Mann in einem blauen Hemd steht auf einer Leiter und putzt ein Fenster.",
    "Ein Mann im blauen Hemd steht auf einer Leiter und reinigt Fenster.",
    "Ein Mann steht auf einer Leiter.",
    "Zwei Frauen, die rote Hemden tragen, sitzen im Gras (und lachen).",
    "der der der der der der",
    "der Hund",
    "die Hunde die Hunde",
    'Die Katze kostet 3.50 Euro, "sagt" sie - oder?',
    "ja",
    "a",
    "",
    "人 和 狗 😀",
]
SCORERS = {Utility.chrf: CHRF(), Utility.bleu: BLEU(effective_order=True)}


def only(reference: int) -> list[float]:
    """Weights that leave one text as a reference."""
    return [float(i == reference) for i in range(len(TEXTS))]


@pytest.mark.parametrize("cells", [1, 50, utility.CELLS])
@pytest.mark.parametrize("kind", Utility)
def test_utilities_are_those_of_sacrebleu(kind: Utility, cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utility, "CELLS", cells)
    expected = [[SCORERS[kind].sentence_score(text, [ref]).score for ref in TEXTS] for text in TEXTS]
    found = [expected_utility(TEXTS, only(i), kind) for i in range(len(TEXTS))]
    np.testing.assert_allclose(np.transpose(found), expected, atol=1e-9)


@pytest.mark.parametrize("kind", Utility)
def test_an_expected_utility_is_the_weighted_mean_over_all_references(kind: Utility) -> None:
    weights = [float(i % 3 + 1) for i in range(len(TEXTS))]
    for text, found in zip(TEXTS, expected_utility(TEXTS, weights, kind), strict=True):
        scores = [SCORERS[kind].sentence_score(text, [ref]).score for ref in TEXTS]
        assert found == pytest.approx(np.average(scores, weights=weights))


def test_aggregated_references_by_hand() -> None:
    """The mean counts of character n-grams are one reference: Vamvas and Sennrich 2024."""
    texts, weights = ["ab ba", "aab", "b"], [2.0, 1.0, 1.0]

    def counts(text: str, order: int) -> Counter[str]:
        text = text.replace(" ", "")
        return Counter(text[i : i + order] for i in range(len(text) - order + 1))

    for text, found in zip(
        texts, expected_utility(texts, weights, Utility.chrf, aggregate=True), strict=True
    ):
        precision, recall = [], []
        for order in range(1, 7):
            own, mean = counts(text, order), Counter[str]()
            for reference, weight in zip(texts, weights, strict=True):
                for gram, count in counts(reference, order).items():
                    mean[gram] += count * weight / 4  # type: ignore[assignment]
            if own and mean:
                common = sum(min(count, mean[gram]) for gram, count in own.items())
                precision.append(common / sum(own.values()))
                recall.append(common / sum(mean.values()))
        p, r = np.mean(precision), np.mean(recall)
        assert found == pytest.approx(100 * 5 * p * r / (4 * p + r))


@pytest.mark.parametrize("kind", Utility)
def test_one_reference_is_its_own_aggregate(kind: Utility) -> None:
    for reference in range(len(TEXTS)):
        exact, aggregated = (
            expected_utility(TEXTS, only(reference), kind, aggregate=aggregate) for aggregate in (False, True)
        )
        np.testing.assert_allclose(aggregated, exact, atol=1e-9)


@pytest.mark.parametrize(("kind", "aggregate"), list(itertools.product(Utility, (False, True))))
def test_equal_references_are_one_with_their_weight(kind: Utility, aggregate: bool) -> None:
    again = expected_utility(
        [*TEXTS, TEXTS[0], TEXTS[0]], [1.0] * (len(TEXTS) + 2), kind, aggregate=aggregate
    )
    once = expected_utility(TEXTS, [3.0] + [1.0] * (len(TEXTS) - 1), kind, aggregate=aggregate)
    np.testing.assert_allclose(again[: len(TEXTS)], once, atol=1e-9)
