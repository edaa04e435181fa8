"""Reports of a training: a `Tracker` hands numbers, lines, texts and images to each of its sinks.

Values are numbers under slash-grouped names (`train/loss`, in nats per target token); what they mean is
not known here, except for the few values in a status line.

    display       on stderr: a live display in a terminal, else a line per logged `train/loss`
    train_log     RUN/train.log: every line that the display has without a terminal, with its local time
    jsonl         RUN/metrics.jsonl: one JSON object per call of `log`, "step" and values; null: not finite
    tensorboard   RUN/tensorboard/: the same values as scalars; texts, images and the config

A run that resumes may have logged steps that it is about to repeat. A sink removes the records of such steps
when it is opened, so that each step is recorded exactly once; train.log alone keeps every line. Text from a
corpus is written by strangers: text is stripped of escape codes, and every sink shows it literally.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import numpy as np
import yaml
from numpy.typing import NDArray

from nmt.errors import TrainingStopped, UserError, suggest, warn
from nmt.files import parse_json, require_space, write_lines
from nmt.training.status_line import StatusLine

ESCAPE_SEQUENCE = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]")
CONTROL_CHARACTER = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and newline
SPARE_BYTES = 1 << 20
"""Free space without which TensorBoard gets nothing, and size of the lines kept until there is room."""


def _default_sinks() -> list[str]:
    return ["display", "train_log", "jsonl", "tensorboard"]


@dataclass
class TrackingConfig:
    """The places that a training reports to."""

    sinks: list[str] = field(default_factory=_default_sinks)
    """Any of display (on stderr), train_log (train.log), jsonl (metrics.jsonl) and tensorboard."""

    def __post_init__(self) -> None:
        for number, name in enumerate(self.sinks):
            if name not in SINKS:
                raise UserError(
                    f"tracking.sinks[{number}] must be one of {', '.join(SINKS)}, "
                    f"but is {name!r}{suggest(name, SINKS)}"
                )
        if len(set(self.sinks)) < len(self.sinks):
            raise UserError(f"tracking.sinks must name each sink once, but is [{', '.join(self.sinks)}]")


@dataclass(frozen=True)
class TrackedRun:
    """All that a sink may know of the training that it reports on."""

    directory: Path
    """The run directory, whose name is the name of the run."""
    resume_step: int = 0
    """Step of the checkpoint that the training goes on from; 0 for a fresh start."""
    total_steps: int | None = None
    """The limit of the run, if it has one in steps."""
    best_metric: str = "loss"
    """Name of the score that picks the best checkpoint; its values are called `valid/NAME`."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The config of the training as nested plain data."""


class Sink:
    """One place that a training reports to. A subclass overrides the methods that it has a use for.

    The constructor opens the sink, and removes its records of steps after `run.resume_step`. Records of
    `log`, `text` and `image` must survive a kill: a checkpoint may cover the step right after. An OSError is
    shown once and does not end the training; what could not be written is written later if it can be, else
    lost. Lines and texts are free of escape codes.
    """

    def __init__(self, run: TrackedRun, cfg: TrackingConfig):
        self.run = run
        self.cfg = cfg

    def advance(self, step: int, values: Mapping[str, float], share_done: float | None) -> None:
        """Take note of a step that is not recorded; this is called at every step, and must be cheap."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record `values`, which may be nan or inf, of `step`."""

    def message(self, line: str) -> None:
        """Record a line for people."""

    def text(self, step: int, tag: str, text: str) -> None:
        """Record a text of several lines, such as a translation beside its source."""

    def image(self, step: int, tag: str, pixels: NDArray[np.uint8]) -> None:
        """Record an image (height, width, 3)."""

    def close(self, error: BaseException | None) -> None:
        """Close the sink; `error` cut the training short, None when the training is done."""


class _Lines(Sink):
    """A sink of lines: the messages, and a status line for every logged `train/loss`."""

    def __init__(self, run: TrackedRun, cfg: TrackingConfig):
        super().__init__(run, cfg)
        self.status = StatusLine(run.best_metric, run.resume_step, run.total_steps)

    def advance(self, step: int, values: Mapping[str, float], share_done: float | None) -> None:
        self.status.update(step, values, share_done)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.status.update(step, values)
        if "train/loss" in values:
            self.show_status()

    def show_status(self) -> None:
        """Show the status line."""
        self.message(self.status.text())


