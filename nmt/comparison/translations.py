"""The translations that are compared, the sentences they are of, and whether they can be compared at all.

Scores are comparable when they are of the same translations against the same references. So a run whose
references differ from those of the first is named and left out of every score; nothing is assumed. A file of
another system has no references of its own: it goes with the first run that is compared, line by line.
"""

from __future__ import annotations

import itertools
import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nmt.comparison.differences import shown
from nmt.comparison.record import CHECKPOINT, MARKS, SPLITS, RunRecord, find_runs, read_run
from nmt.config.spelling import shell_word
from nmt.data.documents import current_of_each
from nmt.data.parallel_text import MAX_LINE_CHARS
from nmt.data.reading.lines import is_cut, read_lines
from nmt.errors import Log, UserError, suggest
from nmt.files import NUMBER, OUTPUTS, digest_of_lines, read_json
from nmt.metrics.label_scores import with_metric

MAX_TEXT_BYTES = 1 << 28
"""Largest file of translations that is read."""


EVALUATION = {
    "hypotheses": str,
    "scores": dict[str, NUMBER],
    "signatures": dict[str, str],
    "sha256": dict[str, str],
}
"""Fields of the files in evaluations/ that are read, with their types."""
IS_LANGUAGE_MODEL = ": it is a language model"
"""End of the problem of a run that is compared without translations."""


@dataclass
class Entry:
    """One row of a comparison: a run, or a file of another system, and its translations that are scored."""

    name: str
    record: RunRecord | None
    """What is known of the run; None of a file of another system."""
    file: Path | None = None
    """File with the translations."""
    hypotheses: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    """The sentences themselves, without the context in front."""
    references: list[list[str]] = field(default_factory=list)
    """One list of lines for each reference, without context, too."""
    signatures: dict[str, str] = field(default_factory=dict)
    """How the stored scores of these translations were computed, by metric."""
    stored: dict[str, float] = field(default_factory=dict)
    """Scores of these translations as the run has them: of another set where the references differ."""
    problem: str = ""
    """Why the translations cannot be compared; empty where they can."""

    has_labels: bool = False
    """Whether labels stand in place of the translations: the run classifies texts."""

    @property
    def config(self) -> dict[str, Any]:
        """Full key -> value of the run; nothing of a file of another system."""
        return self.record.config if self.record is not None else {}


def entries_of(names: Sequence[str], split: str, warn: Log) -> list[Entry]:
    """Return what `names` stand for, with the translations of `split`.

    A name is a run directory, a folder of runs, a file in the hypotheses/ of a run, or a file of another
    system: a translation a line, of the sentences that the runs have translated.

    Raises:
        UserError: a name is none of these, or names no readable run; or a file does not fit the references.
    """
    found = _records_of(names, warn)
    runs = {path: record for path, record in found.items() if record is not None}
    named = dict(zip(runs, _short(runs), strict=True))
    entries = dict[Path, Entry]()
    for path, record in runs.items():
        own = path if path.is_relative_to(record.path) else path.absolute()
        file = own if path.is_file() else _file_of(record, split)
        labels = record.config.get("task") == "classification"
        entries[path] = entry = Entry(named[path], record, file, has_labels=labels)
        _read(entry, record, split)
    _require_any(list(runs.values()), list(entries.values()), split)
    first = next((entry for entry in entries.values() if not entry.problem), None)
    for entry in entries.values():
        if first is not None and entry is not first and not entry.problem:
            entry.problem = _misfit(first, entry)
    counts = Counter([*named.values(), *(path.name for path in found.keys() - runs.keys())])
    for path in found.keys() - runs.keys():
        name = path.name if counts[path.name] == 1 else str(path)
        entries[path] = _of_another_system(name, path, first or next(iter(entries.values())), split)
    return [entries[path] for path in found]


