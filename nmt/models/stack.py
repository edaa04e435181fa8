"""The layers of attention and feed-forward that Transformers with and without an encoder are stacked from.

A layer consists of residual sublayers, each with a norm, post-norm (Vaswani et al. 2017) or pre-norm (Xiong
et al. 2020). docs/models.md lists the variations with their papers.
Shapes: B sentences, T positions of the queries, S positions of the keys, D d_model, H heads, C channels of a
head, N = B * K hypotheses.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
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
from nmt.layers.summaries import Ssru, Summary
from nmt.models.configs import Init, StackConfig
from nmt.models.kv_cache import KeyValueCache
from nmt.models.vocabulary import initial_std


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


class SummarySublayer(nn.Module):
    """A summary of the positions before each, in place of causal self-attention, as a residual sublayer."""

    def __init__(self, cfg: StackConfig, summary: Summary):
        super().__init__()
        self.summary = summary
        self.residual = build_residual(cfg)

    def forward(self, x: Tensor, mask: Tensor, *, is_causal: bool = True) -> Tensor:
        """Return (B, T, D) of x (B, T, D), causal whatever the mask; padding must be at the end."""
        return self.residual(x, self.summary)

    def step(self, x: Tensor, cache: KeyValueCache, layer: str, mask: Tensor | None = None) -> Tensor:
        """Do what `forward` does for x (N, 1, D), after what `cache` keeps: (N, D), which does not grow."""
        name = f"{layer}.summary"

        def summarise(y: Tensor) -> Tensor:
            out, cache.target[name] = self.summary.step(y, cache.target.get(name), cache.position)
            return out

        return self.residual(x, summarise)


class CrossAttentionSublayer(nn.Module):
    """Attention of the decoder to the output of the encoder (`d_memory` channels), as a residual sublayer."""

    def __init__(self, cfg: StackConfig, d_memory: int):
        super().__init__()
        self.attention = build_attention(cfg, AttentionRole.cross, d_memory)
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
        self.block = build_feed_forward(cfg)
        self.residual = build_residual(cfg)
        self.adapter: nn.Module = nn.Identity()
        """What comes behind the layer; see `nmt.training.adapting.adapters`."""

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
        self.positions = build_positions(cfg, tokens.num_embeddings)
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


class Skipped(torch.autograd.Function):
    """The identity in place of a layer, whose weights and inputs besides x get gradients of zero.

    Processes that add up their gradients wait for those of every weight, also of the encoder where all layers
    of the decoder are left out.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, *others: Tensor) -> Tensor:
        """Return x."""
        ctx.others = others
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of x as it comes, and zeros for what else has a gradient."""
        return (*grads, *(torch.zeros_like(x) if x.requires_grad else None for x in ctx.others))


def through(layers: Iterable[nn.Module], x: Tensor, *others: Tensor, drop: float = 0.0) -> Tensor:
    """Return what the layers make of x (B, T, D), one after the other; each is left out at the rate `drop`.

    LayerDrop (Fan et al. 2020, section 3.1). The numbers of `random` decide, which all processes of a
    training draw alike. It happens outside of the layers, so that what is computed again is the same. FSDP
    must see every layer in every pass: there the result of the layer is dropped.
    """
    for layer in layers:
        if drop and random.random() < drop:
            is_sharded = hasattr(layer, "unshard")  # a method that FSDP gives to modules
            x = Skipped.apply(x, *([layer(x, *others)] if is_sharded else [*others, *layer.parameters()]))
        else:
            x = layer(x, *others)
    return x


def build_stack(
    cfg: StackConfig, layers: Iterable[AnyModule], depth: int | None = None
) -> Sequence[AnyModule]:
    """Return the layers as modules, scaled down by the depth of the stack where `cfg.init` says so.

    `depth` counts layers that share weights as several; by default none does.
    """
    stack = module_list(layers)
    if cfg.init is Init.depth_scaled:
        modules = [module for layer in stack for module in layer.modules()]
        outputs = [module.output.weight for module in modules if isinstance(module, MultiHeadAttention)]
        outputs += [one.block.outer.weight for one in modules if isinstance(one, FeedForwardSublayer)]
        outputs += [module.value_weight for module in modules if isinstance(module, Ssru)]
        num_residuals = sum(isinstance(module, Residual) for module in modules)
        num_sublayers = num_residuals // len(stack) * (depth or len(stack))
        for output in outputs:
            output.data *= num_sublayers**-0.5
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
    return Residual(build_norm(cfg), cfg.norm_order, dropout=cfg.dropout)


def build_feed_forward(cfg: StackConfig) -> FeedForward:
    """Return a feed-forward block of the width that `cfg` asks for."""
    return FeedForward(
        cfg.d_model, cfg.d_ff, cfg.activation, dropout=cfg.activation_dropout, bias=cfg.feed_forward_bias
    )


def build_attention(cfg: StackConfig, role: AttentionRole, d_memory: int | None = None) -> MultiHeadAttention:
    """Return attention with the heads that `cfg` asks for, to a sequence of `d_memory` channels if given."""
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
        d_memory=d_memory,
    )


def build_positions(cfg: StackConfig, vocab_size: int) -> PositionTable | None:
    """Return the table of positions that are added to the embeddings, None for other kinds.

    Learned ones begin as large as the embeddings, which are those of `vocab_size` tokens.
    """
    if cfg.positions is Positions.sinusoidal:
        return SinusoidalPositions(cfg.d_model)
    if cfg.positions is Positions.learned:
        std = cfg.embedding_factor * initial_std(cfg.embedding_init, vocab_size, cfg.d_model)
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
