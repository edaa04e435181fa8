"""What filters measure of the pairs of a corpus, block by block, in one process or several, and kept.

    CACHE/values-HASH/HASH/values.npz    which pairs of a block a filter has measured, and their values

The first hash is of all that the values of a filter depend on, the second of the text of the block. So values
outlive a process that is killed, and are found by another chain: one with another threshold, with more
filters, over a corpus that has grown. What is measured faster than it is read is measured anew.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import shutil
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt import extras
from nmt.data.cleaning.filters import FilterReport
from nmt.data.cleaning.pair_filters import Context, Mask, NumberedText, PairFilter, Values, earlier_streams
from nmt.data.filter_table import FILTERS, DuplicatesConfig, FilterConfig, ModelFilterConfig, Unit
from nmt.data.parallel_text import stamp_of_files
from nmt.disk_cache import Metadata, entry_name, open_entry, write_entry
from nmt.loading import loaded

FORMAT_VERSION = 1
"""Increased when the format of a cache entry, or what a filter measures, changes."""
BLOCK_PAIRS = 1 << 15
"""Pairs of a corpus that are measured together."""
STORED_SECONDS = 0.1
"""Time to measure a block from which the values are stored."""


@dataclass
class Block:
    """Consecutive pairs of a corpus, as filters see them, without those that the limits drop."""

    first: int
    """The number of the first pair, from 0."""
    text: NumberedText
    dropped_by: NDArray[Any]
    """For each pair the number of the filter that dropped it, from 1, or 0."""
    read: FilterReport
    """The pairs that were read, and what the limits dropped."""

    @property
    def left(self) -> Mask:
        """Which pairs no filter has dropped."""
        return self.dropped_by == 0

    @property
    def rows(self) -> NDArray[np.int64]:
        """The rows of the pairs among those that were read for the block."""
        return self.text.numbers - self.first

    @functools.cached_property
    def digest(self) -> str:
        """A hash of the text."""
        lines = "\n".join([*self.text.src, "", *self.text.tgt])
        return hashlib.sha256(lines.encode("utf-8", "surrogatepass")).hexdigest()


def depends_on(row: FilterConfig, context: Context, *, only_values: bool = False) -> list[object]:
    """Return all that the choices of a filter depend on but the pairs, or its values alone.

    Raises:
        UserError: a model or a library is not there.
    """
    left_out = {"key_prefix", *(row.thresholds if only_values else ())}
    named = {one.name: getattr(row, one.name) for one in dataclasses.fields(row)}
    found: list[object] = [
        context.languages,
        {key: value for key, value in named.items() if key not in left_out},
    ]
    found += [stamp_of_files(row.files.values()), *versions(row)]
    if isinstance(row, ModelFilterConfig) and context.scorers:
        found.append(context.scorers.digest(row))
    if isinstance(row, DuplicatesConfig) and row.earlier and not only_values:
        found += [source.stamp() for source in earlier_streams(context)]
    if row.name == "overlap":
        found += [(name, text.src, text.tgt) for name, text in context.scored_on.items()]
    return found


def versions(row: FilterConfig) -> list[str]:
    """Return the versions of the libraries on which the values of a filter depend.

    Raises:
        UserError: a library is not there.
    """
    listed = FILTERS[row.name]
    if listed.extra:
        extras.require(listed.extra, f"{row.key_prefix}: the filter {row.name}")
    found = list(extras.EXTRAS[listed.extra].distributions) if listed.extra else []
    if getattr(row, "normalise", True) and getattr(row, "unit", Unit.words) is Unit.words:
        found += listed.libraries
    return [unicodedata.unidata_version if name == "unicodedata" else version(name) for name in found]


def is_alone(row: FilterConfig) -> bool:
    """Return whether any process can measure a pair by itself: no model is asked, no score is read."""
    return not (isinstance(row, ModelFilterConfig) or row.counts_pairs)


def opened(rows: Sequence[FilterConfig], context: Context) -> list[PairFilter]:
    """Return filters, ready to judge."""
    return [loaded(FILTERS[row.name].code)(row, context) for row in rows]


@dataclass(frozen=True)
class Measurement:
    """What some filters of a chain measure, one after the other."""

    rows: tuple[FilterConfig, ...]
    context: Context
    folders: tuple[Path | None, ...]
    """For each filter where its values are kept, or None."""
    stored_seconds: float
    """Time to measure a block from which the values are kept."""

    @classmethod
    def of(cls, rows: Sequence[FilterConfig], context: Context, cache: Path | None) -> Measurement:
        """Return the measurement by the filters `rows`, kept in `cache` if there is one."""

        def folder(row: FilterConfig) -> Path | None:
            if cache is None or row.counts_pairs:  # they are read for each pair, from the first to the last
                return None
            return cache / entry_name("values", FORMAT_VERSION, *depends_on(row, context, only_values=True))

        return cls(tuple(rows), context, tuple(map(folder, rows)), STORED_SECONDS)

    def start(self) -> Callable[[Block], list[Values]]:
        """Return the function that measures a block, for another process."""
        return self.by(opened(self.rows, self.context))

    def by(self, filters: Sequence[PairFilter]) -> Callable[[Block], list[Values]]:
        """Return the function that measures a block.

        For each filter it returns the values of the pairs that are left by the filters before.
        """

        def measured(block: Block) -> list[Values]:
            left, found = block.left, list[Values]()
            for one, folder in zip(filters, self.folders, strict=True):
                found.append(self.values_of(one, folder, block, left))
                if not one.needs_all:
                    left[left] = one.accept(found[-1])
            return found

        return measured

    def values_of(self, one: PairFilter, folder: Path | None, block: Block, asked: Mask) -> Values:
        """Return what a filter measures of some pairs of a block, in part from its folder."""
        if folder is None:
            return one.values(block.text.kept(asked))
        entry = folder / block.digest
        known, values = _stored(entry, len(asked))
        missing = asked & ~known
        if values is None or missing.any():
            before = perf_counter()
            made = one.values(block.text.kept(missing))
            seconds = perf_counter() - before
            if values is None:
                values = np.zeros((len(asked), *made.shape[1:]), made.dtype)
            values[missing] = made
            if seconds >= self.stored_seconds:
                _store(entry, known | missing, values)
        found: Values = values[asked]
        return found


def _stored(entry: Path, size: int) -> tuple[Mask, Values | None]:
    """Return which pairs of a block have values in an entry, and the values, with any others between."""
    if open_entry(entry) is None:
        return np.zeros(size, bool), None
    try:
        with np.load(entry / "values.npz") as arrays:
            known = np.unpackbits(arrays["known"], count=size).view(bool)
            stored = arrays["values"]
    except FileNotFoundError:  # another process is about to replace it
        return np.zeros(size, bool), None
    values = np.zeros((size, *stored.shape[1:]), stored.dtype)
    values[known] = stored
    return known, values


def _store(entry: Path, known: Mask, values: Values) -> None:
    def fill(draft: Path) -> Metadata:
        np.savez_compressed(draft / "values.npz", known=np.packbits(known), values=values[known])
        return {}

    shutil.rmtree(entry, ignore_errors=True)  # of fewer pairs
    write_entry(entry, fill, is_passing=True)
