"""Validations before the end of a training, whose search and pairs may be others than those of the end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nmt.cli import main
from tests.training.test_tracking import TOY


def words(file: Path) -> list[int]:
    return [len(line.split()) for line in file.read_text().splitlines()]


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
