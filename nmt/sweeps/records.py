"""What is known of the trials of a sweep: sweep.json and sweep.csv, rewritten after each change.

sweep.json, version 1:

    version, verb, command     how the sweep was started
    keys                       the swept keys
    metric, direction          what the trials are ranked by, and whether to maximize or minimize it
    best                       name of the best trial, or null
    groups                     with `seed` swept: values, trials, mean and standard deviation, best first;
                               trials on other training data are a group of their own
    trials                     a `Record` each, best first, then in the order in which they were planned
    others                     the same of trials of earlier commands that are none of this one

sweep.csv has a line for each trial, in the same order: rank, name, state, the value of each swept key, of the
metric and of each score, what it cost, its run directory, and why it has no score.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from nmt.config.sweeps import VERSION, Direction, recorded
from nmt.files import step_records, write_atomically, write_json
from nmt.runs.directory import scores_by_split

SEED = "seed"
NO_SCORES = ("signatures", "sets", "languages", "details", "compared", "tuned_decoding")
"""Further objects in what a verb returns."""
OF_DATA = ("data", "experiment", "task", "init", "teacher", "distil")
"""First words of the keys that choose the training data."""
COSTS = ("seconds", "cpu_seconds", "gpu_seconds")
"""What attempts at a trial cost, of which `Outcome` and `Record` have a field each."""


@dataclass
class Record:
    """All that is known of one trial; a row of sweep.json."""

    name: str
    values: dict[str, str]
    """The swept keys, each with its value as the command line has it."""
    fixed: dict[str, str] | None = None
    """What else the command line has set; None where an earlier version has written the record."""
    state: str = "waiting"
    """waiting, running, done, failed, stopped (goes on with the same command) or pruned."""
    reason: str = ""
    """Why there is no score; empty for a trial that is done."""
    path: str | None = None
    """Run directory, of a verb that trains."""
    mark: str = ""
    """Digest of all that decides the scores, of a verb that has no run directory."""
    data: str | None = None
    """SHA-256 of the pairs that a training has read, where it has stored that."""
    job: str = ""
    """Job of Slurm."""
    value: float | None = None
    """The metric that the trials are ranked by."""
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    """Split -> score -> value."""
    seconds: float = 0.0
    """Time of all attempts."""
    cpu_seconds: float = 0.0
    """CPU time of all attempts, but of those that were killed."""
    gpu_seconds: float = 0.0
    """Time of all attempts that used a GPU."""
    updates: int | None = None
    """Updates of the weights."""
    tgt_tokens: int | None = None
    """Target tokens trained on."""

    @property
    def settings(self) -> dict[str, str]:
        """All that the command line has set."""
        return {**(self.fixed or {}), **self.values}

    @property
    def is_ranked(self) -> bool:
        """Whether the trial has a value to be ranked by."""
        return self.state == "done" and self.value is not None

    def numbers(self) -> dict[str, float]:
        """Return the scores as columns: validation.bleu and the like."""
        return {f"{split}.{name}": x for split, one in self.scores.items() for name, x in one.items()}


@dataclass
class Group:
    """The trials that differ in their seed alone, and were trained on the same data."""

    values: dict[str, str]
    """The swept keys but the seed."""
    records: list[Record]

    @property
    def data(self) -> str:
        """SHA-256 of the pairs that the trials were trained on; empty where none tells."""
        return next(filter(None, (record.data for record in self.records)), "")

    @property
    def done(self) -> list[Record]:
        """The trials of the group that have scores."""
        return [record for record in self.records if record.state == "done"]

    @property
    def ranked(self) -> list[Record]:
        """The trials of the group that have a value."""
        return [record for record in self.records if record.is_ranked]

    def mean(self, name: str) -> float | None:
        """Return the mean of a score over the seeds that have it."""
        found = self._all(name)
        return statistics.mean(found) if found else None

    def spread(self, name: str) -> float | None:
        """Return the standard deviation of a score over the seeds, estimated from at least two."""
        found = self._all(name) if any(SEED in record.values for record in self.records) else []
        return statistics.stdev(found) if len(found) > 1 else None

    def _all(self, name: str) -> list[float]:
        values = [record.value if name == "value" else record.numbers().get(name) for record in self.done]
        return [value for value in values if value is not None]


class Records:
    """The trials of a sweep and what is known of them, on the disk."""

    def __init__(
        self,
        folder: Path,
        verb: str,
        command: Sequence[str],
        keys: Sequence[str],
        fixed: Mapping[str, str],
        metric: str,
        best: Direction,
    ):
        self.folder, self.verb, self.command = folder, verb, list(command)
        self.keys, self.fixed, self.metric, self.direction = list(keys), dict(fixed), metric, best
        self.trials: dict[str, Record] = {}
        self._earlier = self._read()

    @property
    def json_file(self) -> Path:
        """The file with all that is known."""
        return self.folder / "sweep.json"

    @property
    def csv_file(self) -> Path:
        """The table for spreadsheets."""
        return self.folder / "sweep.csv"

    def add(self, name: str, values: dict[str, str], path: Path | None, mark: str) -> Record:
        """Return the record of a trial, with what earlier commands have recorded of it."""
        new = Record(name, values, self.fixed, path=str(path) if path else None, mark=mark)
        old = self._earlier.get(name)
        if old is not None and old.mark == mark and new.values == old.values:
            new = dataclasses.replace(old, values=values, path=new.path)  # the keys in the present order
        elif old is not None and old.mark == mark and new.settings == old.settings:
            new = dataclasses.replace(old, values=values, fixed=new.fixed, path=new.path)
        self.trials[name] = new
        return new

    def ranking(self) -> list[Record]:
        """Return the trials, best first; those without a value come last, in the order of their planning."""
        ranked = [record for record in self.trials.values() if record.is_ranked]
        ranked.sort(key=lambda record: self._order(record.value))
        return [*ranked, *(record for record in self.trials.values() if not record.is_ranked)]

    def groups(self) -> list[Group]:
        """Return the trials by all but their seed, and by their training data, the best mean first."""
        found: dict[tuple[str, ...], list[Group]] = {}
        for record in self.trials.values():
            values = {key: value for key, value in record.values.items() if key != SEED}
            same = found.setdefault(tuple(values.values()), [])
            group = next((one for one in same if not record.data or one.data in ("", record.data)), None)
            if group is None:
                same.append(group := Group(values, []))
            group.records.append(record)
        return sorted((one for same in found.values() for one in same), key=self._rank)

    def _rank(self, group: Group) -> float:
        return self._order(group.mean("value"))

    def of_other_data(self) -> list[list[list[Record]]]:
        """Return the trials that should have the same training data, and had not, by the data they had."""
        found: dict[str, dict[str, list[Record]]] = {}
        for record in self.trials.values():
            chosen = {key: x for key, x in record.values.items() if key.partition(".")[0] in OF_DATA}
            if record.data:
                found.setdefault(repr(chosen), {}).setdefault(record.data, []).append(record)
        return [[*several.values()] for several in found.values() if len(several) > 1]

    def best(self) -> Record | None:
        """Return the best trial, of the best group where the seed is swept; None where none has a value."""
        ranked = self.groups()[0].ranked if self.trials else []
        return min(ranked, key=lambda record: self._order(record.value), default=None)

    def _order(self, value: float | None) -> float:
        return math.inf if value is None else -value if self.direction is Direction.maximize else value

    def write(self) -> None:
        """Write both files, each whole or not at all."""
        best, ranking = self.best(), self.ranking()
        groups = [
            {
                "values": group.values,
                "trials": [record.name for record in group.records],
                "ranked": len(group.ranked),
                "mean": group.mean("value"),
                "standard_deviation": group.spread("value"),
            }
            for group in self.groups()
        ]
        others = [record for name, record in self._earlier.items() if name not in self.trials]
        content = {
            "version": VERSION,
            "verb": self.verb,
            "command": self.command,
            "keys": self.keys,
            "metric": self.metric,
            "direction": self.direction.name,
            "best": best.name if best else None,
            **({"groups": groups} if SEED in self.keys else {}),
            "trials": [dataclasses.asdict(record) for record in ranking],
            "others": [dataclasses.asdict(record) for record in others],
        }
        write_json(self.json_file, content)
        write_atomically(self.csv_file, self._csv(ranking).encode())

    def _csv(self, ranking: Sequence[Record]) -> str:
        scores = list(dict.fromkeys(name for record in ranking for name in record.numbers()))
        costs = [*COSTS, "updates", "tgt_tokens"]
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(["rank", "name", "state", *self.keys, "value", *scores, *costs, "path", "reason"])
        for rank, record in enumerate(ranking, start=1):
            facts, numbers = dataclasses.asdict(record), record.numbers()
            rows.writerow(
                [
                    rank if record.is_ranked else "",
                    record.name,
                    record.state,
                    *(record.values.get(key, "") for key in self.keys),
                    record.value,
                    *(numbers.get(name, "") for name in scores),
                    *(facts[cost] for cost in costs),
                    record.path,
                    record.reason,
                ]
            )
        return text.getvalue()

    def _read(self) -> dict[str, Record]:
        """Return what earlier commands have recorded."""
        kinds = get_type_hints(Record)
        rows = recorded(self.folder, kinds)
        return {row["name"]: Record(**{key: row[key] for key in kinds if key in row}) for row in rows}


def scores_of(results: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return what a verb has scored by split, SPLIT-NAME for a set of `sets`, or the name of a test set."""
    parts = {**results, **scores_by_split(results)}
    return {
        split: {name: float(value) for name, value in scores.items()}
        for split, scores in parts.items()
        if isinstance(scores, dict) and split not in NO_SCORES
    }


def infinite(results: dict[str, Any]) -> str:
    """Return what is said of the first score that is not finite; empty where all are."""
    for split, scores in scores_of(results).items():
        for name, value in scores.items():
            if not math.isfinite(value):
                return f"the score {name} of {split} is {value}"
    return ""


def curve(run: Path, name: str) -> dict[int, float]:
    """Return the values of `name` in metrics.jsonl of a run directory by step; none that is not finite."""
    rows = step_records(run / "metrics.jsonl", json.dumps(name).encode())
    return {row["step"]: float(row[name]) for row in rows if type(row.get(name)) in (int, float)}
