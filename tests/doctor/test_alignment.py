"""Shifted sides are found by lengths, and good ones are left alone."""

from __future__ import annotations

import numpy as np
import pytest

from nmt.doctor.alignment import Alignment


def lengths(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    src = rng.integers(5, 200, 5_000)
    return src, np.maximum(1, src * rng.normal(1.1, 0.15, len(src))).astype(np.int64)


@pytest.mark.parametrize("lines", [0, 1, -2])
def test_a_missing_line_is_found_where_it_is(lines: int) -> None:
    src, tgt = lengths()
    tgt = np.concatenate([tgt[:2_000], np.roll(tgt[2_000:], lines)])
    alignment = Alignment()
    alignment.add(src, tgt, 1)
    if not lines:
        assert alignment.shift is None
        assert alignment.correlation is not None
        assert alignment.correlation > 0.9
    else:
        assert alignment.shift is not None
        assert (alignment.shift.first, alignment.shift.lines) == (2_001, lines)
        assert (alignment.shift.parts, alignment.shift.of) == (3, 5)


def test_unrelated_sides_do_not_correlate_and_equal_lengths_say_nothing() -> None:
    alignment = Alignment()
    alignment.add(lengths(0)[0], lengths(1)[0], 1)
    assert alignment.correlation == pytest.approx(0.0, abs=0.05)
    same = Alignment()
    same.add(np.full(100, 7), np.full(100, 7), 1)
    assert same.correlation is None
