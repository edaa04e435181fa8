"""Word translation probabilities from sentence pairs, and the alignment of the words of a pair by them.

IBM model 1 (Brown et al. 1993, section 4.2) in both directions, with a preference for words at similar
places, as in fast_align (Dyer et al. 2013), estimated by expectation maximisation on flat arrays. A `Lexicon`
knows words as integers; a `WordLexicon` knows text. Subword tokenizers and models are unknown here.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.data.encoded_pairs import Ids, RaggedIds
from nmt.data.parallel_text import ParallelText
from nmt.data.text.words import MARKS, words_and_signs
from nmt.disk_cache import entry_name, open_entry, write_entry

FORMAT_VERSION = 2
MOST_CELLS = 1 << 24
"""Pairs of a word and a word of its translation that are held, at about 90 bytes each; of larger corpora
sentence pairs are left out, at equal distances."""
ITERATIONS = 5
"""Steps of expectation maximisation."""
DIAGONAL = 4.0
"""How fast the prior falls with the distance of two relative places; fast_align starts with this value."""
NULL_PRIOR = 0.08
"""Prior of a word that translates no word, as in fast_align."""
LEAST = 1e-3
"""Smallest probability that is kept, unless it is larger in the other direction."""
WORD = words_and_signs("'’-")
_MARKS = re.compile(f"[{MARKS}]")

Floats = NDArray[np.float64]
Links = list[tuple[int, int]]
"""Places in the source and in the target of words that translate each other, from 0."""


@dataclass
class Lexicon:
    """Word translation probabilities in both directions, of words as integers."""

    tgt_size: int
    """Number of target words."""
    keys: NDArray[np.int64]
    """Source word * `tgt_size` + target word, of each entry, ascending."""
    forward: Floats
    """Of each entry: the probability of the target word given the source word."""
    backward: Floats
    """Of each entry: the probability of the source word given the target word."""
    null_tgt: Floats
    """Of each target word: its probability given no word."""

    def probabilities(self, src: int) -> tuple[NDArray[np.int64], Floats]:
        """Return the translations of a source word, the most probable first, and their probabilities."""
        start, end = np.searchsorted(self.keys, [src * self.tgt_size, (src + 1) * self.tgt_size])
        order = np.argsort(-self.forward[start:end], kind="stable")
        return self.keys[start:end][order] % self.tgt_size, self.forward[start:end][order]

    def align(self, src: Sequence[int] | Ids, tgt: Sequence[int] | Ids) -> Links:
        """Return the links of a sentence pair: those that are the best of both their words.

        Words may be -1, which translates nothing.
        """
        s, t = np.asarray(src, np.int64), np.asarray(tgt, np.int64)
        if not len(self.keys) or not s.size or not t.size:
            return []
        wanted = s[:, None] * self.tgt_size + t  # (S, T)
        places = np.searchsorted(self.keys, wanted).clip(max=len(self.keys) - 1)
        is_known = (self.keys[places] == wanted) & (s >= 0)[:, None] & (t >= 0)
        prior = _diagonal(s.size, t.size)
        given_src = np.where(is_known, prior / prior.sum(0) * self.forward[places], 0.0)
        given_tgt = np.where(is_known, prior / prior.sum(1, keepdims=True) * self.backward[places], 0.0)
        is_link = is_known & (given_src == given_src.max(0)) & (given_tgt == given_tgt.max(1, keepdims=True))
        is_link &= (1 - NULL_PRIOR) * given_src > NULL_PRIOR * np.where(t >= 0, self.null_tgt[t], 1.0)
        return list(zip(*(places.tolist() for places in np.nonzero(is_link)), strict=True))


def _diagonal(src_length: int, tgt_length: int) -> Floats:
    """Return the preference (S, T) of each place in the source for each in the target, not normalised."""
    rows, columns = (np.arange(n) / n + 0.5 / n for n in (src_length, tgt_length))
    return np.exp(-DIAGONAL * np.abs(rows[:, None] - columns))


class _Cells(NamedTuple):
    """All pairs of a word and a word of its translation in a corpus."""

    src_place: NDArray[np.int32]
    tgt_place: NDArray[np.int32]
    """Of each cell: the number of its source and its target word in the whole corpus."""
    entry: NDArray[np.int32]
    """Of each cell: the place of its two words in the sorted list of all that occur together."""
    weight: NDArray[np.float32]
    """Of each cell: the preference of its places."""


def train_lexicon(src: RaggedIds, tgt: RaggedIds, src_size: int, tgt_size: int) -> Lexicon:
    """Estimate the lexicon of sentence pairs, whose words are below `src_size` and `tgt_size`."""
    rows = _affordable(src, tgt)
    sources, targets = src.take(rows), tgt.take(rows)
    s, t = _flat(sources), _flat(targets)
    cells, keys = _cells(sources, targets, s, t, tgt_size)
    tables = [
        _estimated(cells.entry, cells.weight, keys, own, place)
        for own, place in (
            (_Side(keys // tgt_size, src_size, t, tgt_size), cells.tgt_place),
            (_Side(keys % tgt_size, tgt_size, s, src_size), cells.src_place),
        )
    ]
    (forward, null_tgt), (backward, _) = tables
    kept = (forward >= LEAST) | (backward >= LEAST)
    return Lexicon(tgt_size, keys[kept], forward[kept], backward[kept], null_tgt)


def _affordable(src: RaggedIds, tgt: RaggedIds) -> NDArray[np.int64]:
    """Return the rows of pairs with words on both sides, or as many of them as `MOST_CELLS` allows."""
    sizes = np.asarray(src.lengths, np.int64) * np.asarray(tgt.lengths, np.int64)
    rows = np.flatnonzero(sizes)
    step = -(-int(sizes.sum()) // MOST_CELLS)
    return rows[:: max(step, 1)]


def _flat(sentences: Sequence[Ids]) -> NDArray[np.int64]:
    return np.concatenate([np.empty(0, np.int64), *sentences]).astype(np.int64)


def _cells(
    sources: Sequence[Ids], targets: Sequence[Ids], s: Ids, t: Ids, tgt_size: int
) -> tuple[_Cells, NDArray[np.int64]]:
    """Return the cells of the pairs, whose words end to end are `s` and `t`, and the keys of the entries."""
    m = np.fromiter(map(len, sources), np.int64, len(sources))
    n = np.fromiter(map(len, targets), np.int64, len(targets))
    sizes = m * n
    inside = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    columns = np.repeat(n, sizes)
    i, j = inside // columns, inside % columns
    rows = np.repeat(m, sizes)
    weight = np.exp(-DIAGONAL * np.abs((i + 0.5) / rows - (j + 0.5) / columns)).astype(np.float32)
    src_place = (i + np.repeat(np.cumsum(m) - m, sizes)).astype(np.int32)
    tgt_place = (j + np.repeat(np.cumsum(n) - n, sizes)).astype(np.int32)
    keys, entry = np.unique(s[src_place] * tgt_size + t[tgt_place], return_inverse=True)
    return _Cells(src_place, tgt_place, entry.astype(np.int32), weight), keys


class _Side(NamedTuple):
    """A direction of translation."""

    given: NDArray[np.int64]
    """Of each entry: the word that is given."""
    given_size: int
    words: NDArray[np.int64]
    """The words that are predicted, end to end."""
    size: int


def _estimated(
    entry: NDArray[np.int32],
    weight: NDArray[np.float32],
    keys: NDArray[np.int64],
    side: _Side,
    place: NDArray[np.int32],
) -> tuple[Floats, Floats]:
    """Return the probability of each entry in a direction, and of each word given none."""
    table, null = np.ones(len(keys)), np.bincount(side.words, minlength=side.size) / max(len(side.words), 1)
    prior = (1 - NULL_PRIOR) * weight / np.bincount(place, weight, len(side.words))[place]
    for iteration in range(ITERATIONS):
        found = prior * table[entry] / (side.size if not iteration else 1)
        of_null = NULL_PRIOR * null[side.words]
        total = np.bincount(place, found, len(side.words)) + of_null
        counts = np.bincount(entry, found / total[place], len(keys))
        table = counts / np.bincount(side.given, counts, side.given_size)[side.given]
        nulls = np.bincount(side.words, of_null / total, side.size)
        null = nulls / max(nulls.sum(), 1e-30)
    return table, null


@dataclass
class WordLexicon:
    """A lexicon of the words of texts, as `WORD` finds them, in small letters, numbered by frequency."""

    src: dict[str, int]
    tgt: dict[str, int]
    lexicon: Lexicon

    def align(self, src: Sequence[str], tgt: Sequence[str]) -> Links:
        """Return the links between the words of a sentence and of its translation."""
        return self.lexicon.align(
            *(_numbers(words, own) for words, own in ((src, self.src), (tgt, self.tgt)))
        )

    @functools.cached_property
    def tgt_words(self) -> list[str]:
        """The words of the targets, without signs and numbers, in small letters, the most frequent first."""
        return [word for word in self.tgt if _MARKS.sub("", word).isalpha()]

    def rank(self, word: str) -> int:
        """Return how many source words are more frequent; for an unknown word, the number of all."""
        return self.src.get(word.lower(), len(self.src))

    def translations(self, word: str, most: int = 5) -> list[tuple[str, float]]:
        """Return the most probable translations of a source word, in small letters; none if it is unknown."""
        if word.lower() not in self.src:
            return []
        words, (ids, probs) = list(self.tgt), self.lexicon.probabilities(self.src[word.lower()])
        return [(words[i], p) for i, p in zip(ids[:most].tolist(), probs[:most].tolist(), strict=True)]

    @classmethod
    def of(cls, text: ParallelText) -> WordLexicon:
        """Estimate the lexicon of a text."""
        (src, sources), (tgt, targets) = map(numbered_words, (text.src, text.tgt))
        return cls(src, tgt, train_lexicon(sources, targets, len(src), len(tgt)))

    @classmethod
    def cached(cls, text: Callable[[], ParallelText], digest: str, cache: Path) -> WordLexicon:
        """Return the lexicon of a text by its `digest`, from the cache if it is there."""
        settings = MOST_CELLS, DIAGONAL, NULL_PRIOR, LEAST, WORD.pattern
        entry = cache / entry_name("lexicon", FORMAT_VERSION, digest, *settings)
        if open_entry(entry) is not None:
            return cls._load(entry)
        made = cls.of(text())
        write_entry(entry, made._save)
        return made

    def _save(self, folder: Path) -> None:
        words: dict[str, Any] = {
            side: np.array(["\n".join(own)]) for side, own in (("src", self.src), ("tgt", self.tgt))
        }
        np.savez(
            folder / "lexicon.npz", **words, **{f"lexicon_{k}": v for k, v in vars(self.lexicon).items()}
        )

    @classmethod
    def _load(cls, folder: Path) -> WordLexicon:
        with np.load(folder / "lexicon.npz") as stored:
            src, tgt = (
                {word: i for i, word in enumerate(str(stored[side][0]).split("\n"))}
                for side in ("src", "tgt")
            )
            arrays = {k.removeprefix("lexicon_"): stored[k] for k in stored if k.startswith("lexicon_")}
        return cls(src, tgt, Lexicon(**{**arrays, "tgt_size": int(arrays["tgt_size"])}))


def _numbers(words: Sequence[str], known: dict[str, int]) -> list[int]:
    return [known.get(word.lower(), -1) for word in words]


def numbered_words(lines: Sequence[str]) -> tuple[dict[str, int], RaggedIds]:
    """Return the words of lines, in small letters, numbered from the most frequent on, and the lines so."""
    counts = Counter(itertools.chain.from_iterable(WORD.findall(line.lower()) for line in lines))
    known = {word: i for i, (word, _) in enumerate(counts.most_common())}
    return known, RaggedIds.of([[known[word] for word in WORD.findall(line.lower())] for line in lines])
