"""Reports of a training: a `Tracker` hands numbers, lines, tables and images to each of its sinks.

Values are numbers under slash-grouped names (`train/loss`, in nats per target token); what they mean is
not known here, except for the few values in a status line.

    display       on stderr: a live display in a terminal, else a line per logged `train/loss`
    train_log     RUN/train.log: every line that the display has without a terminal, warnings, and how the
                  training ended, each with its local time
    jsonl         RUN/metrics.jsonl: one JSON object per call of `log`, "step" and values; null: not finite
    tensorboard   RUN/tb/: the same values as scalars; tables, images, the config and the final scores
    wandb, mlflow, trackio    the same elsewhere: see `nmt.training.tracking.remote_sinks`

A run that resumes may have logged steps that it is about to repeat. A sink removes the records of such steps
when it is opened, so that each step is recorded exactly once; train.log alone keeps every line. Text from a
corpus is written by strangers: text is stripped of escape codes, and every sink shows it literally.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import numpy as np
import yaml
from numpy.typing import NDArray

from nmt.errors import Interrupted, NmtError, TrainingStopped, warn, witnessed
from nmt.files import require_space, step_records, write_lines
from nmt.loading import loaded
from nmt.progress import Work, heard_by
from nmt.training.tracking.configs import SINKS, TrackingConfig
from nmt.training.tracking.status_line import StatusLine, WorkLine

ESCAPE_SEQUENCE = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]")
MARKUP = re.compile(r"[!-/:-@\[-`{-~]")  # ASCII punctuation, all that Markdown and HTML give a meaning to
CONTROL_CHARACTER = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and newline
FINAL = "final"
"""Run of TensorBoard for the final scores and the config."""
TAGS = {"train/loss": "train/objective", "train/nll": "train/loss"}
"""Names that differ in TensorBoard, so that `loss` is the same quantity in train and valid."""
SPARE_BYTES = 1 << 20
"""Free space without which TensorBoard gets nothing, and size of the lines kept until there is room."""


@dataclass(frozen=True)
class TrackedRun:
    """All that a sink may know of the training that it reports on."""

    directory: Path
    """The run directory, whose name is the name of the run."""
    resume_step: int = 0
    """Step of the checkpoint that the training goes on from; 0 for a fresh start."""
    best_metric: str = "loss"
    """Name of the score that picks the best checkpoint; its values are called `valid/NAME`."""
    total_steps: int | None = None
    """The limit of the run, if it has one in steps; not known before `begin`."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The config of the training as nested plain data; empty before `begin`."""


Rows = Sequence[Sequence[str]]
"""Rows of a table; each has one text for each column."""


class Sink:
    """One place that a training reports to. A subclass overrides the methods that it has a use for.

    The constructor opens the sink, and removes its records of steps after `run.resume_step`. Records of
    `log`, `table` and `image` must survive a kill: a checkpoint may cover the step right after. What
    `conclude` has recorded is replaced by a training that goes on. An OSError is shown once and does not end
    the training; what could not be written is written later if it can be, else lost. Lines and tables are
    free of escape codes.
    """

    def __init__(self, run: TrackedRun, cfg: TrackingConfig):
        self.run = run
        self.cfg = cfg

    def begin(self, run: TrackedRun) -> None:
        """Take all that is known of the run before its first update; until then there are lines and work."""
        self.run = run

    def advance(self, step: int, values: Mapping[str, float], share_done: float | None) -> None:
        """Take note of a step that is not recorded; this is called at every step, and must be cheap."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record `values`, which may be nan or inf, of `step`."""

    def message(self, line: str) -> None:
        """Record a line for people."""

    def shown(self, line: str) -> None:
        """Record a line that people have seen elsewhere: a warning, or one of the final summary."""

    def work(self, work: Work | None) -> None:
        """Take note of how far a piece of work beside updates is; None: it has ended."""

    def table(self, step: int, tag: str, columns: Sequence[str], rows: Rows) -> None:
        """Record a table of texts, such as translations beside their sources."""

    def image(self, step: int, tag: str, pixels: NDArray[np.uint8]) -> None:
        """Record an image (height, width, 3)."""

    def conclude(self, step: int, scores: Mapping[str, Mapping[str, float]]) -> None:
        """Record the final scores, by split and name, of weights whose newest step is `step`."""

    def close(self, error: BaseException | None) -> None:
        """Close the sink; `error` cut the training short, None when the training is done."""


