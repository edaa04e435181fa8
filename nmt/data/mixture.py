"""Several corpora at once: each drawn from as often as its weight says, and tagged with its target language.

In an epoch a corpus has a share in proportion to weight * pairs^(1 / temperature): with a temperature of 1
that of its size, with a higher one more for the small corpora, with `null` that of its weight alone
(Arivazhagan et al. 2019, section 4.2). A tag such as <2de> in front of a source says which language is
wanted, so that one model translates into several (Johnson et al. 2017). Tokenisation and batches are unknown
here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from nmt.data import files, hub
from nmt.data.files import FilesData
from nmt.data.hub import HubData
from nmt.data.pairs import DataConfig, PairStream, ParallelText, Split
from nmt.errors import UserError, suggest

T = TypeVar("T")

_KEY = re.compile(
    r"\bdata\.(train|validation|test|src_column|tgt_column|src|tgt|dataset|path|config|revision)"
    r"(?:_split)?\b(?=[=:;, ]|$)"
)
"""How the sources of a corpus call its keys."""


@dataclass
class CorpusConfig:
    """One corpus: files as with data=files, or with `dataset` or `path` a dataset as with data=hub."""

    weight: float = 1.0
    """How often its pairs are drawn, compared with those of the other corpora."""
    src: str | None = None
    """Source language; null: data.src."""
    tgt: str | None = None
    """Target language; null: data.tgt."""
    train: str | None = None
    """Path of the training pairs, or the split of a dataset, for which null is train."""
    validation: str | None = None
    """The same for pairs scored during training; null: none."""
    test: str | None = None
    """The same for pairs scored at the end; null: none."""
    dataset: str | None = None
    """Name on the hub, as owner/name."""
    path: str | None = None
    """A local folder with a dataset."""
    config: str | None = None
    """Configuration of the dataset."""
    revision: str | None = None
    """Branch, tag or commit on the hub; null: main."""
    src_column: str | None = None
    """Name of the source column, where it is not that of the language."""
    tgt_column: str | None = None
    """The same for the target side."""


@dataclass
class MixtureData(DataConfig):
    """Several corpora, mixed by weight and size; see docs/data.md."""

    name: str = "mixture"
    corpora: dict[str, CorpusConfig] = field(default_factory=dict)
    """The corpora, by names of your own; the keys of each are in docs/data.md."""
    temperature: float | None = 1.0
    """A corpus of n pairs counts n^(1 / temperature) times its weight; null: its weight alone."""
    target_tags: bool = False
    """Put the tag of the target language, such as <2de>, in front of every source."""
    scored: list[str] = field(default_factory=list)
    """The corpora whose validation and test pairs are scored; empty: all that have some."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.scored:
            if name not in self.corpora:
                known = ", ".join(self.corpora)
                raise UserError(
                    f"data.scored: there is no corpus {name!r}, only {known}{suggest(name, self.corpora)}"
                )
        for name, corpus in self.corpora.items():
            if not 0.0 < corpus.weight < float("inf"):
                raise UserError(f"data.corpora.{name}.weight must be positive, but is {corpus.weight}")
        if self.temperature is not None and self.temperature <= 0.0:
            raise UserError(
                f"data.temperature must be positive, or null for weights alone, but is {self.temperature}"
            )
        if self.streaming and self.temperature is not None:
            raise UserError(
                "data.streaming=true does not know how large the corpora are; set data.temperature=null, so "
                "that the weights say how much of each is read"
            )
        for tgt in self.tags:
            if set(tgt) & set(" <>"):
                raise UserError(
                    f"data.target_tags needs names of languages without spaces and brackets, not {tgt!r}"
                )

    def place(self, split: Split) -> str | None:
        """The corpora that have the split."""
        return ", ".join(name for name in self.corpora if self._has(name, split)) or None

    def key(self, split: Split) -> str:
        """What is to be set to have the split."""
        return "data.corpora" if split is Split.train else f"data.corpora.NAME.{split.value}"

    @property
    def languages(self) -> list[tuple[str, str]]:
        """Source and target language of each corpus."""
        return [(corpus.src or self.src, corpus.tgt or self.tgt) for corpus in self.corpora.values()]

    @property
    def tags(self) -> dict[str, str]:
        """The tag of each target language, in the order of the corpora; none unless `target_tags`."""
        return {tgt: f"<2{tgt}>" for _, tgt in self.languages} if self.target_tags else {}

    @property
    def scored_language(self) -> str:
        """That of the corpora that are scored, if it is one, else `tgt`."""
        known = {corpus.tgt or self.tgt for name, corpus in self.corpora.items() if self._is_scored(name)}
        return known.pop() if len(known) == 1 else self.tgt

    def _is_scored(self, name: str) -> bool:
        has_any = self.corpora[name].validation is not None or self.corpora[name].test is not None
        return name in self.scored or (not self.scored and has_any)

    def _has(self, name: str, split: Split) -> bool:
        if split is Split.train:
            return True
        return self._is_scored(name) and getattr(self.corpora[name], split.value) is not None


