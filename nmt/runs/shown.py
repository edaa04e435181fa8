"""A run as a table in HTML, for a notebook: its scores, its curve, and what its config changes.

What a run holds may come from a stranger: every text is escaped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from nmt.config.roots import TrainConfig
from nmt.config.stored import to_plain
from nmt.errors import UserError
from nmt.files import parse_json
from nmt.metrics.scoring import labelled_scores

WIDTH, HEIGHT, MARGIN = 240, 48, 4
"""Size of the curve, and the space around it, in pixels."""
SPLITS = ("validation", "test", "train")
Point = tuple[float, float]


def run_table(
    title: str, cfg: TrainConfig, results: Mapping[str, Any] | None, rows: Sequence[Mapping[str, Any]]
) -> str:
    """Return the table of a run, given the content of its results.json and metrics.jsonl."""
    scored = {} if results is None else {split: results[split] for split in SPLITS if split in results}
    cells = {split: escape("  ".join(labelled_scores(values))) for split, values in scored.items()}
    name = f"valid/{cfg.trainer.best_metric}"
    points = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
    if len(points) > 1:
        cells[name] = curve(points)
    if results is None:
        cells["results"] = "none: the training is not finished"
    changed = "".join(f"<li><code>{escape(line)}</code></li>" for line in changes(cfg))
    lines = "".join(
        f'<tr><th style="text-align:left">{escape(key)}</th><td style="text-align:left">{cell}</td></tr>'
        for key, cell in cells.items()
    )
    return (
        f"<div><strong>{escape(title)}</strong><table>{lines}</table><details>"
        f"<summary>config: what differs from the defaults</summary><ul>{changed}</ul></details></div>"
    )


def logged_metrics(file: Path) -> list[dict[str, Any]]:
    """Return the records of metrics.jsonl, if it is there; a line without its end is left out.

    Raises:
        UserError: a line holds no record.
    """
    lines = file.read_bytes().split(b"\n")[:-1] if file.is_file() else []
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(parse_json(line))
        except ValueError as error:
            raise UserError(f"{file}, line {number}, is damaged: {error}; restore the file") from error
    return records


def curve(points: Sequence[Point]) -> str:
    """Return a line through points of x and y as SVG, with its first and last x and its extremes of y."""
    (first, last), ys = (points[0][0], points[-1][0]), [y for _, y in points]
    low, high = min(ys), max(ys)
    across, up = (WIDTH - 2 * MARGIN) / ((last - first) or 1), (HEIGHT - 2 * MARGIN) / ((high - low) or 1)
    line = " ".join(
        f"{MARGIN + (x - first) * across:.1f},{HEIGHT - MARGIN - (y - low) * up:.1f}" for x, y in points
    )
    label = f"from {low:.4g} to {high:.4g}, steps {first:,} to {last:,}"
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{label}"><polyline points="{line}" '
        f'fill="none" stroke="currentColor" stroke-width="1.5"/></svg><br>{label}'
    )


def changes(cfg: TrainConfig) -> Iterator[str]:
    """Yield "key: value" for each value that differs from the default of its dataclass."""
    plain, defaults = to_plain(cfg), to_plain(TrainConfig)
    for name, value in plain.items():
        part = getattr(cfg, name)
        default = to_plain(type(part)) if dataclasses.is_dataclass(part) else defaults[name]
        yield from _differing(name, value, default)


def _differing(key: str, value: Any, default: Any) -> Iterator[str]:
    if isinstance(value, dict) and isinstance(default, dict):
        for name, inner in value.items():
            yield from _differing(f"{key}.{name}", inner, default.get(name))
    elif value != default:
        yield f"{key}: {value}"
