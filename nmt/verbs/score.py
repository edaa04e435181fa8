"""The wiring of `nmt score`: log probabilities of given translations, or of text under a language model.

A line of input is SOURCE, TAB, TARGET; for a language model it is a text. A line of output is the score; with
`per_token` there follow, after a TAB each, the pieces of the target and the log probability of each piece,
with spaces between.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

from nmt.config.composed import Composed
from nmt.config.roots import Task
from nmt.config.stored import load_run, to_plain
from nmt.data.parallel_text import MAX_LINE_CHARS
from nmt.data.reading.lines import is_cut
from nmt.errors import Log, UserError
from nmt.runs.opened import Run
from nmt.runs.opening import open_runs
from nmt.translation.score import PairScore
from nmt.verbs.configs import ScoreConfig
from nmt.verbs.file_job import Answers, LineWork, answer
from nmt.verbs.file_parts import Reader


def run(trial: Composed) -> dict[str, Any]:
    """Score a file with several workers, or standard input line by line, in order."""
    answer(trial.to_config(ScoreConfig), SCORES)
    return {}


def _open_answers(cfg: ScoreConfig) -> Answers:
    run = open_runs(cfg)
    run.score([], cfg.decoding, cfg.tgt, domain=cfg.domain)  # an error before the first line is there
    return functools.partial(_scored, run, cfg)


def _scored(run: Run, cfg: ScoreConfig, lines: list[str], first: int, warn: Log) -> Iterator[str]:
    """Yield the line of output for each line; `first` is the number of the first one, from 0."""
    pairs = [split_pair(line, number, run.cfg.task) for number, line in enumerate(lines, start=first + 1)]
    found = run.score(pairs, cfg.decoding, cfg.tgt, domain=cfg.domain, warn=warn, first_line=first + 1)
    for scored in found:
        value = f"{scored.per_token if cfg.normalise else scored.log_prob:.4f}"
        yield "\t".join([value, *_columns(run, scored)]) if cfg.per_token else value


def _reader(cfg: ScoreConfig) -> Reader | None:
    """Return the reader that checks lines; None for a run that scores nothing, which says so itself."""
    task = load_run(cfg.runs[0]).task
    return None if task is Task.classification else functools.partial(_checked, task=task)


def _checked(lines: Iterable[str], task: Task) -> Iterator[str]:
    """Yield the lines as they are; raise `UserError` for one that `split_pair` refuses."""
    for number, line in enumerate(lines, start=1):
        split_pair(line, number, task)
        yield line


def split_pair(line: str, number: int, task: Task) -> tuple[str, str]:
    """Return source and target of a line, an empty source for a language model.

    Raises:
        UserError: the line has not one TAB, or for a language model has one; names the line by `number`.
    """
    num_tabs = line.count("\t")
    if is_cut(line):
        raise UserError(f"line {number} of the input has more than {MAX_LINE_CHARS:,} characters; remove it")
    if task is Task.language_model and not num_tabs:
        return "", line
    if task is Task.language_model:
        raise UserError(f"line {number} of the input has a TAB, but a line is a text for a language model")
    if num_tabs != 1:
        found = f"{num_tabs} TABs" if num_tabs else "no TAB"
        raise UserError(f"line {number} of the input has {found}; a line is SOURCE TAB TARGET")
    source, _, target = line.partition("\t")
    return source, target


def _columns(run: Run, scored: PairScore) -> tuple[str, str]:
    pieces = run.tokenizer.tgt_spellings(scored.ids)
    return " ".join(pieces), " ".join(f"{log_prob:.4f}" for log_prob in scored.log_probs)


def _facts(cfg: ScoreConfig) -> dict[str, Any]:
    decoding = to_plain(cfg.decoding)
    shared = {f"decoding.{key}": decoding[key] for key in ("precision", "max_source_tokens")}
    return {"normalise": cfg.normalise, "per_token": cfg.per_token, **shared}


SCORES = LineWork("scored", _open_answers, _facts, _reader)
