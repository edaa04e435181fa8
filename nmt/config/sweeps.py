"""What the command line says of a sweep: its settings, the values that it tries, and the names of its trials.

The settings are the keys `sweep.*`, which are for -m alone and part of no trial. Knows overrides in Hydra's
grammar; composes nothing, and knows no verb.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from omegaconf import DictConfig, OmegaConf

from nmt.checks import at_least, positive
from nmt.config.explain import explained
from nmt.config.roots import to_config
from nmt.errors import Problems, UserError, suggest
from nmt.files import OUTPUTS, misfits, read_json

PREFIX = "sweep."
"""Begin of the keys of a sweep."""
HOME = f"{OUTPUTS}/multirun"
"""Folder of the sweeps that are told no other."""
MAX_FOLDER = 80
"""Longest name of the folder of a sweep."""
MAX_NAME = 120
"""Longest name of a directory made from a config."""
VERSION = 1
"""Version of sweep.json."""
DIGITS = 4
"""Significant digits of the numbers of an interval that a search tries; more where it is narrow."""
MOST_DIGITS = 12
"""Those of the numbers of a range, whose steps have errors of rounding behind them."""


class Sampler(Enum):
    """Rules that choose the values of the next trial of a search."""

    tpe = "tpe"
    random = "random"
    grid = "grid"


class Pruner(Enum):
    """Rules that end a trial of a search whose validation curve is not worth its time."""

    none = "none"
    median = "median"
    hyperband = "hyperband"


class Direction(Enum):
    """Which values of the metric are better."""

    auto = "auto"
    maximize = "maximize"
    minimize = "minimize"


class Launcher(Enum):
    """Places where trials run."""

    local = "local"
    slurm = "slurm"


@dataclass
class SlurmConfig:
    """The job of Slurm that a trial is, with sweep.launcher=slurm."""

    partition: str | None = None
    """Partition; null: that of the cluster's choice."""
    account: str | None = None
    """Account that pays."""
    minutes: int = 60
    """Time limit of a job; a training that reaches it saves, is queued again and goes on."""
    gpus: int = 0
    """GPUs of a job."""
    cpus: int = 1
    """CPU cores of a job."""
    memory_gb: float | None = None
    """Memory of a job; null: that of the cluster's choice."""
    save_seconds: int = 90
    """Time before its limit at which a job is asked to save."""
    setup: list[str] = field(default_factory=list)
    """Lines of shell that a job begins with, such as module load cuda."""
    options: dict[str, str] = field(default_factory=dict)
    """Further options of sbatch, such as {qos: long, constraint: a100}."""
    poll_seconds: float = 10.0
    """Time between two questions to Slurm how the jobs stand."""

    def __post_init__(self) -> None:
        at_least(self, "sweep.slurm", 1, "minutes", "cpus", "save_seconds")
        at_least(self, "sweep.slurm", 0, "gpus")
        positive(self, "sweep.slurm", "memory_gb", "poll_seconds")
        if self.save_seconds >= 60 * self.minutes:
            raise UserError(
                f"sweep.slurm.save_seconds={self.save_seconds} must be less than the {60 * self.minutes} "
                f"seconds of sweep.slurm.minutes={self.minutes}; raise minutes, or ask to save later"
            )


@dataclass
class SweepConfig:
    """Where and how the trials of a sweep run, how they are ranked, and how a search chooses them."""

    dir: str | None = None
    """Folder of the sweep; null names it outputs/multirun/KEYS. The same command again goes on in it."""
    parallel: int | None = None
    """Trials at a time, which share the CPU cores and have GPUs of their own; null: 1, or with Slurm all, and
    of a search 4."""
    processes: int = 1
    """Processes of each trial, which compute together and have a GPU each."""
    metric: str | None = None
    """Score to rank by: validation.NAME, or GROUP/NAME as metrics.jsonl has it; null: trainer.best_metric."""
    direction: Direction = Direction.auto
    """Which values of the metric are better: maximize, minimize, or auto for what is known of the metric."""
    trials: int | None = None
    """Number of trials of a search over the values, which may be interval(A,B); null: every combination."""
    sampler: Sampler = Sampler.tpe
    """Choice of the next trial of a search: tpe, random, or grid (every combination, which may be pruned)."""
    pruner: Pruner = Pruner.none
    """End of trials of a search by their validation curves: none, median or hyperband."""
    startup_trials: int = 5
    """Trials of a search before its sampler and its pruner judge."""
    seed: int = 1
    """Seed of the sampler."""
    launcher: Launcher = Launcher.local
    """local (this machine) or slurm (a job for each trial)."""
    slurm: SlurmConfig = field(default_factory=SlurmConfig)
    """The jobs of Slurm."""

    def __post_init__(self) -> None:
        at_least(self, "sweep", 1, "parallel", "processes", "trials")
        at_least(self, "sweep", 0, "startup_trials", "seed")
        if self.dir is not None and not self.dir.strip():
            raise UserError(
                "sweep.dir must name a folder, but is empty; sweep.dir=null lets the program name it"
            )
        if self.launcher is Launcher.slurm and 0 < self.slurm.gpus != self.processes:
            raise UserError(
                f"sweep.slurm.gpus={self.slurm.gpus}, but the processes of a trial have a GPU each, and "
                f"sweep.processes={self.processes}; set both to the same number"
            )
        if re.match(r"test\b", self.metric or ""):
            raise UserError(
                f"sweep.metric={self.metric}: what is chosen by the test split is not tested by it any more; "
                "rank by validation.NAME"
            )
        if self.pruner is not Pruner.none and not self.is_search:
            raise UserError(
                f"sweep.pruner={self.pruner.name} is for a search; "
                "add sweep.trials=N, or sweep.sampler=grid for every combination"
            )

    @property
    def is_search(self) -> bool:
        """Whether trials are chosen one by one."""
        return self.trials is not None or self.sampler is Sampler.grid


