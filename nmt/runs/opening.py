"""Opening runs: one, several as an ensemble, or one together with a language model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from nmt import runtime
from nmt.config.roots import RunConfig, Task
from nmt.config.spelling import shell_word
from nmt.config.stored import load_run
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.errors import UserError, warn
from nmt.models.configs import EnsembleConfig, Mean
from nmt.models.ensemble import Ensemble, mean_of_weights
from nmt.models.fusion import Fusion
from nmt.runs.agreement import require_agreement, require_equal_shapes
from nmt.runs.checkpoint_names import identify_checkpoint, load_weights
from nmt.runs.directory import RunDirectory
from nmt.runs.opened import Run, initial_model
from nmt.runtime_config import RuntimeConfig
from nmt.training.adapting.adaptation import merge

Layers = tuple[list[int] | None, list[int] | None]
"""Layers of encoder and decoder to keep, counted from 1; None keeps all."""


def open_run(
    path: str | Path,
    checkpoint: str | int = "final",
    runtime_cfg: RuntimeConfig | None = None,
    layers: Layers = (None, None),
) -> Run:
    """Load the model of a run directory.

    Args:
        path: the run directory.
        checkpoint: final (the one scored at the end of training), best, last, average or a step.
        runtime_cfg: the device to use; by default CUDA when there is one.
        layers: those of the encoder and of the decoder to keep; the others are left out.

    Raises:
        UserError: the directory holds no run, leads out of itself, or has a tokenizer or kept data that are
            not those of the training; or the checkpoint is missing or damaged.
    """
    cfg, directory, checkpoint = load_run(str(path)), RunDirectory(Path(path)), str(checkpoint)
    directory.verify()
    directory.require_checkpoint()
    device = runtime.prepare(runtime_cfg or RuntimeConfig())
    tokenizer = Tokenizer.load(cfg.tokenizer, directory.path)
    model = initial_model(cfg, tokenizer)
    load_weights(model, directory, cfg, checkpoint)
    if checkpoint == "final" and not directory.is_finished:
        steps = f"step {directory.checkpoints.steps()[-1]} of {cfg.trainer.max_steps}"
        found = identify_checkpoint(path)[0]
        warn(f"the training of {path} is at {steps}; of its weights, those of checkpoint {found} are used")
    merge(model, cfg.adapt)
    if layers != (None, None):
        cfg.model = cfg.model.keeping(*layers)
        model.keep_layers(*layers)
    return Run(cfg, tokenizer, model.to(device).eval(), device, directory)


class OpenRuns:
    """Runs that are open on one device; each is opened once, however often it is asked for."""

    def __init__(self, cfg: RuntimeConfig):
        self.cfg = cfg
        self._runs = dict[tuple[Path, str, str], Run]()

    def of(self, path: str, checkpoint: str = "final", layers: Layers = (None, None)) -> Run:
        """Return a run as `open_run` does."""
        key = Path(path).resolve(), checkpoint, repr(layers)
        if key not in self._runs:
            self._runs[key] = open_run(path, checkpoint, self.cfg, layers)
        return self._runs[key]


def open_runs(cfg: RunConfig, known: OpenRuns | None = None) -> Run:
    """Load the run that `cfg` names, or several as one `Run`: see `ensemble_of`.

    `known` has runs that need not be opened again, and the runtime of all.
    """
    known = known or OpenRuns(cfg.runtime)
    pairs = zip(cfg.runs, cfg.checkpoints, strict=True)
    layers = cfg.encoder_layers, cfg.decoder_layers
    runs = [known.of(run, checkpoint, layers) for run, checkpoint in pairs]
    run = runs[0] if len(runs) == 1 else ensemble_of(runs, cfg.ensemble)
    if cfg.ensemble.lm is None:
        return run
    if getattr(cfg.decoding, "cuda_graphs", False):
        raise UserError("ensemble.lm is searched with without CUDA graphs; set decoding.cuda_graphs=false")
    if getattr(cfg.decoding, "pool_models", False):
        raise UserError(
            "decoding.pool_models=true draws candidates from each model by itself, without ensemble.lm; "
            "set decoding.pool_models=false, or leave out ensemble.lm"
        )
    return fusion_of(run, known.of(cfg.ensemble.lm), cfg.ensemble.lm_weight)


def fusion_of(run: Run, language_model: Run, weight: float) -> Run:
    """Return a run that translates together with a language model: see `nmt.models.fusion`.

    Raises:
        UserError: a run has another task, or they have different tokenizers.
    """
    run.require_task(Task.translation)
    language_model.require_task(Task.language_model)
    pieces = {one.tokenizer.fingerprint_without_factors for one in (run, language_model)}
    if len(pieces) > 1:
        raise UserError(
            f"ensemble.lm={language_model.path} has another tokenizer than {run.path}; train one with "
            f"nmt train task=language_model model=gpt {shell_word('init', run.path)} init.weights=[] data=..."
            f"{' tokenizer.source_factors=[]' * bool(run.tokenizer.cfg.source_factors)}"
        )
    model = Fusion(run.model, language_model.model, weight).eval()
    return dataclasses.replace(run, model=model)


def ensemble_of(runs: Sequence[Run], cfg: EnsembleConfig | None = None) -> Run:
    """Return several opened runs as one, whose config, tokenizer and directory are those of the first.

    Raises:
        UserError: the runs have other vocabularies, languages or tasks, or `cfg` another number of weights;
            or the mean of the weights is asked for of models that differ in their names and shapes.
    """
    if not runs:
        raise UserError("an ensemble needs at least one run, but there is none")
    cfg, named = cfg or EnsembleConfig(), [(run.directory.path, run) for run in runs]
    require_agreement(named)
    models = [run.model for run in runs]
    if cfg.mean is not Mean.weights:
        return dataclasses.replace(runs[0], model=Ensemble(models, cfg).eval())
    require_equal_shapes(named)
    return dataclasses.replace(runs[0], model=mean_of_weights(models, cfg.normalised(len(runs))).eval())
