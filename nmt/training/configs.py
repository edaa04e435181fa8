"""The configs of a training, and the tables of optimizers, schedules, objectives, measures and sinks.

Every key of `trainer`, `optimizer`, `schedule`, `objective` and `tracking` is here, with its default, range
and meaning. Imports no torch: the code of a row is loaded at its first use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from omegaconf import MISSING

from nmt.checks import at_least, finite, not_negative, positive, within
from nmt.errors import UserError, suggest
from nmt.loading import Code
from nmt.training.lengths import Steps, are_counted, require_lengths

AUTO = "auto"
"""Value of `trainer.batch_tokens` that asks for the search."""


class OnNonfinite(Enum):
    """What follows an update whose loss, or norm of the gradients, is not finite."""

    stop = "stop"
    skip = "skip"
    rollback = "rollback"


MEASURES: dict[str, Code] = {
    "weight_norm": "nmt.training.statistics.weight_norm",
    "largest_gradient": "nmt.training.statistics.largest_gradient",
    "layer_grad_norm": "nmt.training.statistics.layer_grad_norm",
}
"""Measures of an update: a scalar on the device, or several by name. The names of a measure stay the same."""


class AverageOf(Enum):
    """Choice of the checkpoints to average."""

    last = "last"
    best = "best"


@dataclass
class Change:
    """Values that hold from an update on: an entry of `trainer.changes`; None: as before."""

    step: int
    accumulate: int | None = None
    dropout_factor: float | None = None

    @classmethod
    def of(cls, key: str, entry: object) -> Change:
        """Return an entry as a change; raise `UserError`, which names `key`, where it is none."""
        known = list(cls.__dataclass_fields__)
        if not isinstance(entry, Mapping) or len(entry) < 2 or "step" not in entry:
            raise UserError(
                f"{key} must be a change such as {{step: 1000, dropout_factor: 0.5}} or "
                f"{{step: 1000, accumulate: 2}}, but is {entry!r}"
            )
        for name, value in entry.items():
            if name not in known:
                raise UserError(
                    f"unknown key {key}.{name}{suggest(str(name), known)}; there are {', '.join(known)}"
                )
            least = {"step": 2, "accumulate": 1, "dropout_factor": 0}[name]
            kinds = (int, float) if name == "dropout_factor" else (int,)
            if type(value) not in kinds or not least <= value < float("inf"):
                number = "number" if name == "dropout_factor" else "whole number"
                raise UserError(f"{key}.{name} must be a {number} of at least {least}, but is {value!r}")
        return cls(**entry)


@dataclass
class TrainerConfig:
    """Limits of a training, its batches, and checkpoints to keep. A step is one update of the weights."""

    max_steps: Steps | None = 20_000
    """Stop after this many updates, or epochs or target tokens such as '30 epochs' or '1B tokens', counted in
    updates once, so that a schedule knows its end; null: no limit."""
    max_epochs: int | None = None
    """Stop after this many passes over the training split; null: no limit."""
    max_tokens: int | None = None
    """Stop after this many target tokens; null: no limit."""
    max_minutes: float | None = None
    """Stop after this much training time, counted over resumes; null: no limit."""
    batch_tokens: int | str = 4096
    """Largest number of tokens in one batch, padding included, on the longer side of each pair; auto: what
    fits into memory, on CPU no more than makes training faster, found once, at the start of the run."""
    auto_batch_tokens: int | None = None
    """Number that batch_tokens=auto stands for; null: it is found, and stored here."""
    accumulate: int = 1
    """Batches whose gradients are added up for one update, over all processes together."""
    changes: list[Any] = field(default_factory=list)
    """Values that hold from an update on, in ascending order of these, such as [{step: 1000, accumulate: 2},
    {step: 5000, dropout_factor: 0.5}]: accumulate, and a factor on all dropout rates of the model."""
    on_nonfinite: OnNonfinite = OnNonfinite.stop
    """What follows a loss or a gradient that is not finite: stop; skip leaves out that update; rollback
    returns to the newest regular checkpoint and goes on with the data behind that update."""
    max_recoveries: int = 5
    """Updates that skip leaves out in a row, or returns of rollback in a run, before the training stops."""
    divergence_ratio: float = 5.0
    """Stop when the median of the last three logged losses is this many times that of the first update, or
    that of a uniform guess if it is larger; 0: never."""
    log_every_steps: Steps = 50
    """Updates, or epochs or target tokens such as '0.1 epochs' or '1M tokens', between two lines of
    metrics."""
    measures: list[str] = field(default_factory=list)
    """Further measures of every update, shown as train/NAME: weight_norm, largest_gradient,
    layer_grad_norm."""
    eval_every_steps: Steps = 500
    """Updates, epochs or tokens between two validations."""
    save_every_steps: Steps = 500
    """Updates, epochs or tokens between two checkpoints."""
    epoch_steps: int | None = None
    """Updates of an epoch, by which lengths such as '2 epochs' are counted; null: those of the first epoch,
    stored here."""
    update_tokens: int | None = None
    """Target tokens of an update, by which lengths such as '10M tokens' are counted; null: the mean of the
    first epoch, stored here."""
    keep_last: int = 3
    """Newest checkpoints kept."""
    keep_best: int = 1
    """Best checkpoints kept, by `best_metric`."""
    best_metric: str = "auto"
    """Validation score that picks the best checkpoint and drives early stopping: loss, or one of `metrics`;
    auto: the first of `metrics` whose higher values are better, else loss."""
    patience: int = 10
    """Stop after this many validations without a better `best_metric`; 0: never."""
    average: int = 0
    """Average the weights of this many checkpoints at the end, and score the mean unless the best checkpoint
    validates better; 0: score the best one."""
    average_of: AverageOf = AverageOf.last
    """Average the newest or the best checkpoints."""
    ema_decay: float = 0.0
    """Score and save the exponential moving average of the weights, of which an update keeps this share (less
    in the first updates), such as 0.999; 0: the weights themselves."""
    freeze: list[str] = field(default_factory=list)
    """Patterns of the names of weights that do not learn, such as [encoder.*,*embedding*]; a matrix with
    several names, as tied ones have, is frozen by any of them."""
    gradient_checkpointing: bool = False
    """Compute every layer again in the backward pass instead of keeping what it computed: the same gradients
    with less memory, for the time of one more forward pass."""
    num_samples: int = 3
    """Validation sentences whose translations are shown in TensorBoard at every validation."""

    def __post_init__(self) -> None:
        every = ("log_every_steps", "eval_every_steps", "save_every_steps")
        require_lengths(self, "trainer", 1, *every)
        at_least(self, "trainer", 1, "accumulate", "keep_last", "keep_best", "auto_batch_tokens")
        at_least(self, "trainer", 1, "epoch_steps", "update_tokens")
        self._require_batch_tokens()
        steps = [change.step for change in self.all_changes()]
        if steps != sorted(set(steps)):
            raise UserError(
                f"trainer.changes must be in ascending order of their steps, but these are {steps}"
            )
        limits = ["max_epochs", "max_tokens", "max_minutes"]
        if isinstance(self.max_steps, int):
            limits.append("max_steps")
        positive(self, "trainer", *limits, hint="; use null for no limit")
        require_lengths(self, "trainer", 1, "max_steps")
        not_negative(self, "trainer", "patience", "average", "num_samples", "max_recoveries")
        finite(self, "trainer", "divergence_ratio")
        within(self, "trainer", "[0, 1)", "ema_decay")
        for name in self.measures:
            if name not in MEASURES:
                known = ", ".join(MEASURES)
                raise UserError(
                    f"trainer.measures can hold {known}, but holds {name!r}{suggest(name, MEASURES)}"
                )
        kept = self.keep_last if self.average_of is AverageOf.last else self.keep_best
        if self.average > kept:
            key = f"trainer.keep_{self.average_of.value}"
            raise UserError(
                f"trainer.average={self.average} needs as many checkpoints, but {key}={kept}; "
                f"set {key}={self.average}"
            )

    def all_changes(self) -> list[Change]:
        """Return `changes`, checked."""
        return [Change.of(f"trainer.changes[{i}]", entry) for i, entry in enumerate(self.changes or [])]

    def accumulate_at(self, step: int) -> int:
        """Return the number of batches of update `step`."""
        values = [x.accumulate for x in self.all_changes() if x.step <= step and x.accumulate is not None]
        return values[-1] if values else self.accumulate

    def num_updates(self, batches: int) -> int:
        """Return the number of updates that the first `batches` of a training make."""
        updates = 0
        while batches > 0:
            updates += 1
            batches -= self.accumulate_at(updates)
        return updates

    def num_batches(self, updates: int) -> int:
        """Return the number of batches of the first `updates` of a training."""
        if not self.changes:
            return updates * self.accumulate
        return sum(map(self.accumulate_at, range(1, updates + 1)))

    def dropout_factor_at(self, step: int) -> float:
        """Return the factor on all dropout rates in update `step`."""
        changes = [change for change in self.all_changes() if change.step <= step]
        factors = [change.dropout_factor for change in changes if change.dropout_factor is not None]
        return factors[-1] if factors else 1.0

    def _require_batch_tokens(self) -> None:
        """Raise `UserError` unless `batch_tokens` is a number or auto, and the number of auto is for auto."""
        given = self.batch_tokens
        if given != AUTO and (isinstance(given, str) or given < 1):
            raise UserError(f"trainer.batch_tokens must be at least 1 or {AUTO}, but is {given!r}")
        if given != AUTO and self.auto_batch_tokens is not None:
            raise UserError(
                f"trainer.auto_batch_tokens={self.auto_batch_tokens} is what trainer.batch_tokens={AUTO} "
                f"stands for, but trainer.batch_tokens is {given}; leave one of them out"
            )

    @property
    def is_to_be_found(self) -> bool:
        """Whether the number of tokens in a batch is not known yet."""
        return self.batch_tokens == AUTO and self.auto_batch_tokens is None

    @property
    def tokens_per_batch(self) -> int:
        """The largest number of tokens in one batch, given or found; raise `UserError` if it is unknown."""
        number = self.auto_batch_tokens if self.batch_tokens == AUTO else int(self.batch_tokens)
        if number is None:
            raise UserError(
                f"trainer.auto_batch_tokens is missing, which trainer.batch_tokens={AUTO} has found for this "
                "run; restore its config.yaml"
            )
        return number


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
        patterns = [entry["weights"]] if isinstance(entry["weights"], str) else list(entry["weights"])
        for name in ("rate", "weight_decay"):
            value = entry.get(name, 0.0)
            if value is not None and not (isinstance(value, int | float) and 0 <= value < float("inf")):
                raise UserError(f"{key}.{name} must be a number of at least 0, but is {value!r}")
        return cls(patterns, entry.get("rate", 1.0), entry.get("weight_decay"))


@dataclass
class OptimizerConfig:
    """Base of the optimizer configs."""

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

    @property
    def averages(self) -> bool:
        """Whether the model is an average of the weights that the optimizer updates, by its own rule."""
        return False

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

    name: str = "schedule_free"
    beta1: float = 0.9
    """Share of the average in the weights whose gradients are taken; the rest is that of the iterate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, "optimizer", "(0, 1)", "beta1")

    @property
    def averages(self) -> bool:
        return True


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
    "adam": (AdamConfig, "nmt.training.optimizer.build_adam"),
    "adamw": (AdamWConfig, "nmt.training.optimizer.build_adamw"),
    "muon": (MuonConfig, "nmt.training.optimizer.build_muon"),
    "schedule_free": (ScheduleFreeConfig, "nmt.training.schedule_free.build_schedule_free"),
    "adafactor": (AdafactorConfig, "nmt.training.optimizer.build_adafactor"),
    "sgd": (SgdConfig, "nmt.training.optimizer.build_sgd"),
}


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
    """Learning rate at the end of the decay."""
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
        require_lengths(self, "schedule", 1, "decay_steps")
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
    "noam": (NoamConfig, "nmt.training.schedules.noam"),
    "inverse_sqrt": (InverseSqrtConfig, "nmt.training.schedules.inverse_sqrt"),
    "linear": (LinearConfig, "nmt.training.schedules.linear"),
    "cosine": (CosineConfig, "nmt.training.schedules.cosine"),
    "wsd": (WsdConfig, "nmt.training.schedules.wsd"),
    "exponential": (ExponentialConfig, "nmt.training.schedules.exponential"),
    "step": (StepConfig, "nmt.training.schedules.stepwise"),
    "plateau": (PlateauConfig, "nmt.training.schedules.plateau"),
    "constant": (ConstantConfig, "nmt.training.schedules.constant"),
}


