"""Keys of the search that are tuned on the validation split when a training ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from nmt.cli import main
from nmt.runs.opening import open_run
from tests.training.test_tracking import TOY

TRIED = "tuned_decoding={max_length_offset: [2, 9, 4]}"
SHORT = ["trainer.best_metric=chrf", "decoding.max_length_ratio=0"]


def results_of(run: Path) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = json.loads((run / "results.json").read_text())
    return found


def test_the_best_of_the_tried_values_is_the_search_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NMT_CACHE", str(tmp_path / "cache"))
    run, plain = tmp_path / "run", tmp_path / "plain"
    limit = "trainer.max_tokens=80"
    assert main(["train", f"run={run}", *TOY, *SHORT, limit, TRIED]) == 0
    out, err = capsys.readouterr()
    tried = {}
    for line in err.splitlines():
        if line.startswith("tuning decoding: chrf "):
            score, _, key = line.removeprefix("tuning decoding: chrf ").partition(" with ")
            tried[key] = float(score)
    assert list(tried) == [f"decoding.max_length_offset={value}" for value in (2, 9, 4)]
    assert len({*tried.values()}) > 1
    best = max(tried, key=lambda key: tried[key])
    assert f"\nsearch      {best}, best on validation\n" in out
    results = results_of(run)
    assert results["tuned_decoding"] == {"max_length_offset": int(best.partition("=")[2])}
    assert round(results["validation"]["chrf"], 2) == tried[best]
    assert (
        yaml.safe_load((run / "config.yaml").read_text())["decoding"]["max_length_offset"] == 10
    )  # as it was typed

    assert main(["evaluate", f"run={run}"]) == 0  # without a word about it
    assert json.loads((run / "results.json").read_text()) == results
    assert results_of(run)["test"]["chrf"] == results["test"]["chrf"]
    assert open_run(run).cfg.decoding.max_length_offset == results["tuned_decoding"]["max_length_offset"]
    written = (run / "results.json").read_bytes()
    (run / "results.json").write_text("{")
    assert main(["evaluate", f"run={run}"]) == 2
    assert f"; restore it, or remove it, and nmt train run={run} scores the" in capsys.readouterr().err
    (run / "results.json").write_bytes(written)
    capsys.readouterr()
    assert main(["train", f"run={run}", *TOY, *SHORT, limit, TRIED]) == 0
    out, _ = capsys.readouterr()
    assert out.startswith(f"{run} is finished:")
    assert best in out

    longer = "trainer.max_tokens=160"
    assert main(["train", f"run={run}", longer]) == 0  # its validations search as before the end
    assert main(["train", f"run={plain}", *TOY, *SHORT, longer, TRIED]) == 0
    again, straight = results_of(run), results_of(plain)
    assert (again["tuned_decoding"], again["test"]) == (straight["tuned_decoding"], straight["test"])
    values = [
        [json.loads(line).get("valid/chrf") for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (run, plain)
    ]
    assert [x for x in values[0] if x is not None] == [x for x in values[1] if x is not None]


def test_what_cannot_be_searched_with_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NMT_CACHE", str(tmp_path / "cache"))
    gone = ["tuned_decoding={allowed: [/nofile, null]}", f"run={tmp_path / 'run'}"]
    assert main(["train", *TOY, *gone]) == 2
    _, err = capsys.readouterr()
    assert "error: decoding.allowed: /nofile cannot be read" in err
    assert "validation at step" not in err


def test_nothing_is_tried_where_no_search_is_better_than_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NMT_CACHE", str(tmp_path / "cache"))
    run = tmp_path / "run"
    of_loss = ["trainer.max_tokens=80", "trainer.best_metric=loss"]
    assert main(["train", f"run={run}", *TOY, *of_loss, TRIED]) == 0
    out, err = capsys.readouterr()
    told = "\ntuned_decoding tries nothing: trainer.best_metric=loss is the same for all searches\n"
    assert told in err
    assert "\nsearch " not in out
    assert "tuned_decoding" not in results_of(run)
