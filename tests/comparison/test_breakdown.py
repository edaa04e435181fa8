"""Buckets, word counts, and the sentences that differ most."""

from __future__ import annotations

import numpy as np
import pytest

from nmt.comparison import breakdown
from nmt.comparison.breakdown import by_bucket, largest_differences, marked, rarest_words, sentence_scores
from nmt.comparison.significance import scorer_of
from nmt.decoding.metrics import sentence_chrf
from tests.comparison.made import BAD, BLEU, CHRF, GOOD, REFERENCES


@pytest.mark.parametrize("signature", [BLEU, CHRF, "nrefs:1|case:lc|tok:tercom|norm:no|punct:yes|asian:no"])
def test_the_score_of_a_bucket_is_that_of_its_sentences_as_a_corpus(signature: str) -> None:
    counts = [breakdown.statistics(signature, system, [REFERENCES]) for system in (GOOD, BAD)]
    short, long = by_bucket(signature, counts, [1, 5, 2, 9, 5], (1, 5))
    assert (short.label, short.sentences, long.label, long.sentences) == ("1-4", 2, "5+", 3)
    for bucket, chosen in ((short, (0, 2)), (long, (1, 3, 4))):
        for score, system in zip(bucket.scores, (GOOD, BAD), strict=True):
            hyps, refs = [[lines[number] for number in chosen] for lines in (system, REFERENCES)]
            assert score == pytest.approx(scorer_of(signature).corpus_score(hyps, [refs]).score)


def test_empty_buckets_are_left_out() -> None:
    counts = [breakdown.statistics(BLEU, GOOD, [REFERENCES])]
    labels = [bucket.label for bucket in by_bucket(BLEU, counts, [0, 1, 1, 7, 1], (0, 1, 2, 5))]
    assert labels == ["0", "1", "5+"]


def test_the_rarest_word_of_a_line() -> None:
    counts = breakdown.word_counts(["The dog, the cat.", "A dog!"])
    assert (counts["the"], counts["dog"], counts["cat"]) == (2, 2, 1)
    assert rarest_words(["the dog", "The CAT?", "a bird", "..."], counts) == [2, 1, 0, 2]


def test_sentence_scores_are_those_of_sacrebleu() -> None:
    assert sentence_scores(BAD, [REFERENCES]).tolist() == pytest.approx(sentence_chrf(BAD, REFERENCES))


def test_the_sentences_that_differ_most_come_first() -> None:
    first, other = ["a b c", "same", "x y", "p q"], ["a B c", "same", "x z", "P Q"]
    chrf = np.array([50.0, 9.0, 10.0, 80.0]), np.array([20.0, 9.0, 90.0, 70.0])
    found = largest_differences(first, other, chrf, 2)
    assert [(one.line, one.chrf) for one in found] == [(3, (10.0, 90.0)), (1, (50.0, 20.0))]
    assert len(largest_differences(first, other, chrf, 9)) == 3  # equal sentences are no difference


def test_words_that_the_other_lacks_are_marked() -> None:
    left, right = marked("the old dog barks", "the dog barks loudly")
    assert left == [("the", False), ("old", True), ("dog barks", False)]
    assert right == [("the", False), ("dog barks", False), ("loudly", True)]
    assert marked("", "a") == ([], [("a", True)])
    assert marked("a " * 600, "b")[1] == [("b", False)]  # too long to be marked
