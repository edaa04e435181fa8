"""A translation memory: pairs of sentences, of which the one whose source is most like a line is found.

Likeness is the fuzzy match score of translation memories: 1 less the edit distance of words as a share of the
longer sentence (Koehn and Senellart 2010). Only sentences are compared that have words in common with the
line, its rarest ones. Knows text alone.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.data.encoded_pairs import Ids
from nmt.data.lexicon import WORD, numbered_words
from nmt.data.pairs import ParallelText
from nmt.disk_cache import entry_name, open_entry, write_entry
from nmt.errors import UserError
from nmt.files import digest_of_lines
from nmt.progress import told

FORMAT_VERSION = 1
MOST_PLACES = 1 << 14
"""Sentences that are looked up for the rarest words of a line; of a word with more of them the last ones."""
MOST_COMPARED = 128
"""Sentences that are compared with a line word by word: those with the largest share of words in common."""
MOST_WORDS = 250
"""Words of the longest line that a match is looked for."""
PADDING = -2
"""Stands behind the words of a sentence that is shorter than others."""


class Match(NamedTuple):
    """A pair of a memory, found for a line."""

    row: int
    """The number of the pair, from 0."""
    score: float
    """The likeness of its source and the line, from 0 to 1: 1 for the same words, whatever their case."""


class TranslationMemory:
    """Pairs of sentences, and where each word of their sources occurs."""

    def __init__(self, text: ParallelText):
        """Hold the pairs of a text, which have neither tags nor context."""
        self.src, self.tgt = text.src, text.tgt
        self._known, words = numbered_words(text.src)
        self._words, self._lengths = words.ids, np.asarray(words.lengths, np.int64)
        self._starts = np.cumsum(self._lengths) - self._lengths
        rows = np.repeat(np.arange(len(text)), self._lengths)
        places = np.unique(
            self._words.astype(np.int64) * max(len(text), 1) + rows
        )  # the rows of each word, by words
        self._places = (places % max(len(text), 1)).astype(np.int32)
        self._counts = np.bincount(places // max(len(text), 1), minlength=len(self._known))
        self._ends = np.cumsum(self._counts)

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> TranslationMemory:
        """Return a memory of pairs (source, translation); those with a blank side are passed over.

        Raises:
            UserError: there is no pair.
        """
        text = ParallelText()
        for src, tgt in pairs:
            if src.strip() and tgt.strip():
                text.src.append(src.strip())
                text.tgt.append(tgt.strip())
        if not len(text):
            raise UserError("memory: there is no pair in it, of which both sides have text")
        return cls(text)

    def __len__(self) -> int:
        return len(self.src)

    @functools.cached_property
    def sha256(self) -> str:
        """A hash of the pairs."""
        return digest_of_lines([*self.src, "", *self.tgt])

    def best(self, line: str, least: float) -> Match | None:
        """Return the match of a line with the highest score, which is `least` or more; None without any.

        Of equal ones one with the very text of the line is taken before others, and the last.
        """
        words = [self._known.get(word, -1) for word in WORD.findall(line.lower())]
        rows, scores = self._scored(np.asarray(words, np.int64), least)
        best = rows[scores == scores.max(initial=0.0)].tolist()
        if not best:
            return None
        row = next((row for row in reversed(best) if self.src[row] == line), best[-1])
        return Match(row, float(scores.max()))

    def neighbours(self, least: float) -> Iterator[Match | None]:
        """Yield for each pair, in order, the match of its source among the pairs with another text."""
        numbers, pairs = dict[tuple[str, str], int](), zip(self.src, self.tgt, strict=True)
        same = np.array([numbers.setdefault(pair, len(numbers)) for pair in pairs], np.int64)
        for row, (start, length) in enumerate(zip(self._starts, self._lengths, strict=True)):
            words = self._words[start : start + length]
            rows, scores = self._scored(words, least)
            scores = np.where(same[rows] == same[row], 0.0, scores)
            best = int(scores.argmax()) if scores.any() else None
            yield None if best is None else Match(int(rows[best]), float(scores[best]))

    def _scored(self, words: Ids, least: float) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the numbers of pairs that are like a line, ascending, and their scores, `least` or more."""
        rows = self._candidates(words, least)
        if not len(rows):
            return rows, np.empty(0)
        lengths = self._lengths[rows]
        steps = np.arange(lengths.max())
        inside = steps < lengths[:, None]
        others = np.where(
            inside, self._words[np.where(inside, self._starts[rows][:, None] + steps, 0)], PADDING
        )
        scores = 1.0 - edit_distances(words, others, lengths) / np.maximum(lengths, len(words))
        return rows[scores >= least], scores[scores >= least]

    def _candidates(self, words: Ids, least: float) -> NDArray[np.int64]:
        """Return the numbers of the pairs that may be like a line, ascending."""
        if len(words) > MOST_WORDS:
            return np.empty(0, np.int64)
        rarest = np.unique(words[words >= 0])
        rarest = rarest[np.argsort(self._counts[rarest], kind="stable")]
        taken = max(1, np.searchsorted(np.cumsum(self._counts[rarest]), MOST_PLACES, "right"))
        found = [
            self._places[end - min(count, MOST_PLACES) : end]
            for end, count in zip(self._ends[rarest[:taken]], self._counts[rarest[:taken]], strict=True)
        ]
        rows, common = np.unique(np.concatenate([np.empty(0, np.int32), *found]), return_counts=True)
        lengths = self._lengths[rows]
        shorter, longer = np.minimum(lengths, len(words)), np.maximum(lengths, len(words))
        near = shorter >= least * longer  # else the score is below `least` whatever the words are
        rows, shares = rows[near], common[near] / longer[near]
        if len(rows) > MOST_COMPARED:
            keys = (shares * 2**20).astype(np.int64) * len(self) + rows  # of equal shares the later pairs
            rows = np.sort(rows[np.argpartition(keys, -MOST_COMPARED)[-MOST_COMPARED:]])
        return rows


