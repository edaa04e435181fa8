"""The wiring of `nmt train`: the training, or what `debug=...` and `dry_run=true` show instead of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nmt.config.composed import Composed
from nmt.files import OUTPUTS
from nmt.runs.requirements import require_all
from nmt.runs.train import train
from nmt.runtime_config import require_one_process
from nmt.temporary import temporary_folder
from nmt.verbs.configs import Debug, TrainVerbConfig
from nmt.verbs.debug import dry_run, overfit, profile, smoke


def run(trial: Composed) -> dict[str, Any]:
    """Train one config and return its results, or show what the training would be."""
    cfg = trial.to_config(TrainVerbConfig)
    if cfg.debug is None and not cfg.dry_run:
        return train(*trial.to_training(), typed=trial.typed)
    require_one_process("nmt train with debug=... or dry_run=true")
    training, run_dir = trial.to_training()
    require_all(training)
    with temporary_folder() as folder:
        if cfg.debug is Debug.smoke:
            smoke(training, folder)
        elif cfg.debug is Debug.overfit:
            overfit(training, folder)
        elif cfg.debug is Debug.profile:
            profile(training, folder, Path(OUTPUTS, "profiles", f"{run_dir.name}.json"))
        else:
            dry_run(training, folder)
    return {}
