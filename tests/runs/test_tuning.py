"""Keys of the search that are tuned on the validation split when a training ends."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from nmt.cli import main
from nmt.runs.opening import open_run
from nmt.runs.tuning import tuned_values
from nmt.runtime_config import RuntimeConfig
from tests.runs.untrained import WORDS, untrained
from tests.training.tracking.test_sinks import TOY

TRIED = "tuned_decoding={max_length_offset: [2, 9, 4]}"
CPU = RuntimeConfig(device="cpu")
SHORT = ["trainer.best_metric=chrf", "decoding.max_length_ratio=0"]


def results_of(run: Path) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = json.loads((run / "results.json").read_text())
    return found


def scores_of(lines: Sequence[str], metric: str) -> dict[str, float]:
    """Return the scores that the lines tell, by what was tried."""
    start = f"tuning decoding: {metric} "
    told = [line.removeprefix(start).partition(" with ") for line in lines if line.startswith(start)]
    return {key: float(score) for score, _, key in told}


def test_the_best_is_by_the_metric_on_the_first_pairs(tmp_path: Path) -> None:
    """A lower TER is better; sentences are longer from the third on."""
    keys = ("tokenizer=word", "metrics=[ter]", "trainer.best_metric=ter", TRIED)
    longer = [*WORDS[:2], *(f"{words} {words}" for words in WORDS[2:])]
    run = open_run(untrained(tmp_path / "run", *keys, tgt=longer), runtime_cfg=CPU)
    scores = list[dict[str, float]]()
    for number in (None, 2):
        run.cfg.num_validation_pairs, told = number, list[str]()
        values = tuned_values(run, run.directory, told.append)
        scores.append(scores_of(told, "ter"))
        found = scores[-1][f"decoding.max_length_offset={values['max_length_offset']}"]
        assert found == min(scores[-1].values()) < max(scores[-1].values())
    assert scores[0] != scores[1]


def test_the_best_of_the_tried_values_is_the_search_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NMT_CACHE", str(tmp_path / "cache"))
    run, plain = tmp_path / "run", tmp_path / "plain"
    limit = "trainer.max_tokens=80"
    assert main(["train", f"run={run}", *TOY, *SHORT, limit, TRIED]) == 0
    out, err = capsys.readouterr()
    tried = scores_of(err.splitlines(), "chrf")
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
