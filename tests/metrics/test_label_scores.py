"""Scores of labels, against values by hand (those of scikit-learn, with `zero_division=0`)."""

from __future__ import annotations

import pytest

from nmt.metrics.label_scores import (
    MOST_LABELS,
    confusion_lines,
    details_of,
    metric_in,
    signature_of,
    with_metric,
)
from nmt.translation.evaluate import score_text

TRUE = ["a", "a", "a", "a", "b", "b", "c", "c"]
PREDICTED = ["a", "a", "b", "d", "b", "a", "a", "a"]


def test_the_metrics() -> None:
    scores = score_text(TRUE, PREDICTED, TRUE, ["accuracy", "macro_f1", "micro_f1"], tgt_lang="")
    f1 = [4 / 9, 2 / 4, 0.0, 0.0]
    assert scores.values == pytest.approx({"accuracy": 37.5, "macro_f1": 25 * sum(f1), "micro_f1": 37.5})
    assert scores.signatures["accuracy"] == "metric:accuracy|labels:3"


def test_signatures_of_earlier_versions_get_the_name_of_their_metric() -> None:
    assert with_metric("accuracy", "labels:3") == signature_of("accuracy", TRUE) == "metric:accuracy|labels:3"
    assert with_metric("accuracy", "metric:accuracy|labels:3") == "metric:accuracy|labels:3"
    assert with_metric("bleu", "nrefs:1|tok:13a") == "nrefs:1|tok:13a"
    assert metric_in(signature_of("macro_f1", TRUE)) == "macro_f1"
    assert metric_in("labels:3") is metric_in("nrefs:1|tok:13a") is metric_in("metric:new|labels:3") is None


def test_details_and_their_table() -> None:
    details = details_of(PREDICTED, TRUE)
    assert details["labels"]["a"] == pytest.approx(
        {"precision": 40.0, "recall": 50.0, "f1": 400 / 9, "true": 4, "predicted": 5}
    )
    assert details["confusion"]["c"] == {"a": 2, "b": 0, "c": 0, "d": 0}
    lines = list(confusion_lines(details))
    assert lines[0].split() == ["true", "\\", "predicted", "a", "b", "c", "d", "precision", "recall", "F1"]
    assert lines[1].split() == ["a", "2", "1", "0", "1", "40.00", "50.00", "44.44"]
    many = [str(number) for number in range(MOST_LABELS + 1)]
    assert list(confusion_lines(details_of(many, many))) == []
