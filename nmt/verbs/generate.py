"""The wiring of `nmt generate`: continue a text with a language model, or make lines like those it knows."""

from __future__ import annotations

import sys
from typing import Any

from nmt.config.composed import Composed
from nmt.decoding.configs import SamplingConfig
from nmt.errors import UserError
from nmt.runs.opening import open_runs
from nmt.verbs.configs import GenerateConfig


def run(trial: Composed) -> dict[str, Any]:
    """Print the prompt and what the model adds to it, or lines that begin with it."""
    cfg = trial.to_config(GenerateConfig)
    if not isinstance(cfg.decoding, SamplingConfig):
        raise UserError(f"nmt generate needs decoding=sampling, but has {cfg.decoding.strategy}")
    opened = open_runs(cfg)
    if cfg.lines is None:
        print(opened.generate(cfg.prompt, cfg.max_tokens, cfg.decoding))
        return {}
    for line in opened.generate_lines(cfg.lines, cfg.prompt, cfg.max_tokens, cfg.decoding):
        print(line, flush=sys.stdout.isatty())
    return {}