@dataclass
class _Root:
    sweep: SweepConfig = field(default_factory=SweepConfig)


def sweep_config(overrides: Iterable[Override]) -> SweepConfig:
    """Return the settings of a sweep; raise `UserError` with all that is wrong with them."""
    cfg, problems = OmegaConf.structured(_Root), Problems()
    assert isinstance(cfg, DictConfig)
    for override in overrides:
        with problems.gathered(), explained():
            if override.is_sweep_override():
                raise UserError(f"{override.input_line!r}: a sweep has one {override.key_or_group}")
            OmegaConf.update(cfg, override.key_or_group, override.value(), merge=True)
    with problems.gathered():
        found = to_config(cfg, _Root)
    problems.refuse()
    return found.sweep


@dataclass(frozen=True)
class Dimension:
    """The values that a key may take in a search: some texts, or the numbers from `low` to `high`."""

    choices: tuple[str, ...] = ()
    """Values as the command line has them."""
    low: float = 0.0
    high: float = 0.0
    step: float | None = None
    log: bool = False
    """Whether every order of magnitude is equally likely."""
    whole: bool = False
    """Whether the numbers are integers."""

    @property
    def ends(self) -> tuple[str, ...]:
        """The values by which a mistake shows before a search begins."""
        return self.choices or (self.text(self.low), self.text(self.high))

    def text(self, value: object) -> str:
        """Return a value of this dimension as the command line has it."""
        if self.choices:
            return str(value)
        assert isinstance(value, int | float)
        if self.whole:
            return str(round(value))
        size = max(abs(self.low), abs(self.high)) / (self.high - self.low)
        digits = DIGITS + max(0, int(math.log10(size)) - 1) if self.step is None else MOST_DIGITS
        return str(float(min(max(float(f"{value:.{digits}g}"), self.low), self.high)))


def dimension(override: Override, tried: Sequence[str]) -> Dimension:
    """Return the values of an override that names several; `tried` lists them if they can be listed.

    Raises:
        UserError: the values are no values for a search.
    """
    value, line = override.value(), override.input_line
    log = getattr(value, "tags", set()) == {"log"}
    if getattr(value, "tags", None) and not log:
        raise UserError(f"{line!r}: the only tag of values is log, as in tag(log, interval(0.0001, 0.01))")
    if isinstance(value, IntervalSweep):
        assert value.start is not None
        assert value.end is not None
        low, high, step = value.start, value.end, None
        whole = isinstance(low, int)  # of int(interval(A,B))
    elif isinstance(value, RangeSweep) and len(tried) > 1:
        low, high = min(map(float, tried)), max(map(float, tried))
        whole, step = all(re.fullmatch(r"-?\d+", one) for one in tried), abs(float(value.step))
    elif log:
        raise UserError(f"{line!r}: a logarithmic scale is for interval(A,B) and range(A,B)")
    else:
        ordered = sorted(tried) if getattr(value, "shuffle", False) else tried  # a search has its own order
        return Dimension(tuple(dict.fromkeys(ordered)))
    if not low < high or (log and low <= 0):
        raise UserError(f"{line!r}: the first number must be {'positive and ' * log}below the second")
    return Dimension((), low, high, None if log else step, log, whole)


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Return the shortest ending of each key that no other of the keys has: factor for schedule.factor."""
    parts = [key.split(".") for key in keys]
    return {
        ".".join(own): next(
            ".".join(own[-n:])
            for n in range(1, len(own) + 1)
            if n == len(own) or sum(other[-n:] == own[-n:] for other in parts) == 1
        )
        for own in parts
    }


def trial_name(values: Mapping[str, str]) -> str:
    """Return the name of the trial that sets `values`, such as num_heads-2+factor-0.5."""
    short = short_names(list(values))
    said = [f"{file_name(short[key])}-{_readable(value)}" for key, value in values.items()]
    return file_name("+".join(said) or "trial")


def trial_names(trials: Sequence[Mapping[str, str]], earlier: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return a name for each trial; names that would be equal end with a digest of the values.

    A trial of `earlier` commands, names with their values, keeps its name, which no other takes.
    """
    kept = {frozenset(values.items()): name for name, values in reversed([*earlier.items()])}
    names = [trial_name(values) for values in trials]
    texts = [" ".join(f"{key}={value}" for key, value in values.items()) for values in trials]
    found = []
    for values, name, text in zip(trials, names, texts, strict=True):
        is_free = names.count(name) == 1 and name not in earlier
        new = name if is_free else f"{name[: MAX_NAME - 9]}-{digest(text)}"
        found.append(kept.get(frozenset(values.items()), new))
    return found


