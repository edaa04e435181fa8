"""The progress of a training: all that a checkpoint remembers beside tensors.

Knows neither batches nor models, and no files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, get_type_hints

from nmt.errors import UserError
from nmt.files import misfits
from nmt.training.trainer_config import AverageOf, TrainerConfig


class Place(NamedTuple):
    """A place in the training data: what comes next; see the fields of `TrainState`."""

    epoch: int
    part: int
    batch: int
    digest: str


@dataclass
class TrainState:
    """Everything but tensors that a run remembers; stored as JSON in every checkpoint."""

    step: int = 0
    epoch: int = 1
    part: int = 0
    """Parts of this epoch already trained on; most epochs have one, those of large corpora more."""
    batch: int = 0
    """Batches of this part already trained on."""
    digest: str = ""
    """`EncodedPairs.digest` of this epoch."""
    sorts_by_target: bool = False
    """Whether batches are made and dealt to processes as in earlier versions, one of which began the run."""
    tokens: int = 0
    """Target tokens trained on."""
    seconds: float = 0.0
    """Wall-clock time of training, validation included."""
    update_seconds: float = 0.0
    """Wall-clock time of the updates alone."""
    scores: dict[str, float] = field(default_factory=dict)
    """Validation score by step, larger is better."""
    losses: dict[str, float] = field(default_factory=dict)
    """Validation loss by step; earlier versions kept none."""
    validations_without_gain: int = 0
    lowest_loss: float | None = None
    """Lowest validation loss."""
    validations_without_lower_loss: int = 0
    num_cuts: int = 0
    """Cuts of the learning rate on a plateau."""
    splits: int = 0
    """Updates computed in parts, because they did not fit into memory."""
    skips: int = 0
    """Updates left out, because a loss or a norm was not finite."""
    skips_in_a_row: int = 0
    """Updates left out since the last one that was not."""
    rollbacks: int = 0
    """Returns to a checkpoint."""
    regular: list[int] = field(default_factory=list)
    """Steps that were due when they were saved, by the intervals of then; earlier versions kept none."""
    first_loss: float | None = None
    """Loss of the first update, before the weights had changed."""
    last_losses: list[float] = field(default_factory=list)
    """The last losses in the metrics, the newest last."""
    window: dict[str, float] = field(default_factory=dict)
    """Sums by name since the last line of metrics; `nmt.training.statistics` says what they mean."""

    @classmethod
    def stored_in(cls, state: dict[str, Any]) -> TrainState:
        """Return the state that `to_store` put into the JSON object of a checkpoint, be it by an earlier nmt.

        Raises:
            UserError: the object is not of this nmt, or its values cannot be.
        """
        progress = state.get("progress")
        if not isinstance(progress, dict):
            raise UserError("state.json of the checkpoint has no progress of a training")
        kinds = get_type_hints(cls)
        wrong = [f"{name!a:.80} is unknown" for name in progress.keys() - kinds.keys()][:5]
        wrong += misfits(
            progress, {name: kinds[name] for name in kinds if name == "step" or name in progress}
        )
        if not wrong:
            found = cls(**{"sorts_by_target": True, **progress})
            if found.lowest_loss is not None and math.isnan(found.lowest_loss):  # as in earlier versions
                found.lowest_loss = None
            if "positions" in found.window:  # of the target, when those of the source were not counted
                found.window["tgt_positions"] = found.window.pop("positions")
            counts = [*(x for x in vars(found).values() if type(x) is int), *map(_step, found.scores)]
            wrong = ["a count is negative or a score has no step"] if min(counts) < 0 else []
        if wrong:
            raise UserError(f"state.json of the checkpoint does not fit this nmt: {'; '.join(wrong)}")
        return found

    def to_store(self) -> dict[str, Any]:
        """Return the entry for the JSON object of a checkpoint."""
        return {"progress": asdict(self)}

    @property
    def place(self) -> Place:
        """Where the training is in the data."""
        return Place(self.epoch, self.part, self.batch, self.digest)

    def begin_epoch(self) -> None:
        """Leave the current epoch."""
        self.epoch, self.part, self.batch = self.epoch + 1, 0, 0

    def best_steps(self, among: Sequence[int] | None = None) -> list[int]:
        """Return the validated steps, the highest `rank` first, the earlier of equals first."""
        steps = sorted(map(int, self.scores))
        wanted = set(steps if among is None else among)
        return sorted((step for step in steps if step in wanted), key=self.rank, reverse=True)

    def rank(self, step: int) -> tuple[float, float]:
        """Return the score of a validated step, and for equal ones the negative of its loss; nan is worst."""
        score, loss = self.scores[str(step)], self.losses.get(str(step), math.inf)
        return -math.inf if math.isnan(score) else score, -math.inf if math.isnan(loss) else -loss

    def is_regular(self, step: int, save_every_steps: int, keep_best: int) -> bool:
        """Return whether an uninterrupted run saves a checkpoint of `step`.

        It does so if the step is due, now or when it was saved, and at the last one.
        """
        is_last = step == self.step and str(step) in self.scores
        return step in self.regular or self.is_due(step, save_every_steps, keep_best) or is_last

    def is_due(self, step: int, save_every_steps: int, keep_best: int) -> bool:
        """Return whether `step` is one of the interval, or was among the best when it was validated."""
        if step % save_every_steps == 0 or str(step) not in self.scores:
            return step % save_every_steps == 0
        so_far = [int(other) for other in self.scores if int(other) <= step]
        return step in self.best_steps(among=so_far)[:keep_best]

    def count(self, **sums: float) -> None:
        """Add `sums` to the sums of the window."""
        self.window |= {key: self.window.get(key, 0.0) + value for key, value in sums.items()}


def kept_steps(saved: Sequence[int], state: TrainState, cfg: TrainerConfig) -> set[int]:
    """Return which of the `saved` steps to keep: the last one, the newest and the best."""
    newest = selected_steps(AverageOf.last, cfg.keep_last, saved, state, cfg)
    best = selected_steps(AverageOf.best, cfg.keep_best, saved, state, cfg)
    return {saved[-1], *newest, *best}


def selected_steps(
    which: AverageOf, count: int, saved: Sequence[int], state: TrainState, cfg: TrainerConfig
) -> list[int]:
    """Return the `count` newest or best of the `saved` steps, in ascending order.

    An interruption may save any step, so that only steps that an uninterrupted run saves count as newest.
    """
    if which is AverageOf.best:
        return sorted(state.best_steps(among=saved)[:count])
    regular = [step for step in saved if state.is_regular(step, cfg.save_every_steps, cfg.keep_best)]
    return regular[-count:]


def _step(name: str) -> int:
    """Return the step that `name` writes in digits, or -1."""
    return int(name) if name.isdecimal() and len(name) < 19 else -1
