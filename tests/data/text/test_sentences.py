"""Text to sentences: scripts, abbreviations, numbers, quotes; parts that are short enough."""

from __future__ import annotations

import pytest

from nmt.data.text.sentences import joined, parts, sentences


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        ("en", ["Dr. Smith met J. R. Brown.", 'He said: "Go!"', "It cost 3.5 dollars.", "Why?"]),
        ("en", ["The U.S. army came... and went.", "See Fig. 3.", "She works at Acme Inc.", "He too."]),
        ("en", ["He is 5.", "She is 7."]),
        ("de", ["Am 3. Mai kam z. B. Herr Müller.", "„Ja!“", "Er ging um 5 Uhr."]),
        ("deu_Latn", ["Das ist der 3. Mai."]),
        ("fr", ["M. Dupont est là.", "« Oui. »", "Il part."]),
        ("es", ["¿Qué es?", "¡Un perro!"]),
        ("ru", ["Это А. С. Пушкин.", "Он поэт."]),
        ("hi", ["यह एक कुत्ता है।", "वह बड़ा है।"]),
        ("ar", ["هل هذا كلب؟", "نعم هذا كلب."]),
    ],
)
def test_a_text_of_sentences_is_split_where_they_end(language: str, expected: list[str]) -> None:
    assert sentences(" ".join(expected), language) == expected


@pytest.mark.parametrize(
    "expected",
    [
        ["今天天气很好。", "我们去公园吧！", "你说：“好。”", "是的"],
        ["犬がいる。", "「はい。」", "彼は言った。"],
        ["「はい。」と彼は言った。", "『え？』って何。"],
        ["「はい。」", "とても嬉しい。", "「行く。」", "ところで、君は？"],
        ["長さは３．５ｍです．", "次は２．"],
    ],
)
def test_no_space_is_needed_where_a_script_has_none(expected: list[str]) -> None:
    assert sentences("".join(expected)) == expected
    assert joined(expected) == "".join(expected)


@pytest.mark.parametrize("text", ["แมวดำ วิ่งเร็ว ไปบ้าน", "ឆ្មាខ្មៅ។ វារត់។", "ကြောင်။ ပြေးသည်။"])
def test_spaces_between_clauses_and_sentences_of_other_scripts_are_kept(text: str) -> None:
    assert joined(parts(text, lambda part: len(part) <= 10)) == text


def test_a_sentence_that_is_too_long_is_divided_at_clauses_then_words_then_anywhere() -> None:
    text = "one two, three four; five six seven eight nine ten. ok then"
    found = parts(text, lambda part: len(part) <= 15)
    assert found == ["one two,", "three four;", "five six seven", "eight nine ten.", "ok then"]
    assert joined(found) == text
    assert "".join(parts("x" * 40, lambda part: len(part) <= 15)) == "x" * 40


def test_nothing_gives_nothing_and_a_long_text_takes_little_time() -> None:
    assert sentences("  ") == []
    assert len(sentences("A dog. " * 50_000)) == 50_000
    assert sentences(f"Chapter 1 {'.' * 50_000}12") == [f"Chapter 1 {'.' * 50_000}12"]
    assert sentences(f"Stop{'!' * 50_000} Go{'?' * 50_000}") == [f"Stop{'!' * 50_000}", f"Go{'?' * 50_000}"]
