"""Linear maps in 8 bits against their definition, and models whose maps are in 8 bits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from nmt import kernels
from nmt.decoding import decode
from nmt.decoding.configs import BeamConfig
from nmt.errors import UserError
from nmt.layers.blocks import FeedForward
from nmt.layers.choices import Activation
from nmt.layers.low_precision import VNNI, LowPrecisionLinear, in_low_precision
from nmt.models.configs import EnsembleConfig
from nmt.models.ensemble import Ensemble
from nmt.models.narrowed import narrowed
from nmt.runtime import processor_has, search_precision
from nmt.runtime_config import Precision, RuntimeConfig
from tests.models.test_contract import build, every_family

needs_kernel = pytest.mark.skipif(not kernels.has_int8(), reason="this machine has no kernel for 8 bits")
Make = Callable[[nn.Linear], LowPrecisionLinear]
SHAPES = [(1, 1), (31, 33), (64, 64), (200, 16), (24, 203), (300, 40), (3000, 5)]


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def in_8_bits(linear: nn.Linear) -> LowPrecisionLinear:
    return LowPrecisionLinear(linear, Precision.int8)


def without_kernel(linear: nn.Linear) -> LowPrecisionLinear:
    with kernels.disabled():
        return in_8_bits(linear)


def by_hand(linear: nn.Linear, x: Tensor, most: tuple[int, int]) -> Tensor:
    """Return the product of weights and rows rounded to `most` units of either sign."""
    weight_unit = linear.weight.double().abs().amax(1, keepdim=True) / most[0]
    row_unit = (x.double().abs().amax(-1, keepdim=True) / most[1]).clamp_min(1e-30)
    bias: Tensor | None = linear.bias
    rounded = (x / row_unit).round() @ (linear.weight / weight_unit).round().t()
    return (rounded * row_unit * weight_unit[:, 0] + (0 if bias is None else bias)).float()


def most_units(make: Make) -> tuple[int, int]:
    """Return how many units weights and rows are rounded to: one of them to 7 bits without VNNI."""
    if make is in_8_bits:
        return kernels.most_int8_weight(), 127
    return 127, 127 if processor_has(*VNNI) else 63


@pytest.mark.parametrize("make", [without_kernel, pytest.param(in_8_bits, marks=needs_kernel)])
@pytest.mark.parametrize("num_rows", [1, 5, 9, 100])
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_products_of_numbers_of_8_bits(
    make: Make, num_rows: int, inputs: int, outputs: int, has_bias: bool
) -> None:
    linear, x = nn.Linear(inputs, outputs, bias=has_bias), torch.randn(num_rows, inputs)
    found, most = make(linear)(x[:, None])[:, 0], most_units(make)
    assert_close(found, by_hand(linear, x, most), atol=2e-2, rtol=0)  # a tie may be rounded either way
    assert (found - linear(x)).norm() <= 4 / min(most) * linear(x).norm() + 1e-3


@needs_kernel
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_the_kernel_rounds_as_its_definition(inputs: int, outputs: int, relu: bool) -> None:
    linear, x = nn.Linear(inputs, outputs), 10 * torch.randn(37, inputs) * torch.rand(37, 1)
    x[3] = 0.0
    fast = in_8_bits(linear)
    fast.relu = relu
    expected = by_hand(linear, x, most_units(in_8_bits))
    close = torch.isclose(fast(x), F.relu(expected) if relu else expected, atol=1e-5, rtol=1e-5)
    assert close[3].all()
    assert close.float().mean() > 0.98  # a tie may be rounded either way


@pytest.mark.parametrize("make", [without_kernel, pytest.param(in_8_bits, marks=needs_kernel)])
def test_a_row_has_one_result_whatever_is_beside_it(make: Make) -> None:
    linear, x = make(nn.Linear(40, 70)), torch.randn(20, 40)
    beside = torch.cat([x[3:4], 1000 * torch.randn(7, 40)])
    assert_close(linear(beside)[0], linear(x)[3], atol=1e-6, rtol=1e-6)


@needs_kernel
@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("relu", [False, True])
def test_what_is_not_finite_stays_so(number: float, relu: bool) -> None:
    linear, x = in_8_bits(nn.Linear(20, 30)), torch.randn(4, 20)
    linear.relu, x[1, 17] = relu, number
    found = linear(x)
    assert not found[1].isfinite().any()
    assert found[[0, 2, 3]].isfinite().all()


@needs_kernel
def test_the_kernel_checks_its_arguments() -> None:
    linear = in_8_bits(nn.Linear(20, 30))
    with pytest.raises(RuntimeError, match=r"weight must have shape \(\d+\), but has \(\d+\)"):
        linear(torch.randn(3, 24))
    with pytest.raises(RuntimeError, match="x must be Float, but is Double"):
        linear(torch.randn(3, 20).double())
    too_small, most = torch.full((1, 4), -128, dtype=torch.int8), kernels.most_int8_weight()
    with pytest.raises(RuntimeError, match=f"weight must be from -{most} to {most}, but has -128"):
        torch.ops.nmt.pack_int8(too_small, torch.ones(1))


@pytest.mark.parametrize("activation", [Activation.relu, Activation.swiglu])
def test_a_feed_forward_block_in_8_bits(activation: Activation) -> None:
    block = nn.Sequential(FeedForward(32, 64, activation, dropout=0.1)).eval()
    x = torch.randn(6, 32)
    found = in_low_precision(block, Precision.int8)(x)
    assert (found - block(x)).norm() < 0.03 * block(x).norm()


@pytest.mark.parametrize("has_kernels", [True, False])
def test_every_family_and_their_ensemble_search_in_8_bits(has_kernels: bool) -> None:
    models = [build(cfg).eval() for cfg in every_family()]
    src, src_mask = torch.randint(4, 10, (3, 5)), torch.ones(3, 5, dtype=torch.bool)
    tgt_in = torch.randint(4, 10, (3, 4))
    kernels.enable(has_kernels)
    try:
        for model in (*models, Ensemble(models, EnsembleConfig())):
            rough = in_low_precision(model, Precision.int8)
            assert in_low_precision(rough, Precision.int8) is rough
            logits = model.project(model(src, src_mask, tgt_in)).log_softmax(-1)
            assert_close(
                rough.project(rough(src, src_mask, tgt_in)).log_softmax(-1), logits, atol=0.2, rtol=0.1
            )
            assert len(decode(rough, src, src_mask, BeamConfig(beam_size=2))) == 3
            few = narrowed(rough, torch.arange(10), torch.ones(3, 10, dtype=torch.bool))
            assert len(decode(few, src, src_mask, BeamConfig(beam_size=2))) == 3
            assert isinstance(models[0].output, nn.Linear)
    finally:
        kernels.enable(True)


@needs_kernel
def test_auto_searches_in_8_bits_where_the_kernel_is_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, capabilities = torch.device("cpu"), {"amx_bf16": False}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    assert search_precision(Precision.auto, cpu) is Precision.int8
    with kernels.disabled():
        assert search_precision(Precision.auto, cpu) is Precision.fp32
    capabilities["amx_bf16"] = True
    assert search_precision(Precision.auto, cpu) is Precision.bf16


def test_8_bits_are_for_search_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert search_precision(Precision.int8, cpu) is Precision.int8
    message = (
        "decoding.precision=int8 is for search on CPU, but the model is on cuda; "
        "use decoding.precision=auto or bf16, or runtime.device=cpu"
    )
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        search_precision(Precision.int8, cuda)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    message = (
        "decoding.precision=int8 needs a torch with oneDNN, or the kernels in C++ and a processor with "
        "AVX2, but here torch has none and runs without kernels (runtime.kernels=false); "
        "use decoding.precision=auto"
    )
    with kernels.disabled(), pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        search_precision(Precision.int8, cpu)
    message = (
        "runtime.precision must be auto, bf16, fp16 or fp32, but is int8, which is too coarse to train in; "
        "for search use decoding.precision=int8"
    )
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        RuntimeConfig(precision=Precision.int8)
