"""The counts of a training split: in any script, by any reading, and once."""

from __future__ import annotations

import dataclasses
import unicodedata
from pathlib import Path

import pytest

from nmt.data.cleaning import census
from nmt.data.cleaning.census import Census, SideCensus, count
from nmt.data.cleaning.filters import all_lines, filter_pairs
from nmt.data.parallel_text import ParallelText
from nmt.data.reading.files import FilesData


def of(*lines: str) -> SideCensus:
    return count([ParallelText([*lines], [*lines])]).tgt


def test_words_characters_and_the_alphabet_are_counted() -> None:
    assert of("a cab", "a b\tc") == SideCensus(
        runs=5, distinct=4, narrow=7, wide=0, alphabet="abc", written="abc"
    )
    assert count([]) == Census()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("two words", 2),
        ("Donaudampfschifffahrtsgesellschaft fährt", 4),  # eight characters are a word at least
        ("一个男人在街上走", 4),
        ("家へ帰る。", 2),
        ("두 남자가 거리에서 걷는다", 4),  # syllables of two columns, with spaces between words
        ("ผู้ชายคนหนึ่งกำลังเดิน", 2),
    ],
)
def test_words_are_counted_where_no_space_divides_them(line: str, words: int) -> None:
    assert of(line).words == words


def test_characters_are_counted_as_a_tokenizer_will_see_them() -> None:
    assert of(unicodedata.normalize("NFD", "é ü")).alphabet == of("é ü").alphabet == "éü"
    assert of(unicodedata.normalize("NFD", "é ü")).narrow == 2
    assert of("\N{LATIN SMALL LIGATURE FI}").alphabet == "fi"


def test_what_a_tokenizer_would_rewrite_is_counted() -> None:
    counts = of("ab，c", "a\N{NO-BREAK SPACE}b", "می\u200cخواهم", "plain", "10～20", "שלום\u200f.")
    assert counts.rewritten == 3  # white space makes no difference, and the wave dash stays
    assert {"，", "\N{NO-BREAK SPACE}", "～"} == {*counts.written} - {*counts.alphabet}
    assert {*counts.alphabet} - {*counts.written} == {",", "~"}
    assert (of("plain").written, of("plain").rewritten) == (of("plain").alphabet, 0)


def test_what_is_too_long_for_training_is_not_counted(tmp_path: Path) -> None:
    (tmp_path / "train.en").write_text("a b\n" + "a " * 300 + "\n", encoding="utf-8")
    (tmp_path / "train.de").write_text("x y\n" + "x " * 300 + "\n", encoding="utf-8")
    cfg = FilesData(train=str(tmp_path / "train"))
    for _ in range(2):  # made, and from the cache
        taken = census.take(cfg, filter_pairs, tmp_path / "cache")
        assert (taken.pairs, taken.words, taken.dropped) == (1, 2, 1)
    assert census.take(cfg, all_lines, tmp_path / "cache").pairs == 2  # lines of a text belong together


def test_chunks_are_counted_like_one_text() -> None:
    lines = [f"word{number % 7} und {number}" for number in range(40)]
    chunks = [ParallelText(lines[i : i + 9], lines[i : i + 9]) for i in range(0, 40, 9)]
    assert count(chunks) == count([ParallelText(lines, lines)])


def test_the_longer_side_has_the_words_of_a_pair() -> None:
    assert count([ParallelText(["a b c"], ["abc"])]).words == 3
    assert count([ParallelText(["abc"], ["a b c"])]).words == 3


def test_corpora_are_added_up() -> None:
    one, other = SideCensus(5, 4, 7, 0, "abc"), SideCensus(1, 1, 0, 2, "一丁")
    one.written, other.written, one.rewritten, other.rewritten = "ab", "bc", 1, 2
    both = SideCensus(6, 4, 7, 2, "abc一丁", "abc", 3)
    assert Census(2, one, one, 3) + Census(1, other, other, 4) == Census(3, both, both, 7)


def test_filtered_pairs_are_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.en").write_text("a b\n\nc\n", encoding="utf-8")
    (tmp_path / "train.de").write_text("x y\nz\n" + "w" * 90 + "\n", encoding="utf-8")
    cfg = FilesData(train=str(tmp_path / "train"))
    taken = census.take(cfg, filter_pairs, tmp_path / "cache")
    assert (taken.pairs, taken.src.alphabet) == (1, "ab")  # one is empty, one uneven
    with monkeypatch.context() as patched:
        patched.setattr(census, "count", lambda chunks: pytest.fail("counted again"))
        assert census.take(cfg, filter_pairs, tmp_path / "cache") == taken
    (tmp_path / "train.de").write_text("x y\nz\nw\n", encoding="utf-8")
    assert census.take(cfg, filter_pairs, tmp_path / "cache").pairs == 2


def test_what_data_filters_drop_is_not_counted(tmp_path: Path) -> None:
    for side in ("en", "de"):
        (tmp_path / f"train.{side}").write_text("a b\nc\na b\nd e\nd e\nf\n", encoding="utf-8")
        (tmp_path / f"dev.{side}").write_text("d e\n", encoding="utf-8")
    cfg = FilesData(train=str(tmp_path / "train"), validation=str(tmp_path / "dev"))
    rows: list[dict[str, object]] = [{"name": "duplicates"}, {"name": "overlap"}]
    rows.append({"name": "classifier", "run": "a run of no file", "min": 0.5})
    taken = census.take(dataclasses.replace(cfg, filters=rows), filter_pairs, tmp_path / "cache")
    assert (taken.pairs, taken.src.alphabet) == (3, "abcf")


def test_sentences_of_context_do_not_count_again(tmp_path: Path) -> None:
    for side in ("en", "de"):
        (tmp_path / f"train.{side}").write_text("a b\nc d e\nf\n", encoding="utf-8")
    cfg = FilesData(train=str(tmp_path / "train"))
    in_context = dataclasses.replace(cfg, context=2, context_target=True, context_short=0.0)
    plain, behind = (census.take(one, filter_pairs, tmp_path / "cache") for one in (cfg, in_context))
    assert behind == plain
    assert (plain.pairs, plain.words) == (3, 6)
