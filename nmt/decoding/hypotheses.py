"""The common part of all search strategies: hypotheses, their length limits, and keys of the config.

Shapes: B sentences, S source length.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nmt.decoding.configs import DecodingConfig


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
