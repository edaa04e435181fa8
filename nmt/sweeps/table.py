"""The table at the end of a sweep, for people: ranked on validation, never on test."""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from nmt.config.spelling import unquoted
from nmt.config.sweeps import short_names
from nmt.errors import first_of, visible
from nmt.metrics.scoring import MACRO, METRICS, label_of
from nmt.sweeps.records import SEED, Group, Record, Records

PIPE_WIDTH = 160
"""Width of a table that goes to a file or a pipe, unless COLUMNS says another."""
VALIDATION = "validation"


def show(records: Records) -> None:
    """Print the table of the trials, the best run, the cost, and why trials failed."""
    width = shutil.get_terminal_size((PIPE_WIDTH, 0)).columns
    console = Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False)
    console.print(_fitting(records, console))
    for line in _remarks(records):
        console.print(Text(visible(line)), soft_wrap=True)


def label(metric: str) -> str:
    """Return the name of a score in tables: BLEU for validation.bleu, news BLEU for validation-news.bleu."""
    split, _, name = metric.rpartition(".")
    known = label_of(name)
    split = split.removeprefix(VALIDATION).removeprefix("-")
    return f"{split} {known}" if split else known


def _fitting(records: Records, console: Console) -> Table:
    """Return the table with as many scores as the console has room for, at least one."""
    scores = _scores(records)
    unbounded = console.options.update(max_width=10_000)
    for number in range(len(scores), 1, -1):
        table = _table(records, dict(list(scores.items())[:number]))
        if Measurement.get(console, unbounded, table).maximum <= console.width:
            return table
    return _table(records, dict(list(scores.items())[:1]))


def _table(records: Records, scores: Mapping[str, str]) -> Table:
    is_seeded, groups = SEED in records.keys, records.groups()
    keys = [key for key in records.keys if key != SEED]
    short = short_names(records.keys)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("#", justify="right", no_wrap=True)
    for key in keys:
        table.add_column(visible(short[key]), overflow="fold", min_width=6)
    for name in [*map(label, scores.values()), *["seeds"] * is_seeded, "minutes"]:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("state", min_width=9)
    for rank, group in enumerate(groups, start=1):
        cells = [str(rank) if group.ranked else "", *(visible(unquoted(group.values[key])) for key in keys)]
        cells += [_mean(group, name) for name in scores]
        cells += [f"{len(group.done)}/{len(group.records)}"] * is_seeded
        cells += [f"{sum(one.seconds for one in group.records) / 60:.1f}", _states(group.records)]
        table.add_row(*map(Text, cells))
    return table


def _scores(records: Records) -> dict[str, str]:
    """Return the scores to show, each with its full name: the metric and two more of validation.

    These are the metric on further validation sets, or else other scores. Where no trial has the metric, as
    in evaluations of the test split, all scores are shown.
    """
    names = dict.fromkeys(name for record in records.trials.values() for name in record.numbers())
    if not any(record.is_ranked for record in records.trials.values()):
        return {name: name for name in names}
    metric = records.metric.rpartition(".")[2]
    of_sets = [name for name in names if name.startswith(VALIDATION) and name.endswith(f".{metric}")]
    shown = [*of_sets, *(f"{VALIDATION}.{name}" for name in (*METRICS, *MACRO, "loss"))]
    others = [name for name in dict.fromkeys(shown) if name in names and name != records.metric]
    return {"value": records.metric, **{name: name for name in others[:2]}}


def _mean(group: Group, name: str) -> str:
    mean, spread = group.mean(name), group.spread(name)
    if mean is None:
        return ""
    digits = 2 if abs(mean) >= 1 or mean == 0 else 2 - math.floor(math.log10(abs(mean)))
    return f"{mean:.{digits}f}" + (f" ± {spread:.{digits}f}" if spread is not None else "")


def _states(records: Sequence[Record]) -> str:
    states = [record.state for record in records]
    if len(set(states)) == 1:
        return states[0]
    return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))


def _remarks(records: Records) -> Iterable[str]:
    trials, best = list(records.trials.values()), records.best()
    if best is not None and best.value is not None:
        where = best.path or best.name
        yield f"best        {where}  ({label(records.metric)} {best.value:.2f})"
    elif any(record.scores for record in trials):
        yield f"not ranked: {records.metric} is not known"
    for several in records.of_other_data():
        names = " | ".join(first_of([record.name for record in one], 3) for one in several)
        yield (
            f"other data  {names}: were trained on different pairs, and do not compare; remove the runs "
            "on the old data, and the same command trains them again"
        )
    yield f"cost        {cost(trials)}"
    for state in ("failed", "pruned", "stopped"):
        for record in trials:
            if record.state == state:
                yield f"{state:<11} {record.name}: {record.reason}"
    yield f"written     {records.json_file} and {records.csv_file.name}"


def cost(trials: Sequence[Record]) -> str:
    """Return what trials have cost, together."""
    cpu, gpu = (sum(getattr(one, f"{kind}_seconds") for one in trials) / 3600 for kind in ("cpu", "gpu"))
    updates, tokens = (sum(getattr(one, kind) or 0 for one in trials) for kind in ("updates", "tgt_tokens"))
    parts = [f"{sum(one.seconds for one in trials) / 3600:.2f} hours of trials", f"{cpu:.2f} CPU hours"]
    parts += [f"{gpu:.2f} GPU hours"] * (gpu > 0)
    parts += [f"{updates:,} updates"] * (updates > 0)
    parts += [f"{tokens:,} target tokens"] * (tokens > 0)
    return ", ".join(parts)
