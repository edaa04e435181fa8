"""The work of a model on lines: a stream with one process, or a large file with several workers.

    OUTPUT.parts/job.json         the input and settings that the parts belong to
    OUTPUT.parts/block_00000012   the SHA-256 of the answers to block 12, a line feed, the answers
    OUTPUT.parts/.lock            a lock against all other processes

What is done to lines of a block is `LineWork`, and its answers are lines: translations, scores. The process
of a file job reads the input block by block, so that only some blocks are in memory. A worker is a process
with its own model, device and share of the threads: it does one block after the other and writes the parts.
The answers to a block depend neither on the worker nor on the number of workers, and are those for the same
lines on standard input.

However a job ends, each part is whole or missing, so that the same command continues from the parts. When the
last part is written, the output appears at once, whole, and the parts are removed. An existing output is
never overwritten. When a worker dies, fails or is stuck, when a signal arrives or an error occurs, all
workers end, and also when this process is killed.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import functools
import hashlib
import itertools
import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn
from rich.progress import Task as LineTask
from rich.text import Text

from nmt import extras
from nmt.config.roots import FileConfig
from nmt.containment import require_contained
from nmt.data.compression import compressing
from nmt.data.lines import decoded, read_lines, require_file
from nmt.data.pairs import stamp_of_files
from nmt.decoding.translate import LINES_AT_ONCE
from nmt.errors import Log, NmtError, TrainingStopped, UserError, warn
from nmt.files import locked, path_of, read_json, write_atomically, write_json, written_atomically
from nmt.runs.checkpoint_names import with_fixed_checkpoints
from nmt.runtime import cores_allowed, resolve_device
from nmt.signals import StopRequest, when_orphaned, without_interrupt
from nmt.training.display import is_live
from nmt.training.status_line import duration

POLL_SECONDS = 0.5
"""Longest delay of the answer to a signal."""
REPORT_SECONDS = 30.0
"""Time between two lines of progress where there is no live display."""
OTHER_OUTPUT = "choose another output=..."


Answers = Callable[[list[str], int, Log], Iterable[str]]
"""A function of the lines of a block, the number of the first one, counted from 0, and where warnings go; it
returns lines of output."""


Reader = Callable[[Iterable[str]], Iterator[str]]
"""A function of all lines of the input that yields another line for each, which knows those before it."""


def as_they_are(cfg: object) -> None:
    """Return None: lines are made blocks as they are read."""


class LineWork(NamedTuple):
    """What a verb does with lines; its functions belong to modules, so that workers find them."""

    done: str
    """What lines are afterwards, such as "translated"."""
    opened: Callable[[Any], Answers]
    """A function of the config of the verb: opens the run."""
    facts: Callable[[Any], dict[str, Any]]
    """A function of the config that returns the settings which the answers depend on, besides the
    checkpoint."""
    reader: Callable[[Any], Reader | None] = as_they_are
    """A function of the config that returns how lines are read before they are made blocks, or None."""


def answer(cfg: FileConfig, work: LineWork) -> None:
    """Answer the lines of standard input, in order, or those of `cfg.input` with several workers."""
    if cfg.input is not None:
        answer_file(cfg, work)
        print(f"written     {cfg.output}")
        return
    reader, target = work.reader(cfg), sys.stdout.buffer
    lines = decoded(sys.stdin.buffer)
    lines = reader(lines) if reader else lines
    answers, is_terminal = work.opened(cfg), sys.stdin.isatty()
    if is_terminal:
        print("type a line, and Enter; Ctrl-D ends", file=sys.stderr)
    at_once = cfg.lines_at_once or (1 if is_terminal else LINES_AT_ONCE)
    for number in itertools.count(step=at_once):
        if not (block := list(itertools.islice(lines, at_once))):
            return
        target.writelines(f"{line}\n".encode() for line in answers(block, number, warn))
        target.flush()


def answer_file(cfg: FileConfig, work: LineWork) -> None:
    """Write the answers to the lines of `cfg.input` to `cfg.output`, or continue from the parts on disk.

    Raises:
        UserError: the input, the output or the run cannot be used as given.
        TrainingStopped: the disk is full, or a worker was killed.
        Interrupted: a signal has arrived.
    """
    assert cfg.input is not None
    assert cfg.output is not None
    files = path_of(cfg.input), path_of(cfg.output)
    job = Job.read(*files, work.done, work.reader(cfg))
    cfg, weights = with_fixed_checkpoints(cfg)
    with job.opened({**weights, "tgt": cfg.tgt, **work.facts(cfg)}):
        counter = LineCounter(job.num_lines, job.num_finished)
        if job.num_finished:
            counter.note(f"going on: {job.progress} are {work.done}")
        num_missing = sum(not part.exists() for part in job.parts)
        settings = worker_settings(cfg, num_missing)
        if settings:
            threads, devices = settings[0].runtime.threads, {s.runtime.device for s in settings}
            counter.note(
                f"workers: {len(settings)} on {', '.join(sorted(devices))}, threads of each: {threads}"
            )
            _answer_missing(job, settings, work, counter)
        job.finish()


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
    missing = (block for block in job.blocks() if not block.part.exists())
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
    with without_interrupt():
        pending = {pool.submit(_answer_block, block) for block in first}
    processes = multiprocessing.active_children()
    try:
        yield pool, pending
    except BrokenProcessPool:
        pool.shutdown()  # the exit codes are known only now
        raise _death([process.exitcode for process in processes], work.done) from None
    finally:
        for process in processes:
            process.kill()  # perhaps in the middle of a search
        pool.shutdown()


def _death(exit_codes: Sequence[int | None], done: str) -> NmtError:
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
def _opened() -> Answers:
    ((cfg, work),) = _TASK
    return work.opened(cfg)


def _answer_block(block: Block) -> tuple[int, list[str]]:
    """Write the part of a block; return the number of its lines and the warnings about them.

    The process ends, after writing its stacks to stderr, when that takes longer than `worker_minutes`.
    """
    ((cfg, _),) = _TASK
    faulthandler.dump_traceback_later(60 * cfg.worker_minutes, exit=True)
    warnings: list[str] = []
    lines = _opened()(block.lines, block.first_line, warnings.append)
    write_part(block.part, "".join(f"{line}\n" for line in lines).encode())
    faulthandler.cancel_dump_traceback_later()
    return len(block.lines), warnings


# The input, and the parts of the output


@dataclass
class Block:
    """Some lines of the input that are answered together."""

    part: Path
    """File for their answers."""
    first_line: int
    """The number of the first line in the file, counted from 0."""
    lines: list[str]
    """At most `LINES_AT_ONCE`."""


@dataclass
class Job:
    """The way of one file to another, and its progress by the parts on disk."""

    source: Path
    output: Path
    done: str
    """What lines are afterwards, such as "translated"."""
    stamp: str
    """Stamp of the input file, to find out whether the file changes."""
    num_lines: int = 0
    sha256: str = ""
    """Hash of the uncompressed text of the input."""
    reader: Reader | None = None
    """How the lines are read before blocks are made of them, if not as they are."""

    @classmethod
    def read(cls, source: Path, output: Path, done: str, reader: Reader | None = None) -> Job:
        """Read the input through once.

        Raises:
            UserError: the input is missing, no regular file, damaged or not UTF-8, or the output cannot be
                written.
        """
        require_files(source, output)
        job = cls(source, output, done, stamp_of_files([source]), reader=reader)
        digest = hashlib.sha256()
        for block in job.blocks():
            digest.update("".join(f"{line}\n" for line in block.lines).encode())
            job.num_lines += len(block.lines)
        job.sha256 = digest.hexdigest()
        return job

    @property
    def folder(self) -> Path:
        """Directory of the parts."""
        return self.output.with_name(f"{self.output.name}.parts")

    @property
    def parts(self) -> Iterator[Path]:
        """Files of all parts, in order, finished or not."""
        return (self._part(number) for number in range(-(-self.num_lines // LINES_AT_ONCE)))

    @property
    def num_finished(self) -> int:
        """Lines of the input whose part is finished."""
        sizes = (self.num_lines - first for first in range(0, self.num_lines, LINES_AT_ONCE))
        pairs = zip(self.parts, sizes, strict=True)
        return sum(min(size, LINES_AT_ONCE) for part, size in pairs if part.exists())

    @property
    def progress(self) -> str:
        """The progress as "1,024 of 30,000 lines"."""
        return f"{self.num_finished:,} of {self.num_lines:,} lines"

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks of the input, in order; raise `UserError` when the file has changed."""
        lines = read_lines(self.source, "input", may_be_empty=True)
        lines = self.reader(lines) if self.reader else lines
        for number in itertools.count():
            self._require_unchanged()
            if not (block := list(itertools.islice(lines, LINES_AT_ONCE))):
                return
            yield Block(self._part(number), number * LINES_AT_ONCE, block)

    @contextmanager
    def opened(self, facts: dict[str, Any]) -> Iterator[None]:
        """Lock the folder of parts for this job, new or continued, and remove damaged parts.

        `facts` are the settings that the answers depend on. A job that ends without any part leaves
        no folder.

        Raises:
            UserError: another process has the lock, the parts in the folder belong to another job, or a
                name in the folder leads out of it.
        """
        own = {
            "input.lines": self.num_lines,
            "input.sha256": self.sha256[:16],
            "lines per part": LINES_AT_ONCE,
        }
        require_contained(self.folder)
        with locked(self.folder, OTHER_OUTPUT):
            _claim(self.folder, own | facts)
            for part in self.parts:
                if part.exists() and read_part(part) is None:
                    warn(f"{part} is damaged; its lines are {self.done} again")
                    part.unlink()
            try:
                yield
            finally:
                if not any(part.exists() for part in self.parts):
                    shutil.rmtree(self.folder, ignore_errors=True)

    def finish(self) -> None:
        """Join the parts to the output, and remove them; raise `UserError` if one is damaged."""
        self._require_unchanged()
        draft = self.folder / "output"
        with written_atomically(draft) as file, compressing(file, self.output) as target:
            for part in self.parts:
                answers = read_part(part)
                if answers is None:
                    raise UserError(f"{part} is damaged; its lines are {self.done} again by the same command")
                target.write(answers)
        _require_free(self.output)
        draft.replace(self.output)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _part(self, number: int) -> Path:
        return self.folder / f"block_{number:08d}"

    def _require_unchanged(self) -> None:
        if not self.source.is_file() or stamp_of_files([self.source]) != self.stamp:
            raise UserError(f"input: {self.source} has changed while it was {self.done}; start anew")


