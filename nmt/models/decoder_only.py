"""The decoder-only Transformer (Radford et al. 2018): one causal stack over the source and the target.

A sentence pair is one sequence, BOS source EOS BOS target EOS; the part before the second BOS is the prefix.
A language model has no prefix: its source has no columns. All prefixes of a batch end in the same column, so
that all targets begin in the same one; a shorter row begins with padding, after which positions are counted.

Knows token ids and nothing of text, batches or loss. Shapes: B sentences, S source length, P = S + 1 columns
of the prefix (0 where S is 0), T target length, D d_model, H heads, N = B * K hypotheses, V vocabulary.

Bidirectional prefix: Dong et al. 2019 (sequence-to-sequence masks); Raffel et al. 2020, section 3.2.1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nmt.data.special_ids import BOS_ID
from nmt.layers.attention import AttentionRole, Factors, prepared
from nmt.models.base import AttentionMaps, TranslationModel
from nmt.models.configs import DecoderOnlyConfig
from nmt.models.fused_step import new_cache
from nmt.models.kv_cache import KeyValueCache
from nmt.models.stack import Embedding, SelfAttentionLayer, build_final_norm, build_stack
from nmt.models.vocabulary import build_vocabulary


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
        self.max_length, self.max_text = cfg.longest, cfg.longest_text
        self.embedding = Embedding(cfg, vocabulary.tgt)
        self.output = vocabulary.output
        layers = (SelfAttentionLayer(cfg, AttentionRole.decoder) for _ in range(cfg.num_layers))
        self.layers = build_stack(cfg, layers)
        self.norm = build_final_norm(cfg)

    def forward(self, src: Tensor, src_mask: Tensor, tgt_in: Tensor) -> Tensor:
        """Return the hidden states (B, T, D) of every target position, given all tokens before it."""
        prefix, padding = self._prefix(src, src_mask)
        columns = prefix.shape[1]
        x = self.embedding(torch.cat([prefix, tgt_in], dim=1), padding=padding)
        # Padding of the target is at its end, where the causal mask hides it from every real position.
        mask = self._mask(padding, columns, x.shape[1])
        mask = prepared(mask, x) if columns else mask
        for layer in self.layers:
            x = layer(x, mask, is_causal=not columns)
        return self.norm(x[:, columns:])

    def start(self, src: Tensor, src_mask: Tensor) -> KeyValueCache:
        """Read the prefix; its keys and values begin the cache that each hypothesis continues for itself."""
        prefix, padding = self._prefix(src, src_mask)
        columns = prefix.shape[1]
        x = self.embedding(prefix, padding=padding)
        cache = new_cache(self.layers, x, len(x))
        cache.target["padding"] = padding
        if columns:
            mask = self._mask(padding, columns, columns)
            for i, layer in enumerate(self.layers):
                x = layer.step(x, cache, str(i), mask)
        cache.prefix = columns
        return cache

    def advance(self, last: Tensor, state: KeyValueCache) -> Tensor:
        """Return the hidden states (N, D) that predict the token after `last` (N,)."""
        padding = state.target["padding"]
        x = self.embedding(last[:, None], start=state.columns, padding=padding)
        x = state.through(self.layers, x, padding)
        state.position += 1
        return self.norm(x)

    def attention(
        self, src: Tensor, src_mask: Tensor, tgt_in: Tensor, *, with_factors: bool = False
    ) -> AttentionMaps:
        """Return the weights of each layer, cut into the parts of the contract, without the first BOS.

        A target position divides its attention between source and target, so that its rows in `cross` and
        `decoder` sum to 1 only together, and to less where the position attends to the first BOS.
        """
        whole = super().attention(src, src_mask, tgt_in, with_factors=with_factors)
        prefix, padding = self._prefix(src, src_mask)
        columns = prefix.shape[1]
        index = (padding[:, None] + 1 + torch.arange(src.shape[1], device=src.device)).clamp(max=columns - 1)
        maps = AttentionMaps()
        for weights in whole.decoder:  # (B, H, P + T, P + T)
            cols = index[:, None, None, :].expand(-1, *weights.shape[1:3], -1)  # (B, H, P + T, S)
            to_source = weights.gather(3, cols) * src_mask[:, None, None, :]
            rows = index[:, None, :, None].expand(-1, weights.shape[1], -1, src.shape[1])  # (B, H, S, S)
            maps.encoder.append(to_source.gather(2, rows))
            maps.cross.append(to_source[:, :, columns:])
            maps.decoder.append(weights[:, :, columns:, columns:])
        for factors in whole.factors.get("decoder", []):  # (B, H, P + T, C) each
            rows = index[:, None, :, None].expand(-1, factors.keys.shape[1], -1, factors.keys.shape[3])
            of_src = Factors(*(x.gather(2, rows) for x in factors))
            of_tgt = Factors(*(x[:, :, columns:] for x in factors))
            cut = (of_src, Factors(of_tgt.queries, of_src.keys), of_tgt)
            for kind, part in zip(("encoder", "cross", "decoder"), cut, strict=True):
                maps.factors.setdefault(kind, []).append(part)
        return maps

    def _prefix(self, src: Tensor, src_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return BOS and source as ids (B, P) that end in the last column, and the width (B,) of padding."""
        length = src.shape[1]
        padding = length - src_mask.sum(1)
        if not length:
            return src, padding
        index = torch.arange(-1, length, device=src.device) - padding[:, None]  # (B, P)
        ids = src.gather(1, index.clamp(min=0))
        return ids.where(index >= 0, torch.full_like(ids, BOS_ID)), padding

    def _mask(self, padding: Tensor, columns: int, length: int) -> Tensor:
        """Return (B, 1, length, length); the first `columns` are the prefix, padding attends to itself."""
        index = torch.arange(length, device=padding.device)
        allowed = index[None, :] <= index[:, None]
        if self.bidirectional:
            allowed = allowed | (index < columns)[:, None] & (index < columns)[None, :]
        real = index[None, None, :] >= padding[:, None, None]
        itself = index[None, :] == index[:, None]
        return (allowed & real | itself)[:, None]
