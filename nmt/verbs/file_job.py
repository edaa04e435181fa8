"""The work of a model on lines: a stream with one process, or a large file with several workers.

What is done to lines of a block is `LineWork`, and its answers are lines: translations, scores. The process
of a file job reads the input block by block, so that only some blocks are in memory. A worker is a process
with its own model, device and share of the threads: it does one block after the other and writes the parts.
The answers to a block depend neither on the worker nor on the number of workers, and are those for the same
lines on standard input.

The parts, `nmt.verbs.file_parts`, may be shared by several such processes. However a job ends, each part is
whole or missing, so that the same command continues from the parts. When the last part is written, the output
appears at once, whole, and the parts are removed. An existing output is never overwritten. When a worker
dies, fails or is stuck, when a signal arrives or an error occurs, all workers end, and also when this process
is killed.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import functools
import itertools
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from time import monotonic
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn
from rich.progress import Task as LineTask
from rich.text import Text

from nmt.config.roots import FileConfig
from nmt.data.reading.lines import decoded
from nmt.errors import Log, NmtError, TrainingStopped, warn
from nmt.files import path_of
from nmt.runs.checkpoint_names import with_fixed_checkpoints
from nmt.runtime import cores_allowed, resolve_device
from nmt.signals import StopRequest, when_orphaned, without_interrupt
from nmt.training.tracking.display import is_live
from nmt.training.tracking.status_line import duration
from nmt.translation.translate import LINES_AT_ONCE
from nmt.verbs.file_parts import Block, Job, Reader, write_part

POLL_SECONDS = 0.5
"""Longest delay of the answer to a signal."""
REPORT_SECONDS = 30.0
"""Time between two lines of progress where there is no live display."""


Answers = Callable[[list[str], int, Log], Iterable[str]]
"""A function of the lines of a block, the number of the first one, counted from 0, and where warnings go; it
returns lines of output."""


def as_they_are(cfg: object) -> None:
    """Return None: lines are made blocks as they are read."""


class LineWork(NamedTuple):
    """What a verb does with lines; its functions belong to modules, so that workers find them."""

    done: str
    """What lines are afterwards, such as "translated"."""
    open_answers: Callable[[Any], Answers]
    """A function of the config of the verb: opens the run."""
    facts: Callable[[Any], dict[str, Any]]
    """A function of the config that returns the settings which the answers depend on, besides the
    checkpoint."""
    reader: Callable[[Any], Reader | None] = as_they_are
    """A function of the config that returns how lines are read before they are made blocks, or None."""


def answer(cfg: FileConfig, work: LineWork) -> None:
    """Answer the lines of standard input, in order, or those of `cfg.input` with several workers."""
    if cfg.input is not None:
        print(answer_file(cfg, work))
        return
    reader, target = work.reader(cfg), sys.stdout.buffer
    lines = decoded(sys.stdin.buffer)
    lines = reader(lines) if reader else lines
    answers, is_terminal = work.open_answers(cfg), sys.stdin.isatty()
    if is_terminal:
        print("type a line, and Enter; Ctrl-D ends", file=sys.stderr)
    at_once = cfg.lines_at_once or (1 if is_terminal else LINES_AT_ONCE)
    for number in itertools.count(step=at_once):
        if not (block := list(itertools.islice(lines, at_once))):
            return
        target.writelines(f"{line}\n".encode() for line in answers(block, number, warn))
        target.flush()


def answer_file(cfg: FileConfig, work: LineWork) -> str:
    """Write the answers to the lines of `cfg.input` to `cfg.output`, or continue from the parts on disk.

    Return what there is now: the output, or parts of it where other shards are missing.

    Raises:
        UserError: the input, the output or the run cannot be used as given.
        TrainingStopped: the disk is full, or a worker was killed.
        Interrupted: a signal has arrived.
    """
    assert cfg.input is not None
    assert cfg.output is not None
    files = path_of(cfg.input), path_of(cfg.output)
    job = Job.read(*files, work.done, work.reader(cfg), cfg.shard_of_file)
    if job.is_idle:
        return f"nothing     {job.source} has {job.num_lines:,} lines, too few for shard {job.shard}"
    cfg, weights = with_fixed_checkpoints(cfg)
    domain = {} if cfg.domain is None else {"domain": cfg.domain}
    with job.locked({**weights, "tgt": cfg.tgt, **domain, **work.facts(cfg)}):
        counter = LineCounter(job.num_own, job.num_finished, job.name)
        if job.num_finished:
            counter.note(f"going on: {job.progress} are {work.done}")
        settings = worker_settings(cfg, len(job.missing))
        if settings:
            threads, devices = settings[0].runtime.threads, {s.runtime.device for s in settings}
            counter.note(
                f"workers: {len(settings)} on {', '.join(sorted(devices))}, threads of each: {threads}"
            )
            _answer_missing(job, settings, work, counter)
    if job.finish():
        return f"written     {job.output}"
    return (
        f"parts       {job.folder}: {job.num_written:,} of all {job.num_lines:,} lines are {work.done}; the "
        f"last shard to end, or the same command without shard=..., writes {job.output}"
    )


def worker_settings(cfg: FileConfig, num_blocks: int) -> list[FileConfig]:
    """Return the config of each worker, with its device and number of threads; at most one per block.

    By default there is one worker per GPU, or one per core, so that no operation has to be shared by threads.
    The threads that torch would use, such as OMP_NUM_THREADS, are those of one worker, and not fewer workers.
    """
    cores = cores_allowed()
    device = resolve_device(cfg.runtime)
    devices = [str(device)]
    if devices == ["cuda"]:  # any GPU
        devices = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    by_default = len(devices) if device.type == "cuda" else max(1, cores // max(1, cfg.runtime.threads))
    num = min(cfg.workers or by_default, num_blocks)
    threads = cfg.runtime.threads or max(1, min(torch.get_num_threads(), cores // max(1, num)))
    runtimes = [
        dataclasses.replace(cfg.runtime, device=devices[i % len(devices)], threads=threads)
        for i in range(num)
    ]
    return [dataclasses.replace(cfg, runtime=runtime) for runtime in runtimes]


def _answer_missing(job: Job, settings: Sequence[FileConfig], work: LineWork, counter: LineCounter) -> None:
    """Hand out the missing blocks, one to each worker at a time, until every part is there."""
    missing = (block for block in job.own_blocks() if not block.part.exists())
    with StopRequest(settings[0].runtime.grace_seconds) as stop, stop.deferred():
        first = list(itertools.islice(missing, len(settings)))
        with counter, _workers(settings, work, first) as (pool, pending):
            while pending:
                done, pending = wait(pending, POLL_SECONDS, FIRST_COMPLETED)
                if stop.requested:  # the signal may have ended the workers, too
                    break
                for future in done:
                    counter.add(*future.result())
                    pending |= {pool.submit(_answer_block, block) for block in itertools.islice(missing, 1)}
        if stop.requested:
            raise stop.interruption(f"; {job.progress} are {work.done}")


@contextmanager
def _workers(
    settings: Sequence[FileConfig], work: LineWork, first: Sequence[Block]
) -> Iterator[tuple[ProcessPoolExecutor, set[Future[tuple[int, list[str]]]]]]:
    """Yield a pool of one process per config, each at work on its first block; end all with the block."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(len(settings), context, _begin, (settings, work, context.Value("i", 0)))
    others = set(multiprocessing.active_children())
    with without_interrupt():
        pending = {pool.submit(_answer_block, block) for block in first}
    processes = set(multiprocessing.active_children()) - others
    try:
        yield pool, pending
    except BrokenProcessPool:
        pool.shutdown()  # the exit codes are known only now
        raise _death((process.exitcode for process in processes), work.done) from None
    finally:
        for process in processes:
            process.kill()  # perhaps in the middle of a search
        pool.shutdown()


