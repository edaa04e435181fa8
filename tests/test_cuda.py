"""What only a GPU can show: kernels, mixed precision, recorded and compiled code against plain code."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from nmt import runtime
from nmt.data.batches.batching import collate
from nmt.data.encoded_pairs import EncodedPairs
from nmt.decoding import graph_search as graphs
from nmt.decoding.beam_search import beam_search
from nmt.decoding.configs import BeamConfig
from nmt.layers.loss import projected_nll, smoothed_nll
from nmt.models.base import TranslationModel
from nmt.models.configs import ModelConfig, RnnConfig
from nmt.runtime import MixedPrecisionStep
from nmt.runtime_config import Precision, RuntimeConfig
from nmt.training.optimizers.optimizer import build_optimizer
from nmt.training.optimizers.optimizer_configs import AdamConfig, MuonConfig, OptimizerConfig
from nmt.training.parallel_model import ParallelModel
from nmt.translation.translate import in_precision
from tests.decoding.test_graph_search import assert_same
from tests.models.test_contract import CASES, build, logits_of
from tests.training.objectives.test_objective import cross_entropy

pytestmark = pytest.mark.gpu
GPU = torch.device("cuda")
PRECISIONS = (Precision.fp32, Precision.bf16, Precision.fp16)


@pytest.fixture(autouse=True)
def prepared() -> None:
    """Set what every command sets."""
    runtime.prepare(RuntimeConfig(device="cuda"))


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_loss_is_that_of_the_definition(dtype: torch.dtype, has_bias: bool) -> None:
    """In bf16 by the identity, with logits in float32 and filled up to a multiple of 64."""
    output = nn.Linear(128, 1001, bias=has_bias, device=GPU)
    hidden = torch.randn(300, 128, device=GPU, requires_grad=True)
    targets, inputs = torch.randint(1001, (300,), device=GPU), [hidden, *output.parameters()]
    with torch.autocast("cuda", dtype, enabled=dtype is not torch.float32):
        loss, nll = projected_nll(hidden, output, targets, 0.1)
    rounded = [x.detach().to(dtype).double().requires_grad_() for x in inputs]
    logits = rounded[0] @ rounded[1].T + (rounded[2] if has_bias else 0.0)
    expected = smoothed_nll(logits.float(), targets, 0.1)
    assert_close(torch.stack([loss, nll]), torch.stack(expected), rtol=1e-3, atol=1e-2)
    found, wanted = torch.autograd.grad(loss, inputs), torch.autograd.grad(expected[0], rounded)
    for mine, theirs in zip(found, wanted, strict=True):
        assert float((mine - theirs).norm() / theirs.norm()) < 0.01


def trained(
    model: TranslationModel,
    pairs: EncodedPairs,
    device: torch.device,
    precision: Precision,
    optimizer: OptimizerConfig,
    *,
    compiled: bool = False,
) -> tuple[list[float], TranslationModel]:
    """Return the losses of eight updates, which have several shapes."""
    model = model.to(device)
    wrapped = ParallelModel(model, cross_entropy(), RuntimeConfig(compile=compiled), device=device)
    made = build_optimizer(optimizer, model)
    amp_step = MixedPrecisionStep(made, device=device, precision=precision, clip_norm=1.0)
    losses = []
    for step in range(1, 9):
        batch = collate(pairs, np.arange(step % 3, 20 + 2 * step)).to(device)
        with amp_step.autocast():
            loss, _ = wrapped(batch, step)
        amp_step.backward(loss / batch.num_tokens)
        amp_step.clip()
        amp_step.step(1e-2, torch.zeros((), device=device))
        losses.append(float(loss.detach()) / batch.num_tokens)
    return losses, model


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("default:TensorFloat32 tensor cores")  # of torch.compile, up to 2.13
@pytest.mark.parametrize("optimizer", [AdamConfig(), MuonConfig()])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_updates_are_those_of_a_cpu(
    pairs: EncodedPairs,
    tiny_model: Callable[..., TranslationModel],
    precision: Precision,
    compiled: bool,
    optimizer: OptimizerConfig,
) -> None:
    found = []
    for device, kind, is_compiled in (
        (torch.device("cpu"), Precision.fp32, False),
        (GPU, precision, compiled),
    ):
        torch.manual_seed(1)
        losses, _ = trained(tiny_model(), pairs, device, kind, optimizer, compiled=is_compiled)
        found.append(losses)
    # The products of Muon are bf16 on a GPU, whatever the precision.
    is_exact = precision is Precision.fp32 and not isinstance(optimizer, MuonConfig)
    tolerance = 1e-3 if is_exact else 0.1
    assert found[1] == pytest.approx(found[0], rel=tolerance)
    assert found[1][-1] < found[1][0]


@pytest.mark.parametrize("case", CASES)
@torch.inference_mode()
def test_recorded_search_finds_what_plain_search_finds(case: Callable[[], ModelConfig]) -> None:
    model = build(case()).to(GPU).eval()
    beam_size, n_best = (3, 2) if model.reads_target else (1, 1)  # else tokens in any order are as probable
    cfg = BeamConfig(beam_size=beam_size, n_best=n_best, cuda_graphs=True, precision=Precision.fp32)
    src = torch.randint(4, 20, (20, 9), device=GPU)
    src_mask = torch.arange(9, device=GPU) < torch.randint(1, 10, (20, 1), device=GPU)
    expected = beam_search(model, src, src_mask, cfg)
    for _ in range(3):  # run, recorded and replayed
        assert_same(graphs.search(model, src, src_mask, cfg), expected)
    assert any(loop.replay.graph for loop in graphs._loops[model].loops.values())  # type: ignore[attr-defined]


@pytest.mark.parametrize("case", CASES)
@torch.inference_mode()
def test_the_search_of_a_gpu_by_default(case: Callable[[], ModelConfig]) -> None:
    """In bf16: probabilities are near those of float32, but hypotheses need not be the same."""
    model, cfg = build(case()).to(GPU).eval(), BeamConfig(beam_size=3)
    src, tgt_in = (torch.randint(4, 20, (20, length), device=GPU) for length in (9, 6))
    src_mask = torch.ones_like(src, dtype=torch.bool)
    half = in_precision(model, cfg, GPU)
    assert half is not model
    found, expected = (logits_of(m, src, src_mask, tgt_in).float().log_softmax(-1) for m in (half, model))
    assert_close(found, expected, rtol=0.0, atol=0.1)
    assert all(hypotheses for hypotheses in beam_search(half, src, src_mask, cfg))


def test_the_average_of_recurrent_layers_is_in_one_piece() -> None:
    """Else cuDNN copies the weights in every call."""
    model = build(RnnConfig(d_model=32)).to(GPU)
    wrapped = ParallelModel(model, cross_entropy(), device=GPU, ema_decay=0.9)
    layers = [layer for layer in wrapped.trained.modules() if isinstance(layer, nn.RNNBase)]
    assert layers
    for layer in layers:
        assert len({x.untyped_storage().data_ptr() for x in layer.parameters()}) == 1


@torch.inference_mode()
def test_memory_of_recordings_comes_back(tiny_model: Callable[..., TranslationModel]) -> None:
    model, cfg = tiny_model().to(GPU).eval(), BeamConfig(cuda_graphs=True)
    src = torch.randint(4, 20, (64, 30), device=GPU)
    src_mask = torch.ones_like(src, dtype=torch.bool)
    before, after = torch.cuda.memory_allocated(), []
    for _ in range(2):
        for _ in range(3):
            graphs.search(model, src, src_mask, cfg)
        graphs.forget(model)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        after.append(torch.cuda.memory_allocated())
    assert after[1] <= max(after[0], before)
