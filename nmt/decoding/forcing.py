"""Log probabilities of given target ids: one pass over source and target (teacher forcing), no text.

Shapes: D width, V vocabulary, M target tokens of a batch without padding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nmt.data.batches.batching import Batch, collate
from nmt.data.encoded_pairs import EncodedPairs, RaggedIds
from nmt.data.special_ids import EOS_ID
from nmt.models.base import TranslationModel

ROWS_AT_ONCE = 512
"""Target tokens whose logits exist at a time."""


def token_log_probs(model: TranslationModel, batch: Batch) -> Tensor:
    """Return the log probabilities (M,) of the target tokens of a batch, float32, on the CPU."""
    hidden = batch.real(model(batch.src, batch.src_mask, batch.tgt_in))  # (M, D)
    parts = zip(hidden.split(ROWS_AT_ONCE), batch.targets.split(ROWS_AT_ONCE), strict=True)
    return torch.cat([_log_probs(model.project(rows), ids) for rows, ids in parts]).cpu()


def _log_probs(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the log probability (M,) of one id in each row of logits (M, V)."""
    exact = logits.float()
    return exact.gather(1, ids[:, None])[:, 0] - exact.logsumexp(1)


def log_probs_of(
    model: TranslationModel,
    sources: Sequence[Sequence[int]],
    found: Sequence[Sequence[Sequence[int]]],
    device: torch.device,
) -> list[list[list[float]]]:
    """Return the log probability of each id of the translations found for each source, and of EOS."""
    several = [(source, [*ids, EOS_ID]) for source, ours in zip(sources, found, strict=True) for ids in ours]
    if not several:
        return [[] for _ in found]
    pairs = EncodedPairs(*(RaggedIds.of(side) for side in zip(*several, strict=True)))
    batch = collate(pairs, range(len(several))).to(device)
    values = iter(token_log_probs(model, batch).split(pairs.tgt_lengths.tolist()))
    return [[next(values).tolist() for _ in ours] for ours in found]
