"""Augmented sets: the pairs of another corpus, each modified, to score on beside the plain ones.

An entry of `sets` with the key `augment` is one; it is deterministic, so that scores of different runs are of
the same text. Knows configs alone; `nmt.data.augmentation` modifies the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nmt.data import modifiers
from nmt.data.pairs import DataConfig, Split
from nmt.errors import UserError

ALL = "usual"
"""In the place of a list of modifiers: a set for each of `USUAL`."""
USUAL = {
    "upper": "upper_case",
    "title": "title_case",
    "typos": "typos",
    "no_stop": "end_punctuation",
    "noise": "noise",
}
"""Name of a set -> the one modifier of its pairs."""


@dataclass
class AugmentedData(DataConfig):
    """The validation and test pairs of another corpus, each with the modifiers of `augment`."""

    name: str = "augmented"
    of: DataConfig = field(default_factory=DataConfig)
    """The corpus."""

    @classmethod
    def made(cls, of: DataConfig, augment: object, prefix: str) -> AugmentedData:
        """Return the config of all pairs of `of` with the modifiers that `augment` says.

        Raises:
            UserError: it is no list of modifiers.
        """
        rows = modifiers.parsed(f"{prefix}.augment", augment, {"rate": 1.0})
        if not rows:
            raise UserError(f"{prefix}.augment is empty; name a modifier: {', '.join(modifiers.MODIFIERS)}")
        augment = [row.plain() for row in rows]
        return cls(src=of.src, tgt=of.tgt, augment=augment, of=of, key_prefix=prefix)

    @property
    def languages(self) -> list[tuple[str, str]]:
        """Those of the corpus."""
        return self.of.languages

    @property
    def scored_languages(self) -> tuple[str, str]:
        """Those of the corpus."""
        return self.of.scored_languages

    @property
    def tags(self) -> dict[str, str]:
        """Those of the corpus, which are in front of its sources and stay as they are."""
        return self.of.tags

    @property
    def origin_tags(self) -> dict[str, str]:
        """Those of the corpus."""
        return self.of.origin_tags

    @property
    def has_labels(self) -> bool:
        """That of the corpus."""
        return self.of.has_labels

    @property
    def origins(self) -> set[str]:
        """Those of the corpus."""
        return self.of.origins

    def place(self, split: Split) -> str | None:
        """Return that of the corpus, and None for the training pairs."""
        return None if split is Split.train else self.of.place(split)


def expanded(sets: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the names and entries of `sets`; one with `augment: usual` is an entry for each of `USUAL`.

    These have its name in front of theirs where the entry names a corpus of its own.

    Raises:
        UserError: a name is there twice.
    """
    seen = set[str]()
    for name, entry in sets.items():
        found = [(name, entry)]
        if isinstance(entry, Mapping) and entry.get("augment") == ALL:
            front = f"{name}-" if len(entry) > 1 else ""
            found = [(f"{front}{own}", {**entry, "augment": [row]}) for own, row in USUAL.items()]
        for own, _ in found:
            if own in seen:
                raise UserError(f"sets.{own} is there twice: once by augment: {ALL}; give one another name")
            seen.add(own)
        yield from found
