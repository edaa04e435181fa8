"""Scores of predicted labels against the true ones. Knows labels; knows no model and no text.

All scores are in percent. A label that is never predicted has precision 0, and one that never occurs has no
part in the mean of F1; as in scikit-learn with `zero_division=0` and the labels of both sides that occur.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

MOST_LABELS = 50
"""Labels whose own scores, and whose confusion matrix, are reported."""


class LabelScore(NamedTuple):
    """The counts of one label."""

    label: str
    right: int
    """Texts with the label that are predicted to have it."""
    predicted: int
    """Texts that are predicted to have the label."""
    true: int
    """Texts with the label."""

    @property
    def precision(self) -> float:
        """Share of the predictions of the label that are right, in percent."""
        return 100.0 * self.right / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """Share of the texts with the label that are found, in percent."""
        return 100.0 * self.right / self.true if self.true else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall, in percent."""
        total = self.predicted + self.true
        return 200.0 * self.right / total if total else 0.0


def label_scores(predicted: Sequence[str], true: Sequence[str]) -> list[LabelScore]:
    """Return the counts of each label that is predicted or true, sorted."""
    right = Counter(label for label, other in zip(true, predicted, strict=True) if label == other)
    of_predicted, of_true = Counter(predicted), Counter(true)
    labels = sorted(of_predicted.keys() | of_true.keys())
    return [LabelScore(label, right[label], of_predicted[label], of_true[label]) for label in labels]


def accuracy(scores: Sequence[LabelScore]) -> float:
    """Return the share of right predictions, in percent."""
    return 100.0 * sum(score.right for score in scores) / sum(score.true for score in scores)


def macro_f1(scores: Sequence[LabelScore]) -> float:
    """Return the mean F1 of all labels, each as important as any other."""
    return sum(score.f1 for score in scores) / len(scores)


def micro_f1(scores: Sequence[LabelScore]) -> float:
    """Return the F1 of the sums over all labels; with one label for each text, that is the accuracy."""
    sums = (sum(column) for column in zip(*(score[1:] for score in scores), strict=True))
    return LabelScore("", *sums).f1


SCORES: dict[str, Callable[[Sequence[LabelScore]], float]] = {
    "accuracy": accuracy,
    "macro_f1": macro_f1,
    "micro_f1": micro_f1,
}
"""Name of a metric of labels -> a function of the counts of all labels that are predicted or true."""


def signature_of(name: str, true: Sequence[str]) -> str:
    """Return the signature of the metric `name` of texts with these labels: metric:accuracy|labels:2."""
    return f"metric:{name}|labels:{len(set(true))}"


def with_metric(name: str, signature: str) -> str:
    """Return a stored signature of the metric `name`; those of earlier versions lack it: labels:2."""
    return f"metric:{name}|{signature}" if signature.startswith("labels:") else signature


def metric_in(signature: str) -> str | None:
    """Return the metric of labels that a signature names; None where it names none."""
    kind, _, name = signature.partition("|")[0].partition(":")
    return name if kind == "metric" and name in SCORES else None


def details_of(predicted: Sequence[str], true: Sequence[str]) -> dict[str, Any]:
    """Return the scores of each label and the confusion matrix, as results.json has them.

    The rows of the matrix are the true labels. Where there are more than `MOST_LABELS`, nothing is returned.
    """
    scores = label_scores(predicted, true)
    if len(scores) > MOST_LABELS:
        return {}
    labels, counts = [score.label for score in scores], Counter(zip(true, predicted, strict=True))
    return {
        "labels": {
            one.label: {
                "precision": one.precision,
                "recall": one.recall,
                "f1": one.f1,
                "true": one.true,
                "predicted": one.predicted,
            }
            for one in scores
        },
        "confusion": {row: {column: counts[row, column] for column in labels} for row in labels},
    }


def are_details(found: Mapping[str, Any]) -> bool:
    """Return whether numbers that were read have the keys of `details_of`, each label in all parts."""
    if found.keys() != {"labels", "confusion"}:
        return False
    labels, confusion = found["labels"], found["confusion"]
    of_label = {"precision", "recall", "f1"}
    return all(rows.keys() == labels.keys() for rows in (confusion, *confusion.values())) and all(
        of_label <= scores.keys() for scores in labels.values()
    )


def confusion_table(details: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield a header, then a row for each true label: its texts by predicted label, and its scores."""
    yield ("true \\ predicted", *details["confusion"], "precision", "recall", "F1")
    for label, counts in details["confusion"].items():
        scores = (details["labels"][label][key] for key in ("precision", "recall", "f1"))
        yield (label, *map(str, counts.values()), *(f"{score:.2f}" for score in scores))


def confusion_lines(details: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of `confusion_table`, in columns; nothing where there are no details."""
    if details:
        rows = list(confusion_table(details))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for first, *others in rows:
            cells = (f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True))
            yield "  ".join([f"{first:<{widths[0]}}", *cells])
