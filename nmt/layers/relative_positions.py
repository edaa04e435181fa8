"""Relative positions: self-attention that knows how far a key is from a query.

The queries are the last T of the S columns of the keys, so one definition serves a full pass (T = S) and a
step over a cache (T = 1). An offset is the column of the key minus that of the query: negative before it.
Nothing here knows a vocabulary, a batch or a model family. Shapes: B sentences, T positions of the queries,
S positions of the keys, H heads, C channels of a head.

Rotary: Su et al. 2021, section 3.2. ALiBi: Press et al. 2022, section 3. Buckets: Raffel et al. 2020 (T5),
section 2.1. Clipped vectors: Shaw et al. 2018, section 3.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from nmt.kernels import fused
from nmt.layers.positions import SinusoidalPositions


class RelativePositions(nn.Module):
    """The three places where distances enter self-attention; a kind of positions overrides some of them."""

    needs_weights = False
    """Whether `weighted_sum` is more than a product, so that no fused function can compute the attention."""

    def rotate(self, x: Tensor, start: int | Tensor) -> Tensor:
        """Return queries or keys x (B, H, T, C), which begin at column `start`, as they are multiplied."""
        return x

    def bias(self, queries: Tensor, num_keys: int) -> Tensor | None:
        """Return the bias on the scores of queries (B, H, T, C), which expands to (B, H, T, S), or None."""
        return None

    def weighted_sum(self, weights: Tensor, values: Tensor) -> Tensor:
        """Return (B, H, T, C): the values (B, H, S, C) summed with weights (B, H, T, S)."""
        return weights @ values

    def masked_bias(self, queries: Tensor, num_keys: int, mask: Tensor | None) -> Tensor | None:
        """Return the bias, -inf where the mask forbids to attend; without a bias, the mask itself.

        A mask is boolean, or has the value 0 or -inf; both expand to (B, H, T, S).
        """
        bias = self.bias(queries, num_keys)
        if bias is None or mask is None:
            return mask if bias is None else bias.to(queries.dtype)
        bias = bias.to(queries.dtype)
        return bias.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else bias + mask


def offsets(num_queries: int, num_keys: int, device: torch.device) -> Tensor:
    """Return (T, S): the column of each key minus that of each query; the queries are the last T columns."""
    columns = torch.arange(num_keys, device=device)
    return columns - columns[num_keys - num_queries :, None]


class RotaryPositions(RelativePositions):
    """Rotation of channels 2i and 2i + 1 by the angle position / 10000^(2i / C), for an even C.

    The product of a rotated query and a rotated key then depends on their offset alone.
    """

    def __init__(self, size: int):
        super().__init__()
        self.angles = SinusoidalPositions(size)

    def rotate(self, x: Tensor, start: int | Tensor) -> Tensor:
        """Return x (B, H, T, C), each pair of channels rotated as a point around the origin."""
        return fused.rotate(x, self.angles.at(start, x.shape[2]))


def alibi_slopes(num_heads: int) -> list[float]:
    """Return one slope per head: 2^(-8/H), 2^(-16/H), ..., 2^-8 where H is a power of two.

    Other H take the slopes of the power of two below, then every other slope of the power of two above.
    """
    power = 2 ** int(math.log2(num_heads))
    slopes = [2.0 ** (-8 * (head + 1) / power) for head in range(power)]
    return slopes if power == num_heads else slopes + alibi_slopes(2 * power)[0::2][: num_heads - power]


class AlibiPositions(RelativePositions):
    """A bias that falls with the distance, at a fixed slope for each head, alike in both directions."""

    def __init__(self, num_heads: int):
        super().__init__()
        self.register_buffer("slopes", torch.tensor(alibi_slopes(num_heads))[:, None, None], persistent=False)
        self.slopes: Tensor

    def bias(self, queries: Tensor, num_keys: int) -> Tensor:
        """Return (1, H, T, S)."""
        distance = offsets(queries.shape[2], num_keys, queries.device).abs()
        return (-self.slopes * distance)[None]


def offset_buckets(offset: Tensor, *, num_buckets: int, max_distance: int, bidirectional: bool) -> Tensor:
    """Return the bucket of each offset.

    The first half of the buckets holds one distance each, the second half ever wider ranges up to
    `max_distance`, and the last bucket all distances beyond. With `bidirectional`, keys after the query have
    as many buckets of their own; otherwise they count as distance 0 (a causal mask hides them).
    """
    if bidirectional:
        num_buckets //= 2
        first, distance = num_buckets * (offset > 0), offset.abs()
    else:
        first, distance = torch.zeros_like(offset), (-offset).clamp(min=0)
    num_exact = num_buckets // 2
    ratio = torch.log(distance.clamp(min=num_exact).double() / num_exact) / math.log(max_distance / num_exact)
    wide = num_exact + (ratio * (num_buckets - num_exact)).long().clamp(max=num_buckets - num_exact - 1)
    return first + torch.where(distance < num_exact, distance, wide)


class BucketPositions(RelativePositions):
    """A trained bias for each head and bucket of offsets, as in T5, but with a table in every layer.

    Unlike in T5, the scores that the bias is added to are divided by sqrt(C).
    """

    def __init__(
        self, d_model: int, num_heads: int, *, num_buckets: int, max_distance: int, bidirectional: bool
    ):
        super().__init__()
        self.max_distance = max_distance
        self.table = nn.Embedding(num_buckets, num_heads)
        nn.init.normal_(self.table.weight, std=d_model**-0.5)
        bucket_of = offset_buckets(
            torch.arange(-max_distance, max_distance + 1),
            num_buckets=num_buckets,
            max_distance=max_distance,
            bidirectional=bidirectional,
        )
        self.register_buffer("bucket_of", bucket_of, persistent=False)
        self.bucket_of: Tensor

    def bias(self, queries: Tensor, num_keys: int) -> Tensor:
        """Return (1, H, T, S)."""
        furthest = self.max_distance
        clipped = offsets(queries.shape[2], num_keys, queries.device).clamp(-furthest, furthest)
        biases: Tensor = self.table(self.bucket_of[clipped + furthest])
        return biases.permute(2, 0, 1)[None].contiguous()  # as the fused attention of GPUs wants a mask


class ClippedPositions(RelativePositions):
    """Trained vectors for each offset up to `max_distance`, added to the keys and to the values.

    The heads of a layer share the vectors. Further keys count as if they were `max_distance` away, without
    `bidirectional` keys after the query as if they were in its column (a causal mask hides them).
    """

    needs_weights = True

    def __init__(self, key_size: int, value_size: int, *, max_distance: int, bidirectional: bool):
        super().__init__()
        self.before, self.after = max_distance, max_distance if bidirectional else 0
        self.keys = nn.Embedding(self.before + 1 + self.after, key_size)
        self.values = nn.Embedding(self.before + 1 + self.after, value_size)
        for table in (self.keys, self.values):
            nn.init.xavier_uniform_(table.weight)

    def bias(self, queries: Tensor, num_keys: int) -> Tensor:
        """Return (B, H, T, S): products of queries and vectors added to their keys, divided by sqrt(C)."""
        vectors = self.keys(self._rows(queries.shape[2], num_keys, queries.device))
        return torch.einsum("bhtc,tsc->bhts", queries * queries.shape[-1] ** -0.5, vectors.to(queries.dtype))

    def weighted_sum(self, weights: Tensor, values: Tensor) -> Tensor:
        """Return (B, H, T, C), the sum of values and of the vectors added to them."""
        vectors = self.values(self._rows(weights.shape[2], values.shape[2], weights.device))
        return weights @ values + torch.einsum("bhts,tsc->bhtc", weights, vectors.to(weights.dtype))

    def _rows(self, num_queries: int, num_keys: int, device: torch.device) -> Tensor:
        """Return the rows (T, S) of the tables."""
        return offsets(num_queries, num_keys, device).clamp(-self.before, self.after) + self.before
