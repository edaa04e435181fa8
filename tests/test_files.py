"""Small files are written whole, and what cannot be written or read is named."""

from __future__ import annotations

import errno
import hashlib
import json
import math
from pathlib import Path

import pytest

from nmt.errors import TrainingStopped, UserError
from nmt.files import (
    digest,
    locked,
    publish,
    read_json,
    write_atomically,
    write_json,
    write_lines,
    written_atomically,
)


def test_json_has_no_number_that_only_python_reads(tmp_path: Path) -> None:
    """A perplexity that overflows is text, which `float` reads."""
    write_json(
        tmp_path / "file.json", {"validation": {"perplexity": math.inf}, "x": [math.nan, 1.5, -math.inf]}
    )
    content = json.loads((tmp_path / "file.json").read_text(), parse_constant=pytest.fail)
    assert content == {"validation": {"perplexity": "inf"}, "x": ["nan", 1.5, "-inf"]}


def test_lines_end_in_line_feeds_alone(tmp_path: Path) -> None:
    write_lines(tmp_path / "new" / "lines", ["ä", "", "b\u2028c"])
    assert (tmp_path / "new" / "lines").read_bytes() == "ä\n\nb\u2028c\n".encode()


def test_json_round_trip(tmp_path: Path) -> None:
    content = {"bleu": 38.5, "name": "Bär", "steps": [1, 2]}
    write_json(tmp_path / "file.json", content)
    assert read_json(tmp_path / "file.json") == content


@pytest.mark.parametrize("text", ["{", "[1]", ""])
def test_damaged_json_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "file.json").write_text(text)
    with pytest.raises(UserError, match=r"file\.json is damaged"):
        read_json(tmp_path / "file.json")


def test_a_failed_write_leaves_the_old_content_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "file"
    write_atomically(target, b"old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(TrainingStopped, match="the disk is full"):
        write_atomically(target, b"new")
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_file_whose_making_fails_is_not_there(tmp_path: Path) -> None:
    def write() -> None:
        with written_atomically(tmp_path / "file") as file:
            file.write(b"half")
            raise UserError("the rest is missing")

    with pytest.raises(UserError, match="the rest is missing"):
        write()
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*file/under: "):
        write_atomically(tmp_path / "file" / "under", b"")


def test_a_folder_is_locked_once_at_a_time(tmp_path: Path) -> None:
    for _ in range(2):
        with (
            locked(tmp_path / "a", "go away"),
            pytest.raises(UserError, match=r"a is in use by process \d+ on .*; wait for it, or go away"),
            locked(tmp_path / "a", "go away"),
        ):
            pass
    (tmp_path / "file").touch()
    with (
        pytest.raises(UserError, match=r"cannot write to the directory .*file: File exists; go away"),
        locked(tmp_path / "file", "go away"),
    ):
        pass


def test_a_folder_is_published_whole_in_place_of_an_older_one(tmp_path: Path) -> None:
    final = tmp_path / "entry"
    for content in ("old", "new"):
        draft = tmp_path / ".draft"
        draft.mkdir()
        (draft / "file").write_text(content)
        publish(draft, final)
        assert (final / "file").read_text() == content
        assert [path.name for path in tmp_path.iterdir()] == ["entry"]


def test_a_crash_leaves_the_old_folder_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    final, draft = tmp_path / "entry", tmp_path / ".draft"
    for folder in (final, draft):
        folder.mkdir()
    renamed = []
    monkeypatch.setattr("nmt.files.os.rename", lambda old, new: renamed.append((old.name, new.name)))
    publish(draft, final)
    assert renamed == [("entry", ".old-entry"), (".draft", "entry")]


def test_the_digest_of_a_file_is_its_sha256(tmp_path: Path) -> None:
    content = b"x" * 3_000_000
    (tmp_path / "file").write_bytes(content)
    assert digest(tmp_path / "file") == hashlib.sha256(content).hexdigest()
