"""The number of tokens in a batch that suits the memory and the speed of the machine.

The number doubles while the largest batches of an epoch fit into memory; then the gap is halved. On a GPU
memory alone decides. A CPU has no error to wait for, as Linux ends a process that takes too much: a trial is
left out that would take more than a share of what is available, judged by the memory of the one before, and
the number grows only while larger batches are faster. Knows no model and no batch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from nmt.errors import UserError
from nmt.training.trainer_config import AUTO

MULTIPLE = 256
"""Divisor of all numbers that are tried and found."""
MARGIN = 0.85
"""Share of the largest number that fits, where memory is the limit: batches of later epochs vary."""
HALVINGS = 4
"""Trials between a number that fits and twice that number."""
USUAL_TOKENS = 4096
"""Number up to which memory alone decides: smaller batches may be as fast, but train worse."""
GAIN = 1.05
"""How many times as fast larger batches must be."""
PATIENCE = 2
"""Doublings in a row without that gain that end the search."""
TIMED_SECONDS = 0.5
"""Least time in which a speed is measured."""
MOST_SECONDS = 60.0
"""Time of trials after which the number is not doubled any more."""
MOST_TOKENS = 1 << 24
"""Largest number that is tried."""
SHARE = 0.5
"""Share of the memory available to this machine's processes that the trials may take on CPU."""
PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


class Trial(NamedTuple):
    """What came of the largest batches of one size."""

    fits: bool
    is_whole: bool = False
    """Whether one batch holds all pairs of the epoch."""
    seconds: float = 0.0
    speed: float = 0.0
    """Target tokens per second."""


class Found(NamedTuple):
    """The number of tokens that is chosen, and why no more, in words."""

    size: int
    reason: str


def search(trial: Callable[[int], Trial], smallest: int, *, until_no_faster: bool) -> Found:
    """Return the number of tokens to take, at least `smallest`, rounded up to a `MULTIPLE`.

    `until_no_faster` ends the search where larger batches do not train faster; `trial` tries one number.
    """
    size = smallest = -(-smallest // MULTIPLE) * MULTIPLE
    trial(size)  # what is done only once takes its time here
    done = trial(size)
    if not done.fits:
        return Found(smallest, "larger batches do not fit into memory")
    trials, enough = {size: done}, size
    while not trials[size].is_whole and size < min(MOST_TOKENS, enough << PATIENCE):
        if sum(one.seconds for one in trials.values()) > MOST_SECONDS:
            return Found(enough, f"the trials have taken more than {MOST_SECONDS:.0f} seconds")
        done = trial(2 * size)
        if not done.fits:
            break
        size *= 2
        trials[size] = done
        enough = _enough(trials) if until_no_faster else size
    if enough < size:
        return Found(enough, "larger batches do not train faster")
    if not done.fits:
        return _between(trial, size, 2 * size, smallest)
    return Found(size, "one batch holds all pairs of an epoch" if done.is_whole else "no more is tried")


def _enough(trials: dict[int, Trial]) -> int:
    """Return the smallest size nearly as fast as the fastest, of `USUAL_TOKENS` on; or the largest of all."""
    speeds = {size: trial.speed for size, trial in trials.items() if size >= USUAL_TOKENS}
    fast = (size for size, speed in speeds.items() if speed * GAIN >= max(speeds.values()))
    return next(fast, max(trials))


def _between(trial: Callable[[int], Trial], fits: int, too_large: int, smallest: int) -> Found:
    """Return a safe share of the largest size that fits, which is from `fits` to below `too_large`."""
    for _ in range(HALVINGS):
        middle = (fits + too_large) // 2 // MULTIPLE * MULTIPLE
        if middle == fits:
            break
        if trial(middle).fits:
            fits = middle
        else:
            too_large = middle
    chosen = max(smallest, int(MARGIN * fits) // MULTIPLE * MULTIPLE)
    return Found(chosen, f"{fits:,} fit into memory, {too_large:,} do not")


class Room:
    """The memory of the machine that trials may take, on a CPU."""

    def __init__(self) -> None:
        self._most = SHARE * available() / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # of torchrun
        self._before = _status("VmRSS")
        self._per_token = 0.0
        self._reset()

    def holds(self, size: int) -> bool:
        """Return whether a trial of `size` tokens is safe, judged by the trial before."""
        return size * self._per_token <= self._most

    def measure(self, size: int) -> None:
        """Note how much memory a trial of `size` tokens has taken."""
        self._per_token = max(0, _status("VmHWM") - self._before) / size
        self._reset()

    def _reset(self) -> None:
        """Forget the largest memory so far; where that is forbidden, later measurements are too large."""
        with suppress(OSError):
            (PROC / "self/clear_refs").write_text("5")


def available() -> int:
    """Return the bytes that processes can still take: of the machine, or of the container if it has fewer.

    Raises:
        UserError: the system does not say.
    """
    free = [_kilobytes(PROC / "meminfo", "MemAvailable")]
    for line in _text(PROC / "self/cgroup").splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers in ("", "memory"):
            own = CGROUPS / controllers / name.lstrip("/")
            free += [room for folder in (own, *own.parents) if (room := _room(folder)) is not None]
    return min(free)


def _room(group: Path) -> int | None:
    """Return the bytes that a control group, of either version, has left; None: it has no limit."""
    for limit, usage in (("max", "current"), ("limit_in_bytes", "usage_in_bytes")):
        most, used = _text(group / f"memory.{limit}").strip(), _text(group / f"memory.{usage}").strip()
        if most.isdecimal() and used.isdecimal():
            stat = _text(group / "memory.stat")  # which may count the whole tree after the group itself
            cache = re.findall(r"^(?:total_)?inactive_file (\d+)$", stat, re.MULTILINE)
            return int(most) - int(used) + int(cache[-1] if cache else 0)
    return None


def _status(name: str) -> int:
    return _kilobytes(PROC / "self/status", name)


def _kilobytes(file: Path, name: str) -> int:
    """Return the bytes in the line `name` of a file of the system that counts in kB."""
    found = re.search(rf"^{name}:\s+(\d+) kB$", _text(file), re.MULTILINE)
    if not found:
        raise UserError(
            f"trainer.batch_tokens={AUTO} needs {file} of Linux to see how much memory there is; "
            "set trainer.batch_tokens to a number"
        )
    return int(found[1]) << 10


def _text(file: Path) -> str:
    """Return the content of a small file, or nothing where there is no such file."""
    with suppress(OSError):
        return file.read_text()
    return ""
