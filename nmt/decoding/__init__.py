"""Decoding: search over the contract of models.

Refuses to know which family a model is of, and how it was trained. The modules in import order:

    metrics             Scores of translations against references, one row each.
    reranking           The choice among candidates by weighted features, and the weights.
    confidence          The agreement of the confidence of a model with the quality of its translations.
    hypotheses          Hypotheses, their limits, and the keys that all strategies share.
    candidates          The best continuations of a sentence by one token.
    beam_search         Greedy and beam search over the model contract.
    graph_search        Beam search on a GPU whose steps are recorded and replayed.
    sampling            Translations and continuations sampled from the distribution of a model.
    utility             Sentence chrF and BLEU between all texts of a sentence at once; text, no model.
    mbr                 Minimum Bayes risk: the candidate of most utility if the others were right.
    __init__            The table of strategies, and the one function that finds translations.
    translate           Lines in, translations out, order kept.
    score               Pairs of lines in, log probabilities out, order kept.
    evaluate            Loss, and metrics with their signatures, on one split.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from nmt.decoding.beam_search import BeamConfig, LengthPenalty
from nmt.decoding.graph_search import search
from nmt.decoding.hypotheses import DecodingConfig, Hypothesis
from nmt.decoding.mbr import MBRConfig, draw_candidates, rank
from nmt.decoding.sampling import SamplingConfig, sample
from nmt.models.base import TranslationModel

__all__ = [
    "RANKINGS",
    "STRATEGIES",
    "BeamConfig",
    "DecodingConfig",
    "Hypothesis",
    "LengthPenalty",
    "MBRConfig",
    "SamplingConfig",
    "decode",
]

Strategy = Callable[[TranslationModel, Tensor, Tensor, Any], list[list[Hypothesis]]]

STRATEGIES: dict[str, tuple[type[DecodingConfig], Strategy]] = {
    "beam": (BeamConfig, search),
    "sampling": (SamplingConfig, sample),
    "mbr": (MBRConfig, draw_candidates),
}

Ranking = Callable[[Sequence[Hypothesis], Sequence[str], Any], list[tuple[int, float]]]

RANKINGS: dict[str, Ranking] = {"mbr": rank}
"""Strategy -> the rule that ranks what the strategy finds by its text: places in what was found, and scores.

The other strategies return hypotheses that are ranked already."""


def decode(
    model: TranslationModel, src: Tensor, src_mask: Tensor, cfg: DecodingConfig
) -> list[list[Hypothesis]]:
    """Return the hypotheses of every sentence that are found as `cfg` says.

    They are `n_best` at most, best first; of a strategy of `RANKINGS` they are all, for the row to rank.
    `src` (B, S) ids, `src_mask` (B, S) bool. To be called without gradients, with the model in eval mode.
    """
    return STRATEGIES[cfg.strategy][1](model, src, src_mask, cfg)
