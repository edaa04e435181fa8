"""What a GPU runs, checked without one: that all tensors are on it, and that the host never waits for it.

`tests/test_gpu.py` runs this file in a process of its own, as a device cannot be taken back. Its tensors have
shapes, types and a place, but no numbers: to ask for one is an error, as is to mix them with tensors on CPU.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.fake_tensor import unset_fake_temporarily as with_numbers
from torch.utils import backend_registration

from nmt import kernels
from nmt.decoding.configs import BeamConfig
from nmt.decoding.graph_search import Loops, contents, graph_search
from nmt.layers.loss import VOCABULARY_MULTIPLE, projected_nll
from nmt.layers.low_precision import in_low_precision
from nmt.models import build_model
from nmt.models.base import TranslationModel
from nmt.models.configs import Cell, RnnConfig
from nmt.runtime import MixedPrecisionStep
from nmt.runtime_config import Precision
from nmt.training.objectives import build_objective
from nmt.training.objectives.configs import ConsistencyConfig, RDropConfig, SimCutConfig, Teacher
from nmt.training.objectives.objective import LossModule
from nmt.training.optimizers.ema import MovingAverage
from nmt.training.optimizers.optimizer import build_optimizer
from nmt.training.optimizers.optimizer_configs import AdamConfig, MuonConfig, OptimizerConfig
from nmt.training.statistics import BatchSize, Update, UpdateStatistics
from nmt.training.trainer_config import MEASURES
from tests.models.test_contract import CASES, PLAIN, VOCAB_SIZE
from tests.training.objectives.test_objective import Silent, cross_entropy

DEVICE = "imagined"


class Backend(backend_registration._DummyBackendModule):
    """What autograd asks a device about mixed precision."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]

    def is_autocast_enabled(self) -> bool:
        return False


cast(Any, backend_registration._setup_privateuseone_for_python_backend)(DEVICE, Backend())

OWN = torch.library.Library("aten", "IMPL")
OWN.impl("_fused_sgd_", lambda *tensors, **numbers: None, "Meta")  # torch lacks it, unlike that of Adam


@pytest.fixture(autouse=True)
def _no_numbers() -> Iterator[None]:
    with FakeTensorMode():
        yield


def moved(x: Tensor) -> Tensor:
    """Return a tensor like `x` on the device."""
    return torch.empty(x.shape, dtype=x.dtype, device=DEVICE)


def move(model: nn.Module) -> None:
    """Put all weights on the device; tied ones stay tied."""
    weights: dict[Tensor, nn.Parameter] = {}
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                module._parameters[name] = weights.setdefault(weight, nn.Parameter(moved(weight)))
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = moved(buffer)


def all_moved(found: object) -> Any:
    """Return a tensor, or a tuple or dictionary that holds tensors, with every tensor on the device."""
    if isinstance(found, Tensor):
        return moved(found)
    if isinstance(found, dict):
        return {name: all_moved(x) for name, x in found.items()}
    if isinstance(found, tuple):
        return type(found)(*map(all_moved, found))
    return found


DEPTHS = ("encoder_layers", "decoder_layers", "num_layers")


@pytest.fixture(params=CASES)
def model(request: pytest.FixtureRequest) -> TranslationModel:
    """Return a model with numbers, on CPU; a second layer of a stack would do what the first does.

    Layers that share their weights stay as many as they are.
    """
    cfg = request.param()
    shares = any(getattr(cfg, name, None) for name in ("encoder_sharing", "decoder_sharing"))
    if not isinstance(cfg, RnnConfig) and not shares:
        cfg = replace(cfg, **{name: 1 for name in DEPTHS if hasattr(cfg, name)})
    if getattr(cfg, "cell", None) is Cell.gru:
        pytest.skip("torch does not know the shapes of its own GRU without numbers")
    with with_numbers():
        return build_model(cfg, src_vocab_size=VOCAB_SIZE, tgt_vocab_size=VOCAB_SIZE)


def test_what_is_wrong_on_a_gpu_is_an_error_here() -> None:
    x = torch.empty(3, device=DEVICE)
    with pytest.raises(RuntimeError, match="device"):
        x + torch.ones(3)
    with pytest.raises(RuntimeError):
        x.sum().item()
    with pytest.raises(RuntimeError):
        x[x > 0]


