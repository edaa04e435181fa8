"""The training data of a run, prepared from its whole config: the one place where the parts meet."""

from __future__ import annotations

from nmt.config.misfits import in_updates
from nmt.config.roots import TrainConfig, epoch_size, lengths_with_units
from nmt.data.batches import training_split
from nmt.data.batches.streaming import closed
from nmt.data.batches.training_split import Examples, RunFiles, TrainingData
from nmt.errors import Log
from nmt.runs.scorers import RunScorers
from nmt.runs.start import Start
from nmt.runs.tasks import TASKS
from nmt.training.epochs import Epochs
from nmt.training.gradients import num_tokens_of
from nmt.training.lengths import EpochSize, are_counted
from nmt.training.train_state import TrainState


def prepare(
    cfg: TrainConfig, run: RunFiles, log: Log, start: Start | None = None, examples: Examples | None = None
) -> TrainingData:
    """Prepare the data of a training: the tokenizer is that of `start`, or a new one.

    `examples` are those of the task, unless others are given. See `nmt.data.batches.training_split.prepare`.
    """
    return training_split.prepare(
        cfg.data,
        cfg.tokenizer,
        examples or TASKS[cfg.task].examples(cfg),
        run,
        seed=cfg.seed,
        log=log,
        max_steps=cfg.trainer.max_steps if are_counted(cfg.trainer.max_steps) else None,
        inherited=start.inherited if start else None,
        scorers=RunScorers(cfg.runtime),
    )


def first_epoch(cfg: TrainConfig, data: TrainingData) -> EpochSize:
    """Return the size of the first epoch; where it has several parts, that of its first one for each.

    The buffers of a stream are no epochs.
    """
    with closed(data.pairs_of_epoch):
        epoch = data.pairs_of_epoch(1, 0)
        pairs = epoch.part(0)
    plan = Epochs(cfg.trainer, data.pairs_of_epoch, seed=cfg.seed).plan(TrainState(), pairs)
    steps = cfg.trainer.num_updates(len(plan))
    tokens = max(1, round(num_tokens_of(pairs, plan) / max(steps, 1)))
    return EpochSize(None if cfg.data.streaming else steps * epoch.num_parts, tokens)


def size_is_missing(cfg: TrainConfig) -> bool:
    """Return whether a length is typed in a unit whose size is not known."""
    size, units = epoch_size(cfg), {length.unit for _, _, length in lengths_with_units(cfg)}
    return ("epoch" in units and size.steps is None) or ("token" in units and size.update_tokens is None)


def counted_lengths(cfg: TrainConfig) -> list[str]:
    """Return a line for each length that is typed in epochs or target tokens: what it is in updates."""
    size, counted = epoch_size(cfg), in_updates(cfg)
    return [
        f"{key}={text!r} is about {value:,} update{'s' * (value != 1)} "
        + (f"of {size.steps:,} an epoch" if length.unit == "epoch" else f"of {size.update_tokens:,} tokens")
        for key, text, length in lengths_with_units(cfg)
        for value in [getattr(getattr(counted, key.partition(".")[0]), key.partition(".")[2])]
    ]
