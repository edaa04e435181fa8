"""`nmt train debug=...` and `dry_run=true`: what they do, show and refuse, and that no run is touched."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from torch import Tensor

from nmt.cli import main
from nmt.config.compose import compose
from nmt.models.configs import TransformerConfig
from nmt.training.adapting.configs import LoraConfig
from nmt.training.checkpoint import CheckpointStore
from nmt.training.optimizers.schedule_configs import DecayConfig
from nmt.verbs import VERBS, debug
from tests.runs.untrained import TRANSFORMER, WORDS, untrained

TINY = [
    *("train", "experiment=none", "data=toy", "tokenizer=char", "runtime.threads=1", "runtime.device=cpu"),
    *("schedule=constant", "schedule.peak_rate=0.02", "schedule.warmup_steps=0", *TRANSFORMER),
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def test_smoke_does_everything_and_keeps_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    averaged, save = list[list[int]](), CheckpointStore.save_average

    def recorded(store: CheckpointStore, tensors: dict[str, Tensor], steps: list[int]) -> None:
        averaged.append(steps)
        save(store, tensors, steps)

    monkeypatch.setattr(CheckpointStore, "save_average", recorded)
    assert main([*TINY, "debug=smoke", "run=mine"]) == 0
    shown = capsys.readouterr()
    assert re.fullmatch(
        r"smoke: two updates, validation, checkpoints, their average and the scores of validation and test "
        r"work \([\d.]+ s\); nothing was kept\n",
        shown.out,
    )
    assert "validation at step 2" in shown.err
    assert averaged == [[1, 2]]
    assert files(folder) == []


def test_a_mixture_is_tried_with_the_tags_of_its_languages(capsys: pytest.CaptureFixture[str]) -> None:
    corpora = "{a: {name: toy, src: en, tgt: fr}, b: {name: toy, src: fr, tgt: en}}"
    mixed = ["data=mixture", "data.target_tags=true", f"data.corpora={corpora}"]
    assert main([*TINY, *mixed, "trainer.best_metric=macro_bleu", "debug=smoke"]) == 0
    assert "macro_bleu 0.00" in capsys.readouterr().err


def test_smoke_of_a_schedule_that_ends_has_the_rates_of_the_training() -> None:
    (trial,) = compose(VERBS["train"], ["schedule=cosine", "trainer.max_steps=700", "metrics=[ter]"])
    cfg, _ = trial.to_training()
    smoked = debug.smoke_config(cfg)
    assert isinstance(smoked.schedule, DecayConfig)
    assert (smoked.schedule.decay_steps, smoked.trainer.max_steps) == (700, 2)
    assert (smoked.metrics, smoked.model, smoked.optimizer) == (cfg.metrics, cfg.model, cfg.optimizer)


def test_what_is_about_all_data_does_not_keep_an_excerpt_from_a_smoke_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An epoch that is not known is not too long for trainer.max_steps, and alignments name other lines."""
    (tmp_path / "links").write_text("of all data\n")
    monkeypatch.setattr(debug, "FEW_PAIRS", 5)
    lengths = ["schedule=cosine", "schedule.warmup_steps=2 epochs", "trainer.max_steps=700"]
    guided = ["objective=guided_alignment", f"objective.alignments={tmp_path / 'links'}"]
    assert main([*TINY, *lengths, *guided, "debug=smoke"]) == 0
    assert "objective.alignments is about all data; estimated alignments" in capsys.readouterr().err


def test_overfit_is_without_noise() -> None:
    (trial,) = compose(VERBS["train"], ["model=transformer_tiny", "model.layer_drop=0.3"])
    adapted = dataclasses.replace(trial.to_training()[0], adapt=LoraConfig(dropout=0.1))
    cfg = debug.overfit_config(adapted)
    assert isinstance(cfg.model, TransformerConfig)
    assert isinstance(cfg.adapt, LoraConfig)
    assert (cfg.model.layer_drop, cfg.adapt.dropout) == (0.0, 0.0)


def test_overfit_says_after_how_many_updates(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "debug=overfit", "model.d_model=32", "model.d_ff=64", "tokenizer=word"]) == 0
    found = re.match(
        r"overfit: one batch of \d+ pairs is learnt by heart after (\d+) updates: loss ([\d.]+) -> ([\d.]+) ",
        capsys.readouterr().out,
    )
    assert found is not None
    assert float(found[2]) > 1.0
    assert float(found[3]) < 0.1
    assert files(folder) == []


