"""Stages are made once, appear whole, and are refused when they are not as they were made."""

from __future__ import annotations

import errno
import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from nmt.errors import TrainingStopped, UserError
from nmt.files import locked
from nmt.runs import stages
from nmt.runs.stages import StageFolder


def stage(root: Path, **inputs: Any) -> StageFolder:
    return StageFolder(root, "text", inputs, ("a", "b"))


def fill(folder: Path) -> dict[str, Any]:
    (folder / "a").write_text("1\n2\n")
    (folder / "b").write_text("3\n4\n")
    return {"read": 2}


def never(folder: Path) -> dict[str, Any]:
    raise AssertionError("made twice")


def test_a_stage_is_made_once(tmp_path: Path) -> None:
    first = stage(tmp_path / "all", of="x")
    assert not first.folder.exists()
    assert first.made(fill) == {"read": 2}
    assert first.exists
    assert stage(tmp_path / "all", of="x").made(never) == {"read": 2}
    assert [path.name for path in (tmp_path / "all").iterdir()] == [first.folder.name]


def test_other_inputs_files_or_kinds_are_another_stage(tmp_path: Path) -> None:
    others = [
        stage(tmp_path, of="x"),
        stage(tmp_path, of="y"),
        stage(tmp_path, of="x", by=1.5),
        StageFolder(tmp_path, "pairs", {"of": "x"}, ("a", "b")),
        StageFolder(tmp_path, "text", {"of": "x"}, ("a",)),
    ]
    assert len({other.folder for other in others}) == 5
    assert stage(tmp_path, of="x", by=1).folder == stage(tmp_path, by=1, of="x").folder


def test_a_stage_that_failed_is_not_there_and_goes_on_from_what_was_left(tmp_path: Path) -> None:
    one = stage(tmp_path, of="x")

    def fails(folder: Path) -> dict[str, Any]:
        (folder / "a").write_text("1\n2\n")
        (folder / ".tmp-b.99").write_text("3")
        (folder / "parts").mkdir()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        one.made(fails)
    assert not one.exists

    def goes_on(folder: Path) -> dict[str, Any]:
        assert (folder / "a").read_text() == "1\n2\n"
        return fill(folder)

    one.made(goes_on)
    assert {path.name for path in one.folder.iterdir()} == {"a", "b", "stage.json", ".lock"}


def test_a_stage_that_another_process_makes_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = stage(tmp_path, of="x")
    with ExitStack() as other:
        other.enter_context(locked(one.folder.with_name(f"{one.folder.name}.part"), ""))

        def made_meanwhile(seconds: float) -> None:
            other.close()
            monkeypatch.undo()
            stage(tmp_path, of="x").made(fill)

        monkeypatch.setattr(time, "sleep", made_meanwhile)
        one.made(never)
    assert capsys.readouterr().err.startswith(f"waiting, as {one.folder}.part is in use by process")


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_file_that_has_changed_is_refused(tmp_path: Path, name: str) -> None:
    one = stage(tmp_path, of="x")
    one.made(fill)
    (one.folder / name).write_text("1\n3\n")
    with pytest.raises(
        UserError, match=rf"{name} has changed since it was made: its SHA-256 .*remove the folder"
    ):
        one.made(never)
    (one.folder / name).unlink()
    with pytest.raises(UserError, match=rf"{name} cannot be read: No such file"):
        one.report()


def test_a_stage_in_the_place_of_another_is_refused(tmp_path: Path) -> None:
    one, other = stage(tmp_path, of="x"), stage(tmp_path, of="y")
    one.made(fill)
    os.rename(one.folder, other.folder)
    with pytest.raises(UserError, match=r"was made of something else, by its stage.json; remove the folder"):
        other.made(never)


def test_a_damaged_account_is_refused(tmp_path: Path) -> None:
    one = stage(tmp_path, of="x")
    one.made(fill)
    (one.folder / "stage.json").write_text("{")
    with pytest.raises(UserError, match=r"stage.json is damaged"):
        one.report()


@pytest.mark.parametrize(
    ("number", "error", "words"),
    [(errno.ENOSPC, TrainingStopped, "the disk is full"), (errno.EACCES, UserError, "Permission denied")],
)
def test_a_stage_that_cannot_be_published_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception], words: str
) -> None:
    def refuse(draft: Path, final: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(stages, "publish", refuse)
    with pytest.raises(error, match=words):
        stage(tmp_path, of="x").made(fill)


def test_a_report_without_its_fields_is_refused(tmp_path: Path) -> None:
    """As that of a stranger: what reads the report does not find out."""
    made = StageFolder(tmp_path, "text", {}, ("a", "b"), {"read": int, "dropped": dict[str, int]})
    with pytest.raises(UserError, match=r"stage.json is damaged: dropped is missing; remove the folder"):
        made.made(fill)
