"""A translation memory: pairs of sentences, of which the one whose source is most like a line is found.

Likeness is the fuzzy match score of translation memories: 1 less the edit distance of words as a share of the
longer sentence (Koehn and Senellart 2010). Only sentences are compared that have words in common with the
line, its rarest ones. Knows text alone.
"""

from __future__ import annotations

import functools
import hashlib
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.data.augment.lexicon import WORD, numbered_words
from nmt.data.encoded_pairs import Ids
from nmt.disk_cache import entry_name, open_entry, write_entry
from nmt.errors import UserError
from nmt.files import digest_of_lines, write_lines, written_lines
from nmt.progress import told

FORMAT_VERSION = 2
MOST_PLACES = 1 << 13
"""Sentences that are looked up for the rarest words of a line; of a word that has too many the last."""
MOST_COUNTED = 1 << 10
"""Of these, those whose words in common with the line are counted."""
MOST_COMPARED = 128
"""Of these, those that are compared with the line word by word: with the largest share in common."""
MOST_WORDS = 250
"""Words of the longest line and of the longest source that are compared."""
PADDING = -2
"""Stands behind the words of a sentence that is shorter than others."""
NONE = np.empty(0, np.int64)
"""No pairs."""
ROUNDING = 1e-9
"""What a score may lack of the least one because it is a rounded number."""


class Match(NamedTuple):
    """A pair of a memory, found for a line."""

    row: int
    """The number of the pair, from 0."""
    score: float
    """The likeness of its source and the line, from 0 to 1: 1 for the same words, whatever their case."""


