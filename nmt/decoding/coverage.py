"""The coverage penalty: finished hypotheses that leave parts of the source unattended rank lower.

The attention is the mean over heads, layers and the models of an ensemble, one pass over whole hypotheses.

Wu et al. 2016, equation 14. Shapes: N hypotheses, T target length, S source length.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from nmt.data.batches.batching import pad
from nmt.data.special_ids import BOS_ID
from nmt.decoding.hypotheses import Hypothesis
from nmt.errors import UserError
from nmt.models.base import TranslationModel

ROWS_AT_ONCE = 64
"""Hypotheses whose attention exists at a time."""
LEAST = 1e-6
"""The least attention that a source token counts with."""


def covered(
    model: TranslationModel,
    src: Tensor,
    src_mask: Tensor,
    found: list[list[Hypothesis]],
    strength: float,
    n_best: int,
) -> list[list[Hypothesis]]:
    """Return the `n_best` of the hypotheses of each sentence by their score with the coverage penalty.

    `src` (B, S) ids, `src_mask` (B, S) bool, `found` the hypotheses of each of the B sentences.

    Raises:
        UserError: the model, or one of an ensemble, attends to no source.
    """
    owners = [b for b, several in enumerate(found) for _ in several]
    flat = [one for several in found for one in several]
    ranked: list[list[Hypothesis]] = [[] for _ in found]
    for start in range(0, len(flat), ROWS_AT_ONCE):
        rows, part = owners[start : start + ROWS_AT_ONCE], flat[start : start + ROWS_AT_ONCE]
        tgt_in, is_real = (x.to(src.device) for x in pad([[BOS_ID, *one.ids] for one in part]))
        coverages = coverage(model, src[rows], src_mask[rows], tgt_in, is_real).tolist()
        for b, one, value in zip(rows, part, coverages, strict=True):
            ranked[b].append(replace(one, score=one.score + strength * value))
    return [sorted(several, key=lambda one: -one.score)[:n_best] for several in ranked]


def coverage(
    model: TranslationModel, src: Tensor, src_mask: Tensor, tgt_in: Tensor, is_real: Tensor
) -> Tensor:
    """Return (N,): the sum over source tokens of log(min(attention from all target positions, 1)).

    `src`, `src_mask` (N, S), `tgt_in` (N, T) ids from BOS on, of which `is_real` (N, T) tokens count.
    """
    means = []
    for member in model.members:
        layers = member.attention(src, src_mask, tgt_in).cross
        if not layers:
            raise UserError(
                "decoding.coverage_penalty needs a model that attends to the source, and this one has no "
                "attention; leave it out"
            )
        mean = torch.stack([weights.mean(1) for weights in layers]).mean(0)  # (N, T, S)
        means.append(mean / mean.sum(2, keepdim=True).clamp(min=LEAST))
    attention = torch.stack(means).mean(0) * is_real[:, :, None]
    totals = attention.sum(1).clamp(min=LEAST, max=1.0)  # (N, S)
    return (totals.log() * src_mask).sum(1)
