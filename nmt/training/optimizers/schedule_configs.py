"""The keys of each `schedule`, and the table of schedules, which imports no torch before it needs it."""

from __future__ import annotations

from dataclasses import dataclass

from nmt.checks import not_negative, positive, within
from nmt.errors import UserError
from nmt.loading import Code
from nmt.training.lengths import Steps, are_counted, require_lengths


@dataclass
class ScheduleConfig:
    """The learning rate of each update; each schedule adds its own fields."""

    name: str = ""
    """Row of `SCHEDULES`; set by choosing `schedule=...`."""
    warmup_steps: Steps = 4000
    """Updates, or epochs or target tokens such as '2 epochs' or '10M tokens', of linear growth from 0 to the
    peak."""

    def __post_init__(self) -> None:
        require_lengths(self, "schedule", 0, "warmup_steps")


@dataclass
class NoamConfig(ScheduleConfig):
    """Rate factor * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5) of the Transformer paper."""

    name: str = "noam"
    factor: float = 1.0
    """Factor of the paper's formula; the peak that results is printed at the start of training."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "schedule", "factor")
        require_lengths(self, "schedule", 1, "warmup_steps")


@dataclass
class PeakConfig(ScheduleConfig):
    """Base of the schedules that are stated by their peak."""

    peak_rate: float = 5e-4
    """Highest learning rate, reached at the end of the warm-up."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "schedule", "peak_rate")


@dataclass
class InverseSqrtConfig(PeakConfig):
    """Linear warm-up to the peak, then decay with the inverse square root of the step."""

    name: str = "inverse_sqrt"


@dataclass
class DecayConfig(PeakConfig):
    """Base of the schedules that end at a known step."""

    final_rate: float = 0.0
    """Learning rate at the end of the decay, which is that of its last update: one of 0 moves nothing."""
    decay_steps: Steps | None = None
    """Update, epoch or token at which the decay ends, warm-up included; null: `trainer.max_steps`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        not_negative(self, "schedule", "final_rate")
        if self.final_rate > self.peak_rate:
            raise UserError(
                f"schedule.final_rate must not exceed schedule.peak_rate={self.peak_rate}, "
                f"but is {self.final_rate}"
            )
        require_lengths(self, "schedule", 1, "decay_steps", or_null=True)
        is_known = are_counted(self.decay_steps, self.warmup_steps)
        if is_known and self.decay_steps is not None and self.decay_steps <= self.warmup_steps:
            raise UserError(
                f"schedule.decay_steps must be above schedule.warmup_steps={self.warmup_steps}, "
                f"but is {self.decay_steps}"
            )


@dataclass
class LinearConfig(DecayConfig):
    """Linear warm-up to the peak, then a straight line to the final rate."""

    name: str = "linear"


@dataclass
class CosineConfig(DecayConfig):
    """Linear warm-up to the peak, then half a cosine to the final rate (Loshchilov and Hutter 2017)."""

    name: str = "cosine"


@dataclass
class WsdConfig(DecayConfig):
    """Linear warm-up to the peak, which stays, then a steep end (Hu et al. 2024; Hägele et al. 2024).

    Until the decay begins, the rate does not depend on the length of the training.
    """

    name: str = "wsd"
    decay_share: float = 0.2
    """Share of the training, at its end, in which the rate falls from the peak to the final rate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, "schedule", "(0, 1]", "decay_share")


@dataclass
class IntervalConfig(PeakConfig):
    """Base of the schedules that multiply the rate by a factor in every interval."""

    decay_factor: float = 0.5
    """Factor of the rate in each interval."""
    interval_steps: Steps = 5000
    """Updates, epochs or tokens of an interval; the first begins at the end of the warm-up."""
    min_rate: float = 1e-8
    """Lowest rate that the decay leads to."""

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, "schedule", "(0, 1)", "decay_factor")
        require_lengths(self, "schedule", 1, "interval_steps")
        not_negative(self, "schedule", "min_rate")


@dataclass
class ExponentialConfig(IntervalConfig):
    """Linear warm-up to the peak, then an exponential decay: a factor for every interval, evenly spread."""

    name: str = "exponential"


@dataclass
class StepConfig(IntervalConfig):
    """Linear warm-up to the peak, then a cut at the end of every interval."""

    name: str = "step"


@dataclass
class PlateauConfig(PeakConfig):
    """Linear warm-up to the peak, then a cut whenever the validation loss has stopped improving."""

    name: str = "plateau"
    reduce_factor: float = 0.5
    """Factor of the rate at each cut."""
    plateau_patience: int = 3
    """Number of validations without a better loss before a cut."""
    min_rate: float = 1e-8
    """Lowest rate that cuts lead to."""

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, "schedule", "(0, 1)", "reduce_factor")
        positive(self, "schedule", "plateau_patience")
        not_negative(self, "schedule", "min_rate")


@dataclass
class ConstantConfig(PeakConfig):
    """Linear warm-up to the peak, which then stays."""

    name: str = "constant"


SCHEDULES: dict[str, tuple[type[ScheduleConfig], Code]] = {
    "noam": (NoamConfig, "nmt.training.optimizers.schedules.noam"),
    "inverse_sqrt": (InverseSqrtConfig, "nmt.training.optimizers.schedules.inverse_sqrt"),
    "linear": (LinearConfig, "nmt.training.optimizers.schedules.linear"),
    "cosine": (CosineConfig, "nmt.training.optimizers.schedules.cosine"),
    "wsd": (WsdConfig, "nmt.training.optimizers.schedules.wsd"),
    "exponential": (ExponentialConfig, "nmt.training.optimizers.schedules.exponential"),
    "step": (StepConfig, "nmt.training.optimizers.schedules.stepwise"),
    "plateau": (PlateauConfig, "nmt.training.optimizers.schedules.plateau"),
    "constant": (ConstantConfig, "nmt.training.optimizers.schedules.constant"),
}
