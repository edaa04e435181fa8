"""Sentence pairs of one split, from whichever source the config names, and the filter for training pairs.

Evaluation splits are never filtered: a score counts every sentence. What the filter drops it accounts for by
reason, so that kept plus dropped is always what was read. Tokenisation is unknown here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from nmt import demo, hub, textfiles
from nmt.demo import toy
from nmt.errors import UserError
from nmt.hub import HubData
from nmt.pairs import DataConfig, ParallelText, Split
from nmt.textfiles import FilesData, TextData

__all__ = [
    "SOURCES",
    "Account",
    "DataConfig",
    "DemoData",
    "FilesData",
    "HubData",
    "ParallelText",
    "Split",
    "TextData",
    "ToyData",
    "filter_pairs",
    "has_split",
    "load",
    "overlap",
]

MIN_UNEVEN_CHARS = 20
"""A pair is never uneven while its longer side is within this: short pairs such as "No." differ by chance."""


@dataclass
class DemoData(DataConfig):
    """The bundled English-German corpus, in either direction."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_languages(self, "en", "de")


@dataclass
class ToyData(DataConfig):
    """The ten bundled English-French pairs, in either direction; all splits are the same."""

    name: str = "toy"
    tgt: str = "fr"

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_languages(self, "en", "fr")


def _require_languages(cfg: DataConfig, one: str, other: str) -> None:
    if {cfg.src, cfg.tgt} != {one, other}:
        raise UserError(
            f"data={cfg.name} has the languages {one} and {other}, not data.src={cfg.src} data.tgt={cfg.tgt}"
        )


@functools.cache
def _demo_pairs() -> dict[str, list[tuple[str, str]]]:
    return demo.generate()  # all splits at once, in seconds


def read_demo(cfg: DataConfig, split: Split) -> ParallelText:
    """Generate one split of the bundled corpus."""
    return _from_english(_demo_pairs()[split.value], cfg)


def read_toy(cfg: DataConfig, split: Split) -> ParallelText:
    """Return the ten pairs, whichever `split` is asked for."""
    return _from_english(toy.PAIRS, cfg)


def _from_english(pairs: list[tuple[str, str]], cfg: DataConfig) -> ParallelText:
    """The pairs in the direction that `cfg` asks for; English comes first in each."""
    english, other = map(list, zip(*pairs, strict=True))
    return ParallelText(english, other) if cfg.src == "en" else ParallelText(other, english)


SOURCES: dict[str, tuple[type[DataConfig], Callable[[Any, Split], ParallelText]]] = {
    "demo": (DemoData, read_demo),
    "toy": (ToyData, read_toy),
    "hub": (HubData, hub.read),
    "files": (FilesData, textfiles.read),
    "text": (TextData, textfiles.read_text),
}


@dataclass
class Account:
    """How many pairs were read, and how many of them were dropped for which reason."""

    read: int
    dropped: dict[str, int] = field(default_factory=dict)

    @property
    def kept(self) -> int:
        """Pairs that were not dropped."""
        return self.read - sum(self.dropped.values())

    def __str__(self) -> str:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in self.dropped.items() if count)
        return f"{self.read:,} pairs read, {self.kept:,} kept" + (f" ({reasons})" if reasons else "")


def has_split(cfg: DataConfig, split: Split) -> bool:
    """Whether the config names this split; one that it names and that is missing is an error of `load`."""
    return cfg.place(split) is not None


def load(cfg: DataConfig, split: Split) -> ParallelText:
    """Read one split, aligned and unfiltered; raise `UserError` when it cannot be read or does not exist."""
    kind, read = SOURCES.get(cfg.name, (None, None))
    if read is None or kind is not type(cfg):
        raise UserError(
            f"data.name={cfg.name} does not fit the other keys of data; choose data={'|'.join(SOURCES)}"
        )
    if not has_split(cfg, split):
        named = [known.value for known in Split if has_split(cfg, known)]
        raise UserError(
            f"{cfg.key(split)} is not set, but the {split.value} split is needed; "
            f"the splits that are set: {', '.join(named) or 'none'}"
        )
    text = read(cfg, split)
    if not text:
        raise UserError(f"{cfg.key(split)}={cfg.place(split)} has no sentence pairs")
    return text


def filter_pairs(text: ParallelText, cfg: DataConfig) -> tuple[ParallelText, Account]:
    """Drop the training pairs that are empty, too long or uneven, with an account; order is kept."""
    kept = ParallelText()
    dropped = {"empty": 0, "too long": 0, "uneven": 0}
    for src, tgt in zip(text.src, text.tgt, strict=True):
        reason = _fault(src, tgt, cfg)
        if reason:
            dropped[reason] += 1
        else:
            kept.src.append(src)
            kept.tgt.append(tgt)
    account = Account(len(text), dropped)
    if not kept:
        raise UserError(f"no training pair is left: {account}; see data.max_chars and data.max_ratio")
    return kept, account


def _fault(src: str, tgt: str, cfg: DataConfig) -> str | None:
    """Why a pair is of no use for training."""
    shorter, longer = sorted((len(src.strip()), len(tgt.strip())))
    if not shorter:
        return "empty"
    if longer > cfg.max_chars:
        return "too long"
    if longer > MIN_UNEVEN_CHARS and longer > cfg.max_ratio * shorter:
        return "uneven"
    return None


def overlap(train: ParallelText, test: ParallelText) -> int:
    """How many pairs of `test` occur in `train`, word for word."""
    wanted = set(zip(test.src, test.tgt, strict=True))
    seen = wanted.intersection(zip(train.src, train.tgt, strict=True))
    return sum(pair in seen for pair in zip(test.src, test.tgt, strict=True))
