"""Each kernel checks its arguments: an error names the argument, and no memory is touched out of bounds.

`NMT_RANDOM_CALLS` is the number of calls of each kernel; `test_sanitized.py` sets it, to make many more in a
library that watches memory.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from nmt import kernels
from nmt.decoding.beam_search import beam_search
from nmt.decoding.configs import BeamConfig
from nmt.kernels import fused
from nmt.layers.loss import projected_nll, smoothed_nll
from nmt.models.base import TranslationModel
from tests.conftest import VOCAB_SIZE
from tests.kernels import random_calls
from tests.kernels.random_calls import Draw

pytestmark = pytest.mark.skipif(not kernels.load(), reason="the kernels cannot be built here")
NUM_CALLS = int(os.environ.get("NMT_RANDOM_CALLS", "25"))
KERNELS = random_calls.kernels_here() if kernels.load() else {}
TORCH_MULTIPLIES = {"best_of_hidden", "decoder_step", "encoder_layers", "linear_map"}
"""Kernels of search, some of whose products torch computes, in an order that depends on its threads."""


def call(kernel: str, arguments: list[Any]) -> list[Tensor]:
    """Return the results of a kernel as a list."""
    results = getattr(torch.ops.nmt, kernel)(*arguments)
    return [results] if isinstance(results, Tensor) else [x for x in results if x is not None]


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_take_all_shapes_and_repeat_themselves(kernel: str) -> None:
    for seed in range(NUM_CALLS):
        first, second = (call(kernel, KERNELS[kernel](Draw(seed))) for _ in range(2))
        for one, other in zip(first, second, strict=True):
            assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kernel", sorted(set(KERNELS) - TORCH_MULTIPLIES))
def test_results_do_not_depend_on_the_number_of_threads(kernel: str) -> None:
    """Threads help each other, so it is chance which of them computes a part."""
    before = torch.get_num_threads()
    results = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        try:
            results.append([call(kernel, KERNELS[kernel](Draw(seed))) for seed in range(NUM_CALLS)])
        finally:
            torch.set_num_threads(before)
    for alone, together in zip(*results, strict=True):
        for one, other in zip(alone, together, strict=True):
            assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kernel", KERNELS)
def test_damaged_arguments_are_an_error_or_harmless(kernel: str) -> None:
    refused = 0
    for seed in range(NUM_CALLS):
        draw = Draw(seed)
        arguments = random_calls.damaged(KERNELS[kernel](draw), draw.random)
        message = error_of(kernel, arguments)
        assert not message or "must" in message or "allocate" in message
        refused += bool(message)
    assert refused > NUM_CALLS // 4


def error_of(kernel: str, arguments: list[Any]) -> str:
    """Return the error of a call, or an empty string."""
    try:
        call(kernel, arguments)
    except (RuntimeError, IndexError) as error:
        return str(error)
    return ""


FLAT = torch.zeros(2, 5, dtype=torch.bool)
HEADS = torch.zeros(2, 3, 4, 8)  # (B, T, H, C)
BEFORE, ENDING = torch.zeros(2, 3), torch.zeros(2, dtype=torch.bool)
ROW = torch.zeros(2, 1, dtype=torch.int32)


@pytest.mark.parametrize(
    ("kernel", "arguments", "message"),
    [
        (
            "dropout",
            [torch.zeros(3, 4).t(), 0.1, 0, torch.float32],
            "x must be contiguous, but its shape is (4, 3)",
        ),
        (
            "dropout",
            [torch.zeros(3, device="meta"), 0.1, 0, torch.float32],
            "x must be a plain tensor on cpu",
        ),
        (
            "dropout",
            [torch._neg_view(torch.ones(3)), 0.1, 0, torch.float32],
            "x must be a plain tensor on cpu",
        ),
        ("dropout", [torch.zeros(3), 1.0, 0, torch.float32], "rate must be in [0, 1), but is 1"),
        ("dropout", [torch.zeros(3), torch.nan, 0, torch.float32], "rate must be in [0, 1), but is nan"),
        ("dropout", [torch.zeros(3), 0.1, 0, torch.float16], "dtype must be Float or BFloat16, but is Half"),
        (
            "add_dropout",
            [torch.zeros(3), torch.zeros(4), 0.1, 0],
            "residual must have shape (4), but has (3)",
        ),
        ("relu_dropout", [torch.zeros(3).double(), 0.1, 0], "x must be Float or BFloat16, but is Double"),
        (
            "layer_norm",
            [torch.zeros(2, 0), *[torch.zeros(0)] * 2, 1e-5, torch.float32],
            "at least one number",
        ),
        (
            "layer_norm",
            [torch.zeros(2, 8), *[torch.zeros(4)] * 2, 1e-5, torch.float32],
            "weight must have shape (8)",
        ),
        (
            "rms_norm",
            [torch.zeros(2, 8), torch.zeros(4), 1e-5, torch.float32],
            "weight must have shape (8), but has (4)",
        ),
        ("rotate", [HEADS, torch.zeros(2, 8), 1.0], "table must have shape (3, 8), but has (2, 8)"),
        ("rotate", [HEADS[..., :7], torch.zeros(3, 7), 1.0], "x must have an even number of channels"),
        (
            "attention",
            [HEADS, HEADS[..., :4], HEADS, None, 0.0, 0],
            "k must have shape (2, 3, 4, 8), but has",
        ),
        ("attention", [HEADS, HEADS, HEADS[:, :2], None, 0.0, 0], "v must have shape (2, 3, 4, 8), but has"),
        ("attention", [HEADS, HEADS.bfloat16(), HEADS, None, 0.0, 0], "k must be Float, but is BFloat16"),
        (
            "attention",
            [HEADS, HEADS, HEADS, FLAT, 0.0, 0],
            "mask must expand to (2, 3, 3), but has shape (2, 5)",
        ),
        ("attention", [HEADS, HEADS, HEADS, torch.zeros(3), 0.0, 0], "mask must be Bool, but is Float"),
        (
            "attention",
            [*[torch.zeros(1).expand(1, 2**31, 1, 1)] * 3, None, 0.0, 0],
            "at most 1073741824 numbers",
        ),
        (
            "smoothed_nll_",
            [torch.zeros(2, 7), torch.tensor([6, 7]), 0.1],
            "ids from 0 to 6, but number 1 is 7",
        ),
        (
            "smoothed_nll_",
            [torch.zeros(2, 7), torch.tensor([-1, 0]), 0.1],
            "ids from 0 to 6, but number 0 is -1",
        ),
        (
            "smoothed_nll_",
            [torch.zeros(2, 7), torch.tensor([0]), 0.1],
            "targets must have shape (2), but has (1)",
        ),
        ("attend", [HEADS[:, :, :1], [HEADS], [HEADS], ROW + 2, None, None], "rows must be ids from 0 to 1"),
        (
            "attend",
            [HEADS[:, :, :1], [HEADS], [], ROW, None, None],
            "as many chunks, at least one, but have 1 and 0",
        ),
        ("attend", [HEADS, [HEADS], [HEADS], ROW, None, None], "queries must have shape (2, 3, 1, 8)"),
        (
            "best_of_logits",
            [torch.zeros(5, 5), BEFORE, FLAT[0], ENDING, 2, 6],
            "logits must have shape (6, 5)",
        ),
        (
            "best_of_logits",
            [torch.zeros(6, 5), BEFORE, FLAT[0], ENDING, 5, 6],
            "end_id must be from 0 to 4, but is 5",
        ),
        (
            "best_of_logits",
            [torch.zeros(6, 5), BEFORE, FLAT[0], ENDING, 2, 0],
            "num must be from 1 to 1073741824",
        ),
    ],
)
def test_an_error_names_the_argument(kernel: str, arguments: list[Any], message: str) -> None:
    with pytest.raises((RuntimeError, IndexError)) as raised:
        call(kernel, arguments)
    assert message in str(raised.value)


def test_numbers_at_an_odd_address_are_refused() -> None:
    x = torch.frombuffer(bytearray(41), dtype=torch.float32, offset=1, count=10)
    with pytest.raises(RuntimeError, match="x must lie at a multiple of 4 bytes, but is at 0x"):
        torch.ops.nmt.dropout(x, 0.1, 0, torch.float32)


@pytest.mark.parametrize("code", [contextlib.nullcontext, kernels.disabled])
@pytest.mark.parametrize("target", [-1, 11, 2**40])
def test_a_target_outside_of_the_vocabulary_is_an_error(
    target: int, code: Callable[[], contextlib.AbstractContextManager[None]]
) -> None:
    """Whichever code computes the loss."""
    hidden, output = torch.randn(3, 16), nn.Linear(16, 11, bias=False)
    targets = torch.tensor([0, target, 10])
    with code(), torch.autocast("cpu", torch.bfloat16):
        with pytest.raises((IndexError, RuntimeError), match=str(target)):
            projected_nll(hidden, output, targets, 0.1)
        with pytest.raises((IndexError, RuntimeError), match=str(target)):
            smoothed_nll(output(hidden), targets, 0.1)


@pytest.mark.parametrize("code", [contextlib.nullcontext, kernels.disabled])
def test_an_id_outside_of_the_vocabulary_is_an_error(
    code: Callable[[], contextlib.AbstractContextManager[None]], tiny_model: Callable[..., TranslationModel]
) -> None:
    """In training and in search."""
    model = tiny_model()
    src, mask = torch.full((1, 3), VOCAB_SIZE), torch.ones(1, 3, dtype=torch.bool)
    with code():
        with pytest.raises(IndexError):
            model(src, mask, torch.ones(1, 2, dtype=torch.int64))
        with pytest.raises(IndexError):
            beam_search(model.eval(), src, mask, BeamConfig(beam_size=2))


def test_widths_that_do_not_agree_are_an_error() -> None:
    """As in plain torch, also where the product runs on tiles."""
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(RuntimeError, match="96"):
        fused.linear(torch.randn(4, 96), torch.randn(8, 128), None)
    with pytest.raises(RuntimeError):
        fused.layer_norm(torch.randn(4, 96), torch.ones(48), torch.ones(48), 1e-5, feeds_product=False)
    with pytest.raises(RuntimeError):
        F.layer_norm(torch.randn(4, 96), (48,), torch.ones(48), torch.ones(48))
