"""Run directories of models that have learnt nothing, but always answer the same."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from nmt.config.compose import compose
from nmt.config.stored import save_config
from nmt.data.pairs import ParallelText, Split
from nmt.data.tokenizer import Tokenizer
from nmt.decoding import BeamConfig
from nmt.runs.directory import RunDirectory
from nmt.runs.opened import initial_model
from nmt.training.checkpoint import Checkpoint
from nmt.training.train_state import TrainState
from nmt.verbs import VERBS

SEARCH = BeamConfig(beam_size=2, max_length_offset=3, max_length_ratio=1.0)
SIZES = ("model.d_model=8", "model.d_ff=8", "model.num_heads=2")
LAYERS = ("model.encoder_layers=1", "model.decoder_layers=1")
WORDS = [f"{a}{b} {b}{a}" for a in "abcdefgh" for b in "abcdefgh"]


def make_run(path: Path, *overrides: str, kept: int = 0) -> Path:
    """Make a run directory of characters, with `kept` pairs in its validation and its test split."""
    directory = RunDirectory(path)
    path.mkdir()
    given = any(word.startswith("model=") for word in overrides)
    family = () if given else ("model=transformer_tiny", *LAYERS)
    (composed,) = compose(VERBS["train"], ["data=toy", "tokenizer=char", *family, *SIZES, *overrides])
    cfg, _ = composed.to_training()
    cfg.decoding = SEARCH
    save_config(cfg, directory.config_file)
    Tokenizer.train(cfg.tokenizer, ParallelText(WORDS, WORDS), list(cfg.data.tags.values())).save(path)
    model = initial_model(cfg, Tokenizer.load(cfg.tokenizer, path))
    directory.checkpoints.save(Checkpoint(7, model.state_dict(), {}, {"progress": asdict(TrainState())}))
    if kept:
        for split in (Split.validation, Split.test):
            directory.keep_text(split, ParallelText(WORDS[:kept], WORDS[1 : kept + 1]), cfg.data)
    return path
