"""Limits of all numbers of a config: none is NaN or absurdly large, whoever wrote it.

The dataclasses state which values make sense; the limits here are far above any that anybody uses, and below
what makes torch or a library crash, allocate without end or never return. Knows keys and values alone.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from fnmatch import fnmatch
from typing import Any

LARGEST = {
    "runtime.threads": 1_024,
    "*workers": 1_024,
    "model.*layers": 1_000,
    "model.max_*": 1_000_000,
    "model.*": 65_536,
    "tokenizer.vocab_size": 10_000_000,
    "optimizer.iterations": 1_000,
    "trainer.num_samples": 10_000,
    "trainer.accumulate": 1_000_000,
    "*decoding.beam_size": 1_000,
    "*decoding.n_best": 10_000,
    "*decoding.num_samples": 4_096,
    "*decoding.max_length_ratio": 1_000,
    "*decoding.max_length_offset": 100_000,
    "*decoding.max_source_tokens": 1_000_000,
    "*batch_tokens": 1_000_000_000,
    "*": 2**53,
}
"""Pattern of full keys -> the largest number in size; the first pattern that matches counts."""

REASONS = {
    "*decoding.beam_size": "; the time and memory of a search grow with it, and translations get worse with "
    "very wide beams (Koehn and Knowles 2017)",
}
"""Patterns of full keys -> why the limit is so low."""

MAY_BE_INFINITE = ("data.*max_ratio", "trainer.max_minutes")
"""Keys where infinity says that there is no limit."""


def excesses(plain: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield a sentence for every number in nested dicts that is not finite or too large."""
    for name, value in plain.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict):
            yield from excesses(value, f"{key}.")
        elif isinstance(value, float) and not math.isfinite(value):
            if value != math.inf or not any(fnmatch(key, pattern) for pattern in MAY_BE_INFINITE):
                yield f"{key} must be a finite number, but is {value}"
        elif isinstance(value, int | float):
            largest = _largest(key)
            if abs(value) > largest:
                why = next((reason for pattern, reason in REASONS.items() if fnmatch(key, pattern)), "")
                bound = f"{'at most ' if value > 0 else 'at least -'}{largest:,}"
                yield f"{key} must be {bound}, but is {value}{why}"


@functools.lru_cache(maxsize=4096)
def _largest(key: str) -> int:
    """Return the largest number in size that `key` may have."""
    return next(bound for pattern, bound in LARGEST.items() if fnmatch(key, pattern))
