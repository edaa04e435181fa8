"""The counts of a training split that say how large it is: pairs, words, characters. Cached, as a scan is.

Words are counted without a tokenizer: by white space, or, where a script has none between words, by
characters. Text is normalised first as SentencePiece does by default, so that the characters are those that a
tokenizer will meet; what that changes is counted, too.
"""

from __future__ import annotations

import dataclasses
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nmt.data.cleaning.filters import Filter, all_lines
from nmt.data.configs import DataConfig
from nmt.data.documents import without_context
from nmt.data.parallel_text import PairStream, ParallelText
from nmt.data.reading import sources
from nmt.disk_cache import entry_name, open_entry, write_entry

FORMAT_VERSION = 4
"""Increased when the counts or the format of a cache entry change."""
MOST_DISTINCT = 1_000_000
"""Distinct words that are counted; a corpus with more of them is not small."""
NARROW_PER_WORD, WIDE_PER_WORD = 8, 2
"""Characters that make a word where white space does not; wide ones are those of Chinese and Japanese."""
HANGUL = range(0xAC00, 0xD7A4)
"""Syllables of Korean, which has spaces; Unicode counts them among the wide characters."""


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
    written: str = ""
    """The same of the text before it is normalised; white space other than that of ASCII is among them."""
    rewritten: int = 0
    """Lines in which normalising changes more than white space."""

    @property
    def words(self) -> int:
        """Words, about: runs between white space, or more where these are too long to be words."""
        return max(self.runs, self.narrow // NARROW_PER_WORD + self.wide // WIDE_PER_WORD)

    @property
    def has_spaces(self) -> bool:
        """Whether runs between white space are words, about, and not sentences."""
        return self.words <= 2 * self.runs

    def __add__(self, other: SideCensus) -> SideCensus:
        return SideCensus(
            self.runs + other.runs,
            max(self.distinct, other.distinct),  # at least
            self.narrow + other.narrow,
            self.wide + other.wide,
            "".join(sorted({*self.alphabet, *other.alphabet})),
            "".join(sorted({*self.written, *other.written})),
            self.rewritten + other.rewritten,
        )


@dataclass
class Census:
    """The counts of the pairs to train on; of several corpora, the distinct words of the richest one."""

    pairs: int = 0
    src: SideCensus = dataclasses.field(default_factory=SideCensus)
    tgt: SideCensus = dataclasses.field(default_factory=SideCensus)
    dropped: int = 0
    """Pairs beyond the limits of data.*, which are not among `pairs`."""

    @property
    def words(self) -> int:
        """Words of the side with more of them: two languages say the same in more or fewer words."""
        return max(self.src.words, self.tgt.words)

    def __add__(self, other: Census) -> Census:
        dropped = self.dropped + other.dropped
        return Census(self.pairs + other.pairs, self.src + other.src, self.tgt + other.tgt, dropped)


def take(cfg: DataConfig, pair_filter: Filter, cache: Path) -> Census:
    """Return the counts of what `pair_filter` and the filters leave of the training split.

    Filters that open models are left out, and so are pairs with more words than `cfg.max_tokens`, which have
    more tokens, too. The tag of a language in front of a source counts as a word; sentences of context do not
    count again.

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
        if chain:
            found = filtered(source, cfg, pair_filter, chain, cache)
            source, dropped = found.source, found.report.dropped
            counts.dropped += sum(number for why, number in dropped.items() if why not in chain.reasons)
        counts += _cached(source, cfg, pair_filter, cache)
    return counts


def _cached(source: PairStream, cfg: DataConfig, pair_filter: Filter, cache: Path) -> Census:
    limits = pair_filter.__name__, *cfg.limits, cfg.max_tokens
    options = source.stamp(), *limits, unicodedata.unidata_version
    entry = cache / entry_name("census", FORMAT_VERSION, *options)
    known = open_entry(entry)
    if known is not None:
        sides = {name: SideCensus(**known[name]) for name in ("src", "tgt")}
        return Census(known["pairs"], **sides, dropped=known["dropped"])
    num_read = 0

    def kept() -> Iterator[ParallelText]:
        nonlocal num_read
        for chunk in source.chunks():
            num_read += len(chunk)
            left = pair_filter(chunk, cfg)[0]
            left = left if pair_filter is all_lines else _short(left, cfg.max_tokens)
            yield without_context(left) if cfg.context else left

    made = count(kept())
    made.dropped = num_read - made.pairs
    write_entry(entry, lambda draft: dataclasses.asdict(made))
    return made


def _short(text: ParallelText, max_tokens: int) -> ParallelText:
    """Return the pairs without a side of more than `max_tokens` words, of which each has a token at least.

    Signs alone, which `tokenizer.strip_punctuation` removes, count as words.
    """
    sides = zip(text.src, text.tgt, strict=True)
    return text.kept([max(len(src.split()), len(tgt.split())) <= max_tokens for src, tgt in sides])


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
        self._written: set[str] = set()
        self._rewritten = 0

    def add(self, lines: list[str]) -> None:
        whole = "\n".join(lines)
        text = unicodedata.normalize("NFKC", whole)
        words = text.split()
        self._runs += len(words)
        if len(self._distinct) < MOST_DISTINCT:
            self._distinct.update(words)
        self._characters.update(text)
        self._written.update(whole)
        self._rewritten += _num_rewritten(lines)

    def census(self) -> SideCensus:
        counts = {char: number for char, number in self._characters.items() if not char.isspace()}
        wide = sum(number for char, number in counts.items() if _is_wide(char))
        narrow = sum(counts.values()) - wide
        written = sorted(char for char in self._written if not char.isspace() or ord(char) > 127)
        alphabets = "".join(sorted(counts)), "".join(written)
        return SideCensus(self._runs, len(self._distinct), narrow, wide, *alphabets, self._rewritten)


def _is_wide(char: str) -> bool:
    return unicodedata.east_asian_width(char) in "WF" and ord(char) not in HANGUL


def _num_rewritten(lines: list[str]) -> int:
    """Return the number of lines of which SentencePiece's default changes more than white space."""
    import sentencepiece

    usual = sentencepiece.SentencePieceNormalizer(rule_name="nmt_nfkc")
    lines = [line for line in lines if not line.isascii()]
    made = (line.replace("\u2581", "") for line in usual.normalize(lines))  # its sign for a space
    return sum("".join(line.split()) != other for line, other in zip(lines, made, strict=True))
