"""All facts of a comparison: scores and tests, systems over seeds, curves, sentences, costs, differences."""

from __future__ import annotations

import dataclasses
import math
import statistics as sums
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nmt.comparison import breakdown, significance
from nmt.comparison.breakdown import Bucket, Difference
from nmt.comparison.configs import CompareConfig
from nmt.comparison.differences import (
    OF_ONE_RUN,
    SEEDS,
    differing,
    flat_environment,
    shown,
    system_of,
)
from nmt.comparison.paired_tests import ScoreOn, seed
from nmt.comparison.record import CHECKPOINT, RunRecord, as_number, training_data
from nmt.comparison.remarks import remarks
from nmt.comparison.seed_tests import SeedTest, differences_over_seeds
from nmt.comparison.significance import Tested
from nmt.comparison.translations import Entry, split_of
from nmt.config.stored import matches
from nmt.config.sweeps import recorded_values, short_names
from nmt.data.reading.mixture import without_front
from nmt.errors import Log, UserError
from nmt.files import read_json, step_records
from nmt.metrics import label_scores
from nmt.metrics.configs import ScoringConfig
from nmt.metrics.scoring import (
    METRICS,
    SCORERS,
    ScoredText,
    names_of_metrics,
    of_another_task,
    signature_of,
)

MAX_POINTS = 400
"""Most points of a curve on the page."""
TESTED_ALPHA = 0.05
"""Level below which a corrected p value is called significant."""
CURVES = {"train/nll": "train loss", "valid/loss": "validation loss", "train/lr": "learning rate"}
"""Values of metrics.jsonl that are curves, with their names; validation scores are, too."""
Point = tuple[int, float | None, float | None, float]
"""Step, target tokens, seconds of training, and value."""


@dataclass
class Column:
    """One metric, and the scores of all entries by it, None for those that cannot be compared."""

    metric: str
    label: str
    signature: str
    rows: list[Tested | None]
    score_on: list[ScoreOn | None]
    """Function by entry from some of the sentences to the score on them."""


@dataclass
class System:
    """Runs that differ in their seed alone."""

    name: str
    members: list[int]
    """Numbers of entries."""
    scores: dict[str, tuple[float, float | None, float, float]]
    """By metric: mean, standard deviation (None for one run), lowest, highest."""
    tests: dict[str, SeedTest] = field(default_factory=dict)
    """By metric: the difference from the first system; none of it, and where either is one run."""


@dataclass
class Cost:
    """What a training took."""

    steps: int
    seconds: float | None
    tokens: int | None
    parameters: int | None
    operations: float | None
    """Floating-point operations of one process, by the rates in metrics.jsonl."""


@dataclass
class Comparison:
    """Everything that the table and the page show."""

    split: str
    entries: list[Entry]
    columns: list[Column]
    losses: list[float | None]
    """Stored loss of the split by entry, in nats per target token; None where there is none."""
    same_tokenizer: bool
    """Whether losses are of the same tokens."""
    systems: list[System]
    buckets: dict[str, dict[str, list[Bucket]]]
    """Kind of bucket -> metric -> buckets; their scores are of the entries that can be compared."""
    differences: dict[int, list[Difference]]
    """Number of an entry -> the sentences that differ most from those of the first one."""
    sentence_metric: str
    """Label of the metric by which sentences differ."""
    config: dict[str, list[Any]]
    """Key -> the value of each entry, None of a file of another system."""
    environment: dict[str, list[Any]]
    costs: list[Cost | None]
    """By entry; None of a file of another system."""
    curves: list[dict[str, list[Point]]]
    counted: str
    """Where words were counted."""
    bootstrap_samples: int
    randomisation_trials: int
    notes: list[str] = field(default_factory=list)

    @property
    def comparable(self) -> list[int]:
        """Numbers of the entries whose translations are compared, the first of them first."""
        return [number for number, entry in enumerate(self.entries) if not entry.problem]

    @property
    def records(self) -> dict[int, RunRecord]:
        """Number of an entry -> its run, of those that are no files of other systems."""
        of_entries = ((number, entry.record) for number, entry in enumerate(self.entries))
        return {number: record for number, record in of_entries if record is not None}

    @property
    def kinds(self) -> str:
        """What the entries are called together."""
        return "runs" if len(self.records) == len(self.entries) else "runs and files"

    @property
    def first(self) -> Entry | None:
        """The entry that the others are tested against."""
        return self.entries[self.comparable[0]] if self.comparable else None


