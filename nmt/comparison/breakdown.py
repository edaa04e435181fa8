"""Scores by kind of sentence, and the sentences whose translations differ most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.comparison.significance import scorer_of

Lines = Sequence[str]
LENGTHS = (1, 6, 11, 16, 21, 31, 41, 61)
"""First number of words of each bucket of sentences, by the first reference."""
FREQUENCIES = (0, 1, 2, 5, 10, 100, 1000)
"""First frequency of each bucket of sentences, by their rarest source word."""
PUNCTUATION = "".join(map(chr, range(33, 48))) + ":;<=>?@[]\\^_`{|}~«»„“”‘’–—…¿¡。、！？"
MAX_MARKED_WORDS = 500
"""Longest sentence, in words, in which differences are marked."""
SENTENCE_CHRF = "nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no"


@dataclass
class Bucket:
    """Sentences of one kind, and the score of each system on them."""

    label: str
    sentences: int
    scores: list[float]
    """One value for each system."""


@dataclass
class Difference:
    """A sentence that two systems translate differently."""

    line: int
    """Number of the line, from 1."""
    chrf: tuple[float, float]
    """Sentence chrF of the first system and of the other."""
    first: list[tuple[str, bool]]
    """Translation of the first system in parts; True: not so in that of the other."""
    other: list[tuple[str, bool]]


def statistics(signature: str, hypotheses: Lines, references: Sequence[Lines]) -> NDArray[Any]:
    """Return the numbers (sentences, n) whose sums over sentences a metric is a function of."""
    return np.array(scorer_of(signature, references)._extract_corpus_statistics(list(hypotheses), None))


def by_bucket(
    signature: str, counts: Sequence[NDArray[Any]], values: Sequence[int], starts: Sequence[int]
) -> list[Bucket]:
    """Return the corpus score of each system on the sentences of each bucket that is not empty.

    `counts` are the `statistics` of each system, `values` what decides the bucket of each sentence, and
    `starts` the first value of each bucket, of which the last has no end.
    """
    scorer, places = scorer_of(signature), np.searchsorted(starts, values, side="right") - 1
    found = []
    for place, start in enumerate(starts):
        chosen = places == place
        if chosen.any():
            end = starts[place + 1] - 1 if place + 1 < len(starts) else None
            label = f"{start}+" if end is None else str(start) if end == start else f"{start}-{end}"
            sums = [rows[chosen].sum(axis=0).tolist() for rows in counts]
            scores = [float(scorer._compute_score_from_stats(one).score) for one in sums]
            found.append(Bucket(label, int(chosen.sum()), scores))
    return found


def words_of(line: str) -> list[str]:
    """Return the words of a line in lower case, without punctuation around them."""
    return [word for word in (part.strip(PUNCTUATION) for part in line.lower().split()) if word]


def lengths(references: Lines) -> list[int]:
    """Return the number of words of each line, at least 1."""
    return [max(len(line.split()), 1) for line in references]


def rarest_words(sources: Lines, counts: Mapping[str, int]) -> list[int]:
    """Return for each line how often its rarest word occurs by `counts`."""
    most = max(counts.values(), default=0)
    return [min((counts.get(word, 0) for word in words_of(line)), default=most) for line in sources]


def word_counts(lines: Iterable[str]) -> Counter[str]:
    """Return how often each word occurs."""
    return Counter(word for line in lines for word in words_of(line))


def sentence_scores(hypotheses: Lines, references: Sequence[Lines]) -> NDArray[Any]:
    """Return the chrF of each sentence by itself, 0 to 100."""
    scorer = scorer_of(SENTENCE_CHRF)
    rows = statistics(SENTENCE_CHRF, hypotheses, references).tolist()
    return np.array([scorer._compute_score_from_stats(row).score for row in rows])


def largest_differences(
    first: Lines, other: Lines, chrf: Sequence[NDArray[Any]], most: int
) -> list[Difference]:
    """Return the sentences whose chrF differs most between two systems, at most `most`, gains and losses.

    `chrf` has the scores of each sentence, of the first system and of the other.
    """
    gaps = np.abs(chrf[1] - chrf[0])
    order = np.argsort(-gaps, kind="stable")[:most]
    found = []
    for number in map(int, order):
        if gaps[number] > 0:
            parts = marked(first[number], other[number])
            scores = float(chrf[0][number]), float(chrf[1][number])
            found.append(Difference(number + 1, scores, *parts))
    return found


def marked(first: str, other: str) -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
    """Return both lines in parts; True marks words that the other line does not have there."""
    a, b = first.split(), other.split()
    if max(len(a), len(b)) > MAX_MARKED_WORDS:
        return [(first, False)], [(other, False)]
    left, right = list[tuple[str, bool]](), list[tuple[str, bool]]()
    for kind, a1, a2, b1, b2 in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        for side, words in ((left, a[a1:a2]), (right, b[b1:b2])):
            if words:
                side.append((" ".join(words), kind != "equal"))
    return left, right
