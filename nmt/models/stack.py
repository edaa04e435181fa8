"""The layers of attention and feed-forward that Transformers with and without an encoder are stacked from.

Each is a residual sublayer with its norm, post-norm (Vaswani et al. 2017) or pre-norm (Xiong et al. 2020).
Shapes: B sentences, T positions of the queries, S positions of the keys, D d_model, H heads, C = D / H,
N = B * K hypotheses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nmt.attention import Attention, Role
from nmt.errors import UserError
from nmt.layers import Activation, Dropout, FeedForward, NormOrder, Residual
from nmt.models.base import ModelConfig
from nmt.positions import LearnedPositions, Positions, SinusoidalPositions


@dataclass
class StackConfig(ModelConfig):
    """Sizes and variations of a stack of attention and feed-forward layers."""

    d_ff: int = 2048
    """Width inside the feed-forward blocks."""
    num_heads: int = 8
    """Attention heads; divides d_model."""
    dropout: float = 0.1
    """On the embeddings and on the output of every sublayer."""
    attention_dropout: float = 0.0
    """On the attention weights."""
    activation_dropout: float = 0.0
    """Inside the feed-forward blocks."""
    norm_order: NormOrder = NormOrder.pre
    """pre or post."""
    positions: Positions = Positions.sinusoidal
    """sinusoidal or learned."""
    max_positions: int = 1024
    """Longest sequence in tokens, for learned positions only."""
    activation: Activation = Activation.relu
    """relu, gelu or swiglu."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("d_ff", "num_heads", "max_positions"):
            if getattr(self, key) < 1:
                raise UserError(f"model.{key} must be at least 1, but is {getattr(self, key)}")
        for key in ("dropout", "attention_dropout", "activation_dropout"):
            if not 0.0 <= getattr(self, key) < 1.0:
                raise UserError(f"model.{key} must be in [0, 1), but is {getattr(self, key)}")
        if self.d_model % self.num_heads:
            divisors = [n for n in range(1, self.d_model + 1) if self.d_model % n == 0]
            nearest = min(divisors, key=lambda n: (abs(n - self.num_heads), -n))
            raise UserError(
                f"model.d_model must be divisible by model.num_heads, but {self.d_model} % {self.num_heads} "
                f"= {self.d_model % self.num_heads}; try model.num_heads={nearest}"
            )

    @property
    def longest(self) -> int | None:
        return self.max_positions if self.positions is Positions.learned else None


class SelfAttention(nn.Module):
    """Attention of a sequence to itself, as a residual sublayer."""

    def __init__(self, cfg: StackConfig, role: Role):
        super().__init__()
        self.attention = Attention(cfg.d_model, cfg.num_heads, dropout=cfg.attention_dropout, role=role)
        self.residual = Residual(cfg.d_model, cfg.norm_order, dropout=cfg.dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """x (B, T, D); mask broadcasts to (B, H, T, T)."""
        out: Tensor = self.residual(x, lambda y: self.attention(y, *self.attention.attended(y), mask))
        return out

    def step(self, x: Tensor, cache: dict[str, Tensor], layer: str, mask: Tensor | None = None) -> Tensor:
        """x (N, T, D), most often T = 1: append its keys and values to those of the S - T positions before.

        All of them are attended to, or those that `mask`, which broadcasts to (N, H, T, S), allows.
        """

        def attend(y: Tensor) -> Tensor:
            for name, new in zip(("keys", "values"), self.attention.attended(y), strict=True):
                slot = f"{layer}.{name}"
                cache[slot] = torch.cat([cache[slot], new], dim=2) if slot in cache else new
            context: Tensor = self.attention(y, cache[f"{layer}.keys"], cache[f"{layer}.values"], mask)
            return context

        out: Tensor = self.residual(x, attend)
        return out


class CrossAttention(nn.Module):
    """Attention of the decoder to the output of the encoder, as a residual sublayer."""

    def __init__(self, cfg: StackConfig):
        super().__init__()
        self.attention = Attention(cfg.d_model, cfg.num_heads, dropout=cfg.attention_dropout, role=Role.cross)
        self.residual = Residual(cfg.d_model, cfg.norm_order, dropout=cfg.dropout)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """x (B, T, D), keys and values (B, H, S, C), mask broadcasts to (B, H, T, S)."""
        out: Tensor = self.residual(x, lambda y: self.attention(y, keys, values, mask))
        return out


class FeedForwardSublayer(nn.Module):
    """The feed-forward block, as a residual sublayer."""

    def __init__(self, cfg: StackConfig):
        super().__init__()
        self.block = FeedForward(cfg.d_model, cfg.d_ff, cfg.activation, dropout=cfg.activation_dropout)
        self.residual = Residual(cfg.d_model, cfg.norm_order, dropout=cfg.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) to (..., D)."""
        out: Tensor = self.residual(x, self.block)
        return out


class SelfAttentionLayer(nn.Module):
    """Self-attention, then feed-forward: a layer of an encoder, or of a decoder-only model."""

    def __init__(self, cfg: StackConfig, role: Role):
        super().__init__()
        self.self_attention = SelfAttention(cfg, role)
        self.feed_forward = FeedForwardSublayer(cfg)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """x (B, S, D); mask broadcasts to (B, H, S, S)."""
        out: Tensor = self.feed_forward(self.self_attention(x, mask))
        return out

    def step(self, x: Tensor, cache: dict[str, Tensor], layer: str, mask: Tensor) -> Tensor:
        """The same for x (N, T, D) after the positions that `cache` holds; see `SelfAttention.step`."""
        out: Tensor = self.feed_forward(self.self_attention.step(x, cache, layer, mask))
        return out


class Embedding(nn.Module):
    """Tokens to vectors of width D: embeddings times sqrt(D) (section 3.4), positions, dropout."""

    def __init__(self, cfg: StackConfig, tokens: nn.Embedding):
        super().__init__()
        self.tokens = tokens
        self.scale = math.sqrt(cfg.d_model)
        self.positions = build_positions(cfg)
        self.dropout = Dropout(cfg.dropout)

    def forward(self, ids: Tensor, start: int = 0, padding: Tensor | None = None) -> Tensor:
        """(B, T, D) of ids (B, T) in the columns from `start` on.

        Rows that begin with `padding` (B,) columns of nothing count their positions from there.
        """
        end = start + ids.shape[1]
        positions = self.positions(end)
        if padding is None:
            positions = positions[start:]
        else:
            columns = torch.arange(start, end, device=ids.device)
            positions = positions[(columns - padding[:, None]).clamp(min=0)]
        x: Tensor = self.dropout(self.tokens(ids) * self.scale + positions)
        return x


def build_positions(cfg: StackConfig) -> SinusoidalPositions | LearnedPositions:
    """The kind of positions `cfg` asks for."""
    if cfg.positions is Positions.sinusoidal:
        return SinusoidalPositions(cfg.d_model)
    return LearnedPositions(cfg.d_model, cfg.max_positions)
