"""Folders for the time of one block, also when the process is killed in the block.

Whoever makes such a folder holds a lock in it, which ends with the process however the process ends. The next
process that needs a folder in the same place removes those whose lock is free. Folders of other users and of
living processes stay, and so does everything that has no lock of this module in it. Where the file system
knows no locks, nothing is removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "nmt-"
LOCK = ".lock-of-temporary-folder"


@contextlib.contextmanager
def temporary_folder(parent: Path | None = None) -> Iterator[Path]:
    """Make an empty folder in `parent`, by default that of the system, and remove it with the block.

    Raises:
        OSError: the folder cannot be made.
    """
    parent = parent or Path(tempfile.gettempdir())
    remove_abandoned(parent)
    outer = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    try:
        with (outer / f"{LOCK}.new").open("w") as lock:
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.rename(lock.name, outer / LOCK)  # only now, so that no one takes it for abandoned
            (outer / "folder").mkdir()
            yield outer / "folder"
    finally:
        shutil.rmtree(outer, ignore_errors=True)


def remove_abandoned(parent: Path) -> None:
    """Remove the temporary folders of killed processes of this user in `parent`."""
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # belongs to somebody, or vanished
            if folder.lstat().st_uid == os.getuid() and not folder.is_symlink():
                _remove_unlocked(folder)


def _remove_unlocked(folder: Path) -> None:
    """Remove `folder`; raise `OSError` when there is no lock in it, or a living process holds the lock."""
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
