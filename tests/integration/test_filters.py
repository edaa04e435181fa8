"""Runs on filtered training pairs, through the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from nmt.cli import main
from nmt.data.cleaning import filtering
from nmt.doctor import language

TOY = [
    *("experiment=none", "tokenizer=char", "model=transformer_tiny", "model.d_model=16", "model.d_ff=32"),
    *("model.num_heads=2", "model.encoder_layers=1", "model.decoder_layers=1", "schedule=constant"),
    *(
        "data.max_tokens=64",
        "trainer.batch_tokens=200",
        "trainer.eval_every_steps=4",
        "trainer.save_every_steps=2",
    ),
    *("runtime.device=cpu", "runtime.kernels=false", "decoding=greedy", "metrics=[chrf]"),
    *("tracking.sinks=[jsonl,train_log]", "trainer.best_metric=loss"),
]
FILTERS = "data.filters=[{name: duplicates, normalise: true}, {name: overlap}, {name: length, max: 15}]"
DROPPED = ("duplicates dropped 2 of 60 pairs (3.33%)", "overlap dropped 3 of 58", "length dropped 19 of 55")
MIXTURE = [
    *("data=mixture", "data.src=en", "data.tgt=de", "data.scored_split=validation"),
    "data.corpora={one: {train: train, validation: dev, filters: [{name: overlap}]}, "
    "two: {train: train, filters: [{name: length, max: 15}]}}",
    "data.filters=[{name: duplicates, normalise: true}]",
]


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the arguments for 60 pairs: 2 are there again in capitals, 3 are scored on, 20 are long."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NMT_CACHE", str(tmp_path / "cache"))
    lines = [f"a {'b' * (i % 7)} c{i}" for i in range(38)]
    lines += [lines[0].upper(), lines[1].upper(), *(f"quite a long line {i}" for i in range(20))]
    scored = [*lines[2:4], lines[45], "other", "lines"]
    for split, text in (("train", lines), ("dev", scored)):
        for side in ("en", "de"):
            Path(f"{split}.{side}").write_text("".join(f"{line}\n" for line in text))
    return ["data=files", "data.train=train", "data.validation=dev", "data.scored_split=validation"]


def trained(run: str, *arguments: str, steps: int = 4) -> bytes:
    """Train, and return the weights."""
    assert main(["train", f"run={run}", *TOY, *arguments, f"trainer.max_steps={steps}"]) == 0
    return Path(run, f"checkpoints/step_{steps:08}/model.safetensors").read_bytes()


def test_a_run_is_prepared_trained_and_resumed_on_what_filters_keep(
    corpus: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(language, "languages_of", lambda lines, name: language.Languages(name))
    assert main(["doctor", *corpus, FILTERS]) == 0
    by_doctor = " ".join(capsys.readouterr().out.split())
    assert main(["prepare", *corpus, FILTERS, "tokenizer=char"]) == 0
    prepared = capsys.readouterr().err
    monkeypatch.setattr(filtering._Run, "dropped_by", None)  # the filters run once
    for steps in (2, 4):
        trained("run", *corpus, FILTERS, steps=steps)
    log = Path("run/train.log").read_text()
    for told in DROPPED:
        assert told in by_doctor
        assert told in prepared
        assert told in log
    assert "60 pairs read, 36 kept (duplicates 2, overlap 3, length 19)" in log
    assert main(["train", "run=run", *TOY, *corpus, "data.filters=[]", "trainer.max_steps=6"]) == 2
    assert "data.filters" in capsys.readouterr().err


@pytest.mark.slow
def test_a_resumed_run_is_one_left_alone(corpus: list[str]) -> None:
    straight = trained("straight", *corpus, FILTERS)
    trained("resumed", *corpus, FILTERS, steps=2)
    assert trained("resumed", *corpus, FILTERS) == straight


def test_entries_of_a_mixture_have_filters_behind_those_of_the_data(
    corpus: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prepare", *MIXTURE, "tokenizer=char"]) == 0
    log = capsys.readouterr().err
    assert "training data of one: 60 pairs read, 55 kept (duplicates 2, overlap 3)" in log
    assert "training data of two: 60 pairs read, 38 kept (duplicates 2, length 20)" in log


def test_what_is_kept_and_dropped_is_written(
    corpus: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With limits and weights; what is kept is a corpus, and nothing is lost."""
    with Path("train.en").open("a") as src, Path("train.de").open("a") as tgt:
        src.write("\nc99\ta b\n")
        tgt.write("c1\nc99\ta\n")
    Path("w").write_text("".join(f"{1 + i / 7}\n" for i in range(62)))
    monkeypatch.setattr(filtering, "BLOCK_PAIRS", 8)
    numbers = (
        "data.filters=[{name: duplicates, normalise: true}, {name: length, max: 15}, {name: numbers, max: 1}]"
    )
    command = ["prepare", *corpus, numbers, "data.weights=w", "tokenizer=char", "prepare.filtered=clean"]
    assert main(command) == 0
    assert "training data: 39 pairs are in clean/kept.*, 23 in clean/dropped.tsv" in capsys.readouterr().err
    lines = [
        list(zip(*(Path(f"{at}.{side}").read_text().splitlines() for side in ("en", "de")), strict=True))
        for at in ("train", "clean/kept")
    ]
    header, *rows = [line.split("\t") for line in Path("clean/dropped.tsv").read_text().splitlines()]
    assert header == ["filter", "pair", "value", "source", "target"]
    assert [rows[i][:3] for i in (0, 1, 2, -1)] == [
        ["duplicates", "39", ""],
        ["duplicates", "40", ""],
        ["length", "41", "19/19"],
        ["empty", "61", ""],
    ]
    dropped = {int(row[1]) - 1: (row[3], row[4]) for row in rows}
    assert dropped == {i: lines[0][i] for i in dropped}
    left = [i for i in range(62) if i not in dropped]
    assert lines[1] == [lines[0][i] for i in left]
    assert Path("clean/kept.weights").read_text().splitlines() == [str(1 + i / 7) for i in left]
    assert main(command) == 0
    assert " in clean/dropped.tsv, in place of those of before\n" in capsys.readouterr().err
    Path("other").mkdir()
    Path("other/kept.de").write_text("mine\n")
    assert main([*command[:-1], "prepare.filtered=other"]) == 2
    assert "error: prepare.filtered=other: other/kept.de is there, and not of an" in capsys.readouterr().err
    assert Path("other/kept.de").read_text() == "mine\n"
    for place in ("clean/kept", "clean/k*", "cl?an/kept", "clean/kept.{lang}", "x/../clean/kept", "*/kept"):
        assert main([*command, f"data.train='{place}'"]) == 2
        assert f"prepare.filtered=clean: {place} is read from there; name" in capsys.readouterr().err
    assert main([*command, "data.weights=clean/kept.weights"]) == 2
    assert "clean/kept.weights is read from there" in capsys.readouterr().err
    assert main([*command[:-1], "data.train=clean/kept", "data.weights=clean/kept.weights"]) == 0
    assert "training data: 39 pairs read, 39 kept\n" in capsys.readouterr().err


