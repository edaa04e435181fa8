"""What repeats: exact, and estimated where hashes are many."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from nmt.doctor import hashes
from nmt.doctor.hashes import Repeats, Repetition, mixed


def found(values: list[int], others: list[int], chunk: int = 100) -> Repetition:
    repeats = Repeats()
    for start in range(0, len(values), chunk):
        part, other = (np.array(x[start : start + chunk], np.uint64) for x in (values, others))
        texts = [str(value) for value in part.tolist()], [str(value) for value in other.tolist()]
        rows = np.arange(len(part))
        repeats.add(mixed(part), mixed(other), rows + start + 1, texts, rows)
    return repeats.found(3)


def test_repetitions_are_counted_across_chunks() -> None:
    rng = random.Random(1)
    values, others = ([rng.randrange(most) for _ in range(1000)] for most in (400, 3))
    repetition = found(values, others)
    pairs = {value: {o for v, o in zip(values, others, strict=True) if v == value} for value in values}
    assert repetition.repeated == 1000 - len(set(values))
    assert repetition.ambiguous == sum(len(several) > 1 for several in pairs.values())
    assert repetition.variants == sum(len(several) - 1 for several in pairs.values())
    assert repetition.is_exact
    best = max(Counter(values).values())
    assert repetition.groups[0].times == best
    value = int(repetition.groups[0].texts[0])
    assert Counter(values)[value] == best
    assert repetition.groups[0].first == values.index(value) + 1


def test_of_many_hashes_a_share_is_kept_and_counts_are_estimates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashes, "MAX_KEYS", 2_000)
    repetition = found([value % 5_000 for value in range(10_000)], [0] * 10_000, chunk=1_000)
    assert not repetition.is_exact
    assert repetition.repeated == pytest.approx(5_000, rel=0.15)


def test_nothing_repeats_in_nothing() -> None:
    assert Repeats().found(3) == Repetition(0, 0, 0, [], True)
