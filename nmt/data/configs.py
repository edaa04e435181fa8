"""The config fields that all sources of pairs share, and those of sources that read columns.

Knows neither files nor datasets: modules of `nmt.data.reading` read pairs, and `sources` there chooses
between them.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from nmt.checks import at_least, not_negative, within
from nmt.data import filter_table, fixer_table, modifiers
from nmt.data.modifiers import ModifierConfig
from nmt.data.parallel_text import MAX_SHOWN_CHARS, ParallelText, Split, known_weight
from nmt.errors import UserError, suggest

if TYPE_CHECKING:
    from typing_extensions import Self

SEPARATOR = "<sep>"
"""The piece between the two texts of a pair to classify, which a TAB separates in text."""
CONTEXT_SEPARATOR = "<brk>"
"""The piece between the sentences of a line with context: see `nmt.data.documents`."""
MAX_SHOWN_COLUMNS = 20
"""Names of columns that an error lists."""


@dataclass
class DataConfig:
    """The languages, the split to score and the limits of a training pair; sources add their fields."""

    knows_documents: ClassVar[bool] = False
    """Whether the source can tell where a document ends."""
    is_mixture: ClassVar[bool] = False
    """Whether there may be several corpora."""

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
    """Read the training pairs during training, again and again, without storing them."""
    buffer_pairs: int = 200_000
    """With data.streaming: pairs that are shuffled together; an epoch is one such buffer."""
    context: int = 0
    """Previous sentences of the document in front of each source; see docs/documents.md."""
    context_target: bool = False
    """Whether the target has the context, too, so that the model translates previous sentences again."""
    context_short: float = 0.2
    """Share of the training pairs with less context than there is, perhaps none."""
    fixers: list[Any] = field(default_factory=list)
    """Repairs of the text of the training pairs, in order, before anything else is done with them, such as
    [html_entities, spaces]; see docs/fixers.md."""
    augment: list[Any] = field(default_factory=list)
    """Modifiers of the training pairs, in order, each with the share of the pairs that it changes anew in
    each epoch, such as [{name: upper_case, rate: 0.05}, {name: typos}]; see docs/augmentation.md."""
    filters: list[Any] = field(default_factory=list)
    """Filters of the training pairs, in order, behind max_chars and max_ratio, such as [{name: duplicates},
    {name: language, min: 0.8}]; see docs/filters.md."""
    key_prefix: str = field(default="data", compare=False, repr=False, metadata={"omegaconf_ignore": True})
    """Prefix of keys in errors: `data`, or `data.corpora.NAME` in a mixture. Not a config key itself."""

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
        filters_key = f"{self.key_prefix}.filters"
        chosen = filter_table.parsed(filters_key, self.filters or [], streaming=self.streaming)
        self.filters = [row.plain() for row in chosen]
        repairs = fixer_table.parsed(f"{self.key_prefix}.fixers", self.fixers or [])
        self.fixers = [row.plain() for row in repairs]
        rows = modifiers.parsed(f"{self.key_prefix}.augment", self.augment or [])
        self.augment = [row.plain() for row in rows]
        not_negative(self, self.key_prefix, "context")
        within(self, self.key_prefix, "[0, 1]", "context_short")
        self._check_context()

    def _check_context(self) -> None:
        if self.context_target and not self.context:
            raise UserError(
                f"{self.key_prefix}.context_target=true needs {self.key_prefix}.context, the number of "
                "previous sentences; set it to 1 or more"
            )
        if self.context and self.key_prefix == "data" and not (self.knows_documents or self.is_mixture):
            raise UserError(
                f"data.context={self.context} needs a corpus of documents, but data={self.name} has none; "
                "choose data=files, hub or mixture"
            )

    @property
    def languages(self) -> list[tuple[str, str]]:
        """Source and target language of each corpus that the training ends with."""
        return [(self.src, self.tgt)]

    @property
    def scored_languages(self) -> tuple[str, str]:
        """The source and target language of the scored splits."""
        return self.src, self.tgt

    @property
    def scored_language(self) -> str:
        """The target language of the scored splits, by whose rules BLEU splits words."""
        return self.scored_languages[1]

    @property
    def tags(self) -> dict[str, str]:
        """Target language -> tag in front of the source that asks for the language; empty without tags."""
        return {}

    @property
    def origin_tags(self) -> dict[str, str]:
        """Name of a corpus -> tag in front of its sources in training that tells where they are from."""
        return {}

    @property
    def domains(self) -> dict[str, str]:
        """Name of a corpus -> its domain, which a translation may be asked for; empty without domains."""
        return {}

    @property
    def domain_tags(self) -> dict[str, str]:
        """Name of a corpus -> tag of its domain, in front of its sources wherever the model reads them."""
        return {name: domain_tag(domain) for name, domain in self.domains.items()}

    @property
    def fronts(self) -> list[str]:
        """All tags in front of sources: of languages, of domains and of origins."""
        return [*self.tags.values(), *self.domain_tags.values(), *self.origin_tags.values()]

    @property
    def limits(self) -> tuple[Any, ...]:
        """All that limits of the length of training pairs depend on."""
        return self.max_chars, self.max_ratio, *([self.fronts] if self.fronts else [])

    def tags_in_front(self, corpus: str) -> list[str]:
        """Return the tags in front of the training sources of a corpus: of language, domain and origin."""
        language = self.tags.get(self.parts(Split.train)[corpus].tgt)
        found = language, self.domain_tags.get(corpus), self.origin_tags.get(corpus)
        return [tag for tag in found if tag]

    def modifiers_of(self, corpus: str) -> list[ModifierConfig]:
        """Return the modifiers of the training pairs of a corpus: those of the data, then its own."""
        part = self.parts(Split.train)[corpus]
        both = [self] if part is self else [self, part]
        return [row for one in both for row in modifiers.parsed(f"{one.key_prefix}.augment", one.augment)]

    @property
    def is_augmented(self) -> bool:
        """Whether the training pairs of a corpus have modifiers."""
        return any(self.modifiers_of(name) for name in self.parts(Split.train))

    @property
    def loss_weights(self) -> dict[str, float]:
        """Name of a corpus -> weight in the loss of all its pairs, where it has one."""
        return {}

    @property
    def symbols(self) -> list[str]:
        """What the data puts into sources besides text, tags and marks: a tokenizer has a piece for each."""
        return list(dict.fromkeys([*self.fronts, *self.marks]))

    @property
    def marks(self) -> list[str]:
        """What the data puts into sources besides text and tags, such as the separator of a context."""
        rows = modifiers.parsed(f"{self.key_prefix}.augment", self.augment)
        return [*modifiers.symbols(rows), *([CONTEXT_SEPARATOR] if self.context else [])]

    @property
    def has_documents(self) -> bool:
        """Whether neighbouring pairs may be of one document."""
        return False

    @property
    def has_source(self) -> bool:
        """Whether the data is pairs, and not text in one language."""
        return True

    @property
    def has_labels(self) -> bool:
        """Whether the target of each pair is a label."""
        return False

    @property
    def has_weights(self) -> bool:
        """Whether training pairs have weights in the loss."""
        return False

    def require_known(self, trained: DataConfig) -> None:
        """Raise `UserError` where a model of `trained` knows less than what is put into the text to score."""

    def of_split(self, split: Split) -> Self:
        """Return the config to read a split with."""
        return self

    @classmethod
    def split_field(cls, split: Split) -> str:
        """Return the name of the field with the place of `split`; in a mixture its key is `split` itself."""
        return split.value

    def key(self, split: Split) -> str:
        """Return the full config key of the place of `split`."""
        return f"{self.key_prefix}.{self.split_field(split) if self.key_prefix == 'data' else split.value}"

    def place(self, split: Split) -> str | None:
        """Return the name or path of `split`, or None when the data has no such split."""
        return getattr(self, self.split_field(split), split.value)

    def places(self, split: Split) -> list[str]:
        """Return the names or paths of `split`, one after the other; none when the data has no such split."""
        place = self.place(split)
        return [] if place is None else [place]

    @property
    def origins(self) -> set[str]:
        """The files, folders and datasets that are read; none if the corpus is part of the package."""
        return {place for split in Split for place in self.places(split)}

    def parts(self, split: Split) -> dict[str, DataConfig]:
        """Return the corpora that have `split`, by name."""
        return {self.name: self} if self.place(split) is not None else {}

    def further_references(self, split: Split) -> list[DataConfig]:
        """Return configs of the same sources, each with another reference of each line as its target."""
        return []

    @property
    def num_stages(self) -> int:
        """The number of stages of the training, each with its own shares."""
        return 1

    @property
    def stages_follow_limit(self) -> bool:
        """Whether `last_updates` depends on the length of the training."""
        return False

    def last_updates(self, max_steps: int | None) -> list[int]:
        """Return the last update of each stage but the last, in a training of `max_steps` updates."""
        return []

    def shares(self, sizes: Sequence[int], stage: int = 0) -> list[float]:
        """Return the share of each corpus in an epoch of a stage, given their numbers of pairs.

        The shares add up to 1; stages count from 0.
        """
        return [1.0]


@dataclass
class TableConfig(DataConfig, ABC):
    """Base of the sources that read rows with named columns."""

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The names of the columns that are read; the last is the target."""

    @property
    @abstractmethod
    def column_fields(self) -> tuple[str, ...]:
        """The names of the fields that name the columns, in their order."""

    @property
    def numbered(self) -> tuple[str, ...]:
        """The columns that may hold numbers, which stand for words."""
        return ()

    @property
    def document_columns(self) -> tuple[str, ...]:
        """The column that tells documents apart, if there is one to be read."""
        return ()

    def pairs_of(self, columns: Sequence[list[str]]) -> ParallelText:
        """Return the pairs in the values of `columns`."""
        src, tgt = columns
        return ParallelText(src, tgt)

    @abstractmethod
    def key_of(self, column: str) -> tuple[str, str]:
        """Return the field that names a column, and the fields to set for another, as an error says them."""

    def missing_column(self, column: str, where: str, columns: list[str]) -> UserError:
        """Return the error for a `column` that `where` lacks; `columns` are there."""
        key, remedy = self.key_of(column)
        language = re.split("[-_]", column)[0]  # pt of pt-BR
        near = [name for name in columns if re.split("[-_]", name.rpartition(".")[2])[0] == language]
        is_language = column in (self.src, self.tgt) and len(near) == 1
        hint = suggest(near[0], near) if is_language else suggest(column, columns[:MAX_SHOWN_COLUMNS])
        return UserError(
            f"{self.key_prefix}.{key}={getattr(self, key)}: {where} has no column {column!r}, "
            f"only {shown(columns)}{hint}; set {remedy}"
        )


