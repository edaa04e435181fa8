"""The parts of a config that have several dataclasses, gathered from the tables of the components.

Knows the tables; knows no values.
"""

from __future__ import annotations

from nmt.data.sources import SOURCES
from nmt.decoding import STRATEGIES
from nmt.models import MODELS
from nmt.training.optimizer import OPTIMIZERS
from nmt.training.schedules import SCHEDULES

SCHEMA_PREFIX = "base_"
"""Choices of a group that only say which dataclass it has; the YAML choices build on them."""

VARIANTS: dict[str, tuple[str, dict[str, type]]] = {
    "model": ("name", {name: cls for name, (cls, _) in MODELS.items()}),
    "optimizer": ("name", {name: cls for name, (cls, _) in OPTIMIZERS.items()}),
    "schedule": ("name", {name: cls for name, (cls, _) in SCHEDULES.items()}),
    "data": ("name", {name: cls for name, (cls, _) in SOURCES.items()}),
    "decoding": ("strategy", {name: cls for name, (cls, _) in STRATEGIES.items()}),
}
"""Parts with more than one dataclass -> the field that says which, and what its values stand for."""
