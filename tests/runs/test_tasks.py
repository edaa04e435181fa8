"""What differs between translation and language modelling."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
    EventAccumulator,
)
from torch.nn import functional as F

from nmt.config.roots import Task, TrainConfig
from nmt.data.batches.training_split import CorpusText, TrainingText, digest_of
from nmt.data.cleaning.filters import FilterReport
from nmt.data.configs import DataConfig
from nmt.data.parallel_text import ParallelText
from nmt.data.reading.bundled_data import DemoData
from nmt.data.special_ids import BOS_ID, EOS_ID
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.data.tokens.tokenizer_training import TokenizerConfig, TokenizerKind
from nmt.decoding.configs import BeamConfig, SamplingConfig
from nmt.layers.choices import Positions
from nmt.models import build_model
from nmt.models.configs import DecoderOnlyConfig, LossOn, Prefix
from nmt.models.fusion import Fusion
from nmt.runs import language_model
from nmt.runs.language_model import continued, decoded_text, sampled_lines
from nmt.runs.task import TrainedModel
from nmt.runs.tasks import TASKS, Evaluation
from nmt.runtime_config import Precision
from nmt.training.optimizers.optimizer_configs import AdamConfig
from nmt.training.optimizers.schedule_configs import NoamConfig
from nmt.training.tracking.configs import TrackingConfig
from nmt.training.tracking.sinks import TrackedRun, Tracker
from nmt.training.trainer_config import TrainerConfig

LINES = ["a man rides", "", "two men ride a horse", "no"] * 5
TEXT = ParallelText([""] * len(LINES), LINES)
TOKENIZER = Tokenizer.train(TokenizerConfig(TokenizerKind.char, vocab_size=60), TEXT)
CPU = torch.device("cpu")


def config(task: Task, **model: Any) -> TrainConfig:
    sizes: dict[str, Any] = {"d_model": 16, "d_ff": 32, "num_heads": 2, "num_layers": 1, "max_positions": 64}
    return TrainConfig(
        task=task,
        model=DecoderOnlyConfig(**(sizes | model)),
        data=DemoData(max_tokens=16),
        optimizer=AdamConfig(),
        schedule=NoamConfig(),
        trainer=TrainerConfig(num_samples=2, batch_tokens=64),
        decoding=BeamConfig(),
    )


def training_text(text: ParallelText) -> TrainingText:
    part = CorpusText(FilterReport(len(text)), digest_of(text), {}, lambda: iter([text]))
    return TrainingText({"only": part}, [1.0])


def trained(cfg: TrainConfig) -> TrainedModel:
    size = TOKENIZER.tgt_vocab_size
    return TrainedModel(cfg, TOKENIZER, build_model(cfg.model, src_vocab_size=size, tgt_vocab_size=size), CPU)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NMT_CACHE", str(tmp_path))


def test_every_task_has_its_code() -> None:
    assert set(TASKS) == set(Task)


def test_a_language_model_learns_from_all_lines_of_the_target() -> None:
    examples = TASKS[Task.language_model].examples(config(Task.language_model))
    text = examples.view(ParallelText(["x", "y"], ["one", ""]))
    assert text == ParallelText(["", ""], ["one", ""])
    kept, report = examples.filter(text, DataConfig())
    assert (kept, report.read, report.kept) == (text, 2, 2)


def test_the_windows_of_an_epoch_hold_the_text_once_and_begin_elsewhere_in_the_next() -> None:
    examples, notes = TASKS[Task.language_model].examples(config(Task.language_model)), list[str]()
    pairs_of_epoch = examples.epochs(training_text(TEXT), TOKENIZER, notes.append)
    whole = [token for line in TOKENIZER.encode_tgt(LINES) for token in line]
    assert notes == [f"encoded: 20 lines, {len(whole)} tokens"]
    firsts = set()
    for epoch in range(1, 9):
        pairs = pairs_of_epoch(epoch, 0).part(0)
        assert np.concatenate([pairs.tgt[i] for i in range(len(pairs))]).tolist() == whole
        assert (int(pairs.src_lengths.max()), int(pairs.tgt_lengths.max())) == (0, 16)
        firsts.add(int(pairs.tgt_lengths[0]))
    assert len(firsts) > 3
    again = examples.epochs(training_text(TEXT), TOKENIZER, notes.append)(8, 0).part(0)
    assert again.tgt_lengths.tolist() == pairs.tgt_lengths.tolist()


def test_a_model_of_both_sides_is_trained_on_joined_pairs() -> None:
    text = ParallelText(["a man", "two men"], ["no", "a horse"])
    cfg = config(Task.translation, prefix=Prefix.causal, loss_on=LossOn.both)
    examples = TASKS[Task.translation].examples(cfg)
    pairs = examples.epochs(training_text(text), TOKENIZER, list[str]().append)(1, 0).part(0)
    src, tgt = TOKENIZER.encode_src(text.src), TOKENIZER.encode_tgt(text.tgt)
    assert [pairs.tgt[i].tolist() for i in (0, 1)] == [
        [*s, BOS_ID, *t] for s, t in zip(src, tgt, strict=True)
    ]
    assert pairs.src_lengths.tolist() == [0, 0]


def test_the_perplexity_is_that_of_every_token_given_its_window() -> None:
    opened = trained(config(Task.language_model))
    scores = Evaluation(opened, TEXT, list[str]().append).scores(BeamConfig(), ["bleu"])
    whole = torch.tensor([token for line in TOKENIZER.encode_tgt(LINES) for token in line])
    nothing = torch.zeros(1, 0, dtype=torch.long)
    total, right = 0.0, 0
    for window in torch.split(whole, 16):
        tgt_in = torch.cat([torch.tensor([BOS_ID]), window[:-1]])[None]
        with torch.inference_mode():
            logits = opened.model.eval().project(opened.model(nothing, nothing.bool(), tgt_in))[0]
        total += float(F.cross_entropy(logits, window, reduction="sum"))
        right += int((logits.argmax(-1) == window).sum())
    loss, accuracy = total / len(whole), 100 * right / len(whole)
    expected = {"loss": loss, "perplexity": math.exp(loss), "token_accuracy": accuracy}
    assert scores.values == pytest.approx(expected, rel=1e-5)
    assert scores.signatures == {}
    assert [sample.split("\n")[0] for sample in scores.hypotheses] == LINES[:2]


def test_translations_are_scored_beside_the_loss_and_shown(tmp_path: Path) -> None:
    opened = trained(config(Task.translation))
    text = ParallelText(["a man", "two men"], ["no", "a horse"])
    scores = Evaluation(opened, text, list[str]().append).scores(BeamConfig(beam_size=1), ["chrf"])
    assert list(scores.values) == ["loss", "perplexity", "chrf"]
    with Tracker(TrackedRun(tmp_path), TrackingConfig()) as tracker:
        TASKS[Task.translation].show(opened, text, scores, tracker, 1)
    shown = EventAccumulator(str(tmp_path / "tb" / "valid")).Reload()
    assert sorted(shown.Tags()["images"]) == ["samples/attention_1", "samples/attention_2"]
    assert sorted(shown.Tags()["tensors"]) == ["samples/text_summary"]


def test_pairs_beyond_the_positions_are_told() -> None:
    notes: list[str] = []
    long = ParallelText(["a man", "a man " * 20], ["no", "no"])
    evaluation = Evaluation(trained(config(Task.translation)), long, notes.append)
    assert notes == ["loss without what exceeds model.max_positions: 2 pairs read, 1 kept (over 31 pieces 1)"]
    assert len(evaluation.pairs) == 1


def test_the_positions_of_a_language_model_limit_no_source() -> None:
    notes: list[str] = []
    opened = trained(config(Task.translation, positions=Positions.sinusoidal))
    lm = trained(config(Task.language_model, max_positions=12)).model
    opened = dataclasses.replace(opened, model=Fusion(opened.model, lm, 0.3))
    text = ParallelText(["a man " * 5, "a man"], ["no", "a man " * 5])
    evaluation = Evaluation(opened, text, notes.append)
    assert len(evaluation.pairs.src[0]) > 12
    assert notes == [
        "loss without what exceeds model.max_positions: 2 pairs read, 1 kept (target over 11 pieces 1)"
    ]


def ids(line: str) -> list[int]:
    return TOKENIZER.encode_tgt([line])[0][:-1]


@pytest.mark.parametrize(
    ("before", "tokens", "text"),
    [
        ([], ids("a man"), "a man"),
        (ids("a"), ids("a man")[len(ids("a")) :], " man"),
        (ids("a ma"), [*ids("a man")[len(ids("a ma")) :], EOS_ID, *ids("no"), EOS_ID], "n\nno\n"),
        ([*ids("a man"), EOS_ID], ids("no"), "no"),
        (ids("a"), [EOS_ID, EOS_ID, *ids("no")], "\n\nno"),
        (ids("a"), [], ""),
    ],
)
def test_a_continuation_is_text_from_where_the_prompt_ends(
    before: list[int], tokens: list[int], text: str
) -> None:
    assert decoded_text(TOKENIZER, before, tokens) == text


def test_text_is_sampled_in_the_precision_of_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def in_precision(model: Any, cfg: SamplingConfig, device: Any) -> Any:
        asked.append(cfg.precision)
        return model

    monkeypatch.setattr(language_model, "in_precision", in_precision)
    opened, sampling = trained(config(Task.language_model)), SamplingConfig(precision=Precision.int8)
    continued(opened, "", sampling, 3)
    assert len(list(sampled_lines(opened, "", sampling, 2, 3))) == 2
    assert asked == [Precision.int8] * 2


def test_lines_that_may_be_cut_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    opened, hot = trained(config(Task.language_model)), SamplingConfig(temperature=1e6)
    list(sampled_lines(opened, "", hot, 50, 9))
    cut = r"warning: \d\d of 50 lines end after 9 tokens, perhaps unfinished: max_tokens=9\n"
    assert re.fullmatch(cut, capsys.readouterr().err)
    list(sampled_lines(opened, "", hot, 50, 99))
    assert re.fullmatch(
        r"warning: \d\d of 50 lines end after 14 tokens, perhaps unfinished: the model sees "
        r"data.max_tokens=16 at most, the prompt and two before it among them\n",
        capsys.readouterr().err,
    )


@pytest.mark.parametrize("prompt", ["", "a man", "no\n", "no\na man"])
def test_a_prompt_may_have_any_shape(prompt: str) -> None:
    opened = trained(config(Task.language_model))
    first = continued(opened, prompt, SamplingConfig(), 30)
    assert first == continued(opened, prompt, SamplingConfig(), 30)
    assert first != continued(opened, prompt, SamplingConfig(seed=2), 30)
