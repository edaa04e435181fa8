"""Training from Python: the path of `nmt train`, with exceptions where the command has exit codes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from nmt.config.compose import compose
from nmt.config.spelling import spelled
from nmt.errors import Interrupted, UserError
from nmt.runs.opened import Run
from nmt.runs.opening import open_run
from nmt.runs.train import train as train_run
from nmt.verbs import VERBS


def train(*overrides: str, **settings: Any) -> Run:
    """Train as `nmt train` does, or go on, and return the finished run.

    Args:
        overrides: what the command takes, such as "experiment=multi30k_en_de" and "trainer.max_steps=100".
        settings: the same as values: `data="demo", trainer={"max_steps": 100}`.

    Raises:
        UserError: the config or the data cannot be used, or this is not the main thread.
        TrainingStopped: the training cannot go on; what was saved before is intact.
        KeyboardInterrupt: Ctrl-C; the training is saved, and the same call goes on.
    """
    if options := [override for override in overrides if "=" not in override or override.startswith("-")]:
        raise UserError(f"nmt.train takes GROUP=CHOICE and key=value, but not {options[0]!r}")
    if threading.current_thread() is not threading.main_thread():
        raise UserError("nmt.train must be called in the main thread, which alone receives signals")
    (trial,) = compose(VERBS["train"], [*overrides, *written(settings)])
    if trial.is_rehearsal:
        raise UserError(
            "nmt.train returns a run; debug=... and dry_run=true make none: leave them to nmt train"
        )
    cfg, run_dir = trial.to_training()
    try:
        train_run(cfg, run_dir, typed=trial.typed)
    except Interrupted as stop:
        if stop.exit_code == 128 + signal.SIGINT:
            raise KeyboardInterrupt(str(stop)) from None
        raise
    return open_run(run_dir, runtime_cfg=cfg.runtime)


def written(settings: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield `key=value` as the command line has it for nested settings."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from written(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}={spelled(value)}"
