"""Entries of the cache: there whole or not at all, and never trusted blindly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nmt import disk_cache
from nmt.disk_cache import Metadata, entry_name, open_entry, write_entry

CONTENT = bytes(range(256)) * 40


def fill(draft: Path) -> Metadata:
    (draft / "numbers").write_bytes(CONTENT)
    return {"count": 3}


@pytest.fixture
def entry(tmp_path: Path) -> Path:
    path = tmp_path / "cache" / "entry"
    assert write_entry(path, fill)
    return path


def damage(path: Path, how: str) -> None:
    raw = bytearray(path.read_bytes())
    if how == "flip":
        raw[-3] ^= 1
    elif how == "truncate":
        del raw[-4:]
    elif how == "empty":
        raw.clear()
    path.unlink()
    if how != "remove":
        path.write_bytes(raw)


def test_an_entry_has_its_files_and_its_facts(entry: Path) -> None:
    assert open_entry(entry) == {"count": 3}
    assert (entry / "numbers").read_bytes() == CONTENT
    assert [path.name for path in entry.parent.iterdir()] == [entry.name]


@pytest.mark.parametrize("how", ["flip", "truncate", "empty", "remove"])
@pytest.mark.parametrize("name", ["numbers", "entry.json"])
def test_a_damaged_entry_counts_as_none_and_is_written_again(entry: Path, name: str, how: str) -> None:
    damage(entry / name, how)
    assert open_entry(entry) is None
    assert write_entry(entry, fill)
    assert open_entry(entry) == {"count": 3}


@pytest.mark.parametrize("how", ["flip", "truncate"])
def test_a_large_file_is_checked_in_places(entry: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    for name, value in {"WHOLE_BYTES": 1000, "BLOCK_BYTES": 10, "NUM_BLOCKS": 5}.items():
        monkeypatch.setattr(disk_cache, name, value)
    assert write_entry(entry, fill)
    assert open_entry(entry) == {"count": 3}
    damage(entry / "numbers", how)  # in its last block
    assert open_entry(entry) is None


@pytest.mark.parametrize("header", ["[]", "{}", '{"content": {}, "crc32": 0}', "null", '"x"'])
def test_a_header_of_another_shape_is_not_trusted(entry: Path, header: str) -> None:
    (entry / "entry.json").write_text(header)
    assert open_entry(entry) is None


def test_altered_facts_are_not_trusted(entry: Path) -> None:
    path = entry / "entry.json"
    header: dict[str, Any] = json.loads(path.read_text())
    header["content"]["facts"]["count"] += 1
    path.write_text(json.dumps(header))
    assert open_entry(entry) is None


def test_a_whole_entry_is_left_alone(entry: Path) -> None:
    before = entry.stat().st_ino
    assert write_entry(entry, fill)
    assert entry.stat().st_ino == before
    assert len(list(entry.parent.iterdir())) == 1


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert not write_entry(tmp_path / "file" / "entry", fill)


def test_names_tell_kinds_and_parts_apart() -> None:
    names = {entry_name(*parts) for parts in (("a", 1), ("b", 1), ("a", 2), ("a", "1"), ("a", 1, None))}
    assert len(names) == 5
