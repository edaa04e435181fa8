"""The wiring of `nmt serve`: trained models behind HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nmt import extras
from nmt.config.composed import Composed
from nmt.errors import UserError
from nmt.runs.opening import OpenRuns, open_runs
from nmt.verbs.configs import ServeConfig


def run(trial: Composed) -> dict[str, Any]:
    """Serve until a signal."""
    cfg = trial.to_config(ServeConfig)
    extras.require("serve", "nmt serve")
    known = OpenRuns(cfg.runtime)  # of all models: there is one process
    from nmt.serving.server import serve
    from nmt.serving.task import ServedTask
    from nmt.serving.tasks import served_task

    def opened(own: ServeConfig) -> ServedTask[Any]:
        task = served_task(open_runs(own, known), own.decoding, own.tgt, own.serve, domain=own.domain)
        task.answer_example()
        return task

    tasks = dict[str, ServedTask[Any]]()
    for name, one in trial.models.items():
        try:
            tasks[name] = opened(one.to_config(ServeConfig))
        except UserError as error:
            raise UserError(*(f"models.{name}: {problem}" for problem in error.problems)) from error
    serve(tasks or {Path(cfg.runs[0]).resolve().name: opened(cfg)}, cfg.serve, cfg.runtime.grace_seconds)
    return {}
