"""The file status.json: how a training stands, for people and for programs that watch over it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterator
from datetime import datetime, timezone
from types import TracebackType

from nmt.distributed import ALONE, World, is_closing
from nmt.errors import Interrupted, NmtError, TrainingStopped, UserError, in_one_line
from nmt.files import read_json, write_json
from nmt.runs.directory import RunDirectory
from nmt.signals import StopRequest, requeue_job
from nmt.training.recovery import RolledBack


class Status:
    """The state of a run while the block lasts (running), and how the block ends, written to status.json.

    finished; preempted by a signal; stopped, such as by a loss that is not finite; failed by any other error.
    A finished run stays so where the block ends before it has begun to train.
    After SIGUSR1, with `requeue`, the job of Slurm is queued again. Where another process of the `world` has
    failed, the reason is what that one has said.
    """

    def __init__(self, run: RunDirectory, stop: StopRequest, requeue: bool, world: World = ALONE):
        self.run, self.stop, self.requeue, self.world = run, stop, requeue, world
        self.file = run.status_file
        self._ending = threading.Lock()

    def __enter__(self) -> None:
        self._write("running")
        self.stop.before_leaving = self._preempted

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        told = str(error or "")
        reason = in_one_line(told) if isinstance(error, UserError) else next(iter(told.splitlines()), "")
        if isinstance(error, Interrupted):
            self._preempted()
        elif self._ending.acquire(blocking=False):  # a signal that comes later changes nothing
            if error is None or self._was_finished():
                self._write("finished")
                return
            with contextlib.suppress(NmtError):  # the disk may be full: that is said by `error`
                state = "stopped" if isinstance(error, TrainingStopped) else "failed"
                self._write(state, self.world.said_before(error) or reason)

    @contextlib.contextmanager
    def told_at_once(self) -> Iterator[None]:
        """Record an error that leaves this inner block, before what it is in ends, as trackers do in time.

        Neither the end of another process nor the signal that follows it cuts that short. A signal that ends
        the training has to hurry, and is recorded at the end of the outer block.
        """
        with contextlib.ExitStack() as stack:
            stack.push(self._record_error)
            yield

    def _record_error(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, (Interrupted, RolledBack)):
            self.stop.only_note()
            is_closing()
            self.__exit__(kind, error, tb)

    def repair(self) -> None:
        """Record that a run with results is finished, where a kill came between the two."""
        with contextlib.suppress(NmtError):
            if self.file.is_file() and read_json(self.file).get("state") != "finished":
                self._write("finished")

    def _preempted(self) -> None:
        """Record the signal; called by the main thread, or in its place when the time is over."""
        number = self.stop.signal
        if number is None or not self._ending.acquire(blocking=False):
            return
        with contextlib.suppress(NmtError):
            is_over = self._was_finished()
            self._write("finished" if is_over else "preempted", "" if is_over else number.name)
        if self.requeue and number is signal.SIGUSR1:
            requeue_job()

    def _was_finished(self) -> bool:
        """Return whether weights and results of before are there: a training that begins removes results."""
        return self.run.results_file.is_file() and bool(self.run.checkpoints.steps())

    def _write(self, state: str, reason: str = "") -> None:
        facts = {
            "state": state,
            "step": max(self.run.checkpoints.steps(), default=0),
            "reason": reason,
            "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        write_json(self.file, facts)
