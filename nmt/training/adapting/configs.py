"""The configs of ways to train few weights beside those of another run, and their table; no torch.

Every key of `adapt` is here, with its default, range and meaning.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from nmt.checks import at_least, positive, within
from nmt.errors import UserError
from nmt.loading import Code


@dataclass
class AdaptationConfig:
    """Training of all weights but those of trainer.freeze; the base of the other configs."""

    merges: ClassVar[bool] = True
    """Whether what is learnt becomes a part of the weights of the model, which is then one like any other."""

    name: str = "none"
    """Kind of adaptation; chosen together with its other fields by `adapt=...`."""


@dataclass
class FewWeightsConfig(AdaptationConfig):
    """Keys of adaptations that keep the weights of the run `init` as they are."""

    train: list[str] = field(default_factory=list)
    """Patterns of the names of weights that learn, too, such as *norm* or *embedding*."""


def _attentions() -> list[str]:
    return ["*attention*"]


@dataclass
class LoraConfig(FewWeightsConfig):
    """LoRA (Hu et al. 2022): the product of two thin matrices beside each of some matrices."""

    name: str = "lora"
    patterns: list[str] = field(default_factory=_attentions)
    """Patterns of the names of the linear maps, such as *attention*, *feed_forward* or decoder.*; [*] chooses
    all, but an output layer that is one matrix with the embeddings."""
    rank: int = 8
    """Columns of the one and rows of the other thin matrix."""
    alpha: float = 16.0
    """The product is multiplied by alpha / rank."""
    rank_stabilised: bool = False
    """Whether it is multiplied by alpha / sqrt(rank) in place of that (Kalajdzievski 2023)."""
    dropout: float = 0.0
    """On what the thin matrices read."""

    def __post_init__(self) -> None:
        at_least(self, "adapt", 1, "rank")
        positive(self, "adapt", "alpha")
        within(self, "adapt", "[0, 1)", "dropout")
        if not self.patterns:
            raise UserError("adapt.patterns must have a pattern, but is empty; ['*'] takes all linear maps")

    @property
    def scale(self) -> float:
        """The factor of the product."""
        return self.alpha / (self.rank**0.5 if self.rank_stabilised else self.rank)


@dataclass
class AdaptersConfig(FewWeightsConfig):
    """A narrow residual block behind every layer (Houlsby et al. 2019; Bapna and Firat 2019)."""

    merges: ClassVar[bool] = False

    name: str = "adapters"
    size: int = 64
    """Width inside a block."""
    norm: bool = True
    """Whether a block begins with a layer norm (Bapna and Firat 2019)."""

    def __post_init__(self) -> None:
        at_least(self, "adapt", 1, "size")


ADAPTATIONS: dict[str, tuple[type[AdaptationConfig], Code]] = {
    "none": (AdaptationConfig, "nmt.training.adapting.adaptation.Adaptation"),
    "lora": (LoraConfig, "nmt.training.adapting.lora.Lora"),
    "adapters": (AdaptersConfig, "nmt.training.adapting.adapters.Adapters"),
}
