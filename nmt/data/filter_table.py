"""The table of filters of training pairs: rows of data.filters.

A row is a config and the name of its code, a function in `nmt.data.cleaning.pair_filters` or in a module of
its own; that module says what it is given. Imports no code: tables cost nothing until pairs are filtered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from nmt.checks import at_least, not_negative, within
from nmt.data import rows
from nmt.data.rows import Row
from nmt.errors import UserError
from nmt.files import path_of
from nmt.loading import Code


class Unit(Enum):
    """What lengths count; `nmt.data.text.words.counted_words` says what counts as a word."""

    characters = "characters"
    words = "words"


class Sides(Enum):
    """The sides of a pair that a filter looks at."""

    both = "both"
    src = "src"
    tgt = "tgt"


class Compared(Enum):
    """What makes two pairs the same."""

    pair = "pair"
    src = "src"
    tgt = "tgt"


class Kept(Enum):
    """Which of equal pairs stays."""

    first = "first"
    best = "best"


class Action(Enum):
    """What becomes of pairs in which a pattern occurs."""

    drop = "drop"
    keep = "keep"


@dataclass(frozen=True)
class FilterConfig(Row):
    """Base of the configs of filters."""

    thresholds: ClassVar[tuple[str, ...]] = ()
    """The keys that say which values are accepted, and change no value."""
    compares_sides: ClassVar[bool] = False
    """Whether the filter compares the sides of a pair, which a text and its label are not."""

    @property
    def files(self) -> dict[str, Path]:
        """The files that the filter reads, by their keys."""
        return {}

    @property
    def counts_pairs(self) -> bool:
        """Whether the filter reads something for each pair, so that no pair of the corpus may be missing."""
        return False

    def of_texts(self) -> FilterConfig:
        """Return the filter for labelled texts, where both sides mean the text; its label is no text.

        Raises:
            UserError: it compares the sides.
        """
        if self.compares_sides:
            raise UserError(
                f"{self.key_prefix}: {self.name} compares translations, but the data has labels; leave it out"
            )
        texts: dict[str, Any] = {"sides": Sides.src}
        return replace(self, **texts) if getattr(self, "sides", None) is Sides.both else self

    def _require(self, fits: bool, key: str, constraint: str) -> None:
        if not fits:
            raise UserError(f"{self.key_prefix}.{key} {constraint}, but is {getattr(self, key)!r}")

    def _require_range(self) -> None:
        """Raise `UserError` unless `min` or `max` is set, and they leave something between."""
        low, high = getattr(self, "min", None), getattr(self, "max", None)
        for key, value in (("min", low), ("max", high)):
            self._require(value is None or not math.isnan(value), key, "must be a number")
        if low is None and high is None:
            raise UserError(f"{self.key_prefix}: set min or max, else the filter drops nothing")
        if low is not None and high is not None and low > high:
            raise UserError(f"{self.key_prefix}.min={low} is above {self.key_prefix}.max={high}; swap them")


@dataclass(frozen=True)
class LengthConfig(FilterConfig):
    """Pairs with a side that is too short or too long."""

    thresholds: ClassVar[tuple[str, ...]] = ("min", "max")
    sides: Sides = Sides.both
    """The sides that are measured."""
    unit: Unit = Unit.characters
    """What is counted."""
    min: int | None = None
    """Least length; null: any."""
    max: int | None = None
    """Largest length; null: any."""

    def __post_init__(self) -> None:
        not_negative(self, self.key_prefix, "min", "max")
        self._require_range()


@dataclass(frozen=True)
class RatioConfig(FilterConfig):
    """Pairs with one side many times as long as the other."""

    thresholds: ClassVar[tuple[str, ...]] = ("max",)
    compares_sides: ClassVar[bool] = True
    unit: Unit = Unit.characters
    """What is counted."""
    max: float = 3.0
    """Largest length of the longer side divided by that of the shorter one."""
    short: int = 20
    """Pairs whose longer side has at most so many units are kept: short texts differ by chance."""

    def __post_init__(self) -> None:
        at_least(self, self.key_prefix, 1, "max")
        not_negative(self, self.key_prefix, "short")


@dataclass(frozen=True)
class WordLengthConfig(FilterConfig):
    """Pairs with a word that is too long, such as text that has lost its spaces."""

    thresholds: ClassVar[tuple[str, ...]] = ("max",)
    sides: Sides = Sides.both
    """The sides that are measured."""
    max: int = 150
    """Largest length of a word in characters."""

    def __post_init__(self) -> None:
        at_least(self, self.key_prefix, 1, "max")


@dataclass(frozen=True)
class DuplicatesConfig(FilterConfig):
    """Pairs that occurred before, word for word or but for case and punctuation."""

    by: Compared = Compared.pair
    """What is compared: the pair, or one side, so that each source or each target occurs once."""
    normalise: bool = False
    """Whether case, spaces and all that is no letter or digit make no difference."""
    keep: Kept = Kept.first
    """Which of equal pairs stays: the first, or the one with the highest number in `scores`."""
    scores: str | None = None
    """With keep=best: a file with a number for each line of the corpus, as `file` of the filter `scores`."""
    column: str | None = None
    """Column of `scores` or, without, of a dataset, as of the filter `scores`."""
    earlier: bool = False
    """Whether pairs count as well that corpora before it in the mixture have, those of the same languages."""

    def __post_init__(self) -> None:
        if (self.keep is Kept.best) != (self.scores is not None or self.column is not None):
            raise UserError(
                f"{self.key_prefix}: keep=best and scores=FILE, or the column=NAME of a dataset, need each "
                "other; set both or neither"
            )

    @property
    def files(self) -> dict[str, Path]:
        """The file of scores, if there is one."""
        return {"scores": path_of(self.scores)} if self.scores else {}

    @property
    def counts_pairs(self) -> bool:
        """Whether there is a score for each pair."""
        return self.keep is Kept.best


@dataclass(frozen=True)
class LanguageConfig(FilterConfig):
    """Pairs with a side in another language, as py3langid finds: pip install 'nmt[language]'."""

    thresholds: ClassVar[tuple[str, ...]] = ("min",)
    sides: Sides = Sides.both
    """The sides that are identified."""
    min: float = 0.2
    """Least probability of the language that a side should have."""
    short: int = 20
    """Sides with at most so many characters are kept: short texts cannot be told apart."""
    src: str | None = None
    """Code of the source language (ISO 639-1); null: the language of the data."""
    tgt: str | None = None
    """Code of the target language; null: the language of the data."""
    among: list[str] | None = None
    """Codes of the languages to tell apart; null: all 97 that py3langid knows."""

    def __post_init__(self) -> None:
        within(self, self.key_prefix, "[0, 1]", "min")
        not_negative(self, self.key_prefix, "short")


@dataclass(frozen=True)
class ScriptConfig(FilterConfig):
    """Pairs with too few letters of the script that a side should have."""

    thresholds: ClassVar[tuple[str, ...]] = ("min",)
    sides: Sides = Sides.both
    """The sides that are looked at."""
    min: float = 0.5
    """Least share of the letters that are of the script; a side without letters has a share of 1."""
    src: str | None = None
    """Script of the source, as Unicode names it, such as LATIN; several with commas between; null: that of
    the language of the data."""
    tgt: str | None = None
    """Script of the target."""

    def __post_init__(self) -> None:
        within(self, self.key_prefix, "[0, 1]", "min")


@dataclass(frozen=True)
class CharactersConfig(FilterConfig):
    """Pairs with a side of few letters or many digits, or with characters that are no text."""

    sides: Sides = Sides.both
    """The sides that are looked at."""
    letters: float = 0.5
    """Least share of letters among the characters that are not spaces; marks on letters count as letters."""
    digits: float = 1.0
    """Largest share of digits among them."""
    control: bool = False
    """Whether control characters but TAB, private and unassigned ones and U+FFFD are allowed."""

    def __post_init__(self) -> None:
        within(self, self.key_prefix, "[0, 1]", "letters", "digits")


@dataclass(frozen=True)
class IdenticalConfig(FilterConfig):
    """Pairs with the same text on both sides."""

    compares_sides: ClassVar[bool] = True
    normalise: bool = False
    """Whether case, spaces and all that is no letter or digit make no difference."""
    short: int = 0
    """Pairs with at most so many characters are kept: names and numbers are often the same."""

    def __post_init__(self) -> None:
        not_negative(self, self.key_prefix, "short")


@dataclass(frozen=True)
class OverlapConfig(FilterConfig):
    """Pairs that are also scored on: in the validation or test pairs of the data."""

    by: Compared = Compared.pair
    """What is compared: the pair, or one side."""
    normalise: bool = False
    """Whether case, spaces and all that is no letter or digit make no difference."""


@dataclass(frozen=True)
class NumbersConfig(FilterConfig):
    """Pairs with other numbers, in digits, on one side than on the other."""

    thresholds: ClassVar[tuple[str, ...]] = ("max",)
    compares_sides: ClassVar[bool] = True
    max: int = 1
    """Most numbers that may be on one side alone. A changed number is two, one spelt out on a side one."""

    def __post_init__(self) -> None:
        not_negative(self, self.key_prefix, "max")


@dataclass(frozen=True)
class RegexConfig(FilterConfig):
    """Pairs in which a regular expression of Python occurs, or does not occur."""

    pattern: str = ""
    """The regular expression."""
    sides: Sides = Sides.both
    """Where it is looked for; both: on either side."""
    action: Action = Action.drop
    """What becomes of pairs with it."""

    def __post_init__(self) -> None:
        import regex

        self._require(bool(self.pattern), "pattern", "must be a regular expression")
        try:
            regex.compile(self.pattern)
        except regex.error as error:
            raise UserError(
                f"{self.key_prefix}.pattern={self.pattern} is no regular expression: {error}"
            ) from error


@dataclass(frozen=True)
class ScoresConfig(FilterConfig):
    """Pairs that another program scored too low or too high: Bicleaner, LASER, COMET-QE."""

    thresholds: ClassVar[tuple[str, ...]] = ("min", "max")
    file: str | None = None
    """A file with one line for each line of the corpus: a number, or with `column` a row; null: `column` is
    one of the dataset that the corpus is read from."""
    column: str | None = None
    """Number of a column from 1 or, with a header, its name, in a file .tsv; a key in a file .jsonl; the name
    of a column of a dataset."""
    min: float | None = None
    """Least score; null: any."""
    max: float | None = None
    """Largest score; null: any."""

    def __post_init__(self) -> None:
        self._require(
            bool(self.file) or (self.file is None and self.column is not None),
            "file",
            "must be the path of a file of scores, or be left out for a column of a dataset",
        )
        self._require_range()

    @property
    def files(self) -> dict[str, Path]:
        """The file of scores, if there is one."""
        return {"file": path_of(self.file)} if self.file else {}

    @property
    def counts_pairs(self) -> bool:
        """Whether there is a score for each pair: always."""
        return True


@dataclass(frozen=True)
class ModelFilterConfig(FilterConfig):
    """Base of the filters that need trained models."""

    run: str = ""
    """Run directory of the model."""
    checkpoint: str = "final"
    """Checkpoint of the model: final, best, last, average or a step."""

    def __post_init__(self) -> None:
        self._require(bool(self.run), "run", "must be a run directory, such as outputs/my_run")

    @property
    def runs(self) -> list[str]:
        """The directories of the models."""
        return [self.run]


@dataclass(frozen=True)
class CrossEntropyConfig(ModelFilterConfig):
    """Pairs that a translation model finds unlikely: log probability by token, as `nmt score` computes it."""

    thresholds: ClassVar[tuple[str, ...]] = ("min", "share")
    reverse: str | None = None
    """Run directory of a model of the other direction; pairs are then scored by both models, which must agree
    (dual conditional cross-entropy, Junczys-Dowmunt 2018, equation 1, negative)."""
    min: float | None = None
    """Least score, such as -4; null: any."""
    share: float | None = None
    """Share of the pairs to keep, those with the best scores; null: all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, self.key_prefix, "(0, 1]", "share")
        if (self.min is None) == (self.share is None):
            raise UserError(f"{self.key_prefix}: set either min, a score, or share, such as share: 0.9")

    @property
    def runs(self) -> list[str]:
        """The directories of the one or two models."""
        return [self.run, *([self.reverse] if self.reverse else [])]


