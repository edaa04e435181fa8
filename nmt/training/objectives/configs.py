"""The keys of each `objective`, and the table of objectives, which imports no torch before it needs it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from omegaconf import MISSING

from nmt.checks import not_negative, positive, within
from nmt.errors import UserError
from nmt.loading import Code


@dataclass
class ObjectiveConfig:
    """Base of the configs of all objectives."""

    needs_text: ClassVar[bool] = False
    """Whether the objective asks about the text behind ids: what it aligns, samples or costs."""
    needs_attention: ClassVar[bool] = False
    """Whether gradients flow back from the weights of an attention."""
    needs_search: ClassVar[bool] = False
    """Whether the model in training translates."""
    heeds_weights: ClassVar[bool] = False
    """Whether the weights of pairs count in the loss."""
    further_keys: ClassVar[tuple[str, ...]] = ()
    """Patterns of keys of the config, besides its own, that decide what is learnt."""

    name: str = ""
    """Kind of objective; chosen together with its other fields by `objective=...`."""

    @property
    def needs_average(self) -> bool:
        """Whether the moving average of the weights, that of `trainer.ema_decay`, is a teacher."""
        return False


@dataclass
class CrossEntropyConfig(ObjectiveConfig):
    """Negative log-likelihood of the target tokens, with label smoothing."""

    heeds_weights: ClassVar[bool] = True

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

    needs_text: ClassVar[bool] = True
    needs_attention: ClassVar[bool] = True
    heeds_weights: ClassVar[bool] = False

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


@dataclass
class MinimumRiskConfig(CrossEntropyConfig):
    """Minimum risk training (Shen et al. 2016): the expected cost of sampled translations; fine-tuning."""

    needs_text: ClassVar[bool] = True
    needs_search: ClassVar[bool] = True
    heeds_weights: ClassVar[bool] = False
    further_keys: ClassVar[tuple[str, ...]] = (
        "scoring.*",
        "decoding.max_length_ratio",
        "decoding.max_length_offset",
    )

    name: str = "minimum_risk"
    weight: float = 0.7
    """Share of the expected cost in the loss; the rest is cross-entropy."""
    metric: str = "chrf"
    """Metric of sentences, by the rules of scoring.*; its distance from a perfect score, as a share of 1, is
    the cost."""
    samples: int = 8
    """Translations sampled of each source, no longer than decoding.max_length_* allows; equal ones count
    once."""
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


OBJECTIVES: dict[str, tuple[type[ObjectiveConfig], Code]] = {
    "cross_entropy": (CrossEntropyConfig, "nmt.training.objectives.objective.CrossEntropy"),
    "r_drop": (RDropConfig, "nmt.training.objectives.consistency.RDrop"),
    "simcut": (SimCutConfig, "nmt.training.objectives.consistency.SimCut"),
    "distillation": (DistillationConfig, "nmt.training.objectives.distillation.Distillation"),
    "guided_alignment": (GuidedAlignmentConfig, "nmt.training.objectives.guided_alignment.GuidedAlignment"),
    "minimum_risk": (MinimumRiskConfig, "nmt.training.objectives.minimum_risk.MinimumRisk"),
}
