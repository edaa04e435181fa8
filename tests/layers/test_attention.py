"""Attention against its definition and that of torch, with and without distances; its weights on request."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

from nmt.kernels.fused import LayerNorm
from nmt.layers.attention import AttentionRole, MultiHeadAttention, additive, prepared, recorded_attention
from nmt.layers.blocks import Residual
from nmt.layers.choices import NormOrder, Positions
from nmt.layers.relative_positions import (
    AlibiPositions,
    BucketPositions,
    ClippedPositions,
    RelativePositions,
    RotaryPositions,
    offset_buckets,
)
from nmt.models.configs import StackConfig
from nmt.models.kv_cache import KeyValueCache
from nmt.models.stack import SelfAttentionSublayer, build_attention

RELATIVE = [Positions.rotary, Positions.alibi, Positions.relative, Positions.t5]
MAX_DISTANCE = 4


def naive_attention(layer: MultiHeadAttention, x: Tensor, source: Tensor, mask: Tensor) -> Tensor:
    """One pair of a query and a key at a time; x (B, T, D), source (B, S, D), mask (B, T, S).

    Where distances count, x is the last T columns of the source.
    """
    H, (d_k, d_v) = layer.num_heads, (width // layer.num_heads for width in layer.widths)
    queries = layer.query(x).unflatten(-1, (H, d_k))
    G = layer.num_kv_heads  # head h of the queries has head h * G // H of keys and values
    keys = layer.key_value(source)[..., : G * d_k].unflatten(-1, (G, d_k))
    values = layer.key_value(source)[..., G * d_k :].unflatten(-1, (G, d_v))
    if layer.query_norm is not None and layer.key_norm is not None:
        queries, keys = (
            side / (side.square().mean(-1, keepdim=True) + 1e-6).sqrt() * norm.weight
            for side, norm in ((queries, layer.query_norm), (keys, layer.key_norm))
        )
    context = torch.zeros(*x.shape[:2], H, d_v)
    first = source.shape[1] - x.shape[1]
    for b, t, h in itertools.product(range(len(x)), range(x.shape[1]), range(H)):
        allowed = mask[b, t].nonzero().flatten().tolist()
        scores = [score(layer, h, queries[b, t, h], keys[b, s, h * G // H], first + t, s) for s in allowed]
        for weight, s in zip(torch.stack(scores).softmax(0), allowed, strict=True):
            value = values[b, s, h * G // H]
            if isinstance(layer.positions, ClippedPositions):
                value = value + layer.positions.values.weight[clipped_row(first + t, s)]
            context[b, t, h] += weight * value
    return layer.output(context.flatten(2))


def score(layer: MultiHeadAttention, head: int, query: Tensor, key: Tensor, t: int, s: int) -> Tensor:
    """Return the score of a query in column t and a key in column s, as the papers define it."""
    positions, bias = layer.positions, torch.zeros(())
    if isinstance(positions, RotaryPositions):
        query, key = rotated(query, t), rotated(key, s)
    if isinstance(positions, ClippedPositions):
        key = key + positions.keys.weight[clipped_row(t, s)]
    if isinstance(positions, AlibiPositions):
        bias -= 2.0 ** (-8 * (head + 1) / layer.num_heads) * abs(s - t)
    if isinstance(positions, BucketPositions):
        bucket = offset_buckets(
            torch.tensor(s - t),
            num_buckets=len(positions.table.weight),
            max_distance=positions.max_distance,
            bidirectional=layer.role is AttentionRole.encoder,
        )
        bias = positions.table.weight[bucket, head]
    return query @ key / math.sqrt(len(query)) + bias


def rotated(x: Tensor, position: int) -> Tensor:
    """Pairs of channels as complex numbers, times e^(i angle)."""
    angles = position * 10000 ** (-torch.arange(0, len(x), 2) / len(x))
    return torch.view_as_real(torch.view_as_complex(x.view(-1, 2)) * torch.exp(1j * angles)).flatten()


def clipped_row(t: int, s: int) -> int:
    """Shaw et al. 2018, equation 4: the tables begin with the vector of the furthest key before the query."""
    return max(-MAX_DISTANCE, min(MAX_DISTANCE, s - t)) + MAX_DISTANCE


def check_all_ways(layer: MultiHeadAttention, x: Tensor, source: Tensor, mask: Tensor) -> None:
    """Compare the written-out way of training, the fused and the recorded way with the definition."""
    for parameter in layer.parameters():
        parameter.add_(0.3 * torch.randn_like(parameter))
    expected = naive_attention(layer, x, source, mask)
    keys_values = layer.keys_values(source)
    with torch.enable_grad():
        written_out = layer.train()(x, *keys_values, mask[:, None])
    fused = layer.eval()(x, *keys_values, mask[:, None])
    with recorded_attention(layer) as recorded:
        shown = layer(x, *keys_values, mask[:, None])
    for context in (written_out, fused, shown):
        assert_close(context, expected)
    (weights,) = recorded[layer.role.value]
    assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    assert not weights.masked_select(~mask[:, None]).any()


@torch.no_grad()
@pytest.mark.parametrize(
    "options",
    [
        {"num_heads": 1},
        {"num_heads": 3},
        {"num_heads": 3, "bias": False, "output_bias": False},
        {"num_heads": 2, "d_k": 5, "d_v": 7},
        {"num_heads": 5, "d_k": 3, "d_v": 2, "bias": False},
        {"num_heads": 3, "d_v": 1, "output_bias": False},
        {"num_heads": 6, "num_kv_heads": 2, "d_v": 3},
        {"num_heads": 2, "num_kv_heads": 1, "qk_norm": True},
    ],
    ids=str,
)
def test_attention_is_softmax_of_scaled_products(options: dict[str, Any]) -> None:
    layer = MultiHeadAttention(12, dropout=0.0, role=AttentionRole.cross, **options)
    mask = torch.rand(2, 4, 5) < 0.6
    mask[:, :, 0] = True
    check_all_ways(layer, torch.randn(2, 4, 12), torch.randn(2, 5, 12), mask)


@torch.no_grad()
@pytest.mark.parametrize("num_queries", [1, 4, 9])
@pytest.mark.parametrize("role", [AttentionRole.encoder, AttentionRole.decoder])
@pytest.mark.parametrize("positions", RELATIVE)
def test_attention_knows_distances(positions: Positions, role: AttentionRole, num_queries: int) -> None:
    """Of the last queries of a sequence to all of it, up to far beyond the distances that differ."""
    cfg = StackConfig(
        d_model=16,
        num_heads=4,
        d_k=6,
        d_v=3,
        attention_bias=False,
        positions=positions,
        max_distance=MAX_DISTANCE,
        num_buckets=6,
    )
    mask = torch.rand(2, num_queries, 9) < 0.7
    mask[:, :, 0] = True
    if role is AttentionRole.decoder:
        mask = mask.tril(9 - num_queries)
    source = torch.randn(2, 9, 16)
    check_all_ways(build_attention(cfg, role), source[:, -num_queries:], source, mask)


@torch.no_grad()
@pytest.mark.parametrize("positions", [Positions.none, *RELATIVE])
def test_a_mask_that_is_causal_may_be_said_to_be(
    positions: Positions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fused function then gets no mask, where there is no bias either."""
    cfg = StackConfig(d_model=16, num_heads=2, positions=positions, max_distance=20)
    layer, x = SelfAttentionSublayer(cfg, AttentionRole.decoder).eval(), torch.randn(2, 6, 16)
    causal = torch.ones(6, 6, dtype=torch.bool).tril()
    expected, fused_function, said = layer(x, causal), functional.scaled_dot_product_attention, []

    def listening(*args: Any, **options: Any) -> Tensor:
        said.append((options["is_causal"], options["attn_mask"] is None))
        return fused_function(*args, **options)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", listening)
    assert_close(layer(x, causal, is_causal=True), expected)
    has_bias = positions in (Positions.alibi, Positions.t5)
    assert said == ([] if positions is Positions.relative else [(not has_bias, not has_bias)])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_equals_the_attention_of_torch(bias: bool, training: bool) -> None:
    layer = MultiHeadAttention(
        12, 3, dropout=0.0, role=AttentionRole.cross, bias=bias, output_bias=bias
    ).train(training)
    twin = nn.MultiheadAttention(12, 3, bias=bias, batch_first=True)
    weights = {"out_proj.weight": layer.output.weight}
    weights["in_proj_weight"] = torch.cat([layer.query.weight, layer.key_value.weight])
    if bias:
        for linear in (layer.query, layer.key_value, layer.output):
            nn.init.normal_(linear.bias)
        weights["out_proj.bias"] = layer.output.bias
        weights["in_proj_bias"] = torch.cat([layer.query.bias, layer.key_value.bias])
    twin.load_state_dict(weights)
    x, source = torch.randn(2, 4, 12), torch.randn(2, 5, 12)
    mask = torch.arange(5) < torch.tensor([5, 3])[:, None]
    expected, _ = twin(x, source, source, key_padding_mask=~mask)
    assert_close(layer(x, *layer.keys_values(source), mask[:, None, None, :]), expected)


