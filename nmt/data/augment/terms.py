"""Terms offered inside of sources: a source word, and after it, between two marks, its translation.

In training they are words of the pair itself, chosen at random among those that the word lexicon aligns, so
that the model learns to use what it is offered, whatever it is (Dinu et al. 2019). A share of them may be
replaced on both sides by other words, which nothing but the offer predicts. At translation they are those of
a glossary. Knows no glossary; see `nmt.translation.requests`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from nmt.data.augment.augmentation import PLACEHOLDERS, Pair
from nmt.data.augment.lexicon import WORD, Links, WordLexicon
from nmt.data.configs import CONTEXT_SEPARATOR
from nmt.data.draws import Draws
from nmt.data.modifiers import TERM_MARKS, ModifierConfig, TermsConfig
from nmt.errors import UserError

COMMON_WORDS = 50
"""Source words, the most frequent ones, that are not offered: a glossary does not have them."""
LONGEST_PHRASE = 3
"""Most source words of a term."""
PHRASE_RATE = 0.3
"""Probability that a term goes on with the next word, if both their translations are neighbours."""


class Span(NamedTuple):
    """A term of a source, and what it is to be in the translation."""

    start: int
    end: int
    """Its place in the source, in characters."""
    translation: str


def annotated(src: str, spans: Iterable[Span]) -> str:
    """Return a source in which each term is followed by its translation between the marks."""
    opening, closing = TERM_MARKS
    for span in sorted(spans, reverse=True):
        src = f"{src[: span.end]} {opening} {span.translation} {closing}{src[span.end :]}"
    return src


def terms(cfg: ModifierConfig, pair: Pair, draws: Draws) -> Pair:
    """Return the pair with up to `cfg.most` terms offered in its source; none if no words are aligned."""
    assert isinstance(cfg, TermsConfig)
    if pair.lexicon is None:
        raise UserError(f"{cfg.key_prefix}.name=terms is for data.augment, where words can be aligned")
    sides = [_words(text) for text in (pair.src, pair.tgt)]
    links = pair.lexicon.align(*([found[0] for found in side] for side in sides))
    src, tgt = sides
    first, other = (text.rfind(CONTEXT_SEPARATOR) for text in (pair.src, pair.tgt))  # of the sentence itself
    links = [(i, j) for i, j in links if src[i].start() > first and tgt[j].start() > other]
    links = [(i, j) for i, j in links if src[i][0][0].isalnum() and tgt[j][0][0].isalnum()]
    free = [(i, j) for i, j in links if pair.lexicon.rank(src[i][0]) >= COMMON_WORDS]
    chosen, said, spans, others = set[int](), set[int](), list[Span](), list[Span]()
    for _ in range(min(1 + draws.below(cfg.most), len(free))):
        i, j = free[draws.below(len(free))]
        first, last, low, high = _phrase(i, j, links, draws)
        if not (chosen.isdisjoint(range(first, last + 1)) and said.isdisjoint(range(low, high + 1))):
            continue
        chosen.update(range(first, last + 1))
        said.update(range(low, high + 1))
        start, end = tgt[low].start(), tgt[high].end()
        term = pair.tgt[start:end]
        if cfg.replaced and draws.chance(cfg.replaced):
            term = _other(term, pair.lexicon, draws)
            others.append(Span(start, end, term))
        spans.append(Span(src[first].start(), src[last].end(), term))
    return pair._replace(src=annotated(pair.src, spans), tgt=_with_others(pair.tgt, others))


def _other(term: str, lexicon: WordLexicon, draws: Draws) -> str:
    """Return any word of the targets, with a capital where `term` begins with one; without words, `term`."""
    word = draws.choice(lexicon.tgt_words or [term])
    return word[:1].upper() + word[1:] if term[:1].isupper() else word


def _with_others(tgt: str, others: Iterable[Span]) -> str:
    """Return a target in which places, which do not overlap, have other words."""
    for span in sorted(others, reverse=True):
        tgt = f"{tgt[: span.start]}{span.translation}{tgt[span.end :]}"
    return tgt


def _phrase(i: int, j: int, links: Links, draws: Draws) -> tuple[int, int, int, int]:
    """Return the first and last source word, and the first and last target word, of a term from a link on."""
    others, low, high, last = dict(links), j, j, i
    while last - i + 1 < LONGEST_PHRASE and others.get(last + 1) in (low - 1, high + 1):
        if not draws.chance(PHRASE_RATE):
            break
        last += 1
        low, high = min(low, others[last]), max(high, others[last])
    return i, last, low, high


def _words(text: str) -> list[re.Match[str]]:
    """Return the words of a text; markup and placeholders are signs, which are aligned with nothing."""
    return list(WORD.finditer(re.sub(PLACEHOLDERS, lambda found: "\0" * len(found[0]), text)))
