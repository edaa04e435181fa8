"""Source factors: what a piece of the source has besides its spelling, such as its case.

Each row of `FACTORS` gives every piece one of a few values, computed from the text, so that raw text has them
in training and in every use alike (Sennrich and Haddow 2016). A factor may ask for a source in small letters,
so that "Dog" and "dog" are one piece, whose case the factor tells. The values of a piece are packed into its
id:

    id + V * (first value + number of first values * (second value + ...))

where V is the size of the source vocabulary; `nmt.models.vocabulary` takes them apart. EOS and padding have
the value 0 of each factor, so that their ids are what they are without factors. Knows pieces; no tokenizer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from nmt.errors import UserError, suggest

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""The character that SentencePiece writes for a space, and in front of a line."""

CASES = ("none", "lower", "title", "upper", "mixed")
"""Whether a piece has no letter with a case, small letters, small ones behind a capital, capitals, or others.
One capital alone is a title."""
POSITIONS = ("none", "whole", "begin", "inside", "end")
"""Whether a piece is a word, or where in a word it is."""


def case(spellings: Sequence[str], texts: Sequence[str]) -> list[int]:
    """Return the numbers in `CASES` of the pieces, by their part of the text as it was read."""
    return [CASES.index(_case(text)) for text in texts]


def _case(text: str) -> str:
    letters = [letter for letter in text if letter.lower() != letter.upper()]
    small = [letter.islower() for letter in letters]
    if not letters:
        return "none"
    if all(small):
        return "lower"
    if all(small[1:]):
        return "title"
    return "mixed" if any(small) else "upper"


def position(spellings: Sequence[str], texts: Sequence[str]) -> list[int]:
    """Return the numbers in `POSITIONS` of the pieces; a piece that begins with a space begins a word."""
    begins = [number == 0 or spelling.startswith(SPACE) for number, spelling in enumerate(spellings)]
    ends = [*begins[1:], True]
    names = {(True, True): "whole", (True, False): "begin", (False, False): "inside", (False, True): "end"}
    return [POSITIONS.index(names[both]) for both in zip(begins, ends[: len(begins)], strict=True)]


class Factor(NamedTuple):
    """A row of `FACTORS`."""

    values: tuple[str, ...]
    """The names of the values; the first is that of EOS and padding."""
    of: Callable[[Sequence[str], Sequence[str]], list[int]]
    """A function of the spellings of the pieces of a line and of their parts of the text as it was read."""
    reads_text: bool = False
    """Whether the source is tokenised in small letters, and the values come from the text."""


FACTORS: dict[str, Factor] = {
    "case": Factor(CASES, case, reads_text=True),
    "position": Factor(POSITIONS, position),
}


def require_known(names: Sequence[str]) -> None:
    """Raise `UserError` unless `names`, the value of the key, are different rows of `FACTORS`."""
    for name in names:
        if name not in FACTORS or list(names).count(name) > 1:
            problem = "is there twice" if name in FACTORS else "is no factor"
            raise UserError(
                f"tokenizer.source_factors: {name!r} {problem}; the factors are {', '.join(FACTORS)}"
                f"{suggest(name, FACTORS) if name not in FACTORS else ''}"
            )


def sizes(names: Sequence[str]) -> tuple[int, ...]:
    """Return the number of values of each factor."""
    return tuple(len(FACTORS[name].values) for name in names)


def num_ids(vocab_size: int, names: Sequence[str]) -> int:
    """Return the number of packed ids."""
    return vocab_size * math.prod(sizes(names))


def packed(
    ids: Sequence[int], spellings: Sequence[str], texts: Sequence[str], names: Sequence[str], vocab_size: int
) -> list[int]:
    """Return the ids of the pieces of a line, without EOS, with the values of the factors `names`."""
    found, width = list(ids), vocab_size
    for name in names:
        factor = FACTORS[name]
        found = [i + width * value for i, value in zip(found, factor.of(spellings, texts), strict=True)]
        width *= len(factor.values)
    return found


def small(line: str) -> str:
    """Return a line in small letters, character by character, so that its length stays: İ becomes i."""
    lowered = line.lower()
    return lowered if len(lowered) == len(line) else "".join(letter.lower()[0] for letter in line)


def texts_of(line: str, surfaces: Sequence[str]) -> list[str]:
    """Return the parts of a line as it was read that pieces stand for, given those of its small letters.

    What SentencePiece drops in front of a line, such as spaces, is no part of any piece.
    """
    texts, start = list[str](), small(line).index("".join(surfaces))
    for surface in surfaces:
        texts.append(line[start : start + len(surface)])
        start += len(surface)
    return texts
