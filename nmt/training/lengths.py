"""Lengths of a training that are typed in updates, epochs or target tokens: 500, "2 epochs", "10M tokens".

They are counted once, in updates, by the size of the first epoch, which the config of the run keeps. So a run
that goes on, and every process of it, counts the same. Imports no torch.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from nmt.errors import UserError

if TYPE_CHECKING:
    Steps = int  # all code but this module and the checks of configs sees lengths that `in_steps` has counted
else:
    Steps = Any
    """A number of updates, or a text with another unit; OmegaConf 2.3 does not merge `int | str` into a part
    that is chosen by its name."""

Config = TypeVar("Config")
OF_STEPS = "_steps"
"""The end of the names of fields that are lengths."""
_TYPED = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*([kMB]?)\s*(epoch|token)s?\s*")
_TIMES = {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9}


class EpochSize(NamedTuple):
    """What lengths are counted by; None: not known."""

    steps: int | None
    """Updates of the first epoch."""
    update_tokens: int | None
    """Target tokens of an update, in the mean over the first epoch."""


class Length(NamedTuple):
    """A length in epochs or target tokens."""

    number: float
    unit: str
    """epoch or token."""

    def steps(self, size: EpochSize) -> int:
        """Return the number of updates, at least 1; raise `UserError` where `size` lacks what that needs."""
        if self.unit == "epoch" and size.steps:
            return max(1, round(self.number * size.steps))
        if self.unit == "token" and size.update_tokens:
            return max(1, round(self.number / size.update_tokens))
        name = "epoch_steps" if self.unit == "epoch" else "update_tokens"
        raise UserError(
            f"trainer.{name} is missing, by which this run counts its {self.unit}s; restore its config.yaml"
        )


def parsed(key: str, text: str) -> Length:
    """Return a typed length; raise `UserError`, which names `key`, where it is none."""
    found = _TYPED.fullmatch(text)
    if not found or not float(found[1]):
        raise _no_length(key, repr(text))
    return Length(float(found[1]) * _TIMES[found[2]], found[3])


def _no_length(key: str, value: str) -> UserError:
    return UserError(
        f"{key} must be a number of updates such as 500, or of epochs or target tokens such as "
        f"'2 epochs' or '10M tokens', but is {value}"
    )


def require_lengths(cfg: object, part: str, least: int, *names: str, or_null: bool = False) -> None:
    """Raise `UserError` unless these fields are lengths, those in updates of `least` or more, or None.

    Their names end in `_steps`, by which they are found to be counted.
    """
    for name in names:
        assert name.endswith(OF_STEPS), name
        value: object = getattr(cfg, name)
        if value is None and not or_null:
            raise _no_length(f"{part}.{name}", "null")
        if isinstance(value, float) and value.is_integer():
            raise UserError(f"{part}.{name} must be a whole number, but is {value}; write {value:.0f}")
        if value is not None and type(value) is not int:
            parsed(f"{part}.{name}", str(value))
        elif value is not None and value < least:
            must = {0: "not be negative", 1: "be at least 1"}[least]
            raise UserError(f"{part}.{name} must {must}, but is {value}")


def are_counted(*values: object) -> bool:
    """Return whether all values are numbers, and none is missing or a length with a unit."""
    return all(isinstance(value, int) for value in values)


def typed_lengths(part: str, cfg: Any) -> Iterator[tuple[str, str, Length]]:
    """Yield name, text and length of every field of a config that is typed with a unit."""
    for field in dataclasses.fields(cfg):
        value: object = getattr(cfg, field.name)
        if field.name.endswith(OF_STEPS) and isinstance(value, str):
            yield field.name, value, parsed(f"{part}.{field.name}", value)


def in_steps(part: str, cfg: Config, size: EpochSize) -> Config:
    """Return a config whose lengths are numbers of updates, by the size of an epoch."""
    counted = {name: length.steps(size) for name, _, length in typed_lengths(part, cfg)}
    found: Config = dataclasses.replace(cfg, **counted)  # type: ignore[type-var]
    return found
