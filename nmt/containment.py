"""Folders that may come from a stranger: no name in them leads out of them.

A run directory may be a download. A link in it that leads elsewhere would let whoever made it choose which
file of the user is read or overwritten, and a pipe in place of a file would be waited for without end.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from nmt.errors import UserError


def require_contained(folder: Path) -> None:
    """Raise `UserError` for a link in `folder` that leads out of it, or for a pipe, socket or device.

    `folder` itself may be a link or missing. Links to places inside, and hard links, are allowed. What cannot
    be listed is refused, too.
    """
    inside = os.path.realpath(folder)
    for entry in _entries(inside):
        if not entry.is_symlink():
            known = entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False)
            if not known and os.path.lexists(entry.path):  # else it has vanished meanwhile
                raise UserError(f"{entry.path} is neither a file nor a folder; remove it")
            continue
        target = os.path.realpath(entry.path)
        if os.path.commonpath([inside, target]) != inside:
            raise UserError(
                f"{entry.path} is a link that leads out of {folder}, to {target}; nothing is read or written "
                "through it; remove the link, or put a copy of what it leads to in its place"
            )


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    """Yield what is in `folder` and in the folders below it; one that vanishes meanwhile is left out."""
    unread = [folder]
    while unread:
        path = unread.pop()
        try:
            entries = list(os.scandir(path))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise UserError(f"{path} cannot be listed: {error.strerror}") from error
        unread += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        yield from entries
