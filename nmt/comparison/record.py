"""What the files of one run tell, without its weights: config, state, scores, curves and cost.

Reads runs of any version, finished or not, also while they are trained. A run may come from a stranger, or be
damaged: then `read_run` says so in one `UserError`.
"""

from __future__ import annotations

import functools
import math
import os
import re
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nmt.config.plain import named, read_plain
from nmt.config.renames import migrate
from nmt.config.stored import flat
from nmt.containment import require_contained
from nmt.errors import UserError
from nmt.files import (
    EXPORT_RECORD,
    IMPORT_RECORD,
    MAX_JSON_BYTES,
    lines_of,
    misfits,
    parse_json,
    read_json,
    require_unlocked,
    step_record,
)
from nmt.metrics.scoring import METRICS, default_best, higher_is_better

PARTS = ("model", "data", "trainer")
"""Parts that the config of every training has."""
MARKS = ("checkpoints", "metrics.jsonl", "results.json")
"""Names that only a run directory has."""
STATES = ("done", "running", "stopped", "failed", "killed", "unknown", "imported", "exported", "new")
"""States of a run in `nmt runs`."""
SPLITS = ("validation", "test", "train")
OF_VALIDATIONS = ("validation_decoding", "num_validation_pairs")
"""Keys by which validations before the end translate otherwise."""
CHECKPOINT = re.compile(r"step_(\d{8,})")


@dataclass
class RunRecord:
    """The facts about one run that its files tell."""

    path: Path
    stated: dict[str, Any]
    """Full key -> value, such as model.d_model; keys of earlier versions have their present names."""
    state: str
    """One of `STATES`."""
    reason: str
    """What ended the training, where that is known."""
    step: int
    """Newest step that is known of."""
    validation: dict[str, float]
    """Scores of the final weights, else the best validation so far."""
    tests: dict[str, dict[str, float]]
    """Scores of the final weights by split, without validation."""
    signatures: dict[str, str]
    """How each score was computed, by metric."""
    scored_step: int | None
    """Step that `validation` is of."""
    parameters: int | None
    seconds: float | None
    """Wall-clock time of training, validations included."""
    tokens: int | None
    """Target tokens trained on."""
    changed: float
    """When a file of the run was last written, in seconds since 1970."""
    results: dict[str, Any] = field(default_factory=dict)

    @property
    def steps(self) -> int | None:
        """The limit of the training in steps; None of a model that was not trained here."""
        value = self.config.get("trainer.max_steps")
        is_trained = self.state not in ("imported", "exported")
        return value if is_trained and isinstance(value, int) else None

    def signatures_of(self, name: str) -> dict[str, str]:
        """Return how each score of the set `name` of `sets` was computed, by metric."""
        sets = self.results.get("sets")
        found = sets.get(name) if isinstance(sets, dict) else None
        signatures = found.get("signatures") if isinstance(found, dict) else None
        return {str(key): str(x) for key, x in (signatures if isinstance(signatures, dict) else {}).items()}

    @property
    def validated_by(self) -> str:
        """Settings of a validation before the end that `validation` is by; empty where they are not its."""
        keys = [key for key in self.config if key.partition(".")[0] in OF_VALIDATIONS]
        given = {key: self.config[key] for key in keys if "validation" not in self.results}
        return " ".join(f"{key}={value}" for key, value in given.items() if value is not None)

    @property
    def tuned(self) -> dict[str, Any]:
        """The keys of the search that the end of the training has chosen by tuned_decoding, with values."""
        found = self.results.get("tuned_decoding")
        return {f"decoding.{key}": x for key, x in (found if isinstance(found, dict) else {}).items()}

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """Values as they are in the end: `stated`, with the search that was found."""
        return self.stated | self.tuned

    @property
    def best_metric(self) -> str:
        """The score that chose the best checkpoint."""
        return _best_metric(self.config)