def _records_of(names: Sequence[str], warn: Log) -> dict[Path, RunRecord | None]:
    """Return what is known of the run of each place that `names` stand for; None of another system.

    Raises:
        UserError: no run is among them that can be read.
    """
    found, known = dict[Path, RunRecord | None](), dict[Path, Path]()
    for name in names:
        places = _places(Path(name))
        for path in places:
            first = known.setdefault(path.resolve(), path)
            if first != path:
                warn(f"{path} is {first}, and compared once")
                continue
            run = _run_of(path)
            try:
                found[path] = None if run.is_file() else read_run(run)
            except UserError as error:
                if places == [Path(name)]:
                    raise
                warn(f"{path} is damaged and left out: {error}")
    if not found:
        raise UserError(f"run={names[0]} has no run that can be read")
    if not any(found.values()):
        file = next(iter(found))
        raise UserError(
            f"run={file} is compared by the references of a run, but no run is named; "
            f"say nmt compare RUN {shlex.quote(str(file))}"
        )
    return found


def _require_any(records: Sequence[RunRecord], entries: Sequence[Entry], split: str) -> None:
    """Raise `UserError` where no run has translations of `split`, and one could have them."""
    if any(entry.problem.endswith(IS_LANGUAGE_MODEL) or entry.file is not None for entry in entries):
        return
    written = (
        (one, split_of(file, one)[0]) for one in records for file in one.path.glob("hypotheses/**/*.*")
    )
    known = sorted({name for record, name in written if _has_pairs(record, name)})
    raise UserError(
        f"split={split}: none of the runs has translations of it; they have {', '.join(known) or 'none'}"
    )


def _of_another_system(name: str, file: Path, run: Entry, split: str) -> Entry:
    """Return the translations in a file, plain or compressed, by the references of a run.

    Raises:
        UserError: the file is no text, or has not a line for each reference; or the run has none.
    """
    if run.problem:
        raise UserError(
            f"run={file} is compared by the references of a run, but {run.name} is not compared: "
            f"{run.problem}"
        )
    lines, number = read_lines(file, "run"), len(run.references[0])
    hypotheses = list(itertools.islice(lines, number))
    size = len(hypotheses) + sum(1 for _ in lines)
    if size != number:
        raise UserError(
            f"run={file} has {size:,} lines, but {split} of {run.name} has {number:,} references; "
            "each line must be the translation of one sentence, perhaps an empty one, or say split=..."
        )
    if cut := next((place for place, line in enumerate(hypotheses, start=1) if is_cut(line)), None):
        raise UserError(f"run: line {cut:,} of {file} has more than {MAX_LINE_CHARS:,} characters")
    return replace(run, name=name, record=None, file=file, hypotheses=hypotheses, signatures={}, stored={})


def _places(path: Path) -> list[Path]:
    """Return the runs, or the one file of translations, that a name stands for."""
    if path.is_file():
        return [path]
    if path.is_dir() and (runs := find_runs(path)[0]):
        return runs
    if path.is_dir():
        raise UserError(
            f"run={path} is neither a run nor a folder with runs; `nmt runs` lists those in outputs/"
        )
    near = suggest(str(path), [str(run) for run in find_runs(Path(OUTPUTS))[0]])
    raise UserError(f"run={path} is neither a run, a folder of runs, nor a file of translations{near}")


def _run_of(path: Path) -> Path:
    """Return the run that a file of translations belongs to; the path itself where it is in none."""
    if not path.is_file():
        return path
    above = [*path.parents, *path.absolute().parents]  # as it is typed, if that leads to the run
    folders = [up.parent for up in above if up.name == "hypotheses"]
    return next((run for run in folders if _is_run(run)), path)


def _is_run(folder: Path) -> bool:
    """Return whether a folder has the marks of a run, and not just any config.yaml."""
    return (folder / "config.yaml").is_file() and any((folder / mark).exists() for mark in MARKS)


