"""The wiring of `nmt classify`: texts in, labels out, line by line, or a large file."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any

from nmt.config.composed import Composed
from nmt.config.roots import Task
from nmt.config.stored import to_plain
from nmt.errors import Log
from nmt.runs.asking import require_known
from nmt.runs.opened import Run
from nmt.runs.opening import open_runs
from nmt.verbs.configs import ClassifyConfig
from nmt.verbs.file_job import Answers, LineWork, answer


def run(trial: Composed) -> dict[str, Any]:
    """Classify a file with several workers, or standard input line by line, in order."""
    answer(trial.to_config(ClassifyConfig), LABELS)
    return {}


def _opened(cfg: ClassifyConfig) -> Answers:
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


def _facts(cfg: ClassifyConfig) -> dict[str, Any]:
    decoding = to_plain(cfg.decoding)
    shared = {f"decoding.{key}": decoding[key] for key in ("precision", "max_source_tokens")}
    return {"writes JSON": cfg.writes_json, **shared}


LABELS = LineWork("classified", _opened, _facts)
