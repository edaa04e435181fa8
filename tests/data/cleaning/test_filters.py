"""The filter for training pairs with its report, and pairs of other splits among them."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.data.cleaning.filters import FilterReport, TrainTestOverlap, filter_pairs
from nmt.data.parallel_text import ParallelText
from nmt.data.reading.bundled_data import DemoData
from nmt.data.reading.sources import MixtureData

TEXT = st.text(st.sampled_from("ab \t\u00a0"), max_size=60)
PAIRS = st.lists(st.tuples(TEXT, TEXT), max_size=30)


def parallel(*pairs: tuple[str, str]) -> ParallelText:
    return ParallelText([src for src, _ in pairs], [tgt for _, tgt in pairs])


@given(PAIRS, st.integers(1, 60), st.floats(1, 5))
def test_kept_and_dropped_are_what_was_read(
    pairs: list[tuple[str, str]], max_chars: int, ratio: float
) -> None:
    text, cfg = parallel(*pairs), DemoData(max_chars=max_chars, max_ratio=ratio)
    kept, report = filter_pairs(text, cfg)
    assert report.read == len(text)
    assert report.kept == len(kept) == len(text) - sum(report.dropped.values())
    remaining = iter(pairs)
    assert all(pair in remaining for pair in zip(kept.src, kept.tgt, strict=True))  # in order
    assert all(src.strip() and tgt.strip() for src, tgt in zip(kept.src, kept.tgt, strict=True))


@pytest.mark.fault(28)
def test_every_reason_is_counted_once() -> None:
    text = parallel(
        ("a dog", "ein Hund"),
        ("", "leer"),
        ("blank", " \u2003\t"),
        ("x" * 11, "y" * 5),
        ("no", "überhaupt gar nicht!!"),
        ("No.", "Nein, auf keinen Fall"[:20]),
    )
    kept, report = filter_pairs(text, DemoData(max_chars=30, max_ratio=9))
    assert report.dropped == {"empty": 2, "too long": 0, "uneven": 1}
    assert kept.src == ["a dog", "x" * 11, "No."]
    _, report = filter_pairs(text, DemoData(max_chars=10, max_ratio=9))
    assert report.dropped == {"empty": 2, "too long": 3, "uneven": 0}


def test_tags_in_front_are_no_characters_of_a_source() -> None:
    part = {"name": "demo", "src": "en", "tgt": "de", "domain": "subtitles", "tag": "bt"}
    cfg = MixtureData(target_tags=True, corpora={"a": part}, max_chars=14)
    text = parallel(("<2de> <domain:subtitles> <bt> Yes.", "Ja"), ("<2de> <bt> <i> ok", "<i> ok"))
    kept, report = filter_pairs(text, cfg)
    assert (kept, report.kept) == (text, 2)
    _, report = filter_pairs(parallel(("<2de> ", "Ja"), ("<2fr> <2de> Yes. Yes.", "Ja")), cfg)
    assert report.dropped == {"empty": 1, "too long": 1, "uneven": 0}
    assert cfg.limits != dataclasses.replace(cfg, target_tags=False).limits != DemoData(max_chars=14).limits


def test_an_account_reads_as_a_sentence() -> None:
    report = FilterReport(29000, {"empty": 2, "too long": 5, "uneven": 3})
    assert str(report) == "29,000 pairs read, 28,990 kept (empty 2, too long 5, uneven 3)"
    assert str(FilterReport(1000, {"empty": 0})) == "1,000 pairs read, 1,000 kept"


def test_accounts_add_up() -> None:
    total = FilterReport(0) + FilterReport(3, {"empty": 1, "uneven": 0}) + FilterReport(4, {"uneven": 2})
    assert total == FilterReport(7, {"empty": 1, "uneven": 2})


@pytest.mark.fault(31)
def test_overlap_counts_the_pairs_of_the_test_that_were_trained_on() -> None:
    overlap = TrainTestOverlap(parallel(("a", "x"), ("a", "x"), ("b", "other"), ("d", "w")))
    for chunk in (parallel(("a", "x"), ("b", "y")), parallel(("c", "z"), ("a", "w"))):
        overlap.add(chunk)
    assert overlap.count == 2