def _death(exit_codes: Iterable[int | None], done: str) -> NmtError:
    """Return the error for a pool that lost a worker, and therefore ended the others by SIGTERM."""
    code = next((code for code in exit_codes if code not in (None, 0, -signal.SIGTERM)), -signal.SIGTERM)
    if code > 0:
        return NmtError(
            f"a worker failed with exit code {code}, for the reason above; what is {done} is kept, and "
            "the same command goes on"
        )
    return TrainingStopped(
        f"a worker was ended by {signal.Signals(-code).name}, perhaps for lack of memory; what is "
        f"{done} is kept, and the same command goes on; fewer workers=... or a lower "
        "decoding.batch_tokens=... needs less memory"
    )


# In a worker

_TASK: list[tuple[FileConfig, LineWork]] = []
"""The config of this worker, and what to do with lines."""


def _begin(settings: Sequence[FileConfig], work: LineWork, num_begun: Any) -> None:
    """Take the next config; end when the parent process ends."""
    when_orphaned(lambda: os._exit(1))  # perhaps in the middle of a search
    with num_begun.get_lock():
        _TASK.append((settings[num_begun.value], work))
        num_begun.value += 1


@functools.cache
def _answers() -> Answers:
    ((cfg, work),) = _TASK
    return work.open_answers(cfg)


