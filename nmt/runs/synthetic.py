"""Synthetic pairs: text, its translations by other models, and the choice of those worth learning from.

Each step is a stage of `nmt.runs.stages`. The text is the training pairs, or text in one language; a model of
the direction of the pairs translates their sources (sequence-level distillation, Kim and Rush 2016, section
3.2), one of the other direction their targets (back-translation, Sennrich et al. 2016). Text is read line by
line: memory grows by a few bytes for each translation. Who translates is unknown here.
"""

from __future__ import annotations

import hashlib
import itertools
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.data.batches.training_split import CorpusText, digest_of
from nmt.data.cleaning import pair_filters
from nmt.data.cleaning.filters import FilterReport
from nmt.data.configs import DataConfig
from nmt.data.parallel_text import ParallelText, Split
from nmt.data.reading.lines import read_lines, require_file
from nmt.data.reading.sources import MixtureData
from nmt.errors import UserError
from nmt.files import path_of, write_lines, written_atomically
from nmt.metrics.scoring import sentence_chrf
from nmt.runs.configs import KeptCandidates, SelectionConfig, Side
from nmt.runs.stages import Fill, StageFolder

TRANSLATIONS = "translations"
"""File of a stage of translations, an n-best list in the format of Moses."""
ACCOUNT = {"read": int, "dropped": dict[str, int]}
"""Fields of the report on text and pairs, with their types."""


class Candidate(NamedTuple):
    """One translation of a line."""

    text: str
    score: float


# Text to translate


def stage_of_pairs(root: Path, corpus: CorpusText) -> StageFolder:
    """Return the stage with both sides of the training pairs."""
    return StageFolder(root, "text", {"pairs": corpus.sha256}, ("src", "tgt"), ACCOUNT)


def write_pairs(corpus: CorpusText) -> Fill:
    """Return the function that fills the stage of `corpus`."""

    def fill(folder: Path) -> dict[str, Any]:
        _write_sides([folder / "src", folder / "tgt"], ((c.src, c.tgt) for c in corpus.chunks()))
        return {"read": corpus.report.read, "dropped": corpus.report.dropped}

    return fill


def kept_lines(files: Sequence[str], key: str, max_chars: int) -> Iterator[str | None]:
    """Yield the lines of files of text in one language; None stands for one that is blank or too long."""
    for file in map(path_of, files):
        require_file(file, key)
        for line in read_lines(file, key):
            yield line if line.strip() and len(line) <= max_chars else None


def stage_of_text(root: Path, files: Sequence[str], side: Side, max_chars: int) -> StageFolder:
    """Return the stage with text in one language, which is read through for its hash."""
    found = hashlib.sha256()
    for line in kept_lines(files, f"distil.{side.name}_text", max_chars):
        found.update(f"{line}\n".encode() if line is not None else b"")
    if found.digest() == hashlib.sha256().digest():
        raise UserError(f"distil.{side.name}_text={','.join(files)} has no line to translate")
    return StageFolder(root, "text", {"lines": found.hexdigest()}, (side.name,), ACCOUNT)


def write_text(stage: StageFolder, files: Sequence[str], side: Side, max_chars: int) -> Fill:
    """Return the function that fills `stage`, of `stage_of_text`."""

    def fill(folder: Path) -> dict[str, Any]:
        report, found = FilterReport(0, {"blank or too long": 0}), hashlib.sha256()

        def kept() -> Iterator[tuple[list[str]]]:
            for line in kept_lines(files, f"distil.{side.name}_text", max_chars):
                report.read += 1
                if line is None:
                    report.dropped["blank or too long"] += 1
                else:
                    found.update(f"{line}\n".encode())
                    yield ([line],)

        _write_sides([folder / side.name], kept())
        if found.hexdigest() != stage.inputs["lines"]:
            raise UserError(
                f"distil.{side.name}_text has changed while it was read; run the same command again"
            )
        return asdict(report)

    return fill


def _write_sides(files: Sequence[Path], chunks: Iterable[Sequence[Sequence[str]]]) -> None:
    """Write each side of `chunks` to its file, line by line."""
    with ExitStack() as stack:
        opened = [stack.enter_context(written_atomically(file)) for file in files]
        for chunk in chunks:
            for file, lines in zip(opened, chunk, strict=True):
                file.write("".join(f"{line}\n" for line in lines).encode())


# Translations


