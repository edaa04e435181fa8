"""Temporary folders end with their process, however it ends; those of the living and all else stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nmt.disk_cache import open_entry, write_entry
from nmt.temporary import LOCK, remove_abandoned, temporary_folder

HOLD = """
import sys
from pathlib import Path
from nmt.temporary import temporary_folder
with temporary_folder(Path(sys.argv[1])) as folder:
    (folder / "ids").write_bytes(bytes(1000))
    print(folder, flush=True)
    sys.stdin.read()
"""


def holder(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    """Start a process that holds a temporary folder in `parent`."""
    command = [sys.executable, "-c", HOLD, str(parent)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_folder_is_removed_with_its_block(tmp_path: Path) -> None:
    with temporary_folder(tmp_path) as folder:
        assert list(folder.iterdir()) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.fault(3)
def test_the_folder_of_a_killed_process_is_removed_by_the_next(tmp_path: Path) -> None:
    process, folder = holder(tmp_path)
    with temporary_folder(tmp_path) as own:
        remove_abandoned(tmp_path)
        assert (folder / "ids").stat().st_size == 1000  # its process is alive
        assert own.is_dir()
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert folder.is_dir()
    with temporary_folder(tmp_path) as own:
        assert [path.name for path in tmp_path.iterdir()] == [own.parent.name]


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    """A folder of the user, one that is about to be locked, and what a link leads to."""
    precious = tmp_path / "elsewhere"
    for folder in (tmp_path / "nmt-demo", tmp_path / "nmt-new", precious):
        folder.mkdir()
        (folder / "file").write_text("precious")
    (tmp_path / "nmt-new" / f"{LOCK}.new").touch()
    (precious / LOCK).touch()
    (tmp_path / "nmt-link").symlink_to(precious)
    remove_abandoned(tmp_path)
    assert len(list(tmp_path.rglob("file"))) == 3


def test_a_draft_of_the_cache_is_removed_too(tmp_path: Path) -> None:
    process, _ = holder(tmp_path)
    process.kill()
    process.communicate()
    assert write_entry(tmp_path / "entry", lambda draft: {"count": 1})
    assert open_entry(tmp_path / "entry") == {"count": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["entry"]
