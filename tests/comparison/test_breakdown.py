"""Buckets, word counts, and the sentences that differ most."""

from __future__ import annotations

import numpy as np
import pytest

from nmt.comparison import breakdown, significance
from nmt.comparison.breakdown import (
    by_group,
    in_ranges,
    largest_differences,
    marked,
    rarest_words,
    sentence_scores,
)
from nmt.metrics.scoring import sentence_chrf
from tests.comparison.made import BAD, BLEU, CHRF, GOOD, REFERENCES

LABELS = ["b", "a", "b", "c", "a"], ["a", "a", "b", "b", "c"], ["a", "b", "b", "a", "c"]
"""True labels, and those of two systems."""


@pytest.mark.parametrize("signature", [BLEU, CHRF, "nrefs:1|case:lc|tok:tercom|norm:no|punct:yes|asian:no"])
def test_the_score_of_a_group_is_that_of_its_sentences_as_a_corpus(signature: str) -> None:
    score_on = [
        significance.scores_by(signature, [system], [REFERENCES]).score_on(0) for system in (GOOD, BAD)
    ]
    short, long = by_group(score_on, in_ranges([1, 5, 2, 9, 5], (1, 5)))
    assert (short.label, short.sentences, long.label, long.sentences) == ("1-4", 2, "5+", 3)
    for bucket, chosen in ((short, (0, 2)), (long, (1, 3, 4))):
        for score, system in zip(bucket.scores, (GOOD, BAD), strict=True):
            hyps, refs = [[lines[number] for number in chosen] for lines in (system, REFERENCES)]
            assert score == pytest.approx(significance.scorer_of(signature).corpus_score(hyps, [refs]).score)


def test_the_score_of_the_texts_of_a_label_is_its_recall() -> None:
    true, *systems = LABELS
    score_on = [
        significance.scores_by("metric:accuracy|labels:3", [system], [true]).score_on(0) for system in systems
    ]
    found = by_group(score_on, breakdown.of_each_label(true))
    assert [(one.label, one.sentences, one.scores) for one in found] == [
        ("a", 2, [50.0, 0.0]),
        ("b", 2, [50.0, 50.0]),
        ("c", 1, [0.0, 0.0]),
    ]
    assert list(breakdown.of_each_label(list(map(str, range(51))))) == []


def test_empty_groups_are_left_out() -> None:
    score_on = [significance.scores_by(BLEU, [GOOD], [REFERENCES]).score_on(0)]
    labels = [bucket.label for bucket in by_group(score_on, in_ranges([0, 1, 1, 7, 1], (0, 1, 2, 5)))]
    assert labels == ["0", "1", "5+"]


def test_the_rarest_word_of_a_line() -> None:
    counts = breakdown.word_counts(["The dog, the cat.", "A dog!"])
    assert (counts["the"], counts["dog"], counts["cat"]) == (2, 2, 1)
    assert rarest_words(["the dog", "The CAT?", "a bird", "..."], counts) == [2, 1, 0, 2]


def test_sentence_scores_are_those_of_sacrebleu() -> None:
    found = sentence_scores(breakdown.SENTENCE_CHRF, BAD, [REFERENCES])
    assert found.tolist() == pytest.approx(sentence_chrf(BAD, REFERENCES))


def test_the_score_of_a_label_is_all_or_nothing() -> None:
    true, predicted, _ = LABELS
    found = sentence_scores("metric:accuracy|labels:3", predicted, [true])
    assert found.tolist() == [0.0, 100.0, 100.0, 0.0, 0.0]


def test_the_sentences_that_differ_most_come_first() -> None:
    first, other = ["a b c", "same", "x y", "p q"], ["a B c", "same", "x z", "P Q"]
    chrf = np.array([50.0, 9.0, 10.0, 80.0]), np.array([20.0, 9.0, 90.0, 70.0])
    found = largest_differences(first, other, chrf, 2)
    assert [(one.line, one.scores) for one in found] == [(3, (10.0, 90.0)), (1, (50.0, 20.0))]
    assert len(largest_differences(first, other, chrf, 9)) == 3  # equal sentences are no difference


def test_words_that_the_other_lacks_are_marked() -> None:
    left, right = marked("the old dog barks", "the dog barks loudly")
    assert left == [("the", False), ("old", True), ("dog barks", False)]
    assert right == [("the", False), ("dog barks", False), ("loudly", True)]
    assert marked("", "a") == ([], [("a", True)])
    assert marked("a " * 600, "b")[1] == [("b", False)]  # too long to be marked
