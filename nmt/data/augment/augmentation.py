"""Modified copies of sentence pairs: noise and other case, drawn anew for each epoch (data.augment).

Each modifier of a list changes a share of the pairs, one modifier after the other, as in OpusTrainer
(Jon et al. 2023, arXiv 2311.14838). What is changed, and how, is a hash of the seed, the epoch, the place of
the modifier in the list and the number of the pair. So processes, threads and the size of chunks make no
difference, and a resumed run sees the same text.

Casing changes both sides, since the case of a text carries over to its translation; slips of the keyboard
change the source alone, since a translation has none. Placeholders, markup and special pieces stay as they
are, and so do scripts without case. A pair of which a side would be empty stays as it is.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from nmt.data import modifiers
from nmt.data.augment.lexicon import WordLexicon
from nmt.data.augment.translation_memory import Neighbours
from nmt.data.configs import CONTEXT_SEPARATOR, DataConfig
from nmt.data.documents import without_context
from nmt.data.draws import Draws, hashes
from nmt.data.modifiers import MATCH_MARK, MODIFIERS, ModifierConfig, Need, NoiseConfig, TyposConfig
from nmt.data.parallel_text import ParallelText, Split
from nmt.data.text.scripts import language_of
from nmt.data.text.words import IN_WORD
from nmt.loading import loaded

PLACEHOLDERS = r"<[^<>\s][^<>]*>|⟨[^⟨⟩]*⟩|\{[^{}]*\}|https?://\S+|[^\s@]{1,64}@[^\s@]+"
"""Markup, placeholders and addresses."""
FIXED = rf"{PLACEHOLDERS}|[\u10d0-\u10ff]+"
"""These, and the Georgian script, which Unicode alone gives capitals."""
WORD_START = re.compile(rf"(?<![{IN_WORD}'’-])[^\W\d_]")
WORD = re.compile(rf"(?<![{IN_WORD}'’-])[^\W\d_]{{4,}}(?![{IN_WORD}'’])")
"""A word that is long enough to be read with a slip in it."""
STOPS = ".!?…。．！？؟۔।॥։።"
"""Stops at the end of a sentence."""
GREEK_CAPITALS = str.maketrans("ΆΈΉΊΌΎΏ", "ΑΕΗΙΟΥΩ", "\u0301")
"""Greek drops the accents of words in capitals."""
DOTTED = ("tr", "az", "kk", "tt", "crh")
"""Languages whose i keeps its dot as a capital, if they are written in the Latin script."""
KEYBOARDS = {
    "": ("qwertyuiop", "asdfghjkl", "zxcvbnm"),
    "de": ("qwertzuiopü", "asdfghjklöä", "yxcvbnm"),
    "fr": ("azertyuiop", "qsdfghjklm", "wxcvbn"),
    "ru": ("йцукенгшщзхъ", "фывапролджэ", "ячсмитьбю"),
    "uk": ("йцукенгшщзхї", "фівапролджє", "ячсмитьбю"),
    "bg": ("уеишщксдзц", "ьяаожгтнвмч", "юйъэфхпрлб"),
    "el": ("ςερτυθιοπ", "ασδφγηξκλ", "ζχψωβνμ"),
}
"""The rows of letters of keyboards by language; the first is that of all other languages."""


class Pair(NamedTuple):
    """A sentence pair that a modifier is given, and returns; its source without the tags in front."""

    src: str
    tgt: str
    languages: tuple[str, str]
    """Of source and target."""
    symbols: tuple[str, ...] = ()
    """Special pieces that may be in the text, and stay as they are."""
    lexicon: WordLexicon | None = None
    """The translations of words, for a modifier that offers terms."""
    neighbours: Neighbours | None = None
    """The similar sentences of training sources, for a modifier that offers their translations."""


Modify = Callable[[ModifierConfig, Pair, Draws], Pair]
"""The code of a modifier; it is called for the pairs that are to be modified."""


@dataclass(frozen=True)
class Augmentation:
    """The modifiers of a text, as one process can hand them to another."""

    modifiers: tuple[ModifierConfig, ...] = ()
    languages: tuple[str, str] = ("", "")
    """Of source and target."""
    symbols: tuple[str, ...] = ()
    """Special pieces that the data puts into text."""
    has_labels: bool = False
    """Whether targets are labels, which stay as they are."""
    lexicon: WordLexicon | None = None
    """The translations of the words of the training text, if a modifier needs them."""
    neighbours: Neighbours | None = None
    """The similar sentences of the training sources, if a modifier needs them."""

    @classmethod
    def of(cls, cfg: DataConfig, languages: tuple[str, str]) -> Augmentation:
        """Return the modifiers that `cfg.augment` says, for text of these languages."""
        rows = modifiers.parsed(f"{cfg.key_prefix}.augment", cfg.augment)
        return cls(tuple(rows), languages, tuple(cfg.symbols), cfg.has_labels)

    @classmethod
    def of_corpora(cls, cfg: DataConfig) -> list[Augmentation]:
        """Return the modifiers of each corpus to train on, for its languages."""
        return [
            replace(cls.of(cfg, (part.src, part.tgt)), modifiers=tuple(cfg.modifiers_of(name)))
            for name, part in cfg.parts(Split.train).items()
        ]

    @property
    def of_pairs_alone(self) -> Augmentation:
        """The modifiers that need nothing else: those of a text that a tokenizer is trained on."""
        return replace(self, modifiers=tuple(row for row in self.modifiers if row.needs is Need.nothing))

    def needs(self, need: Need) -> bool:
        """Return whether one of the modifiers needs something."""
        return any(row.needs is need for row in self.modifiers)

    def __bool__(self) -> bool:
        return any(modifier.rate for modifier in self.modifiers)

    def __call__(self, text: ParallelText, *, seed: int, first: int = 0) -> ParallelText:
        """Return the text with some pairs modified; `first` is the number of its first pair."""
        references = [[*lines] for lines in text.references]
        changed = ParallelText([*text.src], [*text.tgt], references, text.weights)
        numbers = np.arange(first, first + len(text), dtype=np.uint64)
        for place, modifier in enumerate(self.modifiers):
            own = hashes(np.array([seed], np.uint64), np.array([place], np.uint64))
            keys, modify = hashes(own, numbers), loaded(MODIFIERS[modifier.name].code)
            chosen = np.flatnonzero((keys >> np.uint64(11)) * 2.0**-53 < modifier.rate)
            for row, key in zip(chosen.tolist(), keys[chosen].tolist(), strict=True):
                sides = functools.partial(self._sides, modify, modifier, changed.src[row], key=key)
                for lines in changed.references:
                    lines[row] = sides(lines[row])[1]
                changed.src[row], changed.tgt[row] = sides(changed.tgt[row])
        return changed

    def _sides(
        self, modify: Modify, modifier: ModifierConfig, src: str, tgt: str, *, key: int
    ) -> tuple[str, str]:
        """Return both sides of a pair, modified unless one of them would be empty."""
        body, mark, match = self._body(src), "", ""
        if self.needs(Need.neighbours):  # then what is offered stays as it is
            body, mark, match = body.partition(f" {MATCH_MARK} ")
        if not body.strip() or not tgt.strip() or (mark and modifier.needs is Need.neighbours):
            return src, tgt
        known = self.languages, self.symbols, self.lexicon, self.neighbours
        pair = Pair(body, body if self.has_labels else tgt, *known)
        new = modify(modifier, pair, Draws(key))
        if not new.src.strip() or not new.tgt.strip():
            return src, tgt
        front = src[: len(src) - len(body) - len(mark) - len(match)]
        return f"{front}{new.src}{mark}{match}", tgt if self.has_labels else new.tgt

    def _body(self, src: str) -> str:
        """Return a source without the tags in front."""
        return src[_front(self.symbols).match(src).end() :]  # type: ignore[union-attr]

    def sentences(self, text: ParallelText) -> ParallelText:
        """Return pairs whose sides are the sentences themselves, without tags and context."""
        return without_context(replace(text, src=list(map(self._body, text.src))))


UNMODIFIED = Augmentation()


@dataclass(frozen=True)
class JoinedAugmentation:
    """The modifiers of several corpora that are one text, one after the other."""

    parts: tuple[tuple[Augmentation, int], ...]
    """The modifiers of each corpus, and how many of the pairs are its."""

    def __bool__(self) -> bool:
        return any(augmentation for augmentation, _ in self.parts)

    def __call__(self, text: ParallelText, *, seed: int, first: int = 0) -> ParallelText:
        """Return the text, or what it has from pair `first` on, each pair modified as its corpus is."""
        changed, end = ParallelText(), 0
        for augmentation, count in self.parts:
            start, end = max(end, first), end + count
            own = text.part(slice(start - first, max(end - first, 0)))
            changed.extend(augmentation(own, seed=seed, first=start))
        return changed


@functools.lru_cache
def _front(symbols: tuple[str, ...]) -> re.Pattern[str]:
    """Return the pattern of the tags in front of a source."""
    return re.compile(f"(?:(?:{any_of(symbols)}) )*" if symbols else "")


@functools.lru_cache
def _fixed(symbols: tuple[str, ...]) -> re.Pattern[str]:
    """Return the pattern of what no modifier changes inside of a text, as one group."""
    return re.compile(f"({'|'.join([*([any_of(symbols)] if symbols else []), FIXED])})")


def any_of(symbols: Sequence[str]) -> str:
    """Return the pattern of any of the symbols."""
    return "|".join(map(re.escape, sorted(symbols, key=len, reverse=True)))


def _outside(pair: Pair, text: str, change: Callable[[str], str]) -> str:
    """Return the text with `change` made to all but what stays as it is."""
    parts = _fixed(pair.symbols).split(text)
    return "".join(part if i % 2 else change(part) for i, part in enumerate(parts))


def _both(pair: Pair, change: Callable[[str, str], str]) -> Pair:
    """Return the pair with `change`, a function of text and language, made to both sides."""
    sides = zip((pair.src, pair.tgt), pair.languages, strict=True)
    src, tgt = (_outside(pair, text, lambda part, own=own: change(part, own)) for text, own in sides)  # type: ignore[misc]
    return pair._replace(src=src, tgt=tgt)


def in_capitals(text: str, language: str) -> str:
    """Return the text in upper case by the rules of its language."""
    own = language_of(language)
    upper = (text.replace("i", "İ") if own in DOTTED else text).upper()
    return upper.translate(GREEK_CAPITALS) if own == "el" else upper


def with_capitals(text: str, language: str) -> str:
    """Return the text with a capital at the beginning of each word; other letters stay."""
    dotted = {"i": "İ"} if language_of(language) in DOTTED else {}
    return WORD_START.sub(lambda found: dotted.get(found[0], found[0].title()), text)


def without_capitals(text: str, language: str) -> str:
    """Return the text in lower case by the rules of its language."""
    if language_of(language) in DOTTED:
        text = text.replace("İ", "i").replace("I", "ı")
    return text.lower()


def upper_case(cfg: ModifierConfig, pair: Pair, draws: Draws) -> Pair:
    """Return both sides in upper case."""
    return _both(pair, in_capitals)


def title_case(cfg: ModifierConfig, pair: Pair, draws: Draws) -> Pair:
    """Return both sides with a capital at the beginning of each word."""
    return _both(pair, with_capitals)


def lower_case(cfg: ModifierConfig, pair: Pair, draws: Draws) -> Pair:
    """Return the source in lower case."""
    return pair._replace(src=_both(pair, without_capitals).src)


def end_punctuation(cfg: ModifierConfig, pair: Pair, draws: Draws) -> Pair:
    """Return both sides without the stop at their end, where both have one."""
    src, tgt = _without_stop(pair.src), _without_stop(pair.tgt)
    return pair if src is None or tgt is None else pair._replace(src=src, tgt=tgt)


def _without_stop(text: str) -> str | None:
    """Return a sentence without the stop at its end; None for one that has none."""
    whole = text.rstrip()
    shorter = whole.rstrip(STOPS)
    return None if shorter == whole else shorter.rstrip()


def noise(cfg: NoiseConfig, pair: Pair, draws: Draws) -> Pair:
    """Return both sides with the same characters in front of them, or behind them.

    Where the source alone has context they are in front of its own sentence, as they are in the target.
    """
    characters = "".join(cfg.characters.split())
    inserted = "".join(draws.choice(characters) for _ in range(1 + draws.below(cfg.most)))
    if draws.chance(0.5):
        context, separator, sentence = "", "", pair.src
        if CONTEXT_SEPARATOR not in pair.tgt:
            context, separator, sentence = pair.src.rpartition(f"{CONTEXT_SEPARATOR} ")
        return pair._replace(src=f"{context}{separator}{inserted} {sentence}", tgt=f"{inserted} {pair.tgt}")
    return pair._replace(src=f"{pair.src} {inserted}", tgt=f"{pair.tgt} {inserted}")


def typos(cfg: TyposConfig, pair: Pair, draws: Draws) -> Pair:
    """Return the source with slips of the keyboard in some of its words; short words stay."""
    parts = _fixed(pair.symbols).split(pair.src)
    words = [(i, found) for i in range(0, len(parts), 2) for found in WORD.finditer(parts[i])]
    words = [(i, found) for i, found in words if found[0][0].lower() != found[0][0].upper()]
    chosen = [word for word in words if draws.chance(cfg.words)]
    if words and not chosen:
        chosen = [draws.choice(words)]
    neighbours = _neighbours(language_of(pair.languages[0]))
    for i, found in reversed(chosen):
        parts[i] = parts[i][: found.start()] + _slip(found[0], draws, neighbours) + parts[i][found.end() :]
    return pair._replace(src="".join(parts))


def _slip(word: str, draws: Draws, neighbours: dict[str, str]) -> str:
    """Return a word with one letter behind the first swapped, dropped, doubled or missed by one key."""
    kind, i = draws.below(4), 1 + draws.below(len(word) - 2)
    letter, following = word[i], word[i + 1]
    near = neighbours.get(letter.lower(), "")
    if kind == 0 and letter != following:
        return word[:i] + following + letter + word[i + 2 :]
    if kind == 1:
        return word[:i] + word[i + 1 :]
    if kind == 2 and near:
        missed = draws.choice(near)
        return word[:i] + (missed.upper() if letter.isupper() else missed) + word[i + 1 :]
    return word[:i] + letter + word[i:]


@functools.lru_cache
def _neighbours(language: str) -> dict[str, str]:
    """Return the letters beside each letter of the keyboard of a language: in its row, above and below."""
    keyboard = KEYBOARDS.get(language, KEYBOARDS[""])
    found = dict[str, str]()
    for number, row in enumerate(keyboard):
        for i, letter in enumerate(row):
            near = [row[i - 1 : i], row[i + 1 : i + 2]]
            near += [above[i : i + 2] for above in keyboard[max(0, number - 1) : number]]
            near += [below[max(0, i - 1) : i + 1] for below in keyboard[number + 1 : number + 2]]
            found[letter] = "".join(near)
    return found
