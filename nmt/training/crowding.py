"""A training that crawls because other programs use its cores, recognised and told.

Threads that share the work of a product wait for the last of them, thousands of times a second. Where another
program has one of the cores, all wait with it. Linux counts how long a thread that could run had no core.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch

from nmt.errors import Log
from nmt.runtime import cores_allowed

MUCH = 0.15
"""Share of the time without a core, of each thread that computes, from which it is told."""
IN_A_ROW = 2
"""Windows that must be so, one after the other."""


def seconds_without_core() -> float:
    """Return how long all threads of the process could run and had no core; 0 where nobody counts it."""
    waited = 0
    for file in Path("/proc/self/task").glob("*/schedstat"):
        try:
            waited += int(file.read_text().split()[1])
        except (OSError, ValueError, IndexError):  # a thread that has ended
            continue
    return waited / 1e9


class Crowding:
    """Looks from time to time at how long threads had no core; tells once when it is much."""

    def __init__(self, device: torch.device):
        self._threads = torch.get_num_threads() if device.type == "cpu" else 1
        self._in_a_row = 0
        self._last = time.perf_counter(), seconds_without_core()

    def look(self, log: Log) -> None:
        """Look at the time since the last call, unless one thread computes, or more than there are cores."""
        if not 1 < self._threads <= cores_allowed() or self._in_a_row == IN_A_ROW:
            return
        (began, before), now = self._last, (time.perf_counter(), seconds_without_core())
        self._last = now
        share = (now[1] - before) / max((now[0] - began) * self._threads, 1e-9)
        self._in_a_row = self._in_a_row + 1 if share > MUCH else 0
        if self._in_a_row == IN_A_ROW:
            way_out = f"runtime.threads={self._threads - 1} is perhaps faster"
            if "GOMP_SPINCOUNT" not in os.environ:
                way_out += ", or GOMP_SPINCOUNT=1000 in the environment: shorter turns of waiting"
            log(
                f"other processes use the cores: each of {self._threads} threads had none {share:.0%} of the "
                f"time, and all wait for the last; {way_out}"
            )
