"""Make batches of encoded pairs: which pairs share a batch, in which order, and as which tensors.

The plan of an epoch is a pure function of (seed, epoch, lengths, options): no iterator is ever stored, and a
resumed run continues at (epoch, batch). Pairs of similar length share a batch, so that little of the batch is
padding. The budget counts tokens with padding: sentences times the longest one, on the longer side. Lengths
include EOS. The plan does not depend on the number of processes, which share the batches of every update.

Shapes: B sentences, S source length, T target length. Masks are boolean, True means "may be attended".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nmt.data.encoded_pairs import EncodedPairs, Lengths, SampleCounts
from nmt.data.special_ids import BOS_ID, PAD_ID
from nmt.runtime import derive_seed

POOL_PAIRS = 1_000_000
"""Pairs that are sorted by length together."""

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
    weights: Tensor | None = None
    """(num_tokens,) float32: the weight of each token in the loss, that of its pair; None: 1 each."""

    @property
    def num_tokens(self) -> int:
        """Target tokens without padding: those that count for the loss."""
        return len(self.rows)

    @property
    def targets(self) -> Tensor:
        """(num_tokens,) int64: the target tokens without padding."""
        return self.real(self.tgt_out)

    @property
    def sentences(self) -> Tensor:
        """(num_tokens,) int64: the pair of each target token without padding."""
        return self.rows.div(self.tgt_out.shape[1], rounding_mode="floor")

    def real(self, x: Tensor) -> Tensor:
        """Return x (B, T, ...) at the target positions that are not padding: (num_tokens, ...)."""
        return x.flatten(0, 1).index_select(0, self.rows)

    def to(self, device: torch.device) -> Batch:
        """Return the batch on `device`; the host does not wait for the copy to a GPU."""
        if device.type == "cpu":
            return self
        return Batch(*(tensor.pin_memory().to(device, non_blocking=True) for tensor in self.tensors))

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors, in their order."""
        return [tensor for tensor in vars(self).values() if tensor is not None]

    @property
    def count(self) -> Tensor:
        """The target tokens without padding, each times its weight, in float64: a scalar."""
        if self.weights is None:
            # Filled there: a number that is copied from the host makes the host wait for a GPU.
            return torch.full((), float(self.num_tokens), dtype=torch.float64, device=self.rows.device)
        return self.weights.sum(dtype=torch.float64)


class Plan(Sequence[Indices]):
    """Batches of pair numbers, in the order in which they are trained on."""

    def __init__(self, order: npt.NDArray[np.int32], ends: Indices, visits: Indices | slice = slice(None)):
        """Cut `order` into batches at `ends`; `visits` lists the batches as they are trained on."""
        starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
        self._order, self._starts, self._ends = order, starts[visits], ends[visits]

    def __len__(self) -> int:
        return len(self._ends)

    def largest(self, src_lengths: Lengths, tgt_lengths: Lengths) -> list[Indices]:
        """Return the batches that may need the most memory: that of most tokens, that of the longest pairs.

        Tokens count with padding, on both sides. The longest pairs are what attention takes most memory for,
        in B * (S + T)^2; it may be the same batch.
        """
        visits = np.argsort(self._starts)
        starts, order = self._starts[visits], self._order
        S, T = (np.maximum.reduceat(x[order], starts).astype(np.int64) for x in (src_lengths, tgt_lengths))
        B = self._ends[visits] - starts
        found = {int(visits[np.argmax(B * (S + T) ** power)]) for power in (1, 2)}
        return [self[number] for number in sorted(found)]

    @overload
    def __getitem__(self, index: int) -> Indices: ...

    @overload
    def __getitem__(self, index: slice) -> list[Indices]: ...

    def __getitem__(self, index: int | slice) -> Indices | list[Indices]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        return self._order[self._starts[index] : self._ends[index]].astype(np.int64)


