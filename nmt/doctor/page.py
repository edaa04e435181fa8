"""A report as one HTML page that needs nothing else: no server, no network, no other file.

The page itself is `page.html` beside this module. Rows of strangers go into the page as JSON in which no
character can end the script element, and the page makes text of them and never markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.doctor.corpus import RATIO_DOUBLINGS, RATIO_STEPS, SideCounts, SplitReport
from nmt.doctor.environment import Fact
from nmt.doctor.findings import Finding
from nmt.doctor.judging import numbers_of, usual_ratios
from nmt.pages import page_with

TEMPLATE = Path(__file__).with_name("page.html")
MAX_BARS = 60
"""Bars of a histogram of lengths."""


def page(data: dict[str, Any]) -> str:
    """Return the page of a report, from its data."""
    return page_with(TEMPLATE, data)


def report_data(
    title: str, findings: Sequence[Finding], reports: Sequence[SplitReport], facts: Sequence[Fact]
) -> dict[str, Any]:
    """Return a report as plain data: what the JSON file holds, and what the page reads."""
    return {
        "title": title,
        "findings": [
            asdict(one) | {"severity": one.severity.name, "heading": one.severity.value} for one in findings
        ],
        "splits": [_split(report) for report in reports],
        "environment": {fact.name: fact.value for fact in facts},
    }


def _split(report: SplitReport) -> dict[str, Any]:
    paired = report.cfg.has_source
    known = paired and bool(report.ratios.sum())
    return {
        "name": report.name,
        "pairs": report.pairs,
        "noun": report.noun,
        "is_whole": report.is_whole,
        "sides": [_side(side) for side in ([report.src, report.tgt] if paired else [report.tgt])],
        "ratio_percentiles": usual_ratios(report) if known else None,
        "ratios": {
            "counts": report.ratios.tolist(),
            "steps_per_doubling": RATIO_STEPS,
            "doublings": RATIO_DOUBLINGS,
        }
        if known
        else None,
        "correlation": report.correlation,
        "findings": dict(report.gallery.counts),
        "repeated": {kind: found.repeated for kind, found in report.repeats.items()},
        "near_duplicates": report.repeats["plain"].variants,
        "overlaps": [{k: v for k, v in asdict(one).items() if k != "examples"} for one in report.overlaps],
        "languages": [
            {"expected": told.expected, "looked_at": told.looked_at, "counts": told.counts}
            for told in report.languages
        ],
        "kept_by_the_filter": report.filtered.kept if report.filtered else None,
        "dropped_by_the_filter": report.filtered.dropped if report.filtered else None,
        "kept_by_data_filters": report.trial.report.kept if report.trial.report else None,
        "dropped_by_data_filters": report.trial.report.dropped if report.trial.report else None,
    }


def _side(side: SideCounts) -> dict[str, Any]:
    names = ("1%", "median", "99%", "most")
    return {
        "language": side.language,
        "words": side.words,
        "characters": side.chars,
        "empty": side.empty,
        "over_long": side.over_long,
        "lengths": {name: dict(zip(names, values, strict=True)) for name, values in numbers_of(side)},
        "word_histogram": histogram(side.word_lengths),
        "scripts": side.scripts,
        "other_scripts": side.foreign,
    }


def histogram(counts: NDArray[np.int64]) -> dict[str, Any]:
    """Return a histogram of at most `MAX_BARS` bars up to what 99.5% of lines have, and the rest."""
    total = int(counts.sum())
    end = int(np.searchsorted(np.cumsum(counts), 0.995 * total)) + 1
    width = -(-end // MAX_BARS)
    bars = np.add.reduceat(counts[:end], np.arange(0, end, width))
    return {"width": width, "counts": bars.tolist(), "longer": total - int(bars.sum())}
