"""A cache of files between runs, so that they are made once, in $NMT_CACHE or ~/.cache/nmt.

An entry is a folder that appears whole, by renaming, or not at all; several processes may write the same
entry. Opening an entry checks it, and a damaged one counts as missing. The cache can be deleted at any time.
The caller names an entry by all that its content depends on, so that no entry is stale.

An entry holds files and entry.json, with metadata and the size and checksum of each file. The checksum covers
all of a file of up to `WHOLE_BYTES`. Of a larger file it covers blocks spread evenly from the first byte to
the last: they find the usual damage, files cut short or full of zeros, without reading gigabytes at every
start.
"""

from __future__ import annotations

import contextlib
import contextvars
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from nmt.errors import TrainingStopped, UserError
from nmt.files import load_json, publish
from nmt.temporary import temporary_folder

WHOLE_BYTES = 1 << 26
"""Largest file of which every byte is checked."""
NUM_BLOCKS, BLOCK_BYTES = 64, 1 << 16
"""Number and size of the blocks of a larger file that are checked."""

Metadata = dict[str, Any]
_REQUIRED: contextvars.ContextVar[bool] = contextvars.ContextVar("required", default=False)


def cache_dir() -> Path:
    """Return the folder of the cache.

    Raises:
        UserError: there is no place for it.
    """
    try:
        return Path(os.environ.get("NMT_CACHE") or Path.home() / ".cache" / "nmt")
    except RuntimeError as error:
        raise UserError(
            "the cache has no place, as this user has no home folder; set NMT_CACHE to a folder for it"
        ) from error


def entry_name(kind: str, *parts: object) -> str:
    """Return the name of an entry: its kind, and a hash of the `parts` that its content depends on."""
    return f"{kind}-{hashlib.sha256(repr(parts).encode()).hexdigest()}"


def open_entry(entry: Path) -> Metadata | None:
    """Return the metadata of an entry, or None when the entry is missing or damaged."""
    try:
        sealed = load_json(entry / "entry.json")
        content = sealed["content"]
        if sealed["crc32"] != _crc32_of(content):
            return None
        if any(_measure(entry / name) != measure for name, measure in content["files"].items()):
            return None
        metadata: Metadata = content["facts"]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):  # files may vanish
        return None
    return metadata


def write_entry(entry: Path, fill: Callable[[Path], Metadata | None], *, is_passing: bool = False) -> bool:
    """Let `fill` write files into a folder and return metadata, if any; then make that folder the entry.

    Return False when the cache cannot be written: no space, or no permission.

    Raises:
        UserError: it cannot be written, and `must_be_written`; one that `is_passing`, on the way to another
            entry, need not be.
    """
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder(entry.parent) as draft:
            metadata = fill(draft) or {}
            content = {
                "facts": metadata,
                "files": {path.name: _measure(path) for path in sorted(draft.iterdir())},
            }
            sealed = {"content": content, "crc32": _crc32_of(content)}
            (draft / "entry.json").write_text(json.dumps(sealed), encoding="utf-8")
            if open_entry(entry) is None:  # else another process was faster
                publish(draft, entry)
    except (OSError, TrainingStopped) as error:  # perhaps since another process was faster
        is_there = open_entry(entry) is not None
        if must_be_written() and not is_there and not is_passing:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UserError(
                f"{entry.name} cannot be kept in the cache {entry.parent}: {reason}; make room there, or set "
                "NMT_CACHE to a folder on a larger disk; what was kept stays"
            ) from error
        return is_there
    return True


@contextlib.contextmanager
def required() -> Iterator[None]:
    """Let an entry that cannot be written be an error in the block, whose work is done for the cache."""
    token = _REQUIRED.set(True)
    try:
        yield
    finally:
        _REQUIRED.reset(token)


def must_be_written() -> bool:
    """Return whether the work of this process is done for the cache."""
    return _REQUIRED.get()


def can_be_written() -> bool:
    """Return whether the cache can be written: whether there is permission, and space for a small file."""
    try:
        cache_dir().mkdir(parents=True, exist_ok=True)
        with temporary_folder(cache_dir()) as draft:
            (draft / "entry.json").write_text("{}")
    except (OSError, UserError):
        return False
    return True


def _measure(path: Path) -> list[int]:
    """Return the size of a file, and the CRC-32 of all of it or of some blocks."""
    size, checksum = path.stat().st_size, 0
    with path.open("rb") as file:
        if size <= WHOLE_BYTES:
            while block := file.read(1 << 20):
                checksum = zlib.crc32(block, checksum)
        else:
            for number in range(NUM_BLOCKS):
                file.seek((size - BLOCK_BYTES) * number // (NUM_BLOCKS - 1))
                checksum = zlib.crc32(file.read(BLOCK_BYTES), checksum)
    return [size, checksum]


def _crc32_of(content: object) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
