"""Several processes that train or score one model together, each with a part of every batch.

`torchrun` starts the processes and tells each its rank; a process that is alone needs no group and no store.
All communication goes through `World`: sums of tensors on the device of the model, and small values as JSON
on the CPU (`control`), where waiting for rank 0 to prepare data may take long. Knows no model and no file.

`Launch` ends all processes with the first that fails, because the others may be stuck in a collective that
will never finish; one process says why. Otherwise rank 0 alone writes to stdout and stderr.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

T = TypeVar("T")
COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""Longest wait for the others in the middle of an update or a validation."""
CONTROL_TIMEOUT = timedelta(days=1)
"""Longest wait for rank 0: it reads data, trains a tokenizer and fills caches while the others wait."""
POLL_SECONDS = 0.5
GRACE_SECONDS = 3.0
"""Time that a process has to end by itself once another one has failed."""


@dataclass(frozen=True)
class World:
    """The processes that work together, as one of them sees it; all call the same methods in one order."""

    rank: int = 0
    size: int = 1
    control: Any = None
    """The group for values on the CPU; None for a process that is alone."""

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, the one that writes."""
        return self.rank == 0

    def all_reduce_sum(self, x: Tensor) -> Tensor:
        """Sum `x` over the ranks, in place; a GPU does it without making the host wait."""
        if self.size > 1:
            dist.all_reduce(x)
        return x

    def all_reduce_max(self, value: float) -> float:
        """Return the largest `value` of all ranks."""
        if self.size == 1:
            return value
        x = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(x, dist.ReduceOp.MAX, group=self.control)
        return float(x)

    def all_gather(self, value: T) -> list[T]:
        """Return the `value` (JSON) of every rank, in the order of the ranks."""
        if self.size == 1:
            return [value]
        data = json.dumps(value).encode()
        longest = int(self.all_reduce_max(len(data)))
        own = torch.frombuffer(bytearray(data.ljust(longest)), dtype=torch.uint8)  # JSON may end in blanks
        parts = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(parts, own, group=self.control)
        return [json.loads(part.numpy().tobytes()) for part in parts]

    def broadcast(self, value: T) -> T:
        """Return the `value` (JSON) of rank 0; the `value` of any other rank is ignored."""
        return value if self.size == 1 else self.all_gather(value if self.is_main else None)[0]  # type: ignore[return-value]

    def shard(self, items: Iterable[T]) -> Iterator[T]:
        """Return the items of this rank: every `size`-th one, beginning with item number `rank`."""
        return itertools.islice(items, self.rank, None, self.size)

    def unshard(self, results: list[T]) -> list[T]:
        """Return the results (JSON) of all ranks, one for each item of `shard`, in the order of all items."""
        if self.size == 1:
            return results
        parts = self.all_gather(results)
        rounds = itertools.zip_longest(*parts, fillvalue=_NOTHING)
        return [result for turn in rounds for result in turn if result is not _NOTHING]

    def barrier(self) -> None:
        """Wait until all ranks have called this method."""
        self.all_reduce_max(0.0)

    @contextlib.contextmanager
    def main_first(self) -> Iterator[None]:
        """Let rank 0 run the block first; the other ranks then find what rank 0 has written."""
        if not self.is_main:
            self.barrier()
        yield
        if self.is_main:
            self.barrier()


_NOTHING: Any = object()
ALONE = World()


def is_launched() -> bool:
    """Return whether this process is one of several that torchrun started."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextlib.contextmanager
def joined() -> Iterator[World]:
    """Join the group of processes for the time of the block: gloo between CPUs, NCCL between GPUs."""
    if not is_launched():
        yield ALONE
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=COLLECTIVE_TIMEOUT)
    control = dist.new_group(backend="gloo", timeout=CONTROL_TIMEOUT)
    yield World(dist.get_rank(), dist.get_world_size(), control)
    # Not after an error: the others may never arrive, and `Launch` ends this process.
    dist.destroy_process_group()


class Launch:
    """The life of one process among several, from its start to its end, as a context manager."""

    def __init__(self) -> None:
        self.store, self.rank = _store()
        self._over = threading.Event()
        self._silence = contextlib.ExitStack()
        self._stderr = sys.stderr
        self._has_logged = False

    def __enter__(self) -> Launch:
        watched, _ = _store()  # a second client, as one that waits for a key can do nothing else
        threading.Thread(target=self._watch, args=[watched], daemon=True).start()
        if self.rank:
            nowhere = self._silence.enter_context(open(os.devnull, "w", encoding="utf-8"))
            self._silence.enter_context(contextlib.redirect_stdout(nowhere))
            self._silence.enter_context(contextlib.redirect_stderr(nowhere))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, SystemExit):  # errors of the user were reported before
            code, text = explain(error)
            self.log(text)
            self.end(code)
        self._over.set()
        self._silence.close()

    def log(self, text: str) -> None:
        """Write `text` to stderr, unless another process has said what is wrong."""
        try:
            self._has_logged = self.store.add("nmt/logged", 1) == 1
        except dist.DistError:  # the launcher is gone, and with it the store
            self._has_logged = True
        if self._has_logged:
            print(text, file=self._stderr, flush=True)

    def end(self, code: int) -> int:
        """Return a `code` of 0; with any other, end this process and, within seconds, all others."""
        if not code:
            return code
        with contextlib.suppress(dist.DistError):
            if self._has_logged:
                self.store.set("nmt/ended", str(code))
            else:
                self.store.wait(["nmt/ended"], timedelta(seconds=GRACE_SECONDS))
                code = int(self.store.get("nmt/ended"))
        sys.stdout.flush()
        os._exit(code)  # without the exit handlers of libraries: some wait for the other processes

    def _watch(self, store: Store) -> None:
        """End this process when another one has failed; ask it to stop when the launcher is gone."""
        while not self._over.wait(POLL_SECONDS):
            try:
                ended = store.check(["nmt/ended"])
            except dist.DistError:
                os.kill(os.getpid(), signal.SIGTERM)
                return
            if ended:
                self._over.wait(GRACE_SECONDS)
                if not self._over.is_set():
                    os._exit(int(store.get("nmt/ended")))


def _store() -> tuple[Store, int]:
    """Return a client of the store that all processes share, and the rank of this process."""
    store, rank, _ = next(dist.rendezvous("env://", timeout=COLLECTIVE_TIMEOUT))  # type: ignore[attr-defined]
    return store, rank


def explain(error: BaseException) -> tuple[int, str]:
    """Return exit code and text for an error that is not the user's: a lost process, or a bug."""
    if isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error)):
        reason = " ".join(str(error).split())
        return 4, (
            "error: another process of the training is gone; what it saved is intact, "
            f"and the same command goes on from there. {reason}"
        )
    return 1, "".join(traceback.format_exception(error)).rstrip()
