"""The gradients of an update: batch by batch, in parts where memory ends, and once more after a fault.

Knows neither the schedule nor what follows an update. Every method leaves random numbers, statistics and what
an objective remembers as they must be for the next update: what is computed for a trial is dropped.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nmt.data.batches.batching import Indices, Plan, collate, dealt
from nmt.data.encoded_pairs import EncodedPairs
from nmt.distributed import ALONE, World
from nmt.errors import Log, NmtError, TrainingStopped, UserError, warn
from nmt.memory import Attempt, release
from nmt.runtime import MixedPrecisionStep, seed_everything
from nmt.training.auto_batch import TIMED_SECONDS, Room, Trial
from nmt.training.memory import PARTS, advice, in_parts, size_of, slower
from nmt.training.optimizers.muon import Muon
from nmt.training.optimizers.optimizer import reserved
from nmt.training.parallel_model import ParallelModel
from nmt.training.recovery import bad_weights, found_by_rank, grad_norms, watched
from nmt.training.statistics import COUNT, BatchSize, Update, UpdateStatistics


class Gradients:
    """The gradients of one model in training; they are left in the `grad` of its parameters."""

    def __init__(
        self,
        parallel_model: ParallelModel,
        amp_step: MixedPrecisionStep,
        statistics: UpdateStatistics,
        *,
        seed: int,
        batch_tokens: int,
        accumulate: int,
        world: World,
    ):
        self.parallel_model = parallel_model
        self.amp_step = amp_step
        self.statistics = statistics
        self.seed = seed
        self.batch_tokens = batch_tokens  # of the config, for advice
        self.accumulate = accumulate
        """Batches of an update, which are dealt to the processes; 1: the rows of each batch are."""
        self.world = world
        self.log: Log = warn
        self.has_tried = False
        """Whether the largest batches have been tried."""
        self._has_warned = False
        self._current: Indices = np.empty(0, np.int64)  # the batch that is computed

    def add(
        self,
        pairs: EncodedPairs,
        group: Sequence[Indices],
        step: int,
        error: type[NmtError] = TrainingStopped,
    ) -> Sequence[Indices]:
        """Add the gradients and the sums of an update, and return its batches.

        Batches that do not fit into memory are cut into parts, and all of the update is computed anew. Where
        several processes work together they cannot be: the others wait in the exchange of the gradients.

        Raises:
            NmtError: a batch does not fit, which ends the training with an error of the type `error`.
        """
        tensors, size = dict(self.parallel_model.objective.tensors), ""
        for number in PARTS if self.world.size == 1 else PARTS[:1]:
            batches = in_parts(group, number)
            with Attempt() as attempt:
                self._add_batches(pairs, batches, step)
            if not attempt.failed:
                if number > 1 and not self._has_warned:
                    self._has_warned = True
                    self.log(slower(size, number, self.batch_tokens))
                return batches
            size = size or size_of(pairs, self._current)
            self._forget(tensors)
            release()
        parts = f", not even in {number} parts" if number > 1 else ""
        raise error(
            f"step {step}: a batch of {size} does not fit into memory{parts}; "
            f"{advice(self.batch_tokens, self.world.size)}"
        )

    def _forget(self, tensors: dict[str, Tensor]) -> None:
        """Drop what `add` has added; `tensors` are those that the objective had before."""
        self.amp_step.forget()
        self.statistics.forget_batches()
        self.parallel_model.objective.tensors = tensors

    def _add_batches(self, pairs: EncodedPairs, batches: Sequence[Indices], step: int) -> list[Tensor]:
        """Add the gradients and the sums of all batches of an update; return the loss of each, summed."""
        seed_everything(self.seed, step, rank=self.world.rank)
        count, losses = count_of(pairs, batches), []
        parts = self._own(batches)
        for number, indices in enumerate(parts, start=1):
            with self.parallel_model.exchanging(is_last=number == len(parts)):
                losses.append(self._add_batch(pairs, indices, step, count))
        return losses

    def _own(self, batches: Sequence[Indices]) -> list[Indices]:
        """Return this rank's batches, or rows of batches, of an update."""
        return dealt(batches, self.accumulate, self.world.rank, self.world.size)

    def _repeated(self, indices: Indices) -> list[Indices]:
        """Return as many copies of a batch as are dealt at once, so that a rank gets its usual share."""
        return [indices] * min(self.accumulate, self.world.size)

    def _add_batch(self, pairs: EncodedPairs, indices: Indices, step: int, count: float) -> Tensor:
        """Add the gradients and the sums of pairs that this rank computes to those of the update.

        `count` is that of the target tokens of the update, each times its weight, which divides the loss.
        Nothing here waits for a GPU, so the host collates and copies the next pairs while the GPU computes.
        """
        has_rows = len(indices) > 0  # a rank without pairs takes part all the same, with a loss of weight 0
        self._current = indices if has_rows else np.zeros(1, np.int64)
        batch = collate(pairs, self._current)
        src_tokens = int(pairs.src_lengths[indices].sum())
        batch = batch.to(self.amp_step.device)
        with self.amp_step.autocast():
            loss, named = self.parallel_model(batch, step)
        share = loss / (count / self.world.size)  # the ranks take the mean of their gradients
        self.amp_step.backward(share if has_rows else 0.0 * share)
        size = BatchSize(src_tokens, batch.src.numel(), batch.tgt_out.numel())
        if pairs.weights is not None:
            named = {**named, COUNT: batch.count.float()}
        self.statistics.add_batch(loss, named, size, counts=has_rows)
        return loss.detach()

    def try_largest(self, pairs: EncodedPairs, plan: Plan, step: int) -> None:
        """Compute the largest batches of the plan once in each process, and drop what comes of it.

        Raises:
            UserError: one of them does not fit into memory.
        """
        self.has_tried = True
        states = self.amp_step.optimizer.state
        new = [x for x in self.amp_step.parameters if not states.get(x)]
        moments = self._reserved(new)
        tensors = dict(self.parallel_model.objective.tensors)
        for indices in plan.largest(pairs.src_lengths, pairs.tgt_lengths):
            self.add(pairs, self._repeated(indices), step, UserError)
            self._forget(tensors)
        del moments  # of the optimizer, which it makes in the first update

    def _reserved(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Return tensors as large as what the optimizer will keep of some parameters.

        Raises:
            UserError: they do not fit into memory.
        """
        with Attempt():
            return reserved(self.amp_step.optimizer, parameters)
        release()
        raise UserError(
            "what the optimizer keeps of the weights does not fit into memory beside them; choose a smaller "
            "model, an optimizer that keeps less (optimizer=adafactor or adamw_8bit), or several GPUs with "
            "runtime.parallel=fsdp"
        )

    def trial(self, pairs: EncodedPairs, plan: Plan, size: int, room: Room | None) -> Trial:
        """Make updates of the largest batches of a plan of `size` tokens; return one result for all ranks.

        The learning rate is 0. The ranks exchange neither gradients nor the work of the optimizer: one
        without memory keeps none waiting, and the numbers of their updates differ.
        """
        if self.world.all_reduce_max(float(room is not None and not room.holds(size))):
            return Trial(fits=False)
        if isinstance(self.amp_step.optimizer, Muon):
            self.amp_step.optimizer.world = ALONE
        tensors = dict(self.parallel_model.objective.tensors)
        largest = list(map(self._repeated, plan.largest(pairs.src_lengths, pairs.tgt_lengths)))
        tokens = sum(num_tokens_of(pairs, copies) for copies in largest)
        unusable = torch.zeros((), device=self.amp_step.device)
        started, rounds = time.perf_counter(), 0
        with Attempt() as attempt, self.parallel_model.exchanging(is_last=False):
            while not rounds or (room is not None and time.perf_counter() - started < TIMED_SECONDS):
                rounds += 1
                for copies in largest:
                    for indices in self._own(copies):
                        self._add_batch(pairs, indices, 1, tokens)
                    self.amp_step.clip()
                    self.amp_step.step(0.0, unusable)
        if self.amp_step.device.type == "cuda" and not attempt.failed:
            torch.cuda.synchronize(self.amp_step.device)  # else the time is that of asking for the work
        seconds = time.perf_counter() - started
        self._forget(tensors)
        if attempt.failed:
            self.amp_step.optimizer.state.clear()  # which it may have begun to make for a parameter
        release()
        if room is not None:
            room.measure(size)
        fits = not self.world.all_reduce_max(float(attempt.failed))
        time_of_round = self.world.all_reduce_max(seconds / rounds)
        return Trial(fits, len(plan) == 1, self.world.all_reduce_max(seconds), tokens / time_of_round)

    def inspect(self, pairs: EncodedPairs, batches: Sequence[Indices], step: int) -> dict[str, Any]:
        """Compute an update that was left out once more; return what there is to know of it, on all ranks."""
        with watched(self.parallel_model.trained) as modules:
            losses = self._add_batches(pairs, batches, step)
        parameters = dict(self.parallel_model.trained.named_parameters())
        norms = grad_norms(Update(parameters, losses[0]), self.amp_step.scaler.get_scale())
        own = {"rank": self.world.rank, **found_by_rank(modules, pairs, self._own(batches), losses)}
        return {
            "weights": bad_weights(self.parallel_model.trained),
            "grad_norms": norms,
            "ranks": self.world.all_gather(own),
        }


def count_of(pairs: EncodedPairs, batches: Sequence[Indices]) -> float:
    """Return the target tokens of some batches, each times the weight of its pair; 1 for 0."""
    if pairs.weights is None:
        return num_tokens_of(pairs, batches)
    counts = (np.asarray(pairs.weights[rows], np.float64) @ pairs.tgt_lengths[rows] for rows in batches)
    return float(sum(counts)) or 1.0


def num_tokens_of(pairs: EncodedPairs, batches: Sequence[Indices]) -> int:
    """Return the target tokens of some batches."""
    return sum(int(pairs.tgt_lengths[indices].sum()) for indices in batches)
