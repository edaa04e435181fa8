"""The counts of a training split that say how large it is: pairs, words, characters. Cached, as a scan is.

Words are counted without a tokenizer: by white space, or, where a script has none between words, by
characters. Text is normalised first as SentencePiece does by default, so that the characters are those that a
tokenizer will meet.
"""

from __future__ import annotations

import dataclasses
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt.data.cleaning.filters import Filter
from nmt.data.configs import DataConfig
from nmt.data.documents import without_context
from nmt.data.parallel_text import PairStream, ParallelText
from nmt.data.reading import sources
from nmt.disk_cache import entry_name, open_entry, write_entry

FORMAT_VERSION = 3
"""Increased when the counts or the format of a cache entry change."""
MOST_DISTINCT = 1_000_000
"""Distinct words that are counted; a corpus with more of them is not small."""
NARROW_PER_WORD, WIDE_PER_WORD = 8, 2
"""Characters that make a word where white space does not; wide ones are those of Chinese and Japanese."""


@dataclass
class SideCensus:
    """The counts of one side of the pairs."""

    runs: int = 0
    """Words as white space separates them."""
    distinct: int = 0
    """Different ones among `runs`."""
    narrow: int = 0
    """Characters but white space and wide ones."""
    wide: int = 0
    """Characters of two columns, as in Chinese and Japanese."""
    alphabet: str = ""
    """All characters but white space, each once, sorted."""

    @property
    def words(self) -> int:
        """Words, about: runs between white space, or more where these are too long to be words."""
        return max(self.runs, self.narrow // NARROW_PER_WORD + self.wide // WIDE_PER_WORD)

    def __add__(self, other: SideCensus) -> SideCensus:
        return SideCensus(
            self.runs + other.runs,
            max(self.distinct, other.distinct),  # at least
            self.narrow + other.narrow,
            self.wide + other.wide,
            "".join(sorted({*self.alphabet, *other.alphabet})),
        )


@dataclass
class Census:
    """The counts of the pairs to train on; of several corpora, the distinct words of the richest one."""

    pairs: int = 0
    src: SideCensus = dataclasses.field(default_factory=SideCensus)
    tgt: SideCensus = dataclasses.field(default_factory=SideCensus)

    @property
    def words(self) -> int:
        """Words of the side with more of them: two languages say the same in more or fewer words."""
        return max(self.src.words, self.tgt.words)

    def __add__(self, other: Census) -> Census:
        return Census(self.pairs + other.pairs, self.src + other.src, self.tgt + other.tgt)


def take(cfg: DataConfig, pair_filter: Filter, cache: Path) -> Census:
    """Return the counts of what `pair_filter` and the filters leave of the training split.

    Filters that open models are left out. The tag of a language in front of a source counts as a word;
    sentences of context do not count again.

    Raises:
        UserError: the data or what a filter reads cannot be read, or no pair is left.
    """
    from nmt.data.cleaning.filtering import (  # with NumPy, which help does not need
        chains_without_models,
        filtered,
    )

    chains, counts = chains_without_models(cfg), Census()
    for name, source in sources.training_streams(cfg).items():
        chain = chains[name]
        left = filtered(source, cfg, pair_filter, chain, cache).source if chain else source
        counts += _cached(left, cfg, pair_filter, cache)
    return counts


def _cached(source: PairStream, cfg: DataConfig, pair_filter: Filter, cache: Path) -> Census:
    limits = pair_filter.__name__, *cfg.limits
    options = source.stamp(), *limits, unicodedata.unidata_version
    entry = cache / entry_name("census", FORMAT_VERSION, *options)
    known = open_entry(entry)
    if known is not None:
        sides: list[dict[str, Any]] = [known["src"], known["tgt"]]
        return Census(known["pairs"], *(SideCensus(**side) for side in sides))
    kept = (pair_filter(chunk, cfg)[0] for chunk in source.chunks())
    made = count(map(without_context, kept) if cfg.context else kept)
    write_entry(entry, lambda draft: dataclasses.asdict(made))
    return made


def count(chunks: Iterable[ParallelText]) -> Census:
    """Return the counts of all pairs of `chunks`."""
    pairs, src, tgt = 0, _Counts(), _Counts()
    for chunk in chunks:
        pairs += len(chunk)
        src.add(chunk.src)
        tgt.add(chunk.tgt)
    return Census(pairs, src.census(), tgt.census())


class _Counts:
    """The counts of one side, as they grow."""

    def __init__(self) -> None:
        self._runs = 0
        self._distinct: set[str] = set()
        self._characters = Counter[str]()

    def add(self, lines: list[str]) -> None:
        text = unicodedata.normalize("NFKC", "\n".join(lines))
        words = text.split()
        self._runs += len(words)
        if len(self._distinct) < MOST_DISTINCT:
            self._distinct.update(words)
        self._characters.update(text)

    def census(self) -> SideCensus:
        counts = {char: number for char, number in self._characters.items() if not char.isspace()}
        wide = sum(n for char, n in counts.items() if unicodedata.east_asian_width(char) in "WF")
        alphabet = "".join(sorted(counts))
        return SideCensus(self._runs, len(self._distinct), sum(counts.values()) - wide, wide, alphabet)
