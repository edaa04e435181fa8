"""The SSRU and average attention against loops written from the formulas of their papers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from nmt.layers.blocks import FeedForward
from nmt.layers.choices import Activation
from nmt.layers.summaries import AverageAttention, Ssru, Summary, recurrence

D = 6


def ssru_loop(layer: Ssru, x: Tensor) -> Tensor:
    """Return what Kim et al. 2019 write, position by position."""
    forget_weight, weight = layer.maps.weight[:D], layer.maps.weight[D:]
    cell, outputs = torch.zeros(len(x), D, dtype=x.dtype), []
    for x_t in x.unbind(1):
        f = torch.sigmoid(x_t @ forget_weight.T + layer.gate_bias)
        cell = f * cell + (1 - f) * (x_t @ weight.T)
        outputs.append(torch.relu(cell))
    return torch.stack(outputs, dim=1)


def average_loop(layer: AverageAttention, x: Tensor) -> Tensor:
    """Return equations 1 to 3 of Zhang et al. 2018, without the residual connection and its norm."""
    outputs = []
    for j in range(1, x.shape[1] + 1):
        y, g = x[:, j - 1], torch.stack([x[:, k] for k in range(j)]).sum(0) / j
        if isinstance(layer.block, FeedForward):
            inner, outer = layer.block.inner, layer.block.outer
            g = torch.relu(g @ inner.weight.T + inner.bias) @ outer.weight.T + outer.bias
        gates = torch.sigmoid(torch.cat([y, g], dim=1) @ layer.gates.weight.T + layer.gates.bias)
        outputs.append(gates[:, :D] * y + gates[:, D:] * g)
    return torch.stack(outputs, dim=1)


def average(*, with_block: bool) -> AverageAttention:
    block = FeedForward(D, 10, Activation.relu, dropout=0.0) if with_block else None
    return AverageAttention(D, block)


@pytest.fixture(params=["ssru", "average", "average_alone"])
def layer(request: pytest.FixtureRequest) -> Summary:
    """Return a summary with biases that are not zero."""
    kind = request.param
    made: Summary = Ssru(D) if kind == "ssru" else average(with_block=kind == "average")
    for name, parameter in made.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    return made


def loop(layer: Summary, x: Tensor) -> Tensor:
    if isinstance(layer, Ssru):
        return ssru_loop(layer, x)
    assert isinstance(layer, AverageAttention)
    return average_loop(layer, x)


@pytest.mark.parametrize("length", [1, 2, 9])
def test_outputs_and_gradients_are_those_of_the_paper(layer: Summary, length: int) -> None:
    x, weights = torch.randn(3, length, D, requires_grad=True), torch.randn(3, length, D)
    wanted = [x, *layer.parameters()]
    expected = loop(layer, x)
    of_loop = torch.autograd.grad((expected * weights).sum(), wanted)
    found = layer(x)
    assert_close(found, expected)
    assert_close(torch.autograd.grad((found * weights).sum(), wanted), of_loop)


def test_a_step_needs_nothing_but_one_vector(layer: Summary) -> None:
    x, past, found = torch.randn(4, 7, D), None, []
    for position in range(7):
        out, past = layer.step(x[:, position : position + 1], past, position)
        assert past.shape == (4, D)
        found.append(out)
    assert_close(torch.cat(found, dim=1), loop(layer, x))
    out, _ = layer.step(x[:, :1], past, torch.tensor(7))  # as a GPU counts positions
    assert_close(out[:, 0], loop(layer, torch.cat([x, x[:, :1]], dim=1))[:, -1])


def test_gradients_of_the_recurrence() -> None:
    gate, value = (
        torch.rand(2, 5, 3).double().requires_grad_(),
        torch.randn(2, 5, 3).double().requires_grad_(),
    )
    assert torch.autograd.gradcheck(recurrence, (gate, value))


def test_gates_of_0_and_1_forget_and_keep_everything() -> None:
    gate = torch.ones(1, 300, 2, requires_grad=True)
    value = torch.randn(1, 300, 2, requires_grad=True)
    gates = torch.cat([torch.zeros_like(gate[:, :1]), gate[:, 1:]], dim=1)
    cells = recurrence(gates, value)
    assert torch.equal(cells, value[:, :1].expand_as(value))
    (grad,) = torch.autograd.grad(cells[:, -1].sum(), value)
    assert torch.equal(grad[:, 0], torch.ones(1, 2))
    assert not grad[:, 1:].any()


def test_memory_is_float32_beside_bf16(layer: Summary) -> None:
    """After 2,000 alike positions, where sums in bf16 would have stopped growing long ago."""
    x = torch.randn(1, 1, D).expand(1, 2000, D)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found, (_, past) = layer(x), layer.step(x[:, :1], None, 0)
    assert past.dtype is torch.float32
    assert_close(found.float(), layer(x), atol=0.05, rtol=0.05)
    half = layer.bfloat16()
    with torch.no_grad():
        out, past = half.step(x[:, :1].bfloat16(), None, 0)
    assert (out.dtype, past.dtype) == (torch.bfloat16, torch.float32)