class _Lines(Sink):
    """A sink of lines: the messages, and a status line for every logged `train/loss`."""

    def __init__(self, run: TrackedRun, cfg: TrackingConfig):
        super().__init__(run, cfg)
        self.status = StatusLine(run.best_metric, run.resume_step)
        self.line_of_work = WorkLine()

    def begin(self, run: TrackedRun) -> None:
        super().begin(run)
        self.status.total_steps = run.total_steps

    def advance(self, step: int, values: Mapping[str, float], share_done: float | None) -> None:
        self.status.update(step, values, share_done)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.status.update(step, values)
        if "train/loss" in values:
            self.show_status()

    def work(self, work: Work | None) -> None:
        if self.line_of_work.update(work):
            self.show_work()

    def show_status(self) -> None:
        """Show the status line."""
        self.message(self.status.text())

    def show_work(self) -> None:
        """Show how far the work is."""
        self.message(self.line_of_work.text())


class Display(_Lines):
    """The display on stderr."""

    def __init__(self, run: TrackedRun, cfg: TrackingConfig):
        from nmt.training.tracking.display import Screen

        super().__init__(run, cfg)
        self.screen = Screen(self.status, self.line_of_work)

    def show_status(self) -> None:
        """Show the status line, unless a live display shows it all the time."""
        if self.screen.live is None:
            super().show_status()

    def show_work(self) -> None:
        """Show how far the work is, unless a live display shows it all the time."""
        if self.screen.live is None:
            super().show_work()

    def message(self, line: str) -> None:
        self.screen.print(line)

    def close(self, error: BaseException | None) -> None:
        self.screen.close()


class TrainLog(_Lines):
    """The file train.log: every line with its time."""

    def __init__(self, run: TrackedRun, cfg: TrackingConfig):
        super().__init__(run, cfg)
        self.file = _appending(run.directory / "train.log")
        self.last_line = ""

    def message(self, line: str) -> None:
        self.last_line = line
        self.file.write(time.strftime("%Y-%m-%d %H:%M:%S ") + line + "\n")
        self.file.flush()

    def shown(self, line: str) -> None:
        self.message(line)

    def close(self, error: BaseException | None) -> None:
        with self.file:
            if error is not None and not self.last_line.startswith(str(error) or "\n"):  # not told yet
                for line in printable(_end(error)).split("\n"):
                    self.message(line)


class JsonLines(Sink):
    """The file metrics.jsonl."""

    def __init__(self, run: TrackedRun, cfg: TrackingConfig):
        super().__init__(run, cfg)
        rewind(run.directory / "metrics.jsonl", run.resume_step)
        self.file = _appending(run.directory / "metrics.jsonl")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        finite = {key: value if math.isfinite(value) else None for key, value in values.items()}
        self.file.write(json.dumps({"step": step, **finite}, allow_nan=False) + "\n")
        self.file.flush()

    def close(self, error: BaseException | None) -> None:
        self.file.close()


