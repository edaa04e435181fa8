"""The parts of a config that have several dataclasses, as the tables of the components list them.

Knows the tables; knows no values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin, get_type_hints

from nmt.data.filter_table import FILTERS
from nmt.data.modifiers import MODIFIERS
from nmt.data.reading.sources import SOURCES
from nmt.decoding.configs import STRATEGIES
from nmt.models.configs import MODELS
from nmt.training.adapting.configs import ADAPTATIONS
from nmt.training.objectives.configs import OBJECTIVES
from nmt.training.optimizers.optimizer_configs import OPTIMIZERS
from nmt.training.optimizers.schedule_configs import SCHEDULES

SCHEMA_PREFIX = "base_"
"""Prefix of the choices that only name the dataclass of a group; the YAML choices build on them."""


class ConfigClasses(Mapping[str, type]):
    """The config classes of a table NAME -> (config class, code), as the table is now."""

    def __init__(self, table: Mapping[str, tuple[Any, ...]]):
        self._table = table

    def __getitem__(self, name: str) -> type:
        return cast(type, self._table[name][0])

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

_CORPORA = ("data.corpora.*", "data.corpus", "sets.*")
_CLASSES: dict[str, Mapping[str, type]] = {
    **{part: classes for part, (_, classes) in VARIANTS.items()},
    **dict.fromkeys(_CORPORA, VARIANTS["data"][1]),
    **{f"{place}.filters": ConfigClasses(FILTERS) for place in ("data", *_CORPORA)},
    **{f"{place}.augment": ConfigClasses(MODIFIERS) for place in ("data", *_CORPORA)},
    **dict.fromkeys(("validation_decoding", "tuned_decoding"), VARIANTS["decoding"][1]),
}
"""Keys of groups, and of mappings in a config, also in lists -> their dataclasses; * is any name."""


def config_keys(root: type[Any], prefix: str = "") -> list[str]:
    """Return the keys of a config with the root `root`, those of every choice and the groups included."""
    found, hints = dict[str, None](), get_type_hints(root)
    for name in (f"{prefix}{field.name}" for field in dataclasses.fields(root)):
        kind = hints[name.rpartition(".")[2]]
        kinds = VARIANTS[name][1].values() if name in VARIANTS else [kind] * dataclasses.is_dataclass(kind)
        found |= dict.fromkeys([name, *(key for one in kinds for key in config_keys(one, f"{name}."))])
    return [*found]


def is_text(root: type[Any], parts: Sequence[str]) -> bool:
    """Return whether a key takes texts or lists of them, in every choice that a config `root` has for it.

    `parts` are those of the key, or of one in mappings.
    """
    kinds = [*_types(root, parts)]
    return bool(kinds) and all(map(_holds_text, kinds))


def _types(kind: Any, parts: Sequence[str], place: str = "") -> Iterator[Any]:
    """Yield the types that `parts` lead to from a value of the type `kind`, the keys to which are `place`."""
    if not parts:
        yield kind
    elif place not in _CLASSES and get_origin(kind) is dict:
        yield from _types(get_args(kind)[1], parts[1:], f"{place}.*")
    else:
        for cls in _CLASSES[place].values() if place in _CLASSES else [kind] * dataclasses.is_dataclass(kind):
            if (own := get_type_hints(cls, include_extras=True).get(parts[0])) is not None:
                yield from _types(own, parts[1:], f"{place}.{parts[0]}".removeprefix("."))


def _holds_text(kind: Any) -> bool:
    """Return whether a type is text, perhaps none, or a list; `Annotated` says what `Any` stands for."""
    if get_origin(kind) is Annotated:
        return _holds_text(get_args(kind)[1])
    if get_origin(kind) in (Union, UnionType, list):
        return all(_holds_text(one) for one in get_args(kind) if one is not type(None))
    return kind is str
