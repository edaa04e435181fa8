"""The keys of each `optimizer`, and the table of optimizers, which imports no torch before it needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from nmt.checks import at_least, not_negative, positive, within
from nmt.errors import UserError, suggest
from nmt.loading import Code


@dataclass
class WeightGroup:
    """Weights with a learning rate or a weight decay of their own: an entry of `optimizer.groups`."""

    weights: list[str]
    """Patterns of their names, such as encoder.* or *embedding*."""
    rate: float = 1.0
    """Factor on the learning rate."""
    weight_decay: float | None = None
    """Weight decay of all of them; null: as without the group."""

    @classmethod
    def of(cls, key: str, entry: object) -> WeightGroup:
        """Return an entry as a group; raise `UserError`, which names `key`, where it is none."""
        known = list(cls.__dataclass_fields__)
        if not isinstance(entry, Mapping) or not entry.get("weights"):
            raise UserError(
                f"{key} must be a group such as {{weights: [encoder.*], rate: 0.1}}, but is {entry!r}"
            )
        for name in entry:
            if name not in known:
                raise UserError(
                    f"unknown key {key}.{name}{suggest(str(name), known)}; there are {', '.join(known)}"
                )
        weights = entry["weights"]
        patterns = list(weights) if isinstance(weights, list | tuple) else [weights]
        if not all(isinstance(one, str) for one in patterns):
            raise UserError(f"{key}.weights must be a list of patterns such as encoder.*, but is {weights!r}")
        for name in ("rate", "weight_decay"):
            value = entry.get(name, 0.0)
            is_left_out = value is None and name == "weight_decay"
            if not is_left_out and not (isinstance(value, int | float) and 0 <= value < float("inf")):
                raise UserError(f"{key}.{name} must be a number of at least 0, but is {value!r}")
        return cls(patterns, entry.get("rate", 1.0), entry.get("weight_decay"))


@dataclass
class OptimizerConfig:
    """Base of the optimizer configs."""

    averages: ClassVar[bool] = False
    """Whether the model is an average of the weights that the optimizer updates, by its own rule."""

    name: str = ""
    """Row of `OPTIMIZERS`; set by choosing `optimizer=...`."""
    weight_decay: float = 0.0
    """Weight decay of matrices only: never of biases, norms or embeddings."""
    clip_norm: float = 1.0
    """Global L2 norm that gradients are scaled down to; 0 turns clipping off."""
    clip_value: float = 0.0
    """Absolute value that every entry of the gradients is cut down to, before their norm is; 0: none."""
    groups: list[Any] = field(default_factory=list)
    """Weights with a rate or decay of their own, such as [{weights: [encoder.*], rate: 0.1}, {weights:
    [*embedding*], weight_decay: 0.01}]; rate is a factor. A weight belongs to the first group it matches."""

    def __post_init__(self) -> None:
        not_negative(self, "optimizer", "weight_decay", "clip_norm", "clip_value")
        self.own_groups()

    def own_groups(self) -> list[WeightGroup]:
        """Return `groups`, checked."""
        return [WeightGroup.of(f"optimizer.groups[{i}]", entry) for i, entry in enumerate(self.groups or [])]


@dataclass
class MomentsConfig(OptimizerConfig):
    """Base of the optimizers with the moments of Adam, for all parameters without a rule of their own."""

    beta1: float = 0.9
    """Decay of the first moment."""
    beta2: float = 0.98
    """Decay of the second moment."""
    eps: float = 1e-9
    """Term added to the root of the second moment."""

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, "optimizer", "[0, 1)", "beta1", "beta2")
        positive(self, "optimizer", "eps")

    @property
    def betas(self) -> tuple[float, float]:
        """The decays of both moments."""
        return self.beta1, self.beta2


@dataclass
class AdamConfig(MomentsConfig):
    """Adam; the gradient of the weight decay goes through the moments."""

    name: str = "adam"


@dataclass
class AdamWConfig(MomentsConfig):
    """Adam with decoupled weight decay."""

    name: str = "adamw"


@dataclass
class AdamW8bitConfig(MomentsConfig):
    """AdamW whose moments have 8 bits and a scale for each block of weights (Dettmers et al. 2022)."""

    name: str = "adamw_8bit"


@dataclass
class MuonConfig(MomentsConfig):
    """Matrices move along orthogonalised momentum, the other parameters by AdamW, at the same rate."""

    name: str = "muon"
    momentum: float = 0.95
    """Decay of the momentum of a matrix."""
    rms: float = 0.2
    """Root mean square of the update of a matrix, as a share of the learning rate; 0.2 is about adam's."""
    iterations: int = 5
    """Newton-Schulz iterations that make an update orthogonal; fewer are faster and less exact."""

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, "optimizer", "[0, 1)", "momentum")
        positive(self, "optimizer", "rms", "iterations")


@dataclass
class ScheduleFreeConfig(MomentsConfig):
    """AdamW whose average of all iterates takes the place of a decay (Defazio et al. 2024)."""

    averages: ClassVar[bool] = True

    name: str = "schedule_free"
    beta1: float = 0.9
    """Share of the average in the weights whose gradients are taken; the rest is that of the iterate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, "optimizer", "(0, 1)", "beta1")


@dataclass
class AdafactorConfig(OptimizerConfig):
    """Second moments as an outer product of two vectors a matrix, and updates as shares of the weights."""

    name: str = "adafactor"
    beta2_decay: float = 0.8
    """Power of the step that the share of the newest gradient in the second moment falls with."""
    clip_update: float = 1.0
    """Root mean square that an update, before the learning rate, is scaled down to."""
    min_scale: float = 1e-3
    """Smallest root mean square of a tensor that its update is a share of."""

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, "optimizer", "(0, 1)", "beta2_decay")
        at_least(self, "optimizer", 1, "clip_update")
        positive(self, "optimizer", "min_scale")


@dataclass
class SgdConfig(OptimizerConfig):
    """Gradient descent, with momentum."""

    name: str = "sgd"
    momentum: float = 0.9
    """Share of the last update in the next; 0: none."""
    nesterov: bool = False
    """Take the gradient as if the momentum had moved the weights already; needs a momentum."""

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, "optimizer", "[0, 1)", "momentum")
        if self.nesterov and not self.momentum:
            raise UserError("optimizer.nesterov=true needs an optimizer.momentum above 0")


OPTIMIZERS: dict[str, tuple[type[OptimizerConfig], Code]] = {
    "adam": (AdamConfig, "nmt.training.optimizers.optimizer.build_adam"),
    "adamw": (AdamWConfig, "nmt.training.optimizers.optimizer.build_adamw"),
    "adamw_8bit": (AdamW8bitConfig, "nmt.training.optimizers.adamw_8bit.build_adamw_8bit"),
    "muon": (MuonConfig, "nmt.training.optimizers.optimizer.build_muon"),
    "schedule_free": (ScheduleFreeConfig, "nmt.training.optimizers.schedule_free.build_schedule_free"),
    "adafactor": (AdafactorConfig, "nmt.training.optimizers.optimizer.build_adafactor"),
    "sgd": (SgdConfig, "nmt.training.optimizers.optimizer.build_sgd"),
}
