"""Sentence pairs of one split, from whichever source the config names, and the filter for training pairs.

Evaluation splits are never filtered: a score counts every sentence. What the filter drops it accounts for by
reason, so that kept plus dropped is always what was read. Tokenisation is unknown here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nmt.data import files, hub, mixture
from nmt.data.files import FilesData, TextData
from nmt.data.hub import HubData
from nmt.data.mixture import MixtureData
from nmt.data.pairs import DataConfig, PairStream, ParallelText, Split
from nmt.errors import UserError

__all__ = [
    "SOURCES",
    "DataConfig",
    "DemoData",
    "FilesData",
    "FilterReport",
    "HubData",
    "MixtureData",
    "PairStream",
    "ParallelText",
    "Split",
    "TextData",
    "ToyData",
    "TrainTestOverlap",
    "filter_pairs",
    "has_split",
    "load",
    "stream",
    "training_streams",
]

BUNDLED = Path(__file__).parent / "bundled"
"""Files that travel with the package; scripts/demo_corpus wrote those of the demo."""
MIN_UNEVEN_CHARS = 20
"""A pair is never uneven while its longer side is within this: short pairs such as "No." differ by chance."""


@dataclass
class DemoData(DataConfig):
    """The bundled English-German corpus, in either direction."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_languages(self, "en", "de")


@dataclass
class ToyData(DataConfig):
    """The ten bundled English-French pairs, in either direction; all splits are the same."""

    name: str = "toy"
    tgt: str = "fr"

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_languages(self, "en", "fr")


def _require_languages(cfg: DataConfig, one: str, other: str) -> None:
    if {cfg.src, cfg.tgt} != {one, other}:
        raise UserError(
            f"data={cfg.name} has the languages {one} and {other}, not data.src={cfg.src} data.tgt={cfg.tgt}"
        )


def stream_demo(cfg: DataConfig, split: Split) -> PairStream:
    """Return one split of the bundled corpus."""
    return _bundled(cfg, split, f"demo.{split.value}.tsv.gz")


def stream_toy(cfg: DataConfig, split: Split) -> PairStream:
    """Return the ten pairs, whichever `split` is asked for."""
    return _bundled(cfg, split, "toy.tsv")


def _bundled(cfg: DataConfig, split: Split, name: str) -> PairStream:
    """Return the pairs of a file of the package, in the direction that `cfg` asks for."""
    return files.stream(FilesData(src=cfg.src, tgt=cfg.tgt, **{split.value: str(BUNDLED / name)}), split)


SOURCES: dict[str, tuple[type[DataConfig], Callable[[Any, Split], PairStream]]] = {
    "demo": (DemoData, stream_demo),
    "toy": (ToyData, stream_toy),
    "hub": (HubData, hub.stream),
    "files": (FilesData, files.stream),
    "text": (TextData, files.stream_text),
    "mixture": (MixtureData, mixture.stream),
}


@dataclass
class FilterReport:
    """How many pairs were read, and how many of them were dropped for which reason."""

    read: int
    dropped: dict[str, int] = field(default_factory=dict)

    @property
    def kept(self) -> int:
        """Pairs that were not dropped."""
        return self.read - sum(self.dropped.values())

    def __add__(self, other: FilterReport) -> FilterReport:
        reasons = [*self.dropped, *(reason for reason in other.dropped if reason not in self.dropped)]
        dropped = {reason: self.dropped.get(reason, 0) + other.dropped.get(reason, 0) for reason in reasons}
        return FilterReport(self.read + other.read, dropped)

    def __str__(self) -> str:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in self.dropped.items() if count)
        return f"{self.read:,} pairs read, {self.kept:,} kept" + (f" ({reasons})" if reasons else "")


def has_split(cfg: DataConfig, split: Split) -> bool:
    """Whether the config names this split; one that it names and that is missing is an error of `stream`."""
    return cfg.place(split) is not None


def stream(cfg: DataConfig, split: Split) -> PairStream:
    """One split, aligned and unfiltered, to be read in chunks.

    Raises:
        UserError: the split cannot be read or does not exist; perhaps only once it is read.
    """
    kind, opened = SOURCES.get(cfg.name, (None, None))
    if opened is None or kind is not type(cfg):
        raise UserError(
            f"data.name={cfg.name} does not fit the other keys of data; choose data={'|'.join(SOURCES)}"
        )
    if not has_split(cfg, split):
        named = [known.value for known in Split if has_split(cfg, known)]
        raise UserError(
            f"{cfg.key(split)} is not set, but the {split.value} split is needed; "
            f"the splits that are set: {', '.join(named) or 'none'}"
        )
    source = opened(cfg, split)
    return source._replace(chunks=lambda: _not_empty(source, cfg, split))


def training_streams(cfg: DataConfig) -> dict[str, PairStream]:
    """The training pairs of each corpus: of the only one, which has no name, or of those of a mixture."""
    if isinstance(cfg, MixtureData):
        return mixture.streams(cfg, Split.train)
    return {"": stream(cfg, Split.train)}


def _not_empty(source: PairStream, cfg: DataConfig, split: Split) -> Iterator[ParallelText]:
    read = 0
    for chunk in source.chunks():
        read += len(chunk)
        yield chunk
    if not read:
        raise UserError(f"{cfg.key(split)}={cfg.place(split)} has no sentence pairs")


def load(cfg: DataConfig, split: Split) -> ParallelText:
    """Read one split whole, which is meant for those that models are scored on; see `stream`."""
    return stream(cfg, split).read()


def filter_pairs(text: ParallelText, cfg: DataConfig) -> tuple[ParallelText, FilterReport]:
    """Drop the training pairs that are empty, too long or uneven, with an account; order is kept."""
    src, tgt = (np.fromiter(map(len, map(str.strip, side)), np.int64) for side in (text.src, text.tgt))
    shorter, longer = np.minimum(src, tgt), np.maximum(src, tgt)
    faults = {
        "empty": shorter == 0,
        "too long": longer > cfg.max_chars,
        "uneven": (longer > MIN_UNEVEN_CHARS) & (longer > cfg.max_ratio * shorter),
    }
    kept = np.ones(len(text), bool)
    dropped = {}
    for reason, has_it in faults.items():
        dropped[reason] = int((kept & has_it).sum())
        kept &= ~has_it
    if kept.all():
        return text, FilterReport(len(text), dropped)
    sides = (list(itertools.compress(side, kept)) for side in (text.src, text.tgt))
    return ParallelText(*sides), FilterReport(len(text), dropped)


class TrainTestOverlap:
    """Counts how many pairs of a split occur in chunks of other pairs, word for word."""

    def __init__(self, text: ParallelText):
        self._pairs = list(zip(text.src, text.tgt, strict=True))
        self._wanted = {src: set[str]() for src in text.src}
        for src, tgt in self._pairs:
            self._wanted[src].add(tgt)
        self._seen: set[tuple[str, str]] = set()

    def add(self, chunk: ParallelText) -> None:
        """Look for the pairs in `chunk`."""
        for row in [row for row, src in enumerate(chunk.src) if src in self._wanted]:
            src, tgt = chunk.src[row], chunk.tgt[row]
            if tgt in self._wanted[src]:
                self._seen.add((src, tgt))

    @property
    def count(self) -> int:
        """Pairs that occurred in what was added."""
        return sum(pair in self._seen for pair in self._pairs)
