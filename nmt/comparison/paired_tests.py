"""Scores with 95% intervals, and tests of their differences, for the metrics that sacreBLEU does not have.

These are the scores of predicted labels, and means of scores by sentence. Three things are otherwise than in
sacreBLEU. A sample is counted by itself: all samples at once would take samples x texts x labels numbers. A
trial whose difference equals that of the systems speaks against them: scores of labels have few values, and
without such ties any difference in three texts, all won by one system, would be beyond chance. And the p
value of the bootstrap has both tails: sacreBLEU drops the signs of the samples before it centres them, which
makes small differences look larger, and halves the p value of large ones.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sacrebleu.significance import Result, estimate_ci

from nmt.errors import UserError
from nmt.metrics.label_scores import SCORES, LabelScore, signature_of

Lines = Sequence[str]
Numbers = NDArray[Any]
ScoreOn = Callable[[Numbers], float]
"""A function from sentences, a mask (N,) or their numbers, with repetitions, to the score of one system on
them."""
ROUNDING = 1e-9
"""Differences that are nearer than this, in points, are equal."""
ALL = slice(None)


class PairedScores(ABC):
    """Several systems and a metric; a subclass says what the metric makes of some of their sentences."""

    systems: list[Numbers]
    """What the metric must know of each sentence (N,), by system."""
    signature: str
    """How the scores are computed here."""

    @abstractmethod
    def score(self, values: Numbers, chosen: Numbers | slice = ALL) -> float:
        """Return the score of `values` (n,), those of the `chosen` sentences, perhaps of several systems."""

    def score_on(self, number: int) -> ScoreOn:
        """Return the function that scores one of the systems on some of the sentences."""
        return lambda chosen: self.score(self.systems[number][chosen], chosen)

    def bootstrapped(self, samples: int) -> list[Result]:
        """Return score, interval and p value of each system by paired bootstrap (Koehn 2004, 3 and 4)."""
        size, rng = len(self.systems[0]), np.random.default_rng(seed())
        found = np.empty((samples, len(self.systems)))
        for row in found:
            chosen = rng.choice(size, size=size)
            row[:] = [self.score(system[chosen], chosen) for system in self.systems]
        whole = self._whole()
        results = [
            Result(score, None, *estimate_ci(column)) for score, column in zip(whole, found.T, strict=True)
        ]
        for number, result in enumerate(results[1:], start=1):
            gaps = found[:, number] - found[:, 0]
            result.p_value = _p_value(np.abs(gaps - gaps.mean()), abs(whole[number] - whole[0]))
        return results

    def randomised(self, trials: int) -> list[Result]:
        """Return score and p value of each system by randomisation (Riezler and Maxwell 2005, 3)."""
        whole, first = self._whole(), self.systems[0]
        results = [Result(whole[0])]
        for score, other in zip(whole[1:], self.systems[1:], strict=True):
            rng, gaps = np.random.default_rng(seed()), np.empty(trials)
            for trial in range(trials):
                stays = rng.integers(2, size=len(first), dtype=bool)
                gaps[trial] = self.score(np.where(stays, first, other)) - self.score(
                    np.where(stays, other, first)
                )
            results.append(Result(score, _p_value(np.abs(gaps), abs(score - whole[0]))))
        return results

    def _whole(self) -> list[float]:
        return [self.score(system) for system in self.systems]


class PredictedLabels(PairedScores):
    """The labels that each system predicts, as numbers, and a metric of `SCORES`."""

    def __init__(self, metric: str, true: Lines, systems: Sequence[Lines]):
        names = sorted({*true}.union(*systems))
        numbers = {name: number for number, name in enumerate(names)}
        self.true, *self.systems = (np.array([numbers[x] for x in lines]) for lines in (true, *systems))
        self._num_labels, self._metric = len(names), SCORES[metric]
        self.signature = signature_of(metric, true)

    def score(self, values: Numbers, chosen: Numbers | slice = ALL) -> float:
        """Return the score of predictions."""
        true = self.true[chosen]
        of_each = (true[true == values], values, true)
        counts = (np.bincount(one, minlength=self._num_labels).tolist() for one in of_each)
        scores = (LabelScore("", *three) for three in zip(*counts, strict=True))
        return self._metric([one for one in scores if one.predicted or one.true])


class SentenceScores(PairedScores):
    """The score of each sentence by itself, of each system; the metric is their mean."""

    def __init__(self, scores: Numbers, signature: str):
        """`scores` has a row for each system (systems, N)."""
        self.systems, self.signature = list(scores), signature

    def score(self, values: Numbers, chosen: Numbers | slice = ALL) -> float:
        """Return the mean."""
        return float(values.mean())


def seed() -> int | None:
    """Return the seed of the tests, which is that of sacreBLEU; None draws other numbers each time.

    Raises:
        UserError: the variable of the environment that says it is no seed.
    """
    told = os.environ.get("SACREBLEU_SEED", "12345")
    if told.lower() == "none":
        return None
    if not re.fullmatch(r"\d+", told, re.ASCII):
        raise UserError(f"SACREBLEU_SEED must be a whole number of at least 0, or none, but is {told!r}")
    return int(told)


def _p_value(gaps: Numbers, observed: float) -> float:
    """Return the share of `gaps` that are not below the `observed` one, which counts among them."""
    return float((np.sum(gaps >= observed - ROUNDING) + 1) / (len(gaps) + 1))
