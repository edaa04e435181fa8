"""A run directory: all files of one training, so that a run can be moved and shared.

    config.yaml  environment.json  tokenizer*.model  data/  checkpoints/  metrics.jsonl  tensorboard/
    hypotheses/  results.json  status.json  train.log

Knows files, not models: `nmt.training.checkpoint` knows the content of a checkpoint, and `nmt.config.stored`
that of config.yaml.
"""

from __future__ import annotations

import platform
import sys
from contextlib import AbstractContextManager
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from nmt import __version__
from nmt.config.roots import TrainConfig
from nmt.config.stored import load_config, refuse_difference, save_config
from nmt.data.pairs import DataConfig, ParallelText, Split
from nmt.data.tokenizer import Tokenizer
from nmt.data.training_split import TrainingText
from nmt.errors import UserError
from nmt.files import locked, read_json, write_json, write_lines, written_lines
from nmt.training.checkpoint import CheckpointStore

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
        self._train_digest = self._data / "train.json"

    @property
    def checkpoints(self) -> CheckpointStore:
        """The checkpoints of this run."""
        return CheckpointStore(self.path / "checkpoints")

    def locked(self) -> AbstractContextManager[None]:
        """Lock the directory against all other trainings; see `files.locked`."""
        return locked(self.path, "choose another run=...")

    def claim(self, cfg: TrainConfig) -> bool:
        """Return whether the directory holds a run of exactly `cfg`; make it one if nothing is trained yet.

        Raises:
            UserError: the directory belongs to a run with another config (shows the difference), or holds
                a tokenizer or checkpoints but no config.yaml, and so may not be a run.
        """
        trained = bool(self.checkpoints.steps())
        if not self.config_file.exists():
            if trained or Tokenizer.exists(self.path):
                raise UserError(
                    f"{self.path} holds {'checkpoints' if trained else 'a tokenizer'} but no config.yaml, "
                    "so it is not a run directory; nothing there was touched; choose another run=..."
                )
        elif trained:
            return not refuse_difference(load_config(self.config_file), cfg, self.path)
        for leftover in (self._train_digest, *self.path.glob("tokenizer*.model")):  # of a start that failed
            leftover.unlink(missing_ok=True)
        save_config(cfg, self.config_file)
        return False

    def adopt(self, cfg: TrainConfig) -> None:
        """Store `cfg` as the config of the run, and remove the results of an earlier, shorter training."""
        self.results_file.unlink(missing_ok=True)
        save_config(cfg, self.config_file)

    def write_environment(self, device: torch.device, precision: str) -> None:
        """Record the command, the versions of packages, and the device of this process."""
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

    def keep_text(self, split: Split, text: ParallelText, data: DataConfig) -> None:
        """Copy an evaluation split, as it was read, so that the run can be scored without its corpus.

        Raises:
            UserError: a run with checkpoints has a copy of other pairs.
        """
        kept = self.kept_text(split, data)
        if kept is not None and self.checkpoints.steps() and kept != text:
            raise UserError(
                f"the {split.value} data of {self.path} has changed since the run began; "
                "restore it, or start anew with another run=..."
            )
        if kept == text:  # perhaps written by another process of the same training
            return
        for file, lines in zip(self._sides(split, data), (text.src, text.tgt), strict=True):
            write_lines(file, lines)

    def kept_text(self, split: Split, data: DataConfig) -> ParallelText | None:
        """Return the copy of an evaluation split, or None when there is none."""
        sides = self._sides(split, data)
        if not all(side.exists() for side in sides):
            return None
        return ParallelText(*map(written_lines, sides))

    def _sides(self, split: Split, data: DataConfig) -> list[Path]:
        return [self._data / f"{split.value}.{lang}" for lang in (data.src, data.tgt)]

    def require_same_data(self, text: TrainingText) -> None:
        """Store a hash of the training split, or raise `UserError` when it differs from the stored one."""
        digest = {"training_pairs": len(text), "sha256": text.sha256}
        if not self._train_digest.exists():
            write_json(self._train_digest, digest)
        elif (stored := read_json(self._train_digest)) != digest:
            raise UserError(
                f"the training data of {self.path} has changed since the run began: "
                f"{stored['training_pairs']:,} pairs then, {len(text):,} now, with other content; "
                "restore the data, or start anew with another run=..."
            )

    def results(self) -> dict[str, Any] | None:
        """Return the scores of the finished run, or None while it is not finished."""
        return read_json(self.results_file) if self.results_file.exists() else None
