"""The keys of `trainer`, and the table of measures, which imports no torch before it needs it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

from nmt.checks import at_least, finite, not_negative, positive, within
from nmt.errors import UserError, suggest
from nmt.loading import Code
from nmt.training.lengths import Steps, require_lengths

AUTO = "auto"
"""Value of `trainer.batch_tokens` that asks for the search."""


class OnNonfinite(Enum):
    """What follows an update whose loss, or norm of the gradients, is not finite."""

    stop = "stop"
    skip = "skip"
    rollback = "rollback"


MEASURES: dict[str, Code] = {
    "weight_norm": "nmt.training.statistics.weight_norm",
    "largest_gradient": "nmt.training.statistics.largest_gradient",
    "layer_grad_norm": "nmt.training.statistics.layer_grad_norm",
}
"""Measures of an update: a scalar on the device, or several by name. The names of a measure stay the same."""


class AverageOf(Enum):
    """Choice of the checkpoints to average."""

    last = "last"
    best = "best"


@dataclass
class Change:
    """Values that hold from an update on: an entry of `trainer.changes`; None: as before."""

    step: int
    accumulate: int | None = None
    dropout_factor: float | None = None
    rate_factor: float | None = None

    def __str__(self) -> str:
        named = dataclasses.asdict(self).items()
        return " and ".join(f"{name}={x}" for name, x in named if name != "step" and x is not None)

    @classmethod
    def of(cls, key: str, entry: object) -> Change:
        """Return an entry as a change; raise `UserError`, which names `key`, where it is none."""
        known = list(cls.__dataclass_fields__)
        if not isinstance(entry, Mapping) or len(entry) < 2 or "step" not in entry:
            raise UserError(
                f"{key} must be a change such as {{step: 1000, dropout_factor: 0.5}} or "
                f"{{step: 1000, accumulate: 2}}, but is {entry!r}"
            )
        for name, value in entry.items():
            if name not in known:
                raise UserError(
                    f"unknown key {key}.{name}{suggest(str(name), known)}; there are {', '.join(known)}"
                )
            least = {"step": 2, "accumulate": 1}.get(name, 0)
            kinds, number = ((int,), "whole number") if least else ((int, float), "number")
            if type(value) not in kinds or not least <= value < float("inf"):
                raise UserError(f"{key}.{name} must be a {number} of at least {least}, but is {value!r}")
        return cls(**entry)


@dataclass
class TrainerConfig:
    """Limits of a training, its batches, and checkpoints to keep. A step is one update of the weights."""

    max_steps: Steps | None = 20_000
    """Stop after this many updates, or epochs or target tokens such as '30 epochs' or '1B tokens', counted in
    updates once, so that a schedule knows its end; null: no limit."""
    max_epochs: int | None = None
    """Stop after this many passes over the training split; null: no limit."""
    max_tokens: int | None = None
    """Stop after this many target tokens; null: no limit. The size of a batch is batch_tokens."""
    max_minutes: float | None = None
    """Stop after this much training time, counted over resumes; null: no limit."""
    batch_tokens: int | str = 4096
    """Largest number of tokens in one batch, padding included, on the longer side of each pair; auto: what
    fits into memory, on CPU no more than makes training faster, found once, at the start of the run."""
    auto_batch_tokens: int | None = None
    """Number that batch_tokens=auto stands for; null: it is found, and stored here."""
    accumulate: int = 1
    """Batches whose gradients are added up for one update, over all processes together; where they are fewer
    than the processes, these share each batch."""
    changes: list[Any] = field(default_factory=list)
    """Values that hold from an update on, in ascending order of these, such as [{step: 1000, accumulate: 2},
    {step: 5000, dropout_factor: 0.5, rate_factor: 0.1}]: accumulate, and factors on all dropout rates of the
    model and on the learning rate. A run may go on with others that hold after its newest checkpoint."""
    on_nonfinite: OnNonfinite = OnNonfinite.stop
    """What follows a loss or a gradient that is not finite: stop; skip leaves out that update; rollback
    returns to the newest regular checkpoint and goes on with the data behind that update."""
    max_recoveries: int = 5
    """Updates that skip leaves out in a row, or returns of rollback in a run, before the training stops."""
    divergence_ratio: float = 5.0
    """Stop when the median of the last three logged losses is this many times that of the first update, or
    that of a uniform guess if it is larger; 0: never."""
    log_every_steps: Steps = 50
    """Updates, or epochs or target tokens such as '0.1 epochs' or '1M tokens', between two lines of
    metrics."""
    measures: list[str] = field(default_factory=list)
    """Further measures of every update, shown as train/NAME: weight_norm, largest_gradient,
    layer_grad_norm."""
    eval_every_steps: Steps = 500
    """Updates, epochs or tokens between two validations."""
    save_every_steps: Steps = 500
    """Updates, epochs or tokens between two checkpoints."""
    epoch_steps: int | None = None
    """Updates of an epoch, by which lengths such as '2 epochs' are counted; null: those of the first epoch,
    stored here."""
    update_tokens: int | None = None
    """Target tokens of an update, by which lengths such as '10M tokens' are counted; null: the mean of the
    first epoch, stored here."""
    keep_last: int = 3
    """Newest checkpoints kept."""
    keep_best: int = 1
    """Best checkpoints kept, by `best_metric`."""
    best_metric: str = "auto"
    """Validation score that picks the best checkpoint and drives early stopping: loss, one of
    `metrics`, or with data.target_tags macro_bleu and the like, its mean over target languages; auto: the
    first of `metrics` whose higher values are better, else loss."""
    patience: int = 10
    """Stop after this many validations without a better `best_metric` or, where it is the same, a lower loss;
    0: never."""
    average: int = 0
    """Average the weights of this many checkpoints at the end, and score the mean unless the best checkpoint
    validates better; 0: score the best one."""
    average_of: AverageOf = AverageOf.last
    """Average the newest or the best checkpoints."""
    ema_decay: float = 0.0
    """Score and save the exponential moving average of the weights, of which an update keeps this share (less
    in the first updates), such as 0.999; 0: the weights themselves."""
    freeze: list[str] = field(default_factory=list)
    """Patterns of the names of weights that do not learn, such as [encoder.*,*embedding*]; a matrix with
    several names, as tied ones have, is frozen by any of them."""
    gradient_checkpointing: bool = False
    """Compute every layer again in the backward pass instead of keeping what it computed: the same gradients
    with less memory, for the time of one more forward pass."""
    num_samples: int = 3
    """Validation sentences whose translations are shown in TensorBoard at every validation."""

    def __post_init__(self) -> None:
        every = ("log_every_steps", "eval_every_steps", "save_every_steps")
        require_lengths(self, "trainer", 1, *every)
        at_least(self, "trainer", 1, "accumulate", "keep_last", "keep_best", "auto_batch_tokens")
        at_least(self, "trainer", 1, "epoch_steps", "update_tokens")
        self._require_batch_tokens()
        steps = [change.step for change in self.all_changes]
        if steps != sorted(set(steps)):
            raise UserError(
                f"trainer.changes must be in ascending order of their steps, but these are {steps}"
            )
        limits = ["max_epochs", "max_tokens", "max_minutes"]
        if isinstance(self.max_steps, int):
            limits.append("max_steps")
        positive(self, "trainer", *limits, hint="; use null for no limit")
        require_lengths(self, "trainer", 1, "max_steps", or_null=True)
        not_negative(self, "trainer", "patience", "average", "num_samples", "max_recoveries")
        finite(self, "trainer", "divergence_ratio")
        within(self, "trainer", "[0, 1)", "ema_decay")
        for name in self.measures:
            if name not in MEASURES:
                known = ", ".join(MEASURES)
                raise UserError(
                    f"trainer.measures can hold {known}, but holds {name!r}{suggest(name, MEASURES)}"
                )
        kept = self.keep_last if self.average_of is AverageOf.last else self.keep_best
        if self.average > kept:
            key = f"trainer.keep_{self.average_of.value}"
            raise UserError(
                f"trainer.average={self.average} needs as many checkpoints, but {key}={kept}; "
                f"set {key}={self.average}"
            )

    @cached_property
    def all_changes(self) -> list[Change]:
        """The entries of `changes`, checked."""
        return [Change.of(f"trainer.changes[{i}]", entry) for i, entry in enumerate(self.changes or [])]

    def changes_until(self, step: int) -> list[Change]:
        """Return the changes that hold in update `step`, or held before it."""
        return [change for change in self.all_changes if change.step <= step]

    def accumulate_at(self, step: int) -> int:
        """Return the number of batches of update `step`."""
        return int(self._in_force("accumulate", step, self.accumulate))

    def accumulated_from(self, step: int) -> list[int]:
        """Return the numbers of batches of update `step` and of later ones, up to the last if it is known."""
        last = self.max_steps if isinstance(self.max_steps, int) else math.inf
        later = [change for change in self.all_changes if step < change.step <= last]
        return [self.accumulate_at(step), *(x.accumulate for x in later if x.accumulate is not None)]

    def num_updates(self, batches: int) -> int:
        """Return the number of updates that the first `batches` of a training make."""
        updates = 0
        while batches > 0:
            updates += 1
            batches -= self.accumulate_at(updates)
        return updates

    def num_batches(self, updates: int) -> int:
        """Return the number of batches of the first `updates` of a training."""
        if not self.changes:
            return updates * self.accumulate
        return sum(map(self.accumulate_at, range(1, updates + 1)))

    def dropout_factor_at(self, step: int) -> float:
        """Return the factor on all dropout rates in update `step`."""
        return self._in_force("dropout_factor", step, 1.0)

    def rate_factor_at(self, step: int) -> float:
        """Return the factor on the learning rate of update `step`."""
        return self._in_force("rate_factor", step, 1.0)

    def _in_force(self, name: str, step: int, default: float) -> float:
        """Return the value of a key of `changes` in update `step`, or the `default` before the first."""
        values = [getattr(change, name) for change in self.changes_until(step)]
        return next((value for value in reversed(values) if value is not None), default)

    def _require_batch_tokens(self) -> None:
        """Raise `UserError` unless `batch_tokens` is a number or auto, and the number of auto is for auto."""
        given = self.batch_tokens
        if given != AUTO and (isinstance(given, str) or given < 1):
            raise UserError(f"trainer.batch_tokens must be at least 1 or {AUTO}, but is {given!r}")
        if given != AUTO and self.auto_batch_tokens is not None:
            raise UserError(
                f"trainer.auto_batch_tokens={self.auto_batch_tokens} is what trainer.batch_tokens={AUTO} "
                f"stands for, but trainer.batch_tokens is {given}; leave one of them out"
            )

    @property
    def is_to_be_found(self) -> bool:
        """Whether the number of tokens in a batch is not known yet."""
        return self.batch_tokens == AUTO and self.auto_batch_tokens is None

    @property
    def tokens_per_batch(self) -> int:
        """The largest number of tokens in one batch, given or found; raise `UserError` if it is unknown."""
        number = self.auto_batch_tokens if self.batch_tokens == AUTO else int(self.batch_tokens)
        if number is None:
            raise UserError(
                f"trainer.auto_batch_tokens is missing, which trainer.batch_tokens={AUTO} has found for this "
                "run; restore its config.yaml"
            )
        return number