class TensorBoard(Sink):
    """The event files of TensorBoard, in three runs whose curves of one name come into one chart.

    The runs are the first parts of the names of values: `train` and `valid`. The third, `final`, has the
    final scores beside all keys of the config, which the page HPARAMS shows and sorts; it is made anew
    whenever the sink is opened. `TAGS` says which values have other names there.
    """

    def __init__(self, run: TrackedRun, cfg: TrackingConfig):
        import torch.utils.tensorboard  # noqa: F401 - takes a second

        super().__init__(run, cfg)
        self._require_space()
        self.folder = run.directory / "tb"
        self.writers: dict[str, Any] = {}
        self.folder.mkdir(parents=True, exist_ok=True)
        if (self.folder / FINAL).exists():
            shutil.rmtree(self.folder / FINAL)
        for name in sorted(folder.name for folder in self.folder.iterdir() if folder.is_dir()):
            self._writer(name)
        if (earlier := run.directory / "tensorboard").is_dir():  # of a run of version 0.1
            self._opened(earlier).close()
        self._flush()

    def begin(self, run: TrackedRun) -> None:
        super().begin(run)
        self._require_space()
        if not run.resume_step:  # a resumed run has recorded the config before
            text = yaml.safe_dump(dict(run.config), sort_keys=False, allow_unicode=True)
            self._add_text("train", "config", literal_markdown(printable(text)), 0)
        self._write_hparams()
        self._flush()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._require_space()
        for key, value in values.items():
            group, tag = _run_and_tag(key)
            if math.isfinite(value):
                self._writer(group).add_scalar(tag, value, step)
        self._flush()

    def table(self, step: int, tag: str, columns: Sequence[str], rows: Rows) -> None:
        self._require_space()
        group, tag = _run_and_tag(tag)
        self._add_text(group, tag, markdown_table(columns, rows), step)
        self._flush()

    def image(self, step: int, tag: str, pixels: NDArray[np.uint8]) -> None:
        self._require_space()
        group, tag = _run_and_tag(tag)
        self._writer(group).add_image(tag, pixels, step, dataformats="HWC")
        self._flush()

    def conclude(self, step: int, scores: Mapping[str, Mapping[str, float]]) -> None:
        self._require_space()
        for split, values in scores.items():
            for name, value in values.items():
                if math.isfinite(value):
                    self._writer(FINAL).add_scalar(f"{name}/{split}", value, step)
        self._write_hparams(end=True)
        self._flush()

    def close(self, error: BaseException | None) -> None:
        for writer in self.writers.values():
            writer.close()

    def _writer(self, name: str) -> Any:
        """Return the writer of the run `name`."""
        if name not in self.writers:
            self.writers[name] = self._opened(self.folder / name)
        return self.writers[name]

    def _opened(self, folder: Path) -> Any:
        """Return a new writer to `folder`, where the steps to be repeated count no more."""
        from torch.utils.tensorboard import SummaryWriter

        # TensorBoard reads files in the order of the seconds in their names; a rollback may take less.
        while any(folder.glob(f"events.out.tfevents.{int(time.time()):010d}.*")):
            time.sleep(0.05)
        return SummaryWriter(str(folder), purge_step=self.run.resume_step + 1 if self.run.resume_step else 0)

    def _add_text(self, run: str, tag: str, markdown: str, step: int) -> None:
        from torch.utils.tensorboard import summary

        made = summary.text(tag, markdown)
        made.value[0].tensor.tensor_shape.ClearField("dim")  # or it is shown inside of a table of one cell
        self._writer(run).file_writer.add_summary(made, step)

    def _write_hparams(self, *, end: bool = False) -> None:
        """Record all keys of the config but the directory, or that the training is done."""
        from torch.utils.tensorboard.summary import hparams

        keys = {key: value for key, value in flat(self.run.config) if key != "run"}
        _, started, ended = hparams(keys, {})
        self._writer(FINAL).file_writer.add_summary(ended if end else started)

    def _flush(self) -> None:
        for writer in self.writers.values():
            writer.flush()

    def _require_space(self) -> None:
        """Raise `OSError` on a full disk, which would tear a record and end the thread that writes."""
        require_space(self.run.directory, SPARE_BYTES)


