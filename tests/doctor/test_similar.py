"""Pairs of a sample that are nearly equal, and the sample itself."""

from __future__ import annotations

import numpy as np

from nmt.data.parallel_text import ParallelText
from nmt.doctor.similar import Sample, similar_pairs


def test_nearly_equal_pairs_are_found_and_equal_letters_are_not() -> None:
    long = "the quick brown fox jumps over the lazy dog and runs away into the dark forest"
    src = ["nothing like the others at all here", long, long.replace("lazy", "hazy"), long.upper(), "x", ""]
    (found,) = similar_pairs(ParallelText(src, ["" for _ in src]))
    assert found[:2] == (2, 1)
    assert 0.8 <= found[2] < 1.0


def test_the_sample_does_not_depend_on_chunks_and_is_spread() -> None:
    lines = [str(number) for number in range(1, 3_001)]
    samples = []
    for chunk in (3_000, 70):
        sample = Sample(100, seed=1)
        for start in range(0, len(lines), chunk):
            part = lines[start : start + chunk]
            sample.add(part, part, np.arange(start + 1, start + 1 + len(part)))
        samples.append(sample.taken())
    assert samples[0] == samples[1]
    rows, text = samples[0]
    assert len(rows) == 100
    assert text.src == [str(row) for row in rows]
    assert 1_200 < np.mean(rows) < 1_800
