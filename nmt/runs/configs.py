"""The config of the choice among synthetic pairs; imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from nmt.checks import within


class Side(Enum):
    """The side of the pairs that is translated; the name of the synthetic corpus says the direction."""

    src = "forward"
    tgt = "backward"


class KeptCandidates(Enum):
    """The translations of an n-best list that may become pairs."""

    all = "all"
    closest = "closest"


@dataclass
class SelectionConfig:
    """Rules for the translations that are kept; a text without references has no chrF."""

    candidates: KeptCandidates = KeptCandidates.all
    """all translations of an n-best list, or of each list the one closest to the reference by chrF
    (sequence-level interpolation, Kim and Rush 2016, section 3.3)."""
    min_score: float | None = None
    """Translations with a lower score are dropped; the score is that of the search, such as the
    length-penalised log probability of beam search. null: none."""
    best_share: float = 1.0
    """Share of the translations of a teacher, those with the best scores, that is kept."""
    min_chrf: float = 0.0
    """Translations with a lower chrF against the reference, from 0 to 100, are dropped (after Freitag et al.
    2017)."""

    def __post_init__(self) -> None:
        within(self, "distil", "(0, 1]", "best_share")
        within(self, "distil", "[0, 100]", "min_chrf")

    @property
    def needs_references(self) -> bool:
        """Whether translations are compared with references."""
        return self.candidates is KeptCandidates.closest or self.min_chrf > 0.0
