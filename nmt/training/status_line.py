"""The status of a training in one line of words: progress, loss, score and time left.

Values have the names under which they are logged. Knows no terminal.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

SHOWN: dict[str, Callable[[float], str]] = {
    "train/loss": "loss {:.3f}".format,
    "train/nll": lambda nll: f"ppl {shown_perplexity(nll)}",
    "train/lr": "lr {:.1e}".format,
    "train/tgt_tokens_per_second": "{:,.0f} tok/s".format,
}
"""Name of a value -> its words in the line, which ends with the validation score."""


class StatusLine:
    """The newest values of a training, and its time left.

    `best_metric` names the one validation score that the line shows; `total_steps` is the limit of the
    run, if it has one in steps.
    """

    def __init__(self, best_metric: str, step: int = 0, total_steps: int | None = None):
        self.best = f"valid/{best_metric}"
        self.step = step
        self.total_steps = total_steps
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
        found = [show(values[key]) for key, show in SHOWN.items() if key in values]
        if self.best in values:
            name = "valid loss" if self.best == "valid/loss" else self.best.removeprefix("valid/")
            found.append(f"{name} {values[self.best]:.2f}")
        return "  ".join(found)

    def text(self) -> str:
        """Return the whole line: "step 500/8000  loss 3.214  ...  left 12:30"."""
        left = self.seconds_left()
        parts = [self.count(), self.describe(), f"left {duration(left)}" if left is not None else ""]
        return "  ".join(filter(None, parts))


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
