"""The encoder-decoder Transformer (Vaswani et al. 2017), post-norm or pre-norm (Xiong et al. 2020).

Knows token ids and nothing of text, batches or loss. Shapes: B sentences, S source length, T target length,
D d_model, H heads, C = D / H, K beams, N = B * K hypotheses, V target vocabulary. Weights start from Xavier's
uniform distribution, embeddings from a normal one with standard deviation D^-0.5; embeddings are multiplied
by sqrt(D) (section 3.4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import cast

import torch
from torch import Tensor, nn

from nmt.errors import UserError
from nmt.layers import (
    Activation,
    Attention,
    Dropout,
    FeedForward,
    LearnedPositions,
    NormOrder,
    Positions,
    Residual,
    SinusoidalPositions,
)
from nmt.models.base import ModelConfig, State, TranslationModel


class Tying(Enum):
    """Which of the source embedding, the target embedding and the output layer are one matrix."""

    none = "none"
    src_tgt = "src_tgt"
    src_output = "src_output"
    tgt_output = "tgt_output"
    all = "all"


@dataclass
class TransformerConfig(ModelConfig):
    """Sizes and variations; by default the base model of the paper, but pre-norm."""

    name: str = "transformer"
    d_ff: int = 2048
    """Width inside the feed-forward blocks."""
    num_heads: int = 8
    """Attention heads; divides d_model."""
    encoder_layers: int = 6
    """Depth of the encoder."""
    decoder_layers: int = 6
    """Depth of the decoder."""
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
    tying: Tying = Tying.all
    """none, src_tgt, src_output, tgt_output or all; sharing with the source needs tokenizer.joint=true."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("d_ff", "num_heads", "encoder_layers", "decoder_layers", "max_positions"):
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
    def shares_vocabulary(self) -> bool:
        return self.tying in (Tying.src_tgt, Tying.src_output, Tying.all)

    @property
    def longest(self) -> int | None:
        return self.max_positions if self.positions is Positions.learned else None


