"""What is kept between runs and not made again: entries of files, in $NMT_CACHE or ~/.cache/nmt.

An entry is a folder that appears whole, by renaming, or not at all; several processes may write the same one.
It is checked when it is opened, and one that is not as it was written counts as not there. The cache can be
deleted at any time. What an entry is named after, and so when it may be used, is up to those who keep it.

An entry holds files and entry.json: metadata of them, and size and checksum of each. The checksum covers a
file of up to `WHOLE_BYTES` whole. Of a larger one it covers blocks spread evenly from the first byte to the
last: to read gigabytes at every start would cost more than the damage that it finds, which is files cut short
or full of zeros.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nmt.errors import TrainingStopped
from nmt.files import publish

WHOLE_BYTES = 1 << 26
"""Largest file of which every byte is checked."""
NUM_BLOCKS, BLOCK_BYTES = 64, 1 << 16
"""What is checked of a larger one."""

Metadata = dict[str, Any]


def cache_dir() -> Path:
    """The folder of the cache."""
    return Path(os.environ.get("NMT_CACHE") or Path.home() / ".cache" / "nmt")


def entry_name(kind: str, *parts: object) -> str:
    """The name of an entry: a hash of all that it depends on."""
    return f"{kind}-{hashlib.sha256(repr(parts).encode()).hexdigest()}"


def open_entry(entry: Path) -> Metadata | None:
    """Return the metadata of an entry, or None when it is not there or not as it was written."""
    try:
        sealed = json.loads((entry / "entry.json").read_text(encoding="utf-8"))
        content = sealed["content"]
        if sealed["crc32"] != _crc32_of(content):
            return None
        if any(_measure(entry / name) != measure for name, measure in content["files"].items()):
            return None
        metadata: Metadata = content["facts"]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):  # a file, too, may vanish
        return None
    return metadata


def write_entry(entry: Path, fill: Callable[[Path], Metadata]) -> bool:
    """Let `fill` write files into a folder and return metadata of them; then make that folder the entry.

    False when the cache cannot be written: no space, or no permission.
    """
    draft = entry.parent / f".{entry.name}.{secrets.token_hex(4)}"
    try:
        draft.mkdir(parents=True)
        metadata = fill(draft)
        content = {
            "facts": metadata,
            "files": {path.name: _measure(path) for path in sorted(draft.iterdir())},
        }
        sealed = {"content": content, "crc32": _crc32_of(content)}
        (draft / "entry.json").write_text(json.dumps(sealed), encoding="utf-8")
        if open_entry(entry) is None:  # and not the whole one of a process that was faster
            publish(draft, entry)
    except (OSError, TrainingStopped):  # also when another process was faster still
        return open_entry(entry) is not None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return True


def _measure(path: Path) -> list[int]:
    """Size of a file, and CRC-32 of all of it or of some blocks."""
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
