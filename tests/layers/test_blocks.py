"""The blocks against their definitions."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from nmt import kernels
from nmt.kernels import fused
from nmt.kernels.fused import LayerNorm
from nmt.layers.blocks import ACTIVATIONS, GATES, NORMS, Dropout, FeedForward, Residual
from nmt.layers.choices import Activation, Norm, NormOrder


@pytest.mark.parametrize(("rate", "threshold"), [(0.1, 26), (0.3, 77), (0.5, 128), (0.001, 1), (0.999, 255)])
def test_dropout_zeroes_a_multiple_of_1_in_256_and_keeps_the_mean(rate: float, threshold: int) -> None:
    x = torch.ones(1_000_000)
    with kernels.disabled():
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


def normal_cdf(x: Tensor) -> Tensor:
    return (1 + torch.erf(x / math.sqrt(2))) / 2


PLAIN: dict[Activation, Callable[[Tensor], Tensor]] = {
    Activation.relu: lambda x: x.clamp(min=0),
    Activation.gelu: lambda x: x * normal_cdf(x),
    Activation.selu: lambda x: 1.0507009873554805 * torch.where(x > 0, x, 1.6732632423543772 * x.expm1()),
    Activation.silu: lambda x: x * torch.sigmoid(x),
}
GATED: dict[Activation, Callable[[Tensor], Tensor]] = {
    Activation.glu: torch.sigmoid,
    Activation.reglu: PLAIN[Activation.relu],
    Activation.geglu: PLAIN[Activation.gelu],
    Activation.seglu: PLAIN[Activation.selu],
    Activation.swiglu: PLAIN[Activation.silu],
}


def test_every_activation_is_plain_or_gated() -> None:
    assert {*PLAIN, *GATED} == {*ACTIVATIONS, *GATES} == set(Activation)


@pytest.mark.parametrize("activation", PLAIN)
def test_feed_forward(activation: Activation) -> None:
    block, x = FeedForward(6, 10, activation, dropout=0.0), torch.randn(3, 6)
    inner, outer = block.inner, block.outer
    nn.init.normal_(inner.bias)
    nn.init.normal_(outer.bias)
    hidden = PLAIN[activation](x @ inner.weight.T + inner.bias)
    assert_close(block(x), hidden @ outer.weight.T + outer.bias)


@pytest.mark.parametrize("activation", GATED)
def test_gated_feed_forward(activation: Activation) -> None:
    """Shazeer 2020, section 2: (f(x W + b) * (x V + c)) W2 + b2."""
    block, x = FeedForward(6, 10, activation, dropout=0.0), torch.randn(3, 6)
    nn.init.normal_(block.inner.bias)
    nn.init.normal_(block.outer.bias)
    (W, V), (b, c) = block.inner.weight.chunk(2), block.inner.bias.chunk(2)
    hidden = GATED[activation](x @ W.T + b) * (x @ V.T + c)
    assert_close(block(x), hidden @ block.outer.weight.T + block.outer.bias)


@pytest.mark.parametrize("activation", [Activation.relu, Activation.swiglu])
def test_feed_forward_without_biases(activation: Activation) -> None:
    block = FeedForward(6, 10, activation, dropout=0.0, bias=False)
    assert sorted(block.state_dict()) == ["inner.weight", "outer.weight"]
    assert not block(torch.zeros(3, 6)).any()


@pytest.mark.parametrize("eps", [1e-6, 0.1])
def test_norms(eps: float) -> None:
    x = torch.randn(3, 6)
    variance = x.var(-1, keepdim=True, unbiased=False)
    layer_norm = (x - x.mean(-1, keepdim=True)) / torch.sqrt(variance + eps)
    assert_close(NORMS[Norm.layer_norm](6, eps)(x), layer_norm)
    rms_norm = x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps)
    assert_close(NORMS[Norm.rms_norm](6, eps)(x), rms_norm)


@pytest.mark.parametrize("norm", [LayerNorm(6), nn.RMSNorm(6)])
def test_residual_normalises_before_or_after(norm: nn.Module) -> None:
    x = torch.randn(3, 6)
    for norm_order, expected in (
        (NormOrder.pre, x + 2 * norm(x)),
        (NormOrder.post, norm(x + 2 * x)),
    ):
        residual = Residual(norm, norm_order, dropout=0.0)
        assert_close(residual(x, lambda y: 2 * y), expected)


def test_layers_that_are_hooked_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast path reads weights; somebody who hooks or replaces a layer wants more than these."""
    block, x, num_fast, seen = FeedForward(6, 10, Activation.relu, dropout=0.0), torch.randn(3, 6), [], []

    def fast(x: Tensor, *weights: object) -> Tensor:
        num_fast.append(len(weights))
        return x

    monkeypatch.setattr(fused, "_can_multiply", lambda x, weight: True)
    monkeypatch.setattr(fused, "linear", torch.nn.functional.linear)
    monkeypatch.setattr(fused._FeedForward, "apply", fast)
    assert block(x) is x
    handle = block.outer.register_forward_hook(lambda *call: seen.append(call))
    assert block(x) is not x
    handle.remove()
    block.inner = nn.Linear(6, 10)  # type: ignore[assignment]
    assert block(x) is not x
    assert (len(num_fast), len(seen)) == (1, 1)


@pytest.mark.parametrize("hooked", [False, True])
def test_a_norm_before_a_sublayer_is_called_where_it_is_hooked(hooked: bool) -> None:
    residual, x, seen = Residual(LayerNorm(6), NormOrder.pre, dropout=0.0), torch.randn(3, 6), []
    if hooked:
        residual.norm.register_forward_hook(lambda *call: seen.append(call))
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(residual(x, lambda y: y.float()), x + nn.LayerNorm(6)(x), atol=0.02, rtol=0.02)
    assert len(seen) == hooked
