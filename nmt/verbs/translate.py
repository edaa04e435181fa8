"""The wiring of `nmt translate`: from standard input to standard output, or a large file."""

from __future__ import annotations

import sys
from typing import Any

from nmt.config.compose import Composed
from nmt.config.roots import TranslateConfig
from nmt.data.lines import decoded
from nmt.runs.opened import open_runs, output_lines
from nmt.verbs.translate_file import translate_file


def run(trial: Composed) -> dict[str, Any]:
    """Translate a file with several workers, or standard input line by line, in order."""
    cfg = trial.to_config(TranslateConfig)
    if cfg.input is not None:
        translate_file(cfg)
        return {}
    source, target = sys.stdin.buffer, sys.stdout.buffer
    opened = open_runs(cfg)
    for number, translation in enumerate(opened.translate(decoded(source), cfg.decoding, cfg.tgt)):
        lines = output_lines(number, translation, cfg.decoding.n_best)
        target.write("".join(f"{line}\n" for line in lines).encode())
        target.flush()
    return {}
