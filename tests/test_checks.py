"""Ranges of config values: what is inside, what is refused, and the sentence about it."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from nmt.checks import at_least, finite, not_negative, positive, within
from nmt.errors import UserError

Check = Callable[[object], None]
CHECKS: list[tuple[Check, list[float], list[float], str]] = [
    (lambda cfg: at_least(cfg, "part", 2, "x"), [2, 3, math.inf], [1, -5], "be at least 2"),
    (lambda cfg: positive(cfg, "part", "x"), [1e-9, math.inf], [0, -1], "be positive"),
    (lambda cfg: not_negative(cfg, "part", "x"), [0, math.inf], [-1e-9], "not be negative"),
    (lambda cfg: finite(cfg, "part", "x"), [0, 1e300], [-1, math.inf], "be finite and not negative"),
    (lambda cfg: within(cfg, "part", "[0, 1)", "x"), [0, 0.99], [1, -0.1], "be in [0, 1)"),
    (lambda cfg: within(cfg, "part", "(0, 1]", "x"), [1e-9, 1], [0, 1.1], "be in (0, 1]"),
]


@pytest.mark.parametrize(("check", "inside", "outside", "constraint"), CHECKS, ids=[row[3] for row in CHECKS])
def test_a_range_has_its_bounds_and_its_sentence(
    check: Check, inside: list[float], outside: list[float], constraint: str
) -> None:
    for value in (*inside, None):
        check(SimpleNamespace(x=value))
    for value in (*outside, math.nan):
        with pytest.raises(UserError) as error:
            check(SimpleNamespace(x=value))
        assert str(error.value) == f"part.x must {constraint}, but is {value}"


def test_the_first_of_several_fields_is_named_with_a_way_out() -> None:
    cfg = SimpleNamespace(a=1, b=0, c=0)
    with pytest.raises(UserError, match=r"^part\.b must be positive, but is 0; use null for no limit$"):
        positive(cfg, "part", "a", "b", "c", hint="; use null for no limit")
    with pytest.raises(UserError, match=r"^b must be at least 1, but is 0$"):
        at_least(cfg, "", 1, "a", "b")
