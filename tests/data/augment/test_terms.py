"""Terms in sources: words of the pair, between marks."""

from __future__ import annotations

import re

import pytest

from nmt.data.augment.augmentation import Augmentation
from nmt.data.augment.lexicon import WordLexicon
from nmt.data.augment.terms import Span, _other, annotated
from nmt.data.draws import Draws
from nmt.data.modifiers import TermsConfig, parsed
from nmt.data.parallel_text import ParallelText
from nmt.errors import UserError

NOUNS = [(f"noun{i}", f"Wort{i}") for i in range(60)]
PAIRS = [
    (f"the {a} sees <b>a</b> {b}.", f"das {x} sieht <b>ein</b> {y}.")
    for (a, x), (b, y) in zip(NOUNS, NOUNS[7:] + NOUNS[:7], strict=True)
]
TEXT = ParallelText([src for src, _ in PAIRS * 3], [tgt for _, tgt in PAIRS * 3])


def test_a_term_is_followed_by_its_translation() -> None:
    src = "a dog, a cat"
    assert annotated(src, [Span(2, 5, "Hund"), Span(9, 12, "Katze")]) == (
        "a dog <term> Hund </term>, a cat <term> Katze </term>"
    )


def test_terms_are_words_of_the_pair_and_a_pure_function_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.data.augment.terms.COMMON_WORDS", 8)
    lexicon = WordLexicon.of(TEXT)
    modify = Augmentation((TermsConfig(name="terms", rate=0.8),), ("en", "de"), ("<2de>",), lexicon=lexicon)
    tagged = ParallelText([f"<2de> {src}" for src in TEXT.src], TEXT.tgt)
    found = modify(tagged, seed=3)
    assert found.tgt == TEXT.tgt
    changed = [(src, tgt) for src, tgt in zip(found.src, found.tgt, strict=True) if "<term>" in src]
    assert 0.7 * len(TEXT) < len(changed) < 0.9 * len(TEXT)
    known = dict(NOUNS)
    for src, tgt in changed:
        assert src.startswith("<2de> the noun")
        for term, translation in re.findall(r"(\w+) <term> (\w+) </term>", src):
            assert translation == known[term]
            assert translation in tgt
    halves = [
        modify(ParallelText(tagged.src[a:b], tagged.tgt[a:b]), seed=3, first=a)
        for a, b in ((0, 50), (50, 180))
    ]
    assert [src for half in halves for src in half.src] == found.src
    assert modify(tagged, seed=4).src != found.src


@pytest.mark.parametrize("script", ["α", "ა"])
def test_terms_are_words_of_any_script(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.data.augment.terms.COMMON_WORDS", 8)
    letters = str.maketrans("0123456789", "".join(chr(ord(script) + i) for i in range(10)))
    nouns = [f"noun{i}".translate(letters) for i in range(60)]
    others = [f"{script}{i:02}".translate(letters) for i in range(60)]
    src = [f"the {a} sees a {b}." for a, b in zip(nouns, nouns[7:] + nouns[:7], strict=True)]
    tgt = [f"{a} {script * 2} {b}." for a, b in zip(others, others[7:] + others[:7], strict=True)]
    text = ParallelText(src * 3, tgt * 3)
    rows = (TermsConfig(name="terms", rate=1.0),)
    modify = Augmentation(rows, ("en", "ka"), (), lexicon=WordLexicon.of(text))
    assert sum("<term>" in line for line in modify(text, seed=3).src) > len(text) / 2


def test_a_replaced_term_is_the_same_other_word_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.data.augment.terms.COMMON_WORDS", 8)
    monkeypatch.setattr("nmt.data.augment.terms.PHRASE_RATE", 0.0)
    lexicon, known = WordLexicon.of(TEXT), dict(NOUNS)
    cfg = TermsConfig(name="terms", rate=1.0, most=2, replaced=0.5)
    found = Augmentation((cfg,), ("en", "de"), lexicon=lexicon)(TEXT, seed=3)
    offered = others = 0
    for src, tgt in zip(found.src, found.tgt, strict=True):
        first, second = re.findall(r"(noun\d+)(?: <term> (\w+) </term>)?", src)
        said = [translation or known[term] for term, translation in (first, second)]
        assert tgt == f"das {said[0]} sieht <b>ein</b> {said[1]}."
        own = [translation == known[term] for term, translation in (first, second) if translation]
        offered, others = offered + len(own), others + own.count(False)
    assert offered > len(TEXT)
    assert 0.4 * offered < others < 0.6 * offered
    assert {*lexicon.tgt_words} == {"das", "sieht", "b", "ein"}  # neither signs nor numbers


def test_words_with_marks_replace_terms_and_without_words_a_term_stays() -> None:
    hindi = WordLexicon.of(ParallelText(["a red dog ."], ["एक लाल कुत्ता 7 ²."]))
    assert {*hindi.tgt_words} == {"एक", "लाल", "कुत्ता"}
    signs = WordLexicon.of(ParallelText(["a 1"], ["7 !"]))
    assert _other("7", signs, Draws(1)) == "7"


def test_terms_are_those_of_the_sentence_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.data.augment.terms.COMMON_WORDS", 8)
    first, *others = zip(TEXT.src, TEXT.tgt, strict=True)
    both = ParallelText(
        [f"{first[0]} <brk> {src}" for src, _ in others], [f"{first[1]} <brk> {tgt}" for _, tgt in others]
    )
    found = Augmentation((TermsConfig(name="terms", rate=1.0),), ("en", "de"), lexicon=WordLexicon.of(TEXT))(
        both, seed=3
    )
    assert sum("<term>" in src for src in found.src) > 0.9 * len(both)
    assert {src.partition(" <brk> ")[0] for src in found.src} == {first[0]}


def test_terms_need_the_words_of_a_corpus_and_a_number_of_terms() -> None:
    with pytest.raises(UserError, match=r"name=terms is for data\.augment, where words can be aligned"):
        Augmentation((TermsConfig(name="terms", rate=1.0, key_prefix="data.augment[0]"),))(TEXT, seed=1)
    with pytest.raises(UserError, match=r"data.augment\[0\].most must be at least 1, but is 0"):
        parsed("data.augment", [{"name": "terms", "most": 0}])
    with pytest.raises(UserError, match=r"data.augment\[0\].replaced must be in \[0, 1\], but is 2"):
        parsed("data.augment", [{"name": "terms", "replaced": 2}])
