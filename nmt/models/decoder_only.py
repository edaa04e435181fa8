"""The decoder-only Transformer (Radford et al. 2018): one causal stack over the source and the target.

A sentence pair is one sequence, BOS source EOS BOS target EOS; what stands before the target is its prefix.
A language model is the same without a prefix: the source has no columns. Prefixes end in one column, so that
every target begins in the same one; a shorter row begins with padding, and its positions count from its end.

Knows token ids and nothing of text, batches or loss. Shapes: B sentences, S source length, P = S + 1 columns
of the prefix (0 where S is 0), T target length, D d_model, H heads, N = B * K hypotheses, V vocabulary.

Bidirectional prefix: Dong et al. 2019 (sequence-to-sequence masks); Raffel et al. 2020, section 3.2.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from nmt.data.special_ids import BOS_ID
from nmt.errors import UserError
from nmt.layers.attention import AttentionRole
from nmt.layers.blocks import Activation
from nmt.layers.positions import Positions
from nmt.models.base import AttentionMaps, TranslationModel
from nmt.models.kv_cache import KeyValueCache, new_cache
from nmt.models.stack import (
    Embedding,
    SelfAttentionLayer,
    StackConfig,
    build_final_norm,
    build_stack,
)
from nmt.models.vocabulary import Tying, build_vocabulary


class Prefix(Enum):
    """What a position of the source may attend to."""

    bidirectional = "bidirectional"
    """The whole source."""
    causal = "causal"
    """The source up to itself."""


class LossOn(Enum):
    """Which tokens of a pair the model learns to predict."""

    target = "target"
    both = "both"


@dataclass
class DecoderOnlyConfig(StackConfig):
    """Sizes and variations; by default those of GPT for its positions, norms and activation."""

    name: str = "decoder_only"
    num_layers: int = 6
    """Depth of the stack."""
    positions: Positions = Positions.learned
    """How positions are told apart."""
    activation: Activation = Activation.gelu
    """Non-linearity of the feed-forward blocks."""
    prefix: Prefix = Prefix.bidirectional
    """bidirectional or causal: what a position of the source may attend to."""
    loss_on: LossOn = LossOn.target
    """target, or both: the source is then predicted, too, which needs model.prefix=causal."""
    tying: Tying = Tying.all
    """all, or src_tgt for an output layer of its own; source and target always share their embedding."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("num_layers")
        if self.tying not in (Tying.all, Tying.src_tgt):
            raise UserError(
                "model.tying must be all or src_tgt in a decoder-only model, where source and target are "
                f"one sequence, but is {self.tying.value}"
            )
        if self.loss_on is LossOn.both and self.prefix is Prefix.bidirectional:
            raise UserError(
                "model.loss_on=both needs model.prefix=causal: with model.prefix=bidirectional each position "
                "of the source sees the token that it should predict"
            )

    @property
    def shares_vocabulary(self) -> bool:
        return True

    @property
    def sees_ahead(self) -> bool:
        return self.prefix is Prefix.bidirectional

    @property
    def needs_source(self) -> bool:
        return False

    @property
    def learns_source(self) -> bool:
        return self.loss_on is LossOn.both

    @property
    def longest(self) -> int | None:
        """Half of the positions that source and target share."""
        whole = super().longest
        return None if whole is None else (whole - 1) // 2

    @property
    def longest_text(self) -> int | None:
        return super().longest


