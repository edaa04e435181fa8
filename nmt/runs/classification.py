"""The task of classification: text in, a label out, learnt from labelled text."""

from __future__ import annotations

from collections.abc import Sequence

from nmt.config.roots import TrainConfig
from nmt.data.batches.encode import EncodingOptions, encode_pairs
from nmt.data.batches.examples import LabelledTexts
from nmt.data.cleaning.filters import FilterReport
from nmt.data.encoded_pairs import EncodedPairs
from nmt.data.parallel_text import ParallelText
from nmt.data.tokens.label_set import require_known
from nmt.decoding.configs import DecodingConfig
from nmt.metrics.label_scores import confusion_table, details_of
from nmt.runs.task import TaskCode, TrainedModel
from nmt.training.tracking.sinks import Tracker
from nmt.translation.classify import classify
from nmt.translation.evaluate import Scores, score_text


class ClassificationTask(TaskCode):
    """The task of finding the label of a text, or of two texts."""

    next_commands = (
        "nmt classify {run} < texts.txt > labels.tsv",
        "nmt evaluate {run} data.scored_split=validation",
    )

    def examples(self, cfg: TrainConfig) -> LabelledTexts:
        """Return labelled texts."""
        return LabelledTexts(cfg.data, cfg.seed, cfg.tokenizer.sampling_alpha)

    def evaluation_pairs(
        self, trained: TrainedModel, text: ParallelText
    ) -> tuple[EncodedPairs, FilterReport]:
        """Return the texts that are not longer than the positions of the model."""
        require_known(text.tgt, trained.tokenizer.labels, "scored")
        limits = EncodingOptions(trained.model.max_source, trained.model.max_length)
        return encode_pairs(text, trained.tokenizer, limits)

    def outputs(
        self, trained: TrainedModel, text: ParallelText, decoding: DecodingConfig, metrics: Sequence[str]
    ) -> Scores:
        """Classify all texts, none left out, and score the labels."""
        model, device, world = trained.model, trained.device, trained.world
        found = classify(text.src, model, trained.tokenizer, decoding, device=device, world=world)
        labels = [one.label for one in found]
        scores = score_text(text.src, labels, text.tgt, metrics, tgt_lang="")
        scores.details = details_of(labels, text.tgt)
        scores.notes = [f"{one.probability:.4f}" for one in found]
        return scores

    def show(
        self, trained: TrainedModel, text: ParallelText, scores: Scores, tracker: Tracker, step: int
    ) -> None:
        """Record the first texts with label, prediction and its probability, and the confusion matrix."""
        rows = list(zip(text.src, text.tgt, scores.hypotheses, scores.notes, strict=True))
        header = ("text", "label", "prediction", "probability")
        tracker.table(step, "valid/samples", header, rows[: trained.cfg.trainer.num_samples])
        if scores.details:
            columns, *counts = confusion_table(scores.details)
            tracker.table(step, "valid/confusion", columns, counts)
