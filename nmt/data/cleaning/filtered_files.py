"""What filters keep of the training pairs, and a table of what they drop, as files for people and programs.

    FOLDER/kept.SRC, kept.TGT    the pairs that are kept, a line each, as filters see them
    FOLDER/kept.weights          their weights, where the corpus has weights
    FOLDER/dropped.tsv           the others: filter, number of the pair, what was measured, source, target

In a mixture each corpus has a folder in FOLDER. Files are written block by block, and appear whole. What a
filter has measured is read from the cache.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nmt.data.cleaning.filtering import EXAMPLES, Chain, blocks_of, filtered, line_of, shown
from nmt.data.cleaning.filters import Filter
from nmt.data.cleaning.measuring import Block, Measurement
from nmt.data.configs import ColumnsConfig, DataConfig
from nmt.data.parallel_text import PairStream, ParallelText, Split
from nmt.data.reading.side_files import LANG, WILDCARD
from nmt.errors import UserError
from nmt.files import path_of, written_atomically
from nmt.progress import told

KEPT = "kept"
COLUMNS = "filter", "pair", "value", "source", "target"
"""The header of the table."""


@dataclass(frozen=True)
class FilteredFiles:
    """The files of one corpus."""

    folder: Path
    cfg: DataConfig
    """The config of the corpus."""

    @property
    def kept(self) -> list[Path]:
        """The files of the pairs that are kept: the sides that the corpus has, and weights."""
        sides = [self.cfg.src, self.cfg.tgt] if self.cfg.has_source else [self.cfg.tgt]
        names = [*sides, *(["weights"] if self.cfg.has_weights else [])]
        return [self.folder / f"{KEPT}.{name}" for name in names]

    @property
    def dropped(self) -> Path:
        """The table of the pairs that are dropped."""
        return self.folder / EXAMPLES

    def write(
        self,
        source: PairStream,
        own: PairStream,
        cfg: DataConfig,
        pair_filter: Filter,
        chain: Chain,
        cache: Path,
    ) -> str:
        """Write what the limits and the filters of a chain keep and drop; return how much that was.

        `own` has the pairs of `source` with the weights of the corpus alone.

        Raises:
            UserError: the corpus cannot be read or filtered, or a file cannot be written.
            TrainingStopped: the disk is full.
        """
        dropped_by = filtered(source, cfg, pair_filter, chain, cache).dropped_by if chain else None
        table = _Table(cfg, pair_filter, chain, cache)
        blocks = blocks_of(own, cfg, pair_filter, chain, dropped_by)
        num_kept = num_dropped = 0
        with ExitStack() as stack:
            paths = *self.kept, self.dropped
            before = ", in place of those of before" if self.dropped.is_file() else ""
            *kept, dropped = (stack.enter_context(written_atomically(path)) for path in paths)
            dropped.write(_joined(["\t".join(COLUMNS)]))
            for read, block in told(blocks, "writing what is filtered", "pairs", lambda both: len(both[0])):
                rows = table.rows(read, block)
                dropped.write(_joined(rows))
                for file, lines in zip(kept, self._columns(read, block), strict=True):
                    file.write(_joined(lines))
                num_kept, num_dropped = num_kept + len(read) - len(rows), num_dropped + len(rows)
        return f"{num_kept:,} pairs are in {self.folder / KEPT}.*, {num_dropped:,} in {self.dropped}{before}"

    def _columns(self, read: ParallelText, block: Block) -> Iterator[Sequence[str]]:
        """Yield the lines of each of the files `kept` for a block."""
        text = block.text.kept(block.left)
        yield from (text.src, text.tgt) if self.cfg.has_source else (text.tgt,)
        if self.cfg.has_weights:
            yield [repr(read.all_weights[row]) for row in block.rows[block.left].tolist()]


def files_of(cfg: DataConfig, folder: Path) -> dict[str, FilteredFiles]:
    """Return the files of each corpus in `folder`, by its name.

    Raises:
        UserError: data are read from one of the folders, or it has such a file and no table beside it, which
            each earlier preparation has left.
    """
    parts = cfg.parts(Split.train)
    found = {
        name: FilteredFiles(folder / name if len(parts) > 1 else folder, part) for name, part in parts.items()
    }
    of_columns = [part for part in parts.values() if isinstance(part, ColumnsConfig)]
    weights = [part.weights for part in of_columns if part.weights is not None]
    for place in (*sorted(cfg.origins), *weights):
        if any(_is_read(files.folder, place) for files in found.values()):
            raise UserError(f"prepare.filtered={folder}: {place} is read from there; name another folder")
    for files in found.values():
        foreign = [file for file in files.kept if file.exists() and not files.dropped.is_file()]
        if foreign:
            raise UserError(
                f"prepare.filtered={folder}: {foreign[0]} is there, and not of an earlier preparation, as "
                f"there is no {EXAMPLES} beside it; name another folder"
            )
    return found


def _is_read(folder: Path, place: str) -> bool:
    """Return whether files in a folder may be among those that a path or pattern of the data means."""
    parents = Path(os.path.abspath(path_of(place))).parts[:-1]
    is_open = [bool(WILDCARD.search(part)) or LANG in part for part in parents]
    first = Path(*parents[: is_open.index(True)] if any(is_open) else parents).resolve()
    own = folder.resolve()
    return own == first or (any(is_open) and first in own.parents)


class _Table:
    """The rows of a table of dropped pairs, made from the first block to the last."""

    def __init__(self, cfg: DataConfig, pair_filter: Filter, chain: Chain, cache: Path):
        self._cfg, self._pair_filter, self._chain = cfg, pair_filter, chain
        self._filters = chain.opened()
        self._measurement = Measurement.of(chain.rows, chain.context, cache)

    def rows(self, read: ParallelText, block: Block) -> list[str]:
        """Return the rows of the pairs of a block that are dropped, in their order."""
        by_limits = np.setdiff1d(np.arange(len(read)), block.rows)
        found = {row: self._by_limits(read, block, row) for row in by_limits.tolist()}
        for number, reason in enumerate(self._chain.reasons, start=1):
            places = np.flatnonzero(block.dropped_by == number)
            values = self._shown(number - 1, block, places)
            for place, row, value in zip(places.tolist(), block.rows[places].tolist(), values, strict=True):
                found[row] = f"{reason}\t{line_of(block.text, place, value)}"
        return [found[row] for row in sorted(found)]

    def _by_limits(self, read: ParallelText, block: Block, row: int) -> str:
        """Return the row of a pair that the limits dropped."""
        alone = read.part(slice(row, row + 1))
        counts = self._pair_filter(alone, self._cfg)[1].dropped
        reason = next(reason for reason, count in counts.items() if count)
        return f"{reason}\t{line_of(self._chain.bare(alone, np.array([block.first + row])), 0, '')}"

    def _shown(self, index: int, block: Block, places: NDArray[np.int64]) -> list[str]:
        """Return what a filter measured of some pairs of a block, as a person sees it."""
        one = self._filters[index]
        if not one.shows_values or not len(places):
            return [""] * len(places)
        asked = np.zeros(len(block.text), bool)
        asked[places] = True
        folder = self._measurement.folders[index]
        return shown(one, self._measurement.values_of(one, folder, block, asked))


def _joined(lines: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()
