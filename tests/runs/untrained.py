"""Run directories whose models have learnt nothing, made within milliseconds: random, but always the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from nmt.config.compose import compose
from nmt.config.roots import TrainConfig
from nmt.config.stored import save_config
from nmt.data.parallel_text import ParallelText, Split
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.files import IMPORT_RECORD, write_json
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
GPT = ("model=gpt", "model.d_model=8", "model.d_ff=8", "model.num_heads=2", "model.num_layers=1")


CLASSIFIER = (
    "model=encoder",
    "model.d_model=8",
    "model.d_ff=8",
    "model.num_heads=2",
    "model.encoder_layers=1",
)
LABELS = ["bad", "<b>good</b>", "so so"]


def untrained_classifier(path: Path, *overrides: str, is_of_pairs: bool = False) -> Path:
    """Make a run of characters in `path` that finds one of `LABELS`, and return `path`."""
    pair = ["data.pair_column=second"] if is_of_pairs else []
    data = (
        "task=classification",
        "data=labels",
        "data.train=a.tsv",
        "data.validation=b.tsv",
        "data.test=c.tsv",
        *pair,
    )
    labels = [LABELS[number % len(LABELS)] for number in range(len(WORDS))]
    sources = [f"{word}\t{word[::-1]}" if is_of_pairs else word for word in WORDS]
    return untrained(path, *overrides, model=CLASSIFIER, lines=sources, tgt=labels, data=data)


def untrained(
    path: Path,
    *overrides: str,
    model: Sequence[str] = TRANSFORMER,
    lines: Sequence[str] = WORDS,
    tgt: Sequence[str] | None = None,
    data: Sequence[str] = ("data=toy",),
) -> Path:
    """Make a run of characters in `path`, by default of a tiny Transformer, and return `path`.

    The pairs are the `lines` and `tgt`, by default the lines again.
    """
    arguments = [*data, "tokenizer=char", "runtime.device=cpu", *model]
    (composed,) = compose(VERBS["train"], [*arguments, *overrides])
    cfg = composed.to_config(TrainConfig)
    cfg.decoding.max_length_ratio, cfg.decoding.max_length_offset = 1.0, 3
    directory, text = RunDirectory(path), ParallelText(list(lines), list(tgt or lines))
    path.mkdir(parents=True)
    save_config(cfg, directory.config_file)
    tags = [*cfg.data.tags.values(), *cfg.data.domain_tags.values()]
    Tokenizer.train(cfg.tokenizer, text, tags).save(path)
    for split in (Split.validation, Split.test):
        directory.keep_text(split, ParallelText(text.src[:6], text.tgt[:6]), cfg.data)
    weights = initial_model(cfg, Tokenizer.load(cfg.tokenizer, path)).state_dict()
    directory.checkpoints.save(Checkpoint(7, weights, {}, {"progress": asdict(TrainState())}))
    write_json(path / IMPORT_RECORD, {})  # the weights are final
    return path
