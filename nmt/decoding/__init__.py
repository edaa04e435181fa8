"""Decoding: search over the contract of models.

Refuses to know which family a model is of, and how it was trained. The modules in import order:

    configs             The configs of search, and the table of strategies; no torch.
    hypotheses          Hypotheses, what is wished for them, and their limits.
    restrictions        Rules for the next token: n-grams, repetition, length, beginnings, what to avoid.
    candidates          The best continuations of a sentence by one token.
    beam_search         Greedy and beam search over the model contract.
    graph_search        Beam search on a GPU whose steps are recorded and replayed.
    lexical             Phrases that must appear: beams in banks.
    diverse             Groups of beams that keep away from each other.
    coverage            The penalty for what no target position attends to.
    guided_search       Beam search as config and wishes say, by the modules above.
    sampling            Translations and continuations sampled from the distribution of a model.
    forcing             Log probabilities of given ids, by one pass.
    mbr                 Minimum Bayes risk: the candidate of most utility if the others were right.
    narrowing           Search over a part of the vocabulary, another part for each sentence.
    __init__            The one function that finds translations.
"""

from __future__ import annotations

from collections.abc import Sequence
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

    from nmt.data.tokens.shortlist import PieceIds
    from nmt.decoding.hypotheses import Hypothesis, Wish
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
NARROWED: Code = "nmt.decoding.narrowing.narrow_search"
"""What makes any strategy a search over a part of the vocabulary."""


def decode(
    model: TranslationModel,
    src: Tensor,
    src_mask: Tensor,
    cfg: DecodingConfig,
    wishes: Sequence[Wish] | None = None,
    allowed: Sequence[PieceIds] | None = None,
) -> list[list[Hypothesis]]:
    """Return the hypotheses of every sentence that are found as `cfg` says.

    They are `n_best` at most, best first; of a strategy of `RANKINGS` they are all, for the row to rank.
    `src` (B, S) ids, `src_mask` (B, S) bool, `wishes` one for each sentence; `allowed` has the tokens that
    each translation may have, besides those of its wish, and None allows all. To be called without gradients,
    with the model in eval mode.
    """
    search = loaded(STRATEGIES[cfg.strategy][1])
    if allowed is not None:
        search = loaded(NARROWED)(search, allowed)
    found: list[list[Hypothesis]] = search(model, src, src_mask, cfg, wishes)
    return found
