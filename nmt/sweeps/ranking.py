"""What the trials of a sweep are ranked by: a score on validation, or the last value of a curve.

A metric that no trial would have is refused, as far as the config tells, before the first of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from nmt.config.roots import Task, TrainConfig
from nmt.config.stored import load_run
from nmt.config.sweeps import Direction, direction_of
from nmt.config.trials import Sweep
from nmt.data.parallel_text import Split
from nmt.data.reading.sources import has_split, set_configs
from nmt.errors import UserError, suggest
from nmt.metrics.scoring import MACRO, METRICS, default_best, directions, higher_is_better, over_languages
from nmt.sweeps.records import Record, curve
from nmt.sweeps.table import VALIDATION
from nmt.verbs.configs import DistilConfig, EvaluateConfig, RerankConfig


class Ranking(NamedTuple):
    """What trials are ranked by."""

    metric: str
    direction: Direction
    chosen_by: str = ""
    """Metric of the validation that chooses the checkpoint whose scores count; empty: the last one's do."""

    @classmethod
    def of(cls, plan: Sweep) -> Ranking:
        """Return what the settings of a sweep say; raise `UserError` for a score that is not computed."""
        cfg: Any = plan.example.to_config(plan.verb.config_class())
        is_training = isinstance(cfg, TrainConfig)
        best = cfg.trainer.best_metric if is_training else default_best(_metrics(plan, cfg))
        metric, direction = plan.cfg.metric or f"{VALIDATION}.{best}", plan.cfg.direction
        if plan.cfg.metric or plan.space:
            _require_any_scored(plan, metric)
        if direction is Direction.auto:
            direction = direction_of(metric, directions())
        return cls(metric, direction, best if is_training and "/" not in metric else "")

    def value(self, record: Record) -> float | None:
        """Return the value of a trial that is done."""
        if "/" in self.metric:
            values = curve(Path(record.path), self.metric) if record.path else {}
            return list(values.values())[-1] if values else None
        split, _, name = self.metric.rpartition(".")
        return record.scores.get(split, {}).get(name)

    def so_far(self, path: Path) -> dict[int, float]:
        """Return the values of a running trial by step: what each would count if the trial ended there.

        A validation without a finite score to choose by chooses no checkpoint.
        """
        if "/" in self.metric:
            return curve(path, self.metric)
        split, _, name = self.metric.rpartition(".")
        _, dash, named = split.partition("-")
        values = curve(path, f"valid/{named}{'/' * len(dash)}{name}")
        scores, losses = (curve(path, f"valid/{one}") for one in (self.chosen_by, "loss"))
        sign, found = 1 if higher_is_better(self.chosen_by) else -1, dict[int, float]()
        highest, best = (-math.inf, -math.inf), math.nan
        for step, value in values.items():
            if step not in scores:
                continue
            rank = sign * scores[step], -losses.get(step, math.inf)
            if rank > highest:
                highest, best = rank, value
            found[step] = best
        return found


def _metrics(plan: Sweep, cfg: Any) -> list[str]:
    """Return the metrics that the verb with the config `cfg` scores by: of one that names none, any."""
    if not plan.verb.scores:
        return [*METRICS]
    task = cfg.task if isinstance(cfg, TrainConfig) else load_run(cfg.runs[0]).task
    return [] if task is Task.language_model else [*cfg.metrics]


def _require_any_scored(plan: Sweep, metric: str) -> None:
    """Raise `UserError` where no trial of a sweep will have the score `metric`."""
    problems = list[UserError]()
    for trial in [plan.example] if plan.space else plan.trials:
        try:
            return _require_scored(plan, trial.to_config(plan.verb.config_class()), metric)
        except UserError as error:
            problems.append(error)
    raise problems[0]


