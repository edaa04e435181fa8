"""Stages: folders of text that are made once, named by the content of what they are made of.

    ROOT/KIND-HASH/stage.json     the inputs, a report, and lines and SHA-256 of each file
    ROOT/KIND-HASH/...            the files
    ROOT/KIND-HASH.part/          a stage that is being made, with a lock against all other processes

The hash is that of the inputs: other inputs make another stage, in another folder. A stage appears whole, by
renaming; however a process ends that makes one, the next one that needs the stage goes on. Whenever a stage
is read, its inputs and its files are compared with stage.json, so that lines of one stage never stand beside
those of another.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nmt.containment import require_contained
from nmt.errors import InUse, TrainingStopped, UserError, tell
from nmt.files import FULL, digest, locked, misfits, publish, read_json, write_json

SEALED = {"inputs": dict, "report": dict, "files": dict[str, dict[str, str | int]]}
"""Fields of stage.json with their types."""

POLL_SECONDS = 1.0
"""Time between two looks at a stage that another process makes."""

Fill = Callable[[Path], dict[str, Any]]
"""A function that writes the files of a stage into a folder, which may hold some of an earlier, killed
process, and returns a report about them."""


@dataclass(frozen=True)
class StageFolder:
    """A stage that is there, or is to be made."""

    root: Path
    kind: str
    inputs: dict[str, Any]
    """All that the files depend on, as JSON."""
    files: Sequence[str]
    """Names of the files."""
    reported: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the report with their types, as `misfits` knows them."""

    @property
    def folder(self) -> Path:
        """The folder of the finished stage."""
        text = json.dumps([self.kind, self.inputs, *self.files], sort_keys=True)
        return self.root / f"{self.kind}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    @property
    def exists(self) -> bool:
        """Whether the stage is finished."""
        return self.folder.is_dir()

    def made(self, fill: Fill) -> dict[str, Any]:
        """Make the stage unless it is there, or wait for another process that makes it; return its report.

        Raises:
            UserError: the stage is damaged, or the folder cannot be written.
            TrainingStopped: the disk is full.
        """
        draft, has_told = self.folder.with_name(f"{self.folder.name}.part"), False
        while not self.exists:
            with ExitStack() as lock:
                try:
                    lock.enter_context(locked(draft, "choose another distil.folder=..."))
                except InUse as error:
                    if not has_told:
                        tell(f"waiting, as {error}")
                    has_told = True
                    time.sleep(POLL_SECONDS)
                    continue
                if not self.exists:  # another process may have been faster
                    self._make(draft, fill)
        return self.report()

    def _make(self, draft: Path, fill: Fill) -> None:
        require_contained(draft)
        report = fill(draft)
        for path in draft.iterdir():
            if path.name not in (*self.files, ".lock"):  # of a killed process
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        sums = {name: {"lines": _count(draft / name), "sha256": digest(draft / name)} for name in self.files}
        write_json(draft / "stage.json", {"inputs": self.inputs, "report": report, "files": sums})
        try:
            publish(draft, self.folder)
        except OSError as error:
            if error.errno in FULL:
                raise TrainingStopped(f"cannot write {self.folder}: the disk is full") from error
            raise UserError(f"cannot write {self.folder}: {error.strerror}") from error

    def report(self) -> dict[str, Any]:
        """Return the report of the finished stage; raise `UserError` when the stage is not as it was made."""
        require_contained(self.folder)
        sealed = read_json(self.folder / "stage.json", SEALED)
        way_out = f"remove the folder {self.folder}, and the same command makes it anew"
        if sealed["inputs"] != self.inputs:
            raise UserError(f"{self.folder} was made of something else, by its stage.json; {way_out}")
        if wrong := misfits(sealed["report"], self.reported):
            raise UserError(f"{self.folder}/stage.json is damaged: {'; '.join(wrong)}; {way_out}")
        for name in self.files:
            try:
                found = digest(self.folder / name)
            except OSError as error:
                raise UserError(
                    f"{self.folder / name} cannot be read: {error.strerror}; {way_out}"
                ) from error
            known = str(sealed["files"].get(name, {}).get("sha256"))
            if found != known:
                raise UserError(
                    f"{self.folder / name} has changed since it was made: its SHA-256 is {found[:16]}..., "
                    f"but stage.json has {known[:16]!r}...; {way_out}"
                )
        report: dict[str, Any] = sealed["report"]
        return report


def _count(file: Path) -> int:
    with file.open("rb") as lines:
        return sum(block.count(b"\n") for block in iter(lambda: lines.read(1 << 20), b""))
