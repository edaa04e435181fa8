"""The table of `nmt runs`: a row a run, and columns for the keys of the config that tell it from others."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shutil
import textwrap
import time
import unicodedata
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from nmt.comparison.configs import RunsConfig, TableFormat
from nmt.comparison.differences import differing, shown, telling
from nmt.comparison.record import STATES, RunRecord, find_runs, read_run
from nmt.config.sweeps import short_names
from nmt.errors import Log, UserError, suggest, visible
from nmt.metrics.scoring import MACRO, METRICS, higher_is_better, label_of

GAP = "  "
INDENT = "    "
MAX_LINES = 2
"""Most lines of config differences below a run, and of the reason why it failed."""


def listed(cfg: RunsConfig, warn: Log) -> str:
    """Return the runs in a folder as text; `warn` is told of what is no run, or a damaged one.

    Raises:
        UserError: there is no such folder, no run in it, or no such state or column.
    """
    folder = Path(cfg.folder)
    if not folder.is_dir():
        raise UserError(f"folder={folder} is not a directory; say nmt runs FOLDER")
    states = _states(cfg.state)
    found, foreign = find_runs(folder)
    for path in foreign:
        warn(f"{path} has files of a run but no config.yaml, and is not listed")
    if not found:
        raise UserError(
            f"there is no run in {folder}; nmt train makes one, and nmt runs FOLDER looks elsewhere"
        )
    records = []
    for path in found:
        if not fnmatchcase(_name(path, folder), cfg.match):
            continue
        try:
            records.append(read_run(path))
        except UserError as error:
            warn(f"{path} is damaged and not listed: {error}")
    records = [record for record in records if states is None or record.state in states]
    records = _sorted(records, cfg.sort, folder)
    if cfg.format is TableFormat.table:
        return _table(records)
    differences = differing([record.config for record in records])
    rows = [_facts(record, folder) for record in records]
    return _json(rows, differences) if cfg.format is TableFormat.json else _csv(rows, differences)


def _states(value: object) -> list[str] | None:
    if value is None:
        return None
    states = list(map(str, value)) if isinstance(value, list) else [str(value)]
    for state in states:
        if state not in STATES:
            near = suggest(state, STATES)
            raise UserError(f"state must be one or several of {', '.join(STATES)}, but is {state!r}{near}")
    return states


def _name(path: Path, folder: Path) -> str:
    return path.name if path == folder else str(path.relative_to(folder))


def _sorted(records: Sequence[RunRecord], column: str, folder: Path) -> list[RunRecord]:
    """Return the runs sorted by a column, the best or newest first; runs without the value come last."""
    known: dict[str, Callable[[RunRecord], Any]] = {
        "name": lambda run: _by_numbers(_name(run.path, folder)),
        "state": lambda run: STATES.index(run.state),
        "step": lambda run: -run.step,
        "time": lambda run: run.seconds,
        "age": lambda run: -run.changed,
        "parameters": lambda run: run.parameters,
    }
    metrics = dict.fromkeys([*(name for run in records for name in run.validation), *METRICS, *MACRO, "loss"])
    keys = dict.fromkeys(key for run in records for key in run.config)
    if column in known:
        value = known[column]
    elif column in metrics:
        sign = -1 if higher_is_better(column) else 1
        value = lambda run: sign * run.validation.get(column, math.nan)  # noqa: E731
    elif matching := [key for key in keys if column in (key, key.rpartition(".")[2])]:
        value = lambda run: run.config.get(matching[0])  # noqa: E731
    else:
        raise UserError(
            f"sort must be one of {', '.join([*known, *metrics])} or a key of the config, but is "
            f"{column!r}{suggest(column, [*known, *metrics, *keys])}"
        )
    return sorted(records, key=lambda run: _order(value(run)))


def _order(value: Any) -> tuple[int, Any]:
    """Return a key that sorts numbers before texts, and what is missing last."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return 3, 0
    if isinstance(value, tuple):
        return 2, value
    return (0, value) if isinstance(value, (int, float)) else (1, str(value))


