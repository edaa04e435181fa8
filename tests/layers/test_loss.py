"""The loss against `F.cross_entropy`."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import nmt.layers.loss
from nmt import kernels
from nmt.layers.loss import (
    VOCABULARY_MULTIPLE,
    PassFactors,
    projected_agreement,
    projected_imitation,
    projected_nll,
    smoothed_nll,
)

TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}


def oracle(logits: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor, Tensor]:
    """Loss, plain loss and the gradient of three times the loss, in float64."""
    exact = logits.detach().double().requires_grad_()
    loss = F.cross_entropy(exact, targets, label_smoothing=smoothing, reduction="sum")
    (gradient,) = torch.autograd.grad(3.0 * loss, exact)
    return loss.detach(), F.cross_entropy(exact, targets, reduction="sum").detach(), gradient


@pytest.mark.parametrize("chunk", [None, 1, 40])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_equals_cross_entropy(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, smoothing: float, chunk: int | None
) -> None:
    if chunk is not None:  # of one row each; of three rows, the last chunk of one
        monkeypatch.setattr(nmt.layers.loss, "CPU_CHUNK", chunk)
    logits = (3.0 * torch.randn(7, 13)).to(dtype).requires_grad_()
    targets = torch.randint(13, (7,))
    loss, nll = smoothed_nll(logits, targets, smoothing)
    torch.autograd.backward(3.0 * loss)
    expected_loss, expected_nll, expected_gradient = oracle(logits, targets, smoothing)

    assert loss.dtype is nll.dtype is torch.float32
    assert not nll.requires_grad
    assert logits.grad is not None
    assert logits.grad.dtype is dtype
    assert_close(loss.detach().double(), expected_loss, rtol=2e-6, atol=2e-6)
    assert_close(nll.double(), expected_nll, rtol=2e-6, atol=2e-6)
    assert_close(logits.grad.double(), expected_gradient, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_is_a_sum_over_tokens() -> None:
    logits, targets = torch.randn(6, 11), torch.randint(11, (6,))
    whole = smoothed_nll(logits, targets, 0.1)
    parts = [smoothed_nll(logits[i : i + 2], targets[i : i + 2], 0.1) for i in (0, 2, 4)]
    for number in (0, 1):
        assert_close(whole[number], torch.stack([part[number] for part in parts]).sum())


def test_of_nothing_is_zero() -> None:
    logits = torch.randn(0, 11, requires_grad=True)
    loss, nll = smoothed_nll(logits, torch.zeros(0, dtype=torch.int64), 0.1)
    torch.autograd.backward(loss)
    assert (float(loss.detach()), float(nll)) == (0.0, 0.0)
    assert logits.grad is not None
    assert logits.grad.shape == (0, 11)


def test_gradients_of_two_losses_add_up() -> None:
    weight = torch.randn(11, 5, requires_grad=True)
    hidden, targets = torch.randn(6, 5), torch.randint(11, (6,))
    for _ in range(2):
        torch.autograd.backward(smoothed_nll(hidden @ weight.T, targets, 0.1)[0])
    twice = weight.grad
    weight.grad = None
    torch.autograd.backward(2.0 * smoothed_nll(hidden @ weight.T, targets, 0.1)[0])
    assert_close(twice, weight.grad)


def test_without_gradient() -> None:
    logits, targets = torch.randn(6, 11, requires_grad=True), torch.randint(11, (6,))
    with torch.no_grad():
        loss, _ = smoothed_nll(logits, targets, 0.1)
    assert not loss.requires_grad
    assert_close(loss, smoothed_nll(logits, targets, 0.1)[0].detach())


def test_a_second_way_back_is_refused() -> None:
    """The gradient is scaled in place, so a second pass would be wrong: it must not go unnoticed."""
    logits, targets = torch.randn(6, 11, requires_grad=True), torch.randint(11, (6,))
    loss, _ = smoothed_nll(logits, targets, 0.1)
    torch.autograd.backward(2.0 * loss, retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.backward(loss)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_extreme_logits_stay_finite(dtype: torch.dtype, smoothing: float) -> None:
    logits = torch.zeros(2, 9, dtype=dtype)
    logits[:, 3] = 1e30
    logits.requires_grad_()
    loss, nll = smoothed_nll(logits, torch.tensor([3, 4]), smoothing)  # sure and right, sure and wrong
    torch.autograd.backward(loss)
    assert loss.isfinite()
    assert float(nll) == pytest.approx(1e30, rel=1e-2)
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    expected = torch.full((9,), -smoothing / 9)  # of being sure and right
    expected[3] += smoothing
    assert_close(logits.grad[0].float(), expected, rtol=1e-2, atol=1e-3)


def test_small_gradients_survive_fp16() -> None:
    """A probability far below what fp16 can hold is there once the loss is scaled up."""
    logits = torch.tensor([[0.0, -20.0]], dtype=torch.float16, requires_grad=True)
    loss, _ = smoothed_nll(logits, torch.tensor([0]), 0.0)
    torch.autograd.backward(65536.0 * loss)
    assert logits.grad is not None
    assert float(logits.grad[0, 1]) == pytest.approx(65536.0 * 2.06e-9, rel=1e-2)


@pytest.mark.parametrize("at_once", [None, 1, 40])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_projected_by_parts(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, has_bias: bool, at_once: int | None
) -> None:
    """Of hidden states, in the precision of training; what is expected is float64 of the rounded factors."""
    if at_once is not None:  # of one row each; of three rows, the last part of one
        monkeypatch.setattr(nmt.layers.loss, "LOGITS_AT_ONCE_ON_CPU", at_once)
    output, hidden = nn.Linear(5, 13, bias=has_bias), torch.randn(7, 5, requires_grad=True)
    targets, inputs = torch.randint(13, (7,)), [hidden, *output.parameters()]
    with kernels.disabled(), torch.autocast("cpu", dtype, enabled=dtype is not torch.float32):
        loss, nll = projected_nll(hidden, output, targets, 0.1)
    gradients = torch.autograd.grad(3.0 * loss, inputs)

    rounded = [x.detach().to(dtype).double().requires_grad_() for x in inputs]
    logits = rounded[0] @ rounded[1].T + (rounded[2] if has_bias else 0.0)
    expected = F.cross_entropy(logits, targets, label_smoothing=0.1, reduction="sum")
    tolerance = 3 * TOLERANCE[dtype]
    assert not nll.requires_grad
    assert_close(loss.detach().double(), expected.detach(), rtol=tolerance, atol=tolerance)
    assert_close(
        nll.double(),
        F.cross_entropy(logits, targets, reduction="sum").detach(),
        rtol=tolerance,
        atol=tolerance,
    )
    for actual, wanted in zip(gradients, torch.autograd.grad(3.0 * expected, rounded), strict=True):
        assert actual.dtype is torch.float32
        assert_close(actual.double(), wanted, rtol=tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_gpu_a_sum_of_hidden_states_smooths(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, has_bias: bool, smoothing: float
) -> None:
    """Three rows at a time, with three logits too many; the plain definition is expected."""
    monkeypatch.setattr(nmt.layers.loss, "LOGITS_AT_ONCE_ON_CPU", 40)
    monkeypatch.setitem(VOCABULARY_MULTIPLE, "cpu", 16)
    output, hidden = nn.Linear(5, 13, bias=has_bias), torch.randn(7, 5, requires_grad=True)
    targets, inputs = torch.randint(13, (7,)), [hidden, *output.parameters()]
    with torch.autocast("cpu", dtype, enabled=dtype is not torch.float32):
        loss, nll = nmt.layers.loss._identity_nll(hidden, output.weight, output.bias, targets, smoothing)
        with torch.no_grad():
            alone = nmt.layers.loss._identity_nll(hidden, output.weight, output.bias, targets, smoothing)
    expected_loss, expected_nll = smoothed_nll(output(hidden), targets, smoothing)
    tolerance = 3 * TOLERANCE[dtype]
    for actual, expected in ((loss, expected_loss), (nll, expected_nll)):
        assert_close(actual, expected, rtol=tolerance, atol=tolerance)
    assert_close(torch.stack(alone), torch.stack([loss.detach(), nll]))
    pairs = (torch.autograd.grad(3.0 * x, inputs) for x in (loss, expected_loss))
    for actual, expected in zip(*pairs, strict=True):
        assert_close(actual, expected, rtol=tolerance, atol=10 * tolerance)


TEACHER = torch.rand(7, 13).softmax(-1)
PROJECTED: dict[str, Callable[[Tensor, nn.Linear, Tensor], tuple[Tensor, ...]]] = {
    "nll": lambda hidden, output, targets: projected_nll(hidden[0], output, targets, 0.1),
    "agreement": lambda hidden, output, targets: projected_agreement(
        hidden, output, targets, 0.1, PassFactors(0.5, 0.4, 0.3, 0.2)
    ),
    "imitation": lambda hidden, output, targets: projected_imitation(
        hidden[0], output, targets, 0.1, 0.6, lambda part: TEACHER[part]
    ),
}


@pytest.mark.parametrize("kind", PROJECTED)
def test_no_gradient_is_computed_of_what_is_frozen(kind: str) -> None:
    output, hidden = nn.Linear(5, 13), torch.randn(2, 7, 5, requires_grad=True)
    targets, inputs = torch.randint(13, (7,)), [hidden, *output.parameters()]
    expected = torch.autograd.grad(PROJECTED[kind](hidden, output, targets)[0], inputs)
    for learning in itertools.chain(*(itertools.combinations(range(3), num) for num in (1, 2, 3))):
        for i, x in enumerate(inputs):
            x.requires_grad_(i in learning)
        loss = PROJECTED[kind](hidden, output, targets)[0]
        kept = loss.grad_fn.saved_tensors  # type: ignore[union-attr]
        assert [i for i, x in enumerate(kept) if x is not None] == [*learning]
        found = torch.autograd.grad(loss, [inputs[i] for i in learning])
        assert all(torch.equal(one, expected[i]) for one, i in zip(found, learning, strict=True))


class CountingLinear(nn.Linear):
    """A map whose weight is computed whenever it is read."""

    num_reads = 0

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The matrix."""
        CountingLinear.num_reads += 1
        parameter = self._parameters["weight"]
        assert parameter is not None
        return 2.0 * parameter


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("kind", PROJECTED)
def test_a_weight_that_is_computed_is_read_once(
    kind: str, has_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, hidden = nn.Linear(5, 13, bias=has_bias), torch.randn(2, 7, 5, requires_grad=True)
    output.__class__ = CountingLinear
    monkeypatch.setattr(CountingLinear, "num_reads", 0)
    PROJECTED[kind](hidden, output, torch.randint(13, (7,)))
    assert CountingLinear.num_reads == 1


@pytest.mark.parametrize("kind", ["agreement", "imitation"])
def test_logits_that_are_added_for_a_gpu_change_no_loss_of_two_distributions(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    output, hidden = nn.Linear(5, 13), torch.randn(2, 7, 5, requires_grad=True)
    targets, found = torch.randint(13, (7,)), []
    for multiple in (1, 16):
        monkeypatch.setitem(VOCABULARY_MULTIPLE, "cpu", multiple)
        sums = PROJECTED[kind](hidden, output, targets)
        found.append((*sums, *torch.autograd.grad(sums[0], [hidden, *output.parameters()])))
    assert_close(found[1], found[0])


def test_projected_by_parts_without_gradient_and_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    output, hidden = nn.Linear(5, 13), torch.randn(7, 5, requires_grad=True)
    targets = torch.randint(13, (7,))
    with kernels.disabled():
        whole = projected_nll(hidden, output, targets, 0.1)
        with torch.no_grad(), monkeypatch.context() as patched:
            patched.setattr(torch.Tensor, "scatter_add_", None)  # a gradient would need it
            parts = [projected_nll(hidden[i : i + 3], output, targets[i : i + 3], 0.1) for i in (0, 3, 6)]
        nothing, _ = projected_nll(hidden[:0], output, targets[:0], 0.1)
    assert not any(part.requires_grad for pair in parts for part in pair)
    for number in (0, 1):
        assert_close(whole[number].detach(), torch.stack([part[number] for part in parts]).sum())
    assert nothing == 0.0
    (gradient,) = torch.autograd.grad(nothing, [output.weight])
    assert not gradient.any()
