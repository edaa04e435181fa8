"""Scores of labels with 95% intervals, and tests of their differences, as sacreBLEU has for its metrics.

Two things are otherwise than in sacreBLEU. A sample is counted by itself: all samples at once would take
samples x texts x labels numbers. And a trial whose difference equals that of the systems speaks against them:
scores of labels have few values, and without such ties any difference in three texts, all won by one system,
would be beyond chance. Labels are numbers here: true, predicted (N,).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sacrebleu.significance import Result, estimate_ci

from nmt.decoding.label_scores import SCORES, LabelScore

Lines = Sequence[str]
Numbers = NDArray[Any]
ROUNDING = 1e-9
"""Differences that are nearer than this, in points, are equal."""


class PredictedLabels:
    """The true labels of texts, those that each system predicts, and a metric of `SCORES`."""

    def __init__(self, metric: str, true: Lines, systems: Sequence[Lines]):
        names = sorted({*true}.union(*systems))
        numbers = {name: number for number, name in enumerate(names)}
        self.true, *self.systems = (np.array([numbers[x] for x in lines]) for lines in (true, *systems))
        self._num_labels, self._metric = len(names), SCORES[metric]

    def score(self, predicted: Numbers, true: Numbers) -> float:
        """Return the score of predictions."""
        of_each = (true[true == predicted], predicted, true)
        counts = (np.bincount(one, minlength=self._num_labels).tolist() for one in of_each)
        scores = (LabelScore("", *three) for three in zip(*counts, strict=True))
        return self._metric([one for one in scores if one.predicted or one.true])

    def score_on(self, chosen: Numbers) -> float:
        """Return the score of the first system on texts, a mask (N,) or their numbers."""
        return self.score(self.systems[0][chosen], self.true[chosen])

    def bootstrapped(self, samples: int, seed: int | None) -> list[Result]:
        """Return score, interval and p value of each system by paired bootstrap (Koehn 2004, 3 and 4)."""
        size, rng = len(self.true), np.random.default_rng(seed)
        found = np.empty((samples, len(self.systems)))
        for row in found:
            chosen = rng.choice(size, size=size)
            row[:] = [self.score(system[chosen], self.true[chosen]) for system in self.systems]
        whole = self._whole()
        results = [
            Result(score, None, *estimate_ci(column)) for score, column in zip(whole, found.T, strict=True)
        ]
        for number, result in enumerate(results[1:], start=1):
            gaps = np.abs(found[:, number] - found[:, 0])
            result.p_value = _p_value(gaps - gaps.mean(), abs(whole[number] - whole[0]))
        return results

    def randomised(self, trials: int, seed: int | None) -> list[Result]:
        """Return score and p value of each system by randomisation (Riezler and Maxwell 2005, 3)."""
        whole, first = self._whole(), self.systems[0]
        results = [Result(whole[0])]
        for score, other in zip(whole[1:], self.systems[1:], strict=True):
            rng, gaps = np.random.default_rng(seed), np.empty(trials)
            for trial in range(trials):
                stays = rng.integers(2, size=len(first), dtype=bool)
                pair = np.where(stays, first, other), np.where(stays, other, first)
                gaps[trial] = self.score(pair[0], self.true) - self.score(pair[1], self.true)
            results.append(Result(score, _p_value(np.abs(gaps), abs(score - whole[0]))))
        return results

    def _whole(self) -> list[float]:
        return [self.score(system, self.true) for system in self.systems]


def _p_value(gaps: Numbers, observed: float) -> float:
    """Return the share of `gaps` that are not below the `observed` one, which counts among them."""
    return float((np.sum(gaps >= observed - ROUNDING) + 1) / (len(gaps) + 1))
