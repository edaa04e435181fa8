"""The wiring of `nmt serve`: a trained model behind HTTP."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from nmt.config.compose import Composed
from nmt.config.roots import Task
from nmt.errors import UserError
from nmt.runs.opened import open_runs
from nmt.verbs.configs import ServeConfig

NEEDED = ("fastapi", "uvicorn")


def run(trial: Composed) -> dict[str, Any]:
    """Serve until a signal."""
    cfg = trial.to_config(ServeConfig)
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        names = " ".join(missing)
        raise UserError(f"nmt serve needs its extra: pip install 'nmt[serve]', or pip install {names}")
    opened = open_runs(cfg)
    opened.require_task(Task.translation)
    opened.asking_for(cfg.tgt, [])  # an error is an error before the first request is there
    from nmt.serving.server import serve

    serve(opened, cfg.decoding, cfg.tgt, cfg.serve, cfg.runtime.grace_seconds)
    return {}