def compared(
    cfg: CompareConfig, entries: list[Entry], words: Mapping[str, int] | None, log: Log
) -> Comparison:
    """Return all facts about the entries; `words` counts words of a training corpus.

    Raises:
        UserError: SACREBLEU_SEED is no seed, or a metric that is asked for scores nothing of the kind.
    """
    seed()
    usable = [entry for entry in entries if not entry.problem]
    environments = [flat_environment(entry.record.path) if entry.record else {} for entry in entries]
    found = Comparison(
        split=cfg.split,
        entries=entries,
        columns=[],
        losses=[entry.stored.get("loss", _loss(entry, cfg.split)) for entry in entries],
        same_tokenizer=len({_tokenizer(entry.record) for entry in entries if entry.record}) == 1,
        systems=[],
        buckets={},
        differences={},
        sentence_metric="",
        config=differing([entry.config for entry in entries]),
        environment=differing(environments, ignored=("command*",)),
        costs=[_cost(entry.record, entry.file) if entry.record else None for entry in entries],
        curves=_curves_of(entries),
        counted="the training data" if words is not None else f"the {cfg.split} sources themselves",
        bootstrap_samples=cfg.bootstrap_samples,
        randomisation_trials=cfg.randomisation_trials,
    )
    if usable:
        _add_scores(found, usable, cfg, log)
        _add_breakdown(found, usable, cfg, words)
    found.systems = _systems(found)
    if usable:
        _test_systems(found, cfg, log)
    found.notes += _notes(found, usable)
    return found


def _loss(entry: Entry, split: str) -> float | None:
    """Return the stored loss of the weights that made the translations; None where there is none."""
    record, file = entry.record, entry.file
    if record is None:
        return None
    own, step = (split, None) if file is None else split_of(file, record)
    part, _, named = split.partition("-")
    if own == split and part == "validation" and step is not None:
        key = f"valid/{named}/loss" if named else "valid/loss"
        records = step_records(record.path / "metrics.jsonl")
        losses = (as_number(one.get(key)) for one in records if one["step"] == step)
        return next((loss for loss in losses if loss is not None), None)
    scores = record.validation if split == "validation" else record.tests.get(split, {})
    return scores.get("loss") if own == split else None


def _tokenizer(record: RunRecord) -> tuple[str, ...]:
    manifest = record.path / "MANIFEST.json"
    sums = read_json(manifest) if manifest.is_file() else {}
    known = [f"{name} {value}" for name, value in sorted(sums.items()) if name.startswith("tokenizer")]
    files = sorted(record.path.glob("tokenizer*.model"))
    return tuple(known or [f"{file.name} {file.read_bytes()!r}" for file in files])


def _add_scores(found: Comparison, usable: Sequence[Entry], cfg: CompareConfig, log: Log) -> None:
    first, systems = usable[0], [entry.hypotheses for entry in usable]
    sources = list(without_front(first.sources))
    for metric, signature in _signatures(found, usable, cfg.metrics).items():
        log(f"scoring {len(usable)} {found.kinds} by {metric}, with {cfg.bootstrap_samples:,} samples")
        try:
            scores = significance.scores_by(signature, systems, first.references, sources)
            rows = significance.with_tests(
                scores, systems, samples=cfg.bootstrap_samples, trials=cfg.randomisation_trials
            )
        except UserError as error:
            found.notes.append(f"{metric} is left out: {error}")
            continue
        numbers = {id(entry): number for number, entry in enumerate(usable)}
        places = [numbers.get(id(entry)) for entry in found.entries]
        label = METRICS[metric].label if metric in METRICS else metric
        all_rows = [None if place is None else rows[place] for place in places]
        score_on = [None if place is None else scores.score_on(place) for place in places]
        found.columns.append(Column(metric, label, scores.signature, all_rows, score_on))


