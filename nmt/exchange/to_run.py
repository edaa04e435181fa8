"""A run directory with the model alone, for every verb of `nmt` that takes a run: what is needed to share it.

It has the config, the tokenizer, the pairs that the run is scored on, and one checkpoint of step 0 without an
optimizer. export.json says which model it is, and keeps a training from going on there; import.json stays
with a model that another program has trained.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import torch

from nmt.config.stored import save_config
from nmt.exchange.configs import ExportConfig, Quantization
from nmt.exchange.shared import recorded_scores, untied
from nmt.files import EXPORT_RECORD, IMPORT_RECORD, write_json
from nmt.runs.checkpoint_names import identify_checkpoint
from nmt.runs.directory import RunDirectory
from nmt.runs.opened import Run
from nmt.training.adapting.configs import AdaptationConfig
from nmt.training.checkpoint import Checkpoint
from nmt.training.train_state import TrainState


def write(run: Run, cfg: ExportConfig, folder: Path) -> None:
    """Make `folder` a run directory of the model of `run`, as it is now."""
    stored, directory = run.cfg, RunDirectory(folder)
    if stored.adapt.merges:  # what was learnt is in the weights
        stored = dataclasses.replace(stored, adapt=AdaptationConfig())
    save_config(stored, directory.config_file)
    run.directory.copy_sealed(folder)
    if (imported := run.directory.path / IMPORT_RECORD).is_file():
        shutil.copyfile(imported, folder / IMPORT_RECORD)
    directory.seal()
    dtype = getattr(torch, cfg.quantization.value)
    own, tied = untied(run.model.state_dict())
    weights = {name: x.cpu().to(dtype) if x.is_floating_point() else x.cpu() for name, x in own.items()}
    weights |= {name: weights[first] for name, first in tied.items()}  # what is tied stays one tensor
    directory.checkpoints.save(Checkpoint(0, weights, {}, TrainState().to_store()))
    pairs = list(zip(cfg.runs, cfg.checkpoints, strict=True))
    found = [(Path(name).name, *identify_checkpoint(name, checkpoint)) for name, checkpoint in pairs]
    shares = cfg.ensemble.normalised(len(pairs))
    keys = ("run", "checkpoint", "sha256", "share")
    origins = [dict(zip(keys, (*one, share), strict=True)) for one, share in zip(found, shares, strict=True)]
    record = {"of": origins, "dtype": cfg.quantization.value}
    write_json(folder / EXPORT_RECORD, record | _scores(run, cfg))


def _scores(run: Run, cfg: ExportConfig) -> dict[str, Any]:
    """Return the recorded scores of the run if they are of the very weights that are exported, unrounded."""
    is_whole = len(cfg.runs) == 1 and cfg.encoder_layers is None and cfg.decoder_layers is None
    is_exact = cfg.quantization is Quantization.float32
    exported, final = (identify_checkpoint(cfg.runs[0], name) for name in (cfg.checkpoints[0], "final"))
    return (recorded_scores(run) or {}) if is_whole and is_exact and exported == final else {}
