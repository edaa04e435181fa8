"""Ordered lists of groups in a config, such as data.augment: each names a row of a table, and has its keys.

An entry is {name: ROW, KEY: VALUE} or, where the defaults will do, ROW alone. Knows neither text nor tables.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar, cast, get_args, get_type_hints

from omegaconf import OmegaConf
from omegaconf.errors import ValidationError

from nmt.errors import UserError, suggest


@dataclass(frozen=True)
class Row:
    """The keys that every entry has."""

    name: str = ""
    """Row of the table."""
    key_prefix: str = field(default="", compare=False, repr=False, metadata={"omegaconf_ignore": True})
    """Key of the entry in errors, such as `data.augment[2]`. Not a config key itself."""

    def plain(self) -> dict[str, Any]:
        """Return the keys and their values, as a config states them."""
        values = ((one.name, getattr(self, one.name)) for one in dataclasses.fields(self))
        return {key: _stated(value) for key, value in values if key != "key_prefix"}


R = TypeVar("R", bound=Row)


def parsed(
    key: str, entries: object, table: Mapping[str, type[R]], defaults: Mapping[str, Any] | None = None
) -> list[R]:
    """Return the rows that `entries`, the value of `key`, say; `defaults` are values of keys they leave out.

    Raises:
        UserError: `entries` is no list of groups, or one of them fits no row of `table`; names the key.
    """
    if isinstance(entries, str | Mapping) or not isinstance(entries, Sequence):
        example = next(iter(table))
        raise UserError(f"{key} must be a list, such as [{{name: {example}}}], but is {entries!r}")
    return [_row(f"{key}[{i}]", entry, table, defaults or {}) for i, entry in enumerate(entries)]


def _row(key: str, entry: Any, table: Mapping[str, type[R]], defaults: Mapping[str, Any]) -> R:
    given = {"name": entry} if isinstance(entry, str) else entry
    if not isinstance(given, Mapping) or "name" not in given:
        example = next(iter(table))
        raise UserError(
            f"{key} must be a group of keys with a name, such as {{name: {example}}}, but is {entry!r}"
        )
    name = given["name"]
    if not isinstance(name, str) or name not in table:
        near = suggest(str(name), table)
        raise UserError(f"{key}.name must be one of {', '.join(table)}, but is {name!r}{near}")
    cls = table[name]
    known = [one.name for one in dataclasses.fields(cls) if one.name != "key_prefix"]
    for own in given:
        if own not in known:
            near = suggest(str(own), known) or f"; the keys of name={name} are {', '.join(known)}"
            raise UserError(f"unknown key {key}.{own}{near}")
    try:
        values: dict[Any, Any] = {**defaults, **given}
        typed: Any = OmegaConf.to_container(OmegaConf.merge(schema_of(cast(type, cls)), values))
    except ValidationError as error:
        own = str(error.key)
        raise UserError(f"{key}.{own} {_refused(get_type_hints(cls).get(own), given.get(own))}") from error
    return cls(**typed, key_prefix=key)


@functools.cache
def schema_of(cls: type) -> Any:
    """Return the types of the fields of a dataclass, made once; nothing changes them."""
    return OmegaConf.structured(cls)


def _stated(value: Any) -> Any:
    """Return a value as a config states it: members of enumerations by their names."""
    if isinstance(value, list):
        return [_stated(one) for one in value]
    return value.name if isinstance(value, Enum) else value


def _refused(hint: object, value: object) -> str:
    """Return that a value cannot be, and where it is one of a few what it can be."""
    kinds = [kind for kind in (hint, *get_args(hint)) if isinstance(kind, type) and issubclass(kind, Enum)]
    if not kinds:
        return f"cannot be {value!r}"
    choices = [member.name for kind in kinds for member in kind]
    return f"must be one of {', '.join(choices)}, but is {value!r}{suggest(str(value), choices)}"
