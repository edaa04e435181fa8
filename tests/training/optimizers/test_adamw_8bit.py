"""AdamW with moments of 8 bits: what it keeps, how near it stays to AdamW, and that no weight jumps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nmt.training.optimizers import adamw_8bit
from nmt.training.optimizers.adamw_8bit import FIRST, ROOT, SCALE
from nmt.training.optimizers.optimizer import (
    build_optimizer,
    load_optimizer_tensors,
    optimizer_tensors,
    reserved,
)
from nmt.training.optimizers.optimizer_configs import AdamW8bitConfig, AdamWConfig, MomentsConfig

RATE = 0.01


class Layer(nn.Module):
    """A matrix, or more axes, and a vector."""

    def __init__(self, shape: tuple[int, ...]):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(shape)), nn.Parameter(torch.randn(shape[0]))


def trained(
    cfg: MomentsConfig, shape: tuple[int, ...], gradients: Callable[[int], Tensor], steps: range = range(30)
) -> tuple[Layer, torch.optim.Optimizer]:
    """Return a layer with a weight of `shape` and a bias after updates by made-up gradients."""
    torch.manual_seed(0)
    layer = Layer(shape)
    optimizer = build_optimizer(cfg, layer)
    update(layer, optimizer, gradients, steps)
    return layer, optimizer


def update(
    layer: Layer, optimizer: torch.optim.Optimizer, gradients: Callable[[int], Tensor], steps: range
) -> None:
    for group in optimizer.param_groups:
        group["lr"] = RATE
    for step in steps:
        torch.manual_seed(step)
        layer.weight.grad = gradients(step)
        layer.bias.grad = torch.randn(len(layer.bias))
        optimizer.step()


def test_the_root_of_the_second_moment_reaches_further_down_than_the_first_moment() -> None:
    first, root = (adamw_8bit._levels(name, torch.device("cpu")).unique() for name in (FIRST, ROOT))
    assert (len(first), len(root)) == (255, 256)
    torch.testing.assert_close(first[len(first) // 2 :][:2], torch.tensor([0.0, 1e-6]))
    torch.testing.assert_close(root[0], torch.tensor(5e-8))


@pytest.mark.parametrize(
    ("shape", "scales"), [((20, 512), (20, 2)), ((40, 300), (40, 1)), ((64, 32, 4), (64, 1))], ids=str
)
def test_a_weight_has_two_bytes_and_its_row_a_scale_for_each_block(
    shape: tuple[int, ...], scales: tuple[int, int]
) -> None:
    layer, optimizer = trained(AdamW8bitConfig(), shape, lambda step: torch.randn(shape), range(1))
    kept = optimizer_tensors(optimizer, layer)
    for name in (FIRST, ROOT):
        assert kept[f"weight/{name}"].dtype is torch.uint8
        assert kept[f"weight/{name}"].numel() == layer.weight.numel()
        assert kept[f"weight/{name}{SCALE}"].shape == scales
        assert kept[f"bias/{name}"].dtype is torch.float32
    room = sum(x.nbytes for x in reserved(optimizer, layer.parameters()))
    assert room == sum(x.nbytes for x in kept.values())
    of_adam = reserved(build_optimizer(AdamWConfig(), layer), layer.parameters())
    assert room < 0.3 * sum(x.nbytes for x in of_adam)


@pytest.mark.parametrize("shape", [(20, 512), (40, 300), (64, 32, 4)], ids=str)
def test_updates_are_nearly_those_of_adamw(shape: tuple[int, ...]) -> None:
    """Also where gradients of one block differ a thousand times in size."""
    sizes = 10.0 ** -torch.linspace(0, 3, shape[-1])

    def gradients(step: int) -> Tensor:
        return (torch.randn(shape) + 0.5) * sizes

    ours, _ = trained(AdamW8bitConfig(weight_decay=0.1), shape, gradients)
    exact, _ = trained(AdamWConfig(weight_decay=0.1), shape, gradients)
    start, _ = trained(AdamWConfig(), shape, gradients, range(0))
    torch.testing.assert_close(ours.bias, exact.bias, rtol=1e-5, atol=1e-6)
    moved = (exact.weight - start.weight).square().mean().sqrt()
    apart = (ours.weight - exact.weight).square().mean().sqrt()
    assert apart < 0.1 * moved


@pytest.mark.parametrize("smallest", [1e-3, 1e-6, 1e-9, 0.0])
def test_no_weight_jumps_whose_gradient_is_small_beside_others(smallest: float) -> None:
    """Its second moment, kept as it is, would be nothing, and the update a million times too large."""
    shape = (16, 512)
    sizes = torch.where(torch.arange(512) % 100 == 0, 1.0, smallest)
    layer, optimizer = trained(AdamW8bitConfig(), shape, lambda step: torch.randn(shape) * sizes)
    before = layer.weight.detach().clone()
    update(layer, optimizer, lambda step: torch.randn(shape) * sizes, range(30, 60))
    assert (layer.weight - before).abs().max() < 30 * 4 * RATE


@pytest.mark.parametrize("rows", [0, 1, 5000])
def test_the_number_of_rows_changes_no_form(rows: int) -> None:
    """Vocabularies grow, and a process of several may have no row."""
    shape = (rows, 64)
    layer, optimizer = trained(AdamW8bitConfig(), shape, lambda step: torch.randn(shape), range(2))
    kept = optimizer_tensors(optimizer, layer)
    assert kept[f"weight/{FIRST}"].dtype is torch.uint8
    assert kept[f"weight/{FIRST}{SCALE}"].shape == (rows, 1)


def test_chunks_of_rows_are_updated_as_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (50, 256)
    whole, _ = trained(AdamW8bitConfig(), shape, lambda step: torch.randn(shape))
    monkeypatch.setattr(adamw_8bit, "CHUNK", 7 * 256)
    parts, _ = trained(AdamW8bitConfig(), shape, lambda step: torch.randn(shape))
    assert torch.equal(whole.weight, parts.weight)


def test_a_stored_state_goes_on_bit_for_bit() -> None:
    shape = (20, 512)
    straight, _ = trained(AdamW8bitConfig(), shape, lambda step: torch.randn(shape))
    stopped, optimizer = trained(AdamW8bitConfig(), shape, lambda step: torch.randn(shape), range(10))
    again, other = trained(AdamW8bitConfig(), shape, lambda step: torch.randn(shape), range(0))
    load_optimizer_tensors(other, again, optimizer_tensors(optimizer, stopped))
    again.load_state_dict(stopped.state_dict())
    update(again, other, lambda step: torch.randn(shape), range(10, 30))
    assert torch.equal(again.weight, straight.weight)
