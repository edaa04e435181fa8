"""What follows a loss, a gradient or weights that are not finite: a search for the cause, and a way on.

In a healthy training only `diverges` is called. The search computes the update once more: its weights are
the same, as it was left out, and so are its random numbers.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from nmt.data.batches.batching import Indices
from nmt.data.encoded_pairs import EncodedPairs
from nmt.errors import TrainingStopped
from nmt.runtime import whole
from nmt.training.checkpoint import CheckpointStore
from nmt.training.memory import size_of
from nmt.training.statistics import Update, layer_grad_norm
from nmt.training.train_state import TrainState

LOSSES = 3
"""Logged losses of which the middle one decides whether a training diverges."""


class RolledBack(TrainingStopped):
    """The training has gone back to a checkpoint, and goes on when it is resumed."""


@contextlib.contextmanager
def watched(model: nn.Module) -> Iterator[list[str]]:
    """Fill a list with the names of the modules whose output is not finite, in the order of their outputs.

    Compiled modules are run as they are meanwhile: their code tells nothing of the modules within.
    """
    found: list[str] = []

    def watch(name: str, module: nn.Module) -> torch.utils.hooks.RemovableHandle:
        def look(module: nn.Module, inputs: object, output: object) -> None:
            if not all(x.isfinite().all() for x in _tensors(output) if x.is_floating_point()):
                found.append(name)

        return module.register_forward_hook(look)

    handles = [watch(name or "model", module) for name, module in model.named_modules()]
    try:
        with torch.compiler.set_stance("force_eager"):
            yield found
    finally:
        for handle in handles:
            handle.remove()


def _tensors(output: object) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, (tuple, list)):
        for part in output:
            yield from _tensors(part)


def bad_weights(model: nn.Module) -> list[str]:
    """Return the names of the weights with a value that is not finite."""
    return [name for name, x in model.named_parameters() if not whole(x.isfinite().all())]


def cause(report: dict[str, Any]) -> str:
    """Return what `report` tells of the cause, in words that end a sentence."""
    batches = [(rank, batch) for rank in report["ranks"] for batch in rank["batches"]]
    bad = [(rank, batch) for rank, batch in batches if not math.isfinite(batch["loss"])]
    if not bad and all(map(math.isfinite, report["grad_norms"].values())):
        return "; computed once more, all of it is finite, so this may be a fault of the machine"
    rank, batch = (bad or batches)[0]
    more = f" and {len(batch['pairs']) - 3} more" if len(batch["pairs"]) > 3 else ""
    shown = ", ".join(map(str, batch["pairs"][:3]))
    parts = [f" on rank {rank['rank']}, for the pairs {shown}{more} of {report['pairs_of']}"]
    if report["weights"]:
        parts.append(f"weights that are not finite: {', '.join(report['weights'][:3])}")
    elif rank["modules"]:
        parts.append(f"the first output that is not finite is that of {rank['modules'][0]}")
    return "; ".join(parts)


def found_by_rank(
    modules: Sequence[str], pairs: EncodedPairs, rows: Sequence[Indices], losses: Sequence[Tensor]
) -> dict[str, Any]:
    """Return what one process finds: the modules, and of each batch the loss, its size and its pairs."""
    batches = [
        {"loss": float(loss), "size": size_of(pairs, indices), "pairs": indices.tolist()}
        for loss, indices in zip(losses, rows, strict=True)
        if len(indices)
    ]
    return {"modules": list(dict.fromkeys(modules)), "batches": batches}


def grad_norms(update: Update, scale: float) -> dict[str, float]:
    """Return the norm of the gradients of every layer, divided by `scale`, the least finite ones first."""
    norms = {name: float(norm) / scale for name, norm in layer_grad_norm(update).items()}
    return dict(sorted(norms.items(), key=lambda item: (math.isfinite(item[1]), -item[1])))


def go_back(store: CheckpointStore, to: int, now: TrainState) -> None:
    """Make the checkpoint of step `to` the newest, and let it go on with the data that follows `now`.

    The checkpoint then differs in the place in the data and in the number of returns alone. A crash halfway
    repeats the updates after `to` and comes back here, as they are the same.
    """
    checkpoint = store.load(to)
    state = TrainState.stored_in(checkpoint.state)
    state = replace(state, **now.place._asdict(), seconds=now.seconds, rollbacks=now.rollbacks + 1)
    store.prune({step for step in store.steps() if step <= to})
    store.save(replace(checkpoint, state={**checkpoint.state, **state.to_store()}))


def explosion(losses: list[float], ratio: float, healthy: float) -> str:
    """Return what is wrong with losses that diverge, as one sentence."""
    shown = ", ".join(f"{loss:.3g}" for loss in losses)
    return (
        f"the loss explodes. The last ones logged are {shown} nats per target token, more than "
        f"trainer.divergence_ratio={ratio:g} times the {healthy:.3g} of a model that knows nothing"
    )


def diverges(losses: list[float], ratio: float, healthy: float) -> bool:
    """Return whether the median of the last losses is more than `ratio` times a `healthy` one; 0: never."""
    return ratio > 0 and len(losses) == LOSSES and statistics.median(losses) > ratio * healthy
