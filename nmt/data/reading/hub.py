"""Sentence pairs from Hugging Face datasets: on the hub, or in a local folder of the same layout.

Columns may be flat (`en`, `de`) or nested (`translation: {en, de}`, as in wmt/*). A missing configuration,
split or column is an error that lists the existing ones. No code of a dataset is ever run. The library caches
its downloads; its copy of a local folder is deleted with the streams that read the folder, so that it is
never stale.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import hashlib
import itertools
import logging
import math
import os
import re
import sys
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary, finalize

from nmt.data.configs import ColumnsConfig, TableConfig, shown
from nmt.data.documents import DocumentEnds
from nmt.data.parallel_text import (
    CHUNK_PAIRS,
    MAX_LINE_CHARS,
    PairStream,
    ParallelText,
    Split,
    one_line_each,
    stamp_of_files,
    weight_of,
)
from nmt.data.reading.compression import without_suffix
from nmt.data.reading.lines import open_bytes
from nmt.errors import UserError, suggest
from nmt.files import read_json
from nmt.temporary import temporary_folder

if TYPE_CHECKING:
    from datasets import Dataset, DatasetBuilder, IterableDataset

FORMAT_VERSION = 3
"""Increased when the rows of a dataset are read in another way, so that no cache entry is stale."""
PROBE_SECONDS = 5.0
"""Time that the hub has to answer before only cached copies are used."""
SILENT_SECONDS = 60.0
"""Time in which a hub that did not answer is not asked again: each reading of a split asks."""
_ASKED: dict[str, tuple[bool, float]] = {}
"""Whether the hub at an address answered when it was asked last, and when that was."""


@dataclass
class DatasetConfig(TableConfig):
    """The place of a dataset on the hub, or in a local folder, and the names of its splits."""

    dataset: str = ""
    """Name on the hub, as owner/name."""
    path: str | None = None
    """A local folder to read instead of the hub."""
    config: str | None = None
    """Configuration of the dataset, or a folder inside it. `{src}` and `{tgt}` stand for the languages, in
    the order in which the dataset has them. A local folder without configurations, in which only folders
    called data or as a split hold files, ignores it."""
    revision: str | None = None
    """Branch, tag or commit on the hub; null: main. refs/convert/parquet has the data of script datasets."""
    train_split: str | None = "train"
    """Name of the training split, or a slice such as train[:100000]; null: there is none."""
    validation_split: str | None = "validation"
    """Name of the split scored during training, or a slice; null: there is none."""
    test_split: str | None = "test"
    """Name of the split scored at the end, or a slice; null: there is none."""

    @classmethod
    def split_field(cls, split: Split) -> str:
        """Return the name of the field that names the split in the dataset."""
        return f"{split.value}_split"

    @property
    def where(self) -> str:
        """The folder or the name on the hub that is read."""
        return os.path.expanduser(self.path) if self.path else self.dataset

    @property
    def origins(self) -> set[str]:
        """The folder or the name on the hub."""
        return {self.where}


@dataclass
class HubData(DatasetConfig, ColumnsConfig):
    """A dataset on the Hugging Face hub, or a local folder of the same layout."""

    name: str = "hub"


def stream(cfg: DatasetConfig, split: Split) -> PairStream:
    """Return one split, aligned and unfiltered; `cfg.place(split)` must be set."""
    cfg, opened = cfg.of_split(split), _opened(cfg)

    def stamp() -> str:
        version = stamp_of_folder(cfg) if cfg.path else opened.version()
        place = cfg.name, cfg.config, cfg.src, cfg.tgt, cfg.place(split)
        facts = (FORMAT_VERSION, version, *place, cfg.columns, *cfg.document_columns)
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    return PairStream(stamp, lambda: opened.chunks(cfg, split))


def values(cfg: DatasetConfig, split: Split, column: str, key: str) -> Iterator[object]:
    """Yield the value of a column for each row of a split; `key` asks for the column."""
    return _opened(cfg).values(cfg, split, column, key)


def _opened(cfg: DatasetConfig) -> _Dataset:
    """Return the dataset, which other streams may read, too."""
    if not cfg.where:
        raise UserError(
            f"{cfg.key_prefix}.dataset is not set, but there is no text without it; set it to a dataset of "
            f"the hub (owner/name), or {cfg.key_prefix}.path to a local folder"
        )
    if cfg.path and not Path(cfg.where).is_dir():
        kind = "a file; data=files reads files" if Path(cfg.where).exists() else "not there"
        raise UserError(f"{cfg.key_prefix}.path={cfg.path} must be a folder with a dataset, but is {kind}")
    version = stamp_of_folder(cfg) if cfg.path else ""
    what = cfg.where, cfg.config, cfg.revision, cfg.src, cfg.tgt, _ends_by_rows(cfg)
    return _OPENED.setdefault((version, *what), _Dataset(cfg))


def stamp_of_folder(cfg: DatasetConfig) -> str:
    """Return a stamp of all files in a local folder."""
    return stamp_of_files(sorted(file for file in Path(cfg.where).rglob("*") if file.is_file()))


class _Dataset:
    """A dataset that is opened when the first of its splits is read, and no more than once."""

    def __init__(self, cfg: DatasetConfig):
        self._cfg = cfg

    @functools.cached_property
    def _builder(self) -> DatasetBuilder:
        scratch: str | None = None
        if self._cfg.path:  # the library makes its own copy of the files
            stack = contextlib.ExitStack()
            scratch = str(stack.enter_context(temporary_folder()))
            finalize(self, stack.close)
        return _open_dataset(self._cfg, scratch)

    @contextlib.contextmanager
    def _ready(self) -> Iterator[DatasetBuilder]:
        _be_quiet(local=bool(self._cfg.path))
        offline = contextlib.nullcontext() if self._cfg.path else _offline_when_unreachable()
        with offline, _readable_errors(self._cfg):
            yield self._builder

    def version(self) -> str:
        """Return the cache folder of the library, which has another one for each version of the data."""
        with self._ready() as builder:
            return str(builder.cache_dir)

    def chunks(self, cfg: DatasetConfig, split: Split) -> Iterator[ParallelText]:
        """Yield the pairs of a split."""
        with self._ready() as builder:
            dataset = _open_split(cfg, split, builder, streaming=cfg.streaming)
        with _readable_errors(cfg):
            yield from _read_columns(cfg, dataset)

    def values(self, cfg: DatasetConfig, split: Split, column: str, key: str) -> Iterator[object]:
        """Yield the value of a column for each row of a split."""
        with self._ready() as builder:
            dataset = _open_split(cfg, split, builder, streaming=False)
        with _readable_errors(cfg):
            for table in _tables(dataset):
                if column not in table.column_names:
                    known = shown(table.column_names)
                    near = suggest(column, table.column_names)
                    raise UserError(f"{key}={column}: {cfg.where} has no such column, only {known}{near}")
                yield from table.column(column).to_pylist()


_OPENED: WeakValueDictionary[object, _Dataset] = WeakValueDictionary()
"""The datasets that some stream may still read."""


def _open_dataset(cfg: DatasetConfig, cache: str | None) -> DatasetBuilder:
    """Open the dataset in the first of the configurations that `cfg.config` can mean."""
    from datasets import get_dataset_config_names, load_dataset_builder
    from datasets.exceptions import DatasetNotFoundError

    if saved := _saved_files(cfg):
        return load_dataset_builder("arrow", data_files=saved, cache_dir=cache)
    failure: Exception | None = None
    for choice in _config_choices(cfg):
        opened = functools.partial(
            load_dataset_builder, cfg.where, revision=cfg.revision, cache_dir=cache, **choice
        )
        try:
            builder = opened()
            if cfg.config and not choice and (names := _configurations(cfg, builder)):
                raise _no_config(cfg, names)
            if cfg.path and _ends_by_rows(cfg):
                _require_no_blank_rows(cfg, builder)
            if not hasattr(builder.config, "keep_default_na"):
                return builder
            # as in data=files: `null` is a word, and a quotation mark in TSV is text
            is_tsv = builder.config.sep == "\t"
            if is_tsv and cfg.path:
                _require_whole_rows(cfg, builder)
            quoting = csv.QUOTE_NONE if is_tsv else builder.config.quoting
            return opened(keep_default_na=False, quoting=quoting)
        except DatasetNotFoundError:
            raise
        except (ValueError, FileNotFoundError) as error:
            failure = error
    try:
        names = get_dataset_config_names(cfg.where, revision=cfg.revision)
    except (ValueError, FileNotFoundError) as error:
        raise failure or error from failure  # the folder is to blame
    raise _no_config(cfg, names) from failure


def _files_of(builder: DatasetBuilder) -> list[Path]:
    """Return the files on disk that a dataset is read from."""
    files = {str(file) for files in (builder.config.data_files or {}).values() for file in files}
    return sorted(Path(file) for file in files if Path(file).is_file())


def _ends_by_rows(cfg: DatasetConfig) -> bool:
    """Return whether blank rows alone tell where documents end."""
    return cfg.has_documents and not cfg.document_columns


def _require_no_blank_rows(cfg: DatasetConfig, builder: DatasetBuilder) -> None:
    """Refuse rows with a blank line between: the library leaves it out, and it may part documents."""
    key = f"{cfg.key_prefix}.path={cfg.path}"
    for path in _files_of(builder):
        with open_bytes(path, key) as lines:
            kind = Path(without_suffix(path.name)).suffix
            blank = 0
            for number, is_blank in _blank_rows((line.decode(errors="replace") for line in lines), kind):
                if blank and not is_blank:
                    raise UserError(
                        f"{key}: {path}:{blank}: a blank line ends no document here; set "
                        f"{cfg.key_prefix}.document_column to a column that tells documents apart, or read "
                        "the file with data=files"
                    )
                blank = number if is_blank else 0


def _blank_rows(lines: Iterator[str], kind: str) -> Iterator[tuple[int, bool]]:
    """Yield for each row of a table the number of its last line, and whether it is a line without text."""
    if kind == ".csv":  # where a blank line inside of quotes is text
        csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_CHARS))
        reader = csv.reader(lines)
        try:
            for row in reader:
                yield reader.line_num, len(row) < 2 and not "".join(row).strip(" \t")
        except csv.Error:  # what the library makes of such a file is not known here
            return
    elif kind == ".tsv":
        yield from ((number, not line.strip(" \r\n")) for number, line in enumerate(lines, start=1))
    elif kind in (".jsonl", ".ndjson", ".json"):
        for number, line in enumerate(lines, start=1):
            text = line.strip()
            if text and not (text.startswith("{") and text.endswith("}")):
                return  # one value over several lines
            yield number, not text


def _require_whole_rows(cfg: DatasetConfig, builder: DatasetBuilder) -> None:
    """Refuse TSV with rows of another width than the header, which the library would fill or shift."""
    key = f"{cfg.key_prefix}.path={cfg.path}"
    for path in _files_of(builder):
        width = 0
        with open_bytes(path, key) as rows:
            for number, row in enumerate(rows, start=1):
                text = row.rstrip(b"\r\n")
                if not text:
                    continue
                found = text.count(b"\t") + 1
                width = width or found
                if found != width:
                    raise UserError(
                        f"{key}: {path}:{number}: the number of columns is {found}, but that of the header "
                        f"is {width}; mend the line or remove it"
                    )
                if b"\r" in text:
                    raise UserError(
                        f"{key}: {path}:{number}: a carriage return inside of a line would end it; "
                        "put a space there"
                    )


def _saved_files(cfg: DatasetConfig) -> dict[str, list[str]]:
    """Return the files of each split of a folder that `save_to_disk` wrote; none for other folders.

    Beside them the library keeps what was made of the rows since.
    """
    folder = Path(cfg.where)
    if not cfg.path or not any((folder / name).is_file() for name in ("dataset_dict.json", "state.json")):
        return {}
    try:
        if (folder / "dataset_dict.json").is_file():
            folders = {name: folder / name for name in read_json(folder / "dataset_dict.json")["splits"]}
        else:
            folders = {read_json(folder / "state.json")["_split"] or "train": folder}
        states = {name: read_json(place / "state.json")["_data_files"] for name, place in folders.items()}
        return {
            name: [str(folders[name] / Path(file["filename"]).name) for file in files]
            for name, files in states.items()
        }
    except (KeyError, TypeError, OSError, ValueError) as error:
        raise UserError(
            f"{cfg.key_prefix}.path={cfg.path} is no folder as save_to_disk writes it ({error!r}); save the "
            "dataset again"
        ) from error


def _config_choices(cfg: DatasetConfig) -> Iterator[dict[str, str]]:
    """Yield arguments that select a configuration by its name or its folder, languages in either order.

    Those that select none are the last for a local folder, which perhaps has no configurations.
    """
    if cfg.config is not None:
        pairs = ((cfg.src, cfg.tgt), (cfg.tgt, cfg.src))
        names = dict.fromkeys(cfg.config.replace("{src}", a).replace("{tgt}", b) for a, b in pairs)
        yield from ({"name": name} for name in names)
        yield from ({"data_dir": name} for name in names)
    if cfg.config is None or cfg.path:
        yield {}


def _configurations(cfg: DatasetConfig, builder: DatasetBuilder) -> list[str]:
    """Return the configurations of a local folder: those that it declares, or else folders inside of it.

    A folder that is called data, or as a split, is none.
    """
    from datasets.data_files import SPLIT_KEYWORDS

    if [*builder.builder_configs] != ["default"]:
        return [*builder.builder_configs]
    common = {"data", *itertools.chain.from_iterable(SPLIT_KEYWORDS.values())}
    root, found = Path(cfg.where).resolve(), set[str]()
    for parents in (file.relative_to(root).parent.parts for file in _files_of(builder)):
        place = parents[: 2 if parents[:1] == ("data",) else 1]
        if place and common.isdisjoint(re.split("[-._ 0-9]", place[-1])):
            found.add("/".join(place))
    return [*found]


def _no_config(cfg: DatasetConfig, names: Sequence[str]) -> UserError:
    """Return the error that the configuration is none of those there are."""
    wanted = next((choice["name"] for choice in _config_choices(cfg) if choice), "")
    key = f"{cfg.key_prefix}.config"
    problem = f"{key}={cfg.config} is no configuration" if cfg.config else f"{key} must be set"
    return UserError(f"{problem}; {cfg.where} has {', '.join(sorted(names))}{suggest(wanted, sorted(names))}")


def _open_split(
    cfg: DatasetConfig, split: Split, builder: DatasetBuilder, *, streaming: bool
) -> Dataset | IterableDataset:
    """Return the rows of one split: downloaded unless they are cached, or read from where they are.

    The library downloads all splits or none, and cannot read parts of them, or sums, from where they are.
    """
    wanted = cfg.place(split) or ""
    known = builder.info.splits or getattr(builder.config, "data_files", None) or ()
    names = [str(name) for name in known]
    for part in wanted.split("+") if names else ():
        name = part.partition("[")[0].strip()
        if name not in names:
            raise UserError(
                f"{cfg.key(split)}={wanted}: {cfg.where} has no split {name!r}, only {', '.join(names)}"
                f"{suggest(name, names)}; null means that there is none"
            )
    try:
        if streaming and (split is Split.train or not {"[", "+"} & {*wanted}):
            return builder.as_streaming_dataset(split=wanted)
        builder.download_and_prepare()
        return builder.as_dataset(split=wanted)
    except ValueError as error:
        raise UserError(f"{cfg.key(split)}={wanted}: {error}") from error


def _read_columns(cfg: DatasetConfig, dataset: Dataset | IterableDataset) -> Iterator[ParallelText]:
    """Yield both sides of all rows; line breaks inside a sentence become spaces."""
    before, names_of, ends = 0, _names_of_labels(dataset), DocumentEnds()
    for table in _tables(dataset):
        columns = [_strings(cfg, table, column, before, names_of) for column in cfg.columns]
        before += len(table)
        columns = list(map(one_line_each, columns))
        for column in cfg.document_columns:
            rows = ends.parted(zip(*columns, _values(cfg, table, column), strict=True))
            columns = list(map(list, zip(*rows, strict=True)))
        yield cfg.pairs_of(columns)


def _tables(dataset: Dataset | IterableDataset) -> Iterator[Any]:
    """Yield the rows as Arrow tables with flat columns."""
    for table in dataset.with_format("arrow").iter(batch_size=CHUNK_PAIRS):
        while table.column_names != table.flatten().column_names:
            table = table.flatten()  # translation: {en, de} becomes translation.en and translation.de
        yield table


def _values(cfg: DatasetConfig, table: Any, column: str) -> list[Any]:
    """Return the values of any column of an Arrow table; null is a document, too."""
    if column not in table.column_names:
        raise cfg.missing_column(column, cfg.where, table.column_names)
    return [[value] for value in table.column(column).to_pylist()]


def _names_of_labels(dataset: Dataset | IterableDataset) -> dict[str, list[str]]:
    """Return the names that the numbers in a column of labels stand for, by the name of the column."""
    from datasets import ClassLabel

    features = dataset.features or {}
    return {name: kind.names for name, kind in features.items() if isinstance(kind, ClassLabel)}


def _named(
    cfg: DatasetConfig, values: list[Any], names: Sequence[str], column: str, before: int
) -> list[str]:
    """Return the labels that numbers stand for; without names the numbers themselves are the labels."""
    for number, value in enumerate(values, start=before + 1):
        if value is None or (names and not 0 <= value < len(names)):
            raise UserError(
                f"{cfg.where}: row {number:,} of the split has no label in column {column!r}, but {value}; "
                "leave such rows out, or name another split"
            )
    return [names[value] if names else str(value) for value in values]


def _strings(
    cfg: DatasetConfig, table: Any, column: str, before: int, names_of: Mapping[str, Sequence[str]]
) -> list[str]:
    """Return a column of an Arrow table, which must hold strings, or for a label numbers.

    `before` rows precede the table; `names_of` has the names that numbers stand for.
    """
    names = table.column_names
    name = column if column in names else f"translation.{column}"
    if name not in names:
        raise cfg.missing_column(column, cfg.where, names)
    kind = str(table.schema.field(name).type)
    if cfg.has_weights and column == cfg.columns[-1]:
        values = [str(value) for value in table.column(name).to_pylist()]
        for row, value in enumerate(values, start=before + 1):
            weight_of(value, f"{cfg.where}: row {row:,} of the split, column {name!r}")
        return values
    if column in cfg.numbered and (kind == "bool" or kind.startswith(("int", "uint"))):
        return _named(cfg, table.column(name).to_pylist(), names_of.get(name, []), name, before)
    if kind not in ("string", "large_string", "string_view"):
        raise UserError(f"{cfg.where}: column {name!r} must hold text, but holds {kind}")
    values = table.column(name).to_pylist()
    if None in values:
        row = before + values.index(None) + 1
        raise UserError(f"{cfg.where}: row {row:,} of the split has no text in column {column!r}")
    return values


@contextlib.contextmanager
def _readable_errors(cfg: DatasetConfig) -> Iterator[None]:
    """Restate errors of the datasets library as `UserError`."""
    from datasets.exceptions import DatasetsError

    prefix = cfg.key_prefix
    key = f"{prefix}.path={cfg.path}" if cfg.path else f"{prefix}.dataset={cfg.dataset}"
    local = f"{prefix}.path=FOLDER reads a dataset from disk, data=files plain files"
    try:
        yield
    except ConnectionError as error:
        raise UserError(f"{key}: the hub cannot be reached, and no copy is cached; {local}") from error
    except FileNotFoundError as error:
        reason = str(error).rstrip(".")
        raise UserError(f"{key}: {reason}" + ("" if cfg.path else f"; check the name, or {local}")) from error
    except StopIteration as error:  # which the library lets out
        raise UserError(f"{key}: a file of it is empty; fill it, or remove it") from error
    except RuntimeError as error:
        if "scripts are no longer supported" not in str(error):
            raise
        raise UserError(
            f"{key} is made by a script, and scripts are not run; {prefix}.revision=refs/convert/parquet may "
            f"have its data, or {local}"
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{key}: a text is not UTF-8 ({error}); convert the file: iconv -t UTF-8") from error
    except (OSError, EOFError, zlib.error, ValueError, DatasetsError) as error:
        raise UserError(f"{key} cannot be read: {error.__cause__ or error}") from error


@contextlib.contextmanager
def _offline_when_unreachable() -> Iterator[None]:
    """Use only the cache while the hub does not answer, instead of retrying for half a minute."""
    import datasets.config
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    if not any(before) and not _answers(datasets.config.HF_ENDPOINT):
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


def _answers(url: str) -> bool:
    """Return whether the hub answers: it is asked until it does, and not again soon after it has not."""
    found, then = _ASKED.get(url, (False, -math.inf))
    if not found and time.monotonic() - then > SILENT_SECONDS:
        found = _answers_now(url)
        _ASKED[url] = found, time.monotonic()
    return found


def _answers_now(url: str) -> bool:
    import urllib.error
    import urllib.request
    from http.client import HTTPException

    request = urllib.request.Request(url, method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=PROBE_SECONDS).close()
    except urllib.error.HTTPError:
        return True
    except (OSError, HTTPException):
        return False
    return True


def _be_quiet(local: bool) -> None:
    """Silence the log of the libraries, and their progress bars unless a person waits for a download."""
    import datasets
    from huggingface_hub import utils

    for library in (datasets.utils, utils):
        library.logging.set_verbosity(logging.CRITICAL)
        if local or not sys.stderr.isatty():
            library.disable_progress_bars()
