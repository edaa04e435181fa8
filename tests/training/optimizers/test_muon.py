"""Muon: its arithmetic against singular values and torch's own, and which parameters it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nmt.layers.choices import Activation, Positions
from nmt.models import build_model
from nmt.models.base import TranslationModel
from nmt.models.configs import Cell, ModelConfig, RnnConfig, Tying
from nmt.runtime import MixedPrecisionStep
from nmt.runtime_config import Precision
from nmt.training.adapting.configs import LoraConfig
from nmt.training.adapting.lora import Lora, LowRankUpdate
from nmt.training.optimizers import muon
from nmt.training.optimizers.muon import COEFFICIENTS, Muon, matrices_by_rank, orthogonalised, packed_matrices
from nmt.training.optimizers.optimizer import build_optimizer
from nmt.training.optimizers.optimizer_configs import MuonConfig

CPU = torch.device("cpu")


def muon_of(model: nn.Module, **fields: Any) -> Muon:
    optimizer = build_optimizer(MuonConfig(**fields), model)
    assert isinstance(optimizer, Muon)
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    return optimizer


def spectrum(matrix: Tensor) -> Tensor:
    return torch.linalg.svdvals(matrix)


def names_of(model: nn.Module, parameters: object) -> set[str]:
    assert isinstance(parameters, list)
    ids = {id(parameter) for parameter in parameters}
    return {name for name, parameter in model.named_parameters() if id(parameter) in ids}


@pytest.mark.parametrize("shape", [(3, 4, 7), (3, 7, 4), (2, 5, 5)])
@pytest.mark.parametrize("iterations", [1, 5])
def test_iterations_are_a_polynomial_of_the_singular_values(
    iterations: int, shape: tuple[int, int, int]
) -> None:
    matrices = torch.randn(shape, dtype=torch.float64)
    matrices /= matrices.norm(dim=(1, 2), keepdim=True)
    left, values, right = torch.linalg.svd(matrices, full_matrices=False)
    linear, cubic, quintic = COEFFICIENTS
    for _ in range(iterations):
        values = linear * values + cubic * values**3 + quintic * values**5
    torch.testing.assert_close(orthogonalised(matrices, iterations), left * values[:, None] @ right)


def test_five_iterations_make_singular_values_of_about_1() -> None:
    matrices = torch.randn(2, 32, 64)
    values = spectrum(orthogonalised(matrices / matrices.norm(dim=(1, 2), keepdim=True), 5))
    assert 0.6 < float(values.min()) < float(values.max()) < 1.3


def test_a_batch_is_its_matrices_one_by_one() -> None:
    matrices = torch.randn(5, 8, 12) / 10.0
    one_by_one = torch.cat([orthogonalised(matrix[None], 5) for matrix in matrices])
    torch.testing.assert_close(orthogonalised(matrices, 5), one_by_one, rtol=1e-4, atol=1e-5)


def test_matrices_are_dealt_by_their_work() -> None:
    shapes = [torch.Size(shape) for shape in [(8, 8), (2, 64), (16, 16), (8, 8), (64, 2), (8, 8), (8, 8)]]
    assert matrices_by_rank(shapes, 3) == [[2], [0, 1, 5], [3, 4, 6]]  # the largest has a rank of its own
    assert matrices_by_rank(shapes[:1], 3) == [[0], [], []]


@pytest.mark.parametrize("steps", [1, 3])
def test_updates_are_those_of_torch(steps: int) -> None:
    """Wide, square and tall matrices at once, with decay; within the rounding of bf16."""
    ours = nn.Sequential(nn.Linear(12, 8), nn.Linear(8, 8), nn.Linear(8, 20), nn.Linear(20, 8))
    theirs = nn.Sequential(nn.Linear(12, 8), nn.Linear(8, 8), nn.Linear(8, 20), nn.Linear(20, 8))
    theirs.load_state_dict(ours.state_dict())
    before = {name: parameter.detach().clone() for name, parameter in ours.named_parameters()}
    optimizer = muon_of(ours, weight_decay=0.5, momentum=0.9)
    expected = torch.optim.Muon(
        [layer.weight for layer in theirs if isinstance(layer, nn.Linear)],
        lr=0.1,
        weight_decay=0.5,
        momentum=0.9,
        adjust_lr_fn="match_rms_adamw",
    )
    for step in range(steps):
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.manual_seed(step)
            mine.grad = torch.randn_like(mine)
            other.grad = mine.grad.clone()
        optimizer.step()
        expected.step()
    for name, parameter in ours.named_parameters():
        if name.endswith("weight"):
            moved = parameter.detach() - before[name]
            reference = theirs.get_parameter(name).detach() - before[name]
            assert float((moved - reference).norm() / reference.norm()) < 0.03, name


@pytest.mark.parametrize(("hardware", "dtype"), [("avx512_bf16", torch.bfloat16), ("avx2", torch.float32)])
def test_products_are_bf16_where_the_processor_multiplies_it_faster(
    monkeypatch: pytest.MonkeyPatch, hardware: str, dtype: torch.dtype
) -> None:
    formats = set[torch.dtype]()

    def recorded(matrices: Tensor, iterations: int) -> Tensor:
        formats.add(matrices.dtype)
        return matrices

    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {hardware: True}, raising=False)
    monkeypatch.setattr(muon, "orthogonalised", recorded)
    model = nn.Linear(4, 4)
    model.weight.grad = torch.ones_like(model.weight)
    muon_of(model).step()
    assert formats == {dtype}


def test_packed_maps_are_orthogonalised_one_by_one(tiny_model: Callable[..., TranslationModel]) -> None:
    """Keys with a hundredth of the gradient of the values move as far, and so do the halves of a gate."""
    model = tiny_model(activation=Activation.swiglu, d_k=4, d_v=8)
    optimizer = muon_of(model)
    packed = {name: optimizer.packed[p] for name, p in model.named_parameters() if p in optimizer.packed}
    several = {name: rows for name, rows in packed.items() if len(rows) > 1}
    assert {rows[0] for name, rows in several.items() if "key_value" in name} == {8}
    assert {tuple(rows) for rows in several.values()} == {(8, 16), (32, 32)}
    for name, rows in several.items():
        parameter = model.get_parameter(name)
        before = parameter.detach().clone()
        parameter.grad = torch.randn_like(parameter)
        parameter.grad[: rows[0]] /= 100.0
        optimizer.step()
        parameter.grad = None
        for part in torch.split(parameter.detach() - before, rows):
            values = spectrum(part / (0.1 * 0.2 * max(part.shape) ** 0.5))
            assert 0.4 < float(values.min()) < float(values.max()) < 1.3


@pytest.mark.parametrize("tying", Tying)
def test_embeddings_and_the_output_layer_are_left_to_adam(
    tiny_model: Callable[..., TranslationModel], tying: Tying
) -> None:
    model = tiny_model(tying=tying, positions=Positions.learned)
    optimizer = muon_of(model, weight_decay=0.1)
    everything = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(everything) == sorted(id(p) for p in model.parameters())  # each of them once
    matrices = {
        name
        for name, parameter in model.named_parameters()
        if name.startswith(("encoder.", "decoder.")) and parameter.ndim == 2
    }
    assert {name.split(".")[-2] for name in matrices} == {"query", "key_value", "output", "inner", "outer"}
    assert names_of(model, optimizer.param_groups[0]["params"]) == matrices
    decays = {
        name: g["weight_decay"] for g in optimizer.param_groups for name in names_of(model, g["params"])
    }
    untied = tying in (Tying.none, Tying.src_tgt)
    decayed = {name for name, decay in decays.items() if decay}
    assert decayed == matrices | ({"output.weight"} if untied else set())


def build(cfg: ModelConfig) -> TranslationModel:
    return build_model(cfg, src_vocab_size=23, tgt_vocab_size=23)


@pytest.mark.parametrize(("cell", "num_gates"), [(Cell.rnn, 1), (Cell.gru, 3), (Cell.lstm, 4)])
def test_the_gates_of_a_cell_are_matrices_of_their_own(cell: Cell, num_gates: int) -> None:
    model = build(RnnConfig(d_model=16, cell=cell))
    packed = {name: packed_matrices(model).get(p) for name, p in model.named_parameters()}
    cells = {name: rows for name, rows in packed.items() if "weight_ih" in name or "weight_hh" in name}
    assert cells
    assert {len(rows or []) for rows in cells.values()} == {num_gates}
    assert [name for name in packed if name.endswith("score.weight") and packed[name]] == []  # to one number


def test_the_updates_of_packed_maps_are_matrices_of_their_own(
    tiny_model: Callable[..., TranslationModel],
) -> None:
    model = tiny_model()
    Lora(LoraConfig(rank=2)).insert(model)
    for name, module in model.named_modules():
        if isinstance(module, LowRankUpdate):
            packed = packed_matrices(module)
            maps = 2 if name.endswith("key_value") else 1
            assert packed[module.lora_down] == [2] * maps
            assert packed[module.lora_up] == [16] * maps


def test_a_parameter_without_a_gradient_stays(tiny_model: Callable[..., TranslationModel]) -> None:
    model = tiny_model()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    muon_of(model, weight_decay=0.5).step()
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())


@pytest.mark.parametrize("precision", [Precision.fp32, Precision.fp16])
def test_a_model_learns_eight_pairs(
    tiny_model: Callable[..., TranslationModel],
    sentences: Callable[[int, int, int], tuple[Tensor, Tensor, Tensor]],
    precision: Precision,
) -> None:
    model = tiny_model()
    amp_step = MixedPrecisionStep(muon_of(model), device=CPU, precision=precision, clip_norm=1.0)
    src, src_mask, tgt = sentences(8, 6, 7)
    losses = []
    for _ in range(60):
        with amp_step.autocast():
            logits = model.project(model(src, src_mask, tgt[:, :-1]))
            loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), tgt[:, 1:].flatten())
        amp_step.backward(loss)
        amp_step.clip()
        amp_step.step(0.01, torch.zeros(()))
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.2 < 2.0 < losses[0]


def test_an_overflow_in_fp16_leaves_everything_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = muon_of(model)
    amp_step = MixedPrecisionStep(optimizer, device=CPU, precision=Precision.fp16, clip_norm=1.0)
    amp_step.backward(model(torch.randn(4, 6)).square().sum() * torch.inf)
    amp_step.clip()
    amp_step.step(0.1, torch.ones(()))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not optimizer.state


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_found_inf_decides_whether_anything_changes(
    tiny_model: Callable[..., TranslationModel], weight_decay: float
) -> None:
    """What a GPU is told without the host knowing it."""

    def stepped(found_inf: Tensor | None, gradient: float) -> tuple[list[Tensor], list[Tensor]]:
        torch.manual_seed(1)
        model = tiny_model()
        optimizer = muon_of(model, weight_decay=weight_decay)
        generator = torch.Generator().manual_seed(2)
        for step in range(2):
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=generator)
                parameter.grad += gradient if step == 1 else 0.0
            optimizer.found_inf = found_inf if step == 1 else None
            if step == 1 and found_inf is None and not torch.isfinite(torch.tensor(gradient)):
                break
            optimizer.step()
        buffers = [
            state["momentum_buffer"] for state in optimizer.state.values() if "momentum_buffer" in state
        ]
        return [parameter.detach() for parameter in model.parameters()], buffers

    for one, other in (
        (stepped(torch.tensor(1.0), float("nan")), stepped(None, float("nan"))),
        (stepped(torch.tensor(0.0), 0.5), stepped(None, 0.5)),
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