@dataclass(frozen=True)
class ClassifierConfig(ModelFilterConfig):
    """Pairs that a classifier of pairs finds misaligned; docs/filtering_by_model.md says how to train one."""

    thresholds: ClassVar[tuple[str, ...]] = ("min",)
    label: str = "aligned"
    """The label of good pairs."""
    min: float = 0.5
    """Least probability of the label."""

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, self.key_prefix, "[0, 1]", "min")


@dataclass(frozen=True)
class OpusCleanerConfig(FilterConfig):
    """The filters of a file of OpusCleaner, each as the row that does the same."""

    file: str = ""
    """A file *.filters.json."""
    skip_unknown: bool = False
    """Whether steps of the file without such a row are left out; else they are an error."""

    def __post_init__(self) -> None:
        self._require(bool(self.file), "file", "must be the path of a file *.filters.json")


class FilterRow(NamedTuple):
    """A row of the table."""

    config: type[FilterConfig]
    code: Code
    """A function of the config of a row and a `Context` that returns a `PairFilter`; for opuscleaner, one of
    the config that returns other rows."""
    streams: bool = True
    """Whether the filter judges each pair by itself, so that it can be used with data.streaming=true."""
    extra: str = ""
    """Row of `EXTRAS` with the libraries that the filter needs."""
    libraries: tuple[str, ...] = ()
    """What else knows characters for the filter, and answers otherwise in other versions; that of a row with
    the key `normalise` or `unit` where this is true, or words."""