@dataclass
class Neighbours:
    """The match of each source of a text among its other pairs: a memory without the pair itself."""

    tgt: list[str]
    """The targets of the text."""
    keys: NDArray[np.uint64]
    """Hashes of the sources that have a match, ascending."""
    rows: NDArray[np.int32]
    """For each key: the number of the pair that is its match."""
    scores: NDArray[np.float32]
    """For each key: the likeness of the sources."""

    def __len__(self) -> int:
        return len(self.keys)

    def translation(self, src: str, least: float) -> str | None:
        """Return the target of the match of a source; None for one without, or with a score below `least`."""
        [key] = _hashes([src])
        place = int(np.searchsorted(self.keys, key))
        if place == len(self.keys) or self.keys[place] != key or self.scores[place] < least:
            return None
        return self.tgt[self.rows[place]]

    @classmethod
    def of(cls, text: ParallelText, least: float) -> Neighbours:
        """Look for the match of every source, with a score of `least` or more."""
        found = told(
            TranslationMemory(text).neighbours(least), "looking for matches", "pairs", lambda _: 1, len(text)
        )
        matches = {row: match for row, match in enumerate(found) if match is not None}
        keys, first = np.unique(_hashes([text.src[row] for row in matches]), return_index=True)
        rows = np.array([match.row for match in matches.values()], np.int32)[first]
        scores = np.array([match.score for match in matches.values()], np.float32)[first]
        return cls(text.tgt, keys, rows, scores)

    @classmethod
    def cached(cls, text: Callable[[], ParallelText], digest: str, least: float, cache: Path) -> Neighbours:
        """Return the neighbours of a text by its `digest`; matches come from the cache if they are there."""
        settings = least, MOST_PLACES, MOST_COMPARED, MOST_WORDS, WORD.pattern
        entry = cache / entry_name("neighbours", FORMAT_VERSION, digest, *settings)
        if open_entry(entry) is not None:
            with np.load(entry / "matches.npz") as stored:
                return cls(text().tgt, **stored)
        made = cls.of(text(), least)
        write_entry(entry, made._save)
        return made

    def _save(self, folder: Path) -> None:
        np.savez(folder / "matches.npz", keys=self.keys, rows=self.rows, scores=self.scores)


def _hashes(lines: Sequence[str]) -> NDArray[np.uint64]:
    """Return a hash of each line."""
    found = b"".join(hashlib.blake2b(line.encode(errors="replace"), digest_size=8).digest() for line in lines)
    return np.frombuffer(found, "<u8").astype(np.uint64)


def edit_distances(words: Ids, others: Ids, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many words are inserted, deleted or replaced to make each of `others` (Levenshtein 1966).

    Row k of `others` (K, N) has `lengths[k]` words, and `PADDING` behind them; -1 is a word like no other.
    """
    steps = np.arange(others.shape[1] + 1, dtype=np.int32)
    row = np.tile(steps, (len(others), 1))  # from the words so far to the beginnings of each other sentence
    for number, word in enumerate(words.tolist(), start=1):
        with_word = np.minimum(row[:, 1:] + 1, row[:, :-1] + (others != word))
        row = np.concatenate([np.full((len(others), 1), number, np.int32), with_word], axis=1)
        row = np.minimum.accumulate(row - steps, axis=1) + steps  # insertions
    return row[np.arange(len(others)), lengths]
