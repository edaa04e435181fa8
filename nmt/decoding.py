"""The table of strategies, and the one function that finds translations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from nmt.beam_search import BeamConfig, LengthPenalty
from nmt.graph_search import search
from nmt.hypotheses import DecodingConfig, Hypothesis
from nmt.models.base import TranslationModel
from nmt.sampling import SamplingConfig, sample

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
    """Return at most `num_best` hypotheses of every sentence, best first, found as `cfg` says.

    `src` (B, S) ids, `src_mask` (B, S) bool. To be called without gradients, with the model in eval mode.
    """
    return STRATEGIES[cfg.strategy][1](model, src, src_mask, cfg)
