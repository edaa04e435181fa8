"""LoRA: a product of two thin matrices beside each of some matrices, which stay as they are (Hu et al. 2022).

A linear map with such an update is the map that it was, of a class that shows the sum as its `weight`. So
all that reads the weights of a map (a loss, a copy in low precision, a kernel) reads the sum, whose bits are
those that `merge` leaves. A search reads it once, by a copy with plain maps (`in_low_precision`). In training
the two thin matrices are applied one after the other, behind dropout, so that the frozen matrix needs no
gradient. Shapes: I inputs, O outputs, R rank.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.kernels import fused
from nmt.layers.blocks import Dropout
from nmt.models.base import TranslationModel
from nmt.training.adapting.adaptation import Adaptation
from nmt.training.adapting.configs import LoraConfig
from nmt.training.adapting.freezing import matching


class LowRankUpdate(nn.Linear):
    """The first base of the class of an updated linear map; the second is its class without the update.

    The maps packed in one matrix, `sizes` rows of each, have an update of this rank each.
    """

    lora_down: nn.Parameter
    """(maps * R, I), random at first."""
    lora_up: nn.Parameter
    """(O, R), zero at first."""
    lora_dropout: Dropout
    lora_cfg: LoraConfig
    lora_sizes: Sequence[int]

    @property
    def frozen_weight(self) -> Tensor:
        """The matrix (O, I) without its update."""
        weight = self._parameters.get("weight")
        return super().weight if weight is None else weight  # one that is computed itself, as by weight norm

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The matrix (O, I) with its update, in the type of the matrix, also under autocast."""
        with torch.autocast(self.lora_up.device.type, enabled=False):
            pairs = zip(self.lora_up.split(list(self.lora_sizes)), self._downs(), strict=True)
            update = torch.cat([up @ down for up, down in pairs])
            return self.frozen_weight + self.lora_cfg.scale * update

    def forward(self, x: Tensor) -> Tensor:
        """Return (..., O) of x (..., I)."""
        if not self.training:
            return super().forward(x)
        hidden = F.linear(self.lora_dropout(x), self.lora_down)
        parts = zip(
            hidden.chunk(len(self.lora_sizes), -1), self.lora_up.split(list(self.lora_sizes)), strict=True
        )
        update = torch.cat([F.linear(part, up) for part, up in parts], -1)
        return fused.linear(x, self.frozen_weight, self.bias) + self.lora_cfg.scale * update

    def _downs(self) -> tuple[Tensor, ...]:
        return self.lora_down.chunk(len(self.lora_sizes))


class Lora(Adaptation):
    """Low-rank updates of the linear maps that patterns choose."""

    cfg: LoraConfig

    def insert(self, model: TranslationModel) -> None:
        """Give the chosen maps their updates, which are zero at first."""
        maps = linear_maps(model)
        for name in matching(self.cfg.patterns, maps, "adapt.patterns"):
            _update(maps[name], self.cfg)

    def merge(self, model: TranslationModel) -> None:
        """Add the updates to their matrices, and make the maps what they were."""
        for module in model.modules():
            if isinstance(module, LowRankUpdate):
                _merge(module)


def linear_maps(model: nn.Module) -> dict[str, nn.Linear]:
    """Return the linear maps of `model` by the names of their weights, but those that share a matrix."""
    names: dict[int, int] = {}
    for _, parameter in model.named_parameters(remove_duplicate=False):
        names[id(parameter)] = names.get(id(parameter), 0) + 1
    return {
        f"{name}.weight": module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and names.get(id(module._parameters.get("weight")), 1) == 1
    }


@functools.cache
def _updated(plain: type[nn.Linear]) -> type[nn.Linear]:
    """Return the class of maps of class `plain` with an update."""
    return type(f"LowRank{plain.__name__}", (LowRankUpdate, plain), {})


def _update(module: nn.Linear, cfg: LoraConfig) -> None:
    sizes = list(module.sizes) if isinstance(module, fused.Linear) else [module.out_features]
    like = next(module.parameters())
    down = torch.empty(len(sizes) * cfg.rank, module.in_features, device=like.device)
    nn.init.kaiming_uniform_(down, a=math.sqrt(5))
    module.register_parameter("lora_down", nn.Parameter(down))
    up = torch.zeros(module.out_features, cfg.rank, device=like.device)
    module.register_parameter("lora_up", nn.Parameter(up))
    module.__class__ = _updated(type(module))  # type: ignore[arg-type]  # classes can be hashed
    updated = cast(LowRankUpdate, module)
    updated.lora_dropout = Dropout(cfg.dropout)
    updated.lora_cfg, updated.lora_sizes = cfg, sizes


@torch.no_grad()
def _merge(module: LowRankUpdate) -> None:
    merged = module.weight
    del module.lora_down, module.lora_up, module.lora_dropout, module.lora_cfg, module.lora_sizes
    module.__class__ = type(module).__bases__[1]
    own = module._parameters.get("weight")
    if own is None:
        module.weight = merged  # type: ignore[misc]
    else:
        own.copy_(merged)
