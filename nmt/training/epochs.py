"""The batches of a training in their order, from where its `TrainState` is to the end of each epoch.

An epoch has one part, or several where the corpus is large; each part is planned as batches when it is read.
A stage has pairs of its own and ends after a given update, and the epoch with it. Where a training is, is a
matter of `TrainState` alone, so that a resumed run goes on with the batches of the interrupted one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence

from nmt.data.batches.batching import Indices, Plan, plan_epoch
from nmt.data.encoded_pairs import EncodedPairs, InParts
from nmt.distributed import ALONE, World
from nmt.errors import UserError
from nmt.runtime import derive_seed
from nmt.signals import StopRequest
from nmt.training.train_state import TrainState
from nmt.training.trainer_config import TrainerConfig


class Epochs:
    """The epochs of one training, of which one is open at a time."""

    def __init__(
        self,
        cfg: TrainerConfig,
        pairs_of_epoch: Callable[[int, int], InParts],
        *,
        seed: int,
        stage_ends: Sequence[int] = (),
        world: World = ALONE,
    ):
        """Take the pairs of an epoch, given its number from 1 and its stage from 0, from `pairs_of_epoch`."""
        self.cfg = cfg
        self.pairs_of_epoch = pairs_of_epoch
        self.seed = seed
        self.stage_ends = stage_ends
        self.world = world
        self._epoch: InParts | None = None
        self._batches_in_part = 1

    @property
    def num_parts(self) -> int:
        """The parts of the open epoch."""
        return self._epoch.num_parts if self._epoch else 1

    def open(self, state: TrainState, stop: StopRequest) -> bool:
        """Open the epoch where a training is; return False if a signal arrives while it is encoded."""
        if self._epoch is None or not state.part:
            self._epoch = None  # sampled pairs of the epoch before take room on the disk
            self._epoch = stop.unless_stopped(
                lambda: self.pairs_of_epoch(state.epoch, self.stage_after(state.step))
            )
        return self._epoch is not None

    def pairs(self, state: TrainState) -> EncodedPairs:
        """Return the pairs of the part where a training is, of the epoch that is open.

        Raises:
            UserError: the training cannot be there, or would learn nothing.
        """
        assert self._epoch is not None
        if state.sorts_by_target and self.num_parts > 1:
            raise UserError(
                "an earlier version of nmt began this run, and read so many pairs in another order; "
                "go on with that version, or start a new run: init=RUN keeps the weights"
            )
        if state.part >= self.num_parts:
            done = f"part {state.part} of {self.num_parts}"
            raise UserError(f"state.json of the checkpoint is after {done} of an epoch")
        pairs = self._epoch.part(state.part)
        if self.num_parts == 1 and pairs.weights is not None and not pairs.weights.any():
            raise UserError(
                "the weight of each training pair is 0, so that none is learnt; check the weights of the data"
            )
        return pairs

    def plan(self, state: TrainState, pairs: EncodedPairs, max_tokens: int | None = None) -> Plan:
        """Return the batches of the part where a training is, of `max_tokens` in place of the config's."""
        return plan_epoch(
            pairs.src_lengths,
            pairs.tgt_lengths,
            seed=derive_seed(self.seed, "part", state.part) if state.part else self.seed,
            epoch=state.epoch,
            max_tokens=max_tokens or self.cfg.tokens_per_batch,
            draws=pairs.draws,
            by_target=state.sorts_by_target,
        )

    def require_same(self, state: TrainState, pairs: EncodedPairs, num_batches: int) -> None:
        """Raise `UserError` unless all ranks have these pairs, and the epoch began with them or follows them.

        In a stream, a stage has buffers of its own, which follow none of the stage before.
        """
        has_begun = state.part or state.batch
        known = pairs.digest if has_begun else pairs.digest_before
        begins_stage = not has_begun and state.step in self.stage_ends
        if pairs.digest != self.world.broadcast(pairs.digest):
            raise UserError(
                f"rank {self.world.rank} reads other training data than rank 0; give all ranks the same data"
            )
        if has_begun and not state.digest:
            # A version without digests began the epoch; its sampled pairs may have made more batches.
            state.batch = min(state.batch, num_batches - 1)
        elif state.digest and known not in (None, state.digest) and not begins_stage:
            raise UserError(f"the training data has changed since step {state.step}; start a new run")
        elif state.batch >= num_batches > 0:
            done = f"batch {state.batch} of {num_batches}"
            raise UserError(f"state.json of the checkpoint is after {done} of an epoch")
        state.digest = pairs.digest

    def groups(self, state: TrainState, plan: Plan) -> Iterator[Sequence[Indices]]:
        """Yield the batches of each update, from where a training is, which moves on meanwhile."""
        while (done := state.batch) < len(plan):
            yield plan[done : done + self.cfg.accumulate_at(state.step + 1)]

    def move_on(self, state: TrainState, num_batches: int, batches_in_part: int) -> None:
        """Count `num_batches` of the plan as done; where it ends, begin the next part, or the next epoch."""
        self._batches_in_part = batches_in_part
        state.batch += num_batches
        if state.batch == batches_in_part:
            state.part, state.batch = state.part + 1, 0
        if state.step in self.stage_ends or state.part == self.num_parts:
            state.begin_epoch()

    def stage_after(self, step: int) -> int:
        """Return the stage, from 0, of the update that follows update `step`."""
        return bisect_right(self.stage_ends, step)

    def stage_of(self, step: int) -> int:
        """Return the stage, from 0, of update `step`."""
        return bisect_left(self.stage_ends, step)

    def num_done(self, state: TrainState) -> float:
        """Return the number of epochs done, with the share of the one that is open."""
        done = state.part + state.batch / self._batches_in_part
        return state.epoch - 1 + done / self.num_parts

    def named(self, state: TrainState, pairs: EncodedPairs) -> str:
        """Return in words what the numbers of the pairs count in where a training is."""
        if pairs.digest_before is not None:
            return f"buffer {state.epoch}"
        if self.num_parts > 1:
            return f"part {state.part + 1} of epoch {state.epoch}"
        return "the training data"
