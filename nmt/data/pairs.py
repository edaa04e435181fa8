"""Sentence pairs, and what every data config states.

Knows neither files nor datasets: the sources of pairs (`nmt.data.files`, `nmt.data.hub`) build on this, and
`nmt.data.sources` chooses among them. A split is a stream of chunks, so that a corpus may be larger than
memory; only what is small, a split to evaluate on, is ever read whole. No line holds a line feed or a NUL,
so that one sentence is one line in every file written.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from nmt.checks import at_least
from nmt.errors import UserError, suggest

CHUNK_PAIRS = 50_000
"""Pairs of a stream that exist as Python strings at a time."""

_UNUSUAL = re.compile("[\r\n\0\ud800-\udfff]")
_LINE_BREAKS = re.compile("[\r\n\0]+")
_SURROGATES = re.compile("[\ud800-\udfff]")


class Split(Enum):
    """The three parts of a parallel corpus."""

    train = "train"
    validation = "validation"
    test = "test"


@dataclass
class DataConfig:
    """The languages, the split to score and the limits of a training pair; sources add their fields."""

    name: str = "demo"
    """Row of `SOURCES`; set by choosing `data=...`."""
    src: str = "en"
    """Source language."""
    tgt: str = "de"
    """Target language."""
    scored_split: Split = Split.test
    """The split scored at the end of training and by `nmt evaluate`."""
    max_chars: int = 2000
    """Training pairs with a longer side, in characters, are dropped."""
    max_ratio: float = 9.0
    """Training pairs are dropped when one side has more than this many times the characters of the other."""
    max_tokens: int = 256
    """Training pairs with a longer side, in pieces with the end of sentence, are dropped; for
    task=language_model the length of a window."""
    streaming: bool = False
    """Read the training pairs while training goes on, again and again, and keep nothing of them."""
    buffer_pairs: int = 200_000
    """With data.streaming: pairs that are shuffled together; an epoch is one such buffer."""
    key_prefix: str = field(default="data", compare=False, repr=False, metadata={"omegaconf_ignore": True})
    """What errors put in front of a key: `data`, or `data.corpora.NAME` in a mixture. Is itself no key."""

    def __post_init__(self) -> None:
        if not self.src or not self.tgt or self.src == self.tgt:
            raise UserError(
                f"{self.key_prefix}.src and {self.key_prefix}.tgt must be two languages, "
                f"not {self.src!r} and {self.tgt!r}"
            )
        for key, language in (("src", self.src), ("tgt", self.tgt)):
            if language.startswith(".") or set(language) & set("/\\\0"):
                raise UserError(
                    f"{self.key_prefix}.{key} must be the name of a language, which ends the names of files, "
                    f"but is {language!r}"
                )
        at_least(self, self.key_prefix, 1, "max_chars", "max_ratio", "buffer_pairs")
        at_least(self, self.key_prefix, 2, "max_tokens")

    @property
    def languages(self) -> list[tuple[str, str]]:
        """The pairs of source and target language that there are."""
        return [(self.src, self.tgt)]

    @property
    def scored_language(self) -> str:
        """The language of what is scored, by whose rules BLEU finds words."""
        return self.tgt

    @property
    def tags(self) -> dict[str, str]:
        """Target language -> what asks for it in front of a source; nothing where nothing does."""
        return {}

    @property
    def has_source(self) -> bool:
        """Whether there are pairs, and not text in one language."""
        return True

    @property
    def is_mixture(self) -> bool:
        """Whether there may be several corpora."""
        return False

    @classmethod
    def split_field(cls, split: Split) -> str:
        """Return the name of the field that says where `split` is; a mixture calls it like the split."""
        return split.value

    def key(self, split: Split) -> str:
        """Return the config key that says where `split` is."""
        return f"{self.key_prefix}.{self.split_field(split) if self.key_prefix == 'data' else split.value}"

    def place(self, split: Split) -> str | None:
        """Return where `split` is, a name or a path; None when this data has no such split."""
        return getattr(self, self.split_field(split), split.value)

    def parts(self, split: Split) -> dict[str, DataConfig]:
        """Return the corpora that have `split`, by name."""
        return {self.name: self} if self.place(split) is not None else {}

    def shares(self, sizes: Sequence[int]) -> list[float]:
        """Return which part of what is drawn comes from each corpus with so many pairs; they add up to 1."""
        return [1.0]


@dataclass
class ColumnsConfig(DataConfig):
    """What the sources have in common that name the two sides."""

    src_column: str | None = None
    """Where the source side is called otherwise than `src`: the name of its column or key."""
    tgt_column: str | None = None
    """The same for the target side."""

    @property
    def columns(self) -> tuple[str, str]:
        """The names of the two sides in the data."""
        return self.src_column or self.src, self.tgt_column or self.tgt

    def missing_column(self, column: str, where: str, columns: list[str]) -> UserError:
        """The error for a column that `where` lacks; `columns` are those it has."""
        side = "src" if column == self.columns[0] else "tgt"
        key = f"{side}_column" if getattr(self, f"{side}_column") else side
        return UserError(
            f"{self.key_prefix}.{key}={getattr(self, key)}: {where} has no column {column!r}, "
            f"only {', '.join(columns)}{suggest(column, columns)}; "
            f"set {self.key_prefix}.{side} or {self.key_prefix}.{side}_column"
        )


@dataclass
class ParallelText:
    """Line i of `src` and line i of `tgt` are translations of each other."""

    src: list[str] = field(default_factory=list)
    tgt: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.src)


class PairStream(NamedTuple):
    """One split as chunks of pairs, aligned and unfiltered, that can be read any number of times."""

    stamp: Callable[[], str]
    """Names the content without reading it: as long as the stamp is the same, so are the pairs."""
    chunks: Callable[[], Iterator[ParallelText]]
    """The pairs from the first to the last, some of them at a time."""

    def read(self) -> ParallelText:
        """All pairs at once."""
        text = ParallelText()
        for chunk in self.chunks():
            text.src += chunk.src
            text.tgt += chunk.tgt
        return text


def chunked(lines: Iterable[str]) -> Iterator[list[str]]:
    """The lines, `CHUNK_PAIRS` at a time."""
    remaining = iter(lines)
    while chunk := list(itertools.islice(remaining, CHUNK_PAIRS)):
        yield chunk


def stamp_of_files(files: Iterable[Path], *options: object) -> str:
    """A stamp made of where files are, how large they are and when they changed, and of how they are read.

    The time of the last change of the inode is among that, which no program can set back.
    """
    states = [(str(file.resolve()), file.stat()) for file in files]
    described = [(path, state.st_size, state.st_mtime_ns, state.st_ctime_ns) for path, state in states]
    return hashlib.sha256(repr((described, options)).encode()).hexdigest()


def one_line(text: str) -> str:
    """Return `text` with a space for line breaks and NULs, and U+FFFD for lone surrogates."""
    return _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", _LINE_BREAKS.sub(" ", text))


def one_line_each(texts: list[str]) -> list[str]:
    """The same for many texts, of which most need no change."""
    return [one_line(text) for text in texts] if _UNUSUAL.search("".join(texts)) else texts
