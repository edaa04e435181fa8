"""What a folder of a stranger may hold: nothing that leads out of it or waits."""

from __future__ import annotations

import errno
import os
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from nmt.containment import require_contained
from nmt.errors import UserError

pytestmark = pytest.mark.fault(37)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run" / "data").mkdir(parents=True)
    (tmp_path / "run" / "file").touch()
    (tmp_path / "runs").mkdir()
    return tmp_path / "run"


@pytest.mark.parametrize(
    "target", ["../runs", "../runs/nothing", "data/../..", "/etc/passwd", "data/link/../../runs", "inner"]
)
def test_a_link_that_leads_out_is_named(folder: Path, target: str) -> None:
    """Also one to nothing, to a folder whose name begins alike, and one that leads out by another link."""
    (folder / "data" / "link").symlink_to(folder / "data")
    (folder / "inner").symlink_to("..")
    (folder / "data" / "out").symlink_to(folder / target)
    with pytest.raises(UserError, match=re.escape(f"is a link that leads out of {folder}, to ")):
        require_contained(folder)


def test_links_inside_and_links_to_the_folder_are_allowed(folder: Path, tmp_path: Path) -> None:
    (folder / "a").symlink_to("data")
    (folder / "b").symlink_to(folder / "file")
    (folder / "nowhere").symlink_to("data/nothing")
    (folder / "round").symlink_to("round")
    (folder / "hard").hardlink_to(folder / "file")
    (tmp_path / "link").symlink_to(folder)
    require_contained(folder)
    require_contained(tmp_path / "link")
    require_contained(tmp_path / "missing")


def test_what_cannot_be_listed_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing stops root, who may run the tests, from listing a folder."""
    scandir = os.scandir

    def forbidden(path: str) -> Any:
        if path.endswith("data"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", forbidden)
    with pytest.raises(UserError, match=r"run/data cannot be listed: Permission denied$"):
        require_contained(folder)


def test_what_would_be_waited_for_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(folder / "data" / "pipe")
    with pytest.raises(UserError, match=r"data/pipe is neither a file nor a folder; remove it"):
        require_contained(folder)
    (folder / "data" / "pipe").unlink()
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(folder)  # the name of a socket is short
        server.bind("socket")
        with pytest.raises(UserError, match=r"socket is neither a file nor a folder; remove it"):
            require_contained(folder)


def test_what_vanishes_meanwhile_is_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the draft of a part, which has another name a moment later."""
    os.mkfifo(folder / "draft")
    entries = list(os.scandir(folder))
    (folder / "draft").unlink()
    monkeypatch.setattr("nmt.containment._entries", lambda inside: iter(entries))
    require_contained(folder)
