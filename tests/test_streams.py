"""Standard streams that are closed or full: one message or a quiet end, and an honest exit code."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")


def shell(command: str) -> subprocess.CompletedProcess[str]:
    """Run `command` in a shell, with `nmt` as a command of it."""
    nmt = f'nmt() {{ {shlex.quote(sys.executable)} -m nmt "$@"; }}'
    return subprocess.run(
        ["bash", "-c", f"{nmt}; {command}"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("command", "code", "err"),
    [
        ("nmt --help >&-", 2, "error: standard output cannot be written: it is closed\n"),
        ("nmt --help <&-", 0, ""),
        ("nmt --help 2>&-", 0, ""),
        ("nmt --help <&- >&- 2>&-", 2, ""),
        ("nmt trian 2>&-", 2, ""),
        ("nmt trian >&-", 2, "error: there is no verb 'trian'; did you mean 'train'?"),
        pytest.param(
            "nmt --help > /dev/full",
            2,
            "error: standard output cannot be written: No space left on device\n",
            marks=needs_full,
        ),
        pytest.param("nmt trian 2> /dev/full", 2, "", marks=needs_full),
        pytest.param("nmt --help > /dev/full 2> /dev/full", 2, "", marks=needs_full),
        ("nmt --help | true; exit ${PIPESTATUS[0]}", None, ""),
    ],
)
def test_a_stream_that_fails_is_no_traceback(command: str, code: int | None, err: str) -> None:
    done = shell(command)
    assert done.returncode == code if code is not None else done.returncode in (0, 141)
    assert done.stderr.startswith(err)
    assert done.stderr.count("\n") == (1 if err else 0)


def test_no_file_takes_the_place_of_a_closed_stream(tmp_path: Path) -> None:
    """A file that got descriptor 1 or 2 would receive what libraries print."""
    script = (
        "import sys, os\n"
        "from nmt.streams import standard_streams\n"
        "with standard_streams():\n"
        f"    file = open({str(tmp_path / 'file')!r}, 'w')\n"
        "    os.write(2, b'a remark of a library')\n"
    )
    done = subprocess.run(
        ["bash", "-c", f'{shlex.quote(sys.executable)} -c "$0" <&- >&- 2>&-', script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
    )
    assert done.returncode == 0
    assert (tmp_path / "file").read_text() == ""
