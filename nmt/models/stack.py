"""The layers of attention and feed-forward that Transformers with and without an encoder are stacked from.

A layer consists of residual sublayers, each with a norm, post-norm (Vaswani et al. 2017) or pre-norm (Xiong
et al. 2020). docs/models.md lists the variations with their papers.
Shapes: B sentences, T positions of the queries, S positions of the keys, D d_model, H heads, C channels of a
head, N = B * K hypotheses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from torch import Tensor, nn

from nmt.checks import positive
from nmt.errors import UserError
from nmt.layers.attention import AttentionRole, MultiHeadAttention
from nmt.layers.blocks import (
    NORMS,
    Activation,
    AnyModule,
    Dropout,
    FeedForward,
    Norm,
    NormOrder,
    Residual,
    module_list,
)
from nmt.layers.positions import LearnedPositions, Positions, PositionTable, SinusoidalPositions
from nmt.layers.relative_positions import (
    AlibiPositions,
    BucketPositions,
    ClippedPositions,
    RelativePositions,
    RotaryPositions,
)
from nmt.models.base import ModelConfig
from nmt.models.kv_cache import KeyValueCache
from nmt.models.vocabulary import EmbeddingInit


class Init(Enum):
    """Initialisation of the matrices of the layers; biases start from zero."""

    xavier = "xavier"
    """Uniform, by the fan-in and fan-out of each matrix (Glorot and Bengio 2010)."""
    depth_scaled = "depth_scaled"
    """As xavier, but the last matrix of each of the N sublayers of a stack divided by sqrt(N), as in GPT-2
    (Radford et al. 2019, section 2.3)."""


@dataclass
class StackConfig(ModelConfig):
    """Sizes and variations of a stack of attention and feed-forward layers."""

    d_ff: int = 2048
    """Width inside the feed-forward blocks."""
    num_heads: int = 8
    """Attention heads; divides d_model unless d_k and d_v are set."""
    d_k: int | None = None
    """Width of the queries and keys of a head; null: d_model / num_heads."""
    d_v: int | None = None
    """Width of the values of a head; null: d_model / num_heads."""
    dropout: float = 0.1
    """On the embeddings and on the output of every sublayer."""
    attention_dropout: float = 0.0
    """On the attention weights."""
    activation_dropout: float = 0.0
    """Inside the feed-forward blocks."""
    norm_order: NormOrder = NormOrder.pre
    """pre or post: before each sublayer, or after its residual sum."""
    norm: Norm = Norm.layer_norm
    """layer_norm or rms_norm."""
    norm_eps: float = 1e-5
    """Added to the variance, or to the mean square, in every norm."""
    final_norm: bool | None = None
    """Whether each stack ends in a norm of its own; null: with norm_order=pre only."""
    positions: Positions = Positions.sinusoidal
    """sinusoidal, learned, rotary, alibi, relative (clipped vectors), t5 (buckets) or none."""
    max_positions: int = 1024
    """Longest sequence in tokens, for learned positions only."""
    max_distance: int | None = None
    """Distances from here on are alike, for positions=relative (null: 16) and t5 (null: 128) only."""
    num_buckets: int = 32
    """Number of buckets of distances, for positions=t5 only."""
    activation: Activation = Activation.relu
    """relu, gelu, selu or silu; glu, reglu, geglu, seglu and swiglu have a gate, a third matrix of d_ff."""
    attention_bias: bool = True
    """Whether the projections to queries, keys and values have a bias."""
    attention_output_bias: bool = True
    """Whether the projection of the heads' output has a bias."""
    feed_forward_bias: bool = True
    """Whether the linear maps of the feed-forward blocks have a bias."""
    embedding_scale: bool = True
    """Whether the embeddings of tokens are multiplied by sqrt(d_model)."""
    embedding_norm: bool = False
    """Whether the sum of embedding and position is normalised, before its dropout."""
    embedding_init: EmbeddingInit = EmbeddingInit.normal
    """normal (standard deviation d_model^-0.5) or xavier; also of the output layer."""
    init: Init = Init.xavier
    """xavier or depth_scaled."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("d_ff", "num_heads", "d_k", "d_v", "max_positions", "max_distance")
        self.require_rates("dropout", "attention_dropout", "activation_dropout")
        positive(self, "model", "norm_eps")
        _check_heads(self)
        _check_buckets(self)

    @property
    def longest(self) -> int | None:
        return self.max_positions if self.positions is Positions.learned else None

    @property
    def sees_ahead(self) -> bool:
        """Whether positions of a decoder, too, may attend to later ones."""
        return False

    @property
    def head_widths(self) -> tuple[int, int]:
        """Channels of a head: of its queries and keys, and of its values."""
        share = self.d_model // self.num_heads
        return self.d_k or share, self.d_v or share

    @property
    def embedding_factor(self) -> float:
        """The factor of the embeddings of tokens."""
        return math.sqrt(self.d_model) if self.embedding_scale else 1.0

    @property
    def furthest(self) -> int:
        """The distance from which on distances are not told apart: `max_distance`, or that of the papers."""
        return self.max_distance or (16 if self.positions is Positions.relative else 128)


def _check_heads(cfg: StackConfig) -> None:
    if (cfg.d_k is None or cfg.d_v is None) and cfg.d_model % cfg.num_heads:
        divisors = [n for n in range(1, cfg.d_model + 1) if cfg.d_model % n == 0]
        nearest = min(divisors, key=lambda n: (abs(n - cfg.num_heads), -n))
        raise UserError(
            f"model.d_model must be divisible by model.num_heads, but {cfg.d_model} % {cfg.num_heads} "
            f"= {cfg.d_model % cfg.num_heads}; try model.num_heads={nearest}"
        )
    width, _ = cfg.head_widths
    if cfg.positions is Positions.rotary and width % 2:
        name = "model.d_model / model.num_heads" if cfg.d_k is None else "model.d_k"
        raise UserError(
            f"{name} must be even with model.positions=rotary, which rotates pairs of channels, "
            f"but is {width}; try model.d_k={width + 1}"
        )


def _check_buckets(cfg: StackConfig) -> None:
    if cfg.num_buckets < 4 or cfg.num_buckets % 2:
        raise UserError(f"model.num_buckets must be even and at least 4, but is {cfg.num_buckets}")
    num_exact = cfg.num_buckets // 2
    if cfg.positions is Positions.t5 and cfg.furthest <= num_exact:
        raise UserError(
            f"model.max_distance must be greater than model.num_buckets / 2 = {num_exact} with "
            f"model.positions=t5, whose first half of buckets are single distances, but is {cfg.furthest}; "
            "raise it or lower model.num_buckets"
        )


class SelfAttentionSublayer(nn.Module):
    """Attention of a sequence to itself, as a residual sublayer."""

    def __init__(self, cfg: StackConfig, role: AttentionRole):
        super().__init__()
        self.attention = build_attention(cfg, role)
        self.residual = build_residual(cfg)

    def forward(self, x: Tensor, mask: Tensor, *, is_causal: bool = False) -> Tensor:
        """Return (B, T, D) of x (B, T, D); mask broadcasts to (B, H, T, T), and may be causal alone."""

        def attend(y: Tensor) -> Tensor:
            return self.attention(y, *self.attention.keys_values(y), mask, is_causal=is_causal)

        return self.residual(x, attend)

    def step(self, x: Tensor, cache: KeyValueCache, layer: str, mask: Tensor | None = None) -> Tensor:
        """Do what `forward` does after the columns in `cache`; see `KeyValueCache.attend_to_past`."""
        return self.residual(x, lambda y: cache.attend_to_past(self.attention, y, layer, mask))


class CrossAttentionSublayer(nn.Module):
    """Attention of the decoder to the output of the encoder, as a residual sublayer."""

    def __init__(self, cfg: StackConfig):
        super().__init__()
        self.attention = build_attention(cfg, AttentionRole.cross)
        self.residual = build_residual(cfg)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Return (B, T, D) of x (B, T, D), keys and values (B, H, S, C); mask as (B, H, T, S)."""
        return self.residual(x, lambda y: self.attention(y, keys, values, mask))

    def step(self, x: Tensor, cache: KeyValueCache, layer: str) -> Tensor:
        """Do what `forward` does for x (N, 1, D) of every hypothesis; see `attend_to_source` of the cache."""
        return self.residual(x, lambda y: cache.attend_to_source(self.attention, y, layer))


