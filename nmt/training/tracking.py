"""What people look at while a model trains: progress display, `train.log`, `metrics.jsonl`, TensorBoard.

One `log(step, values)` reaches all of them. Values are numbers under slash-grouped names (`train/loss`, in
nats per target token); apart from the few that the display shows, what they mean is not known here.

    RUN/metrics.jsonl   one JSON object per call of `log`: "step" and the values, null for what is not finite
    RUN/tensorboard/    the same values as scalars, texts and images
    RUN/train.log       every line that was shown, or would be without a terminal, with its local time

A run that resumes has perhaps logged steps that it is about to repeat. They are taken out first, so that each
step is there exactly once. The display goes to stderr: a live one in a terminal, else a line per call of
`log`. Text from a corpus is written by strangers: it is stripped of escape codes and shown literally.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from nmt.errors import TrainingStopped
from nmt.files import write_lines

REFRESHES_PER_SECOND = 2  # each costs some milliseconds of a core that training wants
ESCAPE_SEQUENCE = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]")
CONTROL_CHARACTER = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and newline


class Tracker:
    """Everything a training run reports, as a context manager.

    `resume_step` is the step of the checkpoint the run starts from, 0 for a fresh start; what was logged
    after it is removed. `total_steps` is the limit of the run; without one, `advance` is told the share done.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        resume_step: int = 0,
        total_steps: int | None = None,
        console: Console | None = None,
    ):
        from torch.utils.tensorboard import SummaryWriter  # a second of imports that only training needs

        self.run_dir = run_dir
        self.resume_step = resume_step
        self.total_steps = total_steps
        self.console = console or Console(stderr=True)
        self._step = resume_step
        self._values: dict[str, float] = {}
        self._start: tuple[float, float] | None = None  # time and share done when this process began
        self._now: tuple[float, float] | None = None
        with self._writing():
            run_dir.mkdir(parents=True, exist_ok=True)
            for record in rewind(run_dir / "metrics.jsonl", resume_step):
                if record.get("valid/bleu") is not None:
                    self._values["valid/bleu"] = record["valid/bleu"]
            self._metrics = (run_dir / "metrics.jsonl").open("a", encoding="utf-8")
            self._train_log = (run_dir / "train.log").open("a", encoding="utf-8")
            self._tensorboard: Any = SummaryWriter(
                str(run_dir / "tensorboard"), purge_step=resume_step + 1 if resume_step else 0
            )
        self._live: Live | None = None
        if is_live(self.console):
            self._live = Live(
                get_renderable=self._render,
                console=self.console,
                refresh_per_second=REFRESHES_PER_SECOND,
                redirect_stdout=False,  # stdout may be a file, and what is printed there belongs in it
            )

    def __enter__(self) -> Tracker:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        with (
            self._writing(),
            ExitStack() as closing,
        ):  # closes each of them even when another cannot be closed
            for output in (self._train_log, self._metrics, self._tensorboard):
                closing.callback(output.close)

    def advance(
        self, step: int, values: Mapping[str, float] | None = None, fraction: float | None = None
    ) -> None:
        """Update the display alone; cheap enough for every step.

        `fraction` in [0, 1] is the share of the run that is done, by its nearest limit.
        """
        self._step = step
        if values:
            self._values.update(values)
        if fraction is not None:
            self._now = (time.monotonic(), min(fraction, 1.0))
            self._start = self._start or self._now

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record `values` of `step`; with `train/loss` among them, also show them as a line, if not live.

        Raises:
            TrainingStopped: the disk is full.
        """
        self._step = step
        self._values.update(values)
        finite = {key: value if math.isfinite(value) else None for key, value in values.items()}
        with self._writing():
            self._metrics.write(json.dumps({"step": step, **finite}, allow_nan=False) + "\n")
            self._metrics.flush()
            for key, value in finite.items():
                if value is not None:
                    self._tensorboard.add_scalar(key, value, step)
            self._tensorboard.flush()  # a kill must not lose steps that a checkpoint is about to cover
        if "train/loss" in values:
            left = self._time_left()
            parts = [
                self._count(),
                describe(self._values),
                f"left {duration(left)}" if left is not None else "",
            ]
            self._show("  ".join(filter(None, parts)), to_console=self._live is None)

    def message(self, text: str) -> None:
        """Show `text` as lines of its own, above a live display."""
        for line in text.split("\n"):
            self._show(printable(line), to_console=True)

    def text(self, step: int, tag: str, text: str) -> None:
        """Record `text` in TensorBoard, where it appears literally. Raises like `log`."""
        with self._writing():
            self._tensorboard.add_text(tag, literal_markdown(text), step)
            self._tensorboard.flush()

    def image(self, step: int, tag: str, pixels: NDArray[np.uint8]) -> None:
        """Record an image (height, width, 3) in TensorBoard. Raises like `log`."""
        with self._writing():
            self._tensorboard.add_image(tag, pixels, step, dataformats="HWC")
            self._tensorboard.flush()

    def config_text(self, config: str) -> None:
        """Record the config in TensorBoard, where a resumed run has it already. Raises like `log`."""
        if not self.resume_step:
            self.text(0, "config", config)

    def _show(self, line: str, *, to_console: bool) -> None:
        with self._writing():
            self._train_log.write(time.strftime("%Y-%m-%d %H:%M:%S ") + line + "\n")
            self._train_log.flush()
        if to_console:
            self.console.print(Text(line), soft_wrap=True)

    def _count(self) -> str:
        return f"step {self._step}" + (f"/{self.total_steps}" if self.total_steps else "")

    def _time_left(self) -> float | None:
        """Seconds to the end, if the rest goes as what this process did so far."""
        if self._start is None or self._now is None or self._now[1] <= self._start[1]:
            return None
        seconds, share = (now - start for now, start in zip(self._now, self._start, strict=True))
        return seconds * (1.0 - self._now[1]) / share

    def _render(self) -> RenderableType:
        """Two lines, so that 80 columns are enough: how far the run is, and what the model does."""
        left = self._time_left()
        done = self._now[1] if self._now is not None else None
        grid = Table.grid(padding=(0, 1), expand=True)
        grid.add_column(no_wrap=True)
        grid.add_column(ratio=1)
        grid.add_column(no_wrap=True)
        grid.add_row(
            Text(self._count()),
            ProgressBar(total=1.0, completed=done or 0.0, pulse=done is None),
            Text(f"{duration(left)} left" if left is not None else ""),
        )
        return Group(grid, Text(describe(self._values), no_wrap=True, overflow="ellipsis"))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TrainingStopped(
                f"cannot write to {self.run_dir}: {error.strerror or error}; its checkpoints are intact; "
                "make room or fix the permissions, then run the same command again"
            ) from error


class NullTracker(Tracker):
    """What the processes of a training report that are not the first one: nothing."""

    def __init__(self) -> None:
        self.resume_step = 0

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def advance(self, *_: object, **__: object) -> None:
        """Nothing."""

    def log(self, *_: object, **__: object) -> None:
        """Nothing."""

    def message(self, *_: object, **__: object) -> None:
        """Nothing."""

    def text(self, *_: object, **__: object) -> None:
        """Nothing."""

    def image(self, *_: object, **__: object) -> None:
        """Nothing."""


def rewind(path: Path, step: int) -> list[dict[str, Any]]:
    """Cut the JSON lines of `path` back to those of the first `step` steps, atomically, and return them.

    Step 0 keeps nothing. A line that was cut short because the process was killed goes as well.
    """
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    records = [record for line in lines if (record := _parse(line)) is not None and record["step"] <= step]
    kept = records if step else []
    write_lines(path, map(json.dumps, kept))
    return kept


def _parse(line: str) -> dict[str, Any] | None:
    """The record in a line, or None when the line holds none."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None


