"""Adapters: a narrow residual block behind every layer of a stack, between layers that stay as they are.

Houlsby et al. 2019; behind whole layers, with a norm, and for translation: Bapna and Firat 2019.
Shapes: D d_model.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from nmt.errors import UserError
from nmt.kernels.fused import LayerNorm, Linear
from nmt.layers.blocks import initialise
from nmt.models.base import TranslationModel
from nmt.models.stack import FeedForwardSublayer
from nmt.training.adapting.adaptation import Adaptation
from nmt.training.adapting.configs import AdaptersConfig


class Adapter(nn.Module):
    """A map through a narrow layer, added to what it reads; at first it adds nothing."""

    def __init__(self, d_model: int, cfg: AdaptersConfig):
        super().__init__()
        self.norm: nn.Module = LayerNorm(d_model) if cfg.norm else nn.Identity()
        self.down = Linear(d_model, cfg.size)
        self.up = Linear(cfg.size, d_model)
        initialise(self.down, self.up)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return (..., D) of x (..., D)."""
        return x + self.up(F.relu(self.down(self.norm(x))))


class Adapters(Adaptation):
    """Adapters behind the feed-forward blocks with which the layers end."""

    cfg: AdaptersConfig

    def insert(self, model: TranslationModel) -> None:
        """Put an adapter behind every layer; raise `UserError` for a model without such layers."""
        sublayers = [module for module in model.modules() if isinstance(module, FeedForwardSublayer)]
        if not sublayers:
            raise UserError(
                "adapt=adapters is for models whose layers end in feed-forward blocks, and this one has "
                "none; use adapt=lora"
            )
        for sublayer in sublayers:
            sublayer.adapter = Adapter(sublayer.block.outer.out_features, self.cfg)
