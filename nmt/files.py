"""Files and folders that appear whole: a reader sees the old content or the new, never a part.

Knows no config, no model and no corpus. Text is UTF-8 with line feeds on every system.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from nmt.errors import TrainingStopped, UserError


@contextlib.contextmanager
def written_atomically(path: Path) -> Iterator[BinaryIO]:
    """Open a file that is renamed to `path` when the block ends, and removed when the block fails.

    The folder is made if it is missing.

    Raises:
        TrainingStopped: the disk is full.
        UserError: the file cannot be written.
    """
    draft = path.with_name(f".tmp-{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise TrainingStopped(f"cannot write {path}: the disk is full") from error
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` to `path`, all of it or, on an error, nothing; see `written_atomically`."""
    with written_atomically(path) as file:
        file.write(content)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write each string as one line."""
    write_atomically(path, "".join(f"{line}\n" for line in lines).encode())


def written_lines(path: Path) -> list[str]:
    """Return the strings that `write_lines` wrote."""
    return path.read_bytes().decode().split("\n")[:-1]


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON object for people to read."""
    write_atomically(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; raise `UserError` when it is damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged: it holds no JSON object")
    return content


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits; raise `OSError` when it cannot be read."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()


def publish(draft: Path, final: Path) -> None:
    """Rename the complete folder `draft` to `final` in the same folder, where it replaces an older `final`.

    A crash leaves a whole folder, new or old, the old one perhaps under the name `.old-NAME`.

    Raises:
        OSError: `draft` cannot be renamed, perhaps because another process was faster.
    """
    old = final.with_name(f".old-{final.name}")
    sync(draft)
    if final.exists():
        os.rename(final, old)
    os.rename(draft, final)
    sync(final.parent)
    shutil.rmtree(old, ignore_errors=True)


def sync(path: Path) -> None:
    """Flush a file or the names in a folder to the disk: a rename is on the disk only when its folder is."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(folder: Path, other: str) -> Iterator[None]:
    """Lock `folder` against all other processes; it is made if it is missing.

    Raises:
        UserError: another process has the lock, or `folder` cannot be written; `other` names the way out.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = open(folder / ".lock", "a+", encoding="utf-8")  # noqa: SIM115 - closed below, released with it
    except OSError as error:
        raise UserError(f"cannot write to the directory {folder}: {error.strerror}; {other}") from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            owner = handle.read().strip() or "another process"
            raise UserError(f"{folder} is in use by {owner}; wait for it, or {other}") from None
        handle.truncate(0)
        handle.write(f"process {os.getpid()} on {socket.gethostname()}")
        handle.flush()
        yield
