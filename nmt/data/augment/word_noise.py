"""Words of a source left out, masked or moved: the noise of back-translations (Edunov et al. 2018).

A word is what spaces part, or about as much in scripts without spaces. Placeholders, markup and special
pieces are never changed, and no word moves across one of them; so the sentences of a context stay apart.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from nmt.data.augment.augmentation import PLACEHOLDERS, Pair, any_of
from nmt.data.draws import Draws
from nmt.data.modifiers import MASK, ModifierConfig, ShuffleWordsConfig, WordNoiseConfig
from nmt.data.text.words import COUNTED_ALONE, NO_SPACES


class Word(NamedTuple):
    """A word of a source, or something else that stays as it is."""

    space: str
    """What parts it from the word before it."""
    text: str
    is_fixed: bool


def drop_words(cfg: ModifierConfig, pair: Pair, draws: Draws) -> Pair:
    """Return the pair with some words of its source left out."""
    assert isinstance(cfg, WordNoiseConfig)
    kept = [word for word in words_of(pair) if word.is_fixed or not draws.chance(cfg.words)]
    return pair._replace(src=_text(kept).lstrip())


def mask_words(cfg: ModifierConfig, pair: Pair, draws: Draws) -> Pair:
    """Return the pair with the mark in the place of some words of its source."""
    assert isinstance(cfg, WordNoiseConfig)
    masked = [
        word if word.is_fixed or not draws.chance(cfg.words) else word._replace(text=MASK)
        for word in words_of(pair)
    ]
    return pair._replace(src=_text(masked))


def shuffle_words(cfg: ModifierConfig, pair: Pair, draws: Draws) -> Pair:
    """Return the pair with the words of its source moved, each by `cfg.window` places at most.

    The order is that of the places of the words, each with a number below `cfg.window` + 1 added (Lample et
    al. 2018, section 2.3).
    """
    assert isinstance(cfg, ShuffleWordsConfig)
    moved = list[Word]()
    for is_fixed, run in itertools.groupby(words_of(pair), lambda word: word.is_fixed):
        words = list(run)
        if is_fixed:
            moved += words
            continue
        places = [place + draws.uniform() * (cfg.window + 1) for place in range(len(words))]
        order = sorted(range(len(words)), key=places.__getitem__)
        moved += [word._replace(text=words[i].text) for word, i in zip(words, order, strict=True)]
    return pair._replace(src=_text(moved))


def words_of(pair: Pair) -> Iterator[Word]:
    """Yield the words of the source of a pair, and what stays as it is."""
    words, fixed = _patterns(pair.symbols)
    for found in words.finditer(pair.src):
        yield Word(found[1], found[2], fixed.search(found[2]) is not None)


@functools.lru_cache
def _patterns(symbols: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return the pattern of a word behind its space, and that of what stays as it is."""
    fixed = "|".join([*([any_of(symbols)] if symbols else []), PLACEHOLDERS])
    return re.compile(rf"(\s*)((?:{fixed}|[^\s{NO_SPACES}])+|{COUNTED_ALONE})"), re.compile(fixed)


def _text(words: Iterable[Word]) -> str:
    return "".join(f"{word.space}{word.text}" for word in words)
