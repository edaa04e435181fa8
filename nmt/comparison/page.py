"""A comparison as one HTML page that needs nothing else: no server, no network, no other file.

The page itself is `page.html` beside this module. A corpus, a config and the name of a folder are written by
strangers: they go into the page as JSON in which no character can end the script element, and the page makes
text of them and never markup.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nmt.comparison.comparing import Comparison, System
from nmt.comparison.differences import shown
from nmt.comparison.summary import headline, is_beyond_chance, verdict
from nmt.pages import page_with

TEMPLATE = Path(__file__).with_name("page.html")


def page(title: str, found: Comparison) -> str:
    """Return the page of a comparison."""
    return page_with(TEMPLATE, _finite(page_data(title, found)))


def page_data(title: str, found: Comparison) -> dict[str, Any]:
    """Return the comparison as the page reads it."""
    return {
        "title": title,
        "headline": headline(found),
        "split": found.split,
        "notes": found.notes,
        "samples": [found.bootstrap_samples, found.randomisation_trials],
        "counted": found.counted,
        "runs": [
            {
                "name": entry.name,
                "path": str(entry.record.path if entry.record else ""),
                "file": str(entry.file or ""),
                "state": entry.record.state if entry.record else "",
                "problem": entry.problem,
            }
            for entry in found.entries
        ],
        "comparable": found.comparable,
        "metrics": [
            {
                "name": column.metric,
                "label": column.label,
                "signature": column.signature,
                "rows": [row and {**asdict(row), "significant": bool(verdict(row))} for row in column.rows],
            }
            for column in found.columns
        ],
        "losses": found.losses,
        "systems": [_system(system) for system in found.systems],
        "buckets": {
            kind: {metric: [asdict(bucket) for bucket in buckets] for metric, buckets in of.items()}
            for kind, of in found.buckets.items()
        },
        "differences": {str(number): _sentences(found, number) for number in found.differences},
        "sentence_metric": found.sentence_metric,
        "config": _table(found.config),
        "environment": _table(found.environment),
        "costs": [cost and asdict(cost) for cost in found.costs],
        "curves": found.curves,
    }


def _system(system: System) -> dict[str, Any]:
    tests = {
        metric: {**asdict(test), "significant": is_beyond_chance(test)}
        for metric, test in system.tests.items()
    }
    return {**asdict(system), "tests": tests}


def _sentences(found: Comparison, number: int) -> list[dict[str, Any]]:
    first = found.first
    return [
        {
            **asdict(one),
            "source": first.sources[one.line - 1] if first else "",
            "references": [lines[one.line - 1] for lines in first.references] if first else [],
        }
        for one in found.differences[number]
    ]


def _table(values: dict[str, list[Any]]) -> list[list[str]]:
    return [[key, *map(shown, row)] for key, row in values.items()]


def _finite(value: Any) -> Any:
    """Return plain data with None for the numbers that JSON lacks, and shorter numbers."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    return value
