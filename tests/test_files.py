"""Small files are written whole, and what cannot be written or read is named."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import math
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from nmt.errors import InUse, TrainingStopped, UserError
from nmt.files import (
    digest,
    link_first,
    locked,
    misfits,
    parse_json,
    publish,
    read_json,
    require_space,
    require_unlocked,
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


@pytest.mark.fault(35, 36)
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "Expecting property name enclosed in double quotes"),
        (b"[1]", "it holds list where an object is expected"),
        (b"", "Expecting value"),
        (b"\xff", "'utf-8' codec can't decode"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "it is nested more than 32 deep"),
        (b'{"a":' * 33 + b"1" + b"}" * 33, "it is nested more than 32 deep"),
        (b'{"a": ' + b"9" * 400 + b"}", "it has an integer of more than 300 digits"),
        (b"{}" + b" " * (1 << 23), "it has more than 8,388,608 bytes"),
        (
            b"{}",
            "count is missing; name is missing; facts is missing; list is missing; sums is missing; and 1",
        ),
        (
            b'{"count": 1e3, "name": 7, "facts": [], "list": [true], "sums": {"a": "b"}, "last": "\\u001b"}',
            r"count is 1000.0; name is 7; facts is []; list is [True]; sums is {'a': 'b'}; and 1 more",
        ),
    ],
)
def test_damaged_json_is_named(tmp_path: Path, data: bytes, message: str) -> None:
    fields = {"count": int, "name": str, "facts": dict, "list": list[int], "sums": dict[str, float]}
    (tmp_path / "file.json").write_bytes(data)
    with pytest.raises(UserError) as raised:
        read_json(tmp_path / "file.json", {**fields, "last": float})
    assert str(raised.value).startswith(f"{tmp_path / 'file.json'} is damaged: {message}")


def test_json_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"file\.json cannot be read: No such file or directory"):
        read_json(tmp_path / "file.json")
    with pytest.raises(UserError, match=r"cannot be read: Is a directory"):
        read_json(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match=r"pipe is damaged: Expecting value"):
        read_json(tmp_path / "pipe")


def test_json_of_the_types_that_are_asked_for() -> None:
    kinds = {"whole": float, "none": float | None, "absent": str | None, "steps": list[int]}
    content: dict[str, object] = {"whole": 3, "none": None, "steps": [], "further": {}}
    assert misfits(content, kinds) == []
    assert misfits({**content, "whole": True, "steps": [1 << 63]}, kinds) == [
        "whole is True",
        "steps is [9223372036854775808]",
    ]
    assert parse_json(b'{"a":' * 32 + b"1" + b"}" * 32)


@pytest.mark.fault(12)
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_failed_write_leaves_the_old_content_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    target = tmp_path / "file"
    write_atomically(target, b"old")

    def full(_: int) -> None:
        raise OSError(number, os.strerror(number))

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


def test_a_device_and_a_pipe_are_written_to_and_stay(tmp_path: Path) -> None:
    write_atomically(Path("/dev/null"), b"new")
    assert Path("/dev/null").is_char_device()
    os.mkfifo(tmp_path / "pipe")
    read = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(tmp_path / "pipe", b"new")
    assert os.read(read, 9) == b"new"
    os.close(read)
    assert (tmp_path / "pipe").is_fifo()


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


def test_a_disk_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_locks(file: object, kind: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", without_locks)
    with pytest.raises(UserError) as raised, locked(tmp_path, "go away"):
        pass
    assert str(raised.value) == (
        f"{tmp_path} cannot be locked: No locks available, as on a disk mounted without locks; go away"
    )


def test_a_lock_may_be_shared(tmp_path: Path) -> None:
    """Nobody is told of one of several processes, or of the one that had the lock alone before."""
    with locked(tmp_path, "go away"):
        pass
    with locked(tmp_path, "go away", shared=True):
        with locked(tmp_path, "go away", shared=True):
            pass
        with pytest.raises(InUse, match="is in use by another process; wait"), locked(tmp_path, "go away"):
            pass
    with (
        locked(tmp_path, "go away"),
        pytest.raises(InUse, match="is in use by"),
        locked(tmp_path, "go away", shared=True),
    ):
        pass


def test_the_first_of_several_files_keeps_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for content in ("first", "second"):
        (tmp_path / "draft").write_text(content)
        link_first(tmp_path / "draft", tmp_path / "file")
        assert [path.name for path in tmp_path.iterdir()] == ["file"]
        assert (tmp_path / "file").read_text() == "first"

    def without_links(src: Path, dst: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", without_links)
    (tmp_path / "draft").write_text("third")
    link_first(tmp_path / "draft", tmp_path / "other")
    assert (tmp_path / "other").read_text() == "third"


@pytest.mark.fault(14)
def test_a_lock_is_asked_for_without_touching_anything(tmp_path: Path) -> None:
    run = tmp_path / "run"
    require_unlocked(run, "go away")
    assert not run.exists()
    with locked(run, "go away"), pytest.raises(UserError) as raised:
        require_unlocked(run, "go away")
    host = socket.gethostname()
    assert str(raised.value) == f"{run} is in use by process {os.getpid()} on {host}; wait for it, or go away"
    before = (run / ".lock").read_text()
    require_unlocked(run, "go away")
    assert (run / ".lock").read_text() == before


@pytest.mark.fault(14)
def test_the_lock_of_a_killed_process_is_taken_over(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        with locked(tmp_path, "go away"):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert (tmp_path / ".lock").read_text().startswith(f"process {child} on ")
    with locked(tmp_path, "go away"):
        assert (tmp_path / ".lock").read_text().startswith(f"process {os.getpid()} on ")


@pytest.mark.fault(37)
@pytest.mark.parametrize("make", [Path.symlink_to, Path.hardlink_to, lambda lock, _: os.mkfifo(lock)])
def test_a_lock_that_is_a_link_is_refused(tmp_path: Path, make: Callable[[Path, Path], None]) -> None:
    target = tmp_path / "precious"
    target.write_text("content")
    run = tmp_path / "run"
    run.mkdir()
    make(run / ".lock", target)
    require_unlocked(run, "go away")
    with pytest.raises(UserError, match=r"cannot write to .*run: .*; go away"), locked(run, "go away"):
        pass
    assert target.read_text() == "content"


@pytest.mark.fault(12)
def test_a_lock_on_a_full_disk_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("nmt.files.os.write", refuse)
    with locked(tmp_path, "go away"), pytest.raises(UserError, match="in use by another process; wait"):
        require_unlocked(tmp_path, "go away")


def test_the_owner_of_a_lock_is_shown_without_escape_codes(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("\x1b[31mmallory\n" + "x" * 1000)
    with (tmp_path / ".lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(UserError, match=r"in use by \\x1b\[31mmallory\nx{187}; wait"):
            require_unlocked(tmp_path, "go away")


@pytest.mark.fault(37)
def test_a_draft_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("content")
    (tmp_path / f".tmp-file.{os.getpid()}").symlink_to(target)
    write_atomically(tmp_path / "file", b"new")
    assert ((tmp_path / "file").read_bytes(), target.read_text()) == (b"new", "content")


@pytest.mark.fault(12)
def test_too_little_space_is_an_error_of_the_system(tmp_path: Path) -> None:
    require_space(tmp_path / "not" / "there", 1)
    with pytest.raises(
        OSError, match=r"1,000,000,000,000,000,000 bytes are needed, but [\d,]+ are free"
    ) as raised:
        require_space(tmp_path / "not" / "there", 10**18)
    assert raised.value.errno == errno.ENOSPC


def test_a_folder_is_published_whole_in_place_of_an_older_one(tmp_path: Path) -> None:
    final = tmp_path / "entry"
    for content in ("old", "new"):
        draft = tmp_path / ".draft"
        draft.mkdir()
        (draft / "file").write_text(content)
        publish(draft, final)
        assert (final / "file").read_text() == content
        assert [path.name for path in tmp_path.iterdir()] == ["entry"]


def test_what_a_crash_left_of_an_older_folder_is_not_in_the_way(tmp_path: Path) -> None:
    for name in ("entry", ".draft", ".old-entry"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    publish(tmp_path / ".draft", tmp_path / "entry")
    assert (tmp_path / "entry" / "file").read_text() == ".draft"
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