def _signatures(found: Comparison, usable: Sequence[Entry], wanted: Sequence[str]) -> dict[str, str]:
    """Return the signatures of the `wanted` metrics, of those of the first run that has any where none is.

    What that run has not stored is computed as the config of the first says; with no stored signature at all,
    so are its metrics of sacreBLEU or of labels.
    """
    stored = next((entry.signatures for entry in usable if entry.signatures), {})
    entry = next(entry for entry in usable if entry.record is not None)
    kind = str(entry.config.get("task"))
    if problems := of_another_task(wanted, kind, of_labels=entry.has_labels):
        raise UserError("; ".join(problems))
    known = names_of_metrics(of_labels=True) if entry.has_labels else [*SCORERS]
    metrics = entry.config.get("metrics")
    own = [name for name in metrics if name in known] if isinstance(metrics, list) else []
    signatures = {}
    for name in wanted or stored or own or (known if entry.has_labels else ("bleu", "chrf")):
        try:
            signatures[name] = stored[name] if name in stored else signature_of(name, _text_of(entry))
        except UserError as error:
            found.notes.append(f"{name} is left out: {error}")
    return signatures


def _text_of(entry: Entry) -> ScoredText:
    """Return the translations of a run with the rules of its config, which may hold anything."""
    tokenize, lowercase = (entry.config.get(f"scoring.{key}") for key in ("tokenize", "lowercase"))
    rules = ScoringConfig(tokenize if isinstance(tokenize, str) else None, lowercase is True)
    language = str(entry.config.get("data.tgt"))
    return ScoredText(entry.sources, entry.hypotheses, entry.references, language, rules)


def _add_breakdown(
    found: Comparison, usable: Sequence[Entry], cfg: CompareConfig, words: Mapping[str, int] | None
) -> None:
    first, references, sources = usable[0], usable[0].references, usable[0].sources
    words = breakdown.word_counts(sources) if words is None else words
    lengths = breakdown.lengths(sources if first.has_labels else references[0])
    kinds = {
        "length": list(breakdown.in_ranges(lengths, breakdown.LENGTHS)),
        "frequency": list(breakdown.in_ranges(breakdown.rarest_words(sources, words), breakdown.FREQUENCIES)),
        "label": list(breakdown.of_each_label(references[0])) if first.has_labels else [],
    }
    found.buckets = {kind: {} for kind, groups in kinds.items() if groups}
    for column in found.columns:
        score_on = [score for score in column.score_on if score is not None]
        for kind in found.buckets:
            found.buckets[kind][column.metric] = breakdown.by_group(score_on, kinds[kind])
    if len(usable) > 1 and cfg.max_sentences:
        metric, rule = "chrf", breakdown.SENTENCE_CHRF
        if first.has_labels:
            metric, rule = "accuracy", label_scores.signature_of("accuracy", references[0])
        found.sentence_metric = METRICS[metric].label
        own = {id(x): breakdown.sentence_scores(rule, x.hypotheses, references) for x in usable}
        for number, entry in enumerate(found.entries):
            if entry is not first and not entry.problem:
                found.differences[number] = breakdown.largest_differences(
                    first.hypotheses, entry.hypotheses, (own[id(first)], own[id(entry)]), cfg.max_sentences
                )


