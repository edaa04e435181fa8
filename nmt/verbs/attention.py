"""The wiring of `nmt attention`: show what a trained model attends to."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

from nmt.attention_views.maps import empty_maps
from nmt.attention_views.views import require_maps, write_views
from nmt.config.composed import Composed
from nmt.config.roots import Task
from nmt.data.parallel_text import one_line
from nmt.data.reading.lines import decoded
from nmt.runs.opening import open_runs
from nmt.verbs.configs import AttentionVerbConfig


def run(trial: Composed) -> dict[str, Any]:
    """Write what the model attends to for the lines on standard input, and print the names of the files."""
    cfg = trial.to_config(AttentionVerbConfig)
    opened = open_runs(cfg)
    if opened.cfg.task is Task.language_model:
        opened.require_task(Task.translation)
    maps = empty_maps(opened.model, opened.device)
    require_maps(maps, cfg, f"the model of {cfg.run} (model.name={opened.cfg.model.name})")
    lines = itertools.islice(decoded(sys.stdin.buffer), cfg.last_line)
    output = Path(cfg.output) if cfg.output is not None else opened.directory.path / "attention"
    title = one_line(f"Attention of {opened.directory.path}")
    sentences = opened.attend(lines, cfg.decoding, cfg.tgt, domain=cfg.domain, neuron_lines=cfg.neuron_lines)
    for file in write_views(sentences, cfg, output, title):
        print(f"written     {file}")
    return {}
