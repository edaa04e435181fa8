"""NaN and infinite numbers pass through the kernels as through plain torch, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from nmt import kernels
from nmt.kernels import fused
from nmt.layers.blocks import FeedForward
from nmt.layers.choices import Activation
from nmt.layers.loss import smoothed_nll
from nmt.layers.positions import sinusoids

pytestmark = pytest.mark.skipif(not kernels.load(), reason="the kernels cannot be built here")
needs_tiles = pytest.mark.skipif(
    not (kernels.load() and torch.ops.nmt.has_tiles()), reason="this machine has no AMX"
)
VALUES = (torch.nan, torch.inf, -torch.inf)


@dataclass(frozen=True)
class Twin:
    """A function that kernels compute, and plain torch with `kernels.disabled`."""

    shapes: tuple[tuple[int, ...], ...]
    """Of its inputs; those after the first `rounded` are float32, as parameters are."""
    compute: Callable[..., Tensor]
    rounded: int = 1
    reorders: bool = False
    """Whether kernels draw another mask or add up in another order: infinite may then be NaN elsewhere."""
    masks: bool = False
    """Whether plain torch sets some gradients to 0, which 0 times NaN are NaN with kernels."""


LENGTHS = torch.tensor([5, 3])
PADDING = (torch.arange(5) < LENGTHS[:, None])[:, None, None, :]
CAUSAL = torch.ones(5, 5, dtype=torch.bool).tril()
HEADS = ((2, 3, 5, 18),) * 3
TARGETS = torch.tensor([0, 18, 7])


def _attention(mask: Tensor | None, rate: float) -> Callable[..., Tensor]:
    return lambda q, k, v: fused.attention(q, k, v, mask, rate)


def _projected_nll(hidden: Tensor, weight: Tensor) -> Tensor:
    if fused.can_project_nll(hidden, weight):
        return fused.projected_nll(hidden, weight, TARGETS, 0.1)[0]
    return smoothed_nll(F.linear(hidden, weight), TARGETS, 0.1)[0]


def _feed_forward(rate: float) -> Callable[..., Tensor]:
    block = FeedForward(18, 33, Activation.relu, dropout=rate)
    names = [name for name, _ in block.named_parameters()]
    return lambda x, *weights: functional_call(block, dict(zip(names, weights, strict=True)), (x,))


TWINS = {
    "dropout": Twin(((3, 19),), lambda x: fused.dropout(x, 0.5), reorders=True),
    "add_dropout": Twin(((3, 19),) * 2, lambda x, r: fused.add_dropout(r, x, 0.5), reorders=True),
    "relu_dropout": Twin(((3, 19),), lambda x: fused.relu_dropout(x, 0.5), reorders=True, masks=True),
    "relu": Twin(((3, 19),), lambda x: fused.relu_dropout(x, 0.0), masks=True),
    "layer_norm": Twin(
        ((3, 19), (19,), (19,)),
        lambda x, w, b: fused.layer_norm(x, w, b, 1e-5, feeds_product=False),
        reorders=True,
    ),
    "rms_norm": Twin(
        ((3, 19), (19,)), lambda x, w: fused.rms_norm(x, w, 1e-5, feeds_product=False), reorders=True
    ),
    "rotate": Twin(((2, 3, 5, 18),), lambda x: fused.rotate(x, sinusoids(5, 18))),
    "attention": Twin(HEADS, _attention(None, 0.0), rounded=3),
    "attention with dropout": Twin(HEADS, _attention(None, 0.5), rounded=3, reorders=True),
    "attention with padding": Twin(HEADS, _attention(PADDING, 0.0), rounded=3, masks=True),
    "causal attention": Twin(HEADS, _attention(CAUSAL, 0.0), rounded=3, masks=True),
}
ON_TILES = {
    "linear": Twin(((3, 18), (33, 18), (33,)), fused.linear),
    "feed_forward": Twin(((3, 18), (33, 18), (33,), (18, 33), (18,)), _feed_forward(0.0), masks=True),
    "feed_forward with dropout": Twin(
        ((3, 18), (33, 18), (33,), (18, 33), (18,)), _feed_forward(0.5), reorders=True, masks=True
    ),
}
IN_BF16 = ON_TILES | {"projected_nll": Twin(((3, 18), (19, 18)), _projected_nll, reorders=True)}


def spoilt(twin: Twin, dtype: torch.dtype) -> Iterator[tuple[list[Tensor], float]]:
    """Yield inputs with one number in turn that is not finite, and a factor of the gradient."""
    torch.manual_seed(1)
    inputs = [
        torch.randn(shape).to(dtype if i < twin.rounded else torch.float32)
        for i, shape in enumerate(twin.shapes)
    ]
    for value in VALUES:
        yield inputs, value
        for i, x in enumerate(inputs):
            for place in (0, x.numel() // 2, x.numel() - 1):
                copy = x.clone()
                copy.view(-1)[place] = value
                yield [*inputs[:i], copy, *inputs[i + 1 :]], 1.0


def results(twin: Twin, inputs: list[Tensor], factor: float) -> list[Tensor]:
    """Return the output and the gradients of the inputs; `factor` is that of one number's gradient."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    out = twin.compute(*leaves)
    weights = torch.linspace(-1.0, 2.0, out.numel()).view(out.shape)
    weights.view(-1)[out.numel() // 2] *= factor
    return [out.detach(), *torch.autograd.grad(out, leaves, weights.to(out.dtype))]


def assert_kinds_agree(found: Tensor, plain: Tensor, *, reorders: bool, masks: bool) -> None:
    """Check that NaN is NaN, infinite the same or NaN, and finite finite."""
    wrong = (found.isfinite() & ~plain.isfinite()) | (plain.isnan() & ~found.isnan() & (not reorders))
    if not masks:
        wrong |= plain.isfinite() & ~found.isfinite()
    if not reorders:
        wrong |= found.isinf() & (found != plain)
    assert not wrong.any(), (found[wrong], plain[wrong])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "name", [*TWINS, "projected_nll", *(pytest.param(name, marks=needs_tiles) for name in ON_TILES)]
)
def test_what_is_not_finite_passes_as_in_plain_torch(name: str, dtype: torch.dtype) -> None:
    twin = (TWINS | IN_BF16)[name]
    with torch.autocast("cpu", torch.bfloat16, enabled=name in IN_BF16):
        for inputs, factor in spoilt(twin, dtype):
            found = results(twin, inputs, factor)
            with kernels.disabled():
                plain = results(twin, inputs, factor)
            assert_kinds_agree(found[0], plain[0], reorders=twin.reorders, masks=False)
            for one, other in zip(found[1:], plain[1:], strict=True):
                assert_kinds_agree(one, other, reorders=twin.reorders, masks=twin.masks)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("place", [0, 7, 18])
