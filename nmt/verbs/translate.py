"""The wiring of `nmt translate`: from standard input to standard output, or a large file."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nmt.config.compose import Composed
from nmt.config.roots import Task, TranslateConfig
from nmt.config.stored import to_plain
from nmt.data.lines import is_cut
from nmt.data.pairs import MAX_LINE_CHARS
from nmt.decoding.requests import Glossary, Request
from nmt.decoding.translate import translate
from nmt.errors import Log, UserError
from nmt.runs.markup import Markup
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
    return functools.partial(_translated, run, cfg, _glossary(cfg))


def _translated(
    run: Run, cfg: TranslateConfig, glossary: Glossary, lines: list[str], first: int, warn: Log
) -> Iterator[str]:
    """Yield the lines of output for some lines; `first` is the number of the first one, from 0."""
    requests = [_request(cfg, line, number) for number, line in enumerate(lines, start=first + 1)]
    is_json = cfg.writes_json
    markup = Markup(requests, warn, first + 1) if cfg.markup else None
    plain = markup.requests if markup else requests
    asked = list(run.asking_for(cfg.tgt, [glossary.applied(request) for request in plain]))
    found = translate(
        asked,
        run.searched(cfg.decoding),
        run.tokenizer,
        cfg.decoding,
        device=run.device,
        warn=warn,
        first_line=first + 1,
        token_scores=is_json,
    )
    if markup:
        markup.restore(run, asked, found, cfg.decoding)
    for number, translation in enumerate(found, start=first):
        if is_json:
            yield json.dumps(translation.as_json(), ensure_ascii=False, allow_nan=False)
        else:
            yield from output_lines(number, translation, cfg.decoding.n_best, cfg.scores)


def _request(cfg: TranslateConfig, line: str, number: int) -> Request:
    """Return what a line of input asks for; raise `UserError` that names the line by `number`."""
    is_json, name = cfg.reads_json, f"line {number} of the input"
    if not is_json and not cfg.prefixes:
        return Request(line)
    if is_cut(line):
        raise UserError(f"{name} has more than {MAX_LINE_CHARS:,} characters; remove it")
    return Request.from_json(line, name) if is_json else Request.from_pair(line, name)


def _glossary(cfg: TranslateConfig) -> Glossary:
    return Glossary({}) if cfg.glossary is None else Glossary.read(Path(cfg.glossary).expanduser())


def search_settings(decoding: Any) -> dict[str, Any]:
    """Return the keys of a search that translations depend on: not those of speed and memory."""
    return {f"decoding.{key}": value for key, value in to_plain(decoding).items() if key not in SPEED}


def _facts(cfg: TranslateConfig) -> dict[str, Any]:
    chosen = {
        "scores": cfg.scores,
        "prefixes": cfg.prefixes,
        "markup": cfg.markup,
        "glossary": _glossary(cfg).terms,
    }
    chosen |= {"writes JSON": cfg.writes_json, "reads JSON": cfg.reads_json}
    return search_settings(cfg.decoding) | {key: value for key, value in chosen.items() if value}


TRANSLATION = Work("translated", _opened, _facts)