def n_best_lists(file: Path, num_lines: int) -> Iterator[list[Candidate]]:
    """Yield the translations of each of the `num_lines` lines of a text, from an n-best list of Moses.

    Raises:
        UserError: the list has no translation for a line, or one for a line that is not there.
    """
    numbered = itertools.groupby(map(_parsed, read_lines(file, TRANSLATIONS)), key=lambda row: row[0])
    expected = 0
    for expected, (number, rows) in enumerate(numbered, start=1):
        if number != expected - 1 or number >= num_lines:
            raise UserError(f"{file} has translations of line {number}, where {expected - 1} is expected")
        yield [candidate for _, candidate in rows]
    if expected != num_lines:
        raise UserError(f"{file} has translations of {expected:,} lines, but the text has {num_lines:,}")


def _parsed(line: str) -> tuple[int, Candidate]:
    number, _, rest = line.partition(" ||| ")
    text, bar, score = rest.rpartition(" ||| ")
    try:
        if not bar:
            raise ValueError
        return int(number), Candidate(text, float(score))
    except ValueError:
        raise UserError(f"{TRANSLATIONS}: {line[:80]!r} is not NUMBER ||| TEXT ||| SCORE") from None


# The choice

REASONS = (
    "kept",
    "empty",
    "copy of the source",
    "not the closest to the reference",
    "far from the reference",
    "low score",
    "not of the best share",
    "repeated",
)
"""What becomes of a translation; all but the first are dropped."""
(KEPT, EMPTY, COPY, NOT_CLOSEST, FAR, LOW_SCORE, NOT_BEST, REPEATED) = range(len(REASONS))

Row = tuple[str, str | None, tuple[list[Candidate], ...]]
"""A line, its reference if there is one, and the translations of the line by each teacher."""


