"""A translation model and a language model of its target language that predict as one.

The distribution of the next token is proportional to p_translation * p_language ** weight: shallow fusion
(Gulcehre et al. 2015, section 4.1), normalised over the vocabulary at every step, so that samples can be
drawn from it, too. A negative weight takes away what the language model expects.

A language model reads no source. It has learnt one long text whose lines end with EOS, so that a sentence
follows BOS and EOS, and takes one more position.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from nmt.data.special_ids import BOS_ID, EOS_ID
from nmt.models.base import AttentionMaps, State, TranslationModel
from nmt.models.configs import EnsembleConfig, Mean
from nmt.models.ensemble import Ensemble


class WithoutSource(TranslationModel):
    """A language model as a translation model: whatever the source, a sentence has its probability."""

    def __init__(self, model: TranslationModel):
        super().__init__()
        self.model = model
        self.max_length = None if model.max_text is None else model.max_text - 1

    @property
    def max_source(self) -> None:
        """None: no source is read."""
        return

    @property
    def output(self) -> nn.Linear:  # type: ignore[override]
        """The output layer of the language model."""
        return self.model.output

    def forward(self, src: Tensor, src_mask: Tensor, tgt_in: Tensor) -> Tensor:
        """Return the hidden states (B, T, D) of every target position."""
        end = torch.full_like(tgt_in[:, :1], EOS_ID)
        text = torch.cat([tgt_in[:, :1], end, tgt_in[:, 1:]], dim=1)
        hidden: Tensor = self.model(src[:, :0], src_mask[:, :0], text)
        return hidden[:, 1:]

    def start(self, src: Tensor, src_mask: Tensor) -> State:
        """Begin a text."""
        state = self.model.start(src[:, :0], src_mask[:, :0])
        self.model.advance(torch.full_like(src[:, 0], BOS_ID), state)
        return State(parts=[state])

    def advance(self, last: Tensor, state: State) -> Tensor:
        """Return the hidden states (N, D) that predict the token after `last` (N,); BOS begins a line."""
        state.position += 1
        return self.model.advance(last.masked_fill(last == BOS_ID, EOS_ID), state.parts[0])


class Fusion(Ensemble):
    """See the module's docstring; the contract is in `nmt.models.base`."""

    def __init__(self, model: TranslationModel, language_model: TranslationModel, weight: float):
        pair = [model, WithoutSource(language_model)]
        super().__init__(pair, EnsembleConfig(mean=Mean.log_probabilities))
        self.weights = [1.0, weight]

    @property
    def members(self) -> list[TranslationModel]:
        """The models that translate."""
        return cast(TranslationModel, self.models[0]).members

    def attention(
        self, src: Tensor, src_mask: Tensor, tgt_in: Tensor, *, with_factors: bool = False
    ) -> AttentionMaps:
        """Return the attention weights of the translation model."""
        return self.parts[0].attention(src, src_mask, tgt_in, with_factors=with_factors)
