"""Runs on repaired training pairs, through the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from nmt import extras
from nmt.cli import main
from nmt.data.cleaning import repairs
from nmt.doctor import language
from tests.integration.test_filters import TOY

FIXERS = "data.fixers=[html_entities, spaces]"
FAULTS = {3: "a &amp;amp; b", 5: "a &amp; b", 8: " a  b", 9: "a b"}


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the arguments for 40 pairs: three sources have faults, and two pairs repeat when repaired."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NMT_CACHE", str(tmp_path / "cache"))
    for split, size in (("train", 40), ("dev", 10)):
        lines = [f"x {'b' * (i % 7 + 1)} c{i}" for i in range(size)]
        targets = ["t" if i in FAULTS else line for i, line in enumerate(lines)]
        lines = [FAULTS.get(i, line) for i, line in enumerate(lines)]
        for side, text in (("en", lines), ("de", targets)):
            Path(f"{split}.{side}").write_text("".join(f"{line}\n" for line in text))
    return ["data=files", "data.train=train", "data.validation=dev", "data.scored_split=validation"]


def test_training_pairs_are_repaired_before_filters_and_no_others(
    corpus: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is written, encoded and told is the same, and the account is made once."""
    monkeypatch.setattr(language, "languages_of", lambda lines, name: language.Languages(name))
    assert main(["doctor", *corpus]) == 0
    advice = " ".join(capsys.readouterr().out.split())
    assert "2 (5%) pairs have HTML tags or entities" in advice
    assert "data.fixers=[html_entities, html_tags] repairs such pairs" in advice
    assert main(["doctor", *corpus, FIXERS]) == 0
    told = "html_entities changed 2 of 40 pairs (5.00%), such as 'a &amp;"
    found = " ".join(capsys.readouterr().out.split())
    assert told in found
    assert "train: 2 (5%) pairs have HTML" not in found
    duplicates = "data.filters=[duplicates]"
    command = ["prepare", *corpus, FIXERS, duplicates, "tokenizer=char", "prepare.filtered=clean"]
    assert main([*command, "prepare.workers=1"]) == 0
    log = capsys.readouterr().err
    assert told in log
    assert "fixer spaces changed 1 of 40 pairs (2.50%), such as ' a  b' to 'a b'" in log
    assert "filter duplicates dropped 2 of 40 pairs" in log
    train = Path("train.en").read_text().splitlines()
    kept = [{3: "a & b", 8: "a b"}.get(i, line) for i, line in enumerate(train) if i not in (5, 9)]
    assert Path("clean/kept.en").read_text().splitlines() == kept
    table = Path(log.split("some changes of each fixer: ")[1].split("\n")[0]).read_text().splitlines()
    assert table == [
        "html_entities\t4\tsource\ta &amp;amp; b\ta & b",
        "html_entities\t6\tsource\ta &amp; b\ta & b",
        "spaces\t9\tsource\t a  b\ta b",
    ]
    monkeypatch.setattr(repairs, "_counted", None)  # the account is in the cache
    run = ["train", "run=run", *TOY, *corpus, duplicates]
    assert main([*run, FIXERS, "trainer.max_steps=2"]) == 0
    assert told in Path("run/train.log").read_text()
    assert Path("run/data/validation.en").read_text() == Path("dev.en").read_text()
    assert main([*run, "data.fixers=[spaces]", "trainer.max_steps=4"]) == 2
    assert "data.fixers" in capsys.readouterr().err


def test_corpora_of_a_mixture_have_fixers_behind_those_of_the_data(
    corpus: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    mixture = [
        *(
            "data=mixture",
            "data.scored_split=validation",
            "data.fixers=[html_entities]",
            "data.target_tags=true",
        ),
        "data.corpora={one: {train: train, validation: dev, fixers: [spaces]}, two: {train: train}}",
    ]
    assert main(["prepare", *mixture, "tokenizer=char", "prepare.filtered=clean"]) == 0
    log = capsys.readouterr().err
    assert "training data of one: fixer spaces changed 1 of 40 pairs" in log
    assert "training data of two: fixer html_entities changed 2 of 40 pairs" in log
    assert "training data of two: fixer spaces" not in log
    found = {name: Path(f"clean/{name}/kept.en").read_text().splitlines() for name in ("one", "two")}
    assert {name: (lines[3], lines[8]) for name, lines in found.items()} == {
        "one": ("a & b", "a b"),
        "two": ("a & b", " a  b"),
    }
    wrong = mixture[-1].replace("[spaces]", "[space]")
    assert main(["prepare", *mixture[:-1], wrong]) == 2
    assert "data.corpora.one.fixers[0].name must be one of" in capsys.readouterr().err


def test_fixers_are_for_pairs_to_translate(corpus: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    text = ["data=text", "data.train=train.en", "data.validation=dev.en", "data.scored_split=validation"]
    assert main(["train", "run=run", "task=language_model", "model=gpt", *text, FIXERS]) == 2
    assert "data.fixers is for pairs to translate; with task=language_model set" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["prepare", "train", "doctor"])
def test_a_library_that_is_missing_is_named(
    corpus: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    monkeypatch.setitem(extras.EXTRAS, "mojibake", extras.Extra(("ftfy",), "a test", ("no_such_module",)))
    run = ["run=run"] if verb == "train" else []
    assert main([verb, *corpus, *run, "data.fixers=[mojibake]"]) == 2
    told = " ".join("".join(capsys.readouterr()).split())
    assert "data.fixers: the fixer mojibake needs ftfy: pip install 'nmt[mojibake]'" in told
