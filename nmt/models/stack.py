"""The layers of attention and feed-forward that Transformers with and without an encoder are stacked from.

A layer consists of residual sublayers, each with a norm, post-norm (Vaswani et al. 2017) or pre-norm (Xiong
et al. 2020). docs/models.md lists the variations with their papers.
Shapes: B sentences, T positions of the queries, S positions of the keys, D d_model, H heads, C channels of a
head, N = B * K hypotheses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from torch import Tensor, nn

from nmt.layers.attention import AttentionRole, MultiHeadAttention
from nmt.layers.blocks import NORMS, AnyModule, Dropout, FeedForward, Residual, module_list
from nmt.layers.choices import NormOrder, Positions
from nmt.layers.positions import LearnedPositions, PositionTable, SinusoidalPositions
from nmt.layers.relative_positions import (
    AlibiPositions,
    BucketPositions,
    ClippedPositions,
    RelativePositions,
    RotaryPositions,
)
from nmt.models.configs import Init, StackConfig
from nmt.models.kv_cache import KeyValueCache


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
        self.adapter: nn.Module = nn.Identity()
        """What comes behind the layer; see `nmt.training.adapters`."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (..., D) of x (..., D)."""
        return self.adapter(self.residual(x, self.block))


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
            x = x + self.positions.at(start, ids.shape[1], padding).to(x.dtype)
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
        num_kv_heads=cfg.num_kv_heads,
        qk_norm=cfg.qk_norm,
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
