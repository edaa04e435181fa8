"""The choice among candidate translations by a weighted sum of features, with weights tuned for a metric.

Features are numbers of each candidate, such as its log probability under several models. The search for
weights changes one at a time, from several starts, by the score that the chosen candidates have together; the
statistics of each candidate are computed once (Och 2003, with steps in place of his exact line search). Knows
no model.

Shapes: S sentences, N candidates of the sentence that has most, F features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from nmt.metrics.configs import ScoringConfig
from nmt.metrics.scoring import sentence_counts
from nmt.runtime import derive_seed

Floats = NDArray[np.float64]

NUM_STARTS = 16
STEPS = (2.0, 1.0, 0.5, 0.25, 0.125, 0.0625)
"""Changes of a weight that are tried, in units that make all features vary alike among candidates."""
LEAST_GAIN = 1e-9


def chosen(features: Sequence[Floats], weights: Floats) -> list[int]:
    """Return the number of the best candidate of each sentence, the first of equals.

    Each of `features` is (candidates, F), `weights` (F,).
    """
    return [int(np.argmax(values @ weights)) for values in features]


def tuned(
    features: Sequence[Floats],
    candidates: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]],
    metric: str,
    tgt_lang: str,
    seed: int,
    scoring: ScoringConfig,
) -> Floats:
    """Return weights (F,), the first of them 1, for which the chosen candidates have the best score found.

    The first start of the search is the choice by the first feature alone, so that the score is at least
    that of this choice. Each of `references` has a line for each sentence. `metric` is one of `SCORERS`,
    computed as `scoring` says. A pure function of the arguments.
    """
    first, *more = [
        [ref for ref, several in zip(lines, candidates, strict=True) for _ in several] for lines in references
    ]
    hypotheses = [c for several in candidates for c in several]
    counts, score_of = sentence_counts(
        metric, hypotheses, first, tgt_lang, more_references=more, scoring=scoring
    )
    firsts = np.cumsum([0, *map(len, candidates)])[:-1]
    values = _padded(features)
    scale = _spread(features)
    values /= scale

    def score(weights: Floats) -> float:
        return score_of(counts[firsts + np.argmax(values @ weights, axis=1)].sum(axis=0))

    generator = np.random.default_rng(derive_seed("reranking", seed))
    best, best_score = np.zeros(0), -np.inf
    for number in range(NUM_STARTS):
        start = np.zeros(len(scale)) if number == 0 else generator.normal(size=len(scale))
        start[0] = 1.0
        weights, found = _climbed(start, score)
        if found > best_score + LEAST_GAIN:
            best, best_score = weights, found
    return best * scale[0] / scale


def _climbed(weights: Floats, score: Callable[[Floats], float]) -> tuple[Floats, float]:
    """Return weights that no step of one of them improves, and their score; the first weight stays."""
    best = score(weights)
    improved = True
    while improved:
        improved = False
        for feature in range(1, len(weights)):
            for step in (*STEPS, *(-step for step in STEPS)):
                changed = weights.copy()
                changed[feature] += step
                if (found := score(changed)) > best + LEAST_GAIN:
                    weights, best, improved = changed, found, True
    return weights, best


def _padded(features: Sequence[Floats]) -> Floats:
    """Return (S, N, F); a missing candidate is like the first one, so that it is never chosen."""
    most = max(map(len, features))
    return np.stack([np.concatenate([x, np.repeat(x[:1], most - len(x), axis=0)]) for x in features])


def _spread(features: Sequence[Floats]) -> Floats:
    """Return the standard deviation (F,) of features among the candidates of a sentence, 1 where it is 0."""
    centred = np.concatenate([values - values.mean(axis=0) for values in features])
    found = np.sqrt((centred**2).mean(axis=0))
    return np.where(found > 0, found, 1.0)
