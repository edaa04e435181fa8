"""The utility of a text for another: sentence chrF and sentence BLEU between all texts of a sentence at once.

The values equal `sentence_chrf` and `sentence_bleu` of sacreBLEU. The n-grams of all texts are numbered once,
so that the matches of all pairs are a few products of matrices. Knows text; knows no model.

Shapes: U texts, G distinct n-grams. chrF: Popović 2015. Sentence BLEU, smoothed: Chen and Cherry
2014, method 3. Aggregated references: Vamvas and Sennrich 2024; for BLEU DeNero et al. 2009.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

from nmt.metrics.configs import Utility

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]

CELLS = 1 << 22
"""Counts of n-grams that are in memory at a time."""
BETA = 2
"""Weight of recall in chrF."""


class Matches(NamedTuple):
    """The n-grams of one order that texts have in common with references."""

    common: Floats
    """(U, R) how many a text shares with a reference."""
    of_text: Floats
    """(U, 1) how many a text has."""
    of_reference: Floats
    """(1, R) how many a reference has."""


def expected_utility(
    texts: Sequence[str], weights: Sequence[float], utility: Utility, *, aggregate: bool = False
) -> Floats:
    """Return the mean utility (U,) of each of `texts` where all of them are references with `weights`.

    With `aggregate` there is one reference, the weighted mean of all as counts of n-grams, which is faster
    for many texts; the result then only resembles the mean.
    """
    split, max_order, score = _UTILITIES[utility]
    shares = np.asarray(weights, np.float64) / sum(weights)
    lengths, units = _numbered([split(text) for text in texts])
    orders = [
        _aggregated(rows, grams, len(texts), shares) if aggregate else _pairwise(rows, grams, len(texts))
        for rows, grams in _ngrams(lengths, units, max_order)
    ]
    values = score(orders)
    return values[:, 0] if aggregate else (values * shares).sum(axis=1)


def _chrf(orders: list[Matches]) -> Floats:
    """Return chrF (U, R): precision and recall are means over the orders that both sides have."""
    precision, recall, num_orders = (np.zeros(orders[0].common.shape) for _ in range(3))
    for common, of_text, of_reference in orders:
        both = (of_text > 0) & (of_reference > 0)
        precision += common / np.maximum(of_text, 1) * both
        recall += np.divide(common, of_reference, out=np.zeros_like(common), where=both)
        num_orders += both
    precision, recall = (x / np.maximum(num_orders, 1) for x in (precision, recall))
    weighted = BETA**2 * precision + recall
    return 100 * (1 + BETA**2) * precision * recall / np.where(weighted > 0, weighted, 1)


def _bleu(orders: list[Matches]) -> Floats:
    """Return BLEU (U, R) of the orders that a text has; the i-th order without a match counts as 1 / 2**i."""
    shape = orders[0].common.shape
    logs, smoothing, num_orders, any_match = np.zeros(shape), np.ones(shape), np.zeros(shape), np.zeros(shape)
    for common, of_text, _ in orders:
        exists, matches = of_text > 0, common > 0
        smoothing *= np.where(exists & ~matches, 2, 1)
        found = np.where(matches, common, 1 / smoothing) / np.maximum(of_text, 1)
        logs += np.where(exists, np.log(found), 0)
        num_orders += exists
        any_match += matches
    _, length, reference_length = orders[0]
    brevity = np.exp(np.minimum(0, 1 - reference_length / np.maximum(length, 1)))
    return 100 * np.where(any_match > 0, brevity * np.exp(logs / np.maximum(num_orders, 1)), 0)


def _characters(text: str) -> list[str]:
    return list("".join(text.split()))


def _words(text: str) -> list[str]:
    return _split_words(text.rstrip()).split()


_split_words = Tokenizer13a()
_UTILITIES: dict[Utility, tuple[Callable[[str], list[str]], int, Callable[[list[Matches]], Floats]]] = {
    Utility.chrf: (_characters, 6, _chrf),
    Utility.bleu: (_words, 4, _bleu),
}
"""Utility -> the units of a text, the longest n-gram of units, and the value of the matches."""


def _numbered(texts: Sequence[Sequence[str]]) -> tuple[Ids, Ids]:
    """Return the length (U,) of each text in units, and the units of all texts in a row, as numbers."""
    numbers: dict[str, int] = {}
    units = [numbers.setdefault(unit, len(numbers)) for text in texts for unit in text]
    return np.array([len(text) for text in texts], np.int64), np.array(units, np.int64)


def _ngrams(lengths: Ids, units: Ids, max_order: int) -> Iterator[tuple[Ids, Ids]]:
    """Yield for each order the text and the number of every n-gram; equal n-grams have equal numbers."""
    rows, ends = np.arange(len(lengths)).repeat(lengths), lengths.cumsum().repeat(lengths)
    starts, grams = np.arange(len(units)), units
    for order in range(1, max_order + 1):
        if order > 1:
            longer = starts + order <= ends[starts]
            starts, grams = (
                starts[longer],
                grams[longer] * (len(units) + 1) + units[starts[longer] + order - 1],
            )
            grams = np.unique(grams, return_inverse=True)[1]
        yield rows[starts], grams


def _counts(rows: Ids, grams: Ids, num_texts: int) -> Iterator[npt.NDArray[np.float32]]:
    """Yield how often each text has each n-gram, (U, G') for some n-grams at a time."""
    num_grams = int(grams.max(initial=-1)) + 1
    width = max(1, CELLS // num_texts)
    for first in range(0, num_grams, width):
        here = slice(None) if num_grams <= width else (first <= grams) & (grams < first + width)
        size = min(width, num_grams - first)
        cells = rows[here] * size + grams[here] - first
        yield np.bincount(cells, minlength=num_texts * size).reshape(num_texts, size).astype(np.float32)


def _pairwise(rows: Ids, grams: Ids, num_texts: int) -> Matches:
    """Return the matches (U, U) of all texts with all: sums over n-grams of the lesser of both counts."""
    common = np.zeros((num_texts, num_texts), np.float32)
    for counts in _counts(rows, grams, num_texts):
        most = counts.max(axis=0)
        for count in range(
            1, int(most.max()) + 1
        ):  # min(a, b) is how many counts up to both a and b there are
            has = (counts[:, most >= count] >= count).astype(np.float32)
            common += has @ has.T
    totals = np.bincount(rows, minlength=num_texts).astype(np.float64)
    return Matches(common.astype(np.float64), totals[:, None], totals[None])


def _aggregated(rows: Ids, grams: Ids, num_texts: int, shares: Floats) -> Matches:
    """Return the matches (U, 1) of all texts with the mean of all, weighted by `shares` (U,)."""
    common = np.zeros(num_texts)
    for counts in _counts(rows, grams, num_texts):
        common += np.minimum(counts, shares @ counts).sum(axis=1)
    totals = np.bincount(rows, minlength=num_texts).astype(np.float64)
    return Matches(common[:, None], totals[:, None], (shares @ totals)[None, None])