class FeedForwardSublayer(nn.Module):
    """The feed-forward block, as a residual sublayer."""

    def __init__(self, cfg: StackConfig):
        super().__init__()
        self.block = FeedForward(
            cfg.d_model,
            cfg.d_ff,
            cfg.activation,
            dropout=cfg.activation_dropout,
            bias=cfg.feed_forward_bias,
        )
        self.residual = build_residual(cfg)

    def forward(self, x: Tensor) -> Tensor:
        """Return (..., D) of x (..., D)."""
        return self.residual(x, self.block)


class SelfAttentionLayer(nn.Module):
    """Self-attention, then feed-forward: a layer of an encoder, or of a decoder-only model."""

    def __init__(self, cfg: StackConfig, role: AttentionRole):
        super().__init__()
        self.self_attention = SelfAttentionSublayer(cfg, role)
        self.feed_forward = FeedForwardSublayer(cfg)

    def forward(self, x: Tensor, mask: Tensor, *, is_causal: bool = False) -> Tensor:
        """Return (B, S, D) of x (B, S, D); mask broadcasts to (B, H, S, S), and may be causal alone."""
        return self.feed_forward(self.self_attention(x, mask, is_causal=is_causal))

    def step(self, x: Tensor, cache: KeyValueCache, layer: str, mask: Tensor | None) -> Tensor:
        """Do what `forward` does, for x (N, T, D) after the columns in `cache`."""
        return self.feed_forward(self.self_attention.step(x, cache, layer, mask))


