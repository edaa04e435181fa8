"""Sentence pairs from files of the user: parallel plain text, TSV, CSV, JSONL and TMX, also compressed.

`nmt.data.reading.lines` splits a file into lines. A line that is not a pair is an error with file and line.
"""

from __future__ import annotations

import csv
import functools
import itertools
import json
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt.checks import Texts, at_least, within
from nmt.data.configs import MAX_SHOWN_COLUMNS, ColumnsConfig, DataConfig, TableConfig, paths_of
from nmt.data.documents import DocumentEnds, ends_document
from nmt.data.parallel_text import (
    MAX_LINE_CHARS,
    MAX_SHOWN_CHARS,
    ONE_FOR_EACH,
    PairStream,
    ParallelText,
    Split,
    chunked,
    joined_streams,
    one_line,
    stamp_of_files,
    weight_of,
)
from nmt.data.reading.compression import without_suffix
from nmt.data.reading.lines import is_cut, read_lines, require_file
from nmt.data.reading.side_files import file_of, files_of_sides, places_of
from nmt.data.reading.tmx import Unit, read_units
from nmt.errors import UserError
from nmt.files import path_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

TABLES = (".tsv", ".csv", ".jsonl", ".tmx")
"""Ends of the names of files of rows."""

_MISSING = object()


