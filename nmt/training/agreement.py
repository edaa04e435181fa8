"""What several processes agree on between updates, and whether they still train one model.

An exchange takes its time on the host, the more of it the more ranks there are, so short updates have one
about every half second. All ranks plan it by the time they have agreed on, and so at the same update.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from nmt.distributed import World

EXCHANGE_SECONDS = 0.5
"""Time of training between two exchanges, if updates are shorter than that."""
MOST_UPDATES = 32
"""Updates between two exchanges: the next ones may take longer than the last."""
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class Agreed(NamedTuple):
    """What all ranks know after an exchange: the largest value of any of them."""

    seconds: float
    """Time of training."""
    signal: int
    """Number of a signal, or 0."""
    save_is_over: bool


class Agreement:
    """The exchanges of one training."""

    def __init__(self, world: World):
        self.world = world
        self._next = 0  # update
        self._last = (0, 0.0)

    def is_due(self, step: int) -> bool:
        """Return whether an exchange follows update `step`; the same on all ranks."""
        return self.world.size == 1 or step >= self._next

    def reach(self, step: int, seconds: float, signal: int, save_is_over: bool) -> Agreed:
        """Return what the ranks agree on after update `step`, all of which must call this."""
        values = self.world.all_reduce_maxima([seconds, float(signal), float(save_is_over)])
        agreed = Agreed(values[0], int(values[1]), bool(values[2]))
        last_step, last_seconds = self._last
        if step > last_step:
            each = (agreed.seconds - last_seconds) / (step - last_step)
            within = min(MOST_UPDATES, int(EXCHANGE_SECONDS / max(each, 1e-9)))
            self._next, self._last = step + max(1, within), (step, agreed.seconds)
        return agreed


def checksums(tensors: Iterable[Tensor]) -> list[int]:
    """Return the sum of the bits of each tensor, read as integers."""
    bits = [x.detach().reshape(-1).view(INTEGERS[x.element_size()]) for x in tensors]
    return torch.stack([x.sum(dtype=torch.int64) for x in bits]).tolist()


def drift(world: World, model: nn.Module) -> str:
    """Return how the weights of the ranks differ, in words; nothing if they are the same bits everywhere.

    Every rank computes the same update of its own weights, from the same gradients: weights that differ come
    of a machine that computes otherwise, and the ranks would part from each other more and more.
    """
    names = [name for name, _ in model.named_parameters()]
    ranks = world.all_gather(checksums(model.parameters()))
    for rank, sums in enumerate(ranks):
        differing = [name for name, one, other in zip(names, sums, ranks[0], strict=True) if one != other]
        if differing:
            return (
                f"rank {rank} has other weights than rank 0 in {len(differing)} of {len(names)} tensors, "
                f"such as {differing[0]}, though all ranks make the same updates"
            )
    return ""