UNICODE, NORMALISED = ("unicodedata",), ("regex", "unicodedata")

_CODE = "nmt.data.cleaning.pair_filters"

FILTERS: dict[str, FilterRow] = {
    "length": FilterRow(LengthConfig, f"{_CODE}.length", libraries=UNICODE),
    "ratio": FilterRow(RatioConfig, f"{_CODE}.ratio", libraries=UNICODE),
    "word_length": FilterRow(WordLengthConfig, f"{_CODE}.word_length", libraries=UNICODE),
    "characters": FilterRow(CharactersConfig, f"{_CODE}.characters", libraries=UNICODE),
    "script": FilterRow(ScriptConfig, f"{_CODE}.script", libraries=UNICODE),
    "language": FilterRow(LanguageConfig, f"{_CODE}.language", extra="language"),
    "identical": FilterRow(IdenticalConfig, f"{_CODE}.identical", libraries=NORMALISED),
    "numbers": FilterRow(NumbersConfig, f"{_CODE}.numbers", libraries=UNICODE),
    "regex": FilterRow(RegexConfig, f"{_CODE}.regex", libraries=("regex",)),
    "duplicates": FilterRow(DuplicatesConfig, f"{_CODE}.duplicates", streams=False, libraries=NORMALISED),
    "overlap": FilterRow(OverlapConfig, f"{_CODE}.overlap", libraries=NORMALISED),
    "scores": FilterRow(ScoresConfig, f"{_CODE}.scores", streams=False),
    "cross_entropy": FilterRow(CrossEntropyConfig, f"{_CODE}.cross_entropy", streams=False),
    "classifier": FilterRow(ClassifierConfig, f"{_CODE}.classifier", streams=False),
    "opuscleaner": FilterRow(OpusCleanerConfig, "nmt.data.cleaning.opuscleaner.expanded"),
}


def parsed(key: str, entries: object, *, streaming: bool = False) -> list[FilterConfig]:
    """Return the filters that `entries`, the value of `key`, say, in order; see `nmt.data.rows.parsed`.

    Raises:
        UserError: also for a filter that cannot be used with `streaming`.
    """
    found = rows.parsed(key, entries, {name: row.config for name, row in FILTERS.items()})
    for row in found:
        if streaming and not FILTERS[row.name].streams:
            able = ", ".join(name for name, one in FILTERS.items() if one.streams)
            raise UserError(
                f"{row.key_prefix}: {row.name} needs all pairs at once, which data.streaming=true does not "
                f"have; remove it, set data.streaming=false, or choose among {able}"
            )
    return found
