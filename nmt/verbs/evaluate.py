"""The wiring of `nmt evaluate`: score a trained model on a split, and on further corpora.

Scores are stored in RUN/evaluations, one file for each corpus and each way to score on it; the same command
again computes them anew, and replaces the file.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from nmt import __version__, distributed
from nmt.config.composed import Composed
from nmt.config.misfits import unasked
from nmt.config.overrides import FROM_RUN
from nmt.config.roots import Task, TrainConfig
from nmt.config.stored import to_plain
from nmt.data.configs import DataConfig
from nmt.data.parallel_text import ParallelText, Split
from nmt.data.reading.sources import has_split, like_trained, set_configs
from nmt.data.reading.testsets import TestsetData
from nmt.errors import UserError, warn
from nmt.files import digest_of_lines, write_json, write_lines
from nmt.metrics.confidence import correlations
from nmt.metrics.label_scores import confusion_lines
from nmt.metrics.scoring import language_lines, score_line, sentence_chrf
from nmt.models.configs import EnsembleConfig
from nmt.runs.checkpoint_names import with_fixed_checkpoints
from nmt.runs.evaluation_text import evaluation_text
from nmt.runs.opened import Run
from nmt.runs.opening import open_runs
from nmt.runs.scored_sets import scored_sets
from nmt.runs.tasks import Evaluation
from nmt.signals import StopRequest
from nmt.translation.evaluate import Scores
from nmt.translation.score import score
from nmt.verbs.configs import EvaluateConfig, RerankConfig

FORMAT = 1
"""Number of the layout of the files in evaluations."""


class Part(NamedTuple):
    """One corpus that is scored."""

    label: str
    """Its name in what is printed, and in the names of files: test, test-news or wmt22."""
    data: DataConfig
    is_own: bool
    """Whether the run names the very corpus, so that its label says all."""
    text: ParallelText


def run(trial: Composed) -> dict[str, Any]:
    """Score a trained model on each corpus, print, store and return the scores; processes share the work."""
    cfg = trial.to_config(EvaluateConfig)
    opened = open_runs(cfg)
    _require_languages(opened.cfg, cfg.data)
    opened.require_metrics_of_task(cfg.metrics)
    if cfg.confidence:
        opened.require_task(Task.translation)
        if opened.cfg.data.context_target:
            raise UserError(
                "confidence=true scores each translation behind its source, but this run, trained with "
                "data.context_target=true, writes context in front of it; leave confidence out"
            )
    results, signatures = dict[str, Any](), dict[str, str]()
    with StopRequest(cfg.runtime.grace_seconds), distributed.joined(cfg.runtime.timeout_minutes) as world:
        with world.main_first():  # the first rank may download the corpus
            parts = list(_parts(cfg, opened, named=trial.choices.get("data") != FROM_RUN))
            parts = [_in_domain(opened, part, cfg.domain) for part in parts]
        for part in parts:
            started = time.perf_counter()
            trained = dataclasses.replace(opened.cfg, data=part.data, scoring=cfg.scoring)
            tested = dataclasses.replace(opened, cfg=trained, world=world)
            scores = Evaluation(tested, part.text, warn).scores(cfg.decoding, cfg.metrics)
            results[part.label] = scores.values
            signatures = signatures or scores.signatures
            if world.is_main:
                _report(cfg, opened, part, scores, time.perf_counter() - started)
    return {**results, "signatures": signatures}


def _parts(cfg: EvaluateConfig, opened: Run, *, named: bool) -> Iterator[Part]:
    """Yield the corpora to score: the test sets of sacreBLEU, or the data, and then the sets.

    Where test sets or the data are `named`, of the sets only those that the run does not have. A set that is
    the data in another form is the named data.
    """
    directory, trained, split = opened.directory, opened.cfg, cfg.data.scored_split
    of_sets = trained.data
    for name in cfg.testsets:
        testset = TestsetData(src=cfg.data.src, tgt=cfg.data.tgt, test=name, key_prefix="testset")
        is_own = (testset.src, testset.tgt) == (trained.data.src, trained.data.tgt)
        text = _tagged(opened, testset, evaluation_text(directory, trained, testset, Split.test))
        yield Part(name.replace("/", "_"), testset, is_own, text)
    if not cfg.testsets:
        data = like_trained(cfg.data, trained.data)
        data.require_known(trained.data)
        of_sets = data if named else of_sets
        text = evaluation_text(directory, trained, data, split, named=named or cfg.read_corpus)
        text = text if data.tags else _tagged(opened, data, text)  # of another corpus than the run's
        is_own = dataclasses.replace(data, scored_split=trained.data.scored_split) == trained.data
        yield Part(split.value, data, is_own, text)
    own = set_configs(trained.sets, trained.data)
    given = {name: entry for name, entry in cfg.sets.items() if entry != trained.sets.get(name)}
    others = {name: entry for name, entry in cfg.sets.items() if name not in given}
    others = {} if named or cfg.testsets else others
    for name, data in set_configs(given, of_sets).items():
        if not has_split(data, split):
            raise UserError(
                f"sets.{name} has no {split.value} pairs, and data.scored_split={split.value} is scored; "
                f"give it a key {split.value}, or set data.scored_split"
            )
        _require_languages(trained, data, f"sets.{name}")
    for sets, data, trusted in ((others, trained.data, cfg.read_corpus), (given, of_sets, True)):
        for one in scored_sets(directory, trained, set_configs(sets, data), split, named=trusted):
            yield Part(f"{split.value}-{one.name}", one.data, own.get(one.name) == one.data, one.text)


def _tagged(opened: Run, data: DataConfig, text: ParallelText) -> ParallelText:
    """Return the text with the tag in front of its sources that asks the model for the language of `data`."""
    if not opened.cfg.data.tags:
        return text
    return dataclasses.replace(text, src=list(opened.asking_for(data.tgt, text.src)))


def _in_domain(opened: Run, part: Part, domain: str | None) -> Part:
    """Return a corpus whose sources have the tag of `domain`, unless they have that of another."""
    return part._replace(text=dataclasses.replace(part.text, src=opened.in_domain(domain, part.text.src)))


def _report(cfg: EvaluateConfig, opened: Run, part: Part, scores: Scores, seconds: float) -> None:
    """Print the scores of a corpus, and store them beside its translations."""
    print(score_line(part.label, scores.values), flush=True)
    for line in (*language_lines(scores.by_language), *confusion_lines(scores.details)):
        print(line)
    for name, signature in scores.signatures.items():
        print(f"signature   {name}|{signature}")
    name, directory = hypothesis_name(cfg, opened.cfg, part), opened.directory
    file = directory.hypotheses / f"{name}.{part.data.tgt}"
    write_lines(file, scores.hypotheses)
    record = directory.evaluations / f"{evaluation_name(cfg, opened.cfg, part)}.json"
    write_json(record, _record(cfg, opened.cfg, part, scores, seconds, str(file.relative_to(directory.path))))
    print(f"stored      {record}")
    print(f"written     {file}")
    if cfg.confidence:
        _report_confidence(opened, cfg, part.text, scores.hypotheses, file)


def _record(
    cfg: EvaluateConfig, trained: TrainConfig, part: Part, scores: Scores, seconds: float, file: str
) -> dict[str, Any]:
    """Return the content of a file of `evaluations`."""
    fixed, weights = with_fixed_checkpoints(cfg)
    settings: dict[str, Any] = {"data": to_plain(part.data), "scoring": to_plain(cfg.scoring)}
    own = to_plain(dataclasses.replace(trained, run=None))
    changed = {
        f"{name}.{key}": value
        for name, values in settings.items()
        for key, value in values.items()
        if (name != "data" or part.label == part.data.scored_split.value) and own[name].get(key) != value
    }
    changed.pop("data.scored_split", None)  # which "split" has
    return {
        "set": part.label,
        "split": part.data.scored_split.value,
        "runs": cfg.runs,
        "checkpoints": fixed.checkpoints,
        "weights": weights,
        "changed": changed | changed_settings(cfg, trained),
        **settings,
        "decoding": to_plain(cfg.decoding),
        "metrics": cfg.metrics,
        **scored_fields(part.text, scores, file),
        "seconds": round(seconds, 1),
    }


def changed_settings(cfg: EvaluateConfig | RerankConfig, trained: TrainConfig) -> dict[str, Any]:
    """Return the settings of search, models and metrics that are not those of the run alone."""
    own = to_plain(trained.decoding)
    changed = {f"decoding.{key}": x for key, x in to_plain(cfg.decoding).items() if own.get(key) != x}
    changed |= {} if len(cfg.runs) == 1 else {"run": cfg.runs}
    by_default = to_plain(EnsembleConfig())
    rule = {key: value for key, value in to_plain(cfg.ensemble).items() if value != by_default[key]}
    changed |= {f"ensemble.{key}": value for key, value in rule.items()}
    changed |= {} if cfg.checkpoint == "final" else {"checkpoint": cfg.checkpoint}
    changed |= {} if cfg.domain is None else {"domain": cfg.domain}
    kept = {key: getattr(cfg, key) for key in ("encoder_layers", "decoder_layers")}
    changed |= {key: layers for key, layers in kept.items() if layers is not None}
    return changed if cfg.metrics == trained.metrics else changed | {"metrics": cfg.metrics}


def scored_fields(text: ParallelText, scores: Scores, file: str) -> dict[str, Any]:
    """Return the fields of a file of `evaluations` that say what was scored, with what result, and when.

    The translations are in `file`, relative to the run.
    """
    return {
        "format": FORMAT,
        "scores": scores.values,
        "signatures": scores.signatures,
        **({"languages": scores.by_language} if scores.by_language else {}),
        **({"details": scores.details} if scores.details else {}),
        "sentences": len(text),
        "num_references": 1 + len(text.references),
        "sha256": {side: digest_of_lines(getattr(text, side)) for side in ("src", "tgt")},
        "hypotheses": file,
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "nmt": __version__,
    }


def _report_confidence(
    opened: Run, cfg: EvaluateConfig, text: ParallelText, hypotheses: list[str], file: Path
) -> None:
    """Print how confidence and sentence chrF correlate, and write both of each translation beside `file`."""
    model, search = opened.searched(cfg.decoding), cfg.decoding
    sources = opened.in_fitting_context(text.src, search)
    found = score(sources, hypotheses, model, opened.tokenizer, search, device=opened.device)
    confidence = [one.per_token for one in found]
    chrf = sentence_chrf(hypotheses, text.tgt)
    print(f"confidence  {correlations(confidence, chrf)}")
    values = file.with_name(f"{file.name}.confidence.tsv")
    write_lines(values, [f"{x:.4f}\t{y:.2f}" for x, y in zip(confidence, chrf, strict=True)])
    print(f"written     {values}")


def _require_languages(trained: TrainConfig, data: DataConfig, key: str = "data") -> None:
    """Raise `UserError` unless a run translates the languages of the corpus `key`, or has labels as that."""
    own, kind = trained.data, key if key == "data" else f"{key}.name"
    if trained.task is Task.language_model and data.tgt != own.tgt:
        raise UserError(f"the run models {own.tgt}, but {key}.tgt is {data.tgt}; add {key}.tgt={own.tgt}")
    wrong = [pair for pair in data.languages if pair not in own.languages]
    if key != "data":  # a set is asked for by its own tag
        wrong = unasked(own, wrong)
    if trained.task is Task.classification and not data.has_labels:
        raise UserError(
            f"the run classifies texts, but {kind}={data.name} has no labels; choose {kind}=labels"
        )
    if trained.task is Task.translation and wrong:
        (src, tgt), known = wrong[0], " and ".join(f"{a} to {b}" for a, b in dict.fromkeys(own.languages))
        first = own.languages[0]
        raise UserError(
            f"the run translates {known}, "
            f"but {key} is {src} to {tgt}; add {key}.src={first[0]} {key}.tgt={first[1]}"
        )


def hypothesis_name(cfg: EvaluateConfig, trained: TrainConfig, part: Part) -> str:
    """Return a name of a file: the label of the corpus, with a hash of settings that are not the run's."""
    layers = cfg.encoder_layers, cfg.decoder_layers
    is_alone = len(cfg.runs) == 1 and cfg.ensemble.lm is None
    is_whole = cfg.checkpoint == "final" and layers == (None, None) and cfg.domain is None
    if is_alone and is_whole and part.is_own and cfg.decoding == trained.decoding:
        return part.label
    settings = repr((part.data, cfg.decoding, cfg.checkpoint))
    settings += "" if layers == (None, None) else repr(layers)
    settings += "" if cfg.domain is None else f" domain {cfg.domain}"
    if not is_alone:
        settings += repr(([str(Path(run).resolve()) for run in cfg.runs], cfg.ensemble))
    return f"{part.label}-{hashlib.sha256(settings.encode()).hexdigest()[:8]}"


def evaluation_name(cfg: EvaluateConfig, trained: TrainConfig, part: Part) -> str:
    """Return the name of the translations, with a hash of metrics and rules that are not those of the run."""
    name = hypothesis_name(cfg, trained, part)
    if (cfg.metrics, cfg.scoring) == (trained.metrics, trained.scoring):
        return name
    settings = repr((name, cfg.metrics, cfg.scoring))
    return f"{part.label}-{hashlib.sha256(settings.encode()).hexdigest()[:8]}"
