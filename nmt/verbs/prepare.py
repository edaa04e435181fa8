"""The wiring of `nmt prepare`: what the first start of a training does with its data, ahead of the training.

All of it goes to the cache, where `nmt train` with the same data, tokenizer and seed finds it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from nmt.config.composed import Composed
from nmt.config.roots import TrainConfig
from nmt.data.cleaning.filtered_files import files_of
from nmt.data.workers import several_processes
from nmt.disk_cache import cache_dir, can_be_written, required
from nmt.errors import Log, UserError
from nmt.files import path_of
from nmt.runs.directory import RunDirectory
from nmt.runs.scored_sets import keep_sets
from nmt.runs.start import opened_start
from nmt.runs.tasks import TASKS
from nmt.runs.training_data import prepare
from nmt.runtime import cores_allowed
from nmt.signals import StopRequest
from nmt.temporary import temporary_folder
from nmt.training.tracking.configs import TrackingConfig
from nmt.training.tracking.sinks import TrackedRun, Tracker
from nmt.verbs.configs import PrepareConfig


def run(trial: Composed) -> dict[str, Any]:
    """Fill the cache with all that a training with this config needs of its data."""
    known = trial.to_config(PrepareConfig)
    filtered = path_of(known.prepare.filtered) if known.prepare.filtered else None
    if filtered is not None:
        files_of(known.data, filtered)  # refused before the data is read
    with (
        several_processes(known.prepare.workers or cores_allowed()),
        temporary_folder() as folder,
        Tracker(TrackedRun(folder), TrackingConfig(sinks=["display"])) as tracker,
    ):
        cfg, _ = trial.to_training()
        with StopRequest(cfg.runtime.grace_seconds):
            prepare_data(cfg, RunDirectory(folder / "run"), tracker.message, filtered)
    print(f"prepared    {cache_dir()}")
    return {}


def prepare_data(cfg: TrainConfig, directory: RunDirectory, log: Log, filtered: Path | None) -> None:
    """Do what `nmt train` does before the first update; what is filtered goes to a folder, too, if any.

    Raises:
        UserError: the data cannot be read, or the cache cannot be written.
    """
    if not can_be_written():
        raise UserError(f"the cache {cache_dir()} cannot be written; set NMT_CACHE to a folder that can be")
    if cfg.runtime.threads:
        torch.set_num_threads(cfg.runtime.threads)
    start = opened_start(cfg)
    examples = TASKS[cfg.task].examples(cfg)
    examples.filtered = filtered
    directory.path.mkdir()
    with required():
        prepare(cfg, directory, log, start, examples)
        keep_sets(directory, cfg, log)
    if cfg.tokenizer.sampling_alpha:
        log(
            f"tokenizer.sampling_alpha={cfg.tokenizer.sampling_alpha:g} segments the pairs anew for each "
            "epoch, during the training: no ids are prepared"
        )
    elif cfg.data.is_augmented:
        log("data.augment modifies the pairs anew for each epoch, during the training: no ids are prepared")