def _answer_block(block: Block) -> tuple[int, list[str]]:
    """Write the part of a block; return the number of its lines and the warnings about them.

    The process ends, after writing its stacks to stderr, when that takes longer than `worker_minutes`.
    """
    ((cfg, _),) = _TASK
    faulthandler.dump_traceback_later(60 * cfg.worker_minutes, exit=True)
    warnings: list[str] = []
    lines = _answers()(block.lines, block.first_line, warnings.append)
    write_part(block.part, "".join(f"{line}\n" for line in lines).encode())
    faulthandler.cancel_dump_traceback_later()
    return len(block.lines), warnings


# The display


class LineCounter(Progress):
    """A count of finished lines on stderr: a bar in a terminal, else a line every `REPORT_SECONDS`."""

    def __init__(
        self,
        total: int,
        done: int,
        name: str = "lines",
        console: Console | None = None,
        clock: Callable[[], float] = monotonic,
    ):
        console = console or Console(stderr=True)
        super().__init__(
            _Description(),
            BarColumn(None),
            console=console,
            get_time=clock,
            disable=not is_live(console),
            redirect_stdout=False,
            expand=True,
        )
        self.add_task(name, total=total, completed=done, before=done)
        (self._task,) = self.tasks
        self._reported = self.get_time()
        self._shown = set[str]()

    def add(self, num_lines: int, warnings: Sequence[str]) -> None:
        """Count the lines of a block, and show the warnings about them."""
        self.advance(self._task.id, num_lines)
        for warning in warnings:
            if warning in self._shown:  # every worker says what is about no line
                continue
            self._shown.add(warning)
            self.note(f"warning: {warning}")
        if self.disable and self.get_time() - self._reported >= REPORT_SECONDS:
            self._reported = self.get_time()
            self.note(describe(self._task))

    def note(self, text: str) -> None:
        """Print a line of text."""
        self.console.print(Text(text), soft_wrap=True)

    def stop(self) -> None:
        """End the display, with a last line of progress where it is not live."""
        super().stop()
        if self.disable:
            self.note(describe(self._task))


class _Description(ProgressColumn):
    """A column with the text of `describe`."""

    def render(self, task: LineTask) -> Text:
        return Text(describe(task))


def describe(task: LineTask) -> str:
    """Return `1,024 of 30,000 lines  12.3 lines/s  8:45 left`, at the speed of this process so far.

    The description of the task says what is counted, such as `lines`.
    """
    rate = (task.completed - task.fields["before"]) / max(task.elapsed or 0.0, 1e-3)
    speed = f"  {rate:,.1f} lines/s" if rate else ""
    left = f"  {duration(task.remaining / rate)} left" if rate and task.remaining else ""
    return f"{task.completed:,.0f} of {task.total:,.0f} {task.description}{speed}{left}"