class SelfAttention(nn.Module):
    """Attention of a sequence to itself, as a residual sublayer."""

    def __init__(self, cfg: TransformerConfig):
        super().__init__()
        self.attention = Attention(cfg.d_model, cfg.num_heads, dropout=cfg.attention_dropout)
        self.residual = Residual(cfg.d_model, cfg.norm_order, dropout=cfg.dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """x (B, T, D); mask broadcasts to (B, H, T, T)."""
        out: Tensor = self.residual(x, lambda y: self.attention(y, *self.attention.attended(y), mask))
        return out

    def step(self, x: Tensor, cache: dict[str, Tensor], layer: str) -> Tensor:
        """x (N, 1, D): append its keys and values to those of the positions before, attend to all of them."""

        def attend(y: Tensor) -> Tensor:
            for name, new in zip(("keys", "values"), self.attention.attended(y), strict=True):
                slot = f"{layer}.{name}"
                cache[slot] = torch.cat([cache[slot], new], dim=2) if slot in cache else new
            context: Tensor = self.attention(y, cache[f"{layer}.keys"], cache[f"{layer}.values"], None)
            return context

        out: Tensor = self.residual(x, attend)
        return out


class CrossAttention(nn.Module):
    """Attention of the decoder to the output of the encoder, as a residual sublayer."""

    def __init__(self, cfg: TransformerConfig):
        super().__init__()
        self.attention = Attention(cfg.d_model, cfg.num_heads, dropout=cfg.attention_dropout)
        self.residual = Residual(cfg.d_model, cfg.norm_order, dropout=cfg.dropout)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """x (B, T, D), keys and values (B, H, S, C), mask broadcasts to (B, H, T, S)."""
        out: Tensor = self.residual(x, lambda y: self.attention(y, keys, values, mask))
        return out


class FeedForwardSublayer(nn.Module):
    """The feed-forward block, as a residual sublayer."""

    def __init__(self, cfg: TransformerConfig):
        super().__init__()
        self.block = FeedForward(cfg.d_model, cfg.d_ff, cfg.activation, dropout=cfg.activation_dropout)
        self.residual = Residual(cfg.d_model, cfg.norm_order, dropout=cfg.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) to (..., D)."""
        out: Tensor = self.residual(x, self.block)
        return out


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward."""

    def __init__(self, cfg: TransformerConfig):
        super().__init__()
        self.self_attention = SelfAttention(cfg)
        self.feed_forward = FeedForwardSublayer(cfg)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """x (B, S, D); mask broadcasts to (B, H, S, S)."""
        out: Tensor = self.feed_forward(self.self_attention(x, mask))
        return out


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the source, then feed-forward."""

    def __init__(self, cfg: TransformerConfig):
        super().__init__()
        self.self_attention = SelfAttention(cfg)
        self.cross_attention = CrossAttention(cfg)
        self.feed_forward = FeedForwardSublayer(cfg)

    def forward(self, x: Tensor, memory: Tensor, causal: Tensor, src_mask: Tensor) -> Tensor:
        """x (B, T, D), memory (B, S, D); the masks broadcast to (B, H, T, T) and (B, H, T, S)."""
        x = self.self_attention(x, causal)
        x = self.cross_attention(x, *self.read(memory), src_mask)
        out: Tensor = self.feed_forward(x)
        return out

    def read(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (B, H, S, C) of memory (B, S, D): the same at every target position."""
        return self.cross_attention.attention.attended(memory)

    def step(self, x: Tensor, state: State, layer: str) -> Tensor:
        """x (N, 1, D): one position of every hypothesis; those of a sentence share its keys and values."""
        x = self.self_attention.step(x, state.target, layer)
        mask = state.source["mask"][:, None, None, :]
        per_sentence = x.view(len(mask), -1, x.shape[-1])
        keys, values = state.source[f"{layer}.keys"], state.source[f"{layer}.values"]
        out: Tensor = self.feed_forward(self.cross_attention(per_sentence, keys, values, mask))
        return out.view_as(x)


class Transformer(TranslationModel):
    """See the module's docstring; the contract is in `nmt.models.base`."""

    def __init__(self, cfg: TransformerConfig, *, src_vocab_size: int, tgt_vocab_size: int):
        super().__init__()
        if cfg.shares_vocabulary and src_vocab_size != tgt_vocab_size:
            raise UserError(
                f"model.tying={cfg.tying.value} shares one matrix between source and target, but the "
                f"vocabularies have {src_vocab_size} and {tgt_vocab_size} entries; "
                "set tokenizer.joint=true or model.tying=tgt_output"
            )
        self.scale = math.sqrt(cfg.d_model)
        self.src_embedding = nn.Embedding(src_vocab_size, cfg.d_model)
        self.tgt_embedding = nn.Embedding(tgt_vocab_size, cfg.d_model)
        self.output = nn.Linear(cfg.d_model, tgt_vocab_size, bias=False)
        for layer in (self.src_embedding, self.tgt_embedding, self.output):
            nn.init.normal_(layer.weight, std=cfg.d_model**-0.5)
        if cfg.tying in (Tying.src_tgt, Tying.all):
            self.tgt_embedding.weight = self.src_embedding.weight
        if cfg.tying in (Tying.tgt_output, Tying.all):
            self.output.weight = self.tgt_embedding.weight
        if cfg.tying is Tying.src_output:
            self.output.weight = self.src_embedding.weight

        self.src_positions = build_positions(cfg)
        self.tgt_positions = build_positions(cfg)
        self.max_length = cfg.longest
        self.dropout = Dropout(cfg.dropout)
        self.encoder = nn.ModuleList(EncoderLayer(cfg) for _ in range(cfg.encoder_layers))
        decoder = nn.ModuleList(DecoderLayer(cfg) for _ in range(cfg.decoder_layers))
        self.decoder = cast("Sequence[DecoderLayer]", decoder)
        pre = cfg.norm_order is NormOrder.pre  # post-norm stacks end in a norm already
        self.encoder_norm = nn.LayerNorm(cfg.d_model) if pre else nn.Identity()
        self.decoder_norm = nn.LayerNorm(cfg.d_model) if pre else nn.Identity()

    def forward(self, src: Tensor, src_mask: Tensor, tgt_in: Tensor) -> Tensor:
        """Hidden states (B, T, D) of every target position, given the reference before it."""
        memory = self.encode(src, src_mask)
        length = tgt_in.shape[1]
        x = self._embed(tgt_in, self.tgt_embedding, self.tgt_positions(0, length))
        # Padding stands at the end, where the causal mask hides it from every real position.
        causal = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        for layer in self.decoder:
            x = layer(x, memory, causal, src_mask[:, None, None, :])
        hidden: Tensor = self.decoder_norm(x)
        return hidden

    def project(self, hidden: Tensor) -> Tensor:
        """Logits (..., V) of hidden states (..., D)."""
        logits: Tensor = self.output(hidden)
        return logits

    def start(self, src: Tensor, src_mask: Tensor) -> State:
        """Encode the source and keep its keys and values for every layer of the decoder."""
        memory = self.encode(src, src_mask)
        source = {"mask": src_mask}
        for i, layer in enumerate(self.decoder):
            source[f"{i}.keys"], source[f"{i}.values"] = layer.read(memory)
        return State(source=source)

    def step(self, last: Tensor, state: State) -> Tensor:
        """Logits (N, V) of what follows `last` (N,); the K hypotheses of a sentence are adjacent rows."""
        x = self._embed(last[:, None], self.tgt_embedding, self.tgt_positions(state.position, 1))
        for i, layer in enumerate(self.decoder):
            x = layer.step(x, state, str(i))
        state.position += 1
        return self.project(self.decoder_norm(x[:, 0]))

    def encode(self, src: Tensor, src_mask: Tensor) -> Tensor:
        """Memory (B, S, D) of source ids (B, S)."""
        x = self._embed(src, self.src_embedding, self.src_positions(0, src.shape[1]))
        for layer in self.encoder:
            x = layer(x, src_mask[:, None, None, :])
        memory: Tensor = self.encoder_norm(x)
        return memory

    def _embed(self, ids: Tensor, embedding: nn.Embedding, positions: Tensor) -> Tensor:
        x: Tensor = self.dropout(embedding(ids) * self.scale + positions)
        return x


def build_positions(cfg: TransformerConfig) -> SinusoidalPositions | LearnedPositions:
    """The kind of positions `cfg` asks for."""
    if cfg.positions is Positions.sinusoidal:
        return SinusoidalPositions(cfg.d_model)
    return LearnedPositions(cfg.d_model, cfg.max_positions)
