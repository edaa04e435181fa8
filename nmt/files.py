"""Files and folders that appear whole: a reader sees the old content or the new, never a part.

Knows no config, no model and no corpus. Text is UTF-8 with line feeds on every system. JSON may come from a
stranger: `parse_json` bounds its size and its nesting, and `misfits` compares it with the types that a caller
expects.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
import reprlib
import shutil
import socket
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO, get_args, get_origin

from nmt.errors import InUse, TrainingStopped, UserError, visible

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of the system that say that there is no room."""
OUTPUTS = "outputs"
"""Folder of runs, sweeps and what comes of them, where the command runs, unless told otherwise."""
IMPORT_RECORD = "import.json"
"""File of an imported run that says which folder its model is from."""
EXPORT_RECORD = "export.json"
"""File of an exported run, which is a model alone, that says which run it is from."""
MAX_JSON_BYTES, MAX_JSON_DEPTH = 1 << 23, 32
"""Bounds of a JSON object; ours are a few kilobytes long and 4 deep."""
MAX_JSON_DIGITS = 300
"""Most digits of an integer in JSON; more fit into no float."""
NUMBER = float | Literal["nan", "inf", "-inf"]
"""Type of a number as `write_json` writes it; `float` reads it."""


STREAMS = (Path("/dev"), Path("/dev/fd"))
"""Folders of devices and of open files."""


def another(key: str) -> str:
    """Return the way out where the folder that `key` names cannot be used."""
    return f"choose another {key}=..."


def path_of(name: str) -> Path:
    """Return the path that a setting names; `~` or `~USER` in front is a home directory, if it is known."""
    return Path(os.path.expanduser(name))


@contextlib.contextmanager
def written_atomically(path: Path) -> Iterator[BinaryIO]:
    """Open a file that is renamed to `path` when the block ends, and removed when the block fails.

    The folder is made if it is missing. A device or a pipe is written to as it is, and stays.

    Raises:
        TrainingStopped: the disk is full.
        UserError: the file cannot be written.
    """
    draft = path.with_name(f".tmp-{path.name}.{os.getpid()}")
    try:
        if is_stream(path):
            with path.open("ab") as file:
                yield file
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.unlink(missing_ok=True)  # of a killed process with the same number
        with draft.open("xb") as file:  # never the target of a link
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        if error.errno in FULL:
            raise TrainingStopped(f"cannot write {path}: the disk is full") from error
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()


