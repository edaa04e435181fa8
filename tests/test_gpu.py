"""Code for GPUs on machines that have none: see `tests/fake_gpu.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

QUICK = "plain or bf16 or wrong"
"""One case of each family, and what is no case of a model."""


@pytest.mark.parametrize("chosen", [QUICK, pytest.param("", marks=pytest.mark.slow)])
def test_what_runs_on_a_gpu_stays_there(chosen: str) -> None:
    """In a process of its own: a device that is made up cannot be taken back."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        chosen,
        "tests/fake_gpu.py",
    ]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout
