"""From encoded pairs to batches: which pairs stand together, in which order, and as which tensors.

The plan of an epoch is a pure function of (seed, epoch, lengths, options): no iterator is ever stored, and a
resumed run continues at (epoch, batch). Pairs of similar length share a batch, so that little of it is
padding. The budget counts tokens with padding: sentences times the longest one, on the longer side. Lengths
include EOS.

Shapes: B sentences, S source length, T target length. Masks are boolean, True means "may be attended".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nmt.encoding import EncodedPairs
from nmt.runtime import derive_seed
from nmt.tokenizer import BOS_ID, PAD_ID

Lengths = npt.NDArray[np.int64]
"""Tokens of every pair, on one side."""
Indices = npt.NDArray[np.int64]
"""Numbers of pairs."""


@dataclass
class Batch:
    """Padded tensors of some pairs; `tgt_in` is `tgt_out` shifted right behind BOS."""

    src: Tensor
    """(B, S) int64."""
    src_mask: Tensor
    """(B, S) bool, False at padding."""
    tgt_in: Tensor
    """(B, T) int64, starts with BOS."""
    tgt_out: Tensor
    """(B, T) int64, ends with EOS, then padding."""
    rows: Tensor
    """(num_tokens,) int64: where `tgt_out`, flattened, is not padding."""

    @property
    def num_tokens(self) -> int:
        """Target tokens that count for the loss: padding does not."""
        return len(self.rows)

    def real(self, x: Tensor) -> Tensor:
        """(num_tokens, ...) of x (B, T, ...): the target positions that are no padding."""
        return x.flatten(0, 1).index_select(0, self.rows)

    def to(self, device: torch.device) -> Batch:
        """The same batch on `device`; the copy to a GPU does not make the host wait."""
        if device.type == "cpu":
            return self
        tensors = (self.src, self.src_mask, self.tgt_in, self.tgt_out, self.rows)
        return Batch(*(tensor.pin_memory().to(device, non_blocking=True) for tensor in tensors))


def plan_epoch(
    src_lengths: Lengths, tgt_lengths: Lengths, *, seed: int, epoch: int, max_tokens: int
) -> list[Indices]:
    """Split all pairs into batches of at most `max_tokens` padded tokens on either side, in random order.

    Every pair stands in exactly one batch. A pair longer than the budget gets a batch of its own.
    """
    pairs_rng, batches_rng = (
        np.random.default_rng(derive_seed(seed, epoch, x)) for x in ("pairs", "batches")
    )
    order = np.lexsort((pairs_rng.random(len(tgt_lengths)), src_lengths // 2, tgt_lengths))
    batches = _cut(order, np.maximum(src_lengths, tgt_lengths), max_tokens)
    return [batches[i] for i in batches_rng.permutation(len(batches))]


def plan_in_order(src_lengths: Lengths, tgt_lengths: Lengths, *, max_tokens: int) -> list[Indices]:
    """The same for evaluation: no randomness, batches from short to long."""
    return _cut(np.lexsort((src_lengths, tgt_lengths)), np.maximum(src_lengths, tgt_lengths), max_tokens)


def _cut(order: Indices, lengths: Lengths, max_tokens: int) -> list[Indices]:
    """Cut `order` into runs whose padded size stays within `max_tokens`."""
    batches = []
    start = longest = 0
    for end, length in enumerate(lengths[order].tolist()):
        longest_with = max(longest, length)
        if end > start and longest_with * (end + 1 - start) > max_tokens:
            batches.append(order[start:end])
            start, longest_with = end, length
        longest = longest_with
    if start < len(order):
        batches.append(order[start:])
    return batches


def collate(pairs: EncodedPairs, indices: Sequence[int] | Indices) -> Batch:
    """Pad the pairs `indices` into one batch."""
    src, src_mask = pad([pairs.src(i) for i in indices])
    tgt_out, real = pad([pairs.tgt(i) for i in indices])
    tgt_in = torch.cat([torch.full_like(tgt_out[:, :1], BOS_ID), tgt_out[:, :-1]], dim=1)
    return Batch(src, src_mask, tgt_in, tgt_out, rows=real.flatten().nonzero()[:, 0])


def pad(sequences: Sequence[Sequence[int] | npt.NDArray[np.int32]]) -> tuple[Tensor, Tensor]:
    """(B, longest) ids and their mask from B sequences of ids."""
    lengths = np.fromiter(map(len, sequences), dtype=np.int64, count=len(sequences))
    mask = np.arange(lengths.max())[None, :] < lengths[:, None]
    ids = np.full(mask.shape, PAD_ID, dtype=np.int64)
    ids[mask] = np.concatenate([np.asarray(sequence) for sequence in sequences])
    return torch.from_numpy(ids), torch.from_numpy(mask)


def groups(batches: Sequence[Indices], size: int, start: int = 0) -> Iterator[Sequence[Indices]]:
    """The batches of each update, from number `start` on: `size`, fewer maybe at the end of an epoch."""
    for first in range(start, len(batches), size):
        yield batches[first : first + size]
