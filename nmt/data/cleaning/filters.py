"""The limits of training pairs, ahead of data.filters, with a report; evaluation pairs among training pairs.

Evaluation splits are never filtered: a score counts every sentence. A report counts the dropped pairs by
reason, so that kept plus dropped is always what was read. Tokenisation is unknown here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from nmt.data.configs import DataConfig
from nmt.data.documents import current_of_each
from nmt.data.parallel_text import MAX_LINE_CHARS, ParallelText

MIN_UNEVEN_CHARS = 20
"""A pair whose longer side has at most so many characters is never uneven: short pairs differ by chance."""


@dataclass
class FilterReport:
    """The number of pairs that were read, and of those that were dropped, by reason."""

    read: int
    dropped: dict[str, int] = field(default_factory=dict)

    @property
    def kept(self) -> int:
        """Pairs that were not dropped."""
        return self.read - sum(self.dropped.values())

    def __add__(self, other: FilterReport) -> FilterReport:
        added = {reason: self.dropped.get(reason, 0) + count for reason, count in other.dropped.items()}
        return FilterReport(self.read + other.read, self.dropped | added)

    def __str__(self) -> str:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in self.dropped.items() if count)
        return f"{self.read:,} pairs read, {self.kept:,} kept" + (f" ({reasons})" if reasons else "")


def all_lines(text: ParallelText, cfg: DataConfig) -> tuple[ParallelText, FilterReport]:
    """Return the targets alone; a text is not filtered, because its lines belong together."""
    return targets_alone(text), FilterReport(len(text))


def targets_alone(text: ParallelText) -> ParallelText:
    """Return the targets with empty sources."""
    return ParallelText([""] * len(text), text.tgt)


def filter_pairs(text: ParallelText, cfg: DataConfig) -> tuple[ParallelText, FilterReport]:
    """Drop the training pairs that are empty, too long or uneven, and report them; the order stays.

    Tags in front of sources count for nothing.
    """
    import numpy as np

    sentences = current_of_each(_without(cfg.fronts, text.src)), current_of_each(text.tgt)
    src, tgt = (np.fromiter(map(len, map(str.strip, side)), np.int64) for side in sentences)
    shorter, longer = np.minimum(src, tgt), np.maximum(src, tgt)
    whole = np.maximum(*(np.fromiter(map(len, side), np.int64) for side in (text.src, text.tgt)))
    faults = {
        "empty": shorter == 0,
        "too long": (longer > cfg.max_chars) | (whole > MAX_LINE_CHARS),
        "uneven": (longer > MIN_UNEVEN_CHARS) & (longer > cfg.max_ratio * shorter),
    }
    kept = np.ones(len(text), bool)
    dropped = {}
    for reason, faulty in faults.items():
        dropped[reason] = int((kept & faulty).sum())
        kept &= ~faulty
    if kept.all():
        return text, FilterReport(len(text), dropped)
    return text.kept(kept), FilterReport(len(text), dropped)


def _without(tags: Sequence[str], lines: list[str]) -> list[str]:
    """Return the lines without those of the tags that stand in front."""
    if not tags:
        return lines
    front = re.compile(rf"(?:(?:{'|'.join(map(re.escape, tags))}) )*")
    return [line[len(front.match(line)[0]) :] for line in lines]  # type: ignore[index]  # it may be empty


def filter_texts(text: ParallelText, cfg: DataConfig) -> tuple[ParallelText, FilterReport]:
    """Drop the texts to train on that are blank or too long, and report them; the order stays."""
    empty = [not src.strip() for src in text.src]
    most = min(cfg.max_chars, MAX_LINE_CHARS)
    long = [len(src) > most and not blank for src, blank in zip(text.src, empty, strict=True)]
    report = FilterReport(len(text), {"empty": sum(empty), "too long": sum(long)})
    if report.kept == len(text):
        return text, report
    kept = [not (blank or cut) for blank, cut in zip(empty, long, strict=True)]
    return text.kept(kept), report


class TrainTestOverlap:
    """A counter of the pairs of a split that occur, word for word, in chunks of other pairs."""

    def __init__(self, text: ParallelText):
        self._pairs = list(zip(text.src, text.tgt, strict=True))
        self._wanted = {src: set[str]() for src in text.src}
        for src, tgt in self._pairs:
            self._wanted[src].add(tgt)
        self._seen: set[tuple[str, str]] = set()

    def add(self, chunk: ParallelText) -> None:
        """Look for the pairs of the split in `chunk`."""
        for row in [row for row, src in enumerate(chunk.src) if src in self._wanted]:
            src, tgt = chunk.src[row], chunk.tgt[row]
            if tgt in self._wanted[src]:
                self._seen.add((src, tgt))

    @property
    def count(self) -> int:
        """Pairs of the split that occurred in the chunks so far."""
        return sum(pair in self._seen for pair in self._pairs)


Filter = Callable[[ParallelText, DataConfig], tuple[ParallelText, FilterReport]]
"""A function that chooses the pairs to train on; its name is part of the key of cache entries."""


def filter_of(cfg: DataConfig) -> Filter:
    """Return what drops the unusable of a corpus: of labelled texts, or of pairs."""
    return filter_texts if cfg.has_labels else filter_pairs