@dataclass
class FilesData(ColumnsConfig):
    """Files on disk. A path means two plain text files, or one .tsv, .csv, .jsonl or .tmx file, each also as
    .gz, .bz2, .xz or .zst.

    Plain text: `{lang}` in the path stands for the language, as in corpus/train.{lang}.txt; a path without
    `{lang}` is a prefix, so that corpus/train means corpus/train.en and corpus/train.de.
    """

    name: str = "files"
    train: Texts = None
    """Path of the training pairs, perhaps with `*`, or a list of paths, which are read in order."""
    validation: Texts = None
    """Path, or paths, of the pairs scored during training."""
    test: Texts = None
    """Path, or paths, of the pairs scored at the end."""
    src_column: str | None = None
    """Name of the source side: the word for `{lang}`, the name in the TSV header (in a file without header
    the number of the column, from 1), the JSON key (`a.b` for a nested key) or the language in TMX, also its
    variety (en-GB); null: the language."""
    tgt_column: str | None = None
    """Name of the target side."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for split in Split:
            self.places(split)  # refuses what is no path

    def places(self, split: Split) -> list[str]:
        """Return the paths of the split as they are written."""
        return paths_of(getattr(self, split.value), self.key(split))

    def place(self, split: Split) -> str | None:
        """Return the paths of the split."""
        return ", ".join(self.places(split)) or None

    def each(self, split: Split) -> list[FilesData]:
        """Return a config for each of the paths of a split, as the files there are named."""
        found = list[str]()
        for place in map(os.path.expanduser, self.places(split)):
            found += places_of(place, self.key(split), () if is_table(place) else self.sides)
        named: list[dict[str, Any]] = [{split.value: place} for place in found]
        return [replace(self, **one) for one in named]


@dataclass
class TextData(DataConfig):
    """Text in one language, plain or compressed, for `task=language_model`; a line may be blank."""

    name: str = "text"
    src: str = "none"
    """A word that names no language: there is no source."""
    tgt: str = "en"
    """Language of the text."""
    scored_split: Split = Split.validation
    """The split scored at the end of training and by `nmt evaluate`."""
    train: Texts = None
    """Path of the training text, perhaps with `*`, or a list of paths, which are read in order."""
    validation: Texts = None
    """Path, or paths, of the text scored during training; null: parts of the training text are held out."""
    test: Texts = None
    """Path, or paths, of the text scored at the end, with data.scored_split=test."""
    held_out: float = 0.1
    """Without a validation text: the tail of each block that is held out, as a share of the block."""
    blocks: int = 10
    """Blocks of equally many lines that the training text is then cut into."""

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, self.key_prefix, "(0, 1)", "held_out")
        at_least(self, self.key_prefix, 1, "blocks")
        for split in Split:
            self.places(split)  # refuses what is no path

    @property
    def has_source(self) -> bool:
        """Always False."""
        return False

    def places(self, split: Split) -> list[str]:
        """Return the paths of the split; held-out validation text has those of the training text."""
        if split is Split.validation and self.validation is None:
            return self.places(Split.train)
        return paths_of(getattr(self, split.value), self.key(split))

    def place(self, split: Split) -> str | None:
        """Return the paths of the split; see `places`."""
        return ", ".join(self.places(split)) or None


def missing_splits(cfg: DataConfig) -> list[Split]:
    """Return the splits that a training needs and that are not named; of a text, parts are held out."""
    needed = dict.fromkeys((Split.train, Split.validation, cfg.scored_split))
    missing = [split for split in needed if cfg.place(split) is None]
    if isinstance(cfg, TextData) and Split.train in missing:
        missing = [split for split in missing if split is not Split.validation]
    return missing


def stream(cfg: FilesData, split: Split) -> PairStream:
    """Return one split, aligned and unfiltered: of several files one after the other."""
    several = cfg.of_split(split).each(split)
    if len(several) == 1:
        return _stream_one(several[0], split)
    if cfg.weights is not None and split is Split.train and not all(is_table(one.train) for one in several):
        raise UserError(
            f"{cfg.key_prefix}.weights={cfg.weights} is beside the files of one path, but {cfg.key(split)}="
            f"{cfg.place(split)} means {len(several)}; name one, or tables with a column of weights"
        )
    ends = ParallelText([""], [""]) if cfg.has_documents else None
    return joined_streams([_stream_one(one, split) for one in several], ends)


def _stream_one(cfg: FilesData, split: Split) -> PairStream:
    """Return one split that is one path."""
    place, key = os.path.expanduser(cfg.place(split) or ""), cfg.key(split)
    if (table := stream_table(cfg, split)) is not None:
        return table
    if (
        split is Split.train
        and cfg.document_columns
        and not any(is_table(place) for one in Split for place in cfg.places(one))
    ):
        raise UserError(
            f"{cfg.key_prefix}.document_column={cfg.document_column} names the column of a table, but {key}="
            f"{cfg.place(split)} is plain text, of which a line that is blank on both sides ends a document; "
            "leave it out, or name a .tsv, .csv, .jsonl or .tmx file"
        )
    keys = [f"{cfg.key_prefix}.src", f"{cfg.key_prefix}.tgt"] if cfg.sides == (cfg.src, cfg.tgt) else []
    src, tgt = files_of_sides(place, key, cfg.sides, keys)
    if src.samefile(tgt):
        raise UserError(f"{key}: {src} is both the source and the target; name two different files")
    if cfg.weights is not None:
        return _weighed(src, tgt, cfg.weights, cfg, key)
    return PairStream(lambda: stamp_of_files([src, tgt], cfg.name), lambda: _parallel_chunks(src, tgt, key))


def _weighed(src: Path, tgt: Path, place: str, cfg: FilesData, key: str) -> PairStream:
    """Return the pairs of two files of plain text, with their weights from a third."""
    file, own = path_of(place), f"{cfg.key_prefix}.weights"
    require_file(file, own, "; files of plain text have their weights in a file, a number a line")

    def chunks() -> Iterator[ParallelText]:
        values = enumerate(read_lines(file, own), start=1)
        for chunk in _parallel_chunks(src, tgt, key):
            weights = [
                1.0
                if cfg.has_documents and ends_document(*pair)
                else weight_of(value, f"{own}: {file}:{number}")
                for *pair, (number, value) in zip(chunk.src, chunk.tgt, values, strict=False)
            ]
            if len(weights) < len(chunk):
                raise _miscounted(file, own, src, key)
            yield replace(chunk, weights=weights)
        if next(values, None) is not None:
            raise _miscounted(file, own, src, key)

    return PairStream(lambda: stamp_of_files([src, tgt, file], "weights"), chunks)


def _miscounted(file: Path, own: str, text: Path, key: str) -> UserError:
    weights, lines = (sum(1 for _ in read_lines(*one)) for one in ((file, own), (text, key)))
    return UserError(f"{own}: {file} has {weights:,} lines, but {text} {lines:,}; {ONE_FOR_EACH}")


def is_table(place: str) -> bool:
    """Return whether a path means one file of rows, told by its name."""
    return _kind(place) in TABLES


def _kind(place: str) -> str:
    return Path(without_suffix(Path(place).name)).suffix


def stream_table(cfg: TableConfig, split: Split) -> PairStream | None:
    """Return one split from a file of rows, told by its name; None for the name of another file."""
    place, key = os.path.expanduser(cfg.place(split) or ""), cfg.key(split)
    if not is_table(place):
        return None
    of_memory = functools.partial(_tmx_rows, is_training=split is Split.train)
    readers: dict[str, Callable[[Path, TableConfig, str], Iterator[Row]]] = {
        ".tsv": _tsv_rows,
        ".csv": _csv_rows,
        ".jsonl": _jsonl_rows,
        ".tmx": of_memory,
    }
    rows, file = readers[_kind(place)], file_of(place, key)
    return PairStream(
        lambda: stamp_of_files([file], cfg.name, cfg.columns, *cfg.document_columns),
        lambda: _chunks(cfg, rows(file, cfg, key)),
    )


def stream_text(cfg: TextData, split: Split) -> PairStream:
    """Return one split of a text, with empty sources."""
    held_out = split is Split.validation and cfg.validation is None
    key = cfg.key(Split.train if held_out else split)
    places = map(os.path.expanduser, cfg.places(Split.train if held_out else split))
    files = [file_of(one, key) for place in places for one in places_of(place, key)]
    shared = cfg.validation is None and split is not Split.test
    options = (held_out, cfg.held_out, cfg.blocks) if shared else ()

    def chunks() -> Iterator[ParallelText]:
        lines = itertools.chain.from_iterable(_uncut(file, key) for file in files)
        for tgt in chunked(_within(lines, _ranges(files, cfg, held_out)) if shared else lines):
            yield ParallelText([""] * len(tgt), tgt)

    return PairStream(lambda: stamp_of_files(files, cfg.name, *options), chunks)


def _uncut(file: Path, key: str) -> Iterator[str]:
    """Yield the lines of a text, none of which may be left out; raise `UserError` at one that is too long."""
    for number, line in enumerate(read_lines(file, key), start=1):
        if is_cut(line):
            raise UserError(
                f"{key}: line {number:,} of {file} has more than {MAX_LINE_CHARS:,} characters; break it "
                "into several"
            )
        yield line


def _within(lines: Iterator[str], ranges: Iterable[tuple[int, int]]) -> Iterator[str]:
    """Yield the lines whose numbers, from 0, are in one of the ranges."""
    before = 0
    for first, end in ranges:
        yield from itertools.islice(lines, first - before, end - before)
        before = end


def _ranges(files: Sequence[Path], cfg: TextData, held_out: bool) -> list[tuple[int, int]]:
    """Return the ranges of lines, from 0, to train on, or those that are held out for validation."""
    count = sum(1 for file in files for _ in read_lines(file, cfg.key(Split.train)))
    ranges = []
    for block in range(cfg.blocks):
        start, end = (count * number // cfg.blocks for number in (block, block + 1))
        cut = end - round((end - start) * cfg.held_out)
        ranges.append((cut, end) if held_out else (start, cut))
    if not any(end > first for first, end in ranges):
        part = "held out" if held_out else "left for training"
        raise UserError(
            f"{cfg.key(Split.train)}={cfg.place(Split.train)} has {count} lines in "
            f"{cfg.key_prefix}.blocks={cfg.blocks}; none of them is {part} with "
            f"{cfg.key_prefix}.held_out={cfg.held_out}; "
            f"set {cfg.key(Split.validation)}, or fewer blocks"
        )
    return ranges


def _parallel_chunks(src_path: Path, tgt_path: Path, key: str) -> Iterator[ParallelText]:
    sides = [chunked(read_lines(path, key)) for path in (src_path, tgt_path)]
    for src, tgt in itertools.zip_longest(*sides, fillvalue=list[str]()):
        if len(src) != len(tgt):
            raise _misaligned(src_path, tgt_path, key)
        yield ParallelText(src, tgt)


def _misaligned(src_path: Path, tgt_path: Path, key: str) -> UserError:
    import numpy as np

    src, tgt = (np.fromiter(map(len, read_lines(path, key)), np.int32) for path in (src_path, tgt_path))
    return UserError(
        f"{key}: {src_path} has {len(src):,} lines but {tgt_path} has {len(tgt):,}; line i of one must "
        "translate line i of the other; "
        f"judging by the lengths, they part near line {parting_line(src, tgt):,}"
    )


def parting_line(src: NDArray[Any], tgt: NDArray[Any]) -> int:
    """Return the line, from 1, from which lines are missing in the shorter side, judging by the lengths.

    Translations have similar lengths, so a pair costs the difference of its log lengths. The line minimises
    the cost of pairing the lines before it as they are and the lines after it shifted by the missing lines.
    """
    import numpy as np

    short, long = sorted((src, tgt), key=len)
    logs, others = np.log1p(short), np.log1p(long)
    straight = np.abs(logs - others[: len(logs)])
    shifted = np.abs(logs - others[len(others) - len(logs) :])
    cost_before = np.concatenate([[0.0], np.cumsum(straight)])
    cost_after = np.concatenate([np.cumsum(shifted[::-1])[::-1], [0.0]])
    return int(np.argmin(cost_before + cost_after)) + 1


Row = tuple[Any, ...]
"""The values of the columns of a config, in their order, each the line itself where it is too long; then the
document of the row: values that differ between documents, or None where it is that of the row before."""


def _chunks(cfg: TableConfig, rows: Iterator[Row]) -> Iterator[ParallelText]:
    for chunk in chunked(DocumentEnds().parted(rows)):
        yield cfg.pairs_of(list(map(list, zip(*chunk, strict=True))))


def _tsv_rows(path: Path, cfg: TableConfig, key: str) -> Iterator[Row]:
    """Yield rows; columns have the names of the header, or numbers without a header; nothing is quoted."""
    lines = read_lines(path, key)
    split = ((n, [line] if is_cut(line) else line.split("\t")) for n, line in enumerate(lines, start=1))
    return _rows(split, path, cfg, key)


def _csv_rows(path: Path, cfg: TableConfig, key: str) -> Iterator[Row]:
    """Yield rows of columns with commas between, which may be quoted (RFC 4180), as of `_tsv_rows`."""

    def whole_lines() -> Iterator[str]:
        for number, line in enumerate(read_lines(path, key), start=1):
            if is_cut(line):  # perhaps inside of quotes, so that no row after it would be right
                raise _cut_row(f"{key}: {path}:{number}")
            yield f"{line}\n"

    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_CHARS))
    reader = csv.reader(whole_lines(), strict=True)

    def split() -> Iterator[tuple[int, list[str]]]:
        first = 1
        try:
            for row in reader:
                yield first, list(map(one_line, row))
                first = reader.line_num + 1
        except csv.Error as error:
            last = reader.line_num
            rows = f"; the row goes on to line {last:,}, so close a quote before that" if last > first else ""
            raise UserError(f"{key}: {path}:{first}: not CSV: {error}{rows}") from error

    return _rows(split(), path, cfg, key)


def _rows(split: Iterator[tuple[int, list[str]]], path: Path, cfg: TableConfig, key: str) -> Iterator[Row]:
    """Yield the columns of `cfg` of the rows of a table, which are given with the numbers of their lines."""
    _, first = next(split)
    if _is_blank(first):
        raise _blank_row(f"{key}: {path}:1")
    if len(first) == 1 and is_cut(first[0]):  # its columns are those of all rows
        raise _cut_row(f"{key}: {path}:1")
    header, columns = first, [*cfg.columns, *cfg.document_columns]
    by_number = all(column.isdecimal() for column in columns)
    if by_number:
        header = [str(number) for number in range(1, len(header) + 1)]
    for column in columns:
        if column not in header:
            error = cfg.missing_column(column, str(path), header)
            fields = [*cfg.column_fields, *["document_column" for _ in cfg.document_columns]]
            keys = " ".join(
                f"{cfg.key_prefix}.{field}={number}" for number, field in enumerate(fields, start=1)
            )
            raise error if by_number else UserError(f"{error}; without a header, give numbers: {keys}")
        if header.count(column) > 1:
            raise UserError(f"{key}: {path}:1: the column {column!r} is there twice; rename one of them")
    places = [header.index(column) for column in columns]
    num = len(cfg.columns)

    def row_of(values: list[str], number: int) -> Row:
        found = [values[place] for place in places]
        _require_weights(cfg, found, f"{key}: {path}:{number}")
        return *found[:num], found[num:]

    if by_number:
        yield row_of(first, 1)
    for number, row in split:
        if len(row) == 1 and is_cut(row[0]):  # both sides count as too long
            yield *[row[0]] * num, None
            continue
        if cfg.has_documents and not any(map(str.strip, row)):
            yield *[""] * num, None
            continue
        if _is_blank(row):
            raise _blank_row(f"{key}: {path}:{number}")
        if len(row) != len(header):
            raise UserError(
                f"{key}: {path}:{number}: the number of columns is {len(row)}, but that of line 1 is "
                f"{len(header)}; mend the line or remove it"
            )
        yield row_of(row, number)


def _is_blank(row: list[str]) -> bool:
    """Return whether a row is a blank line, which has no columns; a pair may have two blank sides."""
    return len(row) < 2 and not any(map(str.strip, row))


def _blank_row(where: str) -> UserError:
    return UserError(f"{where}: the line is blank; remove it")


def _cut_row(where: str) -> UserError:
    return UserError(f"{where} has more than {MAX_LINE_CHARS:,} characters; remove it")


def _require_weights(cfg: TableConfig, texts: Sequence[str], where: str) -> None:
    """Raise `UserError` unless the weight in a row of texts, if there is one, is a weight."""
    if cfg.has_weights:
        weight_of(texts[cfg.column_fields.index("weights")], where)


def _jsonl_rows(path: Path, cfg: TableConfig, key: str) -> Iterator[Row]:
    num = len(cfg.columns)
    for number, line in enumerate(read_lines(path, key), start=1):
        if is_cut(line):  # both sides count as too long
            yield *[line] * num, None
            continue
        if cfg.has_documents and not line.strip():
            yield *[""] * num, None
            continue
        where = f"{path}:{number}"
        if not line.strip():
            raise _blank_row(f"{key}: {where}")
        record = _parsed(line, f"{key}: {where}")
        texts = [_text_of(column, record, cfg, where, key) for column in cfg.columns]
        _require_weights(cfg, texts, f"{key}: {where}")
        yield *texts, [_document_of(column, record, cfg, where) for column in cfg.document_columns]


def _tmx_rows(path: Path, cfg: TableConfig, key: str, *, is_training: bool) -> Iterator[Row]:
    """Yield a row for each unit; in training a blank side, which filters count, where it lacks a language."""
    columns, seen, known = [*cfg.columns, *cfg.document_columns], set[str](), dict[str, None]()
    for unit in read_units(path, key):
        where = f"{key}: {path}:{unit.line}"
        there = [*(language for language, _ in unit.texts), *unit.properties]
        known |= dict.fromkeys(there)
        values = {column: _only_value(unit, column, cfg, where) for column in columns}
        seen |= {column for column, value in values.items() if value is not None}
        for column in cfg.numbered:
            if values[column] is None:
                raise cfg.missing_column(column, f"{path}:{unit.line}", there)
        texts = [values[column] for column in cfg.columns]
        if None in texts and not is_training:
            lacking = cfg.columns[texts.index(None)]
            raise UserError(
                f"{where}: the unit has no text in {lacking}, only {', '.join(there) or 'none'}; leave such "
                f"units out, or set {cfg.key_of(lacking)[1]}"
            )
        if cfg.has_documents and not any(
            values[column] for column in cfg.columns if column not in cfg.numbered
        ):
            continue  # two blank sides would end the document
        found = [text or "" for text in texts]
        _require_weights(cfg, found, where)
        documents = [values[column] for column in cfg.document_columns]
        yield *found, None if None in documents else documents
    for column in columns:
        if column not in seen:
            raise cfg.missing_column(column, str(path), list(known) or ["no units"])


def _only_value(unit: Unit, column: str, cfg: TableConfig, where: str) -> str | None:
    """Return the text of a unit in a language, or None; raise `UserError` where there are several."""
    values = unit.values(column)
    if len({text for _, text in values}) > 1:
        languages = list(dict.fromkeys(language for language, _ in values))
        way_out = f"set {cfg.key_of(column)[1]} to one" if len(languages) > 1 else "leave one of them there"
        raise UserError(f"{where}: the unit has {len(values)} texts in {', '.join(languages)}; {way_out}")
    return values[0][1] if values else None


def _document_of(column: str, record: object, cfg: TableConfig, where: str) -> object:
    """Return the document of a record: any value."""
    value = _value(record, column)
    if value is _MISSING:
        names = list(itertools.islice(_names(record), MAX_SHOWN_COLUMNS + 1))
        raise cfg.missing_column(column, where, names or ["no keys"])
    return value


def _parsed(line: str, where: str) -> object:
    """Return the value of a line of JSON; raise `UserError` for one that is no JSON or cannot be read."""
    try:
        return json.loads(line, object_pairs_hook=lambda pairs: _unambiguous(pairs, where))
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: not JSON: {error.msg} at character {error.pos + 1}") from error
    except RecursionError as error:
        raise UserError(f"{where}: JSON that is nested too deeply; write a flat record") from error
    except ValueError as error:  # from a number
        raise UserError(f"{where}: JSON with a number of thousands of digits; write it as text") from error


def _unambiguous(pairs: list[tuple[str, object]], where: str) -> dict[str, object]:
    """Return an object of JSON; raise `UserError` when it has a key twice."""
    record = dict(pairs)
    if len(record) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise UserError(f"{where}: the key {twice[:30]!r} is there twice; keep one of them")
    return record


def _text_of(column: str, record: object, cfg: TableConfig, where: str, key: str) -> str:
    for name in (column, f"translation.{column}"):
        value = _value(record, name)
        if isinstance(value, str):
            return one_line(value)
        if isinstance(value, int | float) and column in cfg.numbered:
            return json.dumps(value)
        if value is not _MISSING:
            shown = "a list" if isinstance(value, list) else json.dumps(value)[:40]
            raise UserError(f"{key}: {where}: {name} must be text, but is {shown}")
    names = list(itertools.islice(_names(record), MAX_SHOWN_COLUMNS + 1))
    raise cfg.missing_column(column, where, names or ["no keys"])


def _value(record: object, name: str) -> object:
    """Return what a record of JSON holds under a dotted name, unless that is an object, or `_MISSING`."""
    if not isinstance(record, dict):
        return _MISSING
    if name in record and not isinstance(record[name], dict):
        return record[name]
    heads = (name[:end] for end, character in enumerate(name) if character == ".")
    inner = (_value(record[head], name[len(head) + 1 :]) for head in heads if head in record)
    return next((value for value in inner if value is not _MISSING), _MISSING)


def _names(record: object) -> Iterator[str]:
    """Yield the dotted names of the values in nested objects of JSON, as far as they are shown."""
    unread = deque([("", record)])
    while unread:
        prefix, group = unread.popleft()
        for name, value in group.items() if isinstance(group, dict) else ():
            if isinstance(value, dict):
                unread.append((f"{prefix}{name}."[:MAX_SHOWN_CHARS], value))
            else:
                yield f"{prefix}{name}"
