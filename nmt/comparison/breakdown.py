"""Scores by kind of sentence, and the sentences whose translations differ most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.comparison.paired_tests import ScoreOn
from nmt.comparison.significance import scores_by
from nmt.metrics.label_scores import MOST_LABELS

Lines = Sequence[str]
Chosen = NDArray[Any]
"""Mask of sentences (N,), or their numbers."""
Group = tuple[str, Chosen]
"""Name of a kind of sentences, and those of it."""
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
    scores: tuple[float, float]
    """Score of the sentence by itself, of the first system and of the other."""
    first: list[tuple[str, bool]]
    """Translation of the first system in parts; True: not so in that of the other."""
    other: list[tuple[str, bool]]


def in_ranges(values: Sequence[int], starts: Sequence[int]) -> Iterator[Group]:
    """Yield the name and the sentences of each range of values, the last of which has no end.

    `values` has a value for each sentence (N,), `starts` the first value of each range.
    """
    places = np.searchsorted(starts, values, side="right") - 1
    for place, start in enumerate(starts):
        end = starts[place + 1] - 1 if place + 1 < len(starts) else None
        yield (
            f"{start}+" if end is None else str(start) if end == start else f"{start}-{end}",
            places == place,
        )


def of_each_label(true: Lines) -> Iterator[Group]:
    """Yield each label and the texts that have it; nothing where there are more than `MOST_LABELS`."""
    names = sorted({*true})
    for name in names if len(names) <= MOST_LABELS else ():
        yield name, np.array([label == name for label in true])


def by_group(score_on: Sequence[ScoreOn], groups: Iterable[Group]) -> list[Bucket]:
    """Return the corpus score of each system on the sentences of each group that is not empty.

    `score_on` has the function of each system.
    """
    return [
        Bucket(name, int(chosen.sum()), [score(chosen) for score in score_on])
        for name, chosen in groups
        if chosen.any()
    ]


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


def sentence_scores(signature: str, hypotheses: Lines, references: Sequence[Lines]) -> NDArray[Any]:
    """Return the score of each sentence by itself (N,), 0 to 100, such as that of `SENTENCE_CHRF`."""
    score, each = scores_by(signature, [hypotheses], references).score_on(0), np.arange(len(hypotheses))
    return np.array([score(each[number : number + 1]) for number in each])


def largest_differences(
    first: Lines, other: Lines, scores: Sequence[NDArray[Any]], most: int
) -> list[Difference]:
    """Return the sentences whose scores differ most between two systems, at most `most`, gains and losses.

    `scores` has those of each sentence (N,), of the first system and of the other.
    """
    gaps = np.abs(scores[1] - scores[0])
    order = np.argsort(-gaps, kind="stable")[:most]
    found = []
    for number in map(int, order):
        if gaps[number] > 0:
            parts = marked(first[number], other[number])
            both = float(scores[0][number]), float(scores[1][number])
            found.append(Difference(number + 1, both, *parts))
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
