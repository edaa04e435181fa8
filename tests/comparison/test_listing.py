"""The table of `nmt runs`: order, filters, widths, formats, and folders that are no runs."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from nmt.cli import main
from nmt.comparison.configs import RunsConfig, TableFormat
from nmt.comparison.listing import count, cut, duration, listed, width
from nmt.errors import UserError
from tests.comparison.made import made_export, made_results, made_run, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, (name, bleu, dropout) in enumerate((("b10", 30.0, 0.1), ("b9", 40.0, 0.3), ("z", 35.0, 0.2))):
        results = {"validation": {**made_results()["validation"], "bleu": bleu}}
        run = made_run(tmp_path / "sweep" / name, config={"model.dropout": dropout}, results=results)
        for file in run.glob("*.*"):
            os.utime(file, (time.time() - 7200 + number, time.time() - 7200 + number))
    made_run(tmp_path / "new", finished=False)
    return tmp_path


def table(folder: Path, monkeypatch: pytest.MonkeyPatch, columns: int = 200, **keys: Any) -> list[list[str]]:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = listed(RunsConfig(str(folder), **keys), pytest.fail).replace(f"{folder}/", "")
    return [line.split() for line in text.splitlines()]


def test_a_table_with_a_column_for_each_key_that_differs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, first, *_, last = table(folder, monkeypatch)
    assert head == [
        "run",
        "state",
        "step",
        "valid",
        "BLEU",
        "test",
        "BLEU",
        "params",
        "time",
        "age",
        "dropout",
    ]
    assert first == ["new", "stopped", "40/40", "20.00", "-", "32", "1m", "0s", "0.1"]
    assert last == ["sweep/b10", "done", "40/40", "30.00", "19.00", "32", "1m", "2h", "0.1"]


def test_a_model_that_was_not_trained_here_has_no_steps_and_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_export(tmp_path / "run")
    assert table(tmp_path, monkeypatch)[1][:7] == ["run", "exported", "-", "-", "-", "32", "-"]


def test_the_validation_of_a_named_set_is_not_shown_as_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    news = {"validation": {"bleu": 7.0}, "signatures": {}}
    made_run(tmp_path / "a", results={"sets": {"news": news}, "test": None})
    made_run(tmp_path / "b", results={"sets": {"news": news | {"test": {"bleu": 8.0}}}, "test": None})
    shown = {row[0]: row[4] for row in table(tmp_path, monkeypatch, sort="name")[1:]}
    assert shown == {"a": "-", "b": "8.00"}


@pytest.mark.parametrize(
    ("sort", "names"),
    [
        ("bleu", ["sweep/b9", "sweep/z", "sweep/b10", "new"]),
        ("loss", ["new", "sweep/b10", "sweep/b9", "sweep/z"]),
        ("name", ["new", "sweep/b9", "sweep/b10", "sweep/z"]),
        ("age", ["new", "sweep/z", "sweep/b9", "sweep/b10"]),
        ("dropout", ["new", "sweep/b10", "sweep/z", "sweep/b9"]),
        ("model.dropout", ["new", "sweep/b10", "sweep/z", "sweep/b9"]),
    ],
)
def test_the_order(folder: Path, monkeypatch: pytest.MonkeyPatch, sort: str, names: list[str]) -> None:
    assert [row[0] for row in table(folder, monkeypatch, sort=sort)[1:]] == names


def test_lists_some_of_which_are_empty_and_digits_that_are_no_numbers_are_sorted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, languages in (("5²", ["de", "fr"]), ("10", []), ("9", None), ("a", "de")):
        made_run(tmp_path / name, config={"data.languages": languages})
    assert [row[0] for row in table(tmp_path, monkeypatch, sort="name")[1:]] == ["a", "5²", "9", "10"]
    assert [row[0] for row in table(tmp_path, monkeypatch, sort="languages")[1:]] == ["5²", "10", "a", "9"]


def test_a_number_beyond_all_others_hides_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records: list[dict[str, Any]] = [{"step": 10, "valid/bleu": 9.0}, {"step": 20, "valid/bleu": 10**400}]
    made_run(tmp_path / "a", records=records, finished=False)
    made_run(tmp_path / "b", results={"test": {"bleu": 1}})
    said: list[str] = []
    assert [row[:5] for row in table(tmp_path, monkeypatch, sort="name")[1:2]] == [
        ["a", "stopped", "40/40", "9.00", "-"]
    ]
    results = (tmp_path / "b" / "results.json").read_text().replace('"bleu": 1', f'"bleu": {10**400}')
    write(tmp_path / "b" / "results.json", results)
    assert "a" in listed(RunsConfig(str(tmp_path)), said.append)
    assert said == [
        f"{tmp_path / 'b'} is damaged and not listed: {tmp_path / 'b' / 'results.json'} is damaged: "
        "it has an integer of more than 300 digits"
    ]


def test_the_filters(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [row[0] for row in table(folder, monkeypatch, state="stopped")[1:]] == ["new"]
    rows = table(folder, monkeypatch, state=["done", "failed"], match="*b*", sort="name")
    assert [row[0] for row in rows[1:]] == ["sweep/b9", "sweep/b10"]


def test_lines_fit_a_narrow_terminal_but_for_names_which_are_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {f"model.a_rather_long_name_{number}": number for number in range(9)}
    made_run(folder / "sweep" / ("x" * 70), config=keys)
    made_run(folder / "sweep" / ("y" * 70), config=dict.fromkeys(keys, 0))
    monkeypatch.setenv("COLUMNS", "80")
    lines = listed(RunsConfig(str(folder)), pytest.fail).splitlines()
    runs = [line for line in lines[1:] if not line.startswith(" ")]
    assert sorted(map(Path, runs)) == sorted(file.parent for file in folder.rglob("config.yaml"))
    assert max(len(line) for line in lines if line not in runs) <= 80
    assert sum("more" in line for line in lines) == 2  # what does not fit is counted


def test_a_run_of_another_model_leaves_what_tells_the_others_apart(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run in ("new", *(f"sweep/{name}" for name in ("b9", "b10", "z"))):
        config = yaml.safe_load((folder / run / "config.yaml").read_text())
        config["data"] |= {f"key_{number}": 1 for number in range(20)}
        write(folder / run / "config.yaml", yaml.safe_dump(config))
    own = {f"data.key_{number}": 2 for number in range(20)}
    made_run(folder / "other", config={"task": "language_model", "model.name": "decoder_only", **own})
    lines = table(folder, monkeypatch, 80, sort="name")
    settings = [line for line in lines if line[0].startswith("task=")]
    assert settings[0] == ["task=translation", "model.name=transformer", "dropout=0.1"]
    assert settings[-1] == ["task=translation", "model.name=transformer", "dropout=0.2"]
    assert settings[1][:3] == ["task=language_model", "model.name=decoder_only", "key_0=2"]


def test_the_reason_of_a_failure_is_below_the_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status = {"state": "failed", "reason": "data.path is not there: " + "far away " * 60}
    write(folder / "new" / "status.json", json.dumps(status))
    head, _, *reason = table(folder, monkeypatch, state="failed")
    assert head[0] == "run"
    assert reason[0][:5] == ["failed:", "data.path", "is", "not", "there:"]
    assert len(reason) == 2
    assert reason[1][-1] == "…"


def test_the_search_of_validations_is_told_where_the_scores_are_theirs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("new", "sweep/z"):
        config = yaml.safe_load((folder / name / "config.yaml").read_text())
        config |= {"validation_decoding": {"beam_size": 1}, "num_validation_pairs": None}
        write(folder / name / "config.yaml", yaml.safe_dump(config))
    told = [line for line in table(folder, monkeypatch) if line[0] == "validated"]
    assert told == [["validated", "with", "validation_decoding.beam_size=1"]]  # sweep/z is done


def test_csv_and_json_have_full_keys_and_all_scores(folder: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(listed(RunsConfig(str(folder), format=TableFormat.csv), print))))
    objects = json.loads(listed(RunsConfig(str(folder), format=TableFormat.json), print))
    assert [row["name"] for row in rows] == [one["name"] for one in objects]
    row, one = rows[1], objects[1]
    assert row["model.dropout"] == "0.2"
    assert one["config"] == {"model.dropout": 0.2}
    assert float(row["test/bleu"]) == one["test/bleu"] == 19.0
    assert rows[0]["test/bleu"] == ""
    assert one["train_seconds"] == 62.5


def test_a_score_that_is_no_number_is_null(tmp_path: Path) -> None:
    made_run(tmp_path / "run", results={"validation": {"loss": "nan", "bleu": "inf"}})
    (one,) = json.loads(listed(RunsConfig(str(tmp_path), format=TableFormat.json), print))
    assert one["validation/loss"] is None
    assert one["validation/bleu"] is None


def test_numbers_of_configs_that_json_lacks_are_null_and_none_is_rounded(tmp_path: Path) -> None:
    for name, ratio in (("a", math.inf), ("b", 0.12345678)):
        config = {"data.max_ratio": ratio, "data.shares": [1e-9, ratio, {"x": ratio}]}
        made_run(tmp_path / name, config=config)
    first, second = json.loads(listed(RunsConfig(str(tmp_path), sort="name", format=TableFormat.json), print))
    assert first["config"] == {"data.max_ratio": None, "data.shares": [1e-9, None, {"x": None}]}
    assert second["config"]["data.max_ratio"] == 0.12345678
    text = listed(RunsConfig(str(tmp_path), sort="name", format=TableFormat.csv), print)
    first, second = csv.DictReader(io.StringIO(text))
    assert (first["data.max_ratio"], second["data.max_ratio"]) == ("inf", "0.12345678")
    assert second["data.shares"] == "[1e-09,0.12345678,{'x': 0.12345678}]"


@pytest.mark.parametrize("score", ["token_accuracy", "news/bleu", "into_de/macro_chrf", "loss", "news/ter"])
def test_scores_of_any_kind_are_sorted_the_best_first(
    score: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = 1.0 if score in ("loss", "news/ter") else 3.0
    for name, value in (("a", 2.0), ("b", 4.0 - best), ("c", best)):
        made_run(tmp_path / name, records=[{"step": 9, "valid/bleu": 1.0, f"valid/{score}": value}])
        (tmp_path / name / "results.json").unlink()
    assert [row[0] for row in table(tmp_path, monkeypatch, sort=score)[1:]] == ["c", "a", "b"]


def test_damaged_and_foreign_folders_are_named_and_the_rest_is_listed(folder: Path) -> None:
    write(folder / "sweep" / "z" / "results.json", "{")
    (folder / "new" / "config.yaml").unlink()
    write(folder / "other" / "config.yaml", "a: 1")
    said: list[str] = []
    lines = listed(RunsConfig(str(folder)), said.append).splitlines()
    assert len(said) == 3
    assert f"{folder / 'new'} has files of a run but no config.yaml" in said[0]
    assert "other is damaged" in said[1]
    assert "not the config of a training" in said[1]
    assert "results.json is damaged" in said[2]
    assert [Path(line).name for line in lines if not line.startswith(" ")] == ["run", "b9", "b10"]


def test_names_are_shown_without_escape_codes(tmp_path: Path) -> None:
    made_run(tmp_path / "b\nc")
    made_run(tmp_path / "a\x1b[2J", config={"seed": "\x1b[2J"})
    made_run(tmp_path / "b")
    shown = listed(RunsConfig(str(tmp_path)), print)
    assert "\x1b" not in shown
    assert "b\\x0ac" in shown


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"folder": "nowhere"}, "folder=nowhere is not a directory; say nmt runs FOLDER"),
        ({"state": "finished"}, "state must be one or several of done, running,"),
        ({"state": "damaged"}, "but is 'damaged'"),  # such a folder is named, and has no state
        ({"sort": "blue"}, "sort must be one of name, state,.*did you mean 'bleu'"),
    ],
)
def test_mistakes(folder: Path, keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        listed(RunsConfig(**{"folder": str(folder), **keys}), print)


def test_a_folder_without_runs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no run in"):
        listed(RunsConfig(str(tmp_path)), print)


def test_the_command_takes_a_folder_without_its_key(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(folder), "sort=bleu"]) == 0
    assert capsys.readouterr().out.startswith("run")
    assert main(["runs", str(folder), str(folder / "sweep")]) == 2


def test_numbers_for_people() -> None:
    assert [count(x) for x in (None, 12, 1234, 4978688, 2.7e14)] == ["-", "12", "1.23k", "4.98M", "270T"]
    times = [duration(x) for x in (None, 7.4, 130, 10141.7, 200000)]
    assert times == ["-", "7s", "2m", "2h49m", "2d7h"]
    assert (cut("abcdefghij", 5), width("中文é")) == ("ab…ij", 5)