def _systems(found: Comparison) -> list[System]:
    """Return the runs as systems, in the order of their first runs."""
    groups: dict[object, list[int]] = {}
    seen = Counter[object]()
    for number, entry in enumerate(found.entries):
        key, seed = _system_key(entry), entry.config.get("seed")
        seen[key, seed] += 1  # a copy of a run is no further seed
        groups.setdefault((key, seen[key, seed], entry.problem and number), []).append(number)
    names = _names_of_systems(found, [*groups.values()])
    return [System(name, runs, _over(found, runs)) for name, runs in zip(names, groups.values(), strict=True)]


def _over(found: Comparison, members: Sequence[int]) -> dict[str, tuple[float, float | None, float, float]]:
    """Return by metric the mean, standard deviation, lowest and highest score of these entries."""
    scores = {}
    for column in found.columns:
        rows = [row.value for number in members if (row := column.rows[number]) is not None]
        if rows:
            spread = sums.stdev(rows) if len(rows) > 1 else None
            scores[column.metric] = sums.fmean(rows), spread, min(rows), max(rows)
    return scores


def _names_of_systems(found: Comparison, systems: Sequence[list[int]]) -> list[str]:
    """Return a name for each system, given its entries: that of a run alone, or what was set for several.

    This is what their sweep has swept, else the first keys that differ, and as many of the others as tell it
    from the other systems; where none does, as after a change of the training data, the first run tells it.
    """
    keys = [key for key in found.config if not matches(key, OF_ONE_RUN)]
    short, swept = short_names(keys), _swept(found)

    def said(members: Sequence[int], keys: Sequence[str]) -> list[str]:
        record = found.records.get(members[0])
        own = [key for key in keys if record is None or key not in record.tuned]
        return [f"{short[key]}={shown(found.config[key][members[0]])}" for key in own]

    told = [swept.get(runs[0], said(runs, keys[:4])) for runs in systems]
    several = [system for system, runs in enumerate(systems) if len(runs) > 1]
    for key in keys:
        for same in _with_one_name(told, several):
            if len({*map(str, (said(systems[system], [key]) for system in same))}) > 1:
                for system in same:
                    told[system] = [*told[system], *said(systems[system], [key])]
    names = [_name(found, runs, values) for runs, values in zip(systems, told, strict=True)]
    for same in _with_one_name(names, several):
        for system in same:
            names[system] += f" ({found.entries[systems[system][0]].name})"
    return names


def _with_one_name(names: Sequence[object], systems: Sequence[int]) -> list[list[int]]:
    """Return those of the `systems`, which are numbers in `names`, that have a name in common."""
    groups: dict[str, list[int]] = {}
    for system in systems:
        groups.setdefault(repr(names[system]), []).append(system)
    return [group for group in groups.values() if len(group) > 1]


def _name(found: Comparison, members: Sequence[int], values: Sequence[str]) -> str:
    """Return the name of a system: that of its only run, or `values`, or the folder that its runs are in."""
    entry = found.entries[members[0]]
    if len(members) == 1:
        return entry.name
    records = [found.records[number] for number in members if number in found.records]
    homes = {record.path.absolute().parent.name for record in records}
    name = " ".join(values) or (homes.pop() if len(homes) == 1 else entry.name)
    search = entry.name.partition(":")[2]  # of a file of nmt evaluate
    return f"{name}:{search}" if search else name


def _test_systems(found: Comparison, cfg: CompareConfig, log: Log) -> None:
    """Test each system of several runs against the system of the first run, if that has several."""
    first = [x for x in found.systems if found.comparable[0] in x.members]
    tested = [x for x in found.systems if len(x.members) > 1 and x.scores and x not in first]
    if len(first[0].members) == 1 or not tested:
        return
    systems = [*first, *tested]
    number = len(found.entries[found.comparable[0]].references[0])
    for column in found.columns:
        log(f"testing {len(systems)} systems over seeds by {column.metric}")
        members = [[column.score_on[number] for number in system.members] for system in systems]
        score_on = [[score for score in runs if score is not None] for runs in members]
        rows = differences_over_seeds(score_on, number, cfg.bootstrap_samples, seed())
        corrected = significance.holm([row.p_value for row in rows])
        for system, row, p in zip(tested, rows, corrected, strict=True):
            system.tests[column.metric] = dataclasses.replace(row, holm=p)


