"""Lower-casing and the removal of punctuation, before anything is tokenised."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.data.tokens.tokenizer_training import TokenizerConfig, prepare_lines


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("The CAT", "the cat"),
        ("ÉTÉ Œuvre STRASSE Straße", "été œuvre strasse straße"),
        ("ΟΔΟΣ ΣΟΦΟΣ", "οδος σοφος"),  # the small sigma at the end of a word is another letter
        ("don't! red/blue", "don't! red/blue"),
    ],
)
def test_lower_casing(line: str, expected: str) -> None:
    assert prepare_lines(TokenizerConfig(lowercase=True), [line]) == [expected]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("Hello, world!", ["Hello", "world"]),
        ("I don't, and he doesn’t.", ["I", "dont", "and", "he", "doesnt"]),
        ("red/blue, well-known", ["red", "blue", "well", "known"]),
        ("Wait...what?--No", ["Wait", "what", "No"]),
        ("« L’été », dit-il", ["Lété", "dit", "il"]),
        ("„Straße“ (50%) _x_ @me #1", ["Straße", "50", "x", "me", "1"]),
        ("¿Qué? 你好，世界。", ["Qué", "你好", "世界"]),
        ("3.5 + 2 = 5 € ^ `", ["3", "5", "+", "2", "=", "5", "€", "^", "`"]),  # symbols are no punctuation
        ("?! ... '", []),
    ],
)
def test_punctuation_leaves_words_apart(line: str, words: list[str]) -> None:
    [ready] = prepare_lines(TokenizerConfig(strip_punctuation=True), [line])
    assert ready.split() == words


@given(st.lists(st.text(max_size=30), max_size=5), st.booleans(), st.booleans())
def test_lines_stay_lines_and_nothing_else_is_touched(lines: list[str], lowercase: bool, strip: bool) -> None:
    ready = prepare_lines(TokenizerConfig(lowercase=lowercase, strip_punctuation=strip), lines)
    assert len(ready) == len(lines)
    if not lowercase and not strip:
        assert ready == lines
    if strip:
        letters = [[c for c in line if not is_punctuation(c) and c != " "] for line in lines]
        expected = ["".join(line).lower() if lowercase else "".join(line) for line in letters]
        if not any("Σ" in line for line in lines):  # whose small form depends on its neighbours
            assert [line.replace(" ", "") for line in ready] == expected
        assert not any(is_punctuation(c) for line in ready for c in line)


def is_punctuation(character: str) -> bool:
    return unicodedata.category(character)[0] == "P"