@dataclass
class ObjectiveConfig:
    """Base of the configs of all objectives."""

    name: str = ""
    """Kind of objective; chosen together with its other fields by `objective=...`."""

    @property
    def needs_average(self) -> bool:
        """Whether the moving average of the weights, that of `trainer.ema_decay`, is a teacher."""
        return False

    @property
    def needs_text(self) -> bool:
        """Whether the objective asks functions of the text behind ids: `OfText` of `objective`."""
        return False

    @property
    def needs_attention(self) -> bool:
        """Whether gradients flow back from the weights of an attention."""
        return False

    @property
    def needs_search(self) -> bool:
        """Whether the model in training translates."""
        return False


@dataclass
class CrossEntropyConfig(ObjectiveConfig):
    """Negative log-likelihood of the target tokens, with label smoothing."""

    name: str = "cross_entropy"
    label_smoothing: float = 0.1
    """Share of the target probability spread evenly over the vocabulary."""
    word_dropout: float = 0.0
    """Share of the tokens, on both sides, that the model does not see in training: their embeddings are zero
    (Sennrich et al. 2016, Edinburgh at WMT, after Gal 2015)."""

    def __post_init__(self) -> None:
        within(self, "objective", "[0, 1)", "label_smoothing", "word_dropout")


class Teacher(Enum):
    """Models that a pass should agree with."""

    self = "self"
    ema = "ema"