def is_stream(path: Path) -> bool:
    """Return whether a path is a device or a pipe, and no file or folder."""
    return not path.is_dir() and (path.parent in STREAMS or (path.exists() and not path.is_file()))


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` to `path`, all of it or, on an error, nothing; see `written_atomically`."""
    with written_atomically(path) as file:
        file.write(content)


def link_first(draft: Path, path: Path) -> None:
    """Rename the file `draft` to `path`, or remove it if that is there: the first of several machines wins.

    A renaming alone would let the last one win; it has to do on a disk without hard links.
    """
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    except OSError:
        draft.replace(path)
        return
    draft.unlink()


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write each string as one line."""
    write_atomically(path, "".join(f"{line}\n" for line in lines).encode())


def written_lines(path: Path) -> list[str]:
    """Return the strings that `write_lines` wrote."""
    return path.read_bytes().decode().split("\n")[:-1]


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON object for people to read; numbers that JSON lacks become "nan", "inf" and "-inf"."""
    text = json.dumps(_standard(content), indent=2, ensure_ascii=False, allow_nan=False)
    write_atomically(path, f"{text}\n".encode())


def _standard(content: Any) -> Any:
    """Return JSON with text in place of the numbers that JSON lacks."""
    if isinstance(content, dict):
        return {key: _standard(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_standard(value) for value in content]
    return str(content) if isinstance(content, float) and not math.isfinite(content) else content


def read_json(path: Path, fields: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Read a JSON object that has `fields`, names with their types; see `misfits`.

    Raises:
        UserError: the file cannot be read, is damaged, or lacks a field.
    """
    try:
        content = load_json(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from error
    if wrong := misfits(content, fields or {}):
        raise UserError(f"{path} is damaged: {'; '.join(wrong)}")
    return content


def load_json(path: Path, most: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Return the JSON object in a file, within bounds; raise `OSError` or `ValueError` if there is none."""
    with open(path, "rb", opener=_at_once) as file:
        return parse_json(file.read(most + 1), most)


def _at_once(path: str, flags: int) -> int:
    """Open a file without waiting, as for the writer of a pipe that stands in its place."""
    return os.open(path, flags | os.O_NONBLOCK)


def parse_json(data: bytes, most: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Return the JSON object in `data`, within bounds; raise `ValueError` where there is none."""
    if len(data) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    try:
        content = json.loads(data, parse_int=_integer)
    except RecursionError:
        content, depth = None, MAX_JSON_DEPTH + 1
    else:
        depth = _depth(content)
    if depth > MAX_JSON_DEPTH:
        raise ValueError(f"it is nested more than {MAX_JSON_DEPTH} deep")
    if not isinstance(content, dict):
        raise ValueError(f"it holds {type(content).__name__} where an object is expected")
    return content


def _integer(digits: str) -> int:
    """Return an integer of JSON; raise `ValueError` for one that is beyond all floats."""
    if len(digits) > MAX_JSON_DIGITS:
        raise ValueError(f"it has an integer of more than {MAX_JSON_DIGITS} digits")
    return int(digits)


def lines_of(file: Path) -> Iterator[bytes]:
    """Yield the lines of a file, none where it is missing; raise `UserError` where it cannot be read."""
    try:
        with file.open("rb") as lines:
            yield from lines
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from error


def step_record(line: bytes) -> dict[str, Any]:
    """Return a line of metrics.jsonl, which has a step; {} for one that is cut short."""
    with contextlib.suppress(ValueError):
        record = parse_json(line)
        if type(record.get("step")) is int:
            return record
    return {}


def step_records(file: Path, mark: bytes = b"") -> Iterator[dict[str, Any]]:
    """Yield the records of metrics.jsonl in the lines with `mark`; numbers may be None."""
    return filter(None, (step_record(line) for line in lines_of(file) if mark in line))


def _depth(value: object) -> int:
    """Return how deep JSON is nested, without a recursion."""
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, (dict, list))]:
        depth += 1
        level = [x for item in level for x in (item.values() if isinstance(item, dict) else item)]
    return depth


def misfits(content: Mapping[str, Any], fields: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a JSON object that must have `fields`, at most five phrases.

    A field has a type: int (of 64 bits), float, str, bool, dict, list[T], dict[str, T], a literal, Any, or a
    union of these; one that may be None may be missing. Further fields are ignored.
    """
    wrong = [
        f"{name} is {reprlib.repr(content[name])}" if name in content else f"{name} is missing"
        for name, kind in fields.items()
        if not _fits(content.get(name), kind)
    ]
    return [*wrong[:5], f"and {len(wrong) - 5} more"] if len(wrong) > 5 else wrong


def _fits(value: Any, kind: Any) -> bool:
    origin, parts = get_origin(kind), get_args(kind)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(item, parts[1]) for item in value.values())
    if origin is list:
        return isinstance(value, list) and all(_fits(item, parts[0]) for item in value)
    if origin is Literal:
        return value in parts
    if kind is Any:
        return True
    if parts:
        return any(_fits(value, part) for part in parts)
    if type(value) is int:
        return kind in (int, float) and abs(value) < 1 << 63
    return type(value) is kind


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits; raise `OSError` when it cannot be read."""
    with path.open("rb") as file:
        return digest_of_stream(file)


def digest_of_stream(source: BinaryIO) -> str:
    """Return the SHA-256 of all bytes that are left in `source`, in hexadecimal digits."""
    found = hashlib.sha256()
    while block := source.read(1 << 20):
        found.update(block)
    return found.hexdigest()


def digest_of_lines(lines: Sequence[str]) -> str:
    """Return the SHA-256 of a text, in hexadecimal digits."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def publish(draft: Path, final: Path) -> None:
    """Rename the complete folder `draft` to `final` in the same folder, where it replaces an older `final`.

    A crash leaves a whole folder, new or old, the old one perhaps under the name `.old-NAME`.

    Raises:
        OSError: `draft` cannot be renamed, perhaps because another process was faster.
    """
    old = final.with_name(f".old-{final.name}")
    sync(draft)
    if final.exists():
        shutil.rmtree(old, ignore_errors=True)  # of a crash
        os.rename(final, old)
    os.rename(draft, final)
    sync(final.parent)
    shutil.rmtree(old, ignore_errors=True)


def require_space(folder: Path, needed: int) -> None:
    """Raise `OSError` (ENOSPC) unless the disk of `folder`, which need not exist, has `needed` bytes free."""
    place = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    free = shutil.disk_usage(place).free
    if free < needed:
        raise OSError(errno.ENOSPC, f"{needed:,} bytes are needed, but {free:,} are free")


def require_place(folder: Path, other: str) -> None:
    """Raise `UserError` where `folder`, which need not exist, cannot be written; `other` is the way out."""
    place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    problem = "" if os.access(place, os.W_OK) else "is read-only"
    if problem := problem if place.is_dir() else "is a file":
        what = "it" if place == folder.absolute() else place
        raise UserError(f"cannot write to the directory {folder}: {what} {problem}; {other}")


def require_file_place(file: Path, key: str, name: str) -> None:
    """Raise `UserError` where `file`, which `key` names, cannot be written; `name` is one for such a file."""
    if is_stream(file):
        return
    require_place(file.parent, f"name a file elsewhere: {key}=FILE")
    if file.is_dir():
        raise UserError(f"{key}={file} is a directory; name a file in it: {key}={file / name}")


def sync(path: Path) -> None:
    """Flush a file or the names in a folder to the disk: a rename is on the disk only when its folder is."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(folder: Path, other: str, shared: bool = False) -> Iterator[None]:
    """Lock `folder` against all other processes, or all but those that share it; it is made if it is missing.

    Raises:
        InUse: another process has the lock; `other` names the way out.
        UserError: `folder` cannot be written, or is on a disk without locks.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = _open_lock(folder / ".lock", os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise UserError(f"cannot write to the directory {folder}: {error.strerror}; {other}") from error
    with handle:
        try:
            _flock(handle, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, folder, other)
        except OSError as error:
            raise UserError(
                f"{folder} cannot be locked: {error.strerror}, as on a disk mounted without locks; {other}"
            ) from error
        with contextlib.suppress(OSError):  # the disk may be full, and the lock holds without a name
            handle.truncate(0)
            if not shared:  # it would have the name of one of several
                os.write(handle.fileno(), f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield


def require_unlocked(folder: Path, other: str) -> None:
    """Raise `UserError` when another process has locked `folder`; for an answer before slow imports."""
    with contextlib.suppress(OSError), _open_lock(folder / ".lock", os.O_RDONLY) as handle:
        _flock(handle, fcntl.LOCK_SH, folder, other)


def _open_lock(path: Path, flags: int) -> TextIO:
    """Open a lock, never the target of a link: `locked` empties the file."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(descriptor)
        raise OSError(errno.ELOOP, f"{path.name} is a link or no file")
    return os.fdopen(descriptor, "r+" if flags & os.O_RDWR else "r", encoding="utf-8", errors="replace")


def _flock(handle: TextIO, kind: int, folder: Path, other: str) -> None:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = visible(handle.read(200)) or "another process"
        raise InUse(f"{folder} is in use by {owner}; wait for it, or {other}") from None
