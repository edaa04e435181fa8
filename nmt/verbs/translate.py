"""The wiring of `nmt translate`: from standard input to standard output, or a large file."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from nmt.config.composed import Composed
from nmt.config.roots import Task, TrainConfig, TranslateConfig
from nmt.config.stored import load_run, to_plain
from nmt.data.augment.translation_memory import TranslationMemory
from nmt.data.configs import DataConfig
from nmt.data.documents import PreviousLines
from nmt.data.parallel_text import MAX_LINE_CHARS
from nmt.data.reading.lines import is_cut
from nmt.decoding.configs import GlossaryUse
from nmt.errors import Log, UserError
from nmt.files import digest, path_of
from nmt.runs.asking import require_answerable, require_choice, require_enforceable, require_known
from nmt.runs.opened import Run
from nmt.runs.opening import open_runs
from nmt.translation.offers import Offers, read_memory
from nmt.translation.requests import Glossary, Request
from nmt.translation.translate import Translation
from nmt.verbs.file_job import Answers, LineWork, answer, answer_file
from nmt.verbs.file_parts import Reader

SPEED = ("batch_tokens", "cuda_graphs")
"""Keys of a search that change speed and memory, not the translations."""


def run(trial: Composed) -> dict[str, Any]:
    """Translate a file with several workers, or standard input line by line, in order."""
    answer(trial.to_config(TranslateConfig), TRANSLATION)
    return {}


def translate_file(cfg: TranslateConfig) -> None:
    """Translate `cfg.input` to `cfg.output`; see `answer_file`."""
    answer_file(cfg, TRANSLATION)


def _open_answers(cfg: TranslateConfig) -> Answers:
    run = open_runs(cfg)
    run.require_task(Task.translation)
    require_known(cfg.tgt, cfg.domain, run.cfg.data)  # an error is an error before the first line is there
    if not cfg.reads_json:  # whose lines may name their languages
        require_choice(cfg.tgt, run.cfg.data)
    memory = _memory(cfg, run.cfg.data)
    offers = Offers(_glossary(cfg), cfg.glossary_use, memory, cfg.memory_least, cfg.tgt)
    run.with_offers([], cfg.decoding, offers)
    if cfg.markup:
        run.require_markup()
    return functools.partial(_translated, run, cfg, offers)


def _translated(
    run: Run, cfg: TranslateConfig, offers: Offers, lines: list[str], first: int, warn: Log
) -> Iterator[str]:
    """Yield the lines of output for some lines; `first` is the number of the first one, from 0."""
    requests = [_request(cfg, line, number) for number, line in enumerate(lines, start=first + 1)]
    found = run.translated_lines(
        requests,
        cfg.decoding,
        cfg.tgt,
        domain=cfg.domain,
        offers=offers,
        markup=cfg.markup,
        warn=warn,
        first_line=first + 1,
        token_scores=cfg.writes_json,
    )
    for number, translation in enumerate(found, start=first):
        if cfg.writes_json:
            yield json.dumps(translation.as_json(), ensure_ascii=False, allow_nan=False)
        else:
            yield from output_lines(number, translation, cfg.decoding.n_best, cfg.scores)


def output_lines(number: int, translation: Translation, n_best: int, scores: bool = False) -> Iterator[str]:
    """Yield the translation, or the lines of an n-best list in the format of Moses; `number` is from 0.

    A tag of JSON may have line feeds, which become spaces: a translation is one line.
    """
    for candidate in (translation, *translation.alternatives)[:n_best]:
        text = re.sub(r"\r?\n", " ", candidate.text)
        yield f"{number} ||| {text} ||| {candidate.score:.4f}" if scores or n_best > 1 else text


def _request(cfg: TranslateConfig, line: str, number: int) -> Request:
    """Return what a line of `_reader` asks for; raise `UserError` that names the line by `number`."""
    is_json, name = cfg.reads_json or cfg.documents, f"line {number} of the input"
    if not is_json and not cfg.prefixes:
        return Request(line)
    return Request.from_json(line, name) if is_json else Request.from_pair(line, name)


def _reader(cfg: TranslateConfig) -> Reader | None:
    """Return the reader that checks lines and gives each its context; None for lines that are texts alone.

    Raises:
        UserError: the lines are documents, but the run was trained without context.
    """
    trained = _trained(cfg)
    if trained.task is not Task.translation:  # which is said where the run is opened
        return None
    checked = functools.partial(_checked, cfg=cfg, data=trained.data)
    if not cfg.documents:
        return checked if cfg.reads_json or cfg.prefixes else None
    most = trained.data.context
    if not most:
        raise UserError(
            f"documents=true needs a run that was trained with data.context, but {cfg.runs[0]} was not; "
            "leave it out: each line is translated by itself"
        )
    if not cfg.reads_json:
        return functools.partial(with_previous_lines, most=most, are_json=False)
    return lambda lines: with_previous_lines(checked(lines), most, are_json=True)


def _trained(cfg: TranslateConfig) -> TrainConfig:
    """Return the config of the run, of an ensemble that of the first."""
    return load_run(cfg.runs[0])


def _checked(lines: Iterable[str], cfg: TranslateConfig, data: DataConfig) -> Iterator[str]:
    """Yield the lines, which are no texts alone, as they are.

    Raises:
        UserError: a line is no request, or too long, or asks for what the run does not know or the search
            cannot find; names the line.
    """
    read = Request.from_json if cfg.reads_json else Request.from_pair
    for number, line in enumerate(lines, start=1):
        name = f"line {number} of the input"
        if is_cut(line):
            raise UserError(f"{name} has more than {MAX_LINE_CHARS:,} characters; remove it")
        if line.strip() or not cfg.documents:  # else the end of a document
            request = read(line, name)
            require_answerable(request, cfg.tgt, data, name)
            require_enforceable(request, cfg.glossary_use, cfg.decoding, data, name)
        yield line


def with_previous_lines(lines: Iterable[str], most: int, are_json: bool) -> Iterator[str]:
    """Yield each line as JSON of a `Request` with the `most` lines before it of the same document.

    A blank line, or one of JSON that names another document, ends a document.

    Raises:
        UserError: a line of JSON is no request; names the line.
    """
    previous, document = PreviousLines(most), ""
    for number, line in enumerate(lines, start=1):
        request = None
        if are_json and line.strip():
            request = Request.from_json(line, f"line {number} of the input")
        src = request.src if request else line
        before = previous.of(src, begins=request is not None and request.document != document)
        document = request.document if request else document
        given: dict[str, Any] = dataclasses.asdict(request) if request else {"src": line}
        given.pop("due", None)  # which no line of input has
        given["context"] = given.get("context") or before
        yield json.dumps(given, ensure_ascii=False)


def _glossary(cfg: TranslateConfig) -> Glossary:
    return Glossary({}) if cfg.glossary is None else Glossary.read(path_of(cfg.glossary))


def _memory(cfg: TranslateConfig, data: DataConfig) -> TranslationMemory | None:
    return None if cfg.memory is None else read_memory(cfg.memory, data, cfg.tgt)


def search_settings(decoding: Any) -> dict[str, Any]:
    """Return what translations depend on: the keys of a search, but those of speed and memory, and its files.

    A file that is missing is refused where it is read.
    """
    files = {key: path_of(getattr(decoding, key)) for key in decoding.narrowed_by}
    contents = {f"decoding.{key}.sha256": digest(file)[:16] for key, file in files.items() if file.is_file()}
    keys = {f"decoding.{key}": value for key, value in to_plain(decoding).items() if key not in SPEED}
    return keys | contents


def _facts(cfg: TranslateConfig) -> dict[str, Any]:
    chosen: dict[str, Any] = {
        "scores": cfg.scores,
        "prefixes": cfg.prefixes,
        "markup": cfg.markup,
        "documents": cfg.documents,
        "glossary": _glossary(cfg).terms,
        "glossary_use": "" if cfg.glossary_use is GlossaryUse.auto else cfg.glossary_use.value,
    }
    if cfg.memory is not None:
        memory = _memory(cfg, _trained(cfg).data)
        chosen |= {"memory": memory.sha256 if memory else "", "memory_least": cfg.memory_least}
    chosen |= {"writes JSON": cfg.writes_json, "reads JSON": cfg.reads_json}
    return search_settings(cfg.decoding) | {key: value for key, value in chosen.items() if value}


TRANSLATION = LineWork("translated", _open_answers, _facts, _reader)
