"""Translations of similar sources behind sources."""

from __future__ import annotations

import dataclasses

import pytest

from nmt.data.augment.augmentation import Augmentation
from nmt.data.augment.lexicon import WordLexicon
from nmt.data.augment.matches import with_match
from nmt.data.augment.translation_memory import Neighbours, TranslationMemory
from nmt.data.modifiers import MatchesConfig, TermsConfig, parsed
from nmt.data.parallel_text import ParallelText
from nmt.errors import UserError

TEXT = ParallelText(
    [f"the {colour} dog number {i} runs" for i in range(40) for colour in ("red", "blue")],
    [f"der {colour} Hund Nummer {i} rennt" for i in range(40) for colour in ("rote", "blaue")],
)
NEIGHBOURS = Neighbours.of(TranslationMemory(zip(TEXT.src, TEXT.tgt, strict=True)), 0.8)
MATCHES = MatchesConfig(name="matches", rate=0.5, least=0.8)


def test_a_share_of_the_sources_is_followed_by_the_translation_of_the_other() -> None:
    modify = Augmentation((MATCHES,), ("en", "de"), neighbours=NEIGHBOURS)
    found = modify(TEXT, seed=1)
    assert found.tgt == TEXT.tgt
    offered = [i for i, src in enumerate(found.src) if " <match> " in src]
    assert 0.35 * len(TEXT) < len(offered) < 0.65 * len(TEXT)
    for i in offered:
        src, _, match = found.src[i].partition(" <match> ")
        assert src == TEXT.src[i]
        assert match in TEXT.tgt
        assert match != TEXT.tgt[i]
    assert all(found.src[i] == TEXT.src[i] for i in range(len(TEXT)) if i not in offered)
    assert modify(TEXT, seed=2).src != found.src


def test_tags_and_context_are_left_aside() -> None:
    modify = Augmentation((dataclasses.replace(MATCHES, rate=1.0),), ("en", "de"), ("<2de>", "<brk>"))
    tagged = ParallelText([f"<2de> before <brk> {src}" for src in TEXT.src], TEXT.tgt)
    assert modify.sentences(tagged).src == TEXT.src
    modify = dataclasses.replace(modify, neighbours=NEIGHBOURS)
    found = modify(tagged, seed=1).src
    assert all(one.startswith(f"{src} <match> der ") for one, src in zip(found, tagged.src, strict=True))


def test_terms_are_words_of_the_source_and_not_of_its_match(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.data.augment.terms.COMMON_WORDS", 0)
    rows = (dataclasses.replace(MATCHES, rate=1.0), TermsConfig(name="terms", rate=1.0))
    lexicon, neighbours = WordLexicon.of(TEXT), NEIGHBOURS
    found = Augmentation(rows, ("en", "de"), lexicon=lexicon, neighbours=neighbours)(TEXT, seed=1)
    assert any("<term>" in src for src in found.src)
    assert all("<term>" not in src.partition("<match>")[2] for src in found.src)


def test_what_is_offered_stays_as_it_is() -> None:
    """Other modifiers change the sentence alone, and a source is offered one match."""
    stops = [f"{line}." for line in TEXT.src], [f"{line}." for line in TEXT.tgt]
    names = ("matches", "matches", "end_punctuation", "upper_case", "typos", "noise")
    rows = tuple(parsed("data.augment", [{"name": name, "rate": 1.0} for name in names]))
    neighbours = Neighbours.of(TranslationMemory(zip(*stops, strict=True)), 0.5)
    found = Augmentation(rows, ("en", "de"), neighbours=neighbours)(ParallelText(*stops), seed=1)
    for src, tgt in zip(found.src, found.tgt, strict=True):
        sentence, match = src.split(" <match> ")
        assert match in stops[1]
        assert sentence.upper() == sentence
        assert not sentence.endswith(".")
        assert not tgt.endswith(".")


def test_a_mark_in_a_match_is_text() -> None:
    assert with_match("a", "b <match>\n c") == "a <match> b < match> c"


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UserError, match=r"data.augment\[0\].least must be in \(0, 1\]"):
        parsed("data.augment", [{"name": "matches", "least": 0}])
    rows = tuple(parsed("sets.x.augment", [{"name": "matches", "rate": 1.0}]))
    with pytest.raises(UserError, match=r"sets.x.augment\[0\].name=matches is for data.augment"):
        Augmentation(rows)(TEXT, seed=1)
