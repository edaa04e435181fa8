"""A model that predicts only some tokens: a part of the vocabulary, in which each sentence has its own part.

The tokens of a batch are numbered anew: token n of the narrowed model is `ids[n]` of the model itself. The
rows of its output layer are gathered once, and a sentence gives tokens that it may not have the probability
0, so that a sentence is translated alike in every batch. The last number of a hidden state is that of its
sentence.

Shapes: B sentences of the batch that the model is narrowed for, N hypotheses, D width, V tokens left.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nmt.layers.low_precision import rows_of
from nmt.models.base import AttentionMaps, State, TranslationModel


def narrowed(model: TranslationModel, ids: Tensor, allowed: Tensor) -> TranslationModel:
    """Return `model` for a batch whose sentences may have the tokens `ids` (V,) that are `allowed` (B, V).

    An ensemble is narrowed in each of its models, whose distributions are then over the allowed tokens.
    """
    if parts := model.parts:
        return model.of_parts([narrowed(part, ids, allowed) for part in parts])
    return Narrowed(model, ids, allowed)


class Narrowed(TranslationModel):
    """See the module's docstring; the contract is in `nmt.models.base`."""

    def __init__(self, model: TranslationModel, ids: Tensor, allowed: Tensor):
        super().__init__()
        self.training = False
        self.model, self.ids = model, ids
        self.max_length = model.max_length
        self.rows = rows_of(model.output, ids)
        self.bias = torch.zeros(allowed.shape, device=ids.device).masked_fill_(~allowed, -torch.inf)

    @property
    def max_source(self) -> int | None:
        return self.model.max_source

    @property
    def hidden_size(self) -> int:
        return self.model.hidden_size + 1

    def forward(self, src: Tensor, src_mask: Tensor, tgt_in: Tensor) -> Tensor:
        """Return the hidden states (B, T, D + 1) of every target position of the B sentences."""
        numbers = torch.arange(len(src), device=src.device)[:, None].expand(tgt_in.shape)
        return _with(numbers, self.model(src, src_mask, self.ids[tgt_in]))

    def project(self, hidden: Tensor) -> Tensor:
        """Return the logits (..., V), float32, of hidden states (..., D + 1); -inf of tokens not allowed."""
        numbers = hidden[..., -1].long()
        states = hidden[..., :-1].contiguous()
        if isinstance(self.rows, torch.nn.Linear):
            states = states.to(self.rows.weight.dtype)
        return self.rows(states).float().add_(self.bias[numbers])

    def start(self, src: Tensor, src_mask: Tensor) -> State:
        """Let the model read the source."""
        numbers = torch.arange(len(src), device=src.device)
        return State(source={"number": numbers}, parts=[self.model.start(src, src_mask)])

    def advance(self, last: Tensor, state: State) -> Tensor:
        """Return the hidden states (N, D + 1) that predict the token after `last` (N,)."""
        numbers = state.source["number"]
        hidden = self.model.advance(self.ids[last], state.parts[0])
        state.position += 1
        return _with(numbers.repeat_interleave(len(last) // len(numbers)), hidden)

    def attention(
        self, src: Tensor, src_mask: Tensor, tgt_in: Tensor, *, with_factors: bool = False
    ) -> AttentionMaps:
        """Return the weights with which the model attends; the sentences may be any."""
        return self.model.attention(src, src_mask, self.ids[tgt_in], with_factors=with_factors)


def _with(numbers: Tensor, hidden: Tensor) -> Tensor:
    """Return hidden states (..., D) with a number (...) behind each, as float32: exact up to 16 million."""
    return torch.cat([hidden.float(), numbers[..., None].float()], dim=-1)