@dataclass
class ConsistencyConfig(CrossEntropyConfig):
    """Keys of objectives with a pass that should agree with another."""

    weight: float = 1.0
    """Weight of the divergence; alpha of the article."""
    teacher: Teacher = Teacher.self
    """The model that a pass should agree with: self, or ema, the moving average of trainer.ema_decay."""

    def __post_init__(self) -> None:
        super().__post_init__()
        not_negative(self, "objective", "weight")

    @property
    def needs_average(self) -> bool:
        """Whether the moving average of the weights is the teacher."""
        return self.teacher is Teacher.ema


@dataclass
class RDropConfig(ConsistencyConfig):
    """R-Drop (Liang et al. 2021): two passes that differ by their dropout alone should agree."""

    name: str = "r_drop"
    weight: float = 5.0


@dataclass
class SimCutConfig(ConsistencyConfig):
    """SimCut (Gao et al. 2022): a pass with some embeddings zeroed should agree with the plain pass."""

    name: str = "simcut"
    weight: float = 3.0
    cut: float = 0.05
    """Share of the tokens, on both sides, whose embeddings are zero in the second pass."""

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, "objective", "[0, 1)", "cut")


@dataclass
class DistillationConfig(CrossEntropyConfig):
    """Word-level knowledge distillation (Kim and Rush 2016, section 3.1) from one run or several."""

    name: str = "distillation"
    teachers: list[str] = MISSING
    """Run directories of the teachers; the student learns the mean of their probabilities."""
    weight: float = 0.5
    """Share of the divergence from the teachers in the loss; the rest is that of the references."""

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, "objective", "[0, 1]", "weight")
        if self.teachers != MISSING and not self.teachers:
            raise UserError("objective.teachers names no run; set objective.teachers=[RUN,...]")


