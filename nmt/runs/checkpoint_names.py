"""Checkpoints by the names that people give: final, best, last, average or a step."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, TypeVar

from nmt.config.roots import RunConfig, TrainConfig, require_checkpoint
from nmt.config.stored import load_config
from nmt.errors import UserError
from nmt.models.base import TranslationModel
from nmt.runs.directory import RunDirectory
from nmt.training.checkpoint import AVERAGE, require_match, widened
from nmt.training.recovery import bad_weights
from nmt.training.train_state import TrainState

AnyRunConfig = TypeVar("AnyRunConfig", bound=RunConfig)


def load_weights(model: TranslationModel, run: RunDirectory, cfg: TrainConfig, name: str) -> None:
    """Load the weights of the checkpoint `name` into `model`.

    Those in 16 bits, as `nmt export` writes them on request, are widened to float32.

    Raises:
        UserError: the checkpoint is missing or damaged, or its weights do not fit or are not finite.
    """
    store, found = run.checkpoints, _resolved(name, run, cfg)
    weights = widened(store.load_average().model if found == AVERAGE else store.load_model(int(found)))
    what = f"the weights of checkpoint {found} of {run.path}"
    require_match(weights, model.state_dict(), what)
    model.load_state_dict(weights)
    if bad := bad_weights(model):
        raise UserError(f"{what} are not finite: {', '.join(bad[:3])}; choose another with checkpoint=...")


def identify_checkpoint(path: str | Path, name: str = "final") -> tuple[str, str]:
    """Return average or the step that the checkpoint `name` means now, and a SHA-256 of its content.

    Raises:
        UserError: the directory holds no run, or the checkpoint is missing.
    """
    run = RunDirectory(Path(path))
    found = _resolved(name, run, load_config(run.config_file))
    store = run.checkpoints
    return found, store.digest(store.directory / AVERAGE if found == AVERAGE else store.folder(int(found)))


def with_fixed_checkpoints(cfg: AnyRunConfig) -> tuple[AnyRunConfig, dict[str, Any]]:
    """Return `cfg` with the checkpoints that its names mean now, and facts that tell its weights from others.

    Raises:
        UserError: a directory holds no run, or a checkpoint is missing.
    """
    pairs = zip(cfg.runs, cfg.checkpoints, strict=True)
    found = [identify_checkpoint(run, checkpoint) for run, checkpoint in pairs]
    layers = {key: getattr(cfg, key) for key in ("encoder_layers", "decoder_layers")}
    facts: dict[str, Any] = {key: kept for key, kept in layers.items() if kept is not None}
    if cfg.ensemble.lm is not None:
        lm_digest = identify_checkpoint(cfg.ensemble.lm)[1][:16]
        facts |= {"ensemble.lm": lm_digest, "ensemble.lm_weight": cfg.ensemble.lm_weight}
    if len(found) == 1:
        ((checkpoint, digest),) = found
        return dataclasses.replace(cfg, checkpoint=checkpoint), facts | {"checkpoint": digest[:16]}
    facts |= {
        "checkpoint": [digest[:16] for _, digest in found],
        "ensemble.mean": cfg.ensemble.mean.value,
        "ensemble.weights": cfg.ensemble.normalised(len(found)),
    }
    return dataclasses.replace(cfg, checkpoint=[checkpoint for checkpoint, _ in found]), facts


def _resolved(name: str, run: RunDirectory, cfg: TrainConfig) -> str:
    """Return average or the number of a step for any name of a checkpoint."""
    require_checkpoint(name)
    run.require_checkpoint()
    store = run.checkpoints
    if name == "final":
        # Before the end an average is one that is not compared yet with the best step.
        name = AVERAGE if run.is_finished and store.has_average() and cfg.trainer.average else "best"
    return name if name == AVERAGE else str(_step_of(name, run))


def _step_of(name: str, run: RunDirectory) -> int:
    store = run.checkpoints
    steps = store.steps()
    if name == "best":
        scored = TrainState.stored_in(store.load_state(steps[-1])).best_steps(among=steps)
        return scored[0] if scored else steps[-1]
    step = steps[-1] if name == "last" else int(name)
    if step not in steps:
        raise UserError(
            f"checkpoint={name} is not in {run.path}; there are the steps {', '.join(map(str, steps))}"
        )
    return step
