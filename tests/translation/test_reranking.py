"""The best weights of features that are made so that the right ones are known."""

from __future__ import annotations

import numpy as np
import pytest

from nmt.errors import UserError
from nmt.metrics.configs import ScoringConfig
from nmt.metrics.scoring import METRICS, ScoredText, require_tunable, sentence_chrf, sentence_counts
from nmt.translation.reranking import Floats, chosen, tuned

WORDS = ["the", "a", "dog", "cat", "man", "snow", "red", "two", "runs", "stands", "in", "on"]
NUM_SENTENCES = 40


def lists(seed: int = 1) -> tuple[list[str], list[list[str]]]:
    """Return references, and for each one to five sentences that are more or less like it."""
    rng = np.random.default_rng(seed)
    references = [" ".join(rng.choice(WORDS, 9)) for _ in range(NUM_SENTENCES)]
    candidates = []
    for reference in references:
        several = []
        for _ in range(rng.integers(1, 6)):
            words = reference.split()
            for place in rng.choice(9, rng.integers(0, 6), replace=False):
                words[place] = str(rng.choice(WORDS))
            several.append(" ".join(words))
        candidates.append(several)
    return references, candidates


REFERENCES, CANDIDATES = lists()


def features() -> list[Floats]:
    """Return a feature that knows nothing, one on a large scale that knows all, and one that is constant."""
    rng = np.random.default_rng(2)
    found = []
    for reference, several in zip(REFERENCES, CANDIDATES, strict=True):
        quality = sentence_chrf(several, [reference] * len(several))
        found.append(np.array([[rng.normal(), 100 * value, 7.0] for value in quality]))
    return found


def metric(name: str, places: list[int]) -> float:
    hyps = [several[place] for several, place in zip(CANDIDATES, places, strict=True)]
    return METRICS[name].score(ScoredText([], hyps, [REFERENCES], "en"))[0]


@pytest.mark.parametrize("name", ["bleu", "chrf", "chrf++"])
def test_counts_of_sentences_add_up_to_the_metric(name: str) -> None:
    hyps = [several[-1] for several in CANDIDATES]
    counts, score = sentence_counts(name, hyps, REFERENCES, "en")
    assert score(counts.sum(axis=0)) == METRICS[name].score(ScoredText([], hyps, [REFERENCES], "en"))[0]


def test_the_first_of_equals_is_chosen() -> None:
    values = [np.array([[1.0, 0.0], [0.0, 2.0], [2.0, -2.0]]), np.array([[3.0, 1.0]])]
    assert chosen(values, np.array([1.0, 0.0])) == [2, 0]
    assert chosen(values, np.array([1.0, 0.5])) == [0, 0]
    assert chosen(values, np.array([0.0, 0.0])) == [0, 0]


@pytest.mark.parametrize("name", ["bleu", "chrf", "chrf++"])
def test_the_feature_that_knows_the_quality_gets_the_weight(name: str) -> None:
    values = features()
    weights = tuned(values, CANDIDATES, [REFERENCES], name, "en", 3, ScoringConfig())
    assert weights[0] == 1.0
    assert weights[1] > 0.0
    reached = metric(name, chosen(values, weights))
    assert reached > metric(name, chosen(values, np.array([1.0, 0.0, 0.0]))) + 5.0
    if name == "chrf":
        best = metric(name, chosen(values, np.array([0.0, 1.0, 0.0])))
        assert reached > 0.98 * best
    np.testing.assert_array_equal(
        weights, tuned(values, CANDIDATES, [REFERENCES], name, "en", 3, ScoringConfig())
    )


def test_all_references_and_the_rules_of_the_scores_count() -> None:
    """What is right by the second reference, in capitals, is found; the first one calls it wrong."""
    candidates, values = [["right", "wrong"]] * 3, [np.array([[1.0, 0.0], [0.0, 1.0]])] * 3
    first, second = ["right"] * 3, ["WRONG"] * 3
    lower = ScoringConfig(lowercase=True)
    assert chosen(values, tuned(values, candidates, [first], "chrf", "en", 3, lower)) == [0, 0, 0]
    assert chosen(values, tuned(values, candidates, [second], "chrf", "en", 3, lower)) == [1, 1, 1]
    assert chosen(values, tuned(values, candidates, [["x"] * 3, second], "chrf", "en", 3, lower)) == [1, 1, 1]


def test_what_helps_nothing_changes_nothing() -> None:
    """The first feature is already the quality, so that no other choice is better."""
    values = [values[:, [1, 0]] for values in features()]
    before = metric("chrf", chosen(values, np.array([1.0, 0.0])))
    weights = tuned(values, CANDIDATES, [REFERENCES], "chrf", "en", 3, ScoringConfig())
    assert metric("chrf", chosen(values, weights)) >= before


def test_only_some_metrics_can_be_tuned_for() -> None:
    with pytest.raises(UserError) as caught:
        require_tunable("tune_for", "ter")
    assert str(caught.value) == "tune_for must be one of bleu, spbleu, chrf, chrf++, but is 'ter'"