def is_live(console: Console) -> bool:
    """Whether the display may redraw itself: not in a pipe, a file, a dumb terminal or a CI log."""
    in_ci = os.environ.get("CI", "").lower() not in ("", "0", "false")
    return console.is_terminal and not console.is_dumb_terminal and not in_ci


def printable(text: str) -> str:
    """`text` without terminal escape sequences and control characters, tab and newline excepted."""
    return CONTROL_CHARACTER.sub("", ESCAPE_SEQUENCE.sub("", text))


def literal_markdown(text: str) -> str:
    """Markdown that shows `text` as it is: in an indented block neither HTML nor Markdown means anything."""
    return "\n".join("    " + line for line in printable(text).split("\n"))


def shown_perplexity(loss: float) -> str:
    """exp(`loss`) with as many digits as one reads."""
    value = math.exp(min(loss, 700.0))
    if value >= 1e6:
        return f"{value:.1e}"
    return f"{value:,.0f}" if value >= 1000.0 else f"{value:.1f}"


def duration(seconds: float) -> str:
    """12:40 or 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


SHOWN: tuple[tuple[str, Callable[[float], str]], ...] = (
    ("train/loss", "loss {:.3f}".format),
    ("train/nll", lambda nll: f"ppl {shown_perplexity(nll)}"),
    ("train/lr", "lr {:.1e}".format),
    ("train/tgt_tokens_per_second", "{:,.0f} tok/s".format),
    ("valid/bleu", "bleu {:.1f}".format),
)


def describe(values: Mapping[str, float]) -> str:
    """The values that the display shows, as far as they are known."""
    return "  ".join(show(values[key]) for key, show in SHOWN if key in values)
