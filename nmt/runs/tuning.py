"""The search of a run, tuned on the validation split when its training ends."""

from __future__ import annotations

from typing import Any

from nmt.config.roots import Task, search_with, tried_values
from nmt.config.spelling import spelled
from nmt.data.parallel_text import Split
from nmt.errors import Log
from nmt.metrics.scoring import MACRO, higher_is_better
from nmt.runs.directory import RunDirectory
from nmt.runs.evaluation_text import evaluation_text
from nmt.runs.task import TrainedModel
from nmt.runs.tasks import Evaluation


def tuned_values(trained: TrainedModel, run: RunDirectory, log: Log) -> dict[str, Any]:
    """Return the values of `tuned_decoding` that are best for the weights in memory; none if none are tried.

    All combinations translate `num_validation_pairs`. The best is by `trainer.best_metric`; among
    equals, the first.
    """
    cfg = trained.cfg
    if not cfg.tuned_decoding:
        return {}
    metric = cfg.trainer.best_metric
    if cfg.task is not Task.translation or metric == "loss":
        why = f"task={cfg.task.value}" if cfg.task is not Task.translation else "trainer.best_metric=loss"
        log(f"tuned_decoding tries nothing: {why} is the same for all searches")
        return {}
    text = evaluation_text(run, cfg, cfg.data, Split.validation)
    evaluation = Evaluation(trained, text, log)
    sign, tried = 1 if higher_is_better(metric) else -1, list[tuple[float, dict[str, Any]]]()
    for values in tried_values(cfg):
        search = search_with(cfg.decoding, values)
        scores = evaluation.scores(search, [MACRO.get(metric, metric)], cfg.num_validation_pairs)
        score = scores.values[metric]
        log(f"tuning decoding: {metric} {score:.2f} with {named_values(values)}")
        tried.append((sign * score, values))
    return max(tried, key=lambda one: one[0])[1]


def named_values(values: dict[str, Any]) -> str:
    """Return values of keys of `decoding` as a user types them."""
    return " ".join(f"decoding.{key}={spelled(value)}" for key, value in values.items())
