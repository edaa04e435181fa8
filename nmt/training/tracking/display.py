"""The display of a training on stderr: in a terminal two lines that redraw themselves, else plain lines.

The second line shows the values of the model or, while updates wait for it, the work that goes on.
"""

from __future__ import annotations

import os

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from nmt.training.tracking.status_line import StatusLine, WorkLine, duration

REFRESHES_PER_SECOND = 2  # each costs some milliseconds of a core that training wants


class Screen:
    """The console on stderr; in a terminal `status` is redrawn below what is printed."""

    def __init__(self, status: StatusLine, work: WorkLine):
        self.status, self.work = status, work
        self.console = Console(stderr=True)
        self.live: Live | None = None
        if is_live(self.console):
            self.live = Live(
                get_renderable=self._render,
                console=self.console,
                refresh_per_second=REFRESHES_PER_SECOND,
                redirect_stdout=False,  # stdout may be a file, and what is printed there belongs in it
            )
            self.live.start()

    def print(self, line: str) -> None:
        """Print a line literally, above the status."""
        # Lines are broken here and not by the terminal where a live display counts the rows to redraw.
        self.console.print(Text(line), soft_wrap=self.live is None)

    def close(self) -> None:
        """Leave the status as it is and give the cursor back."""
        if self.live is not None:
            self.live.stop()

    def _render(self) -> RenderableType:
        """Return two lines, so that 80 columns are enough: how far the run is, and what the model does."""
        status, work = self.status, self.work
        first = _bar(status.count(), status.share_done, status.seconds_left())
        if work.work is not None:
            return Group(first, _bar(work.count(), work.work.share or None, work.seconds_left()))
        return Group(first, Text(status.describe(), no_wrap=True, overflow="ellipsis"))


def _bar(count: str, share: float | None, left: float | None) -> Table:
    """Return one line: words, a bar that moves where the share is unknown, and the time left."""
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True)
    grid.add_row(
        Text(count),
        ProgressBar(total=1.0, completed=share or 0.0, pulse=share is None),
        Text(f"{duration(left)} left" if left is not None else ""),
    )
    return grid


def is_live(console: Console) -> bool:
    """Return whether the display may redraw itself: not in a pipe, a file, a dumb terminal or a CI log."""
    in_ci = os.environ.get("CI", "").lower() not in ("", "0", "false")
    return console.is_terminal and not console.is_dumb_terminal and not in_ci
