"""Cores that other programs use are told of once."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
import torch

from nmt.training import crowding
from nmt.training.crowding import Crowding, seconds_without_core

CPU = torch.device("cpu")


def watched(
    monkeypatch: pytest.MonkeyPatch, waits: list[float], threads: int = 2, device: torch.device = CPU
) -> list[str]:
    """Return what is told after looks, a second apart, between which all threads waited so long together."""
    now, waited, told = 0.0, 0.0, list[str]()
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(crowding, "cores_allowed", lambda: 2)
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    monkeypatch.setattr(crowding, "seconds_without_core", lambda: waited)
    watch = Crowding(device)
    for seconds in waits:
        now, waited = now + 1.0, waited + seconds
        watch.look(told.append)
    return told


def test_what_lasts_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert watched(monkeypatch, [0.7, 0.1, 0.7, 0.2]) == []
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    (told,) = watched(monkeypatch, [0.1, 0.7, 0.8, 0.7, 0.7])
    assert "each of 2 threads had none 40% of the time" in told
    assert "runtime.threads=1 is perhaps faster, or GOMP_SPINCOUNT=1000" in told
    monkeypatch.setenv("GOMP_SPINCOUNT", "1000")
    assert watched(monkeypatch, [0.7, 0.8])[0].endswith("runtime.threads=1 is perhaps faster")


def test_one_thread_waits_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert watched(monkeypatch, [0.9] * 4, threads=1) == []
    assert watched(monkeypatch, [0.9] * 4, device=torch.device("meta")) == []


def test_more_threads_than_cores_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    assert watched(monkeypatch, [2.9] * 4, threads=3) == []


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="Linux counts the time without a core")
def test_threads_that_want_one_core_wait() -> None:
    cores = os.sched_getaffinity(0)
    end, before = time.perf_counter() + 0.5, seconds_without_core()

    def compute() -> None:
        os.sched_setaffinity(0, {min(cores)})
        matrix = torch.ones(300, 300)
        while time.perf_counter() < end:
            torch.mm(matrix, matrix)  # without the lock of the interpreter

    threads = [threading.Thread(target=compute) for _ in range(3)]
    for thread in threads:
        thread.start()
    found = 0.0
    while time.perf_counter() < end - 0.1:
        time.sleep(0.05)
        found = max(found, seconds_without_core() - before)
    for thread in threads:
        thread.join()
    assert found > 0.2
