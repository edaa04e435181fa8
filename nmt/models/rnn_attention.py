"""Attention of a recurrent decoder to its source: the additive, dot and general scores.

Knows vectors, not tokens, and no decoder. Shapes: B sentences, Q queries of a sentence, S source length,
D d_model. Masks are boolean and True means "may be attended".

Additive: Bahdanau et al. 2015. Dot and general: Luong et al. 2015.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from nmt.layers.attention import AttentionRole, Recorder


class RecurrentAttention(Recorder, ABC):
    """A context for every query: memory, weighted by a softmax over the scores.

    The caller keeps the keys, which are the same for all queries, and records the weights of a whole target.
    """

    def __init__(self) -> None:
        super().__init__(AttentionRole.cross)

    @abstractmethod
    def keys(self, memory: Tensor) -> Tensor:
        """Return the keys (B, S, D) of memory (B, S, D), which queries are compared with."""

    @abstractmethod
    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return the scores (B, Q, S) of queries (B, Q, D) and keys (B, S, D)."""

    def forward(self, queries: Tensor, keys: Tensor, memory: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return contexts (B, Q, D) and weights (B, Q, S); mask (B, S)."""
        scores = self.scores(queries, keys).masked_fill(~mask[:, None], -torch.inf)
        weights = scores.softmax(dim=-1)
        return weights.to(memory.dtype) @ memory, weights


class AdditiveAttention(RecurrentAttention):
    """score(q, h) = v^T tanh(W q + U h): Bahdanau et al. 2015, appendix A.1.2."""

    def __init__(self, d_model: int):
        super().__init__()
        self.query = nn.Linear(d_model, d_model, bias=False)
        self.key = nn.Linear(d_model, d_model)
        self.score = nn.Linear(d_model, 1, bias=False)
        for layer in (self.query, self.key, self.score):
            nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(self.key.bias)

    def keys(self, memory: Tensor) -> Tensor:
        return self.key(memory)

    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        compared = torch.tanh(self.query(queries)[:, :, None] + keys[:, None])  # (B, Q, S, D)
        scores: Tensor = self.score(compared)
        return scores.squeeze(-1)


class DotAttention(RecurrentAttention):
    """score(q, h) = q^T h: Luong et al. 2015, section 3.1."""

    def keys(self, memory: Tensor) -> Tensor:
        return memory

    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        return queries @ keys.transpose(1, 2)


class GeneralAttention(DotAttention):
    """score(q, h) = q^T W h: Luong et al. 2015, section 3.1."""

    def __init__(self, d_model: int):
        super().__init__()
        self.key = nn.Linear(d_model, d_model, bias=False)
        nn.init.xavier_uniform_(self.key.weight)

    def keys(self, memory: Tensor) -> Tensor:
        return self.key(memory)
