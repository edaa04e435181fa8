"""Minimum Bayes risk decoding: of many translations, the one with the most utility if the others were right.

Candidates are samples, the hypotheses of a beam, or both, of one model or of each member of an ensemble. They
are the references, too. Equal texts are one candidate, which counts as often as it was found.
`draw_candidates` knows no text; `translate` hands the text of what was found to `rank`.

Kumar and Byrne 2004. Samples as candidates: Eikema and Aziz 2020. Epsilon sampling: Freitag et al. 2023.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from nmt.decoding.configs import (
    MBRConfig,
    ReferenceWeights,
)
from nmt.decoding.forcing import log_probs_of
from nmt.decoding.guided_search import search
from nmt.decoding.hypotheses import Hypothesis, Wish
from nmt.decoding.restrictions import UNLIKELY
from nmt.decoding.sampling import draw_samples
from nmt.metrics.utility import expected_utility
from nmt.models.base import TranslationModel


def draw_candidates(
    model: TranslationModel,
    src: Tensor,
    src_mask: Tensor,
    cfg: MBRConfig,
    wishes: Sequence[Wish] | None = None,
) -> list[list[Hypothesis]]:
    """Return all candidates of every sentence as they were found: equal ones again and again.

    `src` (B, S) ids, `src_mask` (B, S) bool, `wishes` one for each sentence. To be called without gradients,
    with the model in eval mode.
    """
    found: list[list[Hypothesis]] = [[] for _ in range(len(src))]
    for number, member in enumerate(model.members if cfg.pool_models else [model]):
        if cfg.num_samples:
            own = replace(cfg, seed=cfg.seed + number)
            _add(found, draw_samples(member, src, src_mask, own, cfg.num_samples, wishes))
        if cfg.beam_size:
            best = search(member, src, src_mask, cfg.beam(), wishes)
            if cfg.repetition_penalty != 1 and cfg.reference_weights is ReferenceWeights.probability:
                best = _without_penalty(member, src, src_mask, best, wishes)
            _add(found, best)
    return found


def _without_penalty(
    model: TranslationModel,
    src: Tensor,
    src_mask: Tensor,
    found: list[list[Hypothesis]],
    wishes: Sequence[Wish] | None,
) -> list[list[Hypothesis]]:
    """Return the hypotheses of a beam with log probabilities as samples have them: repetition costs nothing.

    A pass is of one hypothesis of every sentence: a model may be narrowed for as many rows as there are.
    """
    sources = [ids[real].tolist() for ids, real in zip(src, src_mask, strict=True)]
    given = [wish.num_given for wish in wishes] if wishes else [0] * len(sources)
    exact: list[list[Hypothesis]] = [[] for _ in found]
    for ranks in itertools.zip_longest(*found):
        ids = [[one.ids if one else []] for one in ranks]
        values = log_probs_of(model, sources, ids, src.device)
        for sentence, one, [own], num in zip(exact, ranks, values, given, strict=True):
            if one:
                sentence.append(replace(one, log_prob=sum(max(x, UNLIKELY) for x in own[num:])))
    return exact


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