class Display(_Lines):
    """The display on stderr."""

    def __init__(self, run: TrackedRun, cfg: TrackingConfig):
        from nmt.training.display import Screen

        super().__init__(run, cfg)
        self.screen = Screen(self.status)

    def show_status(self) -> None:
        """Show the status line, unless a live display shows it all the time."""
        if self.screen.live is None:
            super().show_status()

    def message(self, line: str) -> None:
        self.screen.print(line)

    def close(self, error: BaseException | None) -> None:
        self.screen.close()


class TrainLog(_Lines):
    """The file train.log: every line with its time."""

    def __init__(self, run: TrackedRun, cfg: TrackingConfig):
        super().__init__(run, cfg)
        self.file = _appending(run.directory / "train.log")

    def message(self, line: str) -> None:
        self.file.write(time.strftime("%Y-%m-%d %H:%M:%S ") + line + "\n")
        self.file.flush()

    def close(self, error: BaseException | None) -> None:
        self.file.close()


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
    """The event files of TensorBoard."""

    def __init__(self, run: TrackedRun, cfg: TrackingConfig):
        from torch.utils.tensorboard import SummaryWriter  # takes a second

        super().__init__(run, cfg)
        purge = run.resume_step + 1 if run.resume_step else 0
        self.writer: Any = SummaryWriter(str(run.directory / "tensorboard"), purge_step=purge)
        if not run.resume_step:  # a resumed run has recorded the config before
            self.text(0, "config", yaml.safe_dump(dict(run.config), sort_keys=False, allow_unicode=True))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._require_space()
        for key, value in values.items():
            if math.isfinite(value):
                self.writer.add_scalar(key, value, step)
        self.writer.flush()

    def text(self, step: int, tag: str, text: str) -> None:
        self._require_space()
        self.writer.add_text(tag, literal_markdown(text), step)
        self.writer.flush()

    def image(self, step: int, tag: str, pixels: NDArray[np.uint8]) -> None:
        self._require_space()
        self.writer.add_image(tag, pixels, step, dataformats="HWC")
        self.writer.flush()

    def close(self, error: BaseException | None) -> None:
        self.writer.close()

    def _require_space(self) -> None:
        """Raise `OSError` on a full disk, which would tear a record and end the thread that writes."""
        require_space(self.run.directory, SPARE_BYTES)


SINKS: dict[str, type[Sink]] = {
    "display": Display,
    "train_log": TrainLog,
    "jsonl": JsonLines,
    "tensorboard": TensorBoard,
}
"""Name in `tracking.sinks` -> its class, which imports what it needs when a sink is made."""


class Tracker:
    """All sinks of a training, as a context manager; without sinks it reports nothing.

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
                self._sinks[name] = SINKS[name](self.run, self.cfg)
                opened.push(lambda kind, error, traceback, name=name: self._close(name, error))
            self._closing = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closing.__exit__(kind, error, traceback)

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

    def text(self, step: int, tag: str, text: str) -> None:
        """Record a text of several lines under the name `tag`."""
        self._each(lambda sink: sink.text(step, tag, printable(text)))

    def image(self, step: int, tag: str, pixels: NDArray[np.uint8]) -> None:
        """Record an image (height, width, 3) under the name `tag`."""
        self._each(lambda sink: sink.image(step, tag, pixels))

    @contextmanager
    def spared(self, name: str) -> Iterator[None]:
        """Go on where the block cannot write the report `name`, which training does not need; warn once."""
        try:
            yield
        except BrokenPipeError:  # the reader of stderr has left
            raise
        except (OSError, TrainingStopped) as error:
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
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n") if step else []
        records = [record for line in lines if (record := _parse(line)) is not None]
        write_lines(path, (json.dumps(record) for record in records if record["step"] <= step))


def _parse(line: str) -> dict[str, Any] | None:
    """Return the record in a line, or None when the line holds none."""
    try:
        record = parse_json(line.encode())
    except ValueError:
        return None
    return record if isinstance(record.get("step"), int) else None


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