def test_overfit_that_fails_is_a_training_that_stopped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(debug, "BY_HEART_STEPS", 3)
    assert main([*TINY, "debug=overfit", "schedule.peak_rate=1e-9"]) == 4
    assert re.search(
        r"error: overfit: the loss of one batch of \d+ pairs went from [\d.]+ to [\d.]+ nats per token in 3 "
        r"updates, but not below 0.1; the lowest, [\d.]+, was that of update \d. A model that cannot learn",
        capsys.readouterr().err,
    )


def test_overfit_of_few_weights_says_that_they_are_few(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(debug, "BY_HEART_STEPS", 2)
    assert main([*TINY, "debug=overfit", "schedule.peak_rate=1e-9", "trainer.freeze=[encoder.*]"]) == 4
    assert re.search(
        r"that of update \d\. Only [\d,]+ of [\d,]+ weights learn, which may be too few for that: a ",
        capsys.readouterr().err,
    )


def test_a_dry_run_counts_what_changes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = "trainer.changes=[{step: 31, accumulate: 3}]"
    assert main([*TINY, "dry_run=true", "trainer.max_steps=40 epochs", changes]) == 0
    lines = dict(re.findall(r"^(\w+) +(.*)$", capsys.readouterr().out, re.M))
    assert ", at first, " in lines["time"]
    batches = int(re.match(r"(\d+) updates", lines["epoch"])[1])  # type: ignore[index]
    updates = int(re.match(r"([\d,]+) updates", lines["training"])[1])  # type: ignore[index]
    epochs = float(re.search(r"\(([\d.]+) epochs\)", lines["training"])[1])  # type: ignore[index]
    assert updates == 40 * batches
    assert epochs == pytest.approx((30 + 3 * (updates - 30)) / batches, abs=0.06)


def test_nothing_keeps_overfit_from_learning() -> None:
    arguments = ["objective=simcut", "objective.word_dropout=0.1", "model.dropout=0.3", "tokenizer=unigram"]
    (trial,) = compose(VERBS["train"], [*arguments, "tokenizer.sampling_alpha=0.2"])
    cfg = debug.overfit_config(trial.to_training()[0])
    assert isinstance(cfg.model, TransformerConfig)
    assert (cfg.model.dropout, cfg.model.attention_dropout, cfg.tokenizer.sampling_alpha) == (0.0, 0.0, 0.0)
    assert {vars(cfg.objective)[name] for name in ("word_dropout", "label_smoothing", "cut")} == {0.0}
    assert cfg.objective.name == "simcut"


def test_profile_shows_phases_and_operations_and_writes_a_trace(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([*TINY, "debug=profile", "run=mine"]) == 0
    shown, warnings = capfd.readouterr()
    assert "profiler_start" not in warnings  # of the profiler in C++
    shares = {
        name: float(share) for share, name in re.findall(r"^ +([\d.]+)% +[\d.]+ ms  (\w+)$", shown, re.M)
    }
    assert {"data", "forward", "backward", "optimizer"} <= {*shares}
    assert sum(shares[name] for name in ("data", "forward", "backward", "optimizer")) == pytest.approx(
        100, abs=1
    )
    assert "aten::" in shown
    assert files(folder) == ["outputs/profiles/mine.json"]
    events = json.loads((folder / "outputs" / "profiles" / "mine.json").read_text())["traceEvents"]
    assert any(event["name"] == "nmt: backward" for event in events)


def test_a_dry_run_shows_what_a_training_would_take(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits = ["trainer.max_steps=70", "trainer.accumulate=2", "trainer.keep_last=4", "trainer.keep_best=1"]
    units = ["trainer.save_every_steps=3 epochs"]
    assert main([*TINY, "dry_run=true", "optimizer=adam", *limits, *units]) == 0
    shown = capsys.readouterr().out
    lines = dict(re.findall(r"^(\w+) +(.*)$", shown, re.M))
    total, parts = lines["parameters"].split(": ")
    sizes = [int(size.replace(",", "")) for size in re.findall(r" ([\d,]*\d)", f" {parts}")]
    assert int(total.replace(",", "")) == sum(sizes)
    weights, gradients, optimizer = (
        float(re.search(rf"{name} ([\d.]+) MB", lines["memory"])[1])  # type: ignore[index]
        for name in ("weights", "gradients", "optimizer")
    )
    assert weights == pytest.approx(4 * sum(sizes) / 1e6, abs=0.2)
    assert gradients == weights
    assert optimizer == pytest.approx(2 * weights, abs=0.2)
    assert "for the 5 that are kept" in lines["disk"]
    assert re.match(
        r"usual: src \(\d+, \d+\), tgt \(\d+, \d+\), \d+% and \d+% padding$",
        re.findall(r"^batch +(.*)$", shown, re.M)[0],
    )
    assert lines["training"].startswith("70 updates (")
    assert lines["length"] == "trainer.save_every_steps='3 epochs' is about 3 updates"
    assert files(folder) == []


def test_a_dry_run_says_how_many_pairs_filters_leave(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TINY, "dry_run=true", "data.filters=[{name: duplicates}, {name: length, max: 30}]"]) == 0
    shown = capsys.readouterr().out
    found = re.search(r"data +(all|the first) ([\d,]+) training pairs, of which ([\d,]+) are kept; ", shown)
    assert found, shown
    read, kept = (int(number.replace(",", "")) for number in found.groups()[1:])
    assert 0 < kept < read


def test_a_dry_run_counts_what_checkpoints_share_once(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = untrained(folder / "start", "model.d_model=128", "model.d_ff=512")
    command = ["train", "data=toy", f"init={start}", "runtime.device=cpu", "trainer.keep_last=9"]
    assert main([*command, "adapt=lora", "adapt.rank=1", "trainer.ema_decay=0.9", "dry_run=true"]) == 0
    shown = capsys.readouterr().out
    (weights,) = re.findall(r"^memory .* weights ([\d.]+) MB", shown, re.M)
    found = re.search(
        r"^disk +([\d.]+) MB for .*, ([\d.]+) MB for the 10 .*, ([\d.]+) MB that they share", shown, re.M
    )
    assert found, shown
    one, every, shared = map(float, found.groups())
    assert one + shared == pytest.approx(float(weights), abs=0.25)
    assert every == pytest.approx(10 * one + shared, abs=0.6)
    assert one < 0.2 * shared


def test_a_smoke_run_goes_on_with_the_optimizer_of_a_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TINY, "run=start", "trainer.max_steps=3", "trainer.eval_every_steps=3"]) == 0
    command = [*TINY, "init=start", "init.optimizer=keep", "init.checkpoint=last", "run=mine"]
    assert main([*command, "trainer.max_steps=9", "debug=smoke"]) == 0
    assert "validation at step 5" in capsys.readouterr().err
    told = "init.optimizer=keep goes on after step 3, but trainer.max_steps="
    assert main([*command, "trainer.max_steps=3", "debug=smoke"]) == 2
    assert f"{told}3 ends before; raise it" in capsys.readouterr().err
    assert main([*command, "trainer.max_steps=1 epoch"]) == 2
    assert f"{told}'1 epoch' (1 updates) ends before; raise it" in capsys.readouterr().err


def test_every_look_starts_from_the_run_that_init_names(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The training pairs alone would give a vocabulary without the tag."""
    start = untrained(folder / "start", "tokenizer.tgt_tag=x", lines=[*WORDS, "x a"])
    command = ["train", "data=toy", f"init={start}", "runtime.device=cpu", "runtime.threads=1"]
    assert main([*command, "dry_run=true", "trainer.freeze=[encoder*]"]) == 0
    shown = capsys.readouterr()
    assert "starting from" in shown.err
    assert "frozen" in shown.err
    assert "dry run, estimated" in shown.out


def test_one_look_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "dry_run=true", "debug=smoke"]) == 2
    assert "debug=smoke and dry_run=true exclude each other" in capsys.readouterr().err


def test_a_smoke_run_tells_nobody_else() -> None:
    (trial,) = compose(VERBS["train"], [])
    cfg, _ = trial.to_training()
    cfg = dataclasses.replace(cfg, tracking=dataclasses.replace(cfg.tracking, sinks=["jsonl"]))
    cfg.tracking.sinks.append("somewhere_else")
    assert debug.smoke_config(cfg).tracking.sinks == ["jsonl"]
