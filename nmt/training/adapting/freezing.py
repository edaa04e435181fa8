"""Weights that do not learn, and weights chosen by patterns of their names.

A frozen weight gets no gradient, so that the backward pass ends where all weights before are frozen, and no
state of the optimizer. Dropout goes on around frozen weights as around others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from itertools import accumulate

from torch import nn

from nmt.errors import UserError, suggest


def freeze(model: nn.Module, patterns: Sequence[str]) -> str:
    """Freeze the weights whose names match a pattern; return a line about them, empty without patterns.

    A matrix that has several names, as tied embeddings have, is frozen by any of them.

    Raises:
        UserError: a pattern matches no name, or nothing is left to learn.
    """
    if not patterns:
        return ""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name in matching(patterns, parameters, "trainer.freeze"):
        parameters[name].requires_grad_(False)
    sizes = {id(x): x.numel() for x in parameters.values()}
    left = sum(sizes[key] for key in {id(x) for x in parameters.values() if x.requires_grad})
    if not left:
        raise UserError(
            f"trainer.freeze=[{', '.join(patterns)}] leaves no weight to learn; leave out a pattern"
        )
    total = sum(sizes.values())
    return f"frozen: {total - left:,} of {total:,} weights, by trainer.freeze=[{', '.join(patterns)}]"


def matching(patterns: Sequence[str], names: Iterable[str], key: str) -> list[str]:
    """Return the names that match a pattern, in their order; `key` is the config key with the patterns.

    Raises:
        UserError: a pattern matches none of them.
    """
    names = list(names)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            groups = list(dict.fromkeys(part for name in names for part in _groups(name)))
            near = suggest(pattern, groups)
            first = ", ".join(dict.fromkeys(f"{name.partition('.')[0]}.*" for name in names))
            raise UserError(f"{key}: no weight has a name like {pattern!r}{near}; there are {first}")
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


def _groups(name: str) -> list[str]:
    """Return the patterns for all that a name is part of, such as encoder.*, and the name itself."""
    parts = accumulate(name.split("."), "{}.{}".format)
    return [*(f"{part}.*" for part in parts if part != name), name]
