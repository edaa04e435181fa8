"""The code that a table names, imported at its first use: tables cost nothing until then."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

Code = str | Callable[..., Any]
"""A class or a function, or its dotted name such as `nmt.models.rnn.Rnn`."""


def loaded(code: Code) -> Callable[..., Any]:
    """Return `code`, imported if it is a name."""
    if not isinstance(code, str):
        return code
    module, _, name = code.rpartition(".")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found