@torch.no_grad()
def test_a_step_of_search_stays_on_the_device(model: TranslationModel) -> None:
    model.eval()
    with with_numbers(), kernels.disabled():
        loops = Loops(torch.device("cpu"), lambda: lambda: lambda step: step())
        src = torch.randint(4, VOCAB_SIZE, (5, 9))
        mask = torch.arange(9) < torch.tensor([9, 3, 5, 9, 1])[:, None]
        graph_search(model, src, mask, BeamConfig(beam_size=3, n_best=2), loops)
    move(model)
    loop = next(iter(loops.loops.values()))
    for found in (loop, loop.beams, loop.state):
        vars(found).update({name: all_moved(x) for name, x in vars(found).items()})
    before = (*contents(loop.beams, loop.state), loop.active, loop.newly_done)
    loop.step(model)
    loop.step(in_low_precision(model, Precision.bf16))
    after = (*contents(loop.beams, loop.state), loop.active, loop.newly_done)
    assert all(old is new for old, new in zip(before, after, strict=True))
    assert {x.device.type for x in after} == {DEVICE}


def test_gradients_stay_on_the_device(model: TranslationModel) -> None:
    move(model)
    loss, _ = loss_of_batch(LossModule(model.train(), cross_entropy(), compiled=False))
    torch.autograd.backward(loss)
    assert {x.device.type for p in model.parameters() for x in (p, p.grad) if x is not None} == {DEVICE}


@pytest.mark.parametrize("has_bias", [True, False])
def test_the_loss_of_hidden_states_in_bf16_stays_on_the_device(
    has_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(VOCABULARY_MULTIPLE, DEVICE, 64)
    output, targets = nn.Linear(16, 33, bias=has_bias), torch.empty(20, dtype=torch.long, device=DEVICE)
    move(output)
    hidden = torch.empty(20, 16, dtype=torch.bfloat16, device=DEVICE, requires_grad=True)
    loss, nll = projected_nll(hidden, output, targets, 0.1)
    torch.autograd.backward(loss)
    gradients = [x.grad for x in output.parameters() if x.grad is not None]
    assert len(gradients) == 1 + has_bias
    assert {(x.dtype, x.device.type) for x in (loss, nll, *gradients)} == {(torch.float32, DEVICE)}
    assert hidden.grad is not None


@pytest.mark.parametrize("model", PLAIN[:1], indirect=True)
@pytest.mark.parametrize("kind", [RDropConfig, SimCutConfig])
def test_an_average_that_teaches_stays_on_the_device(
    model: TranslationModel, kind: type[ConsistencyConfig]
) -> None:
    with with_numbers():
        average = copy.deepcopy(model)
    move(model)
    move(average)
    objective = build_objective(kind(teacher=Teacher.ema), Silent())
    loss_of = LossModule(model.train(), objective, compiled=False, average=average)
    loss, named = loss_of_batch(loss_of)
    torch.autograd.backward(loss)
    assert {x.device.type for x in (loss, *named.values())} == {DEVICE}
    assert all(x.grad is None for x in average.parameters())


def loss_of_batch(loss_of: LossModule) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of four pairs, and the sums that the objective names."""
    ids, rows = (torch.empty(*shape, dtype=torch.long, device=DEVICE) for shape in ((4, 7), (20,)))
    return loss_of(1, ids, ids > 0, ids, ids, rows)


@pytest.mark.parametrize("model", PLAIN, indirect=True)
def test_an_update_stays_on_the_device(model: TranslationModel) -> None:
    update(model, AdamConfig())


@pytest.mark.parametrize("model", PLAIN[:1], indirect=True)
def test_an_update_with_muon_stays_on_the_device(model: TranslationModel) -> None:
    update(model, MuonConfig())


def update(model: TranslationModel, cfg: OptimizerConfig) -> None:
    """From two batches, as the trainer does it."""
    device = torch.device(DEVICE)
    move(model)
    loss_of = LossModule(model.train(), cross_entropy(), compiled=False)
    statistics = UpdateStatistics(device, forgives_overflow=False, measures=list(MEASURES))
    optimizer = build_optimizer(cfg, model)
    amp_step = MixedPrecisionStep(optimizer, device=device, precision=Precision.fp32, clip_norm=1.0)
    weights = dict(model.named_parameters())
    average = MovingAverage({name: moved(x) for name, x in weights.items()}, weights, 0.9)
    for _ in range(2):
        loss, named = loss_of_batch(loss_of)
        amp_step.backward(loss / 40)
        statistics.add_batch(loss, named, BatchSize(26, 28, 28), counts=True)
    unusable = statistics.end_update(1, 40, Update(dict(model.named_parameters()), amp_step.clip()))
    amp_step.step(0.1, unusable)
    average.step(1, unusable)
    everything = (loss, unusable, *model.parameters(), *average.tensors.values())
    assert {x.device.type for x in everything} == {DEVICE}
