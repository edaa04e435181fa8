"""A foreign folder as a run directory, which is scored, translated with and trained on like any run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nmt.config.roots import TrainConfig
from nmt.config.stored import save_config
from nmt.data.reading.bundled_data import NoData
from nmt.decoding import BeamConfig
from nmt.errors import UserError
from nmt.exchange.architectures import read
from nmt.exchange.foreign import ForeignFolder
from nmt.exchange.imported import Imported
from nmt.files import IMPORT_RECORD, write_json
from nmt.models import build_model
from nmt.models.base import TranslationModel
from nmt.runs.directory import RunDirectory
from nmt.training.checkpoint import Checkpoint, require_match
from nmt.training.objectives.configs import CrossEntropyConfig
from nmt.training.optimizers.optimizer_configs import AdamConfig
from nmt.training.optimizers.schedule_configs import NoamConfig
from nmt.training.recovery import bad_weights
from nmt.training.train_state import TrainState

MOST_BEAMS = 100
"""Beams that a folder may ask for; with more, the search is the default."""


def import_folder(path: Path, run: Path, src: str, targets: Sequence[str]) -> tuple[TrainConfig, Imported]:
    """Make `run` a run directory with the model of the folder `path`, as it is before any update.

    Raises:
        UserError: the folder has no model that can be imported, or `run` is in use.
    """
    if run.exists() and (not run.is_dir() or any(run.iterdir())):
        raise UserError(f"run={run} exists and is no empty directory; name a new one")
    folder = ForeignFolder(path)
    imported = read(folder, src, targets)
    model = as_model(imported, str(path))
    cfg = TrainConfig(
        model=imported.model,
        data=NoData(src=src, tgt=targets[0], targets=[*targets] if imported.tagged else []),
        tokenizer=imported.tokenizer.cfg,
        optimizer=AdamConfig(),
        schedule=NoamConfig(),
        objective=CrossEntropyConfig(),
        decoding=search_of(folder),
    )
    directory = RunDirectory(run)
    imported.tokenizer.save(run)
    record = {"folder": str(path.resolve()), "sha256": folder.digests(), "config": folder.config}
    write_json(run / IMPORT_RECORD, record)
    directory.seal()
    directory.checkpoints.save(Checkpoint(0, model.state_dict(), {}, TrainState().to_store()))
    save_config(cfg, directory.config_file)
    return cfg, imported


def as_model(imported: Imported, what: str) -> TranslationModel:
    """Return the model with its weights; raise `UserError` when they do not fit or are not finite."""
    sizes = imported.tokenizer.src_vocab_size, imported.tokenizer.tgt_vocab_size
    model = build_model(imported.model, src_vocab_size=sizes[0], tgt_vocab_size=sizes[1]).eval()
    require_match(imported.weights, model.state_dict(), f"the weights of {what}")
    model.load_state_dict(imported.weights)
    if bad := bad_weights(model):
        raise UserError(f"the weights of {what} are not finite: {', '.join(bad[:3])}")
    return model


def search_of(folder: ForeignFolder) -> BeamConfig:
    """Return the search that generation_config.json or config.json asks for, as far as it is ours."""
    settings: dict[str, Any] = dict(folder.config)
    if (folder.path / "generation_config.json").is_file():
        settings |= folder.json("generation_config.json")
    beam: Any = settings.get("num_beams")
    is_fit = type(beam) is int and 0 < beam <= MOST_BEAMS
    return BeamConfig(beam_size=beam) if is_fit else BeamConfig()
