"""Run directories whose models have learnt nothing, made within milliseconds: random, but always the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from nmt.config.compose import compose
from nmt.config.roots import TrainConfig
from nmt.config.stored import save_config
from nmt.data.pairs import ParallelText, Split
from nmt.data.tokenizer import Tokenizer
from nmt.runs.directory import RunDirectory
from nmt.runs.opened import initial_model
from nmt.training.checkpoint import Checkpoint
from nmt.training.train_state import TrainState
from nmt.verbs import VERBS

LETTERS = "abcdefgh"
WORDS = [f"{a}{b} {b}{a}" for a in LETTERS for b in LETTERS]
TRANSFORMER = (
    "model=transformer_tiny",
    "model.d_model=8",
    "model.d_ff=8",
    "model.num_heads=2",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
)
RNN = ("model=rnn_luong", "model.d_model=12", "model.encoder_layers=1", "model.decoder_layers=1")


def untrained(
    path: Path, *overrides: str, model: Sequence[str] = TRANSFORMER, lines: Sequence[str] = WORDS
) -> Path:
    """Make a run of characters in `path`, by default of a tiny Transformer, and return `path`."""
    arguments = ["data=toy", "tokenizer=char", "runtime.device=cpu", *model]
    (composed,) = compose(VERBS["train"], [*arguments, *overrides])
    cfg = composed.to_config(TrainConfig)
    cfg.decoding.max_length_ratio, cfg.decoding.max_length_offset = 1.0, 3
    directory, text = RunDirectory(path), ParallelText(list(lines), list(lines))
    path.mkdir(parents=True)
    save_config(cfg, directory.config_file)
    Tokenizer.train(cfg.tokenizer, text).save(path)
    for split in (Split.validation, Split.test):
        directory.keep_text(split, ParallelText(text.src[:6], text.tgt[:6]), cfg.data)
    weights = initial_model(cfg, Tokenizer.load(cfg.tokenizer, path)).state_dict()
    directory.checkpoints.save(Checkpoint(7, weights, {}, {"progress": asdict(TrainState())}))
    return path
