"""Positions against their definitions: those added to embeddings, and those that self-attention is told."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from nmt.layers.positions import SinusoidalPositions, sinusoids
from nmt.layers.relative_positions import (
    AlibiPositions,
    BucketPositions,
    ClippedPositions,
    RotaryPositions,
    alibi_slopes,
    offset_buckets,
    offsets,
)


@pytest.mark.parametrize("d_model", [8, 7, 1])
def test_sinusoids_follow_the_paper(d_model: int) -> None:
    table = sinusoids(2000, d_model)
    for position in (0, 1, 2, 77, 1999):
        for channel in range(d_model):
            angle = position / 10000 ** (2 * (channel // 2) / d_model)
            expected = math.cos(angle) if channel % 2 else math.sin(angle)
            assert float(table[position, channel]) == pytest.approx(expected, abs=1e-6)


def test_sinusoidal_positions_grow() -> None:
    positions = SinusoidalPositions(6)
    assert_close(positions(1503), sinusoids(1503, 6))
    assert_close(positions(5), sinusoids(5, 6))
    assert positions.state_dict() == {}


def test_the_queries_are_the_last_columns() -> None:
    assert offsets(2, 4, torch.device("cpu")).tolist() == [[-2, -1, 0, 1], [-3, -2, -1, 0]]


@pytest.mark.parametrize("size", [2, 6])
def test_rotary_turns_each_pair_of_channels(size: int) -> None:
    """Su et al. 2021, equation 15: one rotation matrix for each pair."""
    x, start = torch.randn(2, 3, 5, size), 7
    expected = torch.empty_like(x)
    for t in range(5):
        for i in range(size // 2):
            angle = (start + t) * 10000 ** (-2 * i / size)
            cos, sin = math.cos(angle), math.sin(angle)
            rotation = torch.tensor([[cos, -sin], [sin, cos]])
            expected[:, :, t, 2 * i : 2 * i + 2] = x[:, :, t, 2 * i : 2 * i + 2] @ rotation.T
    assert_close(RotaryPositions(size).rotate(x, start), expected)


def test_rotary_products_depend_on_the_distance_alone() -> None:
    rotary, query, key = RotaryPositions(8), torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)

    def product(t: int, s: int) -> Tensor:
        return (rotary.rotate(query, t) * rotary.rotate(key, s)).sum()

    assert_close(product(0, 0), (query * key).sum())
    for shift in (1, 50, 700):
        assert_close(product(5 + shift, 2 + shift), product(5, 2), atol=1e-4, rtol=1e-4)
    assert not torch.isclose(product(5, 3), product(5, 2), rtol=1e-2)
    assert not torch.isclose(product(2, 5), product(5, 2), rtol=1e-2)


def test_rotary_keeps_the_type() -> None:
    assert RotaryPositions(4).rotate(torch.randn(1, 2, 3, 4).bfloat16(), 0).dtype is torch.bfloat16


@pytest.mark.parametrize(
    ("num_heads", "exponents"),
    [
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),  # the values of the paper: 1/2, 1/4, ..., 1/256
        (16, [0.5 * head for head in range(1, 17)]),
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
        (3, [4, 8, 2]),
        (1, [8]),
    ],
)
def test_alibi_slopes(num_heads: int, exponents: list[float]) -> None:
    assert alibi_slopes(num_heads) == pytest.approx([2**-exponent for exponent in exponents])


def test_alibi_bias_falls_in_both_directions() -> None:
    bias = AlibiPositions(2).bias(torch.randn(1, 2, 2, 4), 3)
    distance = torch.tensor([[1.0, 0.0, 1.0], [2.0, 1.0, 0.0]])
    assert_close(bias, -torch.stack([distance / 16, distance / 256])[None])


def buckets_of(offsets: list[int], **options: int) -> list[int]:
    causal = {"num_buckets": 32, "max_distance": 128, "bidirectional": False}
    return offset_buckets(torch.tensor(offsets), **(causal | options)).tolist()  # type: ignore[arg-type]


def test_t5_buckets_in_both_directions() -> None:
    """16 for each direction: 8 for one distance each, then 8 * 2^(k / 2) <= distance in bucket 8 + k."""
    firsts = [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91]
    lasts = [*(first - 1 for first in firsts[1:]), 5000]
    expected = list(range(16))
    assert buckets_of([-d for d in firsts], bidirectional=True) == expected
    assert buckets_of([-d for d in lasts], bidirectional=True) == expected
    assert buckets_of(firsts[1:], bidirectional=True) == [16 + bucket for bucket in expected[1:]]
    assert buckets_of(lasts[1:], bidirectional=True) == [16 + bucket for bucket in expected[1:]]


def test_t5_buckets_of_the_past() -> None:
    """32 for one direction: 16 for one distance each, then 16 * 8^(k / 16) <= distance in bucket 16 + k."""
    distances = {
        0: 0,
        1: 1,
        15: 15,
        16: 16,
        18: 16,
        19: 17,
        20: 17,
        32: 21,
        64: 26,
        127: 31,
        128: 31,
        999: 31,
    }
    assert buckets_of([-d for d in distances]) == list(distances.values())
    assert buckets_of([1, 2, 500]) == [0, 0, 0]


@pytest.mark.parametrize(("num_buckets", "furthest"), [(32, 128), (4, 3), (8, 64), (64, 256), (10, 27)])
def test_t5_buckets_are_exact_at_their_borders(num_buckets: int, furthest: int) -> None:
    """The definition in fractions: bucket E + k holds the distances with (d / E)^E >= (furthest / E)^k."""
    exact = num_buckets // 2

    def bucket(distance: int) -> int:
        if distance < exact:
            return distance
        ratio, base = Fraction(distance, exact) ** exact, Fraction(furthest, exact)
        return exact + max(k for k in range(exact) if ratio >= base**k)

    distances = range(furthest + 10)
    found = buckets_of([-d for d in distances], num_buckets=num_buckets, max_distance=furthest)
    assert found == [bucket(d) for d in distances]


@pytest.mark.parametrize("bidirectional", [True, False])
def test_t5_bias_looks_up_the_bucket_of_each_offset(bidirectional: bool) -> None:
    options = {"num_buckets": 8, "max_distance": 6, "bidirectional": bidirectional}
    positions = BucketPositions(16, 3, num_buckets=8, max_distance=6, bidirectional=bidirectional)
    bias = positions.bias(torch.randn(2, 3, 9, 4), 20)
    assert bias.shape == (1, 3, 9, 20)
    for t in range(9):
        for s in range(20):
            (bucket,) = buckets_of([s - (11 + t)], **options)
            assert torch.equal(bias[0, :, t, s], positions.table.weight[bucket])


@pytest.mark.parametrize("mask", [None, torch.ones(2, 1, 9, 20, dtype=torch.bool), torch.zeros(2, 1, 1, 20)])
@pytest.mark.parametrize("kind", ["t5", "alibi"])
def test_a_bias_has_the_layout_that_fused_attention_of_gpus_takes(kind: str, mask: Tensor | None) -> None:
    """Otherwise torch computes all scores in plain operations there, and says nothing."""
    t5 = BucketPositions(16, 3, num_buckets=8, max_distance=6, bidirectional=True)
    positions = t5 if kind == "t5" else AlibiPositions(3)
    bias = positions.masked_bias(torch.randn(2, 3, 9, 4), 20, mask)
    assert bias is not None
    assert bias.stride(-1) == 1


def test_clipped_vectors_have_no_rows_for_what_a_causal_mask_hides() -> None:
    for bidirectional, rows in ((True, 7), (False, 4)):
        positions = ClippedPositions(4, 6, max_distance=3, bidirectional=bidirectional)
        assert positions.keys.weight.shape == (rows, 4)
        assert positions.values.weight.shape == (rows, 6)
