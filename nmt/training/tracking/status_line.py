"""The status of a training in one line of words: progress, loss, score and time left; and that of its work.

Values have the names under which they are logged. The loss that is shown is `train/nll`, on the scale of
`valid/loss`; an objective that does not name it is shown itself. Knows no terminal.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from nmt.progress import Work

SHOWN: dict[str, Callable[[float], str]] = {
    "train/nll": lambda nll: f"loss {nll:.3f}  ppl {shown_perplexity(nll)}",
    "train/loss": "objective {:.3f}".format,
    "train/lr": "lr {:.1e}".format,
    "train/tgt_tokens_per_second": "{:,.0f} tok/s".format,
}
"""Name of a value -> its words in the line, which ends with the validation score."""
WORK_SECONDS = 60.0
"""Time between two plain lines about the same work."""


class StatusLine:
    """The newest values of a training, and its time left.

    `best_metric` names the one validation score that the line shows.
    """

    total_steps: int | None = None
    """The limit of the run, if it has one in steps."""

    def __init__(self, best_metric: str, step: int = 0):
        self.best = f"valid/{best_metric}"
        self.step = step
        self.share_done: float | None = None
        self._values: dict[str, float] = {}
        self._start: tuple[float, float] | None = None  # time and share done when this process began
        self._now = 0.0

    def update(self, step: int, values: Mapping[str, float], share_done: float | None = None) -> None:
        """Remember the values of `step`, and the share of the run that is done, in [0, 1]."""
        self.step = step
        self._values.update(values)
        if share_done is not None:
            self._now, self.share_done = time.monotonic(), min(share_done, 1.0)
            self._start = self._start or (self._now, self.share_done)

    def count(self) -> str:
        """Return the progress in words such as "step 500/8000"."""
        return f"step {self.step}" + (f"/{self.total_steps}" if self.total_steps else "")

    def seconds_left(self) -> float | None:
        """Return the seconds to the end at the pace of this process; None while the pace is unknown."""
        if self._start is None or self.share_done is None or self.share_done <= self._start[1]:
            return None
        return (self._now - self._start[0]) * (1.0 - self.share_done) / (self.share_done - self._start[1])

    def describe(self) -> str:
        """Return the values of the line, as far as they are known."""
        values = self._values
        left_out = {"train/loss"} if "train/nll" in values else set()
        found = [show(values[key]) for key, show in SHOWN.items() if key in values.keys() - left_out]
        if self.best in values:
            name = "valid loss" if self.best == "valid/loss" else self.best.removeprefix("valid/")
            found.append(f"{name} {values[self.best]:.2f}")
        return "  ".join(found)

    def text(self) -> str:
        """Return the whole line: "step 500/8000  loss 3.214  ...  left 12:30"."""
        left = self.seconds_left()
        parts = [self.count(), self.describe(), f"left {duration(left)}" if left is not None else ""]
        return "  ".join(filter(None, parts))


class WorkLine:
    """The work that goes on beside updates, such as a validation: how far it is, and its time left."""

    def __init__(self) -> None:
        self.work: Work | None = None
        self._started = self._told = self._now = 0.0

    def update(self, work: Work | None) -> bool:
        """Remember the progress; return whether plain lines should tell of it, once in `WORK_SECONDS`."""
        self._now = time.monotonic()
        if work is None or self.work is None or work.name != self.work.name:
            self._started = self._told = self._now
        self.work = work
        is_due = self._now - self._told >= WORK_SECONDS
        if is_due:
            self._told = self._now
        return is_due

    def count(self) -> str:
        """Return the progress in words such as "translating 320 of 500 lines"; without work, nothing."""
        if self.work is None:
            return ""
        total = f" of {self.work.total:,}" if self.work.total is not None else ""
        return f"{self.work.name} {self.work.done:,}{total} {self.work.unit}"

    def seconds_left(self) -> float | None:
        """Return the seconds to the end of the work at its pace; None while that is unknown."""
        if self.work is None or not self.work.share:
            return None
        left = (self._now - self._started) * (1.0 - self.work.share) / self.work.share
        return max(left - (time.monotonic() - self._now), 0.0)

    def text(self) -> str:
        """Return the whole line: "translating 320 of 500 lines  left 0:40"."""
        left = self.seconds_left()
        return self.count() + (f"  left {duration(left)}" if left is not None else "")


def validation_line(step: int, values: Mapping[str, float], is_best: bool) -> str:
    """Return the scores of a validation in one line; with two metrics it fits into 80 columns."""
    shown = [_score(name.removeprefix("valid/"), value) for name, value in values.items()]
    return "  ".join([f"validation at step {step}", *shown, *(["(best)"] if is_best else [])])


def _score(name: str, value: float) -> str:
    if name == "perplexity":
        return f"ppl {shown_perplexity(math.log(value))}"
    return f"{name} {value:.2f}"


def shown_perplexity(loss: float) -> str:
    """Return the perplexity exp(`loss`) as text, with as many digits as one reads."""
    value = math.exp(min(loss, 700.0))
    if value >= 1e6:
        return f"{value:.1e}"
    return f"{value:,.0f}" if value >= 1000.0 else f"{value:.1f}"


def duration(seconds: float) -> str:
    """Return a time in words such as 12:40 or 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
