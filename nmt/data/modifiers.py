"""The table of modifiers, which change text: rows of data.augment and of the augmented sets of `sets`.

A row is a config and the name of its code, a function in `nmt.data.augment.augmentation` or in a module of
its own; that module says what it is given. Imports no code: tables cost nothing until a text is modified.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, NamedTuple

from nmt.checks import at_least, within
from nmt.data import rows
from nmt.data.rows import Row
from nmt.errors import UserError
from nmt.loading import Code

EMOJI = "😀😂😅😉😊😍😎😘😢😭😡🤔🙏👍👎👏💪🔥✨🎉❤💔💯🚀🌍🍕⚽🎵📷✅❌⚠★☺→•§©®"
"""Characters that are inserted as noise unless others are named."""
TERM_MARKS = ("<term>", "</term>")
"""The special pieces before and after the translation of a term in a source."""
MASK = "<mask>"
"""The special piece in the place of a word of the source."""
MATCH_MARK = "<match>"
"""The special piece between a source and the translation of a similar one."""
LEAST_LIKENESS = 0.5
"""From which two sources count as similar unless another share is given: half of their words are the same."""


class Need(Enum):
    """What a modifier must know besides the pair itself: something that is made of all training pairs."""

    nothing = "nothing"
    lexicon = "a lexicon, which aligns words"
    neighbours = "for each pair another one that is like it"


@dataclass(frozen=True)
class ModifierConfig(Row):
    """The key that all modifiers have."""

    needs: ClassVar[Need] = Need.nothing
    is_first: ClassVar[bool] = False
    """Whether the modifier must see pairs as they are, so that none may be before it."""
    is_last: ClassVar[bool] = False
    """Whether others would spoil what the modifier adds, so that none may be behind it."""

    rate: float = 0.05
    """Share of the pairs that are modified, each by chance; the others stay as they are."""

    def __post_init__(self) -> None:
        within(self, self.key_prefix, "[0, 1]", "rate")

    @property
    def symbols(self) -> list[str]:
        """The special pieces that the modifier puts into text: a tokenizer has a piece for each."""
        return []


@dataclass(frozen=True)
class UpperCaseConfig(ModifierConfig):
    """Both sides in upper case."""


@dataclass(frozen=True)
class TitleCaseConfig(ModifierConfig):
    """Both sides with a capital at the beginning of each word."""


@dataclass(frozen=True)
class LowerCaseConfig(ModifierConfig):
    """The source in lower case, as it is typed in haste; the target keeps its capitals."""


@dataclass(frozen=True)
class WordNoiseConfig(ModifierConfig):
    """The keys of the modifiers that change single words of the source; the target stays as it is."""

    words: float = 0.1
    """Share of the words that are changed, each by chance."""

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, self.key_prefix, "[0, 1]", "words")


@dataclass(frozen=True)
class TyposConfig(WordNoiseConfig):
    """Slips of the keyboard in words of the source, in one at least; the target stays as it is."""


@dataclass(frozen=True)
class EndPunctuationConfig(ModifierConfig):
    """Both sides without the stop at their end, where both have one."""


@dataclass(frozen=True)
class NoiseConfig(ModifierConfig):
    """The same emoji or other characters in front of both sides or behind them, to be copied."""

    rate: float = 0.02
    most: int = 3
    """Largest number of characters that are inserted together."""
    characters: str = EMOJI
    """Characters to choose from."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, self.key_prefix, 1, "most")
        if not "".join(self.characters.split()):
            raise UserError(
                f"{self.key_prefix}.characters must be characters to insert, but is {self.characters!r}"
            )


@dataclass(frozen=True)
class DropWordsConfig(WordNoiseConfig):
    """The source without some of its words."""


@dataclass(frozen=True)
class MaskWordsConfig(WordNoiseConfig):
    """The source with a mark in the place of some of its words."""

    @property
    def symbols(self) -> list[str]:
        """The mark."""
        return [MASK]


@dataclass(frozen=True)
class ShuffleWordsConfig(ModifierConfig):
    """The words of the source in another order, each near its place; the target stays as it is."""

    window: int = 3
    """How many places a word may move at most."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, self.key_prefix, 1, "window")


@dataclass(frozen=True)
class TermsConfig(ModifierConfig):
    """Source words followed by their translation in the pair, between marks, so that the model learns to use
    terms that it is offered. The last modifier of a list: others would change the terms.
    """

    needs: ClassVar[Need] = Need.lexicon
    is_last: ClassVar[bool] = True

    rate: float = 0.5
    most: int = 3
    """Largest number of terms that are offered in a sentence."""
    replaced: float = 0.0
    """Share of the terms that are another word, drawn from those of the targets, in the source and in the
    target alike, so that copying it is the only way to be right; without any, a model that translates well
    already need not read what it is offered."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, self.key_prefix, 1, "most")
        within(self, self.key_prefix, "[0, 1]", "replaced")

    @property
    def symbols(self) -> list[str]:
        """The marks."""
        return list(TERM_MARKS)


@dataclass(frozen=True)
class MatchesConfig(ModifierConfig):
    """A source followed by the translation of the training source that is most like it, so that the model
    learns to use what a translation memory has. The first modifier of a list: others would change the source.
    """

    needs: ClassVar[Need] = Need.neighbours
    is_first: ClassVar[bool] = True

    rate: float = 0.5
    least: float = LEAST_LIKENESS
    """Least likeness of the two sources: 1 less the share of the words that have to be edited."""

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, self.key_prefix, "(0, 1]", "least")

    @property
    def symbols(self) -> list[str]:
        """The mark."""
        return [MATCH_MARK]


class Modifier(NamedTuple):
    """A row of the table."""

    config: type[ModifierConfig]
    code: Code
    """A function of the config of a row, a pair and its random numbers that returns the modified pair."""


MODIFIERS: dict[str, Modifier] = {
    "upper_case": Modifier(UpperCaseConfig, "nmt.data.augment.augmentation.upper_case"),
    "title_case": Modifier(TitleCaseConfig, "nmt.data.augment.augmentation.title_case"),
    "lower_case": Modifier(LowerCaseConfig, "nmt.data.augment.augmentation.lower_case"),
    "typos": Modifier(TyposConfig, "nmt.data.augment.augmentation.typos"),
    "end_punctuation": Modifier(EndPunctuationConfig, "nmt.data.augment.augmentation.end_punctuation"),
    "noise": Modifier(NoiseConfig, "nmt.data.augment.augmentation.noise"),
    "drop_words": Modifier(DropWordsConfig, "nmt.data.augment.word_noise.drop_words"),
    "mask_words": Modifier(MaskWordsConfig, "nmt.data.augment.word_noise.mask_words"),
    "shuffle_words": Modifier(ShuffleWordsConfig, "nmt.data.augment.word_noise.shuffle_words"),
    "terms": Modifier(TermsConfig, "nmt.data.augment.terms.terms"),
    "matches": Modifier(MatchesConfig, "nmt.data.augment.matches.matches"),
}


def parsed(key: str, entries: object, defaults: Mapping[str, Any] | None = None) -> list[ModifierConfig]:
    """Return the modifiers that `entries`, the value of `key`, say, in order; see `nmt.data.rows.parsed`."""
    configs = {name: row.config for name, row in MODIFIERS.items()}
    return rows.parsed(key, entries, configs, defaults)


def symbols(modifiers: Sequence[ModifierConfig]) -> list[str]:
    """Return the special pieces that modifiers put into text."""
    return [symbol for modifier in modifiers for symbol in modifier.symbols]
