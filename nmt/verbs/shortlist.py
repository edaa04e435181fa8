"""The wiring of `nmt shortlist`: the file of `decoding.shortlist`, made of the training pairs of a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nmt.config.composed import Composed
from nmt.config.overrides import FROM_RUN
from nmt.config.roots import Task
from nmt.config.spelling import shell_word
from nmt.config.stored import load_config
from nmt.data.parallel_text import ParallelText, Split
from nmt.data.reading import sources
from nmt.data.tokens.shortlist import build_shortlist
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.errors import UserError
from nmt.progress import told
from nmt.runs.directory import RunDirectory
from nmt.runs.evaluation_text import require_trusted
from nmt.verbs import VERBS
from nmt.verbs.configs import ShortlistConfig


def run(trial: Composed) -> dict[str, Any]:
    """Write the file, and print how to use it."""
    cfg = trial.to_config(ShortlistConfig)
    directory = RunDirectory(Path(str(cfg.run)))
    directory.verify()
    trained = load_config(directory.config_file)
    if trained.task is not Task.translation:
        raise UserError(f"{directory.path} translates nothing; nmt shortlist is for runs that translate")
    if not cfg.read_corpus and trial.choices.get("data") == FROM_RUN:
        require_trusted(directory, trained, cfg.data, Split.train)
    tokenizer = Tokenizer.load(trained.tokenizer, directory.path)
    made = build_shortlist(_pairs(cfg), tokenizer, translations=cfg.translations, frequent=cfg.frequent)
    file = Path(cfg.output or directory.path / VERBS["shortlist"].outputs["output"])
    made.save(file)
    mean = len(made.pieces) / max(tokenizer.src_vocab_size, 1)
    print(f"pieces      {len(made.always):,} for every sentence, and {mean:.1f} more for each source piece")
    print(f"written     {file}")
    settings = f"{shell_word('run', directory.path)} {shell_word('decoding.shortlist', file)}"
    print(f"use         nmt translate {settings} < src.txt")
    return {}


def _pairs(cfg: ShortlistConfig) -> Iterator[ParallelText]:
    """Yield chunks of the training pairs, `max_pairs` in all."""
    remaining = cfg.max_pairs
    for chunk in told(sources.stream(cfg.data, Split.train).chunks(), "reading pairs", "pairs"):
        part = ParallelText(chunk.src[:remaining], chunk.tgt[:remaining])
        remaining -= len(part)
        yield part
        if not remaining:
            return
