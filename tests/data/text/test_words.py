"""Words of all scripts: where they begin and end."""

from __future__ import annotations

import unicodedata

import pytest

from nmt.data.text.words import counted_words, is_in_word, is_without_spaces, words_and_signs


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("कुत्ता सोता है।", ["कुत्ता", "सोता", "है", "।"]),
        ("לְכֶלֶב טוֹב", ["לְכֶלֶב", "טוֹב"]),
        (unicodedata.normalize("NFD", "l'école, été"), ["l'e\u0301cole", ",", "e\u0301te\u0301"]),
        ("می\u200cروم", ["می\u200cروم"]),
        ("don't well-known", ["don't", "well-known"]),
        ("ที่ ABC我", ["ที่", "ABC", "我"]),
    ],
)
def test_marks_and_joiners_are_of_the_letter_before_them(text: str, expected: list[str]) -> None:
    assert words_and_signs("'-").findall(text) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("don't \u2013 well-known, été\u3000x\x1cy", ["don't", "\u2013", "well-known,", "été", "x", "y"]),
        ("我有 iPhone手机。", ["我", "有", "iPhone", "手", "机", "。"]),
        ("か\u3099 \u3000 本", ["か\u3099", "本"]),
        ("ฉันอยากเรียน ABC", ["ฉันอ", "ยาก", "เรีย", "น", "ABC"]),
        ("한국어 문장", ["한국어", "문장"]),
        (" ", []),
    ],
)
def test_words_are_counted_also_where_no_spaces_part_them(line: str, expected: list[str]) -> None:
    assert counted_words(line) == expected


def test_what_words_consist_of() -> None:
    assert all(map(is_in_word, "a9_é\u0301\u093e我"))
    assert not any(map(is_in_word, ["", " ", "-", "।"]))
    assert is_without_spaces("我 a")
    assert not is_without_spaces("a 我")
