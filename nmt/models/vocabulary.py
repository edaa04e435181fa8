"""The embeddings and the output layer of a model, and which of them are one matrix.

Knows sizes of vocabularies, not their tokens.

Tying: Press and Wolf 2017; all three matrices: Vaswani et al. 2017, section 3.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from nmt.errors import UserError
from nmt.kernels import fused
from nmt.models.configs import EmbeddingInit, FactorCombine, ModelConfig, Tying


class TokenEmbedding(nn.Embedding):
    """A table of vectors of width D, one for each token; in training a negative id has the vector 0."""

    def forward(self, ids: Tensor) -> Tensor:
        """Return (..., D) of `ids`."""
        if not self.training:
            return super().forward(ids)
        return super().forward(ids.clamp_min(0)).masked_fill((ids < 0)[..., None], 0.0)


class FactoredEmbedding(TokenEmbedding):
    """The table of a source whose ids hold values of factors, as `nmt.data.text.source_factors` packs them.

    The vectors of the values are added to that of the token, or concatenated with it and mapped to D.
    """

    def __init__(self, tokens: TokenEmbedding, sizes: Sequence[int], cfg: ModelConfig):
        """Take the table of `tokens`; a factor of `sizes` has so many values."""
        vocab_size, d_model = tokens.weight.shape
        super().__init__(vocab_size, d_model, _weight=tokens.weight.detach())
        self.weight = tokens.weight
        is_sum = cfg.factor_combine is FactorCombine.sum
        width = d_model if is_sum else cfg.factor_width
        self.sizes = list(sizes)
        tables = [nn.Embedding(size, width) for size in sizes]
        for table in tables:
            nn.init.normal_(table.weight, std=d_model**-0.5)
        self.factors = nn.ModuleList(tables)
        self.map = None if is_sum else nn.Linear(d_model + len(sizes) * width, d_model, bias=False)
        if self.map is not None:
            nn.init.xavier_uniform_(self.map.weight)

    def forward(self, ids: Tensor) -> Tensor:
        """Return (..., D) of packed `ids`."""
        hidden, ids = ids < 0, ids.clamp_min(0)
        parts, rest = [super().forward(ids % self.num_embeddings)], ids // self.num_embeddings
        for size, table in zip(self.sizes, self.factors, strict=True):
            parts.append(table(rest % size))
            rest = rest // size
        found = sum(parts[1:], parts[0]) if self.map is None else self.map(torch.cat(parts, dim=-1))
        return found.masked_fill(hidden[..., None], 0.0) if self.training else found


def add_factors(model: nn.Module, sizes: Sequence[int], cfg: ModelConfig) -> None:
    """Have the table of source tokens in `model` read ids with the values of factors of `sizes`, if any."""
    if not sizes:
        return
    for parent in model.modules():
        for name, table in parent.named_children():
            is_source = name == "src_embedding" or parent is getattr(model, "src_embedding", None)
            if is_source and isinstance(table, TokenEmbedding):
                setattr(parent, name, FactoredEmbedding(table, sizes, cfg))
                return
    raise UserError(f"model.name={cfg.name} has no table of source tokens alone, which factors need")


class Vocabulary(NamedTuple):
    """The three matrices (V, D), one row for each token."""

    src: TokenEmbedding
    tgt: TokenEmbedding
    output: nn.Linear


def initial_std(init: EmbeddingInit, vocab_size: int, d_model: int) -> float:
    """Return the standard deviation of a matrix (V, D) that begins as `init` says."""
    if init is EmbeddingInit.xavier:
        return float((2 / (vocab_size + d_model)) ** 0.5)
    return float(d_model**-0.5)


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
    output = fused.Linear(tgt_d_model or d_model, tgt_vocab_size, bias=output_bias)
    for layer in (src, tgt, output):
        if init is EmbeddingInit.xavier:
            nn.init.xavier_uniform_(layer.weight)
        else:
            nn.init.normal_(layer.weight, std=initial_std(init, *layer.weight.shape))
    if output_bias:
        nn.init.zeros_(output.bias)
    if tying in (Tying.src_tgt, Tying.all):
        tgt.weight = src.weight
    if tying in (Tying.tgt_output, Tying.all):
        output.weight = tgt.weight
    if tying is Tying.src_output:
        output.weight = src.weight
    return Vocabulary(src, tgt, output)
