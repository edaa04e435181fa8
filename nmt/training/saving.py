"""Checkpoints written by a thread while the training goes on.

At the update the state is copied into memory of its own, as the next update changes it in place; a thread
then hashes and writes the copy. At most one checkpoint is being written: the next one waits for it. What
came of it is asked for by all ranks at the same update, so that all of them go on or stop alike.

Knows neither models nor what is kept: a function writes, and says why it could not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import torch
from torch import Tensor

from nmt.distributed import World
from nmt.errors import Log, TrainingStopped, UserError, warn
from nmt.runtime import whole
from nmt.training.auto_batch import available
from nmt.training.checkpoint import memory_of

FAILED_SAVES = 3
"""Checkpoints in a row that cannot be written before the training stops."""
SPARE = 2.0
"""Times its size that a copy of the state needs of the memory which is free; else no copy is made.

Pinned memory is taken in powers of two, so that a copy may take twice its size.
"""

Write = Callable[[], str | None]
"""A function that writes a checkpoint and returns None, or why that failed."""


class Saves:
    """The saves of one training, at most one of them under way; all ranks call its methods in one order."""

    def __init__(self, world: World):
        self.world = world
        self.log: Log = warn
        self._failed = 0  # in a row
        self._is_open = False  # on all ranks alike
        self._written: Future[str | None] | None = None  # on rank 0

    @property
    def is_over(self) -> bool:
        """Whether rank 0 is this one and knows what came of the save under way."""
        return self._written is not None and self._written.done()

    def begin(self, write: Write, *, must: bool, in_thread: bool) -> None:
        """Let rank 0 call `write`, after `finish`: at once, or in a thread while all ranks go on.

        Raises:
            TrainingStopped: the checkpoint must be written, and cannot.
        """
        assert not self._is_open
        self._is_open = True
        if self.world.is_main and in_thread:
            executor = ThreadPoolExecutor(1, "checkpoint")  # of each save: a fork has no threads
            self._written = executor.submit(write)
            executor.shutdown(wait=False)
        elif self.world.is_main:
            self._written = Future()
            self._written.set_result(write())
        if must:
            self.finish(must=True)

    def finish(self, *, must: bool = False) -> None:
        """Wait for the save that is under way, if there is one, and log that it has failed.

        Raises:
            TrainingStopped: it has failed though it must not, or as the last of too many in a row.
        """
        if not self._is_open:
            return
        self._is_open = False
        failure = self.world.broadcast(self._result())
        self._failed = self._failed + 1 if failure else 0  # no rank is here before the save ends
        if failure and (must or self._failed == FAILED_SAVES):
            raise TrainingStopped(failure)
        if failure:
            left = FAILED_SAVES - self._failed
            self.log(f"error: {failure}. Training goes on; it stops after {left} more failures in a row")

    def close(self) -> None:
        """Wait for the save that is under way where an error ends the training, be it of this rank alone."""
        if failure := self._result():
            self.log(f"error: {failure}")

    def _result(self) -> str | None:
        """Return why the save of this rank has failed, or None."""
        written, self._written = self._written, None
        return written.result() if written else None


def copied(tensors: Mapping[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
    """Return copies on the CPU that no update changes, by name; or nothing unless `keep`.

    Names that share memory share their copy. What the ranks hold in parts is gathered tensor by tensor, so
    that all ranks must call this, and a GPU holds one of them whole at a time. Copies of what is on a GPU lie
    in pinned memory, which torch keeps for the next ones, unless a CUDA graph is recorded meanwhile.
    """
    copies: dict[str, Tensor] = {}
    owners: dict[object, str] = {}
    for name, x in tensors.items():
        is_part = hasattr(x, "full_tensor")
        gathered = whole(x)
        owner = owners.setdefault(name if is_part else memory_of(x), name)
        if keep:
            copies[name] = _copy(gathered) if owner == name else copies[owner]
    if any(x.is_pinned() for x in copies.values()):
        torch.cuda.synchronize()
    return copies


def _copy(x: Tensor) -> Tensor:
    """Return a copy on the CPU; that of a tensor on a GPU is complete when the GPU has come to it."""
    on_gpu = x.device.type == "cuda"
    copy = torch.empty_like(x, device="cpu", pin_memory=on_gpu, requires_grad=False)
    return copy.copy_(x.detach(), non_blocking=on_gpu)


def has_room(num_bytes: int) -> bool:
    """Return whether a copy of so many bytes fits well into memory: free, or pinned and kept by torch."""
    pinned = torch.cuda.host_memory_stats()
    kept = pinned.get("allocated_bytes.current", 0) - pinned.get("active_bytes.current", 0)
    with suppress(UserError):  # a system that does not say: as most have room
        return SPARE * num_bytes <= available() + kept
    return True
