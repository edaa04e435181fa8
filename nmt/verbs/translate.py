"""The wiring of `nmt translate`: from standard input to standard output, or a large file."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from nmt.config.compose import Composed
from nmt.config.roots import Task, TranslateConfig
from nmt.config.stored import to_plain
from nmt.decoding.translate import translate
from nmt.errors import Log
from nmt.runs.opened import Run, open_runs, output_lines
from nmt.verbs.file_job import Answers, Work, answer, answer_file

SPEED = ("batch_tokens", "cuda_graphs")
"""Keys of a search that change speed and memory, not the translations."""


def run(trial: Composed) -> dict[str, Any]:
    """Translate a file with several workers, or standard input line by line, in order."""
    answer(trial.to_config(TranslateConfig), TRANSLATION)
    return {}


def translate_file(cfg: TranslateConfig) -> None:
    """Translate `cfg.input` to `cfg.output`; see `answer_file`."""
    answer_file(cfg, TRANSLATION)


def _opened(cfg: TranslateConfig) -> Answers:
    run = open_runs(cfg)
    run.require_task(Task.translation)
    run.asking_for(cfg.tgt, [])  # an error is an error before the first line is there
    return functools.partial(_translated, run, cfg)


def _translated(run: Run, cfg: TranslateConfig, lines: list[str], first: int, warn: Log) -> Iterator[str]:
    """Yield the lines of output for some lines; `first` is the number of the first one, from 0."""
    found = translate(
        list(run.asking_for(cfg.tgt, lines)),
        run.searched(cfg.decoding),
        run.tokenizer,
        cfg.decoding,
        device=run.device,
        warn=warn,
        first_line=first + 1,
    )
    for number, translation in enumerate(found, start=first):
        yield from output_lines(number, translation, cfg.decoding.n_best, cfg.scores)


def search_settings(decoding: Any) -> dict[str, Any]:
    """Return the keys of a search that translations depend on: not those of speed and memory."""
    return {f"decoding.{key}": value for key, value in to_plain(decoding).items() if key not in SPEED}


def _facts(cfg: TranslateConfig) -> dict[str, Any]:
    return search_settings(cfg.decoding) | ({"scores": True} if cfg.scores else {})


TRANSLATION = Work("translated", _opened, _facts)
