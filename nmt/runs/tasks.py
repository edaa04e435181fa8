"""What a model learns: to translate, or to continue text. The code of either is a row of `TASKS`.

A language model learns from the targets alone, as one long text cut into windows of `data.max_tokens`: its
batches are batches of pairs whose sources have no columns. Everything after that, the model, the trainer and
the checkpoints, is the same for both.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from nmt.attention_views import heatmap
from nmt.attention_views.alignment import mean_weights
from nmt.attention_views.maps import attend_pairs
from nmt.attention_views.views import is_readable
from nmt.config.roots import Task, TrainConfig
from nmt.data.batching import collate, plan_in_order
from nmt.data.encode import EncodingOptions, encode_pairs, encode_stream, sample_pairs
from nmt.data.encoded_pairs import EncodedPairs, joined, windows
from nmt.data.mixture import MixtureData, shares
from nmt.data.sources import DataConfig, FilterReport, ParallelText, filter_pairs
from nmt.data.streaming import StreamBuffers, StreamedText
from nmt.data.tokenizer import EOS_ID, Tokenizer
from nmt.data.training_split import Filter, MixedText, TrainingText
from nmt.decoding import DecodingConfig, SamplingConfig
from nmt.decoding.evaluate import Scores, evaluate_text, perplexity, validation_loss
from nmt.decoding.sampling import continuation
from nmt.decoding.translate import evaluating
from nmt.disk_cache import cache_dir
from nmt.distributed import ALONE, World
from nmt.errors import Log
from nmt.models import TranslationModel
from nmt.runtime import derive_seed
from nmt.training.tracking import Tracker

T = TypeVar("T")


@dataclass
class TrainedModel:
    """A model with what is needed to use it."""

    cfg: TrainConfig
    tokenizer: Tokenizer
    model: TranslationModel
    device: torch.device
    world: World = field(default=ALONE, kw_only=True)
    """The processes that share the work of an evaluation."""


class TaskParts(NamedTuple):
    """The code of a task."""

    part: Callable[[ParallelText], ParallelText]
    """What of a corpus it is about."""
    filter: Filter
    """What of a corpus is trained on, with an account."""
    training_pairs: Callable[
        [TrainConfig, TrainingText | StreamedText, Tokenizer, Log], Callable[[int], EncodedPairs]
    ]
    """The pairs of each epoch, by its number."""
    evaluation_pairs: Callable[[TrainedModel, ParallelText], tuple[EncodedPairs, FilterReport]]
    """What the loss of a split is computed on, with an account."""
    outputs: Callable[[TrainedModel, ParallelText, DecodingConfig, Sequence[str]], Scores]
    """What the model makes of a split, and the scores of that."""
    show: Callable[[TrainedModel, ParallelText, Scores, Tracker, int], None]
    """Record some of that for the step of a validation."""
    next_commands: tuple[str, ...]
    """What a user may do with a trained model; {run} is its directory, {tgt} the choice of a language."""


class Evaluation:
    """A split to score a model on, encoded once."""

    def __init__(self, trained: TrainedModel, text: ParallelText, log: Log):
        self.task, self.trained, self.text = TASKS[trained.cfg.task], trained, text
        self.pairs, report = self.task.evaluation_pairs(trained, text)
        if report.kept < report.read:
            log(f"loss without what exceeds model.max_positions: {report}")
        lengths = self.pairs.src_lengths, self.pairs.tgt_lengths
        self.plan = plan_in_order(*lengths, max_tokens=trained.cfg.trainer.batch_tokens)

    def scores(self, decoding: DecodingConfig, metrics: Sequence[str]) -> Scores:
        """Loss in nats per target token, perplexity, and what the task adds to them."""
        batches = (collate(self.pairs, indices) for indices in self.plan)
        model, device, world = self.trained.model, self.trained.device, self.trained.world
        loss = validation_loss(model, batches, device=device, world=world)
        scores = self.task.outputs(self.trained, self.text, decoding, metrics)
        return Scores(
            {"loss": loss, "perplexity": perplexity(loss), **scores.values},
            scores.signatures,
            scores.hypotheses,
        )


# ---- translation


def sentence_pairs(
    cfg: TrainConfig, text: TrainingText | StreamedText, tokenizer: Tokenizer, log: Log
) -> Callable[[int], EncodedPairs]:
    """The encoded pairs, the same in each epoch or sampled anew (subword regularisation)."""
    alpha, layout = (
        cfg.tokenizer.sampling_alpha,
        EncodingOptions(cfg.data.max_tokens, True, cfg.model.learns_source),
    )
    if isinstance(text, StreamedText):
        return StreamBuffers(text, cfg.data.buffer_pairs, buffer_encoder(cfg, layout, tokenizer, log))
    parts = text.parts if isinstance(text, MixedText) else [text]

    def whole(encoded: Sequence[tuple[EncodedPairs, FilterReport]], done: str) -> EncodedPairs:
        corpora = [pairs for pairs, _ in encoded]
        report = functools.reduce(operator.add, (report for _, report in encoded))
        tokens = sum(int(pairs.tgt_lengths.sum()) for pairs in corpora)
        log(f"{done}: {report}, {tokens:,} target tokens")
        if not isinstance(cfg.data, MixtureData):
            return corpora[0]
        return joined(corpora, shares(cfg.data, list(map(len, corpora))))

    if not alpha:
        once = whole(
            [encode_stream(part.chunks, part.sha256, tokenizer, layout, cache_dir()) for part in parts],
            "encoded",
        )
        return lambda epoch: once

    def sampled(epoch: int) -> EncodedPairs:
        fresh = [
            sample_pairs(part.chunks, tokenizer, layout, alpha=alpha, seed=cfg.seed, epoch=epoch)
            for part in parts
        ]
        return whole(fresh, f"segmented for epoch {epoch}")

    return sampled


def buffer_encoder(
    cfg: TrainConfig, layout: EncodingOptions, tokenizer: Tokenizer, log: Log
) -> Callable[[ParallelText, FilterReport, int], EncodedPairs]:
    """What encodes a buffer of a stream."""
    alpha = cfg.tokenizer.sampling_alpha

    def encode(buffer: ParallelText, read: FilterReport, number: int) -> EncodedPairs:
        if alpha:
            pairs, left = sample_pairs(
                lambda: iter([buffer]), tokenizer, layout, alpha=alpha, seed=cfg.seed, epoch=number
            )
        else:
            pairs, left = encode_pairs(buffer, tokenizer, layout)
        source = f"; for it, {read}" if read.read else ""  # else of a chunk that was read before
        log(f"buffer {number}: {left}{source}")
        return pairs

    return encode


def _unchanged(x: T) -> T:
    return x


def encoded_sentences(trained: TrainedModel, text: ParallelText) -> tuple[EncodedPairs, FilterReport]:
    """The pairs that the positions of the model allow."""
    return encode_pairs(text, trained.tokenizer, EncodingOptions(trained.model.max_length))


def translations(
    trained: TrainedModel, text: ParallelText, decoding: DecodingConfig, metrics: Sequence[str]
) -> Scores:
    """Translations of the sources, scored against the targets."""
    return evaluate_text(
        trained.model,
        trained.tokenizer,
        text,
        decoding,
        metrics,
        tgt_lang=trained.cfg.data.scored_language,
        device=trained.device,
        world=trained.world,
    )


def show_translations(
    trained: TrainedModel, text: ParallelText, scores: Scores, tracker: Tracker, step: int
) -> None:
    """The first sentences with reference and translation, and how they attend to the source, if they do."""
    num_samples = trained.cfg.trainer.num_samples
    rows = list(zip(text.src, text.tgt, scores.hypotheses, strict=True))[:num_samples]
    for number, (src, tgt, hyp) in enumerate(rows, start=1):
        sample = f"source       {src}\nreference    {tgt}\ntranslation  {hyp}"
        tracker.text(step, f"valid/sample_{number}", sample)
    pairs = [(src, tgt) for src, tgt, _ in rows]
    decoding, device = trained.cfg.decoding, trained.device
    for sentence in attend_pairs(pairs, trained.model, trained.tokenizer, decoding, device=device):
        if sentence.cross and is_readable(sentence):
            panel = ("cross-attention, mean of all heads", mean_weights(sentence.cross))
            pixels = heatmap.image([panel], [p.text for p in sentence.src], [p.text for p in sentence.tgt])
            tracker.image(step, f"valid/attention_{sentence.line}", pixels)


# ---- language model


def targets_alone(text: ParallelText) -> ParallelText:
    """The same without the sources."""
    return ParallelText([""] * len(text), text.tgt)


def all_lines(text: ParallelText, cfg: DataConfig) -> tuple[ParallelText, FilterReport]:
    """A text is not filtered: its lines belong together."""
    return targets_alone(text), FilterReport(len(text))


def text_windows(
    cfg: TrainConfig, text: TrainingText | StreamedText, tokenizer: Tokenizer, log: Log
) -> Callable[[int], EncodedPairs]:
    """Windows of the text that begin elsewhere in each epoch."""
    assert isinstance(text, TrainingText)  # a stream is refused with this task
    pairs, _ = encode_stream(text.chunks, text.sha256, tokenizer, EncodingOptions(), cache_dir())
    log(f"encoded: {len(text):,} lines, {pairs.tgt_lengths.sum():,} tokens")
    length = cfg.data.max_tokens

    def shifted(epoch: int) -> EncodedPairs:
        first = np.random.default_rng(derive_seed("windows", cfg.seed, epoch)).integers(length)
        return windows(pairs, length, int(first))

    return shifted


def fixed_windows(trained: TrainedModel, text: ParallelText) -> tuple[EncodedPairs, FilterReport]:
    """The text cut into windows from its beginning; nothing is left out."""
    pairs, report = encode_pairs(text, trained.tokenizer)
    return windows(pairs, trained.cfg.data.max_tokens), report


def continuations(
    trained: TrainedModel, text: ParallelText, decoding: DecodingConfig, metrics: Sequence[str]
) -> Scores:
    """The first lines of the text, each continued by as many tokens as a window has; not scored."""
    sampling = decoding if isinstance(decoding, SamplingConfig) else SamplingConfig()
    prompts = [f"{line}\n" for line in text.tgt[: trained.cfg.trainer.num_samples]]
    length = trained.cfg.data.max_tokens
    return Scores({}, {}, [prompt + continued(trained, prompt, sampling, length) for prompt in prompts])


def continued(trained: TrainedModel, prompt: str, cfg: SamplingConfig, max_tokens: int) -> str:
    """`max_tokens` tokens that continue `prompt`, as text; the end of a sentence is the end of a line."""
    *whole, unfinished = prompt.split("\n")
    ids = [token for line in trained.tokenizer.encode_tgt(whole) for token in line]
    ids += trained.tokenizer.encode_tgt([unfinished])[0][:-1]
    window = trained.cfg.data.max_tokens
    with evaluating(trained.model):
        drawn = continuation(trained.model, ids, cfg, window=window, device=trained.device)
        tokens = list(itertools.islice(drawn, max_tokens))
    return decoded_text(trained.tokenizer, ids, tokens)


def show_continuations(
    trained: TrainedModel, text: ParallelText, scores: Scores, tracker: Tracker, step: int
) -> None:
    """Each line with what the model adds to it."""
    for number, sample in enumerate(scores.hypotheses, start=1):
        tracker.text(step, f"valid/sample_{number}", sample)


def decoded_text(tokenizer: Tokenizer, before: Sequence[int], tokens: Sequence[int]) -> str:
    """`tokens` as text that goes on where the ids `before` end."""
    line = list(itertools.takewhile(lambda token: token != EOS_ID, reversed(before)))[::-1]
    lines = [list(line)]
    for token in tokens:
        if token == EOS_ID:
            lines.append([])
        else:
            lines[-1].append(token)
    text = "\n".join(tokenizer.decode(ids) for ids in lines)
    return text[len(tokenizer.decode(line)) :]


TASKS: dict[Task, TaskParts] = {
    Task.translation: TaskParts(
        _unchanged,
        filter_pairs,
        sentence_pairs,
        encoded_sentences,
        translations,
        show_translations,
        (
            "nmt translate run={run}{tgt} < source.txt > translation.txt",
            "nmt evaluate run={run} decoding.beam_size=8",
        ),
    ),
    Task.language_model: TaskParts(
        targets_alone,
        all_lines,
        text_windows,
        fixed_windows,
        continuations,
        show_continuations,
        ('nmt generate run={run} prompt="..."', "nmt generate run={run} decoding.temperature=0.7"),
    ),
}
