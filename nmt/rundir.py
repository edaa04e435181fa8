"""A run directory: everything that belongs to one training, so that it can be moved and shared.

    config.yaml  environment.json  tokenizer*.model  data/  checkpoints/  metrics.jsonl  tensorboard/
    hypotheses/  results.json  train.log

Knows files, not models: what is in a checkpoint belongs to `nmt.checkpoint`, what is in config.yaml to
`nmt.config`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from nmt import __version__
from nmt.checkpoint import CheckpointStore
from nmt.config import TrainConfig, load_config, refuse_difference, save_config
from nmt.corpus import DataConfig, ParallelText, Split
from nmt.errors import UserError
from nmt.evaluate import write_lines
from nmt.tokenizer import Tokenizer

PACKAGES = (
    "torch",
    "numpy",
    "sentencepiece",
    "sacrebleu",
    "datasets",
    "hydra-core",
    "omegaconf",
    "safetensors",
)


class RunDirectory:
    """The files of one run."""

    def __init__(self, path: Path):
        self.path = path
        self.config_file = path / "config.yaml"
        self.results_file = path / "results.json"
        self.hypotheses = path / "hypotheses"
        self._data = path / "data"

    @property
    def checkpoints(self) -> CheckpointStore:
        """The checkpoints of this run."""
        return CheckpointStore(self.path / "checkpoints")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other process from training in this directory.

        Raises:
            UserError: another process does, or the directory cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            handle = open(self.path / ".lock", "a+", encoding="utf-8")  # noqa: SIM115 - closed below, released with it
        except OSError as error:
            raise UserError(
                f"cannot write to the run directory {self.path}: {error.strerror}; choose another run=..."
            ) from error
        with handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                handle.seek(0)
                owner = handle.read().strip() or "another process"
                raise UserError(
                    f"{self.path} is in use by {owner}; wait for it, or choose another run=..."
                ) from None
            handle.truncate(0)
            handle.write(f"process {os.getpid()} on {socket.gethostname()}")
            handle.flush()
            yield

    def claim(self, cfg: TrainConfig) -> bool:
        """Store `cfg`, or check that the directory is of the same run; return whether it is unchanged.

        Raises:
            UserError: the directory belongs to a different config (shows the difference).
        """
        known = self.config_file.exists()
        unchanged = known and refuse_difference(load_config(self.config_file), cfg, self.path) == []
        if not unchanged:
            save_config(cfg, self.config_file)
        return unchanged

    def write_environment(self, device: torch.device, precision: str) -> None:
        """Record what this process runs on."""
        facts = {
            "command": sys.argv,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "packages": {"nmt": __version__} | {name: metadata.version(name) for name in PACKAGES},
            "device": torch.cuda.get_device_name(device)
            if device.type == "cuda"
            else platform.processor() or "cpu",
            "threads": torch.get_num_threads(),
            "precision": precision,
        }
        write_json(self.path / "environment.json", facts)

    def tokenizer(self) -> Tokenizer:
        """The tokenizer of this run; raise `UserError` when it has none."""
        return Tokenizer.load(self.path)

    def has_tokenizer(self) -> bool:
        """Whether the tokenizer has been trained."""
        return Tokenizer.exists(self.path)

    def keep_text(self, split: Split, text: ParallelText, data: DataConfig) -> None:
        """Keep a copy of an evaluation split, raw, so that the run can be scored without its corpus."""
        for file, lines in zip(self._sides(split, data), (text.src, text.tgt), strict=True):
            write_lines(file, lines)

    def kept_text(self, split: Split, data: DataConfig) -> ParallelText | None:
        """The copy of an evaluation split, or None when this run keeps none."""
        sides = self._sides(split, data)
        if not all(side.exists() for side in sides):
            return None
        return ParallelText(*(side.read_bytes().decode().split("\n")[:-1] for side in sides))

    def _sides(self, split: Split, data: DataConfig) -> list[Path]:
        return [self._data / f"{split.value}.{lang}" for lang in (data.src, data.tgt)]

    def require_same_data(self, text: ParallelText) -> None:
        """Remember what the run trains on, or check that it is still the same.

        Raises:
            UserError: the training split has changed since the run began.
        """
        digest = hashlib.sha256()
        for side in (text.src, text.tgt):
            digest.update("\n".join(side).encode() + b"\0")
        facts = {"training_pairs": len(text), "sha256": digest.hexdigest()}
        self._data.mkdir(exist_ok=True)
        file = self._data / "train.json"
        if not file.exists():
            write_json(file, facts)
        elif (stored := read_json(file)) != facts:
            raise UserError(
                f"the training data of {self.path} has changed since the run began: "
                f"{stored['training_pairs']:,} pairs then, "
                f"{len(text):,} now, with other content; restore the data, or start anew with another run=..."
            )

    def results(self) -> dict[str, Any] | None:
        """What the finished run scored, or None."""
        return read_json(self.results_file) if self.results_file.exists() else None

    def write_results(self, results: dict[str, Any]) -> None:
        """Store what the finished run scored."""
        write_json(self.results_file, results)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; raise `UserError` when it is damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged: it holds no JSON object")
    return content


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON object so that a reader sees the old one or the new one, never half of it."""
    temporary = path.with_name(f".tmp-{path.name}")
    temporary.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    temporary.replace(path)