def test_an_additive_mask_lies_as_kernels_of_gpus_want_it() -> None:
    mask = torch.arange(11) < torch.tensor([11, 3])[:, None, None, None]
    scores = additive(mask, torch.bfloat16)
    assert (scores.shape, scores.dtype) == (mask.shape, torch.bfloat16)
    assert torch.equal(scores == 0.0, mask)
    assert torch.equal(scores.isneginf(), ~mask)
    assert scores.stride() == (16, 16, 16, 1)
    assert prepared(mask, torch.zeros(2, 11, 4)) is mask  # on CPU


def test_an_additive_mask_is_compiled_once_for_all_lengths() -> None:
    """As prepared for a GPU: whether a length is a multiple of `ROW` makes no difference."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(lambda mask: additive(mask, torch.float32), backend="aot_eager", dynamic=True)
    for length in (9, 16, 12, 24):
        mask = torch.arange(length) < torch.tensor([length, 3])[:, None]
        assert torch.equal(compiled(mask), additive(mask, torch.float32))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@torch.no_grad()
@pytest.mark.parametrize("positions", Positions)
@pytest.mark.parametrize("norm_order", NormOrder)
def test_cached_steps_equal_the_full_pass(positions: Positions, norm_order: NormOrder) -> None:
    cfg = StackConfig(d_model=16, num_heads=2, positions=positions, max_distance=20, norm_order=norm_order)
    layer, x = SelfAttentionSublayer(cfg, AttentionRole.decoder).eval(), torch.randn(3, 30, 16)
    cache = KeyValueCache()
    steps = [layer.step(x[:, t : t + 1], replace(cache, position=t), "0") for t in range(30)]
    assert_close(torch.cat(steps, dim=1), layer(x, torch.ones(30, 30, dtype=torch.bool).tril()))


@torch.no_grad()
@pytest.mark.parametrize("positions", [Positions.none, *RELATIVE])
def test_columns_of_padding_at_the_front_change_nothing(positions: Positions) -> None:
    """Neither in a full pass nor in steps: where nothing is added to embeddings, only distances count."""
    cfg = StackConfig(d_model=16, num_heads=2, positions=positions, max_distance=20)
    layer, x = SelfAttentionSublayer(cfg, AttentionRole.decoder).eval(), torch.randn(2, 6, 16)
    causal = torch.ones(6, 6, dtype=torch.bool).tril()
    expected = layer(x, causal)

    padded = torch.cat([torch.randn(2, 3, 16), x], dim=1)
    real = torch.arange(9) >= 3
    mask = torch.ones(9, 9, dtype=torch.bool).tril() & (real | torch.eye(9, dtype=torch.bool))
    assert_close(layer(padded, mask)[:, 3:], expected)
    cache = KeyValueCache()
    steps = [
        layer.step(
            padded[:, t : t + 1],
            replace(cache, position=t),
            "0",
            mask[None, t : t + 1, : t + 1].expand(2, 1, 1, -1),
        )
        for t in range(9)
    ]
    assert_close(torch.cat(steps[3:], dim=1), expected)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("positions", [Positions.none, *RELATIVE])
def test_distances_in_half_precision(positions: Positions, training: bool) -> None:
    cfg = StackConfig(d_model=16, num_heads=2, positions=positions)
    layer, x = build_attention(cfg, AttentionRole.decoder).train(training), torch.randn(2, 5, 16)
    causal = torch.ones(5, 5, dtype=torch.bool).tril()
    with torch.autocast("cpu", torch.bfloat16):
        rough = layer(x, *layer.keys_values(x), causal)
    assert rough.dtype is torch.bfloat16
    assert_close(rough.float(), layer(x, *layer.keys_values(x), causal), atol=0.05, rtol=0.05)
    torch.autograd.backward(rough.float().sum())
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("positions", RELATIVE)
def test_attention_to_another_sequence_knows_no_distances(positions: Positions) -> None:
    cfg = StackConfig(d_model=16, num_heads=2, positions=positions)
    assert type(build_attention(cfg, AttentionRole.cross).positions) is RelativePositions


def test_attention_without_a_mask_sees_everything() -> None:
    layer, x = MultiHeadAttention(8, 2, dropout=0.0, role=AttentionRole.encoder), torch.randn(2, 5, 8)
    everything = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    for training in (True, False):
        layer.train(training)
        assert_close(layer(x, *layer.keys_values(x), None), layer(x, *layer.keys_values(x), everything))


@torch.no_grad()
def test_attention_dropout_drops_whole_weights() -> None:
    """With values of one each, what comes out is the sum of the weights that are left."""
    layer = MultiHeadAttention(4, 1, dropout=0.5, role=AttentionRole.encoder)
    nn.init.eye_(layer.output.weight)
    x, keys, values = torch.zeros(1, 1, 4), torch.zeros(1, 1, 64, 4), torch.ones(1, 1, 64, 4)
    sums = {float(layer(x, keys, values, None)[0, 0, 0]) for _ in range(20)}
    assert len(sums) > 5
    assert all((32 * value) % 1 == 0 for value in sums)  # each of 64 equal weights is 0 or 2 / 64
    assert float(layer.eval()(x, keys, values, None)[0, 0, 0]) == 1.0


@pytest.mark.parametrize("norm_order", NormOrder)
@pytest.mark.parametrize("training", [True, False])
def test_recording_ends_with_its_block(norm_order: NormOrder, training: bool) -> None:
    layer, x = (
        MultiHeadAttention(8, 2, dropout=0.0, role=AttentionRole.encoder).train(training),
        torch.randn(1, 3, 8),
    )
    residual = Residual(LayerNorm(8), norm_order, dropout=0.0)
    with recorded_attention(layer) as recorded:
        for _ in range(2):
            residual(x, lambda y: layer(y, *layer.keys_values(y), None))
    residual(x, lambda y: layer(y, *layer.keys_values(y), None))
    assert len(recorded["encoder"]) == 2
