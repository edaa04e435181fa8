"""The encoder with a head: a Transformer encoder whose states are pooled, and a linear map to the labels.

Classification is translation into one token: the target vocabulary is the set of labels, and every target
position has the same hidden state, the pooled source. The weights have the names of those of the
encoder-decoder, so that an encoder can begin as that of a translation model.

Knows token ids and nothing of text, batches or loss. Shapes: B sentences, S source length, T target length,
D d_model, H heads, K beams, N = B * K hypotheses.

Pooling: the mean (Reimers and Gurevych 2019, section 3); the state of a token in front of every source
(Devlin et al. 2019, section 3.2); attention with one learned query (Lin et al. 2017, section 2.1).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nmt.data.special_ids import BOS_ID
from nmt.layers.attention import AttentionRole, Factors, Recorder, prepared
from nmt.layers.blocks import Dropout
from nmt.models.base import AttentionMaps, State, TranslationModel
from nmt.models.configs import EncoderConfig, Pooling, Tying
from nmt.models.fused_layers import encoded
from nmt.models.stack import Embedding, SelfAttentionLayer, build_final_norm, build_stack
from nmt.models.vocabulary import build_vocabulary


class MeanPooling(Recorder):
    """The mean of the states of all source positions."""

    def __init__(self, d_model: int):
        super().__init__(AttentionRole.cross)

    def forward(self, memory: Tensor, src_mask: Tensor) -> Tensor:
        """Return (B, D) of memory (B, S, D) and src_mask (B, S)."""
        weights = self.weights(memory, src_mask)
        self.record(weights[:, None])
        return torch.einsum("bs,bsd->bd", weights.to(memory.dtype), memory)

    def weights(self, memory: Tensor, src_mask: Tensor) -> Tensor:
        """Return the weight of each source position (B, S); those of a sentence add up to 1."""
        return src_mask / src_mask.sum(1, keepdim=True)


class AttentionPooling(MeanPooling):
    """A mean of the states with weights that one learned query gives them."""

    def __init__(self, d_model: int):
        super().__init__(d_model)
        self.score = nn.Linear(d_model, 1, bias=False)
        nn.init.zeros_(self.score.weight)  # so that the mean is where training begins

    def weights(self, memory: Tensor, src_mask: Tensor) -> Tensor:
        """Return the softmax of the scores (B, S)."""
        scores = self.score(memory)[..., 0].float().masked_fill(~src_mask, -torch.inf)
        return scores.softmax(1)


class Encoder(TranslationModel):
    """See the module's docstring; the contract is in `nmt.models.base`."""

    reads_target = False

    def __init__(self, cfg: EncoderConfig, *, src_vocab_size: int, tgt_vocab_size: int):
        super().__init__()
        vocabulary = build_vocabulary(
            Tying.none,
            cfg.d_model,
            init=cfg.embedding_init,
            output_bias=True,
            src_vocab_size=src_vocab_size,
            tgt_vocab_size=tgt_vocab_size,
        )
        self.src_embedding = Embedding(cfg, vocabulary.src)
        self.output = vocabulary.output
        self.max_length = cfg.longest
        layers = (SelfAttentionLayer(cfg, AttentionRole.encoder) for _ in range(cfg.encoder_layers))
        self.encoder = build_stack(cfg, layers)
        self.encoder_norm = build_final_norm(cfg)
        self.pooling: MeanPooling | None = None  # the first state stands for all
        if cfg.pooling is not Pooling.first:
            kind = AttentionPooling if cfg.pooling is Pooling.attention else MeanPooling
            self.pooling = kind(cfg.d_model)
        self.dropout = Dropout(cfg.dropout)

    def forward(self, src: Tensor, src_mask: Tensor, tgt_in: Tensor) -> Tensor:
        """Return the pooled state of each source as the hidden state (B, T, D) of every target position."""
        return self.pooled(src, src_mask)[:, None].expand(-1, tgt_in.shape[1], -1)

    def start(self, src: Tensor, src_mask: Tensor) -> State:
        """Read the source; its pooled state is all that is kept."""
        return State(source={"pooled": self.pooled(src, src_mask)})

    def advance(self, last: Tensor, state: State) -> Tensor:
        """Return the pooled states (N, D), whatever `last` (N,) is."""
        pooled = state.source["pooled"]
        state.position += 1
        return pooled.repeat_interleave(len(last) // len(pooled), dim=0)

    def pooled(self, src: Tensor, src_mask: Tensor) -> Tensor:
        """Return one state (B, D) for each source (B, S)."""
        if self.pooling is None:
            src = torch.cat([src.new_full((len(src), 1), BOS_ID), src], dim=1)
            src_mask = torch.cat([src_mask.new_ones(len(src), 1), src_mask], dim=1)
        x = self.src_embedding(src)
        mask = prepared(src_mask[:, None, None, :], x)
        x = encoded(list(self.encoder), x, src_mask, mask)
        x = self.encoder_norm(x if self.pooling is not None else x[:, 0])
        return self.dropout(x if self.pooling is None else self.pooling(x, src_mask))

    def attention(
        self, src: Tensor, src_mask: Tensor, tgt_in: Tensor, *, with_factors: bool = False
    ) -> AttentionMaps:
        """Return the weights of the encoder, and as `cross` those by which the source is pooled.

        With `pooling=first` these are the weights of the token in front of the source, by layer and head;
        they add up to less than 1, because that token attends to itself, too.
        """
        maps = super().attention(src, src_mask, tgt_in, with_factors=with_factors)
        if self.pooling is None:
            if factors := maps.factors.get("encoder"):
                of_text = [Factors(*(part[:, :, 1:] for part in layer)) for layer in factors]
                of_first = [layer.queries[:, :, :1].expand(-1, -1, tgt_in.shape[1], -1) for layer in factors]
                both = zip(of_first, of_text, strict=True)
                maps.factors = {
                    "encoder": of_text,
                    "cross": [Factors(queries, layer.keys) for queries, layer in both],
                }
            maps.cross = [weights[:, :, :1, 1:] for weights in maps.encoder]
            maps.encoder = [weights[:, :, 1:, 1:] for weights in maps.encoder]
        maps.cross = [weights.expand(-1, -1, tgt_in.shape[1], -1) for weights in maps.cross]
        return maps
