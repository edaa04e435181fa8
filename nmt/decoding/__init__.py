"""Decoding: search over the contract of models.

Refuses to know which family a model is of, and how it was trained. The modules in import order:

    configs             The configs of search, and the table of strategies; no torch.
    metrics             Scores of translations against references, one row each.
    reranking           The choice among candidates by weighted features, and the weights.
    confidence          The agreement of the confidence of a model with the quality of its translations.
    hypotheses          Hypotheses and their limits.
    candidates          The best continuations of a sentence by one token.
    beam_search         Greedy and beam search over the model contract.
    graph_search        Beam search on a GPU whose steps are recorded and replayed.
    sampling            Translations and continuations sampled from the distribution of a model.
    utility             Sentence chrF and BLEU between all texts of a sentence at once; text, no model.
    mbr                 Minimum Bayes risk: the candidate of most utility if the others were right.
    __init__            The one function that finds translations.
    translate           Lines in, translations out, order kept.
    score               Pairs of lines in, log probabilities out, order kept.
    evaluate            Loss, and metrics with their signatures, on one split.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nmt.decoding.configs import (
    STRATEGIES,
    BeamConfig,
    DecodingConfig,
    LengthPenalty,
    MBRConfig,
    SamplingConfig,
)
from nmt.loading import Code, loaded

if TYPE_CHECKING:
    from torch import Tensor

    from nmt.decoding.hypotheses import Hypothesis
    from nmt.models.base import TranslationModel

__all__ = [
    "RANKINGS",
    "BeamConfig",
    "DecodingConfig",
    "LengthPenalty",
    "MBRConfig",
    "SamplingConfig",
    "decode",
]

RANKINGS: dict[str, Code] = {"mbr": "nmt.decoding.mbr.rank"}
"""Strategy -> the rule that ranks what the strategy finds by its text: places in what was found, and scores.

The other strategies return hypotheses that are ranked already."""


def decode(
    model: TranslationModel, src: Tensor, src_mask: Tensor, cfg: DecodingConfig
) -> list[list[Hypothesis]]:
    """Return the hypotheses of every sentence that are found as `cfg` says.

    They are `n_best` at most, best first; of a strategy of `RANKINGS` they are all, for the row to rank.
    `src` (B, S) ids, `src_mask` (B, S) bool. To be called without gradients, with the model in eval mode.
    """
    found: list[list[Hypothesis]] = loaded(STRATEGIES[cfg.strategy][1])(model, src, src_mask, cfg)
    return found
