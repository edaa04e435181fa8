"""A training looked at: updates on chosen batches, their loss, time and memory. Nothing is saved.

Knows the parts of a `Trainer`, whose loop is not run: one process computes single batches, as the loop does.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function

from nmt.data.batches.batching import Indices, collate
from nmt.data.encoded_pairs import EncodedPairs
from nmt.errors import TrainingStopped
from nmt.runtime import seed_everything
from nmt.runtime_config import Precision
from nmt.training.adapting.adaptation import num_learning
from nmt.training.checkpoint import num_bytes
from nmt.training.gradients import count_of
from nmt.training.trainer import Trainer

if TYPE_CHECKING:
    from collections.abc import Iterator

PHASES = ("data", "forward", "backward", "optimizer")
SOLVED = 0.1
"""Loss in nats per target token below which a batch counts as learnt by heart."""


class Phases:
    """The seconds that each phase of updates takes."""

    def __init__(self, device: torch.device):
        self.device = device
        self.seconds = dict.fromkeys(PHASES, 0.0)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of the block to that of the phase `name`; profilers see the name, too."""
        started = time.perf_counter()
        with record_function(f"nmt: {name}"):
            yield
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
        self.seconds[name] += time.perf_counter() - started


def update(
    trainer: Trainer, pairs: EncodedPairs, indices: Indices, step: int, phases: Phases | None = None
) -> float:
    """Update the weights by the gradient of one batch; return its plain loss in nats per target token.

    Raises:
        TrainingStopped: the gradients of a finite loss are not finite, in fp16 whatever the loss scale.
    """
    amp_step, model = trainer.amp_step, trainer.parallel_model
    phases = phases or Phases(amp_step.device)
    seed_everything(trainer.gradients.seed, step)
    with phases.phase("data"):
        batch, count = collate(pairs, indices).to(amp_step.device), count_of(pairs, [indices])
    with phases.phase("forward"), amp_step.autocast():
        loss, named = model(batch, step)
    with phases.phase("backward"):
        amp_step.backward(loss / count)
    with phases.phase("optimizer"):
        norm = amp_step.clip()
        unusable = (~norm.isfinite()).float()  # an overflow in fp16, which lowers the loss scale
        amp_step.step(trainer.learning_rate(step), unusable)
        if model.average:
            model.average.step(step, unusable)
    if amp_step.precision is Precision.fp16:
        amp_step.require_loss_scale()
    elif loss.isfinite() and not norm.isfinite():
        raise TrainingStopped(
            f"update {step}: the norm of the gradients is {float(norm)}, "
            f"at a loss of {float(loss.detach()) / count:.3f} nats per target token"
        )
    return float(named.get("nll", loss).detach()) / count


class Learnt(NamedTuple):
    """A batch that a model has learnt by heart."""

    first_loss: float
    loss: float
    steps: int


def overfit(trainer: Trainer, pairs: EncodedPairs, indices: Indices, most_steps: int) -> Learnt:
    """Train on one batch until its loss is below `SOLVED`.

    Raises:
        TrainingStopped: the loss is not finite, or not that low after `most_steps` updates.
    """
    trainer.parallel_model.module.train()
    losses: list[float] = []
    advice = _advice(*num_learning(trainer.parallel_model.trained))
    for step in range(1, most_steps + 1):
        losses.append(update(trainer, pairs, indices, step))
        if not math.isfinite(losses[-1]):
            raise TrainingStopped(f"overfit: the loss of update {step} is {losses[-1]}; {advice}")
        if losses[-1] < SOLVED:
            return Learnt(losses[0], losses[-1], step)
    lowest = min(losses)
    raise TrainingStopped(
        f"overfit: the loss of one batch of {len(indices)} pairs went from {losses[0]:.3f} to "
        f"{losses[-1]:.3f} nats per token in {most_steps} updates, but not below {SOLVED}; "
        f"the lowest, {lowest:.3f}, was that of update {losses.index(lowest) + 1}. {advice}"
    )


