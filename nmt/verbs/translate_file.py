"""Translate a large file with several workers: `nmt translate run=... input=... output=...`.

A worker is a process with a model, a device and a share of the threads of its own. It is given one block of
lines after the other and gives back its translations; this process alone reads the input and writes (see
`nmt.verbs.translation_job`), and does so in the order in which workers finish. What every block becomes does
not depend on the number of workers, and is what `nmt translate run=... < input` makes of those lines.

When a worker dies or fails, when a signal arrives or an error occurs, all workers end; so they do when this
process is killed. The parts that are finished stay, and the same command goes on from there.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from time import monotonic
from typing import NoReturn

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from nmt.config.roots import Task, TranslateConfig
from nmt.config.stored import to_plain
from nmt.data.lines import decoded
from nmt.decoding.translate import translate
from nmt.errors import Interrupted, NmtError, TrainingStopped
from nmt.runs.opened import Run, identify_checkpoint, open_run, output_lines
from nmt.runtime import StopRequest, resolve_device
from nmt.training.tracking import duration, is_live
from nmt.verbs.translation_job import Block, Job, Source, opened_job, require_output

POLL_SECONDS = 0.5
"""How long a signal or the display may have to wait."""
REPORT_SECONDS = 30.0
"""Between two lines of progress where there is no live display."""


def translate_file(cfg: TranslateConfig) -> None:
    """Translate `cfg.input` to `cfg.output`, or go on with what an earlier process left.

    Raises:
        UserError: the input, the output or the run cannot be used as given.
        TrainingStopped: the disk is full, or a worker was killed.
        Interrupted: SIGINT or SIGTERM has arrived.
    """
    assert cfg.input is not None
    assert cfg.output is not None
    path, output = Path(cfg.input).expanduser(), Path(cfg.output).expanduser()
    require_output(output, path)
    source = Source.read(path)
    checkpoint, digest = identify_checkpoint(cfg.run, cfg.checkpoint)
    decoding = {f"decoding.{key}": value for key, value in to_plain(cfg)["decoding"].items()}
    for key in ("batch_tokens", "cuda_graphs"):  # they change the speed and the memory, not the translations
        decoding.pop(f"decoding.{key}", None)
    counter = LineCounter(source.num_lines)
    with opened_job(
        source, output, {"checkpoint": digest[:16], "tgt": cfg.tgt, **decoding}, counter.note
    ) as job:
        counter.done = job.lines_finished
        if job.finished:
            counter.note(f"going on: {counter.count()} are translated")
        missing = source.num_blocks - len(job.finished)
        settings = worker_settings(dataclasses.replace(cfg, checkpoint=checkpoint), missing)
        if settings:
            threads, devices = settings[0].runtime.threads, {s.runtime.device for s in settings}
            counter.note(
                f"workers: {len(settings)} on {', '.join(sorted(devices))}, threads of each: {threads}"
            )
        with StopRequest() as stop, started(settings) as workers, counter:
            _translate_missing(job, workers, counter, stop)
        job.finish()
    print(f"written     {output}")


def worker_settings(cfg: TranslateConfig, num_blocks: int) -> list[TranslateConfig]:
    """The config of each worker, with a device and a number of threads of its own; at most one per block.

    By default there is one worker per GPU, or one per core, so that no operation has to be shared by threads.
    """
    cores = torch.get_num_threads()
    device = resolve_device(cfg.runtime)
    devices = [str(device)]
    if devices == ["cuda"]:  # whichever there are
        devices = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    by_default = len(devices) if device.type == "cuda" else max(1, cores // max(1, cfg.runtime.threads))
    num = min(cfg.workers or by_default, num_blocks)
    threads = cfg.runtime.threads or max(1, cores // max(1, num))
    runtimes = [
        dataclasses.replace(cfg.runtime, device=devices[i % len(devices)], threads=threads)
        for i in range(num)
    ]
    return [dataclasses.replace(cfg, runtime=runtime) for runtime in runtimes]


@dataclass
class Translated:
    """What a worker made of a block."""

    number: int
    content: bytes
    num_lines: int
    warnings: list[str] = field(default_factory=list)


class Worker:
    """A process that translates blocks, seen from this one."""

    def __init__(self, cfg: TranslateConfig):
        context = multiprocessing.get_context("spawn")
        self.connection, other_end = context.Pipe()
        self.process: SpawnProcess = context.Process(target=_work, args=(other_end, cfg), daemon=True)
        # Ctrl-C reaches every process of a terminal; this one alone answers. A new process inherits that.
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self.process.start()
        finally:
            signal.signal(signal.SIGINT, handler)
        other_end.close()  # now the end of the process is the end of the connection

    def send(self, block: Block) -> None:
        """Hand over a block. Raises like `receive`."""
        try:
            self.connection.send(block)
        except OSError:
            self._raise_cause()

    def receive(self) -> Translated | None:
        """A block that is translated, or None when the model has been opened.

        Raises:
            NmtError: what went wrong in the worker.
        """
        try:
            message = self.connection.recv()
        except (EOFError, OSError):
            self._raise_cause()
        if isinstance(message, NmtError):
            raise message
        assert message is None or isinstance(message, Translated)
        return message

    def end(self) -> None:
        """End the process, whatever it does."""
        self.process.kill()
        self.process.join()
        self.connection.close()

    def _raise_cause(self) -> NoReturn:
        self.process.join()
        code = self.process.exitcode or 0
        if code < 0:
            raise TrainingStopped(
                f"a worker was ended by {signal.Signals(-code).name}, perhaps for lack of memory; what is "
                "translated is kept, and the same command goes on; fewer workers=... or a lower "
                "decoding.batch_tokens=... needs less memory"
            )
        raise NmtError(
            f"a worker failed with exit code {code}, for the reason above; what is translated is kept, and "
            "the same command goes on"
        )


def _work(connection: Connection, cfg: TranslateConfig) -> None:
    """What a worker does until the other end of its connection closes."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        opened = open_run(cfg.run, cfg.checkpoint, cfg.runtime)
        opened.require_task(Task.translation)
        connection.send(None)
        while True:
            connection.send(_translated(opened, connection.recv(), cfg))
    except NmtError as error:
        connection.send(error)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # there is nobody left to work for


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # in the middle of a search; what it finds has nowhere to go