def find_runs(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the run directories in `folder`, itself included, and folders that look like damaged ones.

    Links are not followed, and no run is sought inside of another.
    """
    runs, foreign = list[Path](), list[Path]()
    for place, folders, files in os.walk(folder):
        found = {*folders, *files}
        if "config.yaml" in found:
            runs.append(Path(place))
        elif len(found & {*MARKS}) > 1:
            foreign.append(Path(place))
        if "config.yaml" in found or place in map(str, foreign):
            folders.clear()
        folders[:] = sorted(name for name in folders if not name.startswith("."))
    return sorted(runs), sorted(foreign)


def read_run(path: Path) -> RunRecord:
    """Return what the files of the run in `path` tell.

    Raises:
        UserError: the folder is no run, leads out of itself, or a file that counts is damaged.
    """
    require_contained(path)
    config = read_config(path / "config.yaml")
    results = _optional_json(path / "results.json")
    validations, last_step = _validations(path / "metrics.jsonl")
    splits = dict(_scores_of(results))
    checkpoint = _newest_checkpoint(path)
    progress = _progress(checkpoint)
    scored_step, validation = _best(validations, _best_metric(config))
    if "validation" in splits:
        scored_step, validation = results.get("step"), splits.pop("validation")
    state, reason, known_step = _state(path, bool(results), checkpoint is not None)
    seconds = as_number(results.get("train_seconds", progress.get("seconds"))) or None
    names = ("metrics.jsonl", "status.json", "results.json", "config.yaml")
    written = [(path / name).stat().st_mtime for name in names if (path / name).is_file()]
    signatures = results["signatures"] if isinstance(results.get("signatures"), dict) else {}
    return RunRecord(
        path=path,
        stated=config,
        state=state,
        reason=reason,
        step=max(last_step, known_step, _integer(progress.get("step"))),
        validation=validation,
        tests=splits,
        signatures={str(name): str(value) for name, value in signatures.items()},
        scored_step=_integer(scored_step) or None,
        parameters=_num_parameters(checkpoint),
        seconds=seconds,
        tokens=_integer(progress.get("tokens")) or None,
        changed=max(written, default=0.0),
        results=results,
    )


def training_data(run: Path) -> str:
    """Return the SHA-256 of the pairs that a run was trained on; empty where it has stored none."""
    return str(_optional_json(run / "data" / "train.json").get("sha256", ""))


def read_config(file: Path) -> dict[str, Any]:
    """Return a stored config as full keys with their values; quick, since nothing is checked by dataclasses.

    Raises:
        UserError: the file cannot be read, is not plain YAML, or is not the config of a training.
    """
    with named(file):
        plain = read_plain(file)
    if not all(isinstance(plain.get(part), dict) for part in PARTS):
        raise UserError(f"{file} is not the config of a training of nmt")
    migrate(plain)
    return dict(flat(plain))


def _best_metric(config: dict[str, Any]) -> str:
    """Return the score that chooses the best checkpoint; configs of earlier versions may say auto."""
    name, metrics = str(config.get("trainer.best_metric", "loss")), config.get("metrics")
    known = [
        str(metric) for metric in (metrics if isinstance(metrics, list) else []) if str(metric) in METRICS
    ]
    return default_best(known) if name == "auto" else name


def _validations(file: Path) -> tuple[dict[int, dict[str, float]], int]:
    """Return the validation scores by step, and the newest step, of metrics.jsonl."""
    found, line = dict[int, dict[str, float]](), b""
    for line in lines_of(file):
        if b'"valid/' in line and (record := step_record(line)):
            scores = {key[6:]: value for key, value in record.items() if key.startswith("valid/")}
            found[record["step"]] = _numbers(scores)
    return found, max([_integer(step_record(line).get("step")), *map(_integer, found)])


def _best(validations: dict[int, dict[str, float]], metric: str) -> tuple[int | None, dict[str, float]]:
    sign = 1 if higher_is_better(metric) else -1
    scored = {step: sign * one[metric] for step, one in validations.items() if metric in one}
    scored = {step: value for step, value in scored.items() if not math.isnan(value)}
    if not scored:
        return None, {}
    step = max(scored, key=lambda step: (scored[step], -validations[step].get("loss", math.inf)))
    return step, validations[step]


def _scores_of(results: dict[str, Any]) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the name of each scored split, such as test or test-news of a set named news, and its scores."""
    sets = results.get("sets")
    named = {f"-{name}": found for name, found in sets.items()} if isinstance(sets, dict) else {}
    for end, splits in {"": results, **named}.items():
        for split in SPLITS:
            if isinstance(splits, dict) and isinstance(splits.get(split), dict):
                yield f"{split}{end}", _numbers(splits[split])


def _numbers(found: Any) -> dict[str, float]:
    """Return the numbers in a JSON object, which may be written as "nan" or "inf", or be null."""
    values = {str(name): as_number(value) for name, value in found.items()}
    return {name: math.nan if value is None else value for name, value in values.items()}


def _integer(value: Any) -> int:
    return value if type(value) is int and 0 <= value < 1 << 63 else 0


def as_number(value: Any) -> float | None:
    """Return a number as `write_json` writes it, or None for what is none."""
    if isinstance(value, str) and value not in ("nan", "inf", "-inf"):
        return None
    return float(value) if isinstance(value, (int, float, str)) else None


def _optional_json(file: Path) -> dict[str, Any]:
    return read_json(file) if file.is_file() else {}


def _newest_checkpoint(path: Path) -> Path | None:
    folder = path / "checkpoints"
    found = [one for one in (folder.iterdir() if folder.is_dir() else ()) if CHECKPOINT.fullmatch(one.name)]
    return max(found, key=lambda one: one.name, default=None)


def _progress(checkpoint: Path | None) -> dict[str, Any]:
    """Return what the newest checkpoint remembers of its training; nothing where it cannot be read."""
    if checkpoint is None or not (checkpoint / "state.json").is_file():
        return {}
    found = read_json(checkpoint / "state.json").get("progress")
    return found if isinstance(found, dict) else {}


def _num_parameters(checkpoint: Path | None) -> int | None:
    """Return the number of weights of a checkpoint and of those beside which it has learnt few, if any."""
    if checkpoint is None:
        return None
    base = checkpoint.parent / "base.safetensors"
    counts = [_num_stored(checkpoint / "model.safetensors"), _num_stored(base) if base.is_file() else 0]
    return None if None in counts else sum(filter(None, counts))


def _num_stored(file: Path) -> int | None:
    """Return the number of weights by the header of a file of safetensors, which lists their shapes."""
    with suppress(OSError, ValueError, struct.error), file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        tensors = {**parse_json(stream.read(min(length, MAX_JSON_BYTES))), "__metadata__": {"shape": [0]}}
        shapes = [one.get("shape") for one in tensors.values() if isinstance(one, dict)]
        if not misfits({"shapes": shapes}, {"shapes": list[list[int]]}):
            number = sum(map(math.prod, shapes))  # type: ignore[arg-type]
            return number if number < 1 << 63 else None
    return None


def _state(path: Path, has_results: bool, has_checkpoint: bool) -> tuple[str, str, int]:
    """Return the state of a run, what ended it, and the step that status.json names.

    A run counts as running while a process holds its lock. Another machine may hold it unseen: then the
    state is unknown.
    """
    status = _optional_json(path / "status.json")
    told, reason = str(status.get("state", "")), str(status.get("reason", ""))
    step = _integer(status.get("step"))
    if _is_locked(path):
        return "running", "", step
    if told == "running" and not has_results:
        host = str(status.get("host", ""))
        if host != socket.gethostname():
            return "unknown", f"said to run on {host}", step
        return "killed", "its process is gone", step
    known = {"finished": "done", "preempted": "stopped", "stopped": "stopped", "failed": "failed"}
    if has_results and (has_checkpoint or told in ("", "running", "finished")):
        return "done", "", step
    for state, file in (("exported", EXPORT_RECORD), ("imported", IMPORT_RECORD)):
        if not told and (path / file).is_file():
            return state, "", step
    return known.get(told, "stopped" if has_checkpoint else "new"), reason, step


def _is_locked(path: Path) -> bool:
    try:
        require_unlocked(path, "")
    except UserError:
        return True
    return False
