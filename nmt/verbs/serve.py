"""The wiring of `nmt serve`: a trained model behind HTTP."""

from __future__ import annotations

from typing import Any

from nmt import extras
from nmt.config.composed import Composed
from nmt.runs.opening import open_runs
from nmt.verbs.configs import ServeConfig


def run(trial: Composed) -> dict[str, Any]:
    """Serve until a signal."""
    cfg = trial.to_config(ServeConfig)
    extras.require("serve", "nmt serve")
    opened = open_runs(cfg)
    from nmt.serving.server import serve
    from nmt.serving.tasks import served_task

    task = served_task(opened, cfg.decoding, cfg.tgt, cfg.serve, domain=cfg.domain)
    serve(task, cfg.runtime.grace_seconds)
    return {}
