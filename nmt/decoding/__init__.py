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
    __init__            The table of strategies, and the one function that finds translations.
    translate           Lines in, translations out, order kept.
    score               Pairs of lines in, log probabilities out, order kept.
    evaluate            Loss, and metrics with their signatures, on one split.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from nmt.decoding.beam_search import BeamConfig, LengthPenalty
from nmt.decoding.graph_search import search
from nmt.decoding.hypotheses import DecodingConfig, Hypothesis
from nmt.decoding.sampling import SamplingConfig, sample
from nmt.models.base import TranslationModel

__all__ = [
    "STRATEGIES",
    "BeamConfig",
    "DecodingConfig",
    "Hypothesis",
    "LengthPenalty",
    "SamplingConfig",
    "decode",
]

Strategy = Callable[[TranslationModel, Tensor, Tensor, Any], list[list[Hypothesis]]]

STRATEGIES: dict[str, tuple[type[DecodingConfig], Strategy]] = {
    "beam": (BeamConfig, search),
    "sampling": (SamplingConfig, sample),
}


def decode(
    model: TranslationModel, src: Tensor, src_mask: Tensor, cfg: DecodingConfig
) -> list[list[Hypothesis]]:
    """Return at most `n_best` hypotheses of every sentence, best first, found as `cfg` says.

    `src` (B, S) ids, `src_mask` (B, S) bool. To be called without gradients, with the model in eval mode.
    """
    return STRATEGIES[cfg.strategy][1](model, src, src_mask, cfg)
