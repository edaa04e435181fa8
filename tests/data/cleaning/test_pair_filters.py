"""Each filter of pairs: what it keeps, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nmt.data.cleaning.pair_filters import Context, NumberedText
from nmt.data.filter_table import FILTERS, parsed
from nmt.data.parallel_text import ParallelText
from nmt.errors import UserError
from nmt.loading import loaded

ROOT = Path(__file__).resolve().parents[3]

Pairs = list[tuple[str, str]]
CHINESE = ("The weather in the mountains was very good that day.", "那天山里的天气很好。")
THAI = ("I would like to learn how to cook with my mother.", "ฉันอยากเรียนทำอาหารกับแม่ของฉัน")
LONG_EN = "The weather in the mountains was very good on that day."
LONG_DE = "Das Wetter in den Bergen war an diesem Tag sehr gut."


def kept(entry: dict[str, Any], pairs: Pairs, **context: Any) -> list[int]:
    """Return the numbers of the pairs that a filter keeps."""
    (row,) = parsed("data.filters", [entry])
    text = NumberedText([a for a, _ in pairs], [b for _, b in pairs], numbers=np.arange(len(pairs)))
    one = loaded(FILTERS[row.name].code)(row, Context(**{"languages": ("en", "de"), **context}))
    found: list[int] = np.flatnonzero(one.accept(one.values(text))).tolist()
    return found


CASES: list[tuple[dict[str, Any], Pairs, list[int]]] = [
    ({"name": "length", "min": 2, "max": 3}, [("ab", "abc"), ("a", "ab"), ("ab", "abcd")], [0]),
    ({"name": "length", "unit": "words", "sides": "tgt", "max": 2}, [("a b c", "a b"), ("a", "a b c")], [0]),
    ({"name": "ratio", "max": 2, "short": 3}, [("a", "abc"), ("ab", "abcd"), ("a", "abcd")], [0, 1]),
    ({"name": "length", "unit": "words", "min": 8, "max": 12}, [CHINESE, THAI, ("a b c", "我有书")], [0, 1]),
    ({"name": "ratio", "unit": "words", "short": 0}, [CHINESE, THAI, (CHINESE[0], "天气")], [0, 1]),
    ({"name": "word_length", "max": 9}, [CHINESE, THAI, ("a", "x" * 10)], [0, 1]),
    ({"name": "word_length", "max": 3}, [("abc ab", "abc"), ("abcd", "a")], [0]),
    ({"name": "characters"}, [("a dog", "ein Hund"), ("a dog", "--- 12"), ("a\x07dog", "Hund")], [0]),
    ({"name": "characters", "letters": 0, "digits": 0.5}, [("a1", "a1"), ("a", "a11")], [0]),
    ({"name": "script"}, [("a dog", "ein Hund"), ("собака", "ein Hund"), ("12", "34")], [0, 2]),
    ({"name": "script", "src": "cyrillic"}, [("a dog", "Hund"), ("собака", "Hund")], [1]),
    ({"name": "identical"}, [("Berlin", "Berlin "), ("a", "b"), ("A.", "a")], [1, 2]),
    ({"name": "identical", "normalise": True, "short": 2}, [("Berlin", "berlin!"), ("A.", "a")], [1]),
    ({"name": "numbers", "max": 0}, [("1,000 men", "1.000 Männer"), ("1990", "1991"), ("2", "zwei")], [0]),
    ({"name": "numbers"}, [("١٢", "12"), ("1990", "1991"), ("2", "zwei")], [0, 2]),
    ({"name": "regex", "pattern": "https?:"}, [("a", "http:x"), ("a", "b")], [1]),
    ({"name": "regex", "pattern": "a", "sides": "src", "action": "keep"}, [("a", "b"), ("b", "a")], [0]),
    ({"name": "duplicates"}, [("a", "b"), ("a", "c"), ("a", "b")], [0, 1]),
    ({"name": "duplicates", "by": "src"}, [("a", "b"), ("a", "c"), ("c", "b")], [0, 2]),
    (
        {"name": "duplicates", "normalise": True},
        [("A dog.", "b"), ("a  dog", "B!"), ("?", "!"), ("!", "!")],
        [0, 2, 3],
    ),
    ({"name": "duplicates", "normalise": True}, [("कि", "e\u0301"), ("की", "é"), ("की!", "É")], [0, 1]),
]


ELSEWHERE = {"overlap", "language", "scores", "cross_entropy", "classifier", "opuscleaner"}
"""Filters that have tests of their own."""


def test_every_filter_has_a_case_and_a_row_in_the_docs() -> None:
    assert FILTERS.keys() == {entry["name"] for entry, _, _ in CASES} | ELSEWHERE
    page = (ROOT / "docs/filters.md").read_text(encoding="utf-8")
    assert [name for name in FILTERS if f"\n| `{name}` |" not in page] == []


def test_a_pattern_that_would_take_for_ever_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.data.cleaning.pair_filters.MATCH_SECONDS", 0.01)
    line = f"{'a' * 40}b"
    with pytest.raises(
        UserError, match=r"^data.filters\[0\].pattern=.* takes more than 0.01 seconds on the line 'aaa"
    ):
        kept({"name": "regex", "pattern": r"^(a|aa)+$"}, [(line, line)])


@pytest.mark.parametrize(("entry", "pairs", "expected"), CASES, ids=lambda value: str(value)[:40])
def test_a_filter_keeps(entry: dict[str, Any], pairs: Pairs, expected: list[int]) -> None:
    assert kept(entry, pairs) == expected


def test_pairs_that_are_scored_on_are_dropped() -> None:
    scored = {"test": ParallelText(["A dog."], ["Ein Hund."])}
    pairs = [("A dog.", "Ein Hund."), ("a dog", "ein hund"), ("A dog.", "Hund")]
    assert kept({"name": "overlap"}, pairs, scored_on=scored) == [1, 2]
    assert kept({"name": "overlap", "by": "src", "normalise": True}, pairs, scored_on=scored) == []


def test_languages_are_told_apart_and_short_lines_excused() -> None:
    pytest.importorskip("py3langid")
    pairs = [(LONG_EN, LONG_DE), (LONG_DE, LONG_EN), (LONG_EN, LONG_EN), ("Ja.", "Yes.")]
    assert kept({"name": "language"}, pairs) == [0, 3]
    assert kept({"name": "language", "sides": "src", "among": ["en", "de"]}, pairs) == [0, 2, 3]
    with pytest.raises(UserError, match=r"^data.filters\[0\].tgt must be a language .* but is 'xx'; one of"):
        kept({"name": "language", "tgt": "xx"}, pairs)


def test_scores_are_those_of_the_line_of_a_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    pairs = [("a", "x"), ("b", "y"), ("a", "x")]
    plain, tsv, jsonl = (tmp_path / name for name in ("scores.txt", "scores.tsv", "scores.jsonl"))
    plain.write_text("0.1\n0.9\n0.5\n")
    tsv.write_text("src\tbicleaner\na\t0.1\nb\t0.9\na\t0.5\n")
    jsonl.write_text('{"laser": 0.1}\n{"laser": 0.9}\n{"laser": 0.5}\n')
    for more in (
        {"file": str(plain)},
        {"file": "~/scores.txt"},
        {"file": str(tsv), "column": "bicleaner"},
        {"file": str(jsonl), "column": "laser"},
    ):
        assert kept({"name": "scores", "min": 0.5, **more}, pairs) == [1, 2]
    assert kept({"name": "duplicates", "keep": "best", "scores": str(plain)}, pairs) == [1, 2]
    assert kept({"name": "duplicates", "keep": "best", "scores": "~/scores.txt"}, pairs) == [1, 2]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("1\nhigh\n", r"scores:2: a score must be a number, but is 'high'"),
        ("1\n", "scores has no score for row 2 of the corpus; it needs one for each, in the same order"),
    ],
)
def test_scores_that_fit_no_corpus_are_refused(tmp_path: Path, lines: str, message: str) -> None:
    file = tmp_path / "scores"
    file.write_text(lines)
    with pytest.raises(UserError, match=rf"^data.filters\[0\].file: .*{message}"):
        kept({"name": "scores", "file": str(file), "min": 0}, [("a", "b"), ("c", "d")])