def test_the_loss_of_logits_that_are_not_finite(
    place: int, value: float, smoothing: float, dtype: torch.dtype
) -> None:
    logits, targets = torch.randn(3, 19).to(dtype), torch.tensor([0, 7, 18])
    logits[1, place] = value
    log_probs = logits.float().log_softmax(1)
    nll = torch.stack([-log_probs[torch.arange(3), targets], -log_probs.mean(1)], dim=1)
    (gradient,) = torch.autograd.grad(
        smoothed_nll(plain := logits.clone().requires_grad_(), targets, smoothing)[0], [plain]
    )
    losses = torch.ops.nmt.smoothed_nll_(logits, targets, smoothing)
    assert_kinds_agree(losses, nll, reorders=False, masks=False)
    assert_kinds_agree(logits, gradient, reorders=False, masks=False)


def test_a_row_of_which_nothing_may_be_attended_to_is_nan() -> None:
    q, k, v = (torch.randn(2, 1, 3, 4, requires_grad=True) for _ in range(3))
    mask = torch.tensor([[True, True, False], [False, False, False], [True, True, True]])
    out = fused.attention(q, k, v, mask, 0.0)
    with kernels.disabled():
        assert torch.equal(out.isnan(), fused.attention(q, k, v, mask, 0.0).isnan())


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_attention_of_search(which: int, value: float) -> None:
    inputs = [torch.randn(4, 2, n, 5) for n in (1, 17, 17)]
    inputs[which].view(-1)[0] = value
    rows = torch.arange(4, dtype=torch.int32)[:, None]
    query, key, values = inputs
    with torch.inference_mode():
        found = torch.ops.nmt.attend(query, [key], [values], rows, None, None)
        plain = (fused.attention_weights(query, key, None) @ values).transpose(1, 2).flatten(2)
    assert_kinds_agree(found, plain, reorders=False, masks=False)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_scores_of_search_are_nan_where_a_logit_is_not_finite(value: float) -> None:
    """As with `topk`, for which NaN is above all numbers; elsewhere nothing changes."""
    logits, before = torch.randn(4, 9), torch.zeros(2, 2)
    forbidden, ending = torch.arange(9) < 2, torch.tensor([False, False])
    clean = torch.ops.nmt.best_of_logits(logits, before, forbidden, ending, 2, 4)
    logits[1, 8] = value
    scores, parents, tokens = torch.ops.nmt.best_of_logits(logits, before, forbidden, ending, 2, 4)
    assert scores[0].isnan().all()
    assert (parents[0] == 1).all()
    assert sorted(tokens[0].tolist()) == [2, 3, 4, 5]
    for one, other in zip((scores, parents, tokens), clean, strict=True):
        assert torch.equal(one[1], other[1])
    ends = torch.ops.nmt.best_of_logits(logits, before, forbidden, torch.tensor([True, True]), 2, 4)
    assert ends[0][0].isnan().tolist() == [True, False, False, False]
    assert ends[2][0, :2].tolist() == [2, 2]
