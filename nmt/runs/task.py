"""The interface of a task: its training examples, evaluation and samples. Knows no task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from nmt.config.roots import TrainConfig
from nmt.data.batches.training_split import Examples
from nmt.data.cleaning.filters import FilterReport
from nmt.data.encoded_pairs import EncodedPairs
from nmt.data.parallel_text import ParallelText
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.decoding.configs import DecodingConfig
from nmt.distributed import ALONE, World
from nmt.models.base import TranslationModel
from nmt.training.tracking.sinks import Tracker
from nmt.translation.evaluate import Scores
from nmt.translation.segments import with_less_context
from nmt.translation.translate import longest_source


@dataclass
class TrainedModel:
    """A model with its config, tokenizer and device."""

    cfg: TrainConfig
    tokenizer: Tokenizer
    model: TranslationModel
    device: torch.device
    world: World = field(default=ALONE, kw_only=True)
    """The processes that share the work of an evaluation."""

    def in_fitting_context(self, sources: Iterable[str], search: DecodingConfig) -> list[str]:
        """Return sources with as much of their context as `search` reads, the latest sentences."""
        if not self.cfg.data.context:
            return list(sources)
        longest = longest_source(self.model, search)
        return [with_less_context(src, longest, self.tokenizer) for src in sources]


class TaskCode(ABC):
    """The code of a task."""

    next_commands: ClassVar[tuple[str, ...]]
    """Commands for a trained model; {run} is the setting of its directory, {tgt} the choice of a language."""

    measures_accuracy: ClassVar[bool] = False
    """Whether the share of the target tokens that the model predicts is a score."""

    @abstractmethod
    def examples(self, cfg: TrainConfig) -> Examples:
        """Return the training examples of the task."""

    @abstractmethod
    def evaluation_pairs(
        self, trained: TrainedModel, text: ParallelText
    ) -> tuple[EncodedPairs, FilterReport]:
        """Return the pairs of a split whose loss is computed, with a report of the dropped ones."""

    @abstractmethod
    def outputs(
        self,
        trained: TrainedModel,
        text: ParallelText,
        decoding: DecodingConfig,
        metrics: Sequence[str],
    ) -> Scores:
        """Return the outputs of the model for a split, and their scores."""

    @abstractmethod
    def show(
        self, trained: TrainedModel, text: ParallelText, scores: Scores, tracker: Tracker, step: int
    ) -> None:
        """Record some outputs of a validation at `step`."""
