"""The table of tasks that are served."""

from __future__ import annotations

from typing import Any

from nmt.config.roots import Task
from nmt.decoding import DecodingConfig
from nmt.runs.opened import Run
from nmt.serving.classification import ServedClassification
from nmt.serving.configs import ServingConfig
from nmt.serving.task import ServedTask
from nmt.serving.translation import ServedTranslation

SERVED: dict[Task, type[ServedTask[Any]]] = {
    Task.translation: ServedTranslation,
    Task.classification: ServedClassification,
}
"""Task of a run -> how it is served."""


def served_task(
    run: Run, decoding: DecodingConfig, tgt: str | None, cfg: ServingConfig, domain: str | None = None
) -> ServedTask[Any]:
    """Return a run as it is served; raise `UserError` for one of a task that is not."""
    if run.cfg.task not in SERVED:
        run.require_task(Task.translation)
    return SERVED[run.cfg.task](run, decoding, tgt, cfg, domain)
