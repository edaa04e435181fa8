"""The encoder-decoder Transformer (Vaswani et al. 2017), post-norm or pre-norm (Xiong et al. 2020).

Knows token ids and nothing of text, batches or loss. Shapes: B sentences, S source length, T target length,
D d_model (the decoder may have another one), H heads, C channels of a head, K beams, N = B * K hypotheses,
V target vocabulary.

Layers may share weights (Dehghani et al. 2019; Takase and Kiyono 2021): each is stored once, in the order of
its first use. In training whole layers may be left out (LayerDrop, Fan et al. 2020).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from nmt.layers.attention import AttentionRole, prepared
from nmt.layers.blocks import module_list
from nmt.layers.choices import SelfAttention
from nmt.layers.summaries import AverageAttention, Ssru
from nmt.models.base import TranslationModel
from nmt.models.configs import TransformerConfig
from nmt.models.fused_layers import encoded
from nmt.models.fused_step import new_cache
from nmt.models.kv_cache import KeyValueCache
from nmt.models.stack import (
    CrossAttentionSublayer,
    Embedding,
    FeedForwardSublayer,
    SelfAttentionLayer,
    SelfAttentionSublayer,
    SummarySublayer,
    build_feed_forward,
    build_final_norm,
    build_stack,
    through,
)
from nmt.models.vocabulary import build_vocabulary

ENCODED_AT_ONCE = 1024
"""Tokens of a source that a CPU encodes at once: few enough for its cache, and with little padding."""


def parts_by_length(src_mask: Tensor) -> list[tuple[slice, int]]:
    """Return the rows of `src_mask` (B, S) in parts to encode one after the other, with the tokens of each.

    Where rows of similar length stand together, as search has them, less is padding. A GPU takes all at once.
    """
    num_rows, longest = src_mask.shape
    if src_mask.device.type != "cpu" or num_rows * longest <= ENCODED_AT_ONCE:
        return [(slice(None), longest)]
    lengths = (src_mask * torch.arange(1, longest + 1)).amax(1).clamp(min=1).tolist()
    parts, first, most = [], 0, 0
    for row, length in enumerate(lengths):
        if row > first and (row + 1 - first) * max(most, length) > ENCODED_AT_ONCE:
            parts.append((slice(first, row), most))
            first, most = row, 0
        most = max(most, length)
    return [*parts, (slice(first, num_rows), most)]


def build_self_attention(cfg: TransformerConfig) -> SelfAttentionSublayer | SummarySublayer:
    """Return the sublayer in which target positions learn of those before them."""
    kind = cfg.decoder_self_attention
    if kind is SelfAttention.attention:
        return SelfAttentionSublayer(cfg, AttentionRole.decoder)
    if kind is SelfAttention.ssru:
        return SummarySublayer(cfg, Ssru(cfg.d_model))
    assert kind is SelfAttention.average, kind
    block = build_feed_forward(cfg) if cfg.average_feed_forward else None
    return SummarySublayer(cfg, AverageAttention(cfg.d_model, block))


class DecoderLayer(nn.Module):
    """Causal self-attention or a substitute, attention to `d_memory` channels, then feed-forward."""

    def __init__(self, cfg: TransformerConfig, d_memory: int):
        super().__init__()
        self.self_attention = build_self_attention(cfg)
        self.cross_attention = CrossAttentionSublayer(cfg, d_memory)
        self.feed_forward = FeedForwardSublayer(cfg)

    def forward(self, x: Tensor, memory: Tensor, causal: Tensor, src_mask: Tensor) -> Tensor:
        """Return (B, T, D) of x (B, T, D), memory (B, S, D), masks as (B, H, T, T) and (B, H, T, S)."""
        x = self.self_attention(x, causal, is_causal=True)
        x = self.cross_attention(x, *self.read(memory), src_mask)
        return self.feed_forward(x)

    def read(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values (B, H, S, C) of memory (B, S, D): the same at every target position."""
        return self.cross_attention.attention.keys_values(memory)

    def step(self, x: Tensor, cache: KeyValueCache, layer: str, mask: Tensor | None) -> Tensor:
        """Do what `forward` does for x (N, 1, D), one position of every hypothesis; mask from `cache`."""
        x = self.self_attention.step(x, cache, layer, mask)
        return self.feed_forward(self.cross_attention.step(x, cache, layer))


