"""The wiring of `nmt generate`: continue a text with a language model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nmt.checks import at_least
from nmt.config.compose import Composed
from nmt.config.roots import RunConfig
from nmt.decoding import SamplingConfig
from nmt.errors import UserError
from nmt.runs.opened import open_runs


@dataclass
class GenerateConfig(RunConfig):
    """Continue a text with a trained language model; runtime starts from that of the run."""

    prompt: str = ""
    """Beginning of the text; empty: the model begins."""
    max_tokens: int = 200
    """Number of tokens to add."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, "", 1, "max_tokens")


def run(trial: Composed) -> dict[str, Any]:
    """Print the prompt and what the model adds to it."""
    cfg = trial.to_config(GenerateConfig)
    if not isinstance(cfg.decoding, SamplingConfig):
        raise UserError(f"nmt generate needs decoding=sampling, but has {cfg.decoding.strategy}")
    opened = open_runs(cfg)
    print(opened.generate(cfg.prompt, cfg.max_tokens, cfg.decoding))
    return {}