def _require_scored(plan: Sweep, cfg: Any, metric: str) -> None:
    """Raise `UserError` where a trial with the config `cfg` will not have the score `metric`."""
    key = f"sweep.metric={metric}" if plan.cfg.metric else "a search"
    if wrong := _without_scores(plan, cfg):
        other = "list values to try without a search" if plan.space else "leave out sweep.metric"
        raise UserError(f"{key} needs scores on validation, but {wrong}{other}")
    group, is_curve, _ = metric.partition("/")
    is_training = isinstance(cfg, TrainConfig)
    if is_curve and is_training and "jsonl" not in cfg.tracking.sinks:
        raise UserError(f"{key} reads metrics.jsonl, which tracking.sinks leaves out; add jsonl")
    metrics = _metrics(plan, cfg)
    known = [*(_curves if is_curve and is_training else _scores)(cfg, metrics)]
    if metric not in known and not (is_training and is_curve and group == "train"):
        name = metric.replace("/", ".").rpartition(".")[2]
        further = f"; add {name} to metrics" if metrics and name in METRICS and name not in metrics else ""
        curves = ", or a name of metrics.jsonl such as train/loss" if is_training else ""
        raise UserError(
            f"{key} is not computed; it can be {', '.join(known)}{curves}{further or suggest(metric, known)}"
        )


def _without_scores(plan: Sweep, cfg: Any) -> str:
    """Return why trials such as `cfg` have no scores on validation, with the way out; empty if they have."""
    verb = plan.verb.name
    if not plan.verb.scores:
        return f"nmt {verb} computes none; "
    if isinstance(cfg, DistilConfig) and not cfg.distil.train:
        return "distil.train=false trains no student; leave that out, or "
    if isinstance(cfg, RerankConfig) and (cfg.stream or cfg.input is not None):
        return f"nmt {verb} with {'stream=true' if cfg.stream else 'input=...'} computes none; "
    if isinstance(cfg, EvaluateConfig) and cfg.testsets:
        return "testset=... is scored; set data.scored_split=validation in its place, or "
    if isinstance(cfg, EvaluateConfig | RerankConfig) and cfg.data.scored_split is not Split.validation:
        split = cfg.data.scored_split.value
        return f"data.scored_split={split} is scored; set data.scored_split=validation, or "
    return ""


def _scores(cfg: Any, metrics: list[str]) -> Iterator[str]:
    """Yield the names of the scores on validation of a verb with the config `cfg`."""
    yield from (f"{split}.{name}" for split in _validations(cfg) for name in _names(cfg, metrics))
    yield from (f"{VALIDATION}.{name}" for name in _means(cfg, metrics))


def _curves(cfg: TrainConfig, metrics: list[str]) -> Iterator[str]:
    """Yield the names that metrics.jsonl has of the validations of a training."""
    for split in _validations(cfg):
        named = split.removeprefix(VALIDATION).removeprefix("-")
        yield from (f"valid/{named}{'/' * bool(named)}{name}" for name in _names(cfg, metrics))
    means = _means(cfg, metrics)
    yield from (f"valid/{name}" for name in means)
    yield from (f"valid/into_{language}/{MACRO[name]}" for language in cfg.data.tags for name in means)


def _names(cfg: Any, metrics: list[str]) -> list[str]:
    """Return the names of the scores of a validation; a language model has no metrics."""
    if isinstance(cfg, RerankConfig):
        return metrics
    return [*metrics, "loss", "perplexity", *([] if metrics else ["token_accuracy"])]


def _means(cfg: Any, metrics: list[str]) -> list[str]:
    """Return the names of the means over target languages, where there are several."""
    several = len(cfg.data.tags) > 1 and not isinstance(cfg, RerankConfig)
    return over_languages(metrics) if several else []


def _validations(cfg: Any) -> list[str]:
    """Return the names of the validation splits that the verb with the config `cfg` scores."""
    named = set_configs(cfg.sets, cfg.data) if getattr(cfg, "sets", None) else {}
    validated = [name for name, data in named.items() if has_split(data, Split.validation)]
    return [VALIDATION, *(f"{VALIDATION}-{name}" for name in validated)]
