"""Requests as text: how they are read, what their ids allow, and what a translation lacks."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any
from unicodedata import normalize

import pytest
import torch

from nmt.data.parallel_text import ParallelText
from nmt.data.special_ids import EOS_ID, UNK_ID
from nmt.data.text.casing import ESCAPE, MARKS
from nmt.data.text.words import IN_WORD, NO_SPACES
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.data.tokens.tokenizer_training import Case, TokenizerConfig, TokenizerKind
from nmt.decoding.configs import BeamConfig, GlossaryUse
from nmt.decoding.guided_search import search
from nmt.decoding.hypotheses import EDGE, Wish
from nmt.decoding.restrictions import Restrictions
from nmt.errors import UserError
from nmt.translation.requests import Glossary, Request, Spellings, Wishes
from tests.decoding.test_beam_search import TableModel

LINES = [
    "ein Mann reitet auf einem Pferd",
    "zwei Hunde spielen im Schnee",
    "eine Frau reinigt das Fenster",
    "der Hund rennt über die Wiese",
    "ein Hundert Männer reisen nach Rom",
]


def tokenizer(kind: TokenizerKind, *, right_to_left: bool = False) -> Tokenizer:
    sizes = {TokenizerKind.bpe: 90, TokenizerKind.unigram: 50, TokenizerKind.word: 40, TokenizerKind.char: 60}
    text = ParallelText(LINES * 5, LINES * 5)
    return Tokenizer.train(
        TokenizerConfig(kind=kind, vocab_size=sizes[kind], right_to_left=right_to_left), text
    )


@pytest.fixture(scope="module", params=[TokenizerKind.bpe, TokenizerKind.unigram, TokenizerKind.char])
def subwords(request: pytest.FixtureRequest) -> Tokenizer:
    return tokenizer(request.param)


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return tokenizer(TokenizerKind.bpe)


def accepts(wish: Wish, ids: list[int]) -> bool:
    """Whether a text of these ids is one that the wish lets begin."""
    if ids[: len(wish.prefix)] != wish.prefix:
        return False
    spelt = 0
    for token in ids[len(wish.prefix) :]:
        if spelt == len(wish.rest):
            return True
        if token not in wish.rest[spelt]:
            return False
        spelt = wish.rest[spelt][token]
    return spelt == len(wish.rest)


def test_every_beginning_of_a_line_allows_the_tokens_of_the_line(subwords: Tokenizer) -> None:
    wishes = Wishes(subwords)
    encoded = [ids[:-1] for ids in subwords.encode_tgt(LINES)]
    for line in LINES:
        for length in range(1, len(line) + 1):
            wish = wishes.of(Request("", prefix=line[:length]))
            for other, ids in zip(LINES, encoded, strict=True):
                begins = other.startswith(line[:length].rstrip())
                if (begins and other[len(line[:length].rstrip()) :][:1] in ("", " ")) or other == line:
                    assert accepts(wish, ids), (line[:length], other)
                elif not begins:
                    assert not accepts(wish, ids), (line[:length], other)


def test_a_space_ends_the_last_word_of_a_prefix(bpe: Tokenizer) -> None:
    (whole,) = bpe.encode_tgt(["ein Hundert Männer"])
    wishes = Wishes(bpe)
    assert accepts(wishes.of(Request("", prefix="ein Hund")), whole[:-1])
    assert not accepts(wishes.of(Request("", prefix="ein Hund ")), whole[:-1])
    assert wishes.of(Request("", prefix=" ")) == wishes.of(Request(""))


def test_words_of_a_vocabulary_of_words_are_finished() -> None:
    words = tokenizer(TokenizerKind.word)
    wish, (ids,) = Wishes(words).of(Request("", prefix="zwei Hund")), words.encode_tgt(["zwei Hunde spielen"])
    assert accepts(wish, ids[:-1])
    assert Wishes(words).of(Request("", prefix="zwei Katz")).prefix == [ids[0], UNK_ID]


def test_phrases_may_be_a_tuple(bpe: Tokenizer) -> None:
    lists, tuples = Request("", must=["Hund"]), Request("", must=("Hund",))  # type: ignore[arg-type]
    assert Wishes(bpe).of(lists) == Wishes(bpe).of(tuples)


def test_a_mark_of_case_changes_the_word_before_it_and_is_none_of_its_ends_alone() -> None:
    """Behind a phrase in small letters it would make another word of it."""
    lines = ["der Hund bellt", "das iPhone", "USA"] * 5
    tok = Tokenizer.train(
        TokenizerConfig(kind=TokenizerKind.char, vocab_size=60, case=Case.markup), ParallelText(lines, lines)
    )
    spellings = Wishes(tok).spellings
    marks = {mark: spellings.ids[mark] for mark in MARKS if mark in spellings.ids}
    assert {"⇧", "␟"} <= marks.keys()
    assert {mark for mark, token in marks.items() if token in spellings.word_parts} == {*marks} - {ESCAPE}
    model = TableModel(vocab_size=tok.tgt_vocab_size)
    src = torch.tensor([[5, 6, EOS_ID]] * 8)
    wishes = [Wishes(tok).of(Request("", must=["bellt"]))] * 8
    for [best] in search(model, src, torch.ones_like(src, dtype=torch.bool), BeamConfig(beam_size=8), wishes):
        assert re.search(r"(?<!\w)bellt(?!\w)", tok.decode(best.ids))


def test_a_prefix_in_small_letters_gets_no_capital_by_a_mark_behind_it() -> None:
    lines = ["der Hund bellt", "das iPhone", "USA", "foo-bar"] * 5
    tok = Tokenizer.train(
        TokenizerConfig(kind=TokenizerKind.char, vocab_size=60, case=Case.markup), ParallelText(lines, lines)
    )
    prefixes = ["bel", "das i", "foo-ba", "Hun", "der ", ""]
    wishes = [Wishes(tok).of(Request("", prefix=prefix)) for prefix in prefixes]
    assert [bool(wish.capitals) for wish in wishes] == [True, True, True, False, False, False]
    marks = [Wishes(tok).spellings.ids[mark] for mark in "⇧⇪"]
    rules = Restrictions(BeamConfig(), torch.ones(len(prefixes), 1, dtype=torch.bool), wishes)

    def may_follow(prefix: str, behind: str) -> bool:
        ids = torch.tensor(tok.encode_tgt([prefix + behind])[0][:-1])[None, None]
        number = torch.tensor([prefixes.index(prefix)])
        return bool((rules(torch.zeros(1, 1, tok.tgt_vocab_size), ids, number)[0, 0, marks] == 0).all())

    assert not any(may_follow(*case) for case in [("bel", ""), ("bel", "lt"), ("das i", ""), ("foo-ba", "r")])
    assert all(may_follow(*case) for case in [("bel", " der"), ("bel", "lt-b"), ("Hun", "d"), ("", "der")])


def test_a_prefix_in_small_letters_may_go_on_with_capitals_that_leave_it_as_it_is() -> None:
    lines = ["das iPhone", "iPHONE mRNA", "h2Os USA Das DAS", "dasUndDas"] * 5
    tok = Tokenizer.train(
        TokenizerConfig(kind=TokenizerKind.char, vocab_size=60, case=Case.markup), ParallelText(lines, lines)
    )

    def allows(prefix: str, text: str) -> bool:
        """Whether the rules for a prefix let each token of a text follow those before it."""
        wish, (ids,) = Wishes(tok).of(Request("", prefix=prefix)), tok.encode_tgt([text])
        rules = Restrictions(BeamConfig(), torch.ones(1, 1, dtype=torch.bool), [wish])
        first, before = torch.tensor([0]), torch.tensor(ids)[None, None]
        found = (
            rules(torch.zeros(1, 1, tok.tgt_vocab_size), before[:, :, :place], first)[0, 0, token]
            for place, token in enumerate(ids)
        )
        return all(one == 0 for one in found)

    assert tok.decode(tok.encode_tgt(["das iPhone mRNA"])[0]) == "das iPhone mRNA"
    for prefix, text in [("das i", "das iPhone"), ("i", "iPHONE"), ("m", "mRNA"), ("h", "h2Os")]:
        assert allows(prefix, text), text
    assert allows("das", "das Das DAS")
    assert allows("das", "dasUndDas")
    assert not any(allows("das", text) for text in ["Das", "DAS", "DASs", "Dass"])


def test_behind_its_beginning_a_sentence_costs_the_columns_of_the_marks_alone() -> None:
    small = Wish([5], [{6: 1}], capitals=[7], letters=[6, 8])
    rules = Restrictions(BeamConfig(), torch.ones(2, 1, dtype=torch.bool), [small, Wish()])
    log_probs, ids = torch.zeros(2, 2, 10), torch.tensor([[[5, 6, 8], [5, 6, 9]]] * 2)
    assert rules(log_probs, ids, torch.tensor([0, 1])) is log_probs
    assert (log_probs == -torch.inf).nonzero().tolist() == [[0, 0, 7]]


def test_a_phrase_is_avoided_however_it_is_spelt(subwords: Tokenizer) -> None:
    wishes = Wishes(subwords, ["Hund"])
    avoided = wishes.of(Request("", avoid=["über die"])).avoid
    for ids in avoided:
        assert subwords.decode([token for token in ids if token != EDGE]) in ("Hund", "über die")
    assert subwords.encode_tgt(["Hund"])[0][:-1] in avoided
    assert [EDGE, *(wishes.spellings.ids[letter] for letter in "Hund")] in avoided  # without a space
    assert len({tuple(ids) for ids in avoided}) == len(avoided)


@pytest.mark.parametrize("is_turned", [False, True])
def test_a_sign_is_spelt_with_a_space_and_without(*, is_turned: bool) -> None:
    lines = ["Halt! Wer da?", "ein T-Shirt, zwei T-Shirts", "(Rom)"]
    text = ParallelText(lines * 5, lines * 5)
    cfg = TokenizerConfig(kind=TokenizerKind.char, vocab_size=60, right_to_left=is_turned)
    wishes = Wishes(Tokenizer.train(cfg, text))
    spelt = wishes.spellings.ids
    sign, space, turn = spelt["!"], spelt["▁"], -1 if is_turned else 1
    assert wishes.of(Request("", must=["!"])).must == [[[space, sign][::turn], [sign]]]
    assert wishes.of(Request("", avoid=["!"])).avoid == [[space, sign][::turn], [sign]]
    letters = [spelt[letter] for letter in "Shirt"][::turn]
    assert wishes.of(Request("", must=["Shirt"])).must == [
        [[space, *letters][::1] if turn == 1 else [*letters, space]]
    ]
    behind = [*letters, EOS_ID] if is_turned else [EDGE, *letters]
    assert behind in wishes.of(Request("", avoid=["Shirt"])).avoid


def test_longer_pieces_that_have_what_is_to_avoid_are_avoided() -> None:
    words = ["Rom.", "T-Shirt", "Shirts", "s."]
    text = ParallelText([" ".join(words)], [" ".join(words)])
    wishes = Wishes(Tokenizer.train(TokenizerConfig(kind=TokenizerKind.word, vocab_size=20), text))
    spelt = wishes.spellings.ids
    assert [spelt["▁T-Shirt"]] in wishes.of(Request("", avoid=["Shirt"])).avoid
    assert [spelt["▁Shirts"]] not in wishes.of(Request("", avoid=["Shirt"])).avoid
    assert [[spelt["▁Rom."]], [spelt["▁s."]]] == wishes.of(Request("", avoid=["."])).avoid


def test_phrases_of_a_model_from_right_to_left_are_turned_and_prefixes_refused() -> None:
    turned = Wishes(tokenizer(TokenizerKind.bpe, right_to_left=True))
    plain = Wishes(tokenizer(TokenizerKind.bpe))
    request = Request("", must=["im Schnee"], avoid=["Hund"])
    assert [[ids[::-1]] for [ids] in turned.of(request).must] == plain.of(request).must
    ends = [[EDGE if token == EOS_ID else token for token in ids] for ids in turned.of(request).avoid]
    assert [ids[::-1] for ids in ends] == plain.of(request).avoid
    with pytest.raises(UserError, match="the run predicts from right to left"):
        turned.of(Request("", prefix="ein"))


def test_what_a_translation_lacks_is_named(bpe: Tokenizer) -> None:
    wishes = Wishes(bpe, ["Rom"])
    request = Request("", prefix="ein Ma", must=["Pferd", "☃"], avoid=["Hund"])
    assert [bpe.decode(ids) for [ids] in wishes.of(request).must] == ["Pferd"]  # the other cannot be spelt
    assert wishes.unmet(request, "ein Mann auf einem Pferd") == ["☃"]
    assert wishes.unmet(request, "ein Mann, Hunde und Pferde") == ["Pferd", "☃"]
    assert wishes.unmet(request, "Rom: (Hund) Pferd ☃") == ["ein Ma", "Rom", "Hund"]
    assert wishes.unmet(Request(""), "nach Romanshorn") == []


def test_scripts_without_spaces_have_no_ends_of_words() -> None:
    lines = ["我爱北京", "北京很大", "大家好"]
    chars = Tokenizer.train(
        TokenizerConfig(kind=TokenizerKind.char, vocab_size=30), ParallelText(lines * 5, lines * 5)
    )
    wishes, request = Wishes(chars), Request("", must=["北京"], avoid=["很大"])
    wish = wishes.of(request)
    (ids,) = chars.encode_tgt(["我爱北京很大"])
    assert wish.must == [[ids[3:5]]]  # without the space in front of a line
    assert wish.avoid == [ids[5:7]]
    assert not wish.word_parts
    assert wishes.unmet(request, "我爱北京很大") == ["很大"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a", r'line 3 is no JSON; a line is an object such as \{"src": "A dog."\}'),
        ("[" * 100_000, "line 3 is no JSON"),
        ("[1]", r'line 3 is no object with a text "src"'),
        ('{"src": null}', r'line 3 is no object with a text "src"'),
        ('{"src": "a", "prefx": "b"}', r"line 3 has the unknown key 'prefx'.*prefix"),
        ('{"src": "a", "prefix": 1}', "line 3: prefix must be a text, but is 1"),
        ('{"src": "a", "must": "b"}', 'line 3: must must be a list of words or phrases, but is "b"'),
        ('{"src": "a", "avoid": ["b", " "]}', "line 3: avoid: one of the words or phrases is blank"),
    ],
)
def test_a_line_of_json_that_is_no_request_is_refused(line: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Request.from_json(line, "line 3")


def test_a_line_of_json_is_a_request() -> None:
    line = '{"src": "a dog", "prefix": "ein", "must": ["Hund"], "avoid": ["Katze"]}'
    assert Request.from_json(line, "line 1") == Request("a dog", "ein", ["Hund"], ["Katze"])


def test_a_prefix_follows_a_tab() -> None:
    assert Request.from_pair("a dog\tein H", "line 1") == Request("a dog", "ein H")
    with pytest.raises(UserError, match="line 2 has no TAB; with prefixes=true a line is SOURCE TAB PREFIX"):
        Request.from_pair("a dog", "line 2")


def test_a_glossary_is_for_whole_words_and_the_longest_term(tmp_path: Path) -> None:
    file = tmp_path / "terms.tsv"
    file.write_text("dog\tHund\nhot dog\tWürstchen\n\nC++\tC++\n犬\tHund\n", encoding="utf-8")
    glossary = Glossary.read(file)
    assert glossary.applied(Request("a hot dog, dogs", must=["und"]), GlossaryUse.constrain).must == [
        "und",
        "Würstchen",
    ]
    assert glossary.applied(Request("a dog and a dog"), GlossaryUse.constrain).must == ["Hund"]
    assert glossary.applied(Request("in C++."), GlossaryUse.constrain).must == ["C++"]
    assert glossary.applied(Request("小犬です"), GlossaryUse.constrain).must == ["Hund"]
    assert glossary.applied(Request("dogma"), GlossaryUse.constrain).must == []


@pytest.mark.parametrize(
    ("term", "text", "is_found"),
    [
        ("कम", "यह कमाल है", False),  # a vowel sign goes on with the word
        ("कम", "यह कम है", True),
        ("चाहे", "चाहे वह", True),
        ("cafe", "un cafe\u0301", False),
    ],
)
def test_combining_marks_are_of_the_word(term: str, text: str, is_found: bool) -> None:
    assert [span.translation for span in Glossary({term: "x"}).spans(text)] == ["x"] * is_found


@pytest.mark.parametrize("nothing", ["\u200b", "\ufeff"])
def test_a_phrase_of_nothing_asks_for_nothing(bpe: Tokenizer, nothing: str) -> None:
    wish = Wishes(bpe, [nothing]).of(Request("a dog", nothing, [nothing], [nothing]))
    assert (wish.prefix, wish.rest, wish.must, wish.avoid) == ([], [], [], [])


def test_a_term_in_small_letters_is_found_in_any_case_and_one_with_capitals_as_it_is() -> None:
    glossary = Glossary({"dog": "Hund", "US": "USA", "hot dog": "Wurst"})
    assert [span.translation for span in glossary.spans("Dog of the US, not us; a HOT DOG")] == [
        "Hund",
        "USA",
        "Wurst",
    ]


@pytest.mark.parametrize(
    ("term", "text"),
    [
        ("cafe\u0301", "the café."),
        ("café", "the Cafe\u0301."),
        ("ल\u095cका", "the ल\u095cका."),
        ("\ufa19社", "no \ufa19社"),
        ("café résumé", "the café re\u0301sume\u0301."),
        ("ice cream", "no ice\u00a0cream"),
        ("ice  cream", "no ICE   cream"),
        ("Ice\u00a0Cream", "no Ice Cream"),
        ("οδος", "no ΟΔΟΣ"),
        ("\u1e96", "the H\u0331."),
    ],
)
def test_a_term_is_found_however_its_characters_and_spaces_are_written(term: str, text: str) -> None:
    (span,) = Glossary({term: "x"}).spans(text)
    assert text[: span.start] in ("the ", "no ")
    assert text[span.end :] in (".", "")


def test_of_terms_that_overlap_the_first_counts_and_the_longest_of_those_that_begin_together() -> None:
    glossary = Glossary({"dog show stand": "Stand", "hot": "heiß", "hot dog": "Wurst", "Hot Dog": "Hotdog"})
    asked = glossary.spans("a hot dog show stand, hot Dog  show stand; Hot Dog")
    assert [span.translation for span in asked] == ["Wurst", "Wurst", "Hotdog"]
    own = {"hot dog show": "Schau", "HOT": "x", "dog show stand": "y"}
    for src, wanted in (("a hot dog show stand", "Schau"), ("a HOT dog", "Wurst"), ("dog show stand", "y")):
        asked_for = glossary.applied(Request(src, terms=own), GlossaryUse.constrain)
        assert asked_for.must == [wanted]


def by_pattern(terms: dict[str, str], text: str) -> list[tuple[int, int, str]]:
    """Return the places of terms, and their translations, found by a regular expression alone."""

    def whole(form: str) -> str:
        before = f"(?<![{IN_WORD}])" if re.match(f"(?![{NO_SPACES}])[{IN_WORD}]", form[0]) else ""
        after = f"(?![{IN_WORD}])" if re.match(f"(?![{NO_SPACES}])[{IN_WORD}]", form[-1]) else ""
        return before + re.escape(form) + after

    patterns = []
    for term in sorted(terms, key=lambda term: (-len(term), term == term.lower())):
        words = [dict.fromkeys(normalize(form, word) for form in ("NFC", "NFD")) for word in term.split()]
        pattern = r"\s+".join(f"(?:{'|'.join(map(whole, several))})" for several in words)
        patterns.append((f"(?i:{pattern})" if term == term.lower() else pattern, terms[term]))
    any_of = "|".join(f"({pattern})" for pattern, _ in patterns)
    return [
        (found.start(), found.end(), patterns[(found.lastindex or 0) - 1][1])
        for found in re.finditer(any_of, text)
    ]


def test_terms_are_found_as_a_pattern_of_them_all_finds_them() -> None:
    rng = random.Random(1)
    signs = ["a", "b", "ab", "é", "e\u0301", "AB", "ß", *"犬がか", "\u3099", "कि", "ก่", "+", "\u200d"]
    spaced = [*signs, " ", " ", " ", "  ", "\u00a0"]

    def word() -> str:
        return "".join(rng.choices(signs, k=rng.randint(1, 2)))

    for _ in range(2):
        several = [word() if number % 2 else f"{word()} {word()}" for number in range(24)]
        terms = {normalize("NFC", term): str(number) for number, term in enumerate(several)}
        glossary = Glossary(terms)
        text = "".join(rng.choices(spaced, k=6000))
        wanted = by_pattern(terms, text)
        assert [tuple(span) for span in glossary.spans(text)] == wanted
        assert len(wanted) > 100


def test_a_large_glossary_is_read_and_looked_through_in_no_time() -> None:
    """Ten thousand terms took half a minute as one pattern, and those of a line made it anew."""
    glossary = Glossary({f"term{number} of": str(number) for number in range(10_000)})
    asked = Request("a term7 of many", terms={"many": "viele"})
    begun = process_time()
    for _ in range(100):
        assert glossary.applied(asked, GlossaryUse.constrain).must == ["7", "viele"]
    assert process_time() - begun < 1


def test_a_blank_term_is_refused() -> None:
    with pytest.raises(UserError, match="glossary: ' ' or its translation 'x' is no text, or blank"):
        Glossary({" ": "x"})
    assert [span.translation for span in Glossary({"|": "x"}).spans("a | b")] == ["x"]


def test_terms_are_offered_in_the_source_enforced_or_both() -> None:
    glossary, asked = Glossary({"dog": "Hund|Köter"}), Request("a Dog, a cat", terms={"cat": "Katze"})
    offered = glossary.applied(asked, GlossaryUse.annotate)
    assert offered.src == "a Dog <term> Hund </term>, a cat <term> Katze </term>"
    assert (offered.must, offered.due, offered.terms) == ([], ["Hund|Köter", "Katze"], {})
    assert glossary.applied(offered, GlossaryUse.annotate) == offered
    both = glossary.applied(asked, GlossaryUse.both)
    assert (both.src, both.must) == (offered.src, ["Hund", "Katze"])
    assert glossary.applied(asked, GlossaryUse.constrain).src == asked.src
    assert glossary.applied(Request("x"), GlossaryUse.annotate) == Request("x")


def test_a_term_that_is_due_is_unmet_unless_one_of_its_translations_is_there(bpe: Tokenizer) -> None:
    wishes, asked = Wishes(bpe), Request("a dog", due=["Hund|Köter"])
    assert wishes.unmet(asked, "ein Köter") == []
    assert wishes.unmet(asked, "eine Katze") == ["Hund|Köter"]
    assert wishes.unmet(replace(asked, must=["Hund"]), "eine Katze") == ["Hund"]
    with pytest.raises(UserError, match=r"line 1: terms must be an object of texts, such as \{.dog"):
        Request.from_json('{"src": "a", "terms": ["x"]}', "line 1")
    with pytest.raises(UserError, match="line 1: terms: one of the terms or translations is blank"):
        Request.from_json('{"src": "a", "terms": {"x": "|"}}', "line 1")
    with pytest.raises(UserError, match="line 1 has the unknown key 'due'"):
        Request.from_json('{"src": "a", "due": ["x"]}', "line 1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dog\n", "glossary: line 1 of .*terms.tsv is not SOURCE TERM, TAB, TARGET TERM"),
        ("dog\tHund\tx\n", "glossary: line 1 of"),
        (
            "dog\tHund\ndog\tKöter\n",
            "line 2 of .* translates 'dog' again, by 'Köter' and not 'Hund'; keep one",
        ),
    ],
)
def test_a_glossary_that_is_none_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "terms.tsv"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        Glossary.read(file)


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"must": ["a", " "]}, "must: one of the words or phrases is blank"),
        ({"avoid": [""]}, "avoid: one of the words or phrases is blank"),
        ({"must": "Hund"}, 'must must be a list of words or phrases, but is "Hund"'),
        ({"must": [5]}, r"must must be a list of words or phrases, but is \[5\]"),
        ({"prefix": None}, "prefix must be a text, but is null"),
        (
            {"terms": {"dog": 5}},
            'terms must be an object of texts, such as {"dog": "Hund"}, but is {"dog": 5}',
        ),
        ({"avoid": ["a\0"]}, "'a.x00' has a NUL character, which no text has; remove it"),
        ({"prefix": "a\ud83d"}, "'a.ud83d' has half of a surrogate pair, which is no character"),
    ],
)
def test_what_cannot_be_asked_for(wishes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Request("a", **wishes)
    with pytest.raises(UserError, match="line 3: "):
        Request.from_json(json.dumps({"src": "a", **wishes}), "line 3")


def test_the_spellings_of_a_long_phrase_are_the_shortest() -> None:
    spellings = Spellings(enumerate(["a", "aa", "aaa"]))
    found = spellings.of("a" * 3000, 64)
    assert len(found) == 64
    assert [len(ids) for ids in found] == [1000, *[1001] * 63]
    assert spellings.of("aab", 64) == []
