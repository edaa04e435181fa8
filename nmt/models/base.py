"""The contract that every model fulfils: `forward`, `project`, `start`, `advance`, `attention`.

Training calls `forward` and `project`, or reads the weights of `output` in place of `project`, as a kernel of
search does; a validation calls `forward` and `nll`. Search calls `start`, then `advance` and `project` for
each token, or `step`, which is both, and moves the rows of the `State` between two tokens. `attention`
returns attention weights. The other members have a default that fits most models, and tell what a caller
has to know of those that it does not fit. Nothing here knows a family of models, a token id or text.

Shapes: B sentences, S source length, T target length, D d_model, K beams, V vocabulary, N = B * K hypotheses.
The beams of one sentence are adjacent: row b * K + k. Masks are boolean and True means "may be attended".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from nmt.layers.attention import Factors, recorded_attention
from nmt.layers.loss import projected_nll

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass
class State:
    """The memory of a model between two steps of search: tensors whose rows can be moved, and the position.

    Tensors that a sentence has once belong in `source`, whose rows only move when a sentence leaves the
    batch; `advance` may write there, too (to a cache that the beams of a sentence share, say). Tensors that
    each hypothesis has for itself belong in `target`, whose rows follow the beams.
    """

    source: dict[str, Tensor] = field(default_factory=dict)
    """Tensors with B rows."""
    target: dict[str, Tensor] = field(default_factory=dict)
    """Tensors with N = B * K rows."""
    position: int | Tensor = 0
    """Target positions consumed so far, the same for every row; a tensor () where a device counts them."""
    parts: list[State] = field(default_factory=list)
    """The states of the models that a model is made of: of the members of an ensemble, say."""

    def select(self, rows: Tensor | None, sentences: Tensor | None = None) -> Self:
        """Return the state of the hypotheses `rows` (N',): beams have moved, or sentences are finished.

        `sentences` (B',) are the sentences that stay, where some leave; `rows[b' * K + k]` then belongs to
        `sentences[b']`. A sentence may be named several times, and is then as many in the batch. None keeps
        all rows, or all sentences, as they are.
        """
        parts = [part.select(rows, sentences) for part in self.parts]
        source, target = _select(self.source, sentences), _select(self.target, rows)
        return replace(self, source=source, target=target, parts=parts)


def _select(tensors: dict[str, Tensor], index: Tensor | None) -> dict[str, Tensor]:
    if index is None:
        return dict(tensors)
    return {name: tensor.index_select(0, index) for name, tensor in tensors.items()}


@dataclass
class AttentionMaps:
    """The attention weights of one forward pass, float32, one tensor per layer; empty where there is none."""

    encoder: list[Tensor] = field(default_factory=list)
    """(B, H, S, S): from each source position to the source."""
    decoder: list[Tensor] = field(default_factory=list)
    """(B, H, T, T): from each target position to the target up to it."""
    cross: list[Tensor] = field(default_factory=list)
    """(B, H, T, S): from each target position, which predicts the token after it, to the source."""
    factors: dict[str, list[Factors]] = field(default_factory=dict)
    """For the kinds above whose scores are products: the queries and keys of each layer, if asked for."""


class TranslationModel(nn.Module, ABC):
    """p(target | source), one target token at a time."""

    max_length: int | None = None
    """Longest target that the positions allow, and longest source; None where there is no limit."""
    max_text: int | None = None
    """Longest target without a source, for models that need none."""
    gains_from_compiling = True
    """Whether `runtime.compile` compiles `forward`."""
    reads_target = True
    """Whether hidden states depend on the target before them; those of an encoder with a head do not."""
    output: nn.Linear
    """The map from hidden states to logits; not in `forward`, so that a loss may pick positions first.

    Every model that can be trained has one; an ensemble has none, but a `project` of its own.
    """

    @property
    def max_source(self) -> int | None:
        """Longest source that the positions allow; a mixture with models that read none has its own."""
        return self.max_length

    @property
    def members(self) -> list[TranslationModel]:
        """The models that predict together: those of an ensemble, else this model alone."""
        return [self]

    @property
    def parts(self) -> list[TranslationModel]:
        """The models whose predictions are mixed, with or without a source; none of a model with `output`."""
        return []

    def of_parts(self, parts: Sequence[TranslationModel]) -> TranslationModel:
        """Return a model like this one that mixes the predictions of other `parts`, in their order."""
        raise NotImplementedError(f"{type(self).__name__} mixes nothing")

    @property
    def hidden_size(self) -> int:
        """The width D of the hidden states."""
        return self.output.in_features

    @abstractmethod
    def forward(self, src: Tensor, src_mask: Tensor, tgt_in: Tensor) -> Tensor:
        """Return the hidden states (B, T, D) of every target position at once (teacher forcing).

        `src` (B, S) ids, `src_mask` (B, S) bool, `tgt_in` (B, T) ids from BOS on; no position sees a later
        one. A model that needs no source takes a source without columns: S = 0.
        """

    def reads_source_alone(self, name: str) -> bool:
        """Return whether the parameter `name` is applied to source tokens only: the encoder's are."""
        return name.startswith("encoder")

    def keep_layers(self, encoder: Sequence[int] | None, decoder: Sequence[int] | None) -> None:
        """Keep these layers alone, as `keeping` of the config does, which refuses what has no such layers."""
        raise NotImplementedError

    def uses(self, name: str) -> float:
        """Return how often a token meets the parameter `name` in training, on average."""
        return 1

    def project(self, hidden: Tensor) -> Tensor:
        """Return the logits (..., V) of hidden states (..., D)."""
        return self.output(hidden)

    def nll(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return the negative log-likelihood of targets (M,) under hidden states (M, D), summed.

        Few logits exist at a time. For use without gradients.
        """
        return projected_nll(hidden, self.output, targets, 0.0)[1]

    @abstractmethod
    def start(self, src: Tensor, src_mask: Tensor) -> State:
        """Read the source once and return the state before the first target token, with K = 1: N = B rows.

        `src` (B, S) ids, `src_mask` (B, S) bool.
        """

    @abstractmethod
    def advance(self, last: Tensor, state: Any) -> Tensor:
        """Consume `last` (N,), one token per hypothesis; return hidden states (N, D) that predict the next.

        `state`, of the kind that `start` returns, is changed in place and its position advanced by one.
        K = N // B follows from the last `State.select`. The result equals `forward(...)` at that position.
        """

    def step(self, last: Tensor, state: State) -> Tensor:
        """Consume `last` (N,) as `advance` does, and return the logits (N, V) of the next token."""
        return self.project(self.advance(last, state))

    def attention(
        self, src: Tensor, src_mask: Tensor, tgt_in: Tensor, *, with_factors: bool = False
    ) -> AttentionMaps:
        """Return the weights with which `forward` attends, given the same arguments.

        `with_factors` asks for the queries and keys, too.
        """
        factors: dict[str, list[Factors]] | None = {} if with_factors else None
        with recorded_attention(self, factors) as recorded:
            self(src, src_mask, tgt_in)
        return AttentionMaps(
            **recorded, factors={role: found for role, found in (factors or {}).items() if found}
        )
