"""Ranges of config values: one sentence for each kind of range, the same in all components.

Every check takes a config, the part of the root config that it is (or ""), and names of its fields. It
raises `UserError` for the first value out of range, NaN included. None, where a field allows it, is in
every range.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Annotated, Any

from nmt.errors import UserError

Texts = Annotated[Any, str | list[str]]
"""Type of a key that takes a text or a list of texts, for which OmegaConf has no type."""


def at_least(cfg: object, part: str, least: int, *names: str) -> None:
    """Refuse values below `least`."""
    _require(lambda value: value >= least, f"be at least {least}", cfg, part, names)


def positive(cfg: object, part: str, *names: str, hint: str = "") -> None:
    """Refuse zero and values below; `hint` ends the sentence."""
    _require(lambda value: value > 0, "be positive", cfg, part, names, hint)


def not_negative(cfg: object, part: str, *names: str) -> None:
    """Refuse values below zero."""
    _require(lambda value: value >= 0, "not be negative", cfg, part, names)


def finite(cfg: object, part: str, *names: str) -> None:
    """Refuse values below zero, and infinity."""
    _require(lambda value: 0 <= value < float("inf"), "be finite and not negative", cfg, part, names)


def within(cfg: object, part: str, interval: str, *names: str) -> None:
    """Refuse values outside of `interval`, such as "[0, 1)": a round bracket excludes the bound itself."""
    low, high = map(float, interval[1:-1].split(","))
    above = operator.gt if interval[0] == "(" else operator.ge
    below = operator.lt if interval[-1] == ")" else operator.le
    _require(lambda value: above(value, low) and below(value, high), f"be in {interval}", cfg, part, names)


def _require(
    fits: Callable[[float], bool], words: str, cfg: object, part: str, names: Iterable[str], hint: str = ""
) -> None:
    for name in names:
        value = getattr(cfg, name)
        if value is not None and not fits(value):
            key = f"{part}.{name}" if part else name
            raise UserError(f"{key} must {words}, but is {value}{hint}")
