"""Validations before the end of a training, whose search and pairs may be others than those of the end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nmt.cli import main
from nmt.data.parallel_text import ParallelText
from nmt.errors import UserError
from nmt.runs.opening import open_run
from nmt.runs.validation import validator
from nmt.runtime_config import RuntimeConfig
from nmt.training.tracking.configs import TrackingConfig
from nmt.training.tracking.sinks import TrackedRun, Tracker
from tests.runs.untrained import untrained
from tests.training.tracking.test_sinks import TOY


def words(file: Path) -> list[int]:
    return [len(line.split()) for line in file.read_text().splitlines()]


def test_a_mean_over_languages_needs_pairs_of_several(tmp_path: Path) -> None:
    corpora = "data.corpora={there: {name: toy}, back: {name: toy, src: fr, tgt: en}}"
    data = ("data=mixture", "data.tgt=fr", corpora, "data.target_tags=true")
    lines = [f"<2{tgt}> {letter}b c" for tgt in ("fr", "en") for letter in "abc"]

    def validated(name: str, *overrides: str) -> dict[str, float]:
        path = untrained(
            tmp_path / name, *overrides, "trainer.best_metric=macro_chrf", data=data, lines=lines
        )
        run = open_run(path, runtime_cfg=RuntimeConfig(device="cpu"))
        return validator(run, run.directory, Tracker(TrackedRun(path), TrackingConfig(sinks=[])))(1)

    with pytest.raises(
        UserError,
        match=r"^trainer.best_metric=macro_chrf is a mean over target languages, but "
        r"the pairs of num_validation_pairs=1 are all into fr; score more, or set trainer.best_",
    ):
        validated("few", "num_validation_pairs=1")
    found = validated("most", "num_validation_pairs=2")
    assert {"valid/macro_chrf", "valid/into_fr/chrf", "valid/into_en/chrf"} <= found.keys()


def test_references_that_no_score_can_do_justice_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(name: str, targets: list[str], *overrides: str) -> str:
        path = untrained(tmp_path / name, *overrides, lines=["ab c"] * 8, tgt=targets)
        run = open_run(path, runtime_cfg=RuntimeConfig(device="cpu"))
        sinks = TrackingConfig(sinks=["display"])
        with Tracker(TrackedRun(path), sinks) as tracker:
            validator(run, run.directory, tracker)
        return capsys.readouterr().err

    usual = ["ab c"] * 8
    assert "warning" not in told("usual", usual)
    assert (
        "warning: 5 of 6 validation references are longer than a translation may be, which has "
        "decoding.max_length_ratio=1 times the tokens of the source and decoding.max_length_offset=3 more; "
        "raise one of them\n"
    ) in told("long", [*["abc" * 9] * 5, *usual[5:]], "decoding.max_length_ratio=1")
    assert "warning" not in told("few", [*["abc" * 9] * 4, *usual[4:]], "decoding.max_length_ratio=1")
    joined = ["abc" * 20] * 8
    assert "hardly any spaces, but BLEU counts words between them; set scoring.tokenize=char" in told(
        "joined", joined
    )
    assert "hardly any spaces" not in told("char", joined, "scoring.tokenize=char")
    assert "hardly any spaces" not in told("chrf", joined, "metrics=[chrf]")


def test_validations_may_search_less_than_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the end a translation has one word at most, at the end three at least."""
    monkeypatch.setenv("NMT_CACHE", str(tmp_path / "cache"))
    run, cut = tmp_path / "run", "max_length_ratio: 0, max_length_offset: 2, min_length: 0"
    arguments = ["train", f"run={run}", *TOY, "sets={more: {name: toy}}", "decoding.min_length=3"]
    short = [f"validation_decoding={{{cut}}}", "num_validation_pairs=4"]
    assert main([*arguments, *short, "trainer.max_tokens=80"]) == 0
    out, err = capsys.readouterr()
    told = f"the first 4 pairs with {cut.replace(': ', '=').replace(', ', ' and ')}"
    assert f"\na validation translates {told}; at the end decoding translates all pairs\n" in err
    assert f", the best; chosen by the translations of {told}\n" in out
    assert "\nan update has 1 batch of at most 32 tokens, padding included\n" in err
    assert "\nwarning: trainer.max_tokens=80 ends the training after so many target tokens, of which" in err
    folder, results = run / "hypotheses", json.loads((run / "results.json").read_text())
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    validated = {one["step"]: one for one in records if "valid/loss" in one}
    for step in validated:
        for place in (folder / "validation", folder / "more" / "validation"):
            found = words(place / f"step_{step:08d}.fr")
            assert (len(found), max(found) <= 1) == (4, True)
    for file in (folder / "validation.fr", folder / "test.fr", folder / "more" / "validation.fr"):
        found = words(file)
        assert (len(found), min(found) >= 3) == (10, True)
    best = validated[results["step"]]
    assert best["valid/loss"] == results["validation"]["loss"]  # of all pairs
    assert best["valid/chrf"] != results["validation"]["chrf"]
    more = ["validation_decoding=null", "num_validation_pairs=null", "trainer.max_tokens=200"]
    assert main([*arguments, *more]) == 0  # both may change when a run goes on
    assert "chosen by" not in capsys.readouterr().out
    newest = max((folder / "validation").iterdir())
    assert (len(words(newest)), min(words(newest)) >= 3) == (10, True)
    assert max(validated) < int(newest.stem.removeprefix("step_"))


def test_some_pairs_of_a_mixture_are_of_all_its_corpora(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 10 pairs of each corpus, with the tag of its target language, a quarter."""
    monkeypatch.setenv("NMT_CACHE", str(tmp_path / "cache"))
    corpora = "data.corpora={there: {name: toy}, back: {name: toy, src: fr, tgt: en}}"
    data = ["data=mixture", corpora, "data.src=en", "data.tgt=fr", "data.target_tags=true"]
    arguments = ["train", f"run={tmp_path}/run", *TOY, *data, "num_validation_pairs=5"]
    assert main([*arguments, "trainer.max_steps=2", "trainer.best_metric=macro_chrf"]) == 0
    told = capsys.readouterr()
    assert "\na validation translates 5 evenly spaced pairs; at the end decoding translates all" in told.err
    (validated,) = (tmp_path / "run" / "hypotheses" / "validation").iterdir()
    assert len(words(validated)) == 5
    records = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    (found,) = (one for one in records if "valid/loss" in one)
    assert {"valid/into_fr/chrf", "valid/into_en/chrf"} <= found.keys()


def test_pairs_at_even_distances_keep_all_that_they_have() -> None:
    numbers = list(map(str, range(7)))
    text = ParallelText(numbers, numbers, [numbers], [float(x) for x in numbers])
    some = text.spread(3)
    assert (some.src, some.tgt, some.references) == (["0", "2", "4"], ["0", "2", "4"], [["0", "2", "4"]])
    assert some.weights == [0.0, 2.0, 4.0]
    assert text.spread(9) == text
    assert ParallelText(numbers, numbers).spread(2) == ParallelText(["0", "3"], ["0", "3"])
