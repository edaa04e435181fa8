"""The training loop: the update, and when to validate, save and stop.

Knows batches, a model's contract, the optimizer and checkpoints; knows no text, no BLEU and no loss: the
objective computes the loss, and a function computes the scores of a validation, which the trainer compares by
name. A step is one update of the weights, counted from 1.
All that a training must remember is in `TrainState` and in the tensors of a checkpoint; the random state of a
step is a function of (seed, step, rank). So a resumed run repeats the interrupted one.

Several processes (`World`) share the batches of every update. They agree on the time and on
requests to stop, and so validate, save and end at the same step; rank 0 alone writes.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

import torch

from nmt.data.batches.batching import Indices, Plan, largest_share
from nmt.data.encoded_pairs import EncodedPairs, InParts
from nmt.distributed import ALONE, World
from nmt.errors import Log, NmtError, TrainingStopped, UserError, warn
from nmt.files import misfits, write_json
from nmt.runtime import MixedPrecisionStep, whole
from nmt.runtime_config import Precision
from nmt.signals import StopRequest
from nmt.training.agreement import Agreement, drift
from nmt.training.auto_batch import Room, Trial, search
from nmt.training.checkpoint import Checkpoint, CheckpointStore, num_bytes
from nmt.training.crowding import Crowding
from nmt.training.dropout_rates import DropoutRates
from nmt.training.epochs import Epochs
from nmt.training.flops import Meter
from nmt.training.gradients import Gradients, num_tokens_of
from nmt.training.optimizers.optimizer import kept_bytes
from nmt.training.optimizers.schedule_configs import PlateauConfig, ScheduleConfig
from nmt.training.optimizers.schedules import ScheduleContext, rate
from nmt.training.parallel_model import ParallelModel
from nmt.training.recovery import LOSSES, RolledBack, cause, diverges, explosion, go_back
from nmt.training.saving import Saves, copied, has_room
from nmt.training.statistics import (
    Fault,
    Update,
    UpdateStatistics,
    gpu_memory,
    means,
    measures_in,
    weight_norm,
)
from nmt.training.tracking.sinks import Tracker
from nmt.training.tracking.status_line import validation_line
from nmt.training.train_state import Place, TrainState, kept_steps, selected_steps
from nmt.training.trainer_config import AUTO, AverageOf, OnNonfinite, TrainerConfig

ROOM = 2.5
"""Checkpoints that the disk must have room for before the first step."""


class Unread(NamedTuple):
    """An update whose sums the host has not read."""

    pairs: EncodedPairs
    batches: Sequence[Indices]
    epoch: int
    pairs_of: str
    """What the numbers of the pairs count in, such as "part 2 of epoch 1"."""


class Trainer:
    """The training of one model: `fit` starts anew, or after `resume` goes on, until a limit is reached."""

    def __init__(
        self,
        cfg: TrainerConfig,
        schedule_cfg: ScheduleConfig,
        schedule: ScheduleContext,
        *,
        parallel_model: ParallelModel,
        amp_step: MixedPrecisionStep,
        pairs_of_epoch: Callable[[int, int], InParts],
        validate: Callable[[int], dict[str, float]],
        store: CheckpointStore,
        seed: int,
        higher_is_better: bool,
        stage_ends: Sequence[int] = (),
        world: World = ALONE,
    ):
        self.cfg = cfg
        self.schedule_cfg = schedule_cfg
        self.schedule = schedule
        self.parallel_model = parallel_model
        self.amp_step = amp_step
        self.statistics = UpdateStatistics(
            amp_step.device,
            forgives_overflow=amp_step.precision is Precision.fp16,
            tolerated=cfg.max_recoveries if cfg.on_nonfinite is OnNonfinite.skip else 0,
            measures=cfg.measures,
            world=world,
        )
        self.parameters = dict(parallel_model.trained.named_parameters())
        self.meter = Meter(parallel_model.model, amp_step.device, amp_step.precision)
        self.epochs = Epochs(cfg, pairs_of_epoch, seed=seed, stage_ends=stage_ends, world=world)
        self.validate = validate
        self.store = store
        self.score_name = f"valid/{cfg.best_metric}"
        self.sign = 1 if higher_is_better else -1
        self.world = world
        self.train_state = TrainState()
        self.gradients = Gradients(
            parallel_model,
            amp_step,
            self.statistics,
            seed=seed,
            batch_tokens=cfg.tokens_per_batch,
            accumulate=cfg.accumulate,
            world=world,
        )
        self.dropout_rates = DropoutRates(cfg, parallel_model.trained) if cfg.changes else None
        self.log: Log = warn
        self.saves = Saves(world)
        self.agreement = Agreement(world)
        self.crowding = Crowding(amp_step.device)
        self._stop = StopRequest()  # of no signal, until `fit` gets that of the command
        self._agreed_signal = 0
        self._started = time.perf_counter()
        self._unread: dict[int, Unread] = {}  # by step
        self._places: dict[int, Place] = {}  # where the data of these updates end

    def resume(self, checkpoint: Checkpoint) -> None:
        """Load weights, optimizer and progress from `checkpoint`."""
        self.parallel_model.load(self.amp_step.optimizer, checkpoint.model, checkpoint.optimizer)
        scaler, stored = self.amp_step.scaler, checkpoint.state.get("scaler")
        if scaler.is_enabled() and stored:  # empty after bf16 and fp32
            if not isinstance(stored, dict) or misfits(stored, dict.fromkeys(scaler.state_dict(), float)):
                raise UserError("state.json of the checkpoint has no loss scale of this nmt")
            scaler.load_state_dict(stored)
        self.train_state = TrainState.stored_in(checkpoint.state)
        if measures_in(self.train_state.window) != set(self.cfg.measures):
            self.train_state.window = {}  # its updates were measured otherwise than those to come
        # Another `trainer.on_nonfinite` or `max_recoveries` may tolerate fewer.
        self.statistics.resume(min(self.train_state.skips_in_a_row, self.statistics.tolerated))

    def fit(self, tracker: Tracker, stop: StopRequest) -> TrainState:
        """Train until a limit is reached.

        Raises:
            Interrupted: a signal asked to stop; everything up to the last update is saved.
            TrainingStopped: a loss is not finite or explodes, a batch does not fit into memory, or a
                checkpoint cannot be written. `RolledBack` asks for another trainer, which resumes.
        """
        self.log = self.gradients.log = self.saves.log = tracker.message
        self._stop = stop
        self.parallel_model.module.train()
        self._started = time.perf_counter() - self.train_state.seconds
        if scores := self.train_state.scores:  # of a run that resumes
            last = self.sign * scores[max(scores, key=int)]
            tracker.advance(self.train_state.step, {self.score_name: last})
        if self.world.is_main and not self.store.steps():
            weights, learning = self.parallel_model.model.state_dict(), self.parallel_model.learning
            further = kept_bytes(self.amp_step.optimizer, learning.values())
            if self.parallel_model.average:  # which follows them
                further += num_bytes(weights[name] for name in learning)
            self.store.require_space(ROOM, weights, further)
        with stop.deferred(), closing(self.saves):
            if self._lacks_score():  # a signal has kept the interrupted run from that
                self._agree()
                self._validate_and_save(tracker)
            while not self.finished():
                pairs = self._pairs()
                plan = self.plan(pairs)
                self.epochs.require_same(self.train_state, pairs, len(plan))
                for group in self.epochs.groups(self.train_state, plan):
                    self._try_largest(pairs, plan)
                    self._update(pairs, group)
                    self._move_on(len(group), len(plan))
                    self._report(tracker)
                    self._validate_and_save(tracker)
                    if self.finished() or self.train_state.batch == 0:
                        break
            self._complete(tracker)
        if self._is_impatient() and self.share_done() < 1.0:
            self.log(
                f"trainer.patience={self.cfg.patience} ends the training at step {self.train_state.step}: "
                f"its last validations are no better by {self.cfg.best_metric}; with 0, or more, it goes on"
            )
        return self.train_state

    def _try_largest(self, pairs: EncodedPairs, plan: Plan) -> None:
        """Try the largest batches, in the largest shares that a process gets from the next update on."""
        if not self.gradients.has_tried:
            self._deal_largest(self.train_state.step + 1)
            self.gradients.try_largest(pairs, plan, self.train_state.step + 1)

    def _deal_largest(self, step: int) -> None:
        """Deal as in that update, from update `step` on, in which a process computes most at once."""
        size = self.world.size
        self._deal(max(self.cfg.accumulated_from(step), key=lambda number: largest_share(number, size)))

    def _deal(self, accumulate: int) -> None:
        """Deal so many batches of an update to the processes, or the rows of each as earlier versions did."""
        self.gradients.accumulate = 1 if self.train_state.sorts_by_target else accumulate

    def _follow_changes(self, step: int) -> None:
        """Deal the batches, and drop values, as in update `step`."""
        self._deal(self.cfg.accumulate_at(step))
        if self.dropout_rates:
            self.dropout_rates.follow(step)

    def _pairs(self) -> EncodedPairs:
        """Return the pairs to train on next, unless a signal arrives while they are encoded."""
        is_open = self.epochs.open(self.train_state, self._stop)
        self._agree()
        if self._stopping or not is_open:
            self._save_and_leave()
        return self.epochs.pairs(self.train_state)

    def _lacks_score(self) -> bool:
        """Return whether this step is to be validated, and is not yet."""
        step = self.train_state.step
        is_due = step > 0 and step % self.cfg.eval_every_steps == 0
        return is_due and str(step) not in self.train_state.scores

    def plan(self, pairs: EncodedPairs, max_tokens: int | None = None) -> Plan:
        """Return the batches of the pairs to train on next, of `max_tokens` in place of the config's."""
        return self.epochs.plan(self.train_state, pairs, max_tokens)

    def share_done(self) -> float:
        """Return the share of the nearest limit that is used up, from 0 to 1 and above."""
        train_state = self.train_state
        used = (
            (train_state.step, self.cfg.max_steps),
            (train_state.epoch - 1, self.cfg.max_epochs),
            (train_state.tokens, self.cfg.max_tokens),
            (train_state.seconds / 60, self.cfg.max_minutes),
        )
        return max((value / limit for value, limit in used if limit), default=0.0)

    def finished(self) -> bool:
        """Return whether a limit is reached or the patience is exhausted."""
        return self._is_impatient() or self.share_done() >= 1.0

    def _is_impatient(self) -> bool:
        return 0 < self.cfg.patience <= self.train_state.validations_without_gain

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of update `step`."""
        context = self.schedule._replace(num_cuts=self.train_state.num_cuts)
        return self.cfg.rate_factor_at(step) * rate(step, self.schedule_cfg, context)

    def _update(self, pairs: EncodedPairs, group: Sequence[Indices]) -> None:
        """Update the weights by the gradient of the loss per target token, over all batches of the group."""
        train_state, started = self.train_state, time.perf_counter()
        step = train_state.step + 1
        src_tokens = sum(int(pairs.src_lengths[indices].sum()) for indices in group)
        num_tokens = num_tokens_of(pairs, group)
        self._follow_changes(step)
        for change in self.cfg.all_changes:
            if change.step == step:
                self.log(f"step {step}: from here on with {change} (trainer.changes)")
        batches = self.gradients.add(pairs, group, step)
        train_state.splits += len(batches) > len(group)
        self._unread[step] = Unread(pairs, batches, train_state.epoch, self.epochs.named(train_state, pairs))
        update = Update(self.parameters, self.amp_step.clip())
        unusable = self.statistics.end_update(step, num_tokens, update)
        self.amp_step.step(self.learning_rate(step), unusable)
        if self.parallel_model.average:
            self.parallel_model.average.step(step, unusable)
        train_state.step, train_state.tokens = step, train_state.tokens + num_tokens
        seconds = time.perf_counter() - started
        train_state.update_seconds += seconds
        flops = self.meter.flops(src_tokens, num_tokens)
        train_state.count(tokens=num_tokens, steps=1, seconds=seconds, flops=flops)

    def find_batch_tokens(self, log: Log) -> int:
        """Return the number of tokens that `trainer.batch_tokens=auto` stands for, and log why.

        The trainer is not to be used for anything else. The smallest number is that of its config.
        """
        pairs, on_cpu = self.epochs.pairs_of_epoch(1, 0).part(0), self.amp_step.device.type == "cpu"
        room, smallest = Room() if on_cpu else None, self.cfg.tokens_per_batch
        self._deal_largest(1)

        def trial(size: int) -> Trial:
            return self.gradients.trial(pairs, self.plan(pairs, size), size, room)

        found = search(trial, smallest, until_no_faster=on_cpu)
        log(f"trainer.batch_tokens={AUTO} is {found.size:,} tokens: {found.reason}")
        return found.size

    def _read(self) -> None:
        """Fetch the sums measured since the last call; here the host waits for a GPU.

        Raises:
            TrainingStopped: a loss or a norm was not finite, and `trainer.on_nonfinite` does not skip it; in
                fp16 a norm is an overflow that the loss scale deals with, unless no scale is small enough.
        """
        started = time.perf_counter()
        sums, fault = self.statistics.read()
        seconds = time.perf_counter() - started
        self.train_state.update_seconds += seconds
        self.train_state.count(**sums, seconds=seconds)
        self.train_state.skips_in_a_row = self.statistics.in_a_row
        if fault is not None:
            self._skip(fault)
        self._unread.clear()
        self._places.clear()
        if self.amp_step.precision is Precision.fp16:
            self.amp_step.require_loss_scale()

    def _skip(self, fault: Fault) -> None:
        """Count updates that were left out, or end the training when they are too many in a row."""
        train_state, most = self.train_state, self.statistics.tolerated
        train_state.skips += fault.updates
        train_state.count(tokens=-fault.tokens)
        if train_state.skips_in_a_row > most:
            self._follow_changes(fault.step)
            pairs, batches, epoch, pairs_of = self._unread[fault.step]
            report = {
                "step": fault.step,
                "epoch": epoch,
                "loss": fault.loss,
                "grad_norm": fault.norm,
                "learning_rate": self.learning_rate(fault.step),
                "pairs_of": pairs_of,
                **self.gradients.inspect(pairs, batches, fault.step),
            }
            left = f", and {most} updates before it were left out" if most else ""
            reason = f"step {fault.step}: {fault}{left}{cause(report)}{self._written(report)}"
            # All updates after it were left out, too: the training is where that one has left it.
            self.train_state = replace(train_state, step=fault.step, **self._places[fault.step]._asdict())
            self._give_up(reason, fault.step - 1)
        self.log(f"step {fault.step}: {fault}; the update is left out ({train_state.skips} so far)")

    def _written(self, report: dict[str, Any]) -> str:
        """Write the report of a fault; return the words that name its file, unless it cannot be written."""
        file = self.store.directory.parent / f"nonfinite_step_{report['step']:08d}.json"
        try:
            if self.world.is_main:
                write_json(file, report)
        except NmtError as error:
            warn(f"{error}; the report of step {report['step']} is lost")
            return ""
        return f". See {file}"

    def _give_up(self, reason: str, step: int) -> NoReturn:
        """End the training, or go back to a checkpoint where `trainer.on_nonfinite` says so.

        `step` is the one that made the weights. The checkpoint is the newest that an uninterrupted run has,
        so that an interrupted one goes back to the same.
        """
        self.saves.finish()
        train_state, most = self.train_state, self.cfg.max_recoveries
        saved = selected_steps(AverageOf.last, 1, self.store.steps(), train_state, self.cfg)
        if self.cfg.on_nonfinite is OnNonfinite.rollback and saved and train_state.rollbacks < most:
            what = f"{reason}. Going back to step {saved[-1]}, and on with the data behind that update"
            self.log(f"{what} (return {train_state.rollbacks + 1} of at most {most})")
            self.world.barrier()  # all ranks have seen the same checkpoints
            if self.epochs.stage_after(saved[-1]) != self.epochs.stage_after(train_state.step):
                if train_state.part or train_state.batch:
                    train_state.begin_epoch()  # no epoch spans two stages
                train_state.digest = ""  # nor does one follow that of another stage
            if self.world.is_main:
                go_back(self.store, saved[-1], train_state)
            self.world.barrier()
            raise RolledBack(what)
        others = [one.name for one in OnNonfinite if one not in (OnNonfinite.stop, self.cfg.on_nonfinite)]
        other = f"trainer.on_nonfinite={' or '.join(others)}"
        if self.cfg.on_nonfinite is OnNonfinite.rollback and not saved:
            other += ", or trainer.save_every_steps such that there is a checkpoint to go back to"
        raise TrainingStopped(
            f"{reason}. The weights were left as step {step} made them. {self._last_checkpoint()}Try a lower "
            f"learning rate, more schedule.warmup_steps, runtime.precision=fp32, or {other}"
        )

    def _last_checkpoint(self) -> str:
        """Return a sentence that names the last checkpoint, for which all ranks wait."""
        self.saves.finish()
        steps = self.store.steps()
        return f"The last checkpoint is that of step {steps[-1]}. " if steps else "There is no checkpoint. "

    def _settle(self) -> None:
        """Make sure that the weights can be scored and saved: all losses read, and all weights finite."""
        self._read()
        if not whole(weight_norm(Update(self.parameters, torch.zeros(())))).isfinite():
            step = self.train_state.step
            self._give_up(f"step {step}: weights are not finite after the update", step)

    def _require_one_model(self) -> None:
        """Raise `TrainingStopped` if the weights of the ranks, which DDP keeps the same, have parted."""
        is_whole = self.world.size > 1 and not self.parallel_model.is_sharded
        if is_whole and (found := drift(self.world, self.parallel_model.trained)):
            raise TrainingStopped(
                f"step {self.train_state.step}: {found}. {self._last_checkpoint()}Leave out a machine with "
                "other hardware, other libraries or faulty memory; the same command then goes on"
            )

    def _require_sanity(self, loss: float) -> None:
        """Raise `TrainingStopped` when the logged losses explode, of which `loss` is the newest."""
        train_state, ratio = self.train_state, self.cfg.divergence_ratio
        train_state.last_losses = [*train_state.last_losses, loss][-LOSSES:]
        healthy = max(self.parallel_model.uniform_loss, train_state.first_loss or 0.0)
        if diverges(train_state.last_losses, ratio, healthy):
            raise TrainingStopped(
                f"step {train_state.step}: {explosion(train_state.last_losses, ratio, healthy)}. "
                f"{self._last_checkpoint()}Try a lower learning rate, more schedule.warmup_steps or a lower "
                "optimizer.clip_norm; trainer.divergence_ratio=0 goes on all the same"
            )

    def _report(self, tracker: Tracker) -> None:
        """Show the step, with its values if they are read; log the values every `log_every_steps`."""
        train_state = self.train_state
        is_due = train_state.step % self.cfg.log_every_steps == 0
        is_first = train_state.first_loss is None
        is_read = is_due or is_first or self.amp_step.device.type == "cpu"  # where reading costs nothing
        if is_read:
            self._read()
        values = self._measured() if is_read else {}
        if is_first and math.isfinite(values["train/loss"]):
            train_state.first_loss = values["train/loss"]
        tracker.advance(train_state.step, values, self.share_done())
        if is_due:
            tracker.log(train_state.step, values)
            self.crowding.look(self.log)
            train_state.window = {}
            if math.isfinite(values["train/loss"]):
                self._require_sanity(values["train/loss"])

    def _measured(self) -> dict[str, float]:
        """Return the means over the window, under the names of metrics.jsonl."""
        train_state, window = self.train_state, self.train_state.window
        values = means(window) | self.meter.rates(window["flops"] / self.world.size, window["seconds"])
        values |= {"lr": self.learning_rate(train_state.step), "epoch": self.epochs.num_done(train_state)}
        values |= {"tokens": train_state.tokens, "seconds": round(train_state.seconds, 3)}
        values |= gpu_memory(self.amp_step.device)
        if self.amp_step.precision is Precision.fp16:
            values |= {"overflows": window["overflows"], "loss_scale": self.amp_step.scaler.get_scale()}
        if self.epochs.stage_ends:
            values["stage"] = self.epochs.stage_of(train_state.step) + 1
        counts = {name: getattr(train_state, name) for name in ("splits", "skips", "rollbacks")}
        values |= {name: count for name, count in counts.items() if count}
        return {f"train/{name}": value for name, value in values.items()}

    def _move_on(self, num_batches: int, batches_in_part: int) -> None:
        """Count `num_batches` of the plan as done; where it ends, begin the next part, or the next epoch."""
        train_state = self.train_state
        self.epochs.move_on(train_state, num_batches, batches_in_part)
        self._places[train_state.step] = train_state.place
        if train_state.step in self.epochs.stage_ends:
            self.gradients.has_tried = False  # the next stage may have larger batches
        if self.agreement.is_due(train_state.step):
            self._agree()

    def _agree(self) -> None:
        """Learn from all ranks the time of the slowest, a signal to any of them, and the end of a save."""
        seconds, number = time.perf_counter() - self._started, int(self._stop.signal or 0)
        agreed = self.agreement.reach(self.train_state.step, seconds, number, self.saves.is_over)
        self.train_state.seconds, self._agreed_signal = agreed.seconds, agreed.signal
        if agreed.signal:
            self._stop.signal = signal.Signals(agreed.signal)
        if agreed.save_is_over:
            self.saves.finish()

    @property
    def _stopping(self) -> bool:
        """Whether a signal has reached any rank, as far as all ranks know."""
        return self._stop.requested if self.world.size == 1 else bool(self._agreed_signal)

    def _save_and_leave(self) -> NoReturn:
        """Save the last update, if there is one, and raise `Interrupted`."""
        if not self.train_state.step:
            raise self._stop.interruption()
        self.save()
        raise self._stop.interruption(f" after step {self.train_state.step}, which is saved")

    def _validate_and_save(self, tracker: Tracker) -> None:
        """Validate and save where that is due at this step; save and leave when a signal has arrived.

        The signal also ends a validation, which the resumed run makes anew.
        """
        step = self.train_state.step
        stopping, is_saved = self._stopping, False
        if self._lacks_score() and not stopping:
            self._take_score(tracker)
            stopping = self._stopping
            # A signal has saved the step without its score, which the next to resume would take again.
            is_saved = self.world.broadcast(step in self.store.steps())
        if stopping:
            self._save_and_leave()
        if is_saved or self._is_due():
            self.save(must=False)

    def _is_due(self) -> bool:
        """Return whether this step is to be saved, as far as it is validated."""
        return self.train_state.is_due(self.train_state.step, self.cfg.save_every_steps, self.cfg.keep_best)

    def _complete(self, tracker: Tracker) -> None:
        """Make sure that the last step is validated and saved."""
        is_new = str(self.train_state.step) not in self.train_state.scores
        if is_new:
            self._take_score(tracker)
        self.saves.finish()
        if is_new or not self.world.broadcast(self.train_state.step in self.store.steps()):
            self.save()

    def _take_score(self, tracker: Tracker) -> None:
        """Validate, and update the best score, the patience and the plateau schedule.

        One process abandons the validation when a signal arrives; several must all come to its end.
        """
        train_state = self.train_state
        self._settle()
        self._require_one_model()
        self.parallel_model.refresh()
        if self.world.size > 1:
            values: dict[str, float] | None = self.validate(train_state.step)
        else:
            values = self._stop.unless_stopped(lambda: self.validate(train_state.step))
        if values is None:
            return
        self._agree()
        tracker.log(train_state.step, values)
        train_state.scores[str(train_state.step)] = self.sign * values[self.score_name]
        train_state.losses[str(train_state.step)] = values["valid/loss"]
        gained = train_state.best_steps()[0] == train_state.step
        tracker.message(validation_line(train_state.step, values, gained))
        train_state.validations_without_gain = 0 if gained else train_state.validations_without_gain + 1
        lowest = math.inf if train_state.lowest_loss is None else train_state.lowest_loss
        if values["valid/loss"] < lowest:  # nan never is
            train_state.lowest_loss = values["valid/loss"]
            train_state.validations_without_lower_loss = 0
        else:
            train_state.validations_without_lower_loss += 1
        cfg = self.schedule_cfg
        if (
            isinstance(cfg, PlateauConfig)
            and train_state.validations_without_lower_loss >= cfg.plateau_patience
        ):
            train_state.num_cuts += 1
            train_state.validations_without_lower_loss = 0

    def save(self, *, must: bool = True) -> None:
        """Write a checkpoint of this step, then remove those that `kept_steps` does not name.

        A checkpoint that need not be written (`must`) is written by a thread, from a copy of the state, while
        the training goes on. If it cannot be written, as on a full disk, it is left to the next save: what
        was saved before is intact, and a training that goes on from there repeats the same steps.

        Raises:
            TrainingStopped: the checkpoint cannot be written, on any rank alike.
        """
        self._settle()
        self.saves.finish()
        if self._is_due():
            self.train_state.regular = sorted({*self.train_state.regular, self.train_state.step})
        weights, optimizer = self.parallel_model.tensors(self.amp_step.optimizer)
        state = {**self.train_state.to_store(), "scaler": self.amp_step.scaler.state_dict()}
        in_parts = self.parallel_model.is_sharded
        tensors = [*weights.values(), *optimizer.values()]
        in_thread = not must and (in_parts or has_room(num_bytes(tensors)))
        if in_thread or in_parts:
            keep = self.world.is_main
            weights, optimizer = copied(weights, keep=keep), copied(optimizer, keep=keep)
        checkpoint = Checkpoint(self.train_state.step, weights, optimizer, state)
        then = deepcopy(self.train_state)
        self.saves.begin(lambda: self._write(checkpoint, then), must=must, in_thread=in_thread)

    def _write(self, checkpoint: Checkpoint, then: TrainState) -> str | None:
        """Save and prune, by the progress of that step; return why that failed, or None."""
        try:
            self.store.save(checkpoint)
            self.store.prune(kept_steps(self.store.steps(), then, self.cfg))
        except TrainingStopped as error:
            return str(error)
        return None
