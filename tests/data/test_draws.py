"""Random numbers that are hashes: they stay what they are."""

from __future__ import annotations

import numpy as np

from nmt.data.draws import Draws, hashes


def test_the_draws_stay_what_they_are() -> None:
    """A change of the draws would change every run that goes on with text or segmentations drawn anew."""
    keys, counters = np.array([0, 1], np.uint64), np.array([0], np.uint64)
    assert hashes(keys, counters).tolist() == [0xE220A8397B1DCDAF, 0x910A2DEC89025CC1]
    of_key = hashes(np.array([7], np.uint64), np.arange(40, dtype=np.uint64)).tolist()
    draws = Draws(7)
    assert [draws.below(1 << 64) for _ in range(40)] == of_key
    again = Draws(7)
    assert [again.below(10) for _ in range(40)] == [number * 10 >> 64 for number in of_key]
    assert [Draws(7).chance(rate) for rate in (0.0, of_key[0] / 2**64 + 0.01, 1.0)] == [False, True, True]