@dataclass
class ColumnsConfig(TableConfig):
    """The fields of sources whose two sides have names."""

    knows_documents: ClassVar[bool] = True

    src_column: str | None = None
    """Name of the column or key of the source side; null: the language."""
    tgt_column: str | None = None
    """Name of the column or key of the target side; null: the language."""
    references: list[str] = field(default_factory=list)
    """Further names such as tgt_column, each of one more reference of the validation and test pairs."""
    documents: bool = True
    """With data.context: whether neighbouring pairs belong together, up to a blank line on both sides or the
    next document; false: each pair is a document by itself."""
    document_column: str | None = None
    """With data.context: name of the column or key whose value is another one in the next document."""
    weights: str | None = None
    """Weights of the training pairs in the loss, from 0: a file with a number a line beside files of plain
    text, else the name of a column or key."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sides[0] == self.sides[1]:
            keys = (f"{self.key_prefix}.{side}" for side in ("src", "tgt"))
            both = " and ".join(
                f"{key}_column={column}" if column else f"{key}={self.sides[0]}"
                for key, column in zip(keys, (self.src_column, self.tgt_column), strict=True)
            )
            raise UserError(f"{both} name the same text for both sides; name two different columns or files")

    @property
    def has_documents(self) -> bool:
        """Whether context is asked for, and there is some."""
        return self.context > 0 and self.documents

    @property
    def document_columns(self) -> tuple[str, ...]:
        """`document_column`, where it is set and context is asked for."""
        return (self.document_column,) if self.has_documents and self.document_column else ()

    def further_references(self, split: Split) -> list[DataConfig]:
        """Return a config for each of `references`."""
        return [replace(self, tgt_column=name, references=[]) for name in self.references]

    @property
    def has_weights(self) -> bool:
        """Whether `weights` is set."""
        return self.weights is not None

    @property
    def sides(self) -> tuple[str, str]:
        """The names of the two sides in the data."""
        return self.src_column or self.src, self.tgt_column or self.tgt

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the two sides, and that of the weights."""
        return *self.sides, *self.numbered

    @property
    def numbered(self) -> tuple[str, ...]:
        """The column of the weights."""
        return (self.weights,) if self.weights is not None else ()

    @property
    def column_fields(self) -> tuple[str, ...]:
        """The fields for names, or numbers, of columns."""
        return "src_column", "tgt_column", *(["weights"] if self.has_weights else [])

    def each(self, split: Split) -> list[Self]:
        """Return a config for each of the files of a split, which are read one after the other."""
        return [self]

    def pairs_of(self, columns: Sequence[list[str]]) -> ParallelText:
        """Return the pairs, and their weights, in the values of `columns`."""
        src, tgt, *further = columns
        return ParallelText(src, tgt, weights=[known_weight(value) for values in further for value in values])

    def of_split(self, split: Split) -> Self:
        """Return the config to read a split with: weights are for training pairs."""
        return self if split is Split.train else replace(self, weights=None)

    def key_of(self, column: str) -> tuple[str, str]:
        """Return the field that names a column: src or tgt, or src_column or tgt_column where it is set."""
        if column == self.weights and column not in self.sides:
            return "weights", f"{self.key_prefix}.weights"
        side = "src" if column == self.sides[0] else "tgt"
        if column == self.document_column and column not in self.sides:
            return "document_column", f"{self.key_prefix}.document_column"
        key = f"{side}_column" if getattr(self, f"{side}_column") else side
        return key, f"{self.key_prefix}.{side} or {self.key_prefix}.{side}_column"


def domain_tag(domain: str) -> str:
    """Return the piece in front of a source that tells its domain."""
    return f"<domain:{domain}>"


def directions(languages: Iterable[tuple[str, str]]) -> str:
    """Return pairs of languages, each once, as a sentence says what is translated."""
    return " and ".join(f"{src} to {tgt}" for src, tgt in dict.fromkeys(languages))


def shown(columns: list[str]) -> str:
    """Return the first names, each cut, and escaped where it is no plain text."""
    names = [name[:MAX_SHOWN_CHARS] for name in columns[:MAX_SHOWN_COLUMNS]]
    more = ["..."] if len(columns) > len(names) else []
    return ", ".join([name if name.isprintable() else repr(name) for name in names] + more)


def paths_of(value: object, key: str) -> list[str]:
    """Return the paths that `value`, that of `key`, names: one, several, or none with null.

    Raises:
        UserError: it is neither a path nor a list of paths.
    """
    listed = value if isinstance(value, list) else [] if value is None else [value]
    if value == [] or not all(isinstance(one, str | int | float) and str(one).strip() for one in listed):
        raise UserError(f"{key} must be a path, or a list of paths such as [a.tsv, b.tsv], but is {value!r}")
    return list(map(str, listed))