def _run_and_tag(key: str) -> tuple[str, str]:
    """Return the run and the tag of TensorBoard for the name of a value, such as valid and loss."""
    run, _, tag = TAGS.get(key, key).partition("/")
    return (run, tag) if tag else ("train", run)


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float | str]]:
    """Yield each full key of a nested config with its value, without those that are null."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        elif value is not None:
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            yield f"{prefix}{key}", value if is_number else json.dumps(value).strip('"')


class Tracker:
    """All sinks of a training, as a context manager; without sinks it reports nothing.

    Inside, warnings and the progress of work (`nmt.progress`) reach the sinks by themselves.

    A sink that cannot be opened raises `TrainingStopped`; one that cannot write any more, as on a full disk,
    is named once on stderr, and the training goes on.
    """

    def __init__(self, run: TrackedRun, cfg: TrackingConfig):
        self.run = run
        self.cfg = cfg
        self._sinks: dict[str, Sink] = {}
        self._failed: set[str] = set()
        self._closing = ExitStack()

    def __enter__(self) -> Tracker:
        with self._opening(), ExitStack() as opened:  # closes the sinks made so far when one cannot be made
            for name in self.cfg.sinks:
                self._sinks[name] = loaded(SINKS[name])(self.run, self.cfg)
                opened.push(lambda kind, error, traceback, name=name: self._close(name, error))
            if self._sinks:
                opened.enter_context(witnessed(self.shown))
                opened.enter_context(heard_by(self.work))
            self._closing = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closing.__exit__(kind, error, traceback)

    def begin(self, run: TrackedRun) -> None:
        """Hand over all that is known of the run before its first update: its length and its config."""
        self._each(lambda sink: sink.begin(run))

    def advance(self, step: int, values: Mapping[str, float], share_done: float | None = None) -> None:
        """Show values of a step; `share_done` in [0, 1] is the share of the run by its nearest limit."""
        self._each(lambda sink: sink.advance(step, values, share_done))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record `values` of `step`."""
        self._each(lambda sink: sink.log(step, values))

    def message(self, text: str) -> None:
        """Record `text` as lines for people."""
        for line in printable(text).split("\n"):
            self._each(lambda sink, line=line: sink.message(line))  # type: ignore[misc]

    def shown(self, text: str) -> None:
        """Record `text` as lines that people have seen elsewhere, such as warnings."""
        for line in printable(text).split("\n"):
            self._each(lambda sink, line=line: sink.shown(line))  # type: ignore[misc]

    def work(self, work: Work | None) -> None:
        """Show how far a piece of work beside updates is; None: it has ended."""
        self._each(lambda sink: sink.work(work))

    def table(self, step: int, tag: str, columns: Sequence[str], rows: Rows) -> None:
        """Record a table of texts under the name `tag`."""
        texts = [[printable(text) for text in row] for row in rows]
        self._each(lambda sink: sink.table(step, tag, columns, texts))

    def image(self, step: int, tag: str, pixels: NDArray[np.uint8]) -> None:
        """Record an image (height, width, 3) under the name `tag`."""
        self._each(lambda sink: sink.image(step, tag, pixels))

    def conclude(self, step: int, scores: Mapping[str, Mapping[str, float]]) -> None:
        """Record the final scores, by split and name, of weights whose newest step is `step`."""
        self._each(lambda sink: sink.conclude(step, scores))

    @contextmanager
    def spared(self, name: str) -> Iterator[None]:
        """Go on where the block cannot write the report `name`, which training does not need; warn once.

        The block writes and no more: any error of the system ends it, and another process may be waiting for
        what comes after one.
        """
        try:
            yield
        except BrokenPipeError:  # the reader of stderr has left
            raise
        except (OSError, NmtError) as error:
            if not isinstance(error.__cause__ or error, OSError):
                raise
            if name not in self._failed:
                self._failed.add(name)
                reason = (error.strerror if isinstance(error, OSError) else None) or error
                with suppress(OSError):  # stderr itself may be full
                    warn(f"{self.run.directory}: {name} cannot be written: {reason}; training goes on")

    def _each(self, action: Callable[[Sink], None]) -> None:
        """Do `action` with every sink, even when another one cannot write."""
        for name, sink in self._sinks.items():
            with self.spared(name):
                action(sink)

    def _close(self, name: str, error: BaseException | None) -> None:
        with self.spared(name):
            self._sinks[name].close(error)

    @contextmanager
    def _opening(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:  # the reader of stderr has left
            raise
        except OSError as error:
            raise TrainingStopped(
                f"cannot write to {self.run.directory}: {error.strerror or error}; "
                "its checkpoints are intact; make room or fix the permissions, "
                "then run the same command again"
            ) from error


def rewind(path: Path, step: int) -> None:
    """Cut the JSON lines of `path` back to those of the first `step` steps, atomically.

    Step 0 keeps nothing. A line that was cut short because the process was killed is removed, too.
    """
    if path.exists():
        kept = list(step_records(path)) if step else []
        write_lines(path, (json.dumps(record) for record in kept if record["step"] <= step))


def _appending(path: Path) -> TextIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a", SPARE_BYTES, encoding="utf-8")


def printable(text: str) -> str:
    """Return `text` without terminal escape sequences and control characters, tab and newline excepted."""
    return CONTROL_CHARACTER.sub("", ESCAPE_SEQUENCE.sub("", text))


def literal_markdown(text: str) -> str:
    """Return Markdown that shows `text`, which must be printable, as it is.

    In an indented block neither HTML nor Markdown has a meaning.
    """
    return "\n".join("    " + line for line in text.split("\n"))


def markdown_table(columns: Sequence[str], rows: Rows) -> str:
    """Return a table in Markdown that shows the texts, which must be printable, as they are."""
    body = [[MARKUP.sub(_entity, text).replace("\n", "<br>") for text in row] for row in rows]
    lines = [columns, ["---"] * len(columns), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _entity(character: re.Match[str]) -> str:
    return f"&#{ord(character[0])};"


def _end(error: BaseException) -> str:
    """Return the end of a training in words."""
    if isinstance(error, Interrupted):
        return str(error)
    return f"error: {error}" if isinstance(error, NmtError) else f"{type(error).__name__}: {error}"
