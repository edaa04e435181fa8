"""The config.yaml of a run: written, read again, and compared with another config.

A stored config is plain, resolved data. It may come from a stranger, so it is read as `nmt.config.plain`
says, no key may be unknown, and the dataclass of a part is looked up by its name in a table.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import json
from collections.abc import Collection, Iterator, Sequence
from enum import Enum
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import Container, DictConfig, OmegaConf

from nmt.config.plain import Loader, dumped, named, parsed, read_text
from nmt.config.registry import VARIANTS
from nmt.config.renames import NEW_KEYS, NEW_PARTS, migrate
from nmt.config.roots import TrainConfig, decay_follows_limit, to_config, with_decoding
from nmt.config.spelling import shell_word, spelled
from nmt.containment import require_contained
from nmt.errors import UserError, first_of, suggest, warn
from nmt.files import OUTPUTS, read_json, write_atomically
from nmt.metrics.scoring import default_best

PLACE = (
    "runtime.device",
    "runtime.threads",
    "runtime.parallel",
    "runtime.timeout_minutes",
    "runtime.grace_seconds",
    "runtime.requeue",
)
"""Keys that say where a training is computed and how it is stopped there, and nothing of what it computes."""

REPORTING = (
    "run",
    "trainer.num_samples",
    "trainer.gradient_checkpointing",
    "trainer.measures",
    "trainer.on_nonfinite",
    "trainer.max_recoveries",
    "trainer.divergence_ratio",
    "data.scored_split",
    "decoding.*",
    "validation_decoding*",
    "num_validation_pairs",
    "tuned_decoding*",
    "metrics",
    "scoring.*",
    "sets",
    "sets.*",
    "data.references",
    "tracking.*",
    *PLACE,
)
"""Keys that say where and how a run is computed, scored and shown, and what follows a failure; the name of
its directory does not depend on them, but where an objective learns from them (`further_keys`)."""

FOUND = ("trainer.auto_batch_tokens", "trainer.epoch_steps", "trainer.update_tokens")
"""Keys that a run finds values for: the name of its directory does not depend on them, the weights do."""

LIMITS = (
    "trainer.max_steps",
    "trainer.max_epochs",
    "trainer.max_tokens",
    "trainer.max_minutes",
    "trainer.patience",
)
"""Keys that say when a training ends."""

RESUMABLE = (
    *REPORTING,
    *LIMITS,
    "trainer.*_every_steps",
    "trainer.keep_*",
    "trainer.average*",
    "trainer.changes",
)
"""Keys that may differ when a run goes on: they change how long it trains, what it reports, and, of updates
to come, `trainer.changes`."""

CHANGES = {
    "schedule.factor": "rate_factor",
    "schedule.peak_rate": "rate_factor",
    "model.*dropout": "dropout_factor",
    "trainer.accumulate": "accumulate",
    "trainer.batch_tokens": "accumulate",
}
"""What `trainer.changes` has for keys that a run keeps."""


_SEAL = "# SHA-256 of the values: "
"""What begins the last line of a stored config."""


def to_plain(cfg: object) -> dict[str, Any]:
    """Return a config as nested dicts of numbers, strings, lists and None; of a class, its defaults."""
    if isinstance(cfg, type):
        cfg = OmegaConf.to_container(OmegaConf.structured(cfg))
    return cast(dict[str, Any], _plain(cfg))


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value):
        parts = [part for part in dataclasses.fields(value) if not part.metadata.get("omegaconf_ignore")]
        return {part.name: _plain(getattr(value, part.name)) for part in parts}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Container):  # an open group of a config that was not composed
        return OmegaConf.to_container(value, enum_to_str=True)
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def fingerprint(cfg: TrainConfig) -> str:
    """Return eight hexadecimal digits, a hash of all that decides which weights a training ends with."""
    plain = to_plain(cfg)
    if plain["adapt"] == NEW_PARTS["adapt"]:  # all runs before there was a choice
        del plain["adapt"]
    for key in NEW_KEYS:
        part, name = key.split(".")
        if plain[part][name] is None:
            del plain[part][name]
    deciding = cfg.objective.further_keys
    free = (*REPORTING, *FOUND)
    kept = {k: value for k, value in flat(plain) if matches(k, deciding) or not matches(k, free)}
    return hashlib.sha256(yaml.safe_dump(kept).encode()).hexdigest()[:8]


def save_config(cfg: TrainConfig, path: Path) -> None:
    """Write `cfg` to `path`, which afterwards holds all of it or is unchanged; see `warn_of_edits`."""
    text = dumped(to_plain(cfg))
    write_atomically(path, f"{text}{_SEAL}{_sum_of_values(text)}\n".encode())


def _sum_of_values(text: str) -> str:
    """Return the SHA-256 of what YAML says, however it is written."""
    return hashlib.sha256(json.dumps(Loader(text).get_single_data()).encode()).hexdigest()


def warn_of_edits(path: Path) -> None:
    """Warn, once in a process, where `path` has other values than `save_config` has written there."""
    with named(path):
        _warn_of_edits(path, read_text(path))


@functools.cache
def _warn_of_edits(path: Path, text: str) -> None:
    _, seal, end = text.rpartition(_SEAL)
    if seal and end.split()[:1] != [_sum_of_values(text)]:
        warn(
            f"{path} was edited after nmt wrote it, and its values are taken as they are now; restore them, "
            f"or remove the line {_SEAL.strip()!r} if they are to stay"
        )


def load_config(path: Path) -> TrainConfig:
    """Read what `save_config` wrote.

    Raises:
        UserError: the file is missing, not plain, or does not fit this version; names the file and the key.
    """
    with named(path):
        return copy.deepcopy(_config(read_text(path)))


@functools.lru_cache(maxsize=64)
def _config(text: str) -> TrainConfig:
    """Return the config with this text: a command opens that of a run several times."""
    return to_config(_typed(parsed(text)), TrainConfig)


def load_run(run: str, key: str = "run", *, tuned: bool = True) -> TrainConfig:
    """Return the config of the run directory `run`, which `key` names.

    Its search is that which the end of the training has found, if `tuned_decoding` asked for one; without
    `tuned`, it is that of the training.

    Raises:
        UserError: it is no run directory, leads out of itself, or has no config of this version.
    """
    path = Path(run)
    if not path.is_dir():
        raise UserError(f"{key}={run} is not a directory{known_runs(run)}")
    require_contained(path)
    if not (path / "config.yaml").is_file():
        raise UserError(f"{key}={run} is not a run directory: it has no config.yaml{known_runs(run)}")
    cfg = load_config(path / "config.yaml")
    return with_tuned(cfg, path / "results.json") if tuned and cfg.tuned_decoding else cfg


def with_tuned(cfg: TrainConfig, results: Path) -> TrainConfig:
    """Return `cfg` with the values that `tuned_decoding` has found, if the file `results` has them."""
    if not results.is_file():
        return cfg
    try:
        found = read_json(results, {"tuned_decoding": dict[str, Any] | None}).get("tuned_decoding") or {}
    except UserError as error:
        way_out = (
            f"restore it, or remove it, and nmt train {shell_word('run', results.parent)} scores the run anew"
        )
        raise UserError(f"{error}; {way_out}") from error
    with named(results):
        return with_decoding(cfg, found)


def known_runs(wanted: str = "") -> str:
    """Return the end of an error message: the run directory nearest to `wanted`, or some that exist."""
    folders = {Path(OUTPUTS), *([Path(wanted), Path(wanted).parent] if wanted else [])}
    patterns = ["*/" * depth + "config.yaml" for depth in (1, 2, 3)]
    found = sorted({str(file.parent) for folder in folders for p in patterns for file in folder.glob(p)})
    listed = f"; there is {', '.join(found[:5])}{', ...' if len(found) > 5 else ''}" if found else ""
    return suggest(wanted, found) or listed


def _typed(plain: dict[str, Any]) -> DictConfig:
    """Return the values of a stored config under the types of the dataclasses that it names."""
    migrate(plain)
    plain.setdefault("adapt", dict(NEW_PARTS["adapt"]))
    chosen = dict[str, type]()
    for part, (name_field, classes) in VARIANTS.items():
        values = plain.get(part)
        name = values.get(name_field) if isinstance(values, dict) else None
        if not isinstance(name, str) or name not in classes:
            near = suggest(str(name), classes)
            raise UserError(f"{part}.{name_field} must be one of {', '.join(classes)}, but is {name!r}{near}")
        chosen[part] = classes[name]
    schema = _schema(tuple(chosen.items()))
    for name in map(str, schema):
        if OmegaConf.is_dict(schema[name]) and not isinstance(plain.get(name, {}), dict):
            raise UserError(f"{name} must be a group of keys, but is {plain[name]!r}")
    return cast(DictConfig, OmegaConf.merge(schema, plain))


@functools.cache
def _schema(chosen: tuple[tuple[str, type], ...]) -> DictConfig:
    """Return the types of a config with these parts; nothing changes it."""
    schema = OmegaConf.structured(TrainConfig)
    for part, cls in chosen:
        schema[part] = cls
    OmegaConf.set_readonly(schema, True)
    return cast(DictConfig, schema)


def difference(stored: TrainConfig, new: TrainConfig) -> list[str]:
    """Return a line "key: stored -> new" for every value that differs, except the run directory."""
    return [f"{key}: {old} -> {value}" for key, old, value in _changes(stored, new) if key != "run"]


def may_change(key: str) -> bool:
    """Return whether a run can go on under another value of `key`."""
    return matches(key, RESUMABLE)


def refuse_difference(
    stored: TrainConfig,
    new: TrainConfig,
    run_dir: Path,
    step: int,
    key: str = "run",
    typed: Collection[str] = (),
) -> list[str]:
    """Return `difference`, unless the run in `run_dir` cannot go on after `step` under the new config.

    `key` names `run_dir` on the command line, which sets the keys `typed`.

    Raises:
        UserError: a value that must not change differs; the message lists all such values, those that are
            typed, if any are, before the names of the others.
    """
    further, ended = stored.objective.further_keys, (run_dir / "results.json").is_file()
    fixed = [
        (key, old, value)
        for key, old, value in _changes(stored, new)
        if not may_change(key)
        or matches(key, further)
        or _moves_decay_or_stage(key, stored)
        or _changes_the_past(key, stored, new, step)
        or (ended and _changes_nothing(key, stored, new))
    ]
    if fixed:
        own = [one for one in fixed if "experiment" not in typed and _is_below(one[0], typed)]
        told, left = own or fixed, [one[0] for one in fixed if own and one not in own]
        differing = [f"{key}: {old} -> {value}{_reason(key, stored, new, step)}" for key, old, value in told]
        if left:
            differing.append(f"and what this command leaves to its defaults: {first_of(left, 3)}")
        lines = "\n  ".join([f"{run_dir} belongs to a run with another config:", *differing])
        hint = _hint([key for key, old, _ in told if old], stored, run_dir, step, ended=ended)
        raise UserError(
            f"{lines}\nsay nmt train {shell_word('run', run_dir)} alone to go on with the config there, give "
            f"its values, or start a new run with another {key}=...{hint}"
        )
    return difference(stored, new)


def _is_below(key: str, typed: Collection[str]) -> bool:
    """Return whether `key` is one of the keys `typed`, or in a group of them."""
    return any(key == one or key.startswith(f"{one}.") for one in typed)


def matches(key: str, patterns: Sequence[str]) -> bool:
    """Return whether a full key fits one of the patterns."""
    return any(fnmatch(key, pattern) for pattern in patterns)


def _hint(fixed: Sequence[str], stored: TrainConfig, run_dir: Path, step: int, *, ended: bool) -> str:
    """Return how to come to what cannot be changed for all of a run, if there is a way.

    That is from the next update on, or of a run that has `ended`, and of one that depends on its end, in a
    training that starts from its model.
    """
    if step and (ended or any(_moves_decay_or_stage(key, stored) for key in fixed)):
        return f"; with {shell_word('init', run_dir)}, too, that starts from its model"
    names = {name: None for key in fixed for pattern, name in CHANGES.items() if fnmatch(key, pattern)}
    if not names or step == 0:
        return ""
    values = ", ".join([f"step: {step + 1}", *(f"{name}: ..." for name in names)])
    kept = [spelled(change) for change in stored.trainer.changes or [] if change["step"] <= step]
    changes = ", ".join([*kept, f"{{{values}}}"])
    return f"; from the next update on, 'trainer.changes=[{changes}]' changes it"


def _reason(key: str, stored: TrainConfig, new: TrainConfig, step: int) -> str:
    """Return why the new value of `key` cannot be, where that is not plain."""
    if _moves_decay_or_stage(key, stored):
        what = f"schedule={stored.schedule.name} decays" if decay_follows_limit(stored) else "data.stages end"
        return f" ({what} by it, from the first update on)"
    if _changes_the_past(key, stored, new, step):
        return f" (what it has up to update {step}, the newest checkpoint, must stay)"
    if key == "trainer.changes":
        return f" (update {step} was the last; set trainer.max_steps, too, for updates to come)"
    moved = key == "trainer.best_metric" and stored.metrics != new.metrics
    if not moved or new.trainer.best_metric != default_best(new.metrics):
        return ""
    return " (of metrics, unless it is set: the first of them whose higher values are better)"


def _moves_decay_or_stage(key: str, stored: TrainConfig) -> bool:
    return key == "trainer.max_steps" and (decay_follows_limit(stored) or stored.data.stages_follow_limit)


def _changes_the_past(key: str, stored: TrainConfig, new: TrainConfig, step: int) -> bool:
    before, after = (cfg.trainer.changes_until(step) for cfg in (stored, new))
    return key == "trainer.changes" and before != after


def _changes_nothing(key: str, stored: TrainConfig, new: TrainConfig) -> bool:
    """Return whether `key` is about updates to come, which no other limit lets a run that has ended make."""
    prolonged = any(matches(one, LIMITS) for one, *_ in _changes(stored, new))
    return key == "trainer.changes" and not prolonged


def _changes(stored: TrainConfig, new: TrainConfig) -> list[tuple[str, Any, Any]]:
    before, after = dict(flat(to_plain(stored))), dict(flat(to_plain(new)))
    keys = [*before, *(key for key in after if key not in before)]
    return [
        (key, before.get(key, "unset"), after.get(key, "unset"))
        for key in keys
        if before.get(key, "unset") != after.get(key, "unset")
    ]


def flat(plain: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the keys of dicts in dicts, with dots between, and their values; nothing of an empty one."""
    for name, value in plain.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