@dataclass
class GuidedAlignmentConfig(CrossEntropyConfig):
    """Guided alignment (Chen et al. 2016; Garg et al. 2019): cross-attention learns an alignment of words."""

    name: str = "guided_alignment"
    weight: float = 0.05
    """Factor on the loss of the alignment, which is added to cross-entropy."""
    layer: int | None = None
    """Layer whose cross-attention learns the alignment, counted from 1; null: the last."""
    head: int | None = None
    """Head of it that learns the alignment, counted from 1; null: the mean of all."""
    alignments: str | None = None
    """File of alignments, a line such as `0-0 2-1` for each line of the training data, which counts words
    between spaces from 0; null: they are estimated from the training data."""

    def __post_init__(self) -> None:
        super().__post_init__()
        not_negative(self, "objective", "weight")
        for key in ("layer", "head"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise UserError(f"objective.{key} must be at least 1 or null, but is {value}")

    @property
    def needs_text(self) -> bool:
        return True

    @property
    def needs_attention(self) -> bool:
        return True


@dataclass
class MinimumRiskConfig(CrossEntropyConfig):
    """Minimum risk training (Shen et al. 2016): the expected cost of sampled translations; fine-tuning."""

    name: str = "minimum_risk"
    weight: float = 0.7
    """Share of the expected cost in the loss; the rest is cross-entropy."""
    metric: str = "chrf"
    """Metric of sentences, whose distance from a perfect score, as a share of 1, is the cost."""
    samples: int = 8
    """Translations sampled of each source; equal ones count once."""
    temperature: float = 1.0
    """Divisor of the logits in sampling."""
    add_reference: bool = True
    """Whether the reference is one of the translations."""
    alpha: float = 0.005
    """Factor on log probabilities before the translations of a source share a probability of 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, "objective", "[0, 1]", "weight")
        positive(self, "objective", "samples", "temperature", "alpha")

    @property
    def needs_text(self) -> bool:
        return True

    @property
    def needs_search(self) -> bool:
        return True


OBJECTIVES: dict[str, tuple[type[ObjectiveConfig], Code]] = {
    "cross_entropy": (CrossEntropyConfig, "nmt.training.objective.CrossEntropy"),
    "r_drop": (RDropConfig, "nmt.training.consistency.RDrop"),
    "simcut": (SimCutConfig, "nmt.training.consistency.SimCut"),
    "distillation": (DistillationConfig, "nmt.training.distillation.Distillation"),
    "guided_alignment": (GuidedAlignmentConfig, "nmt.training.guided_alignment.GuidedAlignment"),
    "minimum_risk": (MinimumRiskConfig, "nmt.training.minimum_risk.MinimumRisk"),
}

WEIGHING = ("cross_entropy", "r_drop", "simcut", "distillation")
"""The objectives that heed the weights of pairs."""


SINKS: dict[str, Code] = {
    "display": "nmt.training.tracking.Display",
    "train_log": "nmt.training.tracking.TrainLog",
    "jsonl": "nmt.training.tracking.JsonLines",
    "tensorboard": "nmt.training.tracking.TensorBoard",
    "wandb": "nmt.training.trackers.WandB",
    "mlflow": "nmt.training.trackers.MLflow",
    "trackio": "nmt.training.trackers.Trackio",
}
"""Name in `tracking.sinks` -> its class, which imports what it needs when a sink is made."""


def _default_sinks() -> list[str]:
    return ["display", "train_log", "jsonl", "tensorboard"]


@dataclass
class TrackingConfig:
    """The places that a training reports to."""

    sinks: list[str] = field(default_factory=_default_sinks)
    """Any of display (on stderr), train_log (train.log), jsonl (metrics.jsonl), tensorboard, wandb, mlflow
    and trackio; the last three are packages of their own."""
    project: str = "nmt"
    """Name of the project (of MLflow: the experiment) in wandb, mlflow and trackio."""

    def __post_init__(self) -> None:
        for number, name in enumerate(self.sinks):
            if name not in SINKS:
                raise UserError(
                    f"tracking.sinks[{number}] must be one of {', '.join(SINKS)}, "
                    f"but is {name!r}{suggest(name, SINKS)}"
                )
        if len(set(self.sinks)) < len(self.sinks):
            raise UserError(f"tracking.sinks must name each sink once, but is [{', '.join(self.sinks)}]")