class Embedding(nn.Module):
    """Map from tokens to vectors of width D: embeddings times sqrt(D) (3.4), positions, norm, dropout."""

    def __init__(self, cfg: StackConfig, tokens: nn.Embedding):
        super().__init__()
        self.tokens = tokens
        self.scale = cfg.embedding_factor
        self.positions = build_positions(cfg)
        self.norm = build_norm(cfg) if cfg.embedding_norm else nn.Identity()
        self.dropout = Dropout(cfg.dropout)

    def forward(self, ids: Tensor, start: int | Tensor = 0, padding: Tensor | None = None) -> Tensor:
        """Return (B, T, D) of ids (B, T) in the columns from `start` on.

        A row that begins with `padding` (B,) columns of padding counts its positions after these.
        """
        x = self.tokens(ids) * self.scale
        if self.positions is not None:
            x = x + self.positions.at(start, ids.shape[1], padding)
        return self.dropout(self.norm(x))


def build_stack(cfg: StackConfig, layers: Iterable[AnyModule]) -> Sequence[AnyModule]:
    """Return the layers as modules, scaled down by the depth of the stack where `cfg.init` says so."""
    stack = module_list(layers)
    if cfg.init is Init.depth_scaled:
        modules = [module for layer in stack for module in layer.modules()]
        outputs = [module.output for module in modules if isinstance(module, MultiHeadAttention)]
        outputs += [module.outer for module in modules if isinstance(module, FeedForward)]
        for output in outputs:
            output.weight.data *= len(outputs) ** -0.5
    return stack


def build_final_norm(cfg: StackConfig) -> nn.Module:
    """Return the norm at the end of a stack, the identity where there is none."""
    by_default = cfg.norm_order is NormOrder.pre  # post-norm stacks end in the norm of their last sublayer
    return build_norm(cfg) if (by_default if cfg.final_norm is None else cfg.final_norm) else nn.Identity()


def build_norm(cfg: StackConfig) -> nn.Module:
    """Return a norm over the D channels of a vector."""
    return NORMS[cfg.norm](cfg.d_model, cfg.norm_eps)


def build_residual(cfg: StackConfig) -> Residual:
    """Return the norm, dropout and residual connection of a sublayer."""
    return Residual(cfg.d_model, cfg.norm_order, dropout=cfg.dropout, norm=build_norm(cfg))


def build_attention(cfg: StackConfig, role: AttentionRole) -> MultiHeadAttention:
    """Return attention with the heads that `cfg` asks for."""
    d_k, d_v = cfg.head_widths
    return MultiHeadAttention(
        cfg.d_model,
        cfg.num_heads,
        dropout=cfg.attention_dropout,
        role=role,
        d_k=d_k,
        d_v=d_v,
        bias=cfg.attention_bias,
        output_bias=cfg.attention_output_bias,
        positions=build_relative_positions(cfg, role),
    )


def build_positions(cfg: StackConfig) -> PositionTable | None:
    """Return the table of positions that are added to the embeddings, None for other kinds."""
    if cfg.positions is Positions.sinusoidal:
        return SinusoidalPositions(cfg.d_model)
    if cfg.positions is Positions.learned:
        std = cfg.embedding_factor * cfg.d_model**-0.5  # as embeddings that start normal, once scaled
        return LearnedPositions(cfg.d_model, cfg.max_positions, std=std)
    return None


RELATIVE_POSITIONS: dict[Positions, Callable[[StackConfig, bool], RelativePositions]] = {
    Positions.rotary: lambda cfg, _: RotaryPositions(cfg.head_widths[0]),
    Positions.alibi: lambda cfg, _: AlibiPositions(cfg.num_heads),
    Positions.relative: lambda cfg, bidirectional: ClippedPositions(
        *cfg.head_widths, max_distance=cfg.furthest, bidirectional=bidirectional
    ),
    Positions.t5: lambda cfg, bidirectional: BucketPositions(
        cfg.d_model,
        cfg.num_heads,
        num_buckets=cfg.num_buckets,
        max_distance=cfg.furthest,
        bidirectional=bidirectional,
    ),
}
"""Positions that act in self-attention -> how to build them, given whether keys may come after a query."""


def build_relative_positions(cfg: StackConfig, role: AttentionRole) -> RelativePositions | None:
    """Return the relative positions of a self-attention; None for cross-attention and for other kinds."""
    if role is AttentionRole.cross or cfg.positions not in RELATIVE_POSITIONS:
        return None
    return RELATIVE_POSITIONS[cfg.positions](cfg, role is AttentionRole.encoder or cfg.sees_ahead)
