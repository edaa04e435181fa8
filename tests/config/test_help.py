"""The text of `nmt VERB --help`, of all of it and of parts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from nmt.cli import main
from nmt.config.help import field_docs
from nmt.metrics.scoring import METRICS
from nmt.models.configs import DecoderOnlyConfig
from nmt.training.tracking.configs import SINKS
from nmt.training.trainer_config import MEASURES
from nmt.verbs import VERBS


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 0
    return " ".join(capsys.readouterr().out.split())


def test_help_of_a_part_has_its_choices_and_keys_alone(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "train", "--help", "optimizer")
    kinds = "adafactor, *adam, adamw, adamw_8bit, muon, muon_fast, schedule_free, sgd"
    assert text.startswith(f"optimizer=CHOICE (* is in force): optimizer {kinds}")
    assert "optimizer.beta1=0.9 Decay of the first moment." in text
    assert "with optimizer.name=muon also: optimizer.momentum=0.95 Decay of the momentum" in text
    assert "trainer." not in text
    assert shown(capsys, "help", "train", "optimizer") == text
    assert shown(capsys, "train", "optimizer", "--help") == text


def test_help_of_a_group_of_names_says_what_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "train", "--help", "sets").startswith("sets: Further corpora to score on, by names")


def test_help_of_a_part_follows_the_choice(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "train", "schedule=linear", "schedule.peak_rate=0.25", "--help", "schedule")
    assert "*linear" in text
    assert "schedule.peak_rate=0.25 Highest learning rate" in text


def test_help_of_a_key_finds_it_in_any_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "train", "--help", "max_steps").startswith("trainer.max_steps=800 Stop after")
    assert shown(capsys, "train", "-h", "model.dropout").startswith("model.dropout=0.0 On the embeddings")


def test_help_of_a_key_finds_it_in_choices_that_are_not_in_force(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "train", "--help", "rank")
    assert text.startswith("with adapt.name=lora also: adapt.rank=8 Columns of the one")
    assert "adapt.alpha" not in text
    assert "objective.alignments=null" in shown(capsys, "train", "--help", "objective.alignments")


@pytest.mark.parametrize(
    ("verb", "key", "rows"),
    [
        ("train", "metrics", METRICS),
        ("evaluate", "metrics", METRICS),
        ("train", "trainer.measures", MEASURES),
        ("train", "tracking.sinks", SINKS),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_key_that_names_rows_of_a_table_names_all(
    verb: str, key: str, rows: Iterable[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = {word.strip(",;:().") for word in shown(capsys, verb, "--help", key).split()}
    assert {*rows} <= words


def test_help_of_a_group_that_is_no_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert "multi30k_en_de" in shown(capsys, "train", "--help", "experiment")


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("lr", "schedule.peak_rate"),  # of other choices than the one in force
        ("peak", "schedule.peak_rate"),
        ("Beam", "decoding.beam_size"),
        ("batch_size", "trainer.batch_tokens"),
        ("vocab", "tokenizer.vocab_size"),
        ("trials", "sweep.trials"),
    ],
)
def test_a_word_finds_keys_by_name_and_names_of_other_toolkits(
    word: str, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f" {key}=" in f" {shown(capsys, 'train', '--help', word)}"


def test_a_word_finds_keys_by_their_description_after_those_by_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    named, told, text = shown(capsys, "train", "--help", "vocab").partition("in their description:")
    assert "tokenizer.vocab_size=" in named
    assert told
    assert "objective.label_smoothing=" in text
    assert "tokenizer.vocab_size=" not in text


def test_a_word_is_not_found_inside_of_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert "already" not in shown(capsys, "train", "--help", "lr")


def test_keys_that_several_other_choices_have_are_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "train", "--help", "schedule")
    assert text.count("schedule.peak_rate=") == 1
    assert "with schedule.name=linear, cosine, wsd also: schedule.final_rate=0.0" in text


def test_help_of_the_settings_of_a_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    assert "sweep.parallel=null Trials at a time" in shown(capsys, "train", "--help", "sweep")
    assert "sweep.parallel" not in shown(capsys, "runs", "--help")  # which is not swept


def test_help_of_nothing_that_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help", "optimiser"]) == 2
    assert capsys.readouterr().err.startswith(
        "error: nmt train has no part or key 'optimiser'; did you mean 'optimizer'?; the parts are data, "
    )
    assert main(["reproduce", "--help", "xyz"]) == 2
    assert capsys.readouterr().err == (
        "error: nmt reproduce has no part or key 'xyz'; the keys are run, output, tolerance\n"
    )


def test_folders_that_a_verb_reads_are_no_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        Path(name).mkdir()
    assert "run=[a,b]" in shown(capsys, "compare", "a", "b", "--help").replace(" ", "")
    assert "output=" not in shown(capsys, "compare", "a", "b", "--help", "split")
    assert "folder=a" in shown(capsys, "runs", "a", "--help")


def test_the_keys_that_are_changed_first_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    _, _, text = shown(capsys, "train", "--help").partition("keys that are changed first:")
    first, _, rest = text.partition("keys that have to do with it): ")
    assert "trainer.max_steps=800" in first
    assert "schedule.factor=1.0" in first
    assert "schedule.peak_rate" not in first
    assert "trainer.max_steps=800" in rest


@pytest.mark.parametrize("command", [["--help"], *([name, "--help"] for name in VERBS)], ids=" ".join)
def test_help_fits_a_terminal_of_80_columns(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(command) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if len(line) > 80] == []


def test_help_of_help_names_the_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "help", "evaluate") == shown(capsys, "evaluate", "--help")


def test_values_of_an_enumeration_are_named() -> None:
    docs = field_docs(DecoderOnlyConfig)
    assert docs["prefix"].startswith("bidirectional: each source position")
    assert docs["norm"] == "layer_norm or rms_norm."
    assert docs["activation"].endswith("One of relu, gelu, selu, silu, glu, reglu, geglu, seglu, swiglu.")


def test_a_verb_without_groups_has_no_heading_for_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "--help"]) == 0
    assert "groups (GROUP=CHOICE" not in capsys.readouterr().out