def _short(places: Mapping[Path, RunRecord]) -> list[str]:
    """Return a name for each place: that of its run below the folder all runs are in, and of its file."""
    runs = [record.path.absolute() for record in places.values()]
    several = len(set(runs)) > 1
    common = os.path.commonpath(runs if several else [run.parent for run in runs])
    names = [os.path.relpath(run, common) for run in runs]
    names = [run.name if name == "." else name for name, run in zip(names, runs, strict=True)]
    return [
        f"{name}:{place.stem}" if place.is_file() else name for name, place in zip(names, places, strict=True)
    ]


def _file_of(record: RunRecord, split: str) -> Path | None:
    """Return the translations of the final weights, else for validation of the best step so far."""
    tgt, folder = record.config.get("data.tgt"), record.path / "hypotheses"
    part, _, named = split.partition("-")
    files = [folder / f"{split}.{tgt}", folder / named / f"{part}.{tgt}"]  # of nmt evaluate, of the training
    final = next((file for file in files if file.is_file()), files[0])
    if final.is_file() or part != "validation" or record.scored_step is None:
        return final if final.is_file() else None
    newest = folder / named / part / f"step_{record.scored_step:08d}.{tgt}"
    return newest if newest.is_file() else None


def _read(entry: Entry, record: RunRecord, split: str) -> None:
    """Fill the entry of a run with its translations, or say what keeps them from being compared."""
    src, tgt = _pairs(record, split)
    sides = [src, tgt, *sorted(tgt.parent.glob(f"{tgt.stem}.ref*{tgt.suffix}"))]
    if record.config.get("task") == "language_model":  # which has texts where others have translations
        entry.problem = f"it has no translations of {split}{IS_LANGUAGE_MODEL}"
    elif entry.file is None:
        entry.problem = f"it has no translations of {split}{_advice(record, split)}"
    elif not _may_be_of(entry.file, record, split):
        own, _ = split_of(entry.file, record)
        told = entry.file.relative_to(record.path / "hypotheses")
        way_out = f"split={own if _has_pairs(record, own) else '...'}"
        entry.problem = f"{told} does not seem to be of {split}; say {way_out}"
    elif not _has_pairs(record, split):
        entry.problem = f"it has no copy of the {split} pairs in data/"
    else:
        try:
            entry.hypotheses = lines_of(entry.file)
            entry.sources, *entry.references = map(lines_of, sides)
            _add_stored(entry, record, split)  # by the references as they are in data/
            entry.sources = current_of_each(entry.sources)
            entry.references = list(map(current_of_each, entry.references))
        except UserError as error:
            entry.problem = str(error)
    lengths = {len(lines) for lines in (entry.hypotheses, entry.sources, *entry.references)}
    if not entry.problem and len(lengths) > 1:
        entry.problem = (
            f"{entry.file} has {len(entry.hypotheses):,} lines for {len(entry.references[0]):,} references"
            f"{', by ' * bool(record.validated_by)}{record.validated_by}"
        )


def _pairs(record: RunRecord, split: str) -> tuple[Path, Path]:
    """Return where the run keeps the source and the target of a split."""
    part, _, named = split.partition("-")  # such as validation-news of a set named news
    data = record.path / "data" / named
    return data / f"{part}.{record.config.get('data.src')}", data / f"{part}.{record.config.get('data.tgt')}"


def _has_pairs(record: RunRecord, split: str) -> bool:
    return all(side.is_file() for side in _pairs(record, split))


def split_of(file: Path, record: RunRecord) -> tuple[str, int | None]:
    """Return the split that the place of a file in hypotheses/ says, and the step, if it is of a validation.

    A training writes [NAME/]SPLIT.LANGUAGE and [NAME/]validation/step_N.LANGUAGE, with the name of a set.
    """
    *folders, name = file.relative_to(record.path / "hypotheses").with_suffix("").parts
    step = CHECKPOINT.fullmatch(name)
    part, named = folders.pop() if step and folders else name, "/".join(folders)
    return f"{part}-{named}" if named else part, int(step[1]) if step else None