def _translated(opened: Run, block: Block, cfg: TranslateConfig) -> Translated:
    result = Translated(block.number, b"", len(block.raw))
    translations = translate(
        list(opened.asking_for(cfg.tgt, decoded(block.raw, block.first_line + 1))),
        opened.searched(cfg.decoding),
        opened.tokenizer,
        cfg.decoding,
        device=opened.device,
        warn=result.warnings.append,
        first_line=block.first_line + 1,
    )
    numbered = enumerate(translations, start=block.first_line)
    lines = (line for number, found in numbered for line in output_lines(number, found, cfg.decoding.n_best))
    result.content = "".join(f"{line}\n" for line in lines).encode()
    return result


@contextmanager
def started(settings: Sequence[TranslateConfig]) -> Iterator[list[Worker]]:
    """A worker for each config; at the end of the block all of them have ended."""
    with ExitStack() as ending:
        workers = []
        for cfg in settings:
            workers.append(Worker(cfg))
            ending.callback(workers[-1].end)
        yield workers


def _translate_missing(job: Job, workers: Sequence[Worker], counter: LineCounter, stop: StopRequest) -> None:
    """Hand out the missing blocks, and write what comes back, until every part is there."""
    missing = job.missing()
    connections = [worker.connection for worker in workers]
    while len(job.finished) < job.source.num_blocks:
        ready = wait(connections, POLL_SECONDS)
        for worker in (worker for worker in workers if worker.connection in ready):
            translated = worker.receive()
            block = next(missing, None)
            if block is not None:
                worker.send(block)
            if translated is None:
                counter.start()
                continue
            job.save(translated.number, translated.content)
            counter.add(translated.num_lines)
            for warning in translated.warnings:
                counter.note(f"warning: {warning}")
        counter.show()
        if stop.signal is not None:
            raise Interrupted(
                stop.signal,
                f"stopped by {stop.signal.name}; {counter.count()} are translated; the same command goes on "
                "from there",
            )


class LineCounter:
    """How far the translation is, on stderr: a bar in a terminal, else a line now and then.

    The time left is that of the lines left, at the speed of this process so far.
    """

    def __init__(self, total: int, console: Console | None = None):
        self.total = total
        self.done = 0
        self.console = console or Console(stderr=True)
        self._new = 0  # lines that this process has translated
        self._start: float | None = None
        self._reported = monotonic()
        self._live: Progress | None = None
        if is_live(self.console):
            columns = TextColumn("{task.fields[count]}"), BarColumn(None), TextColumn("{task.fields[speed]}")
            self._live = Progress(
                *columns, console=self.console, auto_refresh=False, redirect_stdout=False, expand=True
            )

    def __enter__(self) -> LineCounter:
        if self._live is not None:
            self._live.add_task("", total=self.total, count=self.count(), speed="opening the model")
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
        else:
            self.note(self._line())

    def start(self) -> None:
        """The first worker is ready, and the speed counts from here."""
        if self._start is None:
            self._start = monotonic()

    def add(self, num_lines: int) -> None:
        """So many lines more are translated."""
        self.done += num_lines
        self._new += num_lines

    def show(self) -> None:
        """Bring the bar up to date, or write a line if the last one was some time ago."""
        now = monotonic()
        if self._live is not None:
            (task,) = self._live.task_ids
            self._live.update(
                task, completed=self.done, refresh=True, count=self.count(), speed=self._speed()
            )
        elif now - self._reported >= REPORT_SECONDS:
            self._reported = now
            self.note(self._line())

    def note(self, text: str) -> None:
        """Show a line of its own."""
        self.console.print(Text(text), soft_wrap=True)

    def count(self) -> str:
        """1,024 of 30,000 lines."""
        return f"{self.done:,} of {self.total:,} lines"

    def _line(self) -> str:
        return "  ".join(filter(None, (self.count(), self._speed())))

    def _speed(self) -> str:
        """12.3 lines/s  8:45 left; nothing before the first lines are translated."""
        if self._start is None or not self._new:
            return ""
        rate = self._new / max(monotonic() - self._start, 1e-3)
        left = (self.total - self.done) / rate
        return f"{rate:,.1f} lines/s  {duration(left)} left" if left else f"{rate:,.1f} lines/s"