def plan_epoch(
    src_lengths: Lengths,
    tgt_lengths: Lengths,
    *,
    seed: int,
    epoch: int,
    max_tokens: int,
    draws: Sequence[SampleCounts] = (),
    by_target: bool = False,
) -> Plan:
    """Split all pairs into batches of at most `max_tokens` padded tokens on either side, in random order.

    Every pair is in exactly one batch, unless `draws` says how many pairs to take of each corpus. A pair
    longer than the budget gets a batch of its own. Pairs that share a batch come from one pool of
    `POOL_PAIRS` pairs, sampled at random if there are more: sorting a pool takes little memory, and its
    batches have as little padding as those of a larger pool. `by_target` sorts by the length of the target,
    then of the source, which pads sources more: the order of runs that began with it.
    """
    draws_rng, pools_rng, pairs_rng, batches_rng = (
        np.random.default_rng(derive_seed(seed, epoch, x)) for x in ("draws", "pools", "pairs", "batches")
    )
    order = _sampled_order(draws, draws_rng) if draws else np.arange(len(tgt_lengths), dtype=np.int32)
    if len(order) > POOL_PAIRS:
        pools_rng.shuffle(order)
    ends = []
    for first in range(0, len(order), POOL_PAIRS):
        pool = order[first : first + POOL_PAIRS]
        src, tgt = src_lengths[pool], tgt_lengths[pool]
        if by_target:
            by_length = np.lexsort((pairs_rng.random(len(pool)), src // 2, tgt))
        else:
            by_length = _by_longer_side(src, tgt, pairs_rng)
        pool[:] = pool[by_length]
        ends.append(first + _cut(np.maximum(src, tgt)[by_length], max_tokens))
    all_ends = np.concatenate([np.empty(0, np.int64), *ends])
    return Plan(order, all_ends, batches_rng.permutation(len(all_ends)))


def _by_longer_side(src: Lengths, tgt: Lengths, rng: np.random.Generator) -> Indices:
    """Return the order by the longer side, then by the difference of the sides, equal pairs at random.

    The difference rises for one length and falls for the next, so that the pairs around the border of two
    lengths, which often share a batch, are alike on both sides.
    """
    mixed = rng.permutation(len(src))
    src, tgt = (lengths[mixed].astype(np.int64) for lengths in (src, tgt))
    longer, difference = np.maximum(src, tgt), src - tgt
    turned = np.where(longer % 2, difference, -difference)
    return mixed[np.argsort(longer * (2 * longer.max(initial=0) + 1) + turned, kind="stable")]


def _sampled_order(draws: Sequence[SampleCounts], rng: np.random.Generator) -> npt.NDArray[np.int32]:
    """Return the numbers of the pairs that an epoch takes; they count through all corpora."""
    order: list[npt.NDArray[np.int32]] = []
    first = 0
    for size, taken in draws:
        every = np.arange(first, first + size, dtype=np.int32)
        whole, rest = divmod(taken, size)
        order += [every] * whole
        if rest:
            order.append(rng.choice(every, rest, replace=False))
        first += size
    return np.concatenate(order)


def plan_in_order(src_lengths: Lengths, tgt_lengths: Lengths, *, max_tokens: int) -> Plan:
    """Split all pairs into batches for evaluation: no randomness, from short to long."""
    order = np.lexsort((src_lengths, tgt_lengths)).astype(np.int32)
    return Plan(order, _cut(np.maximum(src_lengths, tgt_lengths)[order], max_tokens))


def _cut(lengths: Lengths, max_tokens: int) -> Indices:
    """Return where batches end: each has at most `max_tokens` padded tokens, or is one longer pair."""
    ends: list[int] = []
    start = 0
    while start < len(lengths):
        most = max(max_tokens // max(int(lengths[start]), 1), 1)  # pairs as long as the first
        longest = np.maximum.accumulate(lengths[start : start + most]).astype(np.int64)
        fitting = np.searchsorted(longest * np.arange(1, len(longest) + 1), max_tokens, side="right")
        start += max(int(fitting), 1)
        ends.append(start)
    return np.asarray(ends, np.int64)


def collate(pairs: EncodedPairs, indices: Sequence[int] | Indices) -> Batch:
    """Pad the pairs `indices` into one batch."""
    src, src_mask = pad(pairs.src.take(indices))
    tgt_out, real = pad(pairs.tgt.take(indices))
    tgt_in = torch.cat([torch.full_like(tgt_out[:, :1], BOS_ID), tgt_out[:, :-1]], dim=1)
    rows = real.flatten().nonzero()[:, 0]
    return Batch(src, src_mask, tgt_in, tgt_out, rows, _weights(pairs, np.asarray(indices, np.int64)))


def _weights(pairs: EncodedPairs, indices: Indices) -> Tensor | None:
    """Return the weights of the target tokens of some pairs; None where they are all 1, as without any."""
    if pairs.weights is None or (pairs.weights[indices] == 1.0).all():
        return None
    weights = np.asarray(pairs.weights[indices], np.float32)
    return torch.from_numpy(np.repeat(weights, pairs.tgt_lengths[indices]))


def pad(sequences: Sequence[Sequence[int] | npt.NDArray[np.int32]]) -> tuple[Tensor, Tensor]:
    """Return B sequences as padded ids (B, longest) and mask."""
    lengths = np.fromiter(map(len, sequences), dtype=np.int64, count=len(sequences))
    mask = np.arange(lengths.max())[None, :] < lengths[:, None]
    ids = np.full(mask.shape, PAD_ID, dtype=np.int64)
    ids[mask] = np.concatenate([np.asarray(sequence) for sequence in sequences])
    return torch.from_numpy(ids), torch.from_numpy(mask)


def largest_share(accumulate: int, size: int) -> float:
    """Return the largest share of a batch that one of `size` processes computes at once, as `dealt` deals."""
    return math.gcd(min(accumulate, size), size) / size


def dealt(group: Sequence[Indices], accumulate: int, rank: int, size: int) -> list[Indices]:
    """Return what process `rank` of `size` computes of the batches of one update; every pair has one process.

    Whole batches are dealt, one to each process in turn. The rest of `accumulate`, the number of batches of
    all updates but the last of an epoch, is too small for that: processes then share a batch row by row, as
    few of them as come out even. All processes get the same number of arrays, some of them perhaps empty.
    """
    parts, width = list[Indices](), min(accumulate, size)
    for first in range(0, len(group), width):
        planned = min(width, max(accumulate, len(group)) - first)
        teams = math.gcd(planned, size)
        team, member = divmod(rank, size // teams)
        batches = group[first : first + planned]
        for turn in range(0, len(batches), teams):
            indices = batches[turn + team] if turn + team < len(batches) else batches[0][:0]
            parts.append(indices[member :: size // teams])
    return parts
