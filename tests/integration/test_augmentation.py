"""Runs with modified training pairs and augmented sets, through the command line."""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from nmt import open_run
from nmt.cli import main
from nmt.data.modifiers import MATCH_MARK
from nmt.data.reading.augmented import USUAL
from nmt.files import written_lines
from nmt.runs.scored_sets import SetEvaluations
from nmt.translation.evaluate import Scores

TOY = [
    *("experiment=none", "data=toy", "tokenizer=char", "model=transformer_tiny", "model.d_model=16"),
    *("model.d_ff=32", "model.num_heads=2", "model.encoder_layers=1", "model.decoder_layers=1"),
    *("schedule=constant", "data.max_tokens=64", "trainer.batch_tokens=200", "trainer.eval_every_steps=4"),
    *("trainer.save_every_steps=2", "runtime.device=cpu", "runtime.kernels=false", "decoding=greedy"),
    *("decoding.max_length_ratio=0", "tracking.sinks=[jsonl,train_log]", "metrics=[chrf]"),
    *("trainer.best_metric=loss", "data.augment=[{name: upper_case, rate: 0.4}, {name: typos, rate: 0.4}]"),
]
SETS = "sets={augmented: {augment: usual}}"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with augmented sets."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NMT_CACHE", str(folder / "cache"))
        assert main(["train", f"run={folder / 'run'}", *TOY, SETS, "trainer.max_steps=4"]) == 0
    return folder / "run"


STREAM = ["data.streaming=true", "data.buffer_pairs=7"]


