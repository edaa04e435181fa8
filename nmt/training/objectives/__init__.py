"""Objectives: model and batch -> the quantity that an update minimises.

Knows models and batches; knows no optimizer. The modules in import order:

    configs             The keys of each objective, and their table; no torch.
    objective           Quantity that an update minimises; model and objective as one module.
    consistency         R-Drop and SimCut: two passes that should agree.
    distillation        The predictions of other runs as what a model learns.
    guided_alignment    Attention to the words that an alignment of the pair names.
    minimum_risk        The expected cost of sampled translations.
    __init__            The one function that builds an objective.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nmt.loading import loaded
from nmt.training.objectives.configs import OBJECTIVES, ObjectiveConfig

if TYPE_CHECKING:
    from nmt.training.objectives.objective import Context, Objective


def build_objective(cfg: ObjectiveConfig, context: Context) -> Objective:
    """Return the objective that `cfg` describes, for a training that answers what it asks."""
    objective: Objective = loaded(OBJECTIVES[cfg.name][1])(cfg, context)
    return objective
