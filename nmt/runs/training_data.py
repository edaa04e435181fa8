"""The training data of a run, prepared from its whole config: the one place where the parts meet."""

from __future__ import annotations

from nmt.config.roots import TrainConfig
from nmt.data import training_split
from nmt.data.training_split import Examples, RunFiles, TrainingData
from nmt.errors import Log
from nmt.runs.scorers import RunScorers
from nmt.runs.start import Start
from nmt.runs.tasks import TASKS


def prepare(
    cfg: TrainConfig, run: RunFiles, log: Log, start: Start | None = None, examples: Examples | None = None
) -> TrainingData:
    """Prepare the data of a training: the tokenizer is that of `start`, or a new one.

    `examples` are those of the task, unless others are given. See `nmt.data.training_split.prepare`.
    """
    return training_split.prepare(
        cfg.data,
        cfg.tokenizer,
        examples or TASKS[cfg.task].examples(cfg),
        run,
        seed=cfg.seed,
        log=log,
        max_steps=cfg.trainer.max_steps,
        inherited=start.inherited if start else None,
        scorers=RunScorers(cfg.runtime),
    )