class Transformer(TranslationModel):
    """See the module's docstring; the contract is in `nmt.models.base`."""

    def __init__(self, cfg: TransformerConfig, *, src_vocab_size: int, tgt_vocab_size: int):
        super().__init__()
        of_decoder = cfg.decoder_stack
        vocabulary = build_vocabulary(
            cfg.tying,
            cfg.d_model,
            tgt_d_model=of_decoder.d_model,
            init=cfg.embedding_init,
            output_bias=cfg.output_bias,
            src_vocab_size=src_vocab_size,
            tgt_vocab_size=tgt_vocab_size,
        )
        self.src_embedding = Embedding(cfg, vocabulary.src)
        self.tgt_embedding = Embedding(of_decoder, vocabulary.tgt)
        self.output = vocabulary.output
        self.max_length = cfg.longest
        self.encoder_order, self.decoder_order = cfg.encoder_order, cfg.decoder_order
        encoder = (SelfAttentionLayer(cfg, AttentionRole.encoder) for _ in set(self.encoder_order))
        self.encoder = build_stack(cfg, encoder, cfg.encoder_layers)
        decoder = (DecoderLayer(of_decoder, cfg.d_model) for _ in set(self.decoder_order))
        self.decoder = build_stack(cfg, decoder, cfg.decoder_layers)
        self.encoder_norm = build_final_norm(cfg)
        self.decoder_norm = build_final_norm(of_decoder)
        self.layer_drop = cfg.layer_drop
        self.gains_from_compiling = not cfg.layer_drop  # each choice of layers would be a graph of its own

    @property
    def encoder_layers(self) -> Sequence[SelfAttentionLayer]:
        """The layers that a source goes through; one that is shared is there several times."""
        return [self.encoder[i] for i in self.encoder_order]

    @property
    def decoder_layers(self) -> Sequence[DecoderLayer]:
        """The layers that a target goes through; one that is shared is there several times."""
        return [self.decoder[i] for i in self.decoder_order]

    def keep_layers(self, encoder: Sequence[int] | None, decoder: Sequence[int] | None) -> None:
        for side, kept in (("encoder", encoder), ("decoder", decoder)):
            if kept is not None:
                order = [getattr(self, f"{side}_order")[n - 1] for n in kept]
                used = list(dict.fromkeys(order))
                stack = getattr(self, side)
                setattr(self, side, module_list(stack[i] for i in used))
                setattr(self, f"{side}_order", [used.index(i) for i in order])

    def uses(self, name: str) -> float:
        """Return in how many layers the parameter `name` is, or the mean where layers are left out."""
        stack, _, rest = name.partition(".")
        if stack not in ("encoder", "decoder"):
            return 1
        order = self.encoder_order if stack == "encoder" else self.decoder_order
        return order.count(int(rest.partition(".")[0])) * (1 - self.layer_drop)

    def forward(self, src: Tensor, src_mask: Tensor, tgt_in: Tensor) -> Tensor:
        """Return the hidden states (B, T, D) of every target position, given the reference before it."""
        memory, mask = self.encode(src, src_mask)
        length = tgt_in.shape[1]
        x = self.tgt_embedding(tgt_in)
        # Padding is at the end, where the causal mask hides it from every real position.
        causal = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        drop = self.layer_drop if self.training else 0.0
        return self.decoder_norm(through(self.decoder_layers, x, memory, causal, mask, drop=drop))

    def start(self, src: Tensor, src_mask: Tensor) -> KeyValueCache:
        """Encode the source and keep its keys and values for every layer of the decoder."""
        places = [(rows, slice(length)) for rows, length in parts_by_length(src_mask)]
        memories = [self.encode(src[place], src_mask[place])[0] for place in places]
        cache = new_cache(self.decoder_layers, memories[0], len(src))
        cache.remember_source(src_mask, ([layer.read(x) for x in memories] for layer in self.decoder_layers))
        return cache

    def advance(self, last: Tensor, state: KeyValueCache) -> Tensor:
        """Return the hidden states (N, D) that predict the token after `last` (N,)."""
        x = state.through(self.decoder_layers, self.tgt_embedding(last[:, None], start=state.position))
        state.position += 1
        return self.decoder_norm(x)

    def encode(self, src: Tensor, src_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return memory (B, S, D) of source ids (B, S), and the mask (B, 1, 1, S) of attention to it."""
        x = self.src_embedding(src)
        mask = prepared(src_mask[:, None, None, :], x)
        drop = self.layer_drop if self.training else 0.0
        return self.encoder_norm(encoded(self.encoder_layers, x, src_mask, mask, drop)), mask
