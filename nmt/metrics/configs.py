"""The configs of metrics. Imports no torch and no NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from nmt.errors import UserError, suggest


class Utility(Enum):
    """A measure of how much one text is worth where another is the reference, from 0 to 100."""

    chrf = "chrf"
    """Character n-grams of up to 6 characters, without spaces."""
    bleu = "bleu"
    """Word n-grams of up to 4 words; words are split as sacreBLEU's tokenizer 13a does."""


TOKENIZERS = ("13a", "intl", "char", "zh", "ja-mecab", "ko-mecab", "flores101", "flores200", "none")
"""Rules of sacreBLEU that split text into words for BLEU."""


@dataclass
class ScoringConfig:
    """The rules of the metrics of sacreBLEU; a signature states them."""

    tokenize: str | None = None
    """Rule that splits words for BLEU: 13a, intl, char, zh, ja-mecab, ko-mecab, flores101, flores200 or none;
    null: the one that is usual for the target language."""
    lowercase: bool = False
    """Score BLEU and chrF without regard to case."""

    def __post_init__(self) -> None:
        if self.tokenize is not None and self.tokenize not in TOKENIZERS:
            raise UserError(
                f"scoring.tokenize must be one of {', '.join(TOKENIZERS)} or null, "
                f"but is {self.tokenize!r}{suggest(self.tokenize, TOKENIZERS)}"
            )
