"""The blocks against their definitions."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from nmt.attention import Attention, Role, recorded_attention
from nmt.layers import Activation, Dropout, FeedForward, NormOrder, Residual
from nmt.positions import SinusoidalPositions, sinusoids


@pytest.mark.parametrize(("rate", "threshold"), [(0.1, 26), (0.3, 77), (0.5, 128), (0.001, 1), (0.999, 255)])
def test_dropout_zeroes_a_multiple_of_1_in_256_and_keeps_the_mean(rate: float, threshold: int) -> None:
    x = torch.ones(1_000_000)
    y = Dropout(rate)(x)
    kept = y[y != 0]
    share = threshold / 256
    assert_close(kept, torch.full_like(kept, 1 / (1 - share)))
    sigma = math.sqrt(share * (1 - share) / len(x))
    assert float((y == 0).float().mean()) == pytest.approx(share, abs=5 * sigma)
    assert float(y.mean()) == pytest.approx(1.0, abs=5 * sigma / (1 - share))


def test_dropout_is_a_function_of_the_seed() -> None:
    dropout, x = Dropout(0.3), torch.randn(5, 7)
    torch.manual_seed(1)
    first, second = dropout(x), dropout(x)
    torch.manual_seed(1)
    assert torch.equal(dropout(x), first)
    assert not torch.equal(first, second)


def test_dropout_does_nothing_outside_training() -> None:
    x = torch.randn(5, 7)
    assert Dropout(0.3).eval()(x) is x
    assert Dropout(0.0)(x) is x


@pytest.mark.parametrize("shape", [(1,), (7,), (8,), (9,), (3, 5), (2, 3, 11), (0, 4), ()])
def test_dropout_of_any_shape(shape: tuple[int, ...]) -> None:
    y = Dropout(0.5)(torch.ones(shape))
    assert y.shape == shape
    assert set(y.flatten().tolist()) <= {0.0, 2.0}


def test_dropout_of_a_transposed_tensor_differs_by_row_and_column() -> None:
    y = Dropout(0.5)(torch.ones(64, 32).T)
    assert len(y.unique(dim=0)) == 32
    assert len(y.unique(dim=1)[0]) == 64


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dropout_hides_gradients_where_it_hides_values(dtype: torch.dtype) -> None:
    x = torch.ones(33, 7, dtype=dtype, requires_grad=True)
    y = Dropout(0.3)(x)
    torch.autograd.backward(y.sum())
    assert x.grad is not None
    assert y.dtype is x.grad.dtype is dtype
    assert torch.equal(x.grad, y.detach())


def test_dropout_compiles_into_one_graph() -> None:
    compiled = torch.compile(Dropout(0.5), dynamic=True, fullgraph=True, backend="eager")
    for length in (5, 16):
        assert set(compiled(torch.ones(length, 32)).unique().tolist()) == {0.0, 2.0}


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


def naive_attention(layer: Attention, x: Tensor, source: Tensor, mask: Tensor) -> Tensor:
    """One sentence, one head and one query at a time; x (B, T, D), source (B, S, D), mask (B, T, S)."""
    d_model, size = x.shape[-1], x.shape[-1] // layer.num_heads
    key, value = layer.key_value.weight[:d_model], layer.key_value.weight[d_model:]
    key_bias, value_bias = layer.key_value.bias[:d_model], layer.key_value.bias[d_model:]
    context = torch.zeros_like(x)
    for b in range(len(x)):
        for first in range(0, d_model, size):
            head = slice(first, first + size)
            for t in range(x.shape[1]):
                query = layer.query.weight[head] @ x[b, t] + layer.query.bias[head]
                allowed = source[b][mask[b, t]]
                keys = allowed @ key[head].T + key_bias[head]
                values = allowed @ value[head].T + value_bias[head]
                scores = torch.exp(keys @ query / math.sqrt(size))
                context[b, t, head] = (scores / scores.sum()) @ values
    return context @ layer.output.weight.T + layer.output.bias


@torch.no_grad()
@pytest.mark.parametrize("num_heads", [1, 3])
def test_attention_is_softmax_of_scaled_products(num_heads: int) -> None:
    layer = Attention(12, num_heads, dropout=0.0, role=Role.encoder)
    for bias in (layer.query.bias, layer.key_value.bias, layer.output.bias):
        bias.normal_()
    x, source = torch.randn(2, 4, 12), torch.randn(2, 5, 12)
    mask = torch.rand(2, 4, 5) < 0.6
    mask[:, :, 0] = True
    expected = naive_attention(layer, x, source, mask)

    attended = layer.attended(source)
    written_out = layer.train()(x, *attended, mask[:, None])
    fused = layer.eval()(x, *attended, mask[:, None])
    with recorded_attention(layer) as recorded:
        shown = layer(x, *attended, mask[:, None])
    for context in (written_out, fused, shown):
        assert_close(context, expected)
    (weights,) = recorded[""]
    assert_close(weights.sum(-1), torch.ones(2, num_heads, 4))
    assert not weights.masked_select(~mask[:, None]).any()


def test_attention_without_a_mask_sees_everything() -> None:
    layer, x = Attention(8, 2, dropout=0.0, role=Role.encoder), torch.randn(2, 5, 8)
    everything = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    for training in (True, False):
        layer.train(training)
        assert_close(layer(x, *layer.attended(x), None), layer(x, *layer.attended(x), everything))


@torch.no_grad()
def test_attention_dropout_drops_whole_weights() -> None:
    """With values of one each, what comes out is the sum of the weights that are left."""
    layer = Attention(4, 1, dropout=0.5, role=Role.encoder)
    torch.nn.init.eye_(layer.output.weight)
    x, keys, values = torch.zeros(1, 1, 4), torch.zeros(1, 1, 64, 4), torch.ones(1, 1, 64, 4)
    sums = {float(layer(x, keys, values, None)[0, 0, 0]) for _ in range(20)}
    assert len(sums) > 5
    assert all((32 * value) % 1 == 0 for value in sums)  # each of 64 equal weights is 0 or 2 / 64
    assert float(layer.eval()(x, keys, values, None)[0, 0, 0]) == 1.0


@pytest.mark.parametrize("norm_order", NormOrder)
@pytest.mark.parametrize("training", [True, False])
def test_recording_ends_with_its_block(norm_order: NormOrder, training: bool) -> None:
    layer, x = Attention(8, 2, dropout=0.0, role=Role.encoder).train(training), torch.randn(1, 3, 8)
    residual = Residual(8, norm_order, dropout=0.0)
    with recorded_attention(layer) as recorded:
        for _ in range(2):
            residual(x, lambda y: layer(y, *layer.attended(y), None))
    residual(x, lambda y: layer(y, *layer.attended(y), None))
    assert len(recorded[""]) == 2


@pytest.mark.parametrize(("activation", "function"), [(Activation.relu, F.relu), (Activation.gelu, F.gelu)])
def test_feed_forward(activation: Activation, function: Callable[[Tensor], Tensor]) -> None:
    block, x = FeedForward(6, 10, activation, dropout=0.0), torch.randn(3, 6)
    inner, outer = block.inner, block.outer
    assert_close(block(x), function(x @ inner.weight.T + inner.bias) @ outer.weight.T + outer.bias)


def test_swiglu() -> None:
    block, x = FeedForward(6, 10, Activation.swiglu, dropout=0.0), torch.randn(3, 6)
    gate, linear = block.inner.weight[:10] @ x.T, block.inner.weight[10:] @ x.T
    expected = block.outer.weight @ (gate * torch.sigmoid(gate) * linear)
    assert_close(block(x), expected.T)


def test_residual_normalises_before_or_after() -> None:
    x = torch.randn(3, 6)
    for norm_order, expected in (
        (NormOrder.pre, x + 2 * F.layer_norm(x, (6,))),
        (NormOrder.post, F.layer_norm(x + 2 * x, (6,))),
    ):
        residual = Residual(6, norm_order, dropout=0.0)
        assert_close(residual(x, lambda y: 2 * y), expected)
