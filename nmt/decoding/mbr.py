"""Minimum Bayes risk decoding: of many translations, the one with the most utility if the others were right.

Candidates are samples, the hypotheses of a beam, or both, of one model or of each member of an ensemble. They
are the references, too. Equal texts are one candidate, which counts as often as it was found.
`draw_candidates` knows no text; `translate` hands the text of what was found to `rank`.

Kumar and Byrne 2004. Samples as candidates: Eikema and Aziz 2020. Epsilon sampling: Freitag et al. 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from nmt.decoding.configs import (
    MBRConfig,
    ReferenceWeights,
)
from nmt.decoding.graph_search import search
from nmt.decoding.hypotheses import Hypothesis
from nmt.decoding.sampling import draw_samples
from nmt.decoding.utility import expected_utility
from nmt.models.base import TranslationModel


def draw_candidates(
    model: TranslationModel, src: Tensor, src_mask: Tensor, cfg: MBRConfig
) -> list[list[Hypothesis]]:
    """Return all candidates of every sentence as they were found: equal ones again and again.

    `src` (B, S) ids, `src_mask` (B, S) bool. To be called without gradients, with the model in eval mode.
    """
    found: list[list[Hypothesis]] = [[] for _ in range(len(src))]
    for number, member in enumerate(model.members if cfg.pool_models else [model]):
        if cfg.num_samples:
            own = replace(cfg, seed=cfg.seed + number)
            _add(found, draw_samples(member, src, src_mask, own, cfg.num_samples))
        if cfg.beam_size:
            _add(found, search(member, src, src_mask, cfg.beam()))
    return found


def _add(found: list[list[Hypothesis]], more: list[list[Hypothesis]]) -> None:
    for sentence, hypotheses in zip(found, more, strict=True):
        sentence.extend(hypotheses)


def rank(hypotheses: Sequence[Hypothesis], texts: Sequence[str], cfg: MBRConfig) -> list[tuple[int, float]]:
    """Return places in `texts` and expected utilities of the `n_best` best texts, best first, each text once.

    `texts` are those of `hypotheses`. Of equally good texts the one that was found first is first.
    """
    places = dict[str, int]()
    counts, log_probs = dict[str, int](), dict[str, float]()
    for place, (hypothesis, text) in enumerate(zip(hypotheses, texts, strict=True)):
        places.setdefault(text, place)
        counts[text] = counts.get(text, 0) + 1
        log_probs[text] = max(hypothesis.log_prob, log_probs.get(text, -np.inf))
    weights = np.array(list(counts.values()), np.float64)
    if cfg.reference_weights is ReferenceWeights.probability:
        weights = np.exp(np.array(list(log_probs.values())) - max(log_probs.values()))
    utilities = expected_utility(list(places), weights.tolist(), cfg.utility, aggregate=cfg.aggregate)
    best = np.argsort(-utilities, kind="stable")[: cfg.n_best].tolist()
    first = list(places.values())
    return [(first[i], float(utilities[i])) for i in best]
