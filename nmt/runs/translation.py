"""The task of translation: sentence pairs in, translations out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nmt.attention_views import heatmap
from nmt.attention_views.alignment import mean_weights
from nmt.attention_views.maps import attend_pairs
from nmt.attention_views.views import is_readable
from nmt.config.roots import TrainConfig
from nmt.data.batches.encode import EncodingOptions, encode_pairs
from nmt.data.batches.examples import SentencePairs
from nmt.data.cleaning.filters import FilterReport
from nmt.data.encoded_pairs import EncodedPairs
from nmt.data.parallel_text import ParallelText
from nmt.decoding.configs import DecodingConfig
from nmt.runs.task import TaskCode, TrainedModel
from nmt.training.tracking.sinks import Tracker
from nmt.translation.evaluate import Scores, evaluate_text


class TranslationTask(TaskCode):
    """The task of translating sentences, learnt from pairs."""

    next_commands = (
        "nmt translate {run}{tgt} < source.txt > translation.txt",
        "nmt evaluate {run} decoding.beam_size=8",
    )

    def examples(self, cfg: TrainConfig) -> SentencePairs:
        """Return sentence pairs; source and target are one text if the model learns to predict both."""
        return SentencePairs(cfg.data, cfg.seed, cfg.tokenizer.sampling_alpha, cfg.model.learns_source)

    def evaluation_pairs(
        self, trained: TrainedModel, text: ParallelText
    ) -> tuple[EncodedPairs, FilterReport]:
        """Return the pairs that are not longer than the positions of the model."""
        limits = EncodingOptions(trained.model.max_source, trained.model.max_length)
        return encode_pairs(text, trained.tokenizer, limits)

    def outputs(
        self, trained: TrainedModel, text: ParallelText, decoding: DecodingConfig, metrics: Sequence[str]
    ) -> Scores:
        """Translate the sources, and score the translations against the targets."""
        return evaluate_text(
            trained.model,
            trained.tokenizer,
            replace(text, src=trained.in_fitting_context(text.src, decoding)),
            decoding,
            metrics,
            tgt_lang=trained.cfg.data.scored_language,
            device=trained.device,
            scoring=trained.cfg.scoring,
            world=trained.world,
            context_target=trained.cfg.data.context_target,
            languages=trained.cfg.data.tags,
        )

    def show(
        self, trained: TrainedModel, text: ParallelText, scores: Scores, tracker: Tracker, step: int
    ) -> None:
        """Record the first sentences with reference, translation and cross-attention."""
        num_samples = trained.cfg.trainer.num_samples
        rows = list(zip(text.src, text.tgt, scores.hypotheses, strict=True))[:num_samples]
        tracker.table(step, "valid/samples", ("source", "reference", "translation"), rows)
        pairs = [(src, tgt) for src, tgt, _ in rows]
        decoding, device = trained.cfg.decoding, trained.device
        for sentence in attend_pairs(pairs, trained.model, trained.tokenizer, decoding, device=device):
            if sentence.cross and is_readable(sentence):
                panel = ("cross-attention, mean of all heads", mean_weights(sentence.cross))
                pixels = heatmap.image(
                    [panel], [p.text for p in sentence.src], [p.text for p in sentence.tgt]
                )
                tracker.image(step, f"valid/samples/attention_{sentence.line}", pixels)