def _may_be_of(file: Path, record: RunRecord, split: str) -> bool:
    """Return whether a file is of a split by its place, or may be, as an evaluation with any name behind."""
    is_evaluation = file.parent == record.path / "hypotheses"
    return split_of(file, record)[0] == split or (is_evaluation and file.name.startswith(split))


def _advice(record: RunRecord, split: str) -> str:
    if record.state not in ("done", "exported"):
        return f": its training is {record.state}"
    if split not in SPLITS:  # but a set, or nothing
        return ""
    return f"; nmt evaluate {shell_word('run', record.path)} data.scored_split={split} makes them"


def _add_stored(entry: Entry, record: RunRecord, split: str) -> None:
    """Add the scores and signatures that the run has stored for these translations.

    Evaluations by other rules than those of the run count where there are no scores by its own.
    """
    file = entry.file
    if file is None or entry.problem:
        return
    entry.signatures = dict(record.signatures)
    is_known = split_of(file, record)[0] == split
    part, _, named = split.partition("-")
    if file == record.path / "hypotheses" / named / f"{part}{file.suffix}":
        known = {"validation": record.validation, **record.tests}
        entry.stored = dict(known.get(split, {}))
        entry.signatures |= record.signatures_of(named)
    for has_rules, changed, found in _evaluations(record, file):
        if not (has_rules and entry.stored):
            entry.signatures |= found["signatures"]
            entry.stored |= {name: float(value) for name, value in found["scores"].items()}
        is_known = found["sha256"].get("tgt") == digest_of_lines(entry.references[0])
        if changed and ":" in entry.name:
            settings = " ".join(f"{key.rpartition('.')[2]}={shown(value)}" for key, value in changed.items())
            entry.name = f"{entry.name.rpartition(':')[0]}:{settings}"
    entry.signatures = {name: with_metric(name, one) for name, one in entry.signatures.items()}
    if not is_known:
        entry.problem = f"no file in evaluations/ says that {file.name} translates its {split} sentences"


def _evaluations(record: RunRecord, file: Path) -> list[tuple[bool, dict[str, Any], dict[str, Any]]]:
    """Return what is stored of evaluations of a file, those by the rules of the run first.

    Each stands behind whether it has other rules, and the settings of its search that are not the run's.
    """
    found = list[tuple[bool, dict[str, Any], dict[str, Any]]]()
    for evaluation in sorted((record.path / "evaluations").glob("*.json")):
        content = read_json(evaluation, EVALUATION)
        if record.path / content["hypotheses"] == file:
            given = content.get("changed")
            changed = given if isinstance(given, dict) else {}
            of_rules = {key for key in changed if key == "metrics" or key.startswith("scoring.")}
            has_rules = bool(of_rules - {"metrics"})
            found.append((has_rules, {k: v for k, v in changed.items() if k not in of_rules}, content))
    return sorted(found, key=lambda one: one[0])


def lines_of(file: Path) -> list[str]:
    """Return the lines of a text; raise `UserError` for one that is no UTF-8, or too large."""
    if file.stat().st_size > MAX_TEXT_BYTES:
        raise UserError(f"{file} has more than {MAX_TEXT_BYTES >> 20} MB")
    try:
        return file.read_bytes().decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is damaged: byte {error.start} is not UTF-8") from error


def _misfit(first: Entry, other: Entry) -> str:
    """Return how the references of an entry differ from those of the first; empty where they do not."""
    if first.references == other.references:
        return ""
    ours, theirs = first.references[0], other.references[0]
    if len(ours) != len(theirs):
        return f"its references have {len(theirs):,} lines, but those of {first.name} {len(ours):,}"
    if len(first.references) != len(other.references):
        return f"it has {len(other.references)} references a line, but {first.name} {len(first.references)}"
    pairs = zip(map(list, zip(*first.references)), map(list, zip(*other.references)))  # noqa: B905
    line = next(number for number, (a, b) in enumerate(pairs, start=1) if a != b)
    return f"its references differ from those of {first.name}, first in line {line:,}"