def recorded(folder: Path, fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what sweep.json in `folder` records of each trial, with `fields`; nothing of another version.

    Raises:
        UserError: the file is damaged.
    """
    file = folder / "sweep.json"
    if not file.is_file():
        return []
    try:
        content = read_json(file, {"version": int, "trials": list, "others": list | None})
        rows = [*content["trials"], *(content.get("others") or [])] if content["version"] == VERSION else []
        for row in rows:
            if wrong := misfits(row, fields) if isinstance(row, dict) else ["a trial is no object"]:
                raise UserError(f"{file} is damaged: {'; '.join(wrong)}")
    except UserError as error:
        raise UserError(f"{error}; remove it") from error
    return rows


def recorded_values(folder: Path) -> dict[str, dict[str, str]]:
    """Return the values of each trial that sweep.json in `folder` records, by name."""
    rows = recorded(folder, {"name": str, "values": dict[str, str]})
    return {row["name"]: row["values"] for row in rows}


def recorded_settings(folder: Path) -> dict[frozenset[tuple[str, str]], str]:
    """Return the name of each trial that sweep.json in `folder` records, by all that was set for it."""
    rows = recorded(folder, {"name": str, "values": dict[str, str], "fixed": dict[str, str] | None})
    settings = [{**(row.get("fixed") or {}), **row["values"]} for row in rows]
    return {frozenset(one.items()): row["name"] for one, row in zip(settings, rows, strict=True)}


def _readable(value: str) -> str:
    """Return a value as part of a name: of a path its last part, of a list its entries."""
    parts = [part.strip("/").rpartition("/")[2] for part in re.split(r"[^\w./+-]+", value, flags=re.ASCII)]
    return "_".join(filter(None, parts)) or "_"


def sweep_folder(verb: str, swept: Sequence[str], fixed: Mapping[str, str], known: Sequence[str]) -> str:
    """Return the folder of a sweep over the keys `swept` in which keys and options `fixed` have these values.

    The name omits the values that are tried: trying more of them finds the finished trials again. A key is
    its last name, unless an earlier one of `known`, the keys of the verb, has this name.
    """
    first = dict[str, str]()
    for key in sorted(known, key=lambda key: "." in key):
        first.setdefault(key.rpartition(".")[2], key)
    short = {
        key: last if first.get(last := key.rpartition(".")[2]) == key else key for key in [*swept, *fixed]
    }
    said = [f"{short[key]}-{_readable(fixed[key])}" for key in sorted(fixed)]
    name = "+".join([verb] * (verb != "train") + ([short[key] for key in swept] or ["single"]) + said)
    cut = {key: fixed[key] for key in sorted(fixed) if _readable(fixed[key]) != fixed[key]}
    exact = "".join(f" {key}={value}" for key, value in cut.items())  # such as a path without its folder
    return f"{HOME}/{file_name(name + exact, MAX_FOLDER)}"


def file_name(text: str, longest: int = MAX_NAME) -> str:
    """Return `text` as the name of a directory: not too long, and different for different texts.

    It has only characters that Hydra and a shell take literally, so that `run=NAME` needs no quotes.
    """
    safe = re.sub(r"[^\w.+-]", "_", text, flags=re.ASCII).lstrip(".") or "_"
    if safe == text and len(safe) <= longest:
        return safe
    return f"{safe[: longest - 9]}-{digest(text)}"


def digest(text: str) -> str:
    """Return eight hexadecimal digits that stand for `text`."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def direction_of(metric: str, known: Mapping[str, bool]) -> Direction:
    """Return which values of `metric` are better; `known` says of names whether higher values are.

    Raises:
        UserError: nothing is known of the metric.
    """
    name = re.split(r"[./]", metric)[-1]
    if name in known:
        return Direction.maximize if known[name] else Direction.minimize
    near = suggest(name, known)
    raise UserError(
        f"sweep.metric={metric}: it is not known which values are better{near}; "
        "add sweep.direction=maximize or minimize"
    )
