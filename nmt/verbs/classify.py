"""The wiring of `nmt classify`: texts in, labels out, line by line, or a large file."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator
from typing import Any

from nmt.config.composed import Composed
from nmt.config.roots import Task
from nmt.config.stored import load_run, to_plain
from nmt.data.configs import DataConfig
from nmt.errors import Log
from nmt.runs.asking import require_known, require_texts
from nmt.runs.opened import Run
from nmt.runs.opening import open_runs
from nmt.verbs.configs import ClassifyConfig
from nmt.verbs.file_job import Answers, LineWork, answer
from nmt.verbs.file_parts import Reader


def run(trial: Composed) -> dict[str, Any]:
    """Classify a file with several workers, or standard input line by line, in order."""
    answer(trial.to_config(ClassifyConfig), LABELS)
    return {}


def _open_answers(cfg: ClassifyConfig) -> Answers:
    run = open_runs(cfg)
    run.require_task(Task.classification)  # an error is an error before the first line is there
    require_known(cfg.tgt, cfg.domain, run.cfg.data)
    return functools.partial(_classified, run, cfg)


def _classified(run: Run, cfg: ClassifyConfig, lines: list[str], first: int, warn: Log) -> Iterator[str]:
    """Yield the line of output for each line; `first` is the number of the first one, from 0."""
    for label, probabilities in run.classify(lines, cfg.decoding, warn=warn, first_line=first + 1):
        if cfg.writes_json:
            rounded = {name: round(value, 6) for name, value in probabilities.items()}
            yield json.dumps({"label": label, "probabilities": rounded}, ensure_ascii=False)
        else:
            yield f"{label}\t{probabilities[label]:.4f}"


def _reader(cfg: ClassifyConfig) -> Reader | None:
    """Return the reader that checks lines; None for a run that finds no labels, which says so itself."""
    trained = load_run(cfg.runs[0])
    is_classifier = trained.task is Task.classification
    return functools.partial(_checked, data=trained.data) if is_classifier else None


def _checked(lines: Iterable[str], data: DataConfig) -> Iterator[str]:
    """Yield the lines as they are; raise `UserError` for one that a run of `data` does not classify."""
    for number, line in enumerate(lines, start=1):
        require_texts(line, f"line {number} of the input", data)
        yield line


def _facts(cfg: ClassifyConfig) -> dict[str, Any]:
    decoding = to_plain(cfg.decoding)
    shared = {f"decoding.{key}": decoding[key] for key in ("precision", "max_source_tokens")}
    return {"writes JSON": cfg.writes_json, **shared}


LABELS = LineWork("classified", _open_answers, _facts, _reader)