class DecoderOnly(TranslationModel):
    """See the module's docstring; the contract is in `nmt.models.base`."""

    def __init__(self, cfg: DecoderOnlyConfig, *, src_vocab_size: int, tgt_vocab_size: int):
        super().__init__()
        vocabulary = build_vocabulary(
            cfg.tying,
            cfg.d_model,
            init=cfg.embedding_init,
            src_vocab_size=src_vocab_size,
            tgt_vocab_size=tgt_vocab_size,
        )
        self.bidirectional = cfg.sees_ahead
        self.max_length = cfg.longest
        self.embedding = Embedding(cfg, vocabulary.tgt)
        self.output = vocabulary.output
        layers = (SelfAttentionLayer(cfg, AttentionRole.decoder) for _ in range(cfg.num_layers))
        self.layers = build_stack(cfg, layers)
        self.norm = build_final_norm(cfg)

    def forward(self, src: Tensor, src_mask: Tensor, tgt_in: Tensor) -> Tensor:
        """Return the hidden states (B, T, D) of every target position, given all before it."""
        prefix, padding = self._prefix(src, src_mask)
        columns = prefix.shape[1]
        x = self.embedding(torch.cat([prefix, tgt_in], dim=1), padding=padding)
        # Padding of the target stands at its end, where the causal mask hides it from every real position.
        mask = self._mask(padding, columns, x.shape[1])
        for layer in self.layers:
            x = layer(x, mask, is_causal=not columns)
        return self.norm(x[:, columns:])

    def start(self, src: Tensor, src_mask: Tensor) -> KeyValueCache:
        """Read the prefix; its keys and values begin the cache that each hypothesis continues for itself."""
        prefix, padding = self._prefix(src, src_mask)
        columns = prefix.shape[1]
        x = self.embedding(prefix, padding=padding)
        cache = new_cache((layer.self_attention.attention for layer in self.layers), x)
        cache.target["padding"] = padding
        if columns:
            mask = self._mask(padding, columns, columns)
            for i, layer in enumerate(self.layers):
                x = layer.step(x, cache, str(i), mask)
        cache.prefix = columns
        return cache

    def advance(self, last: Tensor, state: KeyValueCache) -> Tensor:
        """Return the hidden states (N, D) of what follows `last` (N,)."""
        padding = state.target["padding"]
        x, mask = self.embedding(last[:, None], start=state.columns, padding=padding), state.mask(padding)
        for i, layer in enumerate(self.layers):
            x = layer.step(x, state, str(i), mask)
        state.position += 1
        return self.norm(x[:, 0])

    def attention(self, src: Tensor, src_mask: Tensor, tgt_in: Tensor) -> AttentionMaps:
        """Return the weights of each layer, cut into the parts of the contract, without the first BOS.

        A target position divides its attention between both, so that its rows in `cross` and `decoder` sum to
        1 only together, and to less where it attends to that BOS.
        """
        layers = super().attention(src, src_mask, tgt_in).decoder
        prefix, padding = self._prefix(src, src_mask)
        columns = prefix.shape[1]
        place = (padding[:, None] + 1 + torch.arange(src.shape[1], device=src.device)).clamp(max=columns - 1)
        maps = AttentionMaps()
        for weights in layers:
            cols = place[:, None, None, :].expand(-1, *weights.shape[1:3], -1)
            to_source = weights.gather(3, cols) * src_mask[:, None, None, :]
            rows = place[:, None, :, None].expand(-1, weights.shape[1], -1, src.shape[1])
            maps.encoder.append(to_source.gather(2, rows))
            maps.cross.append(to_source[:, :, columns:])
            maps.decoder.append(weights[:, :, columns:, columns:])
        return maps

    def _prefix(self, src: Tensor, src_mask: Tensor) -> tuple[Tensor, Tensor]:
        """BOS and source as ids (B, P) that end in the last column, and how many columns (B,) are padding."""
        length = src.shape[1]
        padding = length - src_mask.sum(1)
        if not length:
            return src, padding
        place = torch.arange(-1, length, device=src.device) - padding[:, None]
        ids = src.gather(1, place.clamp(min=0))
        return ids.where(place >= 0, torch.full_like(ids, BOS_ID)), padding

    def _mask(self, padding: Tensor, columns: int, length: int) -> Tensor:
        """(B, 1, length, length), the first `columns` being the prefix; padding attends to itself alone."""
        place = torch.arange(length, device=padding.device)
        allowed = place[None, :] <= place[:, None]
        if self.bidirectional:
            allowed = allowed | (place < columns)[:, None] & (place < columns)[None, :]
        real = place[None, None, :] >= padding[:, None, None]
        itself = place[None, :] == place[:, None]
        return (allowed & real | itself)[:, None]
