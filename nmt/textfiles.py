"""Sentence pairs from files of the user: parallel plain text, TSV and JSONL, also gzip-compressed.

Files are read as bytes and must be UTF-8. A line ends at a line feed and nowhere else: U+2028, U+0085 and a
lone carriage return are text, as they are for `wc -l`; one carriage return before the line feed is dropped,
and so is a byte order mark. The last line needs no line feed. What cannot be read exactly is an error that
names file and line.
"""

from __future__ import annotations

import codecs
import gzip
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nmt.errors import UserError, suggest
from nmt.pairs import ColumnsConfig, DataConfig, ParallelText, Split, one_line

_GZIP_MAGIC = b"\x1f\x8b"
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass
class FilesData(ColumnsConfig):
    """Files on disk. A path stands for two plain text files or for one .tsv or .jsonl file, each also as .gz.

    Plain text: `{lang}` in the path stands for the language, as in corpus/train.{lang}.txt; a path without it
    is a prefix, so that corpus/train means corpus/train.en and corpus/train.de.
    """

    name: str = "files"
    train: str | None = None
    """Path of the training pairs."""
    validation: str | None = None
    """Path of the pairs scored during training."""
    test: str | None = None
    """Path of the pairs scored at the end."""
    src_column: str | None = None
    """What the source side is called: the word for `{lang}`, the name in the TSV header (in a file without
    one the number of the column, from 1) or the JSON key (`a.b` for a nested one); null: the language."""
    tgt_column: str | None = None
    """The same for the target side."""

    def place(self, split: Split) -> str | None:
        """The path of the split."""
        path: str | None = getattr(self, split.value)
        return path


