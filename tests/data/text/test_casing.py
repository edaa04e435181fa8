"""Inline case loses nothing: on real text, on the oddities of Unicode, and with NFKC in between."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.data.text.casing import MARKS, marked, restored, restored_parts

ODD = (
    "AaBbßẞſİıiIǅǄǆΣσςﬁﬀⅧⓐⒶKÅµΜμ⇧⇪␟␛\u0301\u0331\u030c\u0308\u0345"
    "ᾳᾼΐϴΘЁёГг中あÀàÇçŀŉ①℃™ª\u00ad\u200b\U0001d18b𐐀𐐨𝐀𝐚Ａａﾞ .1_-'"
)
SHARED = Path(__file__).parents[4] / "shared" / "data"


def nfkc(text: str) -> str:
    return unicodedata.normalize("NFKC", text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello HELLO hello I", "hello⇧ hello⇪ hello i⇧"),
        ("STRAßE Straße Äpfel ÄPFEL", "straße⇪ straße⇧ äpfel⇧ äpfel⇪"),
        ("İstanbul ISPARTA ılık ǅ Ǆ", "İstanbul isparta⇪ ılık ǅ Ǆ"),
        ("McDonald GPUs iPhone AT&T O'Neill A5", "mc⇧donald⇧ gpu⇪s i␟phone⇧ at⇪&t⇧ o⇧'neill⇧ a⇧5"),
        ("ΟΔΟΣ Οδός Ёлка", "οδοσ⇪ οδός⇧ ёлка⇧"),
        ("press ⇧ or ␛A", "press ␛⇧ or ␛␛a⇧"),
    ],
)
def test_capitals_become_marks(text: str, expected: str) -> None:
    assert marked([text]) == [expected]
    assert restored(expected) == text


@given(st.text(st.one_of(st.sampled_from(ODD), st.characters()), max_size=12))
def test_nothing_is_lost(text: str) -> None:
    (made,) = marked([text])
    assert restored(made) == text
    assert restored(nfkc(made)) == nfkc(text)


@given(st.text(st.one_of(st.sampled_from("".join(MARKS) + "aAß "), st.characters()), max_size=12))
def test_marks_where_none_belong_are_no_error(text: str) -> None:
    """A model may predict anything; the parts of a line restore to the line."""
    line = restored(text)
    assert "".join(restored_parts([*text])) == line
    assert restored_parts([text, ""]) == [line, ""]


@pytest.mark.parametrize(
    ("line", "expected"), [("␛ a", " a"), ("a␛", "a"), ("␛␛b", "␛b"), ("␛⇧b", "⇧b"), ("a⇧␛", "A")]
)
def test_no_mark_of_a_model_reaches_a_reader(line: str, expected: str) -> None:
    assert restored(line) == expected


@pytest.mark.parametrize("name", ["multi30k/val.jsonl", "multi30k_fr/val.jsonl", "wmt22/test.jsonl"])
def test_real_text_comes_back(name: str) -> None:
    if not (SHARED / name).is_file():
        pytest.skip(f"the data {name} is not here")
    lines = (SHARED / name).read_text(encoding="utf-8").splitlines()
    made = marked(lines)
    assert [restored(line) for line in made] == lines
    assert [restored(nfkc(line)) for line in made] == [nfkc(line) for line in lines]
    assert not any(char.isupper() and char.isascii() for line in made for char in line)
