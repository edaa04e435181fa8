"""Corpora that need nothing from outside: those that are part of the package, and none."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from nmt.data.configs import DataConfig
from nmt.data.parallel_text import PairStream, Split
from nmt.data.reading import files
from nmt.data.reading.files import FilesData
from nmt.data.reading.mixture import tag_of_language
from nmt.errors import UserError

BUNDLED = Path(__file__).parent / "bundled"
"""The folder of the files in the package; scripts/demo_corpus writes those of the demo."""


@dataclass
class DemoData(DataConfig):
    """The bundled English-German corpus, in either direction."""

    file: ClassVar[str] = "demo.{split}.tsv.gz"
    bundled_languages: ClassVar[tuple[str, str]] = "en", "de"

    def __post_init__(self) -> None:
        super().__post_init__()
        if {self.src, self.tgt} != set(self.bundled_languages):
            raise UserError(
                f"data={self.name} has the languages {' and '.join(self.bundled_languages)}, "
                f"not {self.key_prefix}.src={self.src} {self.key_prefix}.tgt={self.tgt}"
            )

    @property
    def origins(self) -> set[str]:
        """Nothing outside of the package."""
        return set()


@dataclass
class ToyData(DemoData):
    """The ten bundled English-French pairs, in either direction; all splits are the same."""

    name: str = "toy"
    tgt: str = "fr"
    file: ClassVar[str] = "toy.tsv"
    bundled_languages: ClassVar[tuple[str, str]] = "en", "fr"


@dataclass
class NoData(DataConfig):
    """No corpus: the model was trained by another program."""

    name: str = "none"
    targets: list[str] = field(default_factory=list)
    """Languages that the model translates into, the one that a tag asks for; empty: into data.tgt alone."""

    @property
    def languages(self) -> list[tuple[str, str]]:
        """The source language, and each that the model translates into."""
        return [(self.src, tgt) for tgt in self.targets or [self.tgt]]

    @property
    def tags(self) -> dict[str, str]:
        """The tag of each of `targets`."""
        return {tgt: tag_of_language(tgt) for tgt in self.targets}

    @property
    def origins(self) -> set[str]:
        """Nothing."""
        return set()


def stream_bundled(cfg: DemoData, split: Split) -> PairStream:
    """Return one split of a bundled corpus, in the direction of `cfg`."""
    file = str(BUNDLED / cfg.file.format(split=split.value))
    return files.stream(FilesData(src=cfg.src, tgt=cfg.tgt, train=file, validation=file, test=file), split)


def stream_none(cfg: NoData, split: Split) -> PairStream:
    """Refuse to read pairs."""
    raise UserError(f"data=none has no {split.value} pairs; name a corpus, such as data=files and its keys")
