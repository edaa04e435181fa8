"""Augmented sets: the pairs of another corpus, modified or with the tag of a domain, to score on.

An entry of `sets` with the key `augment` or `domain` is one; it is deterministic, so that scores of different
runs are of the same text. Knows configs alone; `nmt.data.augment.augmentation` modifies the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nmt.data import modifiers
from nmt.data.configs import DataConfig
from nmt.data.parallel_text import Split
from nmt.data.reading.mixture import require_domain
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
    """The validation and test pairs of another corpus, each with the modifiers of `augment`, in a domain."""

    name: str = "augmented"
    of: DataConfig = field(default_factory=DataConfig)
    """The corpus."""
    domain: str | None = None
    """The domain of the pairs."""

    @classmethod
    def made(cls, of: DataConfig, entry: Mapping[str, Any], prefix: str) -> AugmentedData:
        """Return the config of all pairs of `of` with the modifiers and the domain that `entry` says.

        Raises:
            UserError: `augment` is no list of modifiers.
        """
        rows = modifiers.parsed(f"{prefix}.augment", entry.get("augment", []), {"rate": 1.0})
        if not rows and "augment" in entry:
            raise UserError(f"{prefix}.augment is empty; name a modifier: {', '.join(modifiers.MODIFIERS)}")
        augment, domain = [row.plain() for row in rows], entry.get("domain")
        return cls(src=of.src, tgt=of.tgt, augment=augment, of=of, domain=domain, key_prefix=prefix)

    def require_known(self, trained: DataConfig) -> None:
        """Raise `UserError` where a model of `trained` knows the domain or the marks of the set not."""
        if self.domain is not None:
            require_domain(self.domain, trained, f"{self.key_prefix}.domain")
        own = modifiers.symbols(modifiers.parsed(f"{self.key_prefix}.augment", self.augment))
        if unknown := [symbol for symbol in own if symbol not in trained.symbols]:
            raise UserError(
                f"{self.key_prefix}.augment puts {' and '.join(unknown)} into sources, which the training "
                "does not; leave that out, or add its modifier to data.augment"
            )

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
    def domains(self) -> dict[str, str]:
        """Its own, or those of the corpus."""
        return self.of.domains if self.domain is None else {self.of.name: self.domain}

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