def _claim(folder: Path, facts: dict[str, Any]) -> None:
    """Claim the folder for the job that `facts` describe; raise `UserError` if it holds anything else."""
    file = folder / "job.json"
    if not file.exists():
        if strange := sorted(path.name for path in folder.iterdir() if not path.name.startswith(".")):
            raise UserError(
                f"{folder} is where parts of the output go, but it holds {strange[0]} and no job.json; "
                f"move it away, or {OTHER_OUTPUT}"
            )
        write_json(file, facts)
    stored = read_json(file)
    changes = [
        f"{key}: {stored.get(key, 'unset')} -> {facts.get(key, 'unset')}"
        for key in dict.fromkeys((*stored, *facts))
        if stored.get(key, "unset") != facts.get(key, "unset")
    ]
    if changes:
        lines = "\n  ".join([f"{folder} is left over from another job:", *changes])
        raise UserError(f"{lines}\nrepeat that one to finish it, remove the directory, or {OTHER_OUTPUT}")


def write_part(part: Path, answers: bytes) -> None:
    """Write a part with its SHA-256; raise `TrainingStopped` when the disk is full."""
    write_atomically(part, hashlib.sha256(answers).hexdigest().encode() + b"\n" + answers)


def read_part(part: Path) -> bytes | None:
    """Return the answers in a part, or None when it is damaged."""
    digest, _, answers = part.read_bytes().partition(b"\n")
    return answers if digest == hashlib.sha256(answers).hexdigest().encode() else None