def _advice(learning: int, total: int) -> str:
    """Return what to do about a model that does not learn a batch, and of which so many weights learn."""
    if learning < total:
        return (
            f"Only {learning:,} of {total:,} weights learn, which may be too few for that: a higher peak of "
            "the learning rate (schedule=...) or more of them (adapt.rank, adapt.size, adapt.train, or less "
            "in trainer.freeze) show whether they learn at all; without adapt and trainer.freeze all learn"
        )
    return (
        "A model that cannot learn one batch by heart learns nothing: try another peak of the learning rate "
        "(schedule=...), then look for a mistake in the model or the objective"
    )


def timed(trainer: Trainer, pairs: EncodedPairs, batches: Sequence[Indices]) -> Phases:
    """Return the seconds that updates on `batches` take by phase; one update before them is not counted."""
    trainer.parallel_model.module.train()
    phases = Phases(trainer.amp_step.device)
    update(trainer, pairs, batches[0], 1)
    for step, indices in enumerate(batches, start=2):
        update(trainer, pairs, indices, step, phases)
    return phases


def profiled(trainer: Trainer, pairs: EncodedPairs, batches: Sequence[Indices], trace: Path) -> str:
    """Write a trace of updates on `batches` for chrome://tracing; return a table of their operations."""
    trainer.parallel_model.module.train()
    on_gpu = trainer.amp_step.device.type == "cuda"
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # above that of what the profiler says of its own steps
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as profiler:
        for step, indices in enumerate(batches, start=1):
            update(trainer, pairs, indices, step)
    trace.parent.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(trace))
    events = [
        event
        for event in profiler.key_averages()
        if not event.key.startswith(("nmt: ", "ProfilerStep"))
        # An operator has the time of its kernels on a GPU, which are events themselves.
        and (not on_gpu or (event.device_type.name == "CUDA" and not event.is_user_annotation))
    ]
    own = {e.key: e.self_device_time_total if on_gpu else e.self_cpu_time_total for e in events}
    total = sum(own.values()) or 1.0
    first = sorted(own, key=lambda name: -own[name])[:10]
    return "\n".join(
        f"  {own[name] / total:5.1%}  {own[name] / 1000 / len(batches):9.2f} ms  {name[:80]}"
        for name in first
    )


class TrainingMemory(NamedTuple):
    """Bytes that a training takes, without those of batches, temporary tensors and libraries."""

    weights: int
    gradients: int
    optimizer: int
    average: int
    activations: int
    """What a batch keeps for the backward pass."""


def memory(trainer: Trainer, pairs: EncodedPairs, indices: Indices) -> TrainingMemory:
    """Measure the memory of an update on a batch, after at least one update."""
    model = trainer.parallel_model
    weights = num_bytes(model.trained.state_dict().values())
    states = trainer.amp_step.optimizer.state.values()
    optimizer = num_bytes(x for state in states for x in state.values() if isinstance(x, Tensor))
    gradients = num_bytes(x for x in model.trained.parameters() if x.requires_grad)
    return TrainingMemory(
        weights, gradients, optimizer, weights if model.average else 0, _activations(trainer, pairs, indices)
    )


def _activations(trainer: Trainer, pairs: EncodedPairs, indices: Indices) -> int:
    """Return the bytes that a forward pass keeps for the backward pass, the weights excepted."""
    model, amp_step = trainer.parallel_model, trainer.amp_step
    own = {x.untyped_storage().data_ptr() for x in model.trained.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    batch = collate(pairs, indices).to(amp_step.device)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), amp_step.autocast():
        loss, _ = model(batch, 1)
    del loss
    return sum(kept.values())


def sizes_by_part(model: nn.Module) -> dict[str, int]:
    """Return the number of weights in each part of a model; weights that parts share count in the first."""
    counted, sizes = set[int](), dict[str, int]()
    for name, parameter in model.named_parameters():
        if id(parameter) not in counted:
            part = name.partition(".")[0]
            sizes[part] = sizes.get(part, 0) + parameter.numel()
            counted.add(id(parameter))
    return sizes