def streams(cfg: MixtureData, split: Split) -> dict[str, PairStream]:
    """The split of each corpus that has it, tagged if `cfg` wants that."""
    return {name: _stream(cfg, name, split) for name in cfg.corpora if cfg._has(name, split)}


def stream(cfg: MixtureData, split: Split) -> PairStream:
    """The split of all corpora, one after the other."""
    parts = streams(cfg, split)

    def stamp() -> str:
        return hashlib.sha256(repr([part.stamp() for part in parts.values()]).encode()).hexdigest()

    def chunks() -> Iterator[ParallelText]:
        for part in parts.values():
            yield from part.chunks()

    return PairStream(stamp, chunks)


def shares(cfg: MixtureData, sizes: Sequence[int]) -> list[float]:
    """Which part of what is drawn comes from each corpus, where that has so many pairs; they add up to 1."""
    weights = [corpus.weight for corpus in cfg.corpora.values()]
    power = 0.0 if cfg.temperature is None else 1.0 / cfg.temperature
    largest = max(sizes)  # sizes matter by their ratios, and powers of those do not overflow
    drawn = [weight * (size / largest) ** power for weight, size in zip(weights, sizes, strict=True)]
    return [x / sum(drawn) for x in drawn]


def tagged(lines: Iterable[str], tag: str) -> Iterator[str]:
    """The lines with `tag` in front; blank ones stay as they are."""
    return (f"{tag} {line}" if line.strip() else line for line in lines)


def untagged(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines without the tag of a target language in front, such as `<2de>`."""
    return (re.sub(r"^<2[^<>\s]+> ", "", line) for line in lines)


def _stream(cfg: MixtureData, name: str, split: Split) -> PairStream:
    corpus = cfg.corpora[name]
    tag = cfg.tags.get(corpus.tgt or cfg.tgt, "")
    source = _named(name, lambda: _opened(cfg, corpus, split))

    def stamp() -> str:
        found = _named(name, source.stamp)
        return hashlib.sha256(f"{found} {tag}".encode()).hexdigest()

    def chunks() -> Iterator[ParallelText]:
        remaining = source.chunks()
        while (chunk := _named(name, lambda: next(remaining, None))) is not None:
            yield ParallelText(list(tagged(chunk.src, tag)), chunk.tgt) if tag else chunk

    return PairStream(stamp, chunks)


def _opened(cfg: MixtureData, corpus: CorpusConfig, split: Split) -> PairStream:
    src, tgt = corpus.src or cfg.src, corpus.tgt or cfg.tgt
    places = {known.value: getattr(corpus, known.value) for known in Split}
    if corpus.dataset is None and corpus.path is None:
        if places[split.value] is None:
            raise UserError("a corpus needs train (files), or dataset or path (a dataset)")
        paths = FilesData(
            src=src, tgt=tgt, src_column=corpus.src_column, tgt_column=corpus.tgt_column, **places
        )
        return files.stream(paths, split)
    dataset = HubData(
        src=src,
        tgt=tgt,
        src_column=corpus.src_column,
        tgt_column=corpus.tgt_column,
        dataset=corpus.dataset or "",
        path=corpus.path,
        config=corpus.config,
        revision=corpus.revision,
        streaming=cfg.streaming,
        train_split=corpus.train or "train",
        validation_split=corpus.validation,
        test_split=corpus.test,
    )
    return hub.stream(dataset, split)


def _named(name: str, read: Callable[[], T]) -> T:
    """What `read` returns; errors of the user name the keys of the corpus that they are about."""
    try:
        return read()
    except UserError as error:
        prefix = f"data.corpora.{name}"
        message = _KEY.sub(rf"{prefix}.\1", str(error))
        raise UserError(message if message.startswith(prefix) else f"{prefix}: {message}") from error
