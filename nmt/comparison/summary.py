"""A comparison as text for a terminal: scores and tests, systems, and config differences."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from textwrap import fill
from typing import Any

from nmt.comparison.comparing import TESTED_ALPHA, Column, Comparison
from nmt.comparison.differences import shown
from nmt.comparison.listing import GAP, aligned, count, cut, duration, width
from nmt.comparison.seed_tests import SeedTest
from nmt.comparison.significance import Tested
from nmt.config.sweeps import short_names
from nmt.errors import visible

MAX_NAME = 34
"""Longest name of a run at the head of a column, in columns."""
MIN_NAME = 16
"""Fewest columns that a name at the begin of a row is cut to."""
MAX_VALUE = 22
"""Longest value of a config in a table, in columns."""


def summary(found: Comparison) -> str:
    """Return the comparison as text."""
    blocks = [headline(found), *(_scores(found, column) for column in found.columns)]
    blocks += _legend(len(found.comparable) - 1 if found.columns else 0)
    if any(len(system.members) > 1 for system in found.systems):
        blocks += [_systems(found, column) for column in found.columns]
        blocks += _legend(sum(bool(system.tests) for system in found.systems))
    blocks += [_costs(found), *_config(found)]
    if found.notes:
        wide = shutil.get_terminal_size().columns
        notes = [fill(visible(f"- {note}"), wide, subsequent_indent="  ") for note in found.notes]
        blocks.append("\n".join(["notes", *notes]))
    return "\n\n".join(blocks)


def headline(found: Comparison) -> str:
    """Return how much is compared, and on what."""
    if found.first is None:
        number = len(found.entries)
        return f"{number} run{'s' * (number > 1)}; no translations of {found.split} to compare"
    number = len(found.first.references[0])
    entries = f"{len(found.comparable)} of {len(found.entries)} {found.kinds}"
    return f"{entries} compared on {number:,} sentences of {found.split}"


def _scores(found: Comparison, column: Column) -> str:
    """Return the table of one metric; p values are of the difference from the first run, after Holm."""
    head = [column.label, "score", "±95%", "diff", "bootstrap p", "random. p", ""]
    rows = [[entry.name, *_tested(row)] for entry, row in zip(found.entries, column.rows, strict=True)]
    lines = _lines([head, *rows])
    return "\n".join([*lines, f"signature  {column.metric}|{visible(column.signature)}"])


def _legend(number: int) -> list[str]:
    """Return what a star and a p value of `number` comparisons mean; nothing where there are none."""
    if number < 1:
        return []
    corrected = f", corrected for {number} comparisons (Holm)" if number > 1 else ""
    return [f"*  significant: every p value below {TESTED_ALPHA:g}{corrected}"]


def _lines(table: Sequence[Sequence[str]]) -> list[str]:
    """Return each row as a line that fits the terminal: names, which come first, are cut to what is left."""
    head, *rows = table
    others = max(map(width, aligned([row[1:] for row in table])))
    room = max(shutil.get_terminal_size().columns - others - len(GAP), MIN_NAME)
    return aligned([head, *([visible(cut(name, room)), *cells] for name, *cells in rows)])


def _tested(row: Tested | None) -> list[str]:
    if row is None:
        return ["-"] * 5 + [""]
    values = [f"{row.value:.2f}", f"{row.interval:.2f}"]
    if row.difference is None:
        return [*values, "", "", "", "first"]
    tests = [(row.bootstrap_p, row.bootstrap_holm), (row.randomisation_p, row.randomisation_holm)]
    return [*values, f"{row.difference:+.2f}", *(p_value(holm) for _, holm in tests), verdict(row)]


def p_value(p: float | None) -> str:
    """Return a p value as text."""
    return "-" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


def verdict(row: Tested) -> str:
    """Return a star where all corrected tests call the difference significant."""
    known = [p for p in (row.bootstrap_holm, row.randomisation_holm) if p is not None]
    return "*" if known and max(known) < TESTED_ALPHA else ""


def _systems(found: Comparison, column: Column) -> str:
    """Return the table of one metric over seeds; p values are of the difference of means, after Holm."""
    head, rows = ["system (over seeds)", "runs", f"{column.label} mean ± sd"], []
    is_tested = any(system.tests for system in found.systems)
    head += ["diff", "±95%", "p", ""] if is_tested else []
    for system in found.systems:
        mean, spread, _, _ = system.scores.get(column.metric, (None, None, None, None))
        score = "-" if mean is None else f"{mean:.2f}" + ("" if spread is None else f" ± {spread:.2f}")
        test = system.tests.get(column.metric)
        cells = ["", "", "", ""] if is_tested else []
        if test is not None:
            star = "*" if is_beyond_chance(test) else ""
            cells = [f"{test.difference:+.2f}", f"{test.interval:.2f}", p_value(test.holm), star]
        elif is_tested and found.comparable[0] in system.members:
            cells[3] = "first"
        rows.append([system.name, str(len(system.members)), score, *cells])
    return "\n".join(_lines([head, *rows]))


def is_beyond_chance(test: SeedTest) -> bool:
    """Return whether the corrected test calls the difference of two systems significant."""
    return test.holm is not None and test.holm < TESTED_ALPHA


def _costs(found: Comparison) -> str:
    head = ["cost", "steps", "time", "tokens", "parameters", "FLOPs", "loss"]
    rows = [
        [
            entry.name,
            f"{cost.steps:,}" if cost.steps else "-",
            duration(cost.seconds),
            count(cost.tokens),
            count(cost.parameters),
            count(cost.operations),
            "-" if loss is None else f"{loss:.3f}",
        ]
        for entry, cost, loss in zip(found.entries, found.costs, found.losses, strict=True)
        if cost is not None
    ]
    return "\n".join(_lines([head, *rows]))


def _config(found: Comparison) -> Iterator[str]:
    """Yield the keys that differ: a column for each run where there are few, else a line for each run."""
    if not found.config:
        if len(found.records) > 1:
            yield "the configs do not differ"
        return
    wide = shutil.get_terminal_size().columns
    names = [visible(found.entries[number].name) for number in found.records]
    values = [
        [visible(cut(shown(row[number]), MAX_VALUE)) for number in found.records]
        for row in found.config.values()
    ]
    table = [
        ["config", *(cut(name, MAX_NAME) for name in names)],
        *([key, *row] for key, row in zip(found.config, values, strict=True)),
    ]
    lines = aligned(table)
    if max(map(len, lines)) <= wide:
        yield "\n".join(lines)
        return
    short = short_names(list(found.config))
    settings = [
        " ".join(f"{short[key]}={row[number]}" for key, row in zip(found.config, values, strict=True))
        for number in range(len(names))
    ]
    whole: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
    told = [
        fill(f"{name}  {text}", wide, subsequent_indent="    ", **whole)
        for name, text in zip(names, settings, strict=True)
    ]
    yield "\n".join(["config", *told])