def _by_numbers(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a key that sorts `a10` after `a9`."""
    parts = re.split(r"([0-9]+)", name)
    return tuple((1, int(x), "") if x.isdecimal() else (0, 0, x) for x in parts if x)


def _facts(record: RunRecord, folder: Path) -> dict[str, Any]:
    """Return what is known of a run under names for programs."""
    changed = datetime.fromtimestamp(record.changed, timezone.utc).isoformat(timespec="seconds")
    return {
        "name": _name(record.path, folder),
        "path": str(record.path),
        "state": record.state,
        "reason": record.reason,
        "step": record.step,
        "max_steps": record.steps,
        "scored_step": record.scored_step,
        **{f"validation/{name}": value for name, value in record.validation.items()},
        **{f"{split}/{name}": x for split, scores in record.tests.items() for name, x in scores.items()},
        "parameters": record.parameters,
        "train_seconds": record.seconds,
        "train_tokens": record.tokens,
        "changed": changed,
    }


def _json(rows: Sequence[dict[str, Any]], differences: dict[str, list[Any]]) -> str:
    """Return one JSON array; a number that JSON lacks is null."""
    content = [
        row | {"config": {key: values[number] for key, values in differences.items()}}
        for number, row in enumerate(rows)
    ]
    return json.dumps(_finite(content), indent=2, ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    """Return JSON with null in place of the numbers that JSON lacks."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _csv(rows: Sequence[dict[str, Any]], differences: dict[str, list[Any]]) -> str:
    """Return comma-separated values with a line of names; what a run lacks is empty. No number is rounded."""
    names = list(dict.fromkeys([*(name for row in rows for name in row), *differences]))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    for number, row in enumerate(rows):
        values = {key: x[number] for key, x in differences.items()}
        writer.writerow(row | {key: x if x is None else shown(x, "") for key, x in values.items()})
    return out.getvalue().rstrip("\n")


def _table(records: Sequence[RunRecord]) -> str:
    """Return lines that fit the terminal: what has no room beside the whole name of a run is below it."""
    if not records:
        return "no run fits; nmt runs without state= and match= lists all"
    metrics = {record.best_metric for record in records}
    label = label_of(metrics.pop()) if len(metrics) == 1 else "score"
    head = ["run", "state", "step", f"valid {label}", f"test {label}", "params", "time", "age"]
    table = [head, *(_cells(record, with_name=label == "score") for record in records)]
    configs = [record.config for record in records]
    told, names = telling(configs), short_names(list(dict.fromkeys(key for one in configs for key in one)))
    wide = shutil.get_terminal_size().columns
    reasons = [_remarks(record, wide) for record in records]
    keys = list(dict.fromkeys(key for own in told for key in own))
    columns = [[visible(names[key]), *(visible(shown(one.get(key))) for one in configs)] for key in keys]
    beside = [[*row, *own] for row, *own in zip(table, *columns, strict=True)]
    if _fit(beside, wide):
        lines, below = aligned(beside, left=(0, 1)), reasons
    else:
        settings = [
            [f"{names[key]}={shown(one[key])}" for key in own if one.get(key) is not None]
            for one, own in zip(configs, told, strict=True)
        ]
        below = [[*_filled(own, wide), *why] for own, why in zip(settings, reasons, strict=True)]
        lines = aligned(table, left=(0, 1))
        if not _fit(table, wide):
            facts = aligned([row[1:] for row in table], left=(0,))
            lines = [f"{row[0]}\n{INDENT}{line}" for row, line in zip(table, facts, strict=True)]
    blocks = ["\n".join([line, *more]) for line, more in zip(lines[1:], below, strict=True)]
    return "\n".join([lines[0], *blocks])


def _remarks(record: RunRecord, wide: int) -> list[str]:
    """Return the lines that say why a training has ended before its time, and how it was validated."""
    found = [f"{record.state}: {record.reason}"] if record.state != "done" and record.reason else []
    if record.validation and record.validated_by:
        found.append(f"validated with {record.validated_by}")
    return [line for remark in found for line in _wrapped(visible(remark), wide)]


def _wrapped(text: str, wide: int) -> list[str]:
    return textwrap.wrap(
        text,
        wide,
        initial_indent=INDENT,
        subsequent_indent=INDENT,
        max_lines=MAX_LINES,
        placeholder=" …",
        break_on_hyphens=False,
    )


def _cells(record: RunRecord, *, with_name: bool) -> list[str]:
    metric = record.best_metric
    test = next((one for split, one in record.tests.items() if split.partition("-")[0] == "test"), {})
    name = f"{label_of(metric)} " if with_name else ""
    scores = [
        f"{name}{values[metric]:.2f}" if metric in values else "-" for values in (record.validation, test)
    ]
    of_all = f"/{record.steps:,}" if record.steps else ""
    steps = f"{record.step:,}{of_all}" if of_all or record.step else "-"
    return [
        visible(str(record.path)).replace("\n", "\\x0a"),
        record.state,
        steps,
        *scores,
        count(record.parameters),
        duration(record.seconds),
        duration(time.time() - record.changed, coarse=True),
    ]


def count(number: float | None) -> str:
    """Return a number as people say it: 4.98M."""
    if number is None:
        return "-"
    for size, unit in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.0f}"


def duration(seconds: float | None, *, coarse: bool = False) -> str:
    """Return a time as its largest unit, or two: 45s, 12m, 2h49m, 3d4h."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if minutes < 1:
        return f"{max(seconds, 0):.0f}s"
    if hours < 1:
        return f"{minutes}m"
    if days < 1:
        return f"{hours}h" if coarse else f"{hours}h{minutes % 60:02}m"
    return f"{days}d" if coarse else f"{days}d{hours % 24}h"


def aligned(table: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> list[str]:
    """Return each row as a line; columns are right-aligned, but for those whose numbers are in `left`."""
    widths = _widths(table)
    return [
        GAP.join(
            text + " " * (size - width(text)) if number in left else " " * (size - width(text)) + text
            for number, (text, size) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]


def _widths(table: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(width, column)) for column in zip(*table, strict=True)]


def _fit(table: Sequence[Sequence[str]], wide: int) -> bool:
    return sum(_widths(table)) + len(GAP) * (len(table[0]) - 1) <= wide


def width(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) > 0 for char in text)


def cut(text: str, room: int) -> str:
    """Return a text of at most `room` columns, without its middle: both ends of a name tell it apart."""
    half = (room - 1) // 2
    return text if width(text) <= room else f"{text[:half]}…{text[len(text) - (room - 1 - half) :]}"


def _filled(words: Sequence[str], wide: int) -> list[str]:
    """Return words in at most `MAX_LINES` indented lines of `wide` columns, and how many are left out."""
    lines, rest = list[str](), list(map(visible, words))
    while rest:
        word = rest[0] if len(rest) == 1 or len(lines) < MAX_LINES else f"{rest[0]} +{len(rest) - 1} more"
        if lines and width(lines[-1]) + 1 + width(word) <= wide:
            lines[-1] += f" {rest.pop(0)}"
        elif len(lines) < MAX_LINES:
            lines.append(f"{INDENT}{rest.pop(0)}")
        else:
            lines[-1] += f" +{len(rest)} more"
            break
    return lines
