"""Each fixer of pairs: what it repairs, and what it leaves alone because some language needs it."""

from __future__ import annotations

from pathlib import Path
from time import process_time

import pytest

from nmt import extras
from nmt.data.fixer_table import FIXERS, parsed
from nmt.data.parallel_text import ParallelText
from nmt.data.text import fixers
from nmt.data.text.fixers import opened
from nmt.errors import UserError

ROOT = Path(__file__).resolve().parents[3]

CASES = [
    ("html_entities", "a &amp; b &#39;c&#x27; &quot;d&QUOT; &eacute;", "a & b 'c' \"d\" é"),
    ("html_entities", "&amp;amp;lt; & quot ;a& quot ; &# 39 ;", '< "a" \''),
    ("html_entities", "one&#10;line &nbsp;and", "one line \xa0and"),
    ("html_entities", "AT&T; Q&A; ?a=1&copy=2 &unknown; R & D;", None),
    ("html_tags", "a <b>b</b>c <a href='x y' id=1>d</a><!-- e -->", "a bc d"),
    ("html_tags", "<p>a<br/>b <BR> c</p>", "a b c"),
    (
        "html_tags",
        "<!DOCTYPE html><option selected>a</option> <a href=x?i=1>b</a><!-- a > <b>b</b> -->",
        "a b",
    ),
    ("html_tags", 'a <img src="a>b.png" hidden/> b', "a b"),
    ("html_tags", "List<Object> <Del> <Address> std::vector<a> 1<a>2 a<i>=<b>", None),
    ("html_tags", "a<b and c>d <num> <2de> <s@t.de> x < y > z", None),
    ("invisible", "\ufeffa\u200bb\xadc\u2060d\x07e\x9ff", "abcdef"),
    ("invisible", "a\x85b\u2028c\x0cd\re", "a b c d e"),
    ("invisible", "a\u200e b\u202c", "a b"),
    ("invisible", "שלום\u200f (b)", None),
    ("invisible", "می\u200cخواهم क्\u200dष ក\u200bខ a\tb 👩\u200d💻 é\ufe0f", None),
    ("nfc", "u\u0308ber", "über"),
    ("nfc", "ﬁ ２ क्ष", None),
    ("spaces", "  a\u2009b \t c\xa0\xa0d\xa0 e \u200a", "a b c\xa0d e"),
    ("spaces", "mot\xa0! 10\u202f000 東京\u3000大阪", None),
]
PAIRS = [
    ("- Yes.", "Oui.", "Yes.", "Oui."),
    ("•a", "¿b?", "a", "¿b?"),
    ("a", "3) b", "a", "b"),
    ("a", "(3) b", "a", "(3) b"),
    ("- Yes.", "– Oui.", "- Yes.", "– Oui."),
    ("- Yes. - No.", "Oui.", "- Yes. - No.", "Oui."),
    ("a) the budget", "a)预算", "a) the budget", "a)预算"),
    ("1) Remarks", "一、总则", "1) Remarks", "一、总则"),
    ("b) The report", "ب- التقرير", "b) The report", "ب- التقرير"),
    ("8) General", "VIII. Allgemeines", "8) General", "VIII. Allgemeines"),
    ("— Oui, dit-il.", 'He said: "Yes."', "— Oui, dit-il.", 'He said: "Yes."'),
    ("(C) Acme", "Copyright Acme", "(C) Acme", "Copyright Acme"),
    ("- a = b", "minus a equals b", "- a = b", "minus a equals b"),
    ("A) Yes B) No", "Ja", "A) Yes B) No", "Ja"),
    ("— Yes.", "“Oui”", "— Yes.", "“Oui”"),
    ("a) first", "a. erstens", "a) first", "a. erstens"),
    ("1. Mai", "May 1", "1. Mai", "May 1"),
    ("- 5 Grad", "five degrees", "- 5 Grad", "five degrees"),
]


def test_every_fixer_has_a_case_and_a_row_in_the_docs() -> None:
    assert FIXERS.keys() == {name for name, _, _ in CASES} | {"list_marks", "mojibake"}  # tested below
    page = (ROOT / "docs/fixers.md").read_text(encoding="utf-8")
    assert [name for name in FIXERS if f"\n| `{name}` |" not in page] == []


@pytest.mark.parametrize(("name", "line", "expected"), CASES)
def test_a_fixer_repairs_a_line(name: str, line: str, expected: str | None) -> None:
    (fix,) = opened(parsed("data.fixers", [name]))
    after = line if expected is None else expected
    once = fix(ParallelText([line], ["good"], weights=[0.5]))
    assert (once.src, once.tgt, once.weights) == ([after], ["good"], [0.5])
    assert fix(once) == once


@pytest.mark.parametrize(("src", "tgt", "fixed_src", "fixed_tgt"), PAIRS)
def test_a_mark_that_one_side_alone_begins_with_is_removed(
    src: str, tgt: str, fixed_src: str, fixed_tgt: str
) -> None:
    (fix,) = opened(parsed("data.fixers", ["list_marks"]))
    both = fix(ParallelText([src, tgt], [tgt, src]))
    assert both == ParallelText([fixed_src, fixed_tgt], [fixed_tgt, fixed_src])


def test_hostile_lines_take_no_time() -> None:
    every = opened(parsed("data.fixers", [name for name in FIXERS if name != "mojibake"]))
    for part in ("&amp;", "amp;", "<a ", "<a x=1 ", "<!-- ", "<", " ", "\t ", "\u200b", "- ", "• "):
        line = f"&<{part * 20_000}"
        for fix in every:
            begun = process_time()
            fix(ParallelText([line], ["a"]))
            assert process_time() - begun < 1


def test_text_of_the_wrong_encoding_is_read_again() -> None:
    pytest.importorskip("ftfy", reason="the extra `mojibake` is not installed")
    (fix,) = opened(parsed("data.fixers", ["mojibake"]))
    text = ParallelText(["schÃ¶n â€œaâ€\x9d", "schön “a” Ã Â"], ["a", "l’été"])
    assert fix(text) == ParallelText(["schön “a”", "schön “a” Ã Â"], ["a", "l’été"])


def test_the_library_for_encodings_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(extras.EXTRAS, "mojibake", extras.Extra(("ftfy",), "a test", ("no_such_module",)))
    rows = parsed("data.fixers", ["mojibake"])
    for needs in (opened, fixers.stamp):
        with pytest.raises(UserError, match="the fixer mojibake needs ftfy: pip install 'nmt\\[mojibake\\]'"):
            needs(rows)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (
            ["html_entity"],
            "data.fixers[0].name must be one of mojibake, html_entities, .*'html_entities'",
        ),
        (["nfc", {"name": "spaces", "min": 1}], "unknown key data.fixers[1].min"),
        ("nfc", "data.fixers must be a list, such as [{name: mojibake}], but is 'nfc'"),
    ],
)
def test_a_bad_row_is_refused(entries: object, message: str) -> None:
    with pytest.raises(UserError, match=message.replace("[", "\\[").replace("]", "\\]")):
        parsed("data.fixers", entries)