def _swept(found: Comparison) -> dict[int, list[str]]:
    """Return what a sweep has set in each entry that is one of its trials, without the seed."""
    sweeps, told = dict[Path, dict[str, dict[str, str]]](), dict[int, list[str]]()
    for number, record in found.records.items():
        path = record.path.absolute()
        if path.parent not in sweeps:
            sweeps[path.parent] = {}
            try:
                sweeps[path.parent] = recorded_values(path.parent)
            except UserError as error:
                found.notes.append(f"the swept keys do not name the systems: {error}")
        values = sweeps[path.parent].get(path.name, {})
        names = short_names(list(values))
        if values.keys() - {*SEEDS}:
            told[number] = [f"{names[key]}={value}" for key, value in values.items() if key not in SEEDS]
    return told


def _system_key(entry: Entry) -> tuple[str, ...]:
    """Return what runs have in common whose seeds alone differ: config, training data, translations.

    Of the search it is what was stated, and not what each has found by tuned_decoding when it ended.
    """
    record, file = entry.record, entry.file
    if record is None:
        return (str(file),)
    inside = str(file.relative_to(record.path)) if file is not None else ""
    return system_of(record.stated), training_data(record.path), inside


def _notes(found: Comparison, usable: Sequence[Entry]) -> list[str]:
    """Return what a reader must know before believing a number."""
    notes = [f"{entry.name} is not compared: {entry.problem}" for entry in found.entries if entry.problem]
    for entry in usable:
        if entry.record is not None and entry.record.state != "done":
            search = f", found with {entry.record.validated_by}" if entry.record.validated_by else ""
            what = f"its translations in {entry.file}{search}"
            notes.append(f"{entry.name} is {entry.record.state}, and compared by {what}")
        notes += remarks(entry, found.split)
    for column in found.columns:
        for entry in usable:
            own = entry.signatures.get(column.metric, column.signature)
            if significance.rules_of(own) == significance.rules_of(column.signature):
                notes += filter(None, [significance.version_note(own, column.signature)])
            else:
                notes.append(
                    f"the stored {column.label} of {entry.name} is not comparable: its signature is {own}; "
                    f"here all are computed anew with {column.signature}"
                )
        notes += _disagreements(found, column)
    srcs = [entry.name for entry in usable[1:] if entry.sources != usable[0].sources]
    if srcs:
        notes.append(
            f"the sources of {', '.join(srcs)} differ from those of {usable[0].name}; the references agree"
        )
    number = len(usable) - 1
    if number > 1:
        notes.append(
            f"{number} {found.kinds} are tested against {usable[0].name}: by chance alone, one in twenty "
            "of such tests has p < 0.05; read the p values corrected for their number (Holm), and test a "
            "choice once, on test"
        )
    if number and all(len(system.members) == 1 for system in found.systems):
        notes.append(
            "no system has several runs: the tests know the chance in the choice of sentences, not that "
            "in training, which several seeds show"
        )
    if not found.same_tokenizer:
        notes.append("the tokenizers differ: losses and perplexities are per token, and not comparable")
    return list(dict.fromkeys(notes))


def _disagreements(found: Comparison, column: Column) -> Iterable[str]:
    """Yield a remark for each run whose stored score is not that of its stored translations."""
    for entry, row in zip(found.entries, column.rows, strict=True):
        stored, own = entry.stored.get(column.metric), entry.signatures.get(column.metric)
        if row is None or stored is None or own is None:
            continue
        same = significance.rules_of(own) == significance.rules_of(column.signature)
        if same and not math.isclose(stored, row.value, abs_tol=0.005):
            yield (
                f"{entry.name} has stored {column.label} {stored:.2f}, but its translations in "
                f"{entry.file} score {row.value:.2f}: the file or the score has changed"
            )


