"""The keys of `nmt doctor`; imported before the verb runs, and so without torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from nmt.checks import at_least, not_negative
from nmt.config.roots import RecipeConfig
from nmt.errors import UserError


@dataclass
class DoctorOptions:
    """What is looked at, how much of it is shown, and where the report goes."""

    page: str | None = None
    """HTML page to write, with plots and examples; null: none."""
    json: str | None = None
    """JSON file to write, with every number; null: none."""
    examples: int = 3
    """Pairs that are shown of each kind of finding; pages and JSON have as many."""
    sample: int = 10_000
    """Pairs of a split, sampled at random, whose language is told and that are compared with each other."""
    max_pairs: int | None = None
    """Pairs at the beginning of each split that are looked at; null: all."""
    seed: int = 1
    """Seed of the sample, and of the choice of examples."""

    def __post_init__(self) -> None:
        not_negative(self, "doctor", "examples", "sample", "seed")
        at_least(self, "doctor", 1, "max_pairs")
        for key in ("page", "json"):
            value = getattr(self, key)
            if value is not None and not value.strip():
                raise UserError(f"doctor.{key} must name a file, but is empty")


@dataclass
class DoctorConfig(RecipeConfig):
    """Look at the environment, or at the corpus that the keys of nmt train name; nothing is changed."""

    doctor: DoctorOptions = field(default_factory=DoctorOptions)
    """The report."""
