"""Several models that predict as one: the mean of their distributions over the next token.

An ensemble fulfils the contract of models, so that whatever searches or scores with a model does so with
several. Its members may be of different families and sizes; they read the same source ids and predict the
same target ids. A hidden state of the ensemble is those of its members side by side, and its logits are log
probabilities already: `log_softmax` leaves them as they are.

Knows token ids; knows no text, so that whoever builds an ensemble makes sure that the ids mean the same.

The mean of the weights of several models is no ensemble but one model, which `mean_of_weights` makes.

Ensembles of translation models: Sutskever et al. 2014, section 3.6. The mean of log probabilities, a
geometric mean, is a product of experts (Hinton 2002) with one exponent for each model.

Shapes: N hypotheses, B sentences, T target length, D width, that of an ensemble being the sum of those of its
members, V vocabulary.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from nmt.errors import UserError
from nmt.layers.loss import LOGITS_AT_ONCE_ON_CPU, smoothed_nll
from nmt.models.base import AttentionMaps, State, TranslationModel
from nmt.models.configs import EnsembleConfig, Mean

if TYPE_CHECKING:
    from typing_extensions import Self


def mean_of_weights(models: Sequence[TranslationModel], shares: Sequence[float]) -> TranslationModel:
    """Return a copy of the first model with the weighted mean of the weights of all (Wortsman et al. 2022).

    All have weights of the same names and shapes. The sum is in float64, so that equal weights stay equal.
    """
    result, states = copy.deepcopy(models[0]), [model.state_dict() for model in models]
    for name, x in states[0].items():
        if x.is_floating_point():
            parts = (share * state[name].double() for share, state in zip(shares, states, strict=True))
            states[0][name] = sum(parts, torch.zeros_like(x, dtype=torch.float64)).to(x.dtype)
    result.load_state_dict(states[0])
    return result


def _shortest(lengths: Iterable[int | None]) -> int | None:
    """Return the smallest of some limits; None where there is none."""
    return min((length for length in lengths if length is not None), default=None)


class Ensemble(TranslationModel):
    """See the module's docstring; the contract is in `nmt.models.base`."""

    def __init__(self, models: Sequence[TranslationModel], cfg: EnsembleConfig):
        super().__init__()
        self.models = nn.ModuleList(models)
        self.mean, self.weights = cfg.mean, cfg.normalised(len(models))
        self.widths = [model.hidden_size for model in models]
        self.max_length = _shortest(model.max_length for model in models)
        self.max_text = _shortest(model.max_text for model in models)

    @property
    def max_source(self) -> int | None:
        return _shortest(model.max_source for model in self.parts)

    @property
    def members(self) -> list[TranslationModel]:
        return self.parts

    @property
    def parts(self) -> list[TranslationModel]:
        return cast("list[TranslationModel]", list(self.models))

    def of_parts(self, parts: Sequence[TranslationModel]) -> Self:
        """Return the ensemble of `parts` in eval mode, by the rule of this one."""
        result = copy.copy(self)
        result._modules = {"models": nn.ModuleList(parts)}
        result.widths = [part.hidden_size for part in parts]
        return result

    @property
    def hidden_size(self) -> int:
        return sum(self.widths)

    def forward(self, src: Tensor, src_mask: Tensor, tgt_in: Tensor) -> Tensor:
        """Return the hidden states (B, T, D) of all members, side by side."""
        return torch.cat([model(src, src_mask, tgt_in) for model in self.parts], dim=-1)

    def project(self, hidden: Tensor) -> Tensor:
        """Return the log probabilities (..., V), in float32, of hidden states (..., D)."""
        total: Tensor | None = None
        for model, part, weight in zip(
            self.parts, hidden.split(self.widths, dim=-1), self.weights, strict=True
        ):
            log_probs = model.project(part).log_softmax(dim=-1, dtype=torch.float32)
            if self.mean is Mean.probabilities:
                log_probs = log_probs + math.log(weight)
                total = log_probs if total is None else torch.logaddexp(total, log_probs)
            else:
                weighted = log_probs * weight
                if weight <= 0.0:  # what one part forbids stays forbidden
                    weighted.masked_fill_(log_probs == -torch.inf, -torch.inf)
                total = weighted if total is None else total + weighted
        assert total is not None
        return total if self.mean is Mean.probabilities else total.log_softmax(dim=-1)

    def nll(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return the negative log-likelihood of targets (M,) under hidden states (M, D), summed."""
        vocab_size = self.project(hidden[:1]).shape[1]
        rows = max(1, LOGITS_AT_ONCE_ON_CPU // vocab_size)
        pairs = zip(hidden.split(rows), targets.split(rows), strict=True)
        return torch.stack([smoothed_nll(self.project(part), ids, 0.0)[1] for part, ids in pairs]).sum()

    def start(self, src: Tensor, src_mask: Tensor) -> State:
        """Let each member read the source."""
        return State(parts=[model.start(src, src_mask) for model in self.parts])

    def advance(self, last: Tensor, state: State) -> Tensor:
        """Return the hidden states (N, D) of all members, side by side."""
        pairs = zip(self.parts, state.parts, strict=True)
        hidden = torch.cat([model.advance(last, part) for model, part in pairs], dim=-1)
        state.position += 1
        return hidden

    def attention(
        self, src: Tensor, src_mask: Tensor, tgt_in: Tensor, *, with_factors: bool = False
    ) -> AttentionMaps:
        """Raise `UserError`: attention weights belong to one model."""
        raise UserError(
            f"attention weights belong to one model, but this is an ensemble of {len(self.models)}; "
            "choose one of its runs with run=DIR"
        )
