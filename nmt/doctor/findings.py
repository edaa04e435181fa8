"""Findings: what is wrong with a corpus or an environment, how bad that is, what to do, and examples."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.doctor.hashes import mixed

MAX_SHOWN = 300
"""Characters of a line that are shown."""


class Severity(Enum):
    """How bad a finding is, the worst first; the value is a heading."""

    breaks = "Breaks training"
    costs = "Costs quality"
    note = "Worth knowing"


@dataclass
class Example:
    """One pair, or text, with a finding; its text is cut, and has escapes for what cannot be seen."""

    line: int
    """Number of the pair in its split, from 1."""
    src: str
    tgt: str
    note: str = ""
    """What there is to see, such as "5 times"."""


@dataclass
class Finding:
    """One kind of fault."""

    severity: Severity
    where: str
    """Split or part that has the fault, such as "train" or "environment"."""
    kind: str
    """Name of the fault that does not change, such as "empty"."""
    text: str
    """The fault in one sentence."""
    remedy: str = ""
    """What to do, with keys of the config."""
    count: int | None = None
    total: int | None = None
    examples: list[Example] = field(default_factory=list)


def visible_text(text: str, most: int = MAX_SHOWN) -> str:
    """Return the beginning of a line with escapes for characters that cannot be seen, or change others.

    Spaces of other kinds than U+0020 are escaped, too, and so are control, format and private characters.
    """
    cut = text[:most]
    shown = "".join(c if c.isprintable() else _escape(c) for c in cut)
    return f"{shown}…" if len(text) > most else shown


def _escape(character: str) -> str:
    return f"<U+{ord(character):04X}>"


class _Kept(NamedTuple):
    score: int | float
    example: Example


class Gallery:
    """The number of pairs of each kind, and of some the text: those of highest score.

    Without scores the choice is at random, by a hash of the seed and of the line number.
    """

    def __init__(self, most: int, seed: int):
        self.counts: dict[str, int] = {}
        self._most, self._seed = most, seed
        self._kept: dict[str, list[_Kept]] = {}

    def add(
        self,
        kind: str,
        chosen: NDArray[np.bool_],
        first: int,
        sides: tuple[list[str], list[str]],
        scores: NDArray[np.float64] | None = None,
    ) -> None:
        """Count the `chosen` pairs of a block whose first pair has the number `first`, from 1."""
        rows = np.flatnonzero(chosen)
        self.counts[kind] = self.counts.get(kind, 0) + len(rows)
        if not len(rows) or not self._most:
            return
        worth = self._at_random(rows + first) if scores is None else scores[rows]
        best = np.argsort(-worth, kind="stable")[: self._most]
        kept = self._kept.setdefault(kind, [])
        for row, score in zip(rows[best].tolist(), worth[best].tolist(), strict=True):
            if len(kept) < self._most or score > kept[-1].score:
                texts = (visible_text(side[row]) for side in sides)
                kept.append(_Kept(score, Example(first + row, *texts)))
                kept.sort(key=lambda one: (-one.score, one.example.line))
                del kept[self._most :]

    def _at_random(self, lines: NDArray[np.int64]) -> NDArray[np.float64]:
        return mixed(lines.astype(np.uint64), self._seed).astype(np.float64)

    def examples(self, kind: str) -> list[Example]:
        """Return the pairs of a kind that are kept: those of highest score first, or by line number."""
        return [one.example for one in self._kept.get(kind, [])]
