"""The wiring of `nmt generate`: continue a text with a language model."""

from __future__ import annotations

from typing import Any

from nmt.config.composed import Composed
from nmt.decoding.configs import SamplingConfig
from nmt.errors import UserError
from nmt.runs.opened import open_runs
from nmt.verbs.configs import GenerateConfig


def run(trial: Composed) -> dict[str, Any]:
    """Print the prompt and what the model adds to it."""
    cfg = trial.to_config(GenerateConfig)
    if not isinstance(cfg.decoding, SamplingConfig):
        raise UserError(f"nmt generate needs decoding=sampling, but has {cfg.decoding.strategy}")
    opened = open_runs(cfg)
    print(opened.generate(cfg.prompt, cfg.max_tokens, cfg.decoding))
    return {}
