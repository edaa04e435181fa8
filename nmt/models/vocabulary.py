"""The embeddings and the output layer of a model, and which of them are one matrix.

Knows sizes of vocabularies, not their tokens.

Tying: Press and Wolf 2017; all three matrices: Vaswani et al. 2017, section 3.4.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from nmt.errors import UserError
from nmt.models.configs import EmbeddingInit, Tying


class TokenEmbedding(nn.Embedding):
    """A table of vectors of width D, one for each token; in training a negative id has the vector 0."""

    def forward(self, ids: Tensor) -> Tensor:
        """Return (..., D) of `ids`."""
        if not self.training:
            return super().forward(ids)
        return super().forward(ids.clamp_min(0)).masked_fill((ids < 0)[..., None], 0.0)


class Vocabulary(NamedTuple):
    """The three matrices (V, D), one row for each token."""

    src: TokenEmbedding
    tgt: TokenEmbedding
    output: nn.Linear


def build_vocabulary(
    tying: Tying,
    d_model: int,
    *,
    src_vocab_size: int,
    tgt_vocab_size: int,
    init: EmbeddingInit = EmbeddingInit.normal,
    output_bias: bool = False,
    tgt_d_model: int | None = None,
) -> Vocabulary:
    """Make the matrices and tie them; target embedding and output layer may have another width.

    Raises:
        UserError: one matrix cannot serve vocabularies of two sizes.
    """
    if tying.shares_vocabulary and src_vocab_size != tgt_vocab_size:
        raise UserError(
            f"model.tying={tying.value} shares one matrix between source and target, but the "
            f"vocabularies have {src_vocab_size} and {tgt_vocab_size} entries; "
            "set tokenizer.joint=true or model.tying=tgt_output"
        )
    src = TokenEmbedding(src_vocab_size, d_model)
    tgt = TokenEmbedding(tgt_vocab_size, tgt_d_model or d_model)
    output = nn.Linear(tgt_d_model or d_model, tgt_vocab_size, bias=output_bias)
    for layer in (src, tgt, output):
        if init is EmbeddingInit.xavier:
            nn.init.xavier_uniform_(layer.weight)
        else:
            nn.init.normal_(layer.weight, std=layer.weight.shape[1] ** -0.5)
    if output_bias:
        nn.init.zeros_(output.bias)
    if tying in (Tying.src_tgt, Tying.all):
        tgt.weight = src.weight
    if tying in (Tying.tgt_output, Tying.all):
        output.weight = tgt.weight
    if tying is Tying.src_output:
        output.weight = src.weight
    return Vocabulary(src, tgt, output)
