"""The parts of a config that have several dataclasses, as the tables of the components list them.

Knows the tables; knows no values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from nmt.data.reading.sources import SOURCES
from nmt.decoding.configs import STRATEGIES
from nmt.models.configs import MODELS
from nmt.training.adaptation_table import ADAPTATIONS
from nmt.training.objective_configs import OBJECTIVES
from nmt.training.optimizer_configs import OPTIMIZERS
from nmt.training.schedule_configs import SCHEDULES

SCHEMA_PREFIX = "base_"
"""Prefix of the choices that only name the dataclass of a group; the YAML choices build on them."""


class ConfigClasses(Mapping[str, type]):
    """The config classes of a table NAME -> (config class, code), as the table is now."""

    def __init__(self, table: Mapping[str, tuple[type, Any]]):
        self._table = table

    def __getitem__(self, name: str) -> type:
        return self._table[name][0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)


VARIANTS: dict[str, tuple[str, Mapping[str, type]]] = {
    "model": ("name", ConfigClasses(MODELS)),
    "optimizer": ("name", ConfigClasses(OPTIMIZERS)),
    "schedule": ("name", ConfigClasses(SCHEDULES)),
    "objective": ("name", ConfigClasses(OBJECTIVES)),
    "adapt": ("name", ConfigClasses(ADAPTATIONS)),
    "data": ("name", ConfigClasses(SOURCES)),
    "decoding": ("strategy", ConfigClasses(STRATEGIES)),
}
"""Parts with several dataclasses -> the field that names the one in use, and its values -> dataclasses."""


def config_keys(root: type[Any], prefix: str = "") -> list[str]:
    """Return the keys of a config with the root `root`, those of every choice and the groups included."""
    found, hints = dict[str, None](), get_type_hints(root)
    for name in (f"{prefix}{field.name}" for field in dataclasses.fields(root)):
        kind = hints[name.rpartition(".")[2]]
        kinds = VARIANTS[name][1].values() if name in VARIANTS else [kind] * dataclasses.is_dataclass(kind)
        found |= dict.fromkeys([name, *(key for one in kinds for key in config_keys(one, f"{name}."))])
    return [*found]


def is_text(root: type[Any], key: str) -> bool:
    """Return whether a key of a config with the root `root` takes texts or lists of them, in every choice."""
    kinds = _types(root, key)
    return bool(kinds) and all(map(_holds_text, kinds))


def _types(root: type[Any], key: str, prefix: str = "") -> list[Any]:
    """Return the types of a key in the choices that have it."""
    first, _, rest = key.partition(".")
    kind = get_type_hints(root, include_extras=True).get(first)
    if kind is None or not rest:
        return [kind] * (kind is not None)
    name = f"{prefix}{first}"
    kinds = VARIANTS[name][1].values() if name in VARIANTS else [kind] * dataclasses.is_dataclass(kind)
    return [found for one in kinds for found in _types(one, rest, f"{name}.")]


def _holds_text(kind: Any) -> bool:
    """Return whether a type is text, perhaps none, or a list; `Annotated` says what `Any` stands for."""
    if get_origin(kind) is Annotated:
        return _holds_text(get_args(kind)[1])
    if get_origin(kind) in (Union, UnionType, list):
        return all(_holds_text(one) for one in get_args(kind) if one is not type(None))
    return kind is str
