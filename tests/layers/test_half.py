"""A model that is 16-bit throughout searches as the model in float32, but for rounding."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from nmt import kernels
from nmt.decoding.beam_search import beam_search
from nmt.decoding.configs import BeamConfig
from nmt.decoding.graph_search import Loops, graph_search
from nmt.layers.half import can_be_half, in_half
from nmt.models.base import State, TranslationModel
from nmt.models.configs import ModelConfig
from nmt.runtime_config import Precision
from nmt.translation.translate import in_precision
from tests.models.test_contract import ENSEMBLES, SEARCHED, build


def dtypes_of(state: State) -> set[torch.dtype]:
    own = {x.dtype for x in (*state.source.values(), *state.target.values())}
    return own.union(*map(dtypes_of, state.parts))


@pytest.mark.parametrize("case", [*ENSEMBLES, *SEARCHED])
@torch.inference_mode()
def test_every_family_searches_in_bf16(
    case: Callable[[], ModelConfig], sentences: Callable[[int, int, int], tuple[Tensor, Tensor, Tensor]]
) -> None:
    model = build(case()).eval()
    if not can_be_half(model):
        pytest.skip("recurrent kernels know no bf16")
    half = in_half(model, torch.bfloat16)
    assert in_half(half, torch.bfloat16) is half
    assert {x.dtype for x in model.parameters()} == {torch.float32}
    src, src_mask, tgt_in = sentences(5, 9, 7)
    cfg = BeamConfig(beam_size=3, n_best=2, max_length_ratio=1.0, max_length_offset=2)
    with kernels.disabled():
        hidden = half(src, src_mask, tgt_in)
        assert hidden.dtype is torch.bfloat16
        assert_close(hidden.float(), model(src, src_mask, tgt_in), rtol=0.1, atol=0.15)
        assert dtypes_of(half.start(src, src_mask)) <= {torch.bfloat16, torch.bool, torch.int64}
        loops = Loops(torch.device("cpu"), lambda: lambda: lambda step: step())
        found = beam_search(half, src, src_mask, cfg), graph_search(half, src, src_mask, cfg, loops)
    for mine, theirs in zip(*found, strict=True):
        assert mine[0].score == pytest.approx(theirs[0].score, rel=0.05, abs=0.05)


def test_search_is_in_float32_on_cpu_unless_asked_for(tiny_model: Callable[..., TranslationModel]) -> None:
    model = tiny_model()
    assert in_precision(model, BeamConfig(), torch.device("cpu")) is model
    assert in_precision(model, BeamConfig(precision=Precision.fp32), torch.device("cuda")) is model
    half = in_precision(model, BeamConfig(precision=Precision.bf16), torch.device("cuda"))
    assert {x.dtype for x in half.parameters()} == {torch.bfloat16}