def _cost(record: RunRecord, file: Path | None) -> Cost:
    """Return what the training took, up to the step that the translations in `file` are of.

    Sums at a step without a record are in proportion to the steps between the records around it.
    """
    step, seconds = record.step, record.seconds
    tokens: float | None = record.tokens
    records = list(step_records(record.path / "metrics.jsonl"))
    if file is not None and (found := CHECKPOINT.fullmatch(file.stem)) and int(found[1]) < step:
        end = {"step": step, "train/tokens": tokens, "train/seconds": seconds}
        step, known = int(found[1]), [end, *records] if record.state == "done" else records
        tokens, seconds = (_sum_at(step, known, f"train/{name}") for name in ("tokens", "seconds"))
    names = ("train/tflops_per_second", "train/tgt_tokens_per_second")
    measures = [(one["step"], *(as_number(one.get(name)) for name in names)) for one in records]
    last = min((there for there, *both in measures if all(both) and there >= step), default=step)
    shares = [tflops / speed for there, tflops, speed in measures if tflops and speed and there <= last]
    per_token = sums.fmean(shares) * 1e12 if shares else None
    operations = per_token * tokens if per_token and tokens else None
    return Cost(step, seconds, None if tokens is None else round(tokens), record.parameters, operations)


def _sum_at(step: int, records: Iterable[Mapping[str, Any]], key: str) -> float | None:
    """Return what `key` had grown to, from 0, by a step; None behind the last record of it."""
    found = {one["step"]: value for one in records if (value := as_number(one.get(key))) is not None}
    steps, values = zip(*sorted(({0: 0.0} | found).items()), strict=True)
    value = float(np.interp(step, steps, values, right=math.nan))
    return value if math.isfinite(value) else None


def _curves_of(entries: Sequence[Entry]) -> list[dict[str, list[Point]]]:
    """Return the curves of each entry; those of a run that is there several times, once."""
    known, curves = set(), []
    for entry in entries:
        record = entry.record
        curves.append({} if record is None or record.path in known else _curves(record))
        known.add(record and record.path)
    return curves


def _curves(record: RunRecord) -> dict[str, list[Point]]:
    """Return the curves of a run by name.

    What earlier versions have not stored is estimated: tokens by their mean in a step, seconds by those of
    the updates alone, without validations.
    """
    per_step = record.tokens / record.step if record.tokens and record.step else None
    curves: dict[str, list[Point]] = {}
    tokens, seconds = 0.0, 0.0
    for one in step_records(record.path / "metrics.jsonl"):
        step, before = int(one["step"]), tokens
        so_far = as_number(one.get("train/tokens", per_step * step if per_step else None))
        if so_far is not None and "train/nll" in one:
            tokens = so_far
            seconds += max(tokens - before, 0.0) / (
                as_number(one.get("train/tgt_tokens_per_second")) or math.inf
            )
            seconds = as_number(one.get("train/seconds")) or seconds
        for key, value in one.items():
            name = CURVES.get(key) or (key.removeprefix("valid/") if key.startswith("valid/") else "")
            if name and isinstance(value, (int, float)) and math.isfinite(value):
                known = so_far is not None or tokens > 0
                point = (step, tokens, seconds, float(value)) if known else (step, None, None, float(value))
                curves.setdefault(name, []).append(point)
    return {name: _thinned(points) for name, points in curves.items()}


def _thinned(points: list[Point]) -> list[Point]:
    """Return at most `MAX_POINTS` of the points, the last among them."""
    every = math.ceil(len(points) / MAX_POINTS)
    return points[::-1][::every][::-1] if every > 1 else points