def test_each_corpus_of_a_mixture_has_files_of_its_own(
    corpus: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("w").write_text("0.1\n" * 60)
    more = "data.target_tags=true", "data.corpora.two.weights=w", "data.corpora.two.loss_weight=3"
    assert main(["prepare", *MIXTURE, *more, "tokenizer=char", "prepare.filtered=clean"]) == 0
    found = {name: Path("clean", name, "kept.en").read_text().splitlines() for name in ("one", "two")}
    assert {name: (len(lines), lines[0]) for name, lines in found.items()} == {
        "one": (55, "a  c0"),
        "two": (38, "a  c0"),
    }
    assert Path("clean/two/kept.weights").read_text() == "0.1\n" * 38  # of the corpus, not of the mixture
    assert len(Path("clean/two/dropped.tsv").read_text().splitlines()) == 1 + 22


def test_what_needs_all_pairs_is_refused_in_a_stream(
    corpus: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "run=none", *TOY, *corpus, FILTERS, "data.streaming=true"]) == 2
    assert "data.filters[0]: duplicates needs all pairs at once" in capsys.readouterr().err


def test_earlier_corpora_are_those_of_a_mixture(
    corpus: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    earlier = "data.filters=[{name: duplicates, earlier: true}]"
    assert main(["prepare", *corpus, earlier]) == 2
    assert "data.filters[0].earlier is for the corpora of data=mixture" in capsys.readouterr().err
    assert main(["prepare", *MIXTURE[:-1], earlier, "tokenizer=char"]) == 2
    assert (
        "no training pair of data.corpora.two is left: 60 pairs read, 0 kept (duplicates 60)"
        in capsys.readouterr().err
    )
