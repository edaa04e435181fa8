"""What the fixers of a corpus change, as an account: how many pairs each, and some of them, before and after.

The account is a pass over the corpus of its own, in several processes, and cached; whoever reads the training
pairs repairs them anew, as nothing is stored.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from nmt.data.cleaning.filtering import CHANGED, Drawn
from nmt.data.cleaning.measuring import BLOCK_PAIRS
from nmt.data.cleaning.pair_filters import NumberedText
from nmt.data.configs import DataConfig
from nmt.data.documents import ends_document
from nmt.data.fixer_table import FixerConfig
from nmt.data.parallel_text import PairStream, ParallelText, Split, in_blocks
from nmt.data.reading import sources
from nmt.data.text import fixers
from nmt.data.text.fixers import nfc
from nmt.data.workers import worked
from nmt.disk_cache import Metadata, entry_name, open_entry, write_entry
from nmt.errors import UserError
from nmt.files import write_lines, written_lines
from nmt.progress import told

FORMAT_VERSION = 1
"""Increased when the format of a cache entry changes."""
EXAMPLES = "changed.tsv"
AROUND = 20
"""Characters on either side of a change that are shown."""


@dataclass
class Repairs:
    """What fixers have changed of the pairs that were read."""

    read: int = 0
    changed: list[int] = field(default_factory=list)
    """The number of pairs that each fixer has changed."""
    drawn: list[Drawn] = field(default_factory=list)
    """Some of the sides that each fixer has changed: number of the pair, side, before, after."""

    def add(self, other: Repairs) -> None:
        """Add what was changed of other pairs."""
        self.read += other.read
        self.changed = list(map(sum, itertools.zip_longest(self.changed, other.changed, fillvalue=0)))
        self.drawn += [Drawn() for _ in other.drawn[len(self.drawn) :]]
        for own, further in zip(self.drawn, other.drawn, strict=True):
            own.merge(further)


@dataclass(frozen=True)
class _Counter:
    """The work of one process: to repair blocks of pairs and to count what is changed."""

    rows: Sequence[FixerConfig]

    def start(self) -> Callable[[tuple[int, ParallelText]], Repairs]:
        """Return the function that repairs a block, given the number of its first pair."""
        return functools.partial(self._counted, fixers.opened(self.rows))

    def _counted(self, repairs: Sequence[fixers.Repair], block: tuple[int, ParallelText]) -> Repairs:
        first, text = block
        found = Repairs(len(text))
        for repair in repairs:
            before, text = text, repair(text)
            found.drawn.append(Drawn())
            rows = set[int]()
            for side, old, new in (("source", before.src, text.src), ("target", before.tgt, text.tgt)):
                own = [row for row, both in enumerate(zip(old, new, strict=True)) if both[0] != both[1]]
                shown = [old[row].replace("\t", r"\t") for row in own], [new[row] for row in own]
                changes = NumberedText(*shown, numbers=np.asarray(own, np.int64) + first)
                found.drawn[-1].add(changes, np.arange(len(own)), [side] * len(own))
                rows.update(own)
            found.changed.append(len(rows))
        return found


def account(cfg: DataConfig, cache: Path) -> list[str]:
    """Return a line for each fixer of the training pairs of a corpus, and one that names a file of examples.

    Raises:
        UserError: the corpus cannot be read, or a library is not there.
    """
    rows = fixers.fixers_of(cfg)
    if not rows:
        return []
    source = _unrepaired(cfg)
    before = source.stamp()
    entry = cache / entry_name("repairs", FORMAT_VERSION, before, fixers.stamp(rows), cfg.has_documents)
    metadata = open_entry(entry)
    if metadata is None:
        found = _counted(cfg, rows, None)
        metadata = made = {"lines": _lines(rows, found)}
        if source.stamp() != before:
            raise UserError(CHANGED)

        def fill(draft: Path) -> Metadata:
            write_lines(draft / EXAMPLES, _examples(rows, found))
            return made

        write_entry(entry, fill)
    lines = [str(line) for line in metadata["lines"]]
    if (entry / EXAMPLES).is_file() and written_lines(entry / EXAMPLES):
        lines.append(f"some changes of each fixer: {entry / EXAMPLES}")
    return lines


def tried(cfg: DataConfig, most: int | None) -> list[str]:
    """Return a line for each fixer of a corpus, of its first `most` training pairs or of all, uncached."""
    rows = fixers.fixers_of(cfg)
    return _lines(rows, _counted(cfg, rows, most)) if rows else []


def _counted(cfg: DataConfig, rows: Sequence[FixerConfig], most: int | None) -> Repairs:
    """Return what fixers change of the first `most` pairs of a corpus, or of all."""
    total, counter = Repairs(changed=[0] * len(rows), drawn=[Drawn() for _ in rows]), _Counter(rows)
    blocks = told(_blocks(cfg, most), "looking at what fixers change", "pairs", lambda block: len(block[1]))
    with worked(blocks, counter.start(), counter.start, "nothing is lost") as found:
        for _, of_block in found:
            total.add(of_block)
    return total


def _blocks(cfg: DataConfig, most: int | None) -> Iterator[tuple[int, ParallelText]]:
    """Yield the pairs as they are in the corpus in blocks, each with the number of its first pair, from 0."""
    first = 0
    for block in in_blocks(_pairs(cfg), BLOCK_PAIRS):
        block = block if most is None else block.first(most - first)
        if not len(block):
            return
        yield first, block
        first += len(block)


def _unrepaired(cfg: DataConfig) -> PairStream:
    """Return the training pairs as they are in the corpus, without context, and the ends of documents."""
    return sources.stream(replace(cfg, fixers=[]), Split.train, in_context=False)


def _pairs(cfg: DataConfig) -> Iterator[ParallelText]:
    """Yield the training pairs as they are in the corpus, without the ends of documents."""
    for chunk in _unrepaired(cfg).chunks():
        ends = [ends_document(*pair) for pair in zip(chunk.src, chunk.tgt, strict=True)]
        yield chunk.kept([not end for end in ends]) if cfg.has_documents and any(ends) else chunk


def _lines(rows: Sequence[FixerConfig], found: Repairs) -> list[str]:
    """Return for each fixer how many pairs it has changed, and one change."""
    return [
        f"fixer {row.name} changed {count:,} of {found.read:,} pairs"
        + (f" ({count / found.read:.2%}), such as {_such_as(drawn)}" if count else "")
        for row, count, drawn in zip(rows, found.changed, found.drawn, strict=True)
    ]


def _such_as(drawn: Drawn) -> str:
    """Return a change as a person sees it: what stood there, and what stands there now."""
    before, after = max(drawn.rows)[2].split("\t")[2:]
    places = [i for i, (old, new) in enumerate(zip(before, after, strict=False)) if old != new]
    first = max(0, min(places, default=len(after)) - AROUND)
    shown = ascii if nfc(before) == nfc(after) else repr
    return " to ".join(shown(text[first : first + 3 * AROUND]) for text in (before, after))


def _examples(rows: Sequence[FixerConfig], found: Repairs) -> Iterator[str]:
    """Yield lines FIXER, NUMBER OF THE PAIR, SIDE, BEFORE, AFTER with TABs between."""
    for row, drawn in zip(rows, found.drawn, strict=True):
        yield from (f"{row.name}\t{line}" for line in drawn.lines())