def require_files(source: Path, output: Path) -> None:
    """Raise `UserError` for an input that cannot be read, or an output that cannot be written."""
    if output.is_dir():
        raise UserError(f"output: {output} is a directory; name a file in it: output={output / source.name}")
    if not output.parent.is_dir():
        raise UserError(f"output: there is no directory {output.parent}; make it, or {OTHER_OUTPUT}")
    if output.exists() and source.exists() and output.samefile(source):
        raise UserError(f"output: {output} is the input; {OTHER_OUTPUT}")
    _require_free(output)
    if output.suffix == ".zst":
        extras.require("zst", f"output: {output} is to be compressed by Zstandard, which")
    if source.exists() and not (source.is_file() or source.is_dir()):
        raise UserError(f"input: {source} is no regular file; leave out input and output to read a stream")
    require_file(source, "input")


def _require_free(output: Path) -> None:
    if output.exists():
        raise UserError(f"output: {output} is there already and stays; remove it, or {OTHER_OUTPUT}")


# The display


class LineCounter(Progress):
    """A count of finished lines on stderr: a bar in a terminal, else a line every `REPORT_SECONDS`."""

    def __init__(
        self,
        total: int,
        done: int,
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
        self.add_task("", total=total, completed=done, before=done)
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
    """Return `1,024 of 30,000 lines  12.3 lines/s  8:45 left`, at the speed of this process so far."""
    rate = (task.completed - task.fields["before"]) / max(task.elapsed or 0.0, 1e-3)
    speed = f"  {rate:,.1f} lines/s" if rate else ""
    left = f"  {duration(task.remaining / rate)} left" if rate and task.remaining else ""
    return f"{task.completed:,.0f} of {task.total:,.0f} lines{speed}{left}"