class TranslationMemory:
    """Different pairs of sentences, and where each word of their sources occurs."""

    def __init__(self, pairs: Iterable[tuple[str, str]]):
        """Hold pairs (source, translation), without those of a blank side; of equal ones the last.

        Raises:
            UserError: these are no pairs of text, or none is left.
        """
        different = dict[tuple[str, str], None]()
        for number, pair in enumerate(pairs):
            src, tgt = _require_pair(pair, number)
            different.pop((src, tgt), None)
            if src and tgt:
                different[src, tgt] = None
        if not different:
            raise UserError("memory: there is no pair in it, of which both sides have text")
        self.src, self.tgt = (list(side) for side in zip(*different, strict=True))
        self._known, words = numbered_words(list(map(_composed, self.src)))
        self._words, self._lengths = words.ids.astype(np.int32), np.asarray(words.lengths, np.int64)
        self._starts = np.cumsum(self._lengths) - self._lengths
        rows = np.repeat(np.arange(len(self)), self._lengths)
        # The sentences of each word, word after word; one that has a word twice is there once.
        places = np.unique(self._words.astype(np.int64) * len(self) + rows)
        self._places = (places % len(self)).astype(np.int32)
        self._counts = np.bincount(places // len(self), minlength=len(self._known))
        self._ends = np.cumsum(self._counts)
        keys = _hashes(self._words_of(row).tobytes() for row in range(len(self)))
        self._by_words = np.argsort(keys, kind="stable")
        self._keys = keys[self._by_words]

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
        plain = " ".join(line.split())
        found = [self._known.get(word, -1) for word in WORD.findall(_composed(plain).lower())]
        alike, score = self._most_alike(np.asarray(found, np.int32), least)
        rows = alike.tolist()
        if not rows:
            return None
        return Match(next((row for row in reversed(rows) if self.src[row] == plain), rows[-1]), score)

    def neighbours(self, least: float) -> Iterator[Match | None]:
        """Yield for each pair, in order, the match of its source among the other pairs."""
        for row in range(len(self)):
            rows, score = self._most_alike(self._words_of(row), least, but=row)
            yield Match(int(rows[-1]), score) if len(rows) else None

    def _words_of(self, row: int) -> Ids:
        return self._words[self._starts[row] : self._starts[row] + self._lengths[row]]

    def _most_alike(self, words: Ids, least: float, but: int = -1) -> tuple[Ids, float]:
        """Return the pairs, but one, whose sources have the highest score, `least` or more, and the score."""
        if not 0 < len(words) <= MOST_WORDS:
            return NONE, 0.0
        [key] = _hashes([words.tobytes()])
        first, end = (np.searchsorted(self._keys, key, side) for side in ("left", "right"))
        equal = self._by_words[first:end]
        if len(equal := equal[equal != but]):
            return equal, 1.0
        rows = self._candidates(words, least, but)
        if not len(rows):
            return NONE, 0.0
        lengths = self._lengths[rows]
        distances = edit_distances(words, self._side_by_side(rows), lengths)
        scores = 1.0 - distances / np.maximum(lengths, len(words))
        best = float(scores.max())
        return (rows[scores == best], best) if best >= least - ROUNDING else (NONE, 0.0)

    def _candidates(self, words: Ids, least: float, but: int) -> NDArray[np.int64]:
        """Return the numbers of the pairs, but one, that may be like a line, ascending."""
        own = np.unique(words[words >= 0])
        rarest = own[np.argsort(self._counts[own], kind="stable")]
        counts = self._counts[rarest]
        taken = np.clip(MOST_PLACES - (np.cumsum(counts) - counts), 0, counts)
        found = [self._places[e - n : e] for e, n in zip(self._ends[rarest], taken, strict=True)]
        rows, common = np.unique(np.concatenate([np.empty(0, np.int32), *found]), return_counts=True)
        lengths = self._lengths[rows]
        shorter, longer = np.minimum(lengths, len(words)), np.maximum(lengths, len(words))
        near = shorter >= least * longer - ROUNDING  # else the score is too low whatever the words are
        near &= (lengths <= MOST_WORDS) & (rows != but)
        rows = self._with_most(rows[near], common[near] / longer[near], MOST_COUNTED)
        if len(rows) <= MOST_COMPARED:
            return rows
        is_own = np.zeros(len(self._known) - PADDING, bool)  # the first behind the words is for `PADDING`
        is_own[own] = True
        common = np.count_nonzero(is_own.take(self._side_by_side(rows), mode="wrap"), axis=1)
        return self._with_most(rows, common / np.maximum(self._lengths[rows], len(words)), MOST_COMPARED)

    def _with_most(
        self, rows: NDArray[np.int64], shares: NDArray[np.float64], most: int
    ) -> NDArray[np.int64]:
        """Return the rows, or `most` of them with the largest shares, ascending; of equal ones the last."""
        if len(rows) <= most:
            return rows
        keys = (shares * 2**20).astype(np.int64) * len(self) + rows
        return np.sort(rows[np.argpartition(keys, -most)[-most:]])

    def _side_by_side(self, rows: NDArray[np.int64]) -> Ids:
        """Return the words of the sources of some pairs, a row for each, with `PADDING` behind them."""
        lengths = self._lengths[rows][:, None]
        steps = np.arange(lengths.max())
        words: Ids = self._words.take(self._starts[rows][:, None] + steps, mode="clip")
        words[steps >= lengths] = PADDING
        return words


@dataclass
class Neighbours:
    """The match of each pair of a text: the other pair whose source is most like its own."""

    tgt: list[str]
    """The targets of the different pairs of the text."""
    keys: NDArray[np.uint64]
    """Hashes of the pairs that have a match, ascending."""
    rows: NDArray[np.int32]
    """For each key: the number of the pair that is the match."""
    scores: NDArray[np.float32]
    """For each key: the likeness of the sources."""

    def __len__(self) -> int:
        return len(self.keys)

    def translation(self, src: str, tgt: str, least: float) -> str | None:
        """Return the target of the match of a pair; None for one without, or with a score below `least`."""
        [key] = _keys_of([(src, tgt)])
        place = int(np.searchsorted(self.keys, key))
        if place == len(self.keys) or self.keys[place] != key or self.scores[place] < least - ROUNDING:
            return None
        return self.tgt[self.rows[place]]

    @classmethod
    def of(cls, memory: TranslationMemory, least: float) -> Neighbours:
        """Look for the match of every pair of a memory, with a score of `least` or more."""
        neighbours = memory.neighbours(least)
        found = list(told(neighbours, "looking for matches", "pairs", lambda _: 1, len(memory)))
        matches = [(row, match) for row, match in enumerate(found) if match is not None]
        keys = _keys_of([(memory.src[row], memory.tgt[row]) for row, _ in matches])
        order = np.argsort(keys)
        rows = np.array([match.row for _, match in matches], np.int32)[order]
        scores = np.array([match.score for _, match in matches], np.float32)[order]
        return cls(memory.tgt, keys[order], rows, scores)

    @classmethod
    def cached(
        cls, memory: Callable[[], TranslationMemory], digest: str, least: float, cache: Path
    ) -> Neighbours:
        """Return the neighbours of a memory by its `digest`, from the cache if they are there."""
        settings = least, MOST_PLACES, MOST_COUNTED, MOST_COMPARED, MOST_WORDS, WORD.pattern
        entry = cache / entry_name("neighbours", FORMAT_VERSION, digest, *settings)
        if open_entry(entry) is None:
            made = cls.of(memory(), least)
            write_entry(entry, made._save)
            return made
        with np.load(entry / "neighbours.npz") as stored:
            arrays = {name: stored[name] for name in stored}
        return cls(written_lines(entry / "tgt"), **arrays)

    def _save(self, folder: Path) -> None:
        write_lines(folder / "tgt", self.tgt)
        np.savez(folder / "neighbours.npz", keys=self.keys, rows=self.rows, scores=self.scores)


def _require_pair(pair: object, number: int) -> tuple[str, str]:
    """Return the sides of a pair, each as one line; raise `UserError` for what is no pair of texts."""
    sides = list(pair) if isinstance(pair, list | tuple) else []
    if len(sides) != 2 or not all(isinstance(side, str) for side in sides):
        raise UserError(f"memory: pairs are (source, translation), but number {number} is {pair!r:.80}")
    src, tgt = (" ".join(side.split()) for side in sides)
    return src, tgt


def _composed(line: str) -> str:
    """Return a line whose characters are composed, so that it is found however it is written."""
    return unicodedata.normalize("NFC", line)


def _keys_of(pairs: Iterable[tuple[str, str]]) -> NDArray[np.uint64]:
    """Return a hash of each pair, whatever the spaces between its words."""
    sides = ("\n".join(" ".join(side.split()) for side in pair) for pair in pairs)
    return _hashes(text.encode(errors="replace") for text in sides)


def _hashes(contents: Iterable[bytes]) -> NDArray[np.uint64]:
    """Return a hash of each of some contents."""
    found = b"".join(hashlib.blake2b(content, digest_size=8).digest() for content in contents)
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
