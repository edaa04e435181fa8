"""The language of lines, told by py3langid; refuses to guess where a line is short or the answer unsure."""

from __future__ import annotations

import importlib
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from nmt.data.text.scripts import language_of

MIN_LETTERS = 25
"""Characters from which the language of a line is told."""
SURE = 0.9
"""Probability from which an answer counts."""
MISSING = "the language of lines is told with py3langid; install it: pip install 'nmt[language]'"


@dataclass
class Languages:
    """The languages of the lines of one side of a sample."""

    expected: str
    looked_at: int = 0
    """Lines that are long enough, and whose language is told for sure."""
    counts: dict[str, int] = field(default_factory=dict)
    """Language -> lines, the most first."""
    others: list[tuple[int, str, float]] = field(default_factory=list)
    """Row, language and probability of each line in another language than expected."""
    problem: str = ""
    """Why nothing is told."""

    @property
    def wrong(self) -> int:
        """Lines in another language than expected."""
        return self.looked_at - self.counts.get(self.expected, 0)


def languages_of(lines: list[str], language: str) -> Languages:
    """Tell the languages of `lines`, which should be in `language`, a name such as de or de_AT."""
    expected = language_of(language)
    try:
        model = _model()
    except ImportError:
        return Languages(expected, problem=MISSING)
    if expected not in model.labels:
        return Languages(expected, problem=f"py3langid knows no language {expected!r}")
    found, counts = Languages(expected), Counter[str]()
    for row, line in enumerate(lines):
        if len(line.strip()) < MIN_LETTERS:
            continue
        told, probability = model.classify(line)
        if probability < SURE:
            continue
        counts[told] += 1
        if told != expected:
            found.others.append((row, told, probability))
    found.looked_at = sum(counts.values())
    found.counts = dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
    return found


@cache
def _model() -> Any:
    """Load the model that is part of py3langid; raise `ImportError` where that is not installed."""
    langid = importlib.import_module("py3langid.langid")
    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
