"""The study of a search as its sweep asks for it: what a pruner must know, and what all trials share."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any

from nmt.config import small_data
from nmt.config.composed import Composed
from nmt.config.roots import TrainConfig
from nmt.config.stored import matches
from nmt.config.sweeps import Pruner
from nmt.config.trials import Sweep
from nmt.errors import UserError
from nmt.sweeps.ranking import Ranking
from nmt.sweeps.search import METRIC, Search

MOVABLE = ("runtime.*", "tracking.*")
"""Keys that the trials of a search may have otherwise when it goes on."""
STEPS = ("trainer.max_steps", "trainer.eval_every_steps")
"""Keys by which hyperband knows when the validations of a trial come."""


def study_of(plan: Sweep, ranking: Ranking, parallel: int) -> Search:
    """Return the study of a search.

    Raises:
        UserError: its pruner does not fit the trials, or the study is of another search.
    """
    cfg = _config_for_pruner(plan, plan.example)
    if plan.cfg.pruner is not Pruner.none and not isinstance(cfg, TrainConfig):
        raise UserError(f"sweep.pruner={plan.cfg.pruner.name} is for trainings; leave it out")
    if plan.cfg.pruner is not Pruner.none and "jsonl" not in cfg.tracking.sinks:
        raise UserError(
            f"sweep.pruner={plan.cfg.pruner.name} reads metrics.jsonl, which "
            "tracking.sinks leaves out; add jsonl"
        )
    for name, what in (("eval_every_steps", "first validation"), ("max_steps", "end")):
        value = getattr(cfg.trainer, name) if plan.cfg.pruner is not Pruner.none else None
        if isinstance(value, str):
            raise UserError(
                f"sweep.pruner={plan.cfg.pruner.name} must know when the {what} comes, but "
                f"trainer.{name} is {value!r}; set it to a number of updates"
            )
    if plan.cfg.pruner is Pruner.hyperband:
        _require_one_length(plan, cfg)
    first, last = (
        (cfg.trainer.eval_every_steps, cfg.trainer.max_steps) if isinstance(cfg, TrainConfig) else (1, 1)
    )
    return Search(
        plan.cfg,
        plan.space,
        plan.folder,
        ranking.direction,
        parallel=parallel,
        first_step=first,
        last_step=last,
        settings={**lasting(plan.shared), METRIC: ranking.metric},
    )


def _config_for_pruner(plan: Sweep, trial: Composed) -> Any:
    """Return the config of a trial; for hyperband, with the steps that the corpus chooses where it does."""
    cfg = trial.cfg
    if plan.cfg.pruner is Pruner.hyperband and {*STEPS} & {*small_data.open_keys(cfg)}:
        cfg = small_data.filled(cfg, trial.chosen(log=lambda line: None))  # which each trial says itself
    return dataclasses.replace(trial, cfg=cfg).to_config(plan.verb.config_class())


def _require_one_length(plan: Sweep, cfg: TrainConfig) -> None:
    """Raise `UserError` where trials have other steps of validations than `cfg`, or another last one."""
    for key, one in plan.space.items():
        for end in one.ends:
            own = cfg
            with contextlib.suppress(UserError):  # the trial will say what is wrong
                own = _config_for_pruner(plan, plan.trial("example", {**plan.example.values, key: end}))
            for name in STEPS:
                first, second = (getattr(each.trainer, name.partition(".")[2]) for each in (cfg, own))
                if first != second:
                    raise UserError(
                        f"sweep.pruner=hyperband needs one {name} for all trials, but it is {first} "
                        f"with {key}={plan.example.values[key]} and {second} with {key}={end}; set it to one "
                        "number, or take sweep.pruner=median"
                    )


def lasting(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a command that no trial may have otherwise when it goes on."""
    return {key: value for key, value in settings.items() if not matches(key, MOVABLE)}
