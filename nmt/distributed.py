"""Several processes that train or score one model together, each with a part of every batch.

`torchrun` starts the processes and tells each its rank; a process that is alone needs no group and no store.
All communication goes through `World`: sums of tensors on the device of the model, and small values as JSON
on the CPU (`control`), where waiting for rank 0 to prepare data may take long. Knows no model and no file.

`Launch` ends all processes with the first that fails, because the others may be stuck in a collective that
will never finish; one process says why. Otherwise rank 0 alone writes to stdout and stderr.
"""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import json
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from nmt.errors import TrainingStopped, in_one_line
from nmt.runtime_config import num_processes

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

T = TypeVar("T")
COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""Longest wait for the others in the middle of an update or a validation."""
CONTROL_TIMEOUT = timedelta(days=1)
"""Longest wait for rank 0: it reads data, trains a tokenizer and fills caches while the others wait."""
POLL_SECONDS = 0.5
START_SECONDS = 60.0
"""Longest time between the starts of two processes, which import torch first."""
GRACE_SECONDS = 3.0
"""Time that a process has to end by itself once another one has failed."""
CLOSING_SECONDS = 30.0
"""Time that a process has for that which is closing what it has open; torchrun gives no more."""


@dataclass(frozen=True)
class World:
    """The processes that work together, as one of them sees it; all call the same methods in one order."""

    rank: int = 0
    size: int = 1
    control: Any = None
    """The group for values on the CPU; None for a process that is alone."""
    store: Any = None
    """The store that all processes share, likewise."""

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
        return self.all_reduce_maxima([value])[0]

    def all_reduce_maxima(self, values: Sequence[float]) -> list[float]:
        """Return the largest of each of the `values` of all ranks, in one exchange."""
        if self.size == 1:
            return list(values)
        x = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(x, dist.ReduceOp.MAX, group=self.control)
        maxima: list[float] = x.tolist()
        return maxima

    def all_gather(self, value: T) -> list[T]:
        """Return the `value` (JSON) of every rank, in the order of the ranks."""
        if self.size == 1:
            return [value]
        return [json.loads(data) for data in self.all_gather_bytes(json.dumps(value).encode())]

    def all_gather_bytes(self, data: bytes) -> list[bytes]:
        """Return the `data` of every rank, in the order of the ranks."""
        if self.size == 1:
            return [data]
        lengths = self._all_gather(torch.tensor([len(data)]))
        padded = bytearray(data.ljust(int(max(lengths)), b"\0"))
        parts = self._all_gather(torch.frombuffer(padded, dtype=torch.uint8)) if padded else lengths
        return [part[: int(n)].numpy().tobytes() for part, n in zip(parts, lengths, strict=True)]

    def _all_gather(self, x: Tensor) -> list[Tensor]:
        """Return the `x` of every rank, on the CPU; all have the same shape."""
        parts = [torch.empty_like(x) for _ in range(self.size)]
        dist.all_gather(parts, x, group=self.control)
        return parts

    def all_gather_rows(self, x: Tensor) -> Tensor:
        """Return the `x` (M,) of every rank as rows (size, M), on the device of `x`; all have the same M."""
        if self.size == 1:
            return x[None]
        rows = torch.empty(self.size, len(x), dtype=x.dtype, device=x.device)
        dist.all_gather_into_tensor(rows.view(torch.uint8).view(-1), x.view(torch.uint8))
        return rows

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

    def said_before(self, error: BaseException | None) -> str:
        """Return, where an `error` is but that another process is gone, what that one has said at its end."""
        if self.store is None or not _is_of_a_lost_process(error):
            return ""
        with contextlib.suppress(dist.DistError):  # the launcher is gone, and with it the store
            if self.store.check(["said"]):
                return str(self.store.get("said").decode())
        return "another process of the training is gone"

    def apart(self) -> World:
        """Return this world with a group of its own for values on the CPU, for use in another thread."""
        return self if self.size == 1 else replace(self, control=_control_group())

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


@contextlib.contextmanager
def joined(timeout_minutes: float) -> Iterator[World]:
    """Join the group of processes for the time of the block: gloo between CPUs, NCCL between GPUs.

    The error of a process that gives no sign of life for `timeout_minutes` ends this process.
    """
    if num_processes() == 1:
        yield ALONE
        return
    store, rank, size = _store()
    over = threading.Event()
    Heartbeat(rank, size, 60 * timeout_minutes, over)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=COLLECTIVE_TIMEOUT)
    world = World(rank, size, _control_group(), store)
    _ALL_STARTED.set()
    yield world
    # Not after an error: the others may never arrive, and `Launch` ends this process.
    world.barrier()  # who has left gives no sign of life
    over.set()
    dist.destroy_process_group()


def _control_group() -> Any:
    """Return a new group of all processes for values on the CPU; all call this in one order."""
    return dist.new_group(backend="gloo", timeout=CONTROL_TIMEOUT)


class Heartbeat:
    """The signs of life of this process, and the watch over those of others, in two threads.

    A thread counts up a number in the store twice a second, whatever the main thread does: rank 0 may prepare
    data for hours. A process that is stopped, or cut off, does not count. Rank 0 watches all others, and they
    watch rank 0. Silence is measured in own beats, so that processes that were all stopped for a while go on.
    """

    def __init__(self, rank: int, size: int, timeout: float, over: threading.Event):
        self.rank, self.timeout, self.over = rank, timeout, over
        self.store, _, _ = _store()
        self.watched = range(1, size) if rank == 0 else range(1)
        self.beats, self.silence = dict.fromkeys(self.watched, -1), dict.fromkeys(self.watched, 0.0)
        self.unanswered = 0.0
        self.store.set(f"name/{rank}", f"process {os.getpid()} on {socket.gethostname()}")
        for work in (self._beat, self._watch_store):
            threading.Thread(target=work, daemon=True).start()

    def _beat(self) -> None:
        """Tell the others that this process lives, and look for one that does not."""
        with contextlib.suppress(dist.DistError):  # the launcher is gone: `Launch` ends this process
            while not self.over.wait(POLL_SECONDS):
                self.store.add(f"beat/{self.rank}", 1)
                for rank in self.watched:
                    beats = self.store.add(f"beat/{rank}", 0)
                    is_silent = beats == self.beats[rank]
                    self.silence[rank] = self.silence[rank] + POLL_SECONDS if is_silent else 0.0
                    self.beats[rank] = beats
                    if self.silence[rank] >= self.timeout:
                        self._miss(rank)
                self.unanswered = 0.0

    def _miss(self, rank: int) -> None:
        """Name the lost process and end this one; `Launch` ends the others."""
        key = f"name/{rank}"
        name = self.store.get(key).decode() if self.store.check([key]) else "which has not begun"
        if self.store.add("logged", 1) == 1:
            what = f"rank {rank} ({name}) has given no sign of life for {self.timeout:g} seconds"
            _dump(what)
            self.store.set("said", what)
        self.store.set("ended", str(TrainingStopped.exit_code))
        os._exit(TrainingStopped.exit_code)

    def _watch_store(self) -> None:
        """End this process when the store, which is on the machine of rank 0, does not answer."""
        while not self.over.wait(POLL_SECONDS):
            self.unanswered += POLL_SECONDS
            if self.unanswered >= self.timeout + 2 * POLL_SECONDS:  # not before a process can be named
                where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
                what = f"the launcher at {where}, on the machine of rank 0, has not answered rank {self.rank}"
                _dump(f"{what} on {socket.gethostname()} for {self.timeout:g} seconds")
                os._exit(TrainingStopped.exit_code)


def _dump(what: str) -> None:
    """Write to the true stderr what is wrong, and where the threads of this process wait."""
    stderr = sys.__stderr__ or sys.stderr
    text = f"error: {what} (runtime.timeout_minutes); what the training saved is intact, "
    text += "and the same command goes on from there. The threads of this process wait here:"
    print(text, file=stderr, flush=True)
    faulthandler.dump_traceback(stderr)


class Meeting:
    """The store of processes that the caller forks on this machine, in place of torchrun; a context manager.

    It is opened when they are there, as a fork keeps none of its threads.
    """

    def __init__(self, size: int):
        self.size, self._server = size, socket.create_server(("127.0.0.1", 0))
        self._port = self._server.getsockname()[1]

    def join(self, rank: int) -> None:
        """Become the process of this rank, with its part of the threads; for a fork."""
        self._server.close()
        sizes = {"WORLD_SIZE": self.size, "LOCAL_WORLD_SIZE": self.size}
        place = {"RANK": rank, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self._port}
        threads = max(1, torch.get_num_threads() // self.size)
        torch.set_num_threads(threads)
        own = {"OMP_NUM_THREADS": threads, "TORCHELASTIC_USE_AGENT_STORE": True}
        os.environ |= {name: str(value) for name, value in (sizes | place | own).items()}

    def __enter__(self) -> Meeting:
        self._store = dist.TCPStore(  # type: ignore[attr-defined]
            "127.0.0.1",
            self._port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=self._server.detach(),
        )
        return self

    def __exit__(self, *_: object) -> None:
        del self._store

    def end(self, code: int) -> None:
        """Let all processes end with `code`, which wait for one that is gone."""
        self._of_start().set("ended", str(code))

    def said(self) -> str:
        """Return what the process has said that was the first to fail; empty where none has."""
        store = self._of_start()
        return str(store.get("said").decode()) if store.check(["said"]) else ""

    def _of_start(self) -> Store:
        return dist.PrefixStore(_prefix(1), self._store)  # type: ignore[attr-defined]


class Launch:
    """The life of one process among several, from its start to its end, as a context manager."""

    def __init__(self) -> None:
        self.store, self.rank, _ = _store()
        self._over = threading.Event()
        self._silence = contextlib.ExitStack()
        self._stderr = sys.stderr
        self.has_logged = False
        """Whether it was this process that has said what is wrong."""

    def __enter__(self) -> Launch:
        watched, _, _ = _store()  # a second client, as one that waits for a key can do nothing else
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
            self.has_logged = self.store.add("logged", 1) == 1
            if self.has_logged:
                self.store.set("said", f"rank {self.rank}: {_cause(text)}")
        except dist.DistError:  # the launcher is gone, and with it the store
            self.has_logged = True
        if self.has_logged:
            print(text, file=self._stderr, flush=True)

    def end(self, code: int) -> int:
        """Return a `code` of 0; with any other, end this process and, within seconds, all others."""
        with contextlib.suppress(dist.DistError):
            if code and self.has_logged:
                self.store.set("ended", str(code))
            elif code:
                self.store.wait(["ended"], timedelta(seconds=GRACE_SECONDS))
                code = int(self.store.get("ended"))
            if self.rank == 0 and not _ALL_STARTED.is_set():
                _ALL_TOLD.wait(START_SECONDS)  # or they would wait for the number of this start
        if not code:
            return code
        sys.stdout.flush()
        os._exit(code)  # without the exit handlers of libraries: some wait for the other processes

    def _watch(self, store: Store) -> None:
        """End this process when another one has failed; ask it to stop when the launcher is gone.

        It may be stuck, or wait for the other one, unless it has said that it `is_closing`.
        """
        while not self._over.wait(POLL_SECONDS):
            try:
                ended = store.check(["ended"])
            except dist.DistError:
                os.kill(os.getpid(), signal.SIGTERM)
                return
            if ended:
                self._over.wait(GRACE_SECONDS)
                if _CLOSING.is_set():
                    self._over.wait(CLOSING_SECONDS - GRACE_SECONDS)
                if not self._over.is_set():
                    os._exit(int(store.get("ended")))


def is_closing() -> None:
    """Take note that this process waits for no other one any more, and ends when all is closed."""
    _CLOSING.set()


def _store() -> tuple[Store, int, int]:
    """Return a new client of the store that all processes share, the rank of this process and their number.

    The store of torchrun outlives its restarts, which begin with all processes anew: their keys have a
    prefix for each start.
    """
    store, rank, size = next(dist.rendezvous("env://", timeout=COLLECTIVE_TIMEOUT))  # type: ignore[attr-defined]
    return dist.PrefixStore(_prefix(_start(store, rank, size)), store), rank, size  # type: ignore[attr-defined]


def _prefix(start: int) -> str:
    """Return what the keys of a start have in front."""
    return f"nmt/{start}"


_STARTS: list[int] = []
"""The number of this start, once it is known."""
_ALL_STARTED, _ALL_TOLD = threading.Event(), threading.Event()
_CLOSING = threading.Event()


def _start(store: Store, rank: int, size: int) -> int:
    """Return the number of this start of all processes, which rank 0 draws and tells the others.

    torchrun counts the restarts of each machine, and these counts may differ. Every process but rank 0 draws
    a ticket, and waits for the answer; rank 0 answers also those of earlier starts, which nobody waits for.
    """
    if not _STARTS and rank == 0:
        _STARTS.append(store.add("nmt/starts", 1))
        threading.Thread(target=_answer, args=[_STARTS[0], size], daemon=True).start()
    elif not _STARTS:
        _STARTS.append(int(store.get(f"nmt/start_of/{store.add('nmt/tickets', 1)}")))
    return _STARTS[0]


def _answer(start: int, size: int) -> None:
    """Tell every process that draws a ticket the number of this start."""
    store, _, _ = next(dist.rendezvous("env://", timeout=COLLECTIVE_TIMEOUT))  # type: ignore[attr-defined]
    answered = 0
    with contextlib.suppress(dist.DistError):
        while not _ALL_STARTED.wait(POLL_SECONDS / 10):
            tickets = store.add("nmt/tickets", 0)
            for ticket in range(answered + 1, tickets + 1):
                store.set(f"nmt/start_of/{ticket}", str(start))
            answered = tickets
            if answered >= start * (size - 1):
                _ALL_TOLD.set()


def explain(error: BaseException) -> tuple[int, str]:
    """Return exit code and text for an error that is not the user's: a lost process, or a bug."""
    if _is_of_a_lost_process(error):
        reason = " ".join(str(error).split())
        return 4, (
            "error: another process of the training is gone; what it saved is intact, "
            f"and the same command goes on from there. {reason}"
        )
    return 1, "".join(traceback.format_exception(error)).rstrip()


def _is_of_a_lost_process(error: BaseException | None) -> bool:
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


def _cause(text: str) -> str:
    """Return in one line what a process says at its end: an error of the user, or a traceback."""
    message = text.removeprefix("error: ")
    return text.splitlines()[-1] if message == text else in_one_line(message)