@dataclass(frozen=True)
class Selection:
    """The choice among the translations of one text by some teachers."""

    text: StageFolder
    translated: Sequence[StageFolder]
    side: Side
    cfg: SelectionConfig
    languages: tuple[str, str]
    """Source and target of the pairs."""

    def stage(self, root: Path) -> StageFolder:
        """Return the stage of the chosen pairs, which a source of data finds by the prefix `pairs`."""
        rules = {field.name: getattr(self.cfg, field.name) for field in fields(SelectionConfig)}
        inputs = {
            "text": self.text.folder.name,
            "translations": [stage.folder.name for stage in self.translated],
            "translated": self.side.name,
            **{name: rule.value if isinstance(rule, Enum) else rule for name, rule in rules.items()},
        }
        return StageFolder(
            root, "pairs", inputs, [f"pairs.{language}" for language in self.languages], ACCOUNT
        )

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the chosen pairs; return how many translations were read, and how many dropped for what.

        Raises:
            UserError: a stage that is read is damaged, or no translation is kept.
        """
        verdicts = [iter(found.tolist()) for found in self._verdicts()]
        counts: Counter[str] = Counter()

        def pairs() -> Iterator[tuple[list[str], list[str]]]:
            for line, _, lists in self._rows():
                seen = set[str]()
                for candidate, verdict in _each(lists, verdicts):
                    verdict = REPEATED if verdict == KEPT and candidate.text in seen else verdict
                    counts[REASONS[verdict]] += 1
                    if verdict == KEPT:
                        seen.add(candidate.text)
                        both = [line], [candidate.text]
                        yield both if self.side is Side.src else both[::-1]

        _write_sides([folder / f"pairs.{language}" for language in self.languages], pairs())
        dropped = {reason: counts[reason] for reason in REASONS[1:] if counts[reason]}
        report = FilterReport(counts.total(), dropped)
        if not report.kept:
            raise UserError(f"no translation is kept: {account(asdict(report))}; loosen the rules of distil")
        return asdict(report)

    def _rows(self) -> Iterator[Row]:
        lines = self.text.folder / self.side.name
        other = next((name for name in self.text.files if name != self.side.name), None)
        num_lines = sum(1 for _ in read_lines(lines, "text"))
        references = (
            read_lines(self.text.folder / other, "text") if other else itertools.repeat(None, num_lines)
        )
        lists = [n_best_lists(stage.folder / TRANSLATIONS, num_lines) for stage in self.translated]
        yield from zip(read_lines(lines, "text"), references, zip(*lists, strict=True), strict=True)

    def _verdicts(self) -> list[NDArray[np.uint8]]:
        """Return what becomes of each translation of each teacher, but for those that are repeated."""
        verdicts = [array("B") for _ in self.translated]
        scores = [array("d") for _ in self.translated]
        for line, reference, lists in self._rows():
            for teacher, candidates in enumerate(lists):
                verdicts[teacher].extend(judged(candidates, line, reference, self.cfg))
                scores[teacher].extend(candidate.score for candidate in candidates)
        return [
            best_share(np.asarray(judgements), np.asarray(values), self.cfg.best_share)
            for judgements, values in zip(verdicts, scores, strict=True)
        ]


def _each(
    lists: Sequence[Sequence[Candidate]], verdicts: Sequence[Iterator[int]]
) -> Iterator[tuple[Candidate, int]]:
    """Yield the translations of a line by all teachers, each with the verdict on it."""
    for candidates, found in zip(lists, verdicts, strict=True):
        for candidate in candidates:
            yield candidate, next(found)


def judged(
    candidates: Sequence[Candidate], line: str, reference: str | None, cfg: SelectionConfig
) -> list[int]:
    """Return what becomes of each translation of `line` by one teacher, by its text and score."""
    verdicts = [_by_text(candidate.text, line, reference) for candidate in candidates]
    if reference is not None and cfg.needs_references:
        texts = [candidate.text for candidate in candidates]
        values = sentence_chrf(texts, [reference] * len(texts))
        closeness = [
            value if verdict == KEPT else -1.0 for value, verdict in zip(values, verdicts, strict=True)
        ]
        closest = closeness.index(max(closeness))
        for number, value in enumerate(closeness):
            if verdicts[number] == KEPT and cfg.candidates is KeptCandidates.closest and number != closest:
                verdicts[number] = NOT_CLOSEST
            elif verdicts[number] == KEPT and value < cfg.min_chrf:
                verdicts[number] = FAR
    if cfg.min_score is not None:
        for number, candidate in enumerate(candidates):
            if verdicts[number] == KEPT and candidate.score < cfg.min_score:
                verdicts[number] = LOW_SCORE
    return verdicts


def _by_text(translation: str, line: str, reference: str | None) -> int:
    if not translation.strip():
        return EMPTY
    return COPY if translation == line != reference else KEPT


def best_share(verdicts: NDArray[np.uint8], scores: NDArray[np.float64], share: float) -> NDArray[np.uint8]:
    """Return the verdicts with only a share of the kept translations left, those with the best scores."""
    kept = np.flatnonzero(verdicts == KEPT)
    found = verdicts.copy()
    found[kept[~pair_filters.best_share(share, scores[kept])]] = NOT_BEST
    return found


def account(report: Mapping[str, Any]) -> str:
    """Return the report of `Selection.write` as text."""
    return str(FilterReport(report["read"], report["dropped"])).replace("pairs read", "translations read", 1)


# The data of the student


def stage_of_splits(
    root: Path, splits: Mapping[Split, ParallelText], languages: tuple[str, str]
) -> StageFolder:
    """Return the stage with the pairs to score on, for a student that trains on synthetic pairs alone.

    Raises:
        UserError: a split has further references, which the stage has no files for.
    """
    if any(text.references for text in splits.values()):
        raise UserError(
            "distil.original_weight=0 copies the pairs to score on with one reference each, but the data has "
            "data.references; leave these out, and give them to nmt evaluate of the student, or keep a "
            "little of the original pairs: distil.original_weight=0.01"
        )
    inputs = {split.value: digest_of(text) for split, text in splits.items()}
    files = [f"{split.value}.{language}" for split in splits for language in languages]
    return StageFolder(root, "scored", inputs, files)


def write_splits(splits: Mapping[Split, ParallelText], languages: tuple[str, str]) -> Fill:
    """Return the function that fills the stage of `splits`."""

    def fill(folder: Path) -> dict[str, Any]:
        for split, text in splits.items():
            for language, lines in zip(languages, (text.src, text.tgt), strict=True):
                write_lines(folder / f"{split.value}.{language}", lines)
        return {}

    return fill


def entry_of(part: DataConfig) -> dict[str, Any]:
    """Return the entry of a mixture that reads what `part` reads."""
    cls = type(part)
    keys = {cls.split_field(split): split.value for split in Split}
    own = {field.name for field in fields(cls)} - {field.name for field in fields(DataConfig)}
    values = {keys.get(name, name): getattr(part, name) for name in sorted(own)}
    given = {key: value for key, value in values.items() if value is not None}
    lists = {key: getattr(part, key) for key in ("fixers", "filters") if getattr(part, key)}
    return {"name": part.name, "src": part.src, "tgt": part.tgt, **given, **lists}


def mixture_of(
    data: DataConfig, corpora: Mapping[str, dict[str, Any]], stages: Sequence[dict[str, Any]] = ()
) -> MixtureData:
    """Return the config of a mixture of `corpora`, in `stages`, that is otherwise as `data` says.

    Fixers and filters are those of the entries alone.
    """
    none: dict[str, Any] = {"fixers": [], "filters": []}
    if isinstance(data, MixtureData):
        scored = [name for name in data.scored if name in corpora]
        return replace(data, corpora=dict(corpora), stages=list(stages), scored=scored, **none)
    common = {field.name: getattr(data, field.name) for field in fields(DataConfig)}
    return MixtureData(**common | {"name": "mixture"} | none, corpora=dict(corpora))
