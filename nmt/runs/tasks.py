"""The table of tasks, and the evaluation of a model by the code of its task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nmt.config.roots import Task
from nmt.data.batches.batching import collate, plan_in_order
from nmt.data.configs import DataConfig
from nmt.data.parallel_text import ParallelText, Split
from nmt.decoding.configs import DecodingConfig
from nmt.errors import Log
from nmt.progress import told
from nmt.runs.classification import ClassificationTask
from nmt.runs.language_model import LanguageModelTask
from nmt.runs.task import TaskCode, TrainedModel
from nmt.runs.translation import TranslationTask
from nmt.translation.evaluate import Scores, perplexity, validation_values

TASKS: dict[Task, TaskCode] = {
    Task.translation: TranslationTask(),
    Task.language_model: LanguageModelTask(),
    Task.classification: ClassificationTask(),
}


def are_of_several_corpora(data: DataConfig) -> bool:
    """Return whether the validation pairs are those of one corpus after the other."""
    return len(data.parts(Split.validation)) > 1


class Evaluation:
    """A split to score a model on, encoded once."""

    def __init__(self, trained: TrainedModel, text: ParallelText, log: Log):
        self.task, self.trained, self.text = TASKS[trained.cfg.task], trained, text
        self.pairs, report = self.task.evaluation_pairs(trained, text)
        if report.kept < report.read:
            log(f"loss without what exceeds model.max_positions: {report}")
        lengths = self.pairs.src_lengths, self.pairs.tgt_lengths
        self.plan = plan_in_order(*lengths, max_tokens=trained.cfg.trainer.tokens_per_batch)

    def some(self, num_pairs: int | None) -> ParallelText:
        """Return the first pairs of the split, of a mixture pairs of all its corpora, by their sizes."""
        if num_pairs and are_of_several_corpora(self.trained.cfg.data):
            return self.text.spread(num_pairs)
        return self.text.first(num_pairs)

    def scores(
        self, decoding: DecodingConfig, metrics: Sequence[str], num_pairs: int | None = None
    ) -> Scores:
        """Return the loss in nats per target token, perplexity, and the scores of the task.

        The scores of the task are those of `some` pairs; None: of all, as the loss is.
        """
        model, device, world = self.trained.model, self.trained.device, self.trained.world
        own = world.shard(told(list(self.plan), "computing the loss", "pairs"))
        batches = (collate(self.pairs, indices) for indices in own)
        measured = self.task.measures_accuracy
        values = validation_values(model, batches, device=device, world=world, accuracy=measured)
        scores = self.task.outputs(self.trained, self.some(num_pairs), decoding, metrics)
        of_loss = {"loss": values["loss"], "perplexity": perplexity(values["loss"])}
        return replace(scores, values=of_loss | values | scores.values)