@dataclass
class TextData(DataConfig):
    """Text in one language, plain or as .gz, for `task=language_model`; a line may be blank."""

    name: str = "text"
    src: str = "none"
    """There is no source."""
    tgt: str = "en"
    """Language of the text."""
    split: Split = Split.validation
    """The split scored at the end of training and by `nmt evaluate`."""
    train: str | None = None
    """Path of the training text."""
    validation: str | None = None
    """Path of the text scored during training; null: parts of the training text are held out for it."""
    test: str | None = None
    """Path of the text scored at the end, with data.split=test."""
    held_out: float = 0.1
    """Without a validation text: the tail of each block that is held out, as a share of the block."""
    blocks: int = 10
    """Blocks of equally many lines that the training text is then cut into."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.held_out < 1.0:
            raise UserError(f"data.held_out must be in (0, 1), but is {self.held_out}")
        if self.blocks < 1:
            raise UserError(f"data.blocks must be at least 1, but is {self.blocks}")

    def place(self, split: Split) -> str | None:
        """The path of the split."""
        if split is Split.validation and self.validation is None:
            return self.train or "held out"  # what is missing then is the training text
        path: str | None = getattr(self, split.value)
        return path


def read(cfg: FilesData, split: Split) -> ParallelText:
    """Read one split, aligned and unfiltered; `cfg.place(split)` must be set."""
    place, key = os.path.expanduser(cfg.place(split) or ""), cfg.key(split)
    suffixes = Path(place).name.removesuffix(".gz")
    if suffixes.endswith(".tsv"):
        return _read_tsv(_find(place, key), cfg, key)
    if suffixes.endswith(".jsonl"):
        return _read_jsonl(_find(place, key), cfg, key)
    if Path(place).is_file():
        raise UserError(
            f"{key}: {place} is one file of unknown format; pairs come from one .tsv or .jsonl file, "
            "or from two text files, whose path is given with {lang} for the language"
        )
    pattern = place if "{lang}" in place else f"{place}.{{lang}}"
    src, tgt = (_find(pattern.replace("{lang}", column), key) for column in cfg.columns)
    return _read_parallel(src, tgt, key)


def read_text(cfg: TextData, split: Split) -> ParallelText:
    """Read one split of a text without a source."""
    held_out = split is Split.validation and cfg.validation is None
    key = cfg.key(Split.train if held_out else split)
    place = cfg.train if held_out else cfg.place(split)
    lines = read_lines(_find(os.path.expanduser(place or ""), key), key)
    if cfg.validation is None and split is not Split.test:
        lines = _share(lines, cfg, held_out)
    return ParallelText([""] * len(lines), lines)


def _share(lines: list[str], cfg: TextData, held_out: bool) -> list[str]:
    """The heads of the blocks, or the tails that are held out for validation."""
    share = []
    for block in range(cfg.blocks):
        start, end = (len(lines) * number // cfg.blocks for number in (block, block + 1))
        cut = end - round((end - start) * cfg.held_out)
        share += lines[cut:end] if held_out else lines[start:cut]
    if not share:
        part = "held out" if held_out else "left for training"
        raise UserError(
            f"{cfg.key(Split.train)}={cfg.train} has {len(lines)} lines in data.blocks={cfg.blocks}; none of "
            f"them is {part} with data.held_out={cfg.held_out}; set data.validation, or fewer blocks"
        )
    return share


def read_lines(path: Path, key: str) -> list[str]:
    """The lines of a text file, plain or gzip-compressed; `key` is the config key to name in an error."""
    text = _decode(_read_bytes(path, key), f"{key}: {path}")
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    if not lines:
        raise UserError(f"{key}: {path} is empty")
    return [line.removesuffix("\r") for line in lines] if "\r" in text else lines


def _find(place: str, key: str) -> Path:
    """The file at `place`, or its compressed twin."""
    path = Path(place)
    if path.is_dir():
        raise UserError(
            f"{key}: {path} is a directory, not a file; data=hub data.path={path} reads dataset folders"
        )
    for candidate in (path, Path(f"{place}.gz")):
        if candidate.exists():
            return candidate
    if not path.parent.is_dir():
        raise UserError(f"{key}: there is no file {path}, nor a directory {path.parent}")
    near = [file.name for file in path.parent.iterdir()]
    raise UserError(f"{key}: there is no file {path}{suggest(path.name, near)}")


def _read_bytes(path: Path, key: str) -> bytes:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UserError(f"{key}: {path} cannot be read: {error.strerror}") from error
    if not raw.startswith(_GZIP_MAGIC):
        if path.suffix == ".gz" and raw:
            raise UserError(f"{key}: {path} ends in .gz but is not gzip-compressed; remove .gz from its name")
        return raw
    try:
        return gzip.decompress(raw)
    except (EOFError, OSError, zlib.error) as error:
        raise UserError(f"{key}: {path} is a damaged gzip file ({error}); copy it again") from error


def _decode(raw: bytes, where: str) -> str:
    """Strict UTF-8, without a byte order mark and without NUL."""
    if raw.startswith(_GZIP_MAGIC):
        raise UserError(f"{where} is gzip-compressed twice; decompress it once")
    if raw.startswith(_UTF16_MARKS):
        raise UserError(f"{where} is UTF-16, not UTF-8; convert it: iconv -f UTF-16 -t UTF-8")
    raw = raw.removeprefix(codecs.BOM_UTF8)
    nul = raw.find(b"\0")
    if nul >= 0:
        raise UserError(
            f"{where}: {_position(raw, nul)} is a NUL character, which no text has; "
            "remove it (tr -d '\\000'), or convert the file if it is UTF-16 (iconv -f UTF-16 -t UTF-8)"
        )
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        guess = _guess_encoding(raw[error.start : error.start + 1])
        raise UserError(f"{where}: {_position(raw, error.start)} is not UTF-8; {guess}") from error


def _position(raw: bytes, offset: int) -> str:
    start_of_line = raw.rfind(b"\n", 0, offset) + 1
    line = raw.count(b"\n", 0, offset) + 1
    return f"line {line:,}, byte {offset - start_of_line + 1:,} of the line (0x{raw[offset]:02x})"


def _guess_encoding(byte: bytes) -> str:
    letter = byte.decode("cp1252", errors="ignore")
    if letter.isprintable() and letter:
        return f"in Windows-1252 that byte is {letter!r}; if so, convert the file: iconv -f cp1252 -t UTF-8"
    return "find its encoding with `file` and convert it with iconv"


def _read_parallel(src_path: Path, tgt_path: Path, key: str) -> ParallelText:
    if src_path.samefile(tgt_path):
        raise UserError(f"{key}: {src_path} is both the source and the target; name two different files")
    src, tgt = read_lines(src_path, key), read_lines(tgt_path, key)
    if len(src) != len(tgt):
        raise UserError(
            f"{key}: {src_path} has {len(src):,} lines but {tgt_path} has {len(tgt):,}; line i of one must "
            "translate line i of the other; "
            f"judging by the lengths, they part near line {parting_line(src, tgt):,}"
        )
    return ParallelText(src, tgt)


def parting_line(src: list[str], tgt: list[str]) -> int:
    """The line, from 1, at which lines of the longer side most probably lack their partner.

    Translations have similar lengths, so a pair costs the difference of its log lengths. The answer minimises
    the cost of pairing the lines before it as they stand and those after it shifted by the missing lines.
    """
    short, long = sorted(([len(line) for line in side] for side in (src, tgt)), key=len)
    logs, others = np.log1p(short), np.log1p(long)
    straight = np.abs(logs - others[: len(logs)])
    shifted = np.abs(logs - others[len(others) - len(logs) :])
    cost_before = np.concatenate([[0.0], np.cumsum(straight)])
    cost_after = np.concatenate([np.cumsum(shifted[::-1])[::-1], [0.0]])
    return int(np.argmin(cost_before + cost_after)) + 1


def _read_tsv(path: Path, cfg: FilesData, key: str) -> ParallelText:
    """Columns are named by the header, or by number in a file without one. There is no quoting."""
    rows = [line.split("\t") for line in read_lines(path, key)]
    header = rows[0]
    by_number = all(column.isdecimal() for column in cfg.columns)
    if by_number:
        header = [str(number) for number in range(1, len(header) + 1)]
    for column in cfg.columns:
        if column not in header:
            raise _no_tsv_column(cfg, column, path, header, by_number)
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            raise UserError(f"{key}: {path}:{number}: {len(row)} columns, but line 1 has {len(header)}")
    src, tgt = (header.index(column) for column in cfg.columns)
    kept = rows if by_number else rows[1:]
    return ParallelText([row[src] for row in kept], [row[tgt] for row in kept])


def _no_tsv_column(cfg: FilesData, column: str, path: Path, header: list[str], by_number: bool) -> UserError:
    error = cfg.missing_column(column, str(path), [cell[:30] for cell in header])
    if by_number:
        return error
    return UserError(f"{error}; without a header, give numbers: data.src_column=1 data.tgt_column=2")


def _read_jsonl(path: Path, cfg: FilesData, key: str) -> ParallelText:
    text = ParallelText()
    for number, line in enumerate(read_lines(path, key), start=1):
        where = f"{path}:{number}"
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{key}: {where}: not JSON: {error.msg} at character {error.pos + 1}") from error
        values = dict(_leaves(record))
        for column, side in zip(cfg.columns, (text.src, text.tgt), strict=True):
            name = column if column in values else f"translation.{column}"
            if name not in values:
                raise cfg.missing_column(column, where, list(values) or ["no keys"])
            value = values[name]
            if not isinstance(value, str):
                raise UserError(f"{key}: {where}: {name} must be text, but is {json.dumps(value)[:40]}")
            side.append(one_line(value))
    return text


def _leaves(record: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """The values of nested JSON objects under dotted names."""
    if not isinstance(record, dict):
        return
    for name, value in record.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
