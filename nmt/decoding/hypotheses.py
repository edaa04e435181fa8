"""The common part of all search strategies: hypotheses, their length limits, and keys of the config.

Shapes: B sentences, S source length.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nmt.checks import at_least, finite
from nmt.runtime import Precision


@dataclass
class DecodingConfig:
    """The keys of all search strategies."""

    strategy: str = ""
    """Search strategy; chosen together with its other fields by `decoding=...`."""
    max_length_ratio: float = 2.0
    """Longest translation in tokens per source token, EOS counted in both; max_length_offset is added."""
    max_length_offset: int = 10
    """Tokens added to the longest translation of every sentence."""
    n_best: int = 1
    """Hypotheses returned per sentence."""
    batch_tokens: int = 8192
    """Source tokens of a batch, with padding, times the hypotheses that are open per sentence."""
    max_source_tokens: int = 1024
    """Longer source lines are cut here, with a warning; EOS included."""
    precision: Precision = Precision.fp32
    """fp32, bf16, fp16 or auto: the number format that linear maps multiply in.

    16 bits are faster on hardware made for them, but change some translations. auto chooses what suits the
    device, so that results depend on the device.
    """

    def __post_init__(self) -> None:
        at_least(self, "decoding", 1, "n_best", "batch_tokens", "max_source_tokens")
        finite(self, "decoding", "max_length_ratio", "max_length_offset")

    @property
    def rows_per_sentence(self) -> int:
        """Hypotheses of a sentence that are open at a time."""
        return self.n_best


@dataclass
class Hypothesis:
    """A finished translation in token ids."""

    ids: list[int]
    """Without BOS and EOS."""
    score: float
    """Log probability adjusted for the length, by which the hypotheses of a sentence are ranked."""
    log_prob: float
    """Log probability of the ids and EOS."""


def length_limits(src_mask: Tensor, max_length: int | None, cfg: DecodingConfig) -> Tensor:
    """Return the most target tokens (B,) that each sentence may get, EOS included, whatever its batch."""
    lengths: list[int] = src_mask.sum(1).tolist()
    limits = [int(cfg.max_length_ratio * length) + cfg.max_length_offset for length in lengths]
    if max_length is not None:
        limits = [min(limit, max_length) for limit in limits]
    return torch.tensor([max(limit, 1) for limit in limits], device=src_mask.device)