@pytest.mark.parametrize("more", [[], pytest.param(STREAM, marks=pytest.mark.slow)])
def test_a_resumed_run_sees_the_modified_pairs_of_one_left_alone(
    run: Path, tmp_path: Path, more: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NMT_CACHE", str(tmp_path / "cache"))
    straight = run
    if more:
        straight = tmp_path / "straight"
        assert main(["train", f"run={straight}", *TOY, *more, "trainer.max_steps=4"]) == 0
    for steps in (2, 4):
        assert main(["train", f"run={tmp_path / 'run'}", *TOY, *more, f"trainer.max_steps={steps}"]) == 0
    model = "checkpoints/step_00000004/model.safetensors"
    assert (tmp_path / "run" / model).read_bytes() == (straight / model).read_bytes()
    log = (straight / "train.log").read_text()
    told = re.findall(
        r"buffer (\d+): 7 pairs read" if more else r"modified for epoch (\d+): 10 pairs read", log
    )
    assert [int(number) for number in told] == [*range(1, len(told) + 1)]
    assert len(told) > 1


def test_one_corpus_alone_is_modified_and_has_a_domain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NMT_CACHE", str(tmp_path / "cache"))
    noise = "[{name: drop_words, rate: 1, words: 1}, {name: mask_words, rate: 1}, {name: terms, rate: 1}]"
    corpora = f"{{plain: {{name: toy}}, noised: {{name: toy, tag: bt, domain: med, augment: {noise}}}}}"
    mixture = [TOY[0], "data=mixture", *TOY[2:-1], "data.tgt=fr", f"data.corpora={corpora}"]
    short = ["trainer.best_metric=loss", "data.max_tokens=256", "trainer.batch_tokens=600"]
    short.append("sets={told: {name: toy, domain: med}}")
    assert main(["train", f"run={tmp_path / 'run'}", *mixture, *short, "trainer.max_steps=1"]) == 0
    run = open_run(tmp_path / "run")
    pieces = [piece.text for piece in run.tokenizer.src_pieces(["<bt> a <mask>"])[0]]
    assert {"<bt>", "<mask>"} <= set(pieces)
    assert run.knows_terms  # which no corpus but the second has
    told = [*(tmp_path / "run" / "data").rglob("*told*/validation.en")]
    assert all(line.startswith("<domain:med> ") for line in written_lines(*told))
    kept = written_lines(tmp_path / "run" / "data" / "validation.en")
    assert [line.startswith("<domain:med> ") for line in kept] == [False] * 10 + [True] * 10
    assert "modified for epoch 1: 20 pairs read" in (tmp_path / "run" / "train.log").read_text()


def test_a_run_learns_terms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tokenizer is trained before the words of the training pairs are aligned."""
    monkeypatch.setenv("NMT_CACHE", str(tmp_path / "cache"))
    terms = "data.augment=[{name: upper_case, rate: 0.2}, {name: terms, rate: 1.0, replaced: 0.5}]"
    short = ["data.max_tokens=256", "trainer.batch_tokens=300", "trainer.max_steps=1"]
    assert (
        main(["train", f"run={tmp_path / 'run'}", *TOY[:-1], "trainer.best_metric=loss", *short, terms]) == 0
    )
    assert open_run(tmp_path / "run").knows_terms


def test_a_run_learns_matches_and_resumes_as_if_it_was_never_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NMT_CACHE", str(tmp_path / "cache"))
    keys = [*TOY[:-1], "data.augment=[{name: matches, rate: 0.8, least: 0.3}, {name: terms, rate: 0.5}]"]
    for name, steps in (("straight", 4), ("run", 2), ("run", 4)):
        assert main(["train", f"run={tmp_path / name}", *keys, f"trainer.max_steps={steps}"]) == 0
    log = (tmp_path / "straight" / "train.log").read_text()
    found = re.search(r"matches: (\d+) of \d+ pairs have one of 0.3 or more", log)
    assert found
    assert int(found[1]) > 4
    model = "checkpoints/step_00000004/model.safetensors"
    assert (tmp_path / "run" / model).read_bytes() == (tmp_path / "straight" / model).read_bytes()
    assert MATCH_MARK in open_run(tmp_path / "run").cfg.data.symbols


def test_augmented_sets_are_scored_beside_the_plain_ones(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = json.loads((run / "results.json").read_text())
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    validation = next(line for line in lines if "valid/chrf" in line)
    for name in USUAL:
        assert validation[f"valid/{name}/chrf"] == results["sets"][name]["validation"]["chrf"]
    plain = written_lines(run / "data" / "test.en")
    assert written_lines(run / "data" / "upper" / "test.en") == [line.upper() for line in plain]
    assert written_lines(run / "data" / "typos" / "test.en") != plain
    assert main(["evaluate", f"run={run}"]) == 0
    for name in USUAL:
        stored = json.loads((run / "evaluations" / f"test-{name}.json").read_text())
        assert stored["scores"] == results["sets"][name]["test"]
        assert stored["data"]["augment"][0]["rate"] == 1.0
    assert "\ntest-upper  chrF " in capsys.readouterr().out


def test_scores_of_sets_outlive_a_disk_without_room_for_their_translations(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = SetEvaluations.write

    def full(self: SetEvaluations, found: Mapping[str, Scores], where: str) -> None:
        if "/" in where:  # of a validation, which training can do without
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, found, where)

    monkeypatch.setenv("NMT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(SetEvaluations, "write", full)
    assert main(["train", f"run={tmp_path / 'run'}", *TOY, SETS, "trainer.max_steps=4"]) == 0
    warning = "hypotheses cannot be written: No space left on device; training goes on"
    assert warning in capsys.readouterr().err
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    validation = next(line for line in lines if "valid/chrf" in line)
    results = json.loads((run / "results.json").read_text())
    for name in USUAL:
        assert validation[f"valid/{name}/chrf"] == results["sets"][name]["validation"]["chrf"]


def test_a_run_without_sets_is_scored_on_augmented_ones_of_its_own_copies(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied = shutil.copytree(run, tmp_path / "run")
    config = (copied / "config.yaml").read_text()
    begin = config.index("\nsets:")
    (copied / "config.yaml").write_text(config[:begin] + "\nsets: {}\n")
    assert "augmented" in config[begin:]
    for name in USUAL:
        shutil.rmtree(copied / "data" / name)
    sealed = json.loads((copied / "MANIFEST.json").read_text())
    kept = {key: digest for key, digest in sealed.items() if "config" not in key and key.count("/") < 2}
    (copied / "MANIFEST.json").write_text(json.dumps(kept))
    assert main(["evaluate", f"run={copied}", "sets={loud: {augment: [upper_case]}}"]) == 0
    results = json.loads((run / "results.json").read_text())
    stored = next((copied / "evaluations").glob("test-loud-*.json"))
    assert json.loads(stored.read_text())["scores"] == results["sets"]["upper"]["test"]
