"""What ranks agree on between updates, and that a rank with other weights is found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import pytest
import torch
from torch import nn

from nmt.distributed import ALONE, World
from nmt.training.agreement import MOST_UPDATES, Agreement, checksums, drift

T = TypeVar("T")


class Slower(World):
    """Rank 0 of two; the other one has taken twice the time, and has received SIGTERM."""

    def all_reduce_maxima(self, values: Sequence[float]) -> list[float]:
        return [2 * values[0], 15.0, values[2]]


@pytest.mark.parametrize(("seconds", "steps"), [(1.0, 1), (0.3, 1), (0.04, 6), (1e-6, MOST_UPDATES)])
def test_exchanges_follow_the_time_that_all_have_agreed_on(seconds: float, steps: int) -> None:
    agreement = Agreement(Slower(rank=0, size=2))
    for step in (1, 1 + steps):
        assert agreement.is_due(step)
        assert agreement.reach(step, seconds * step, 0, True) == (2 * seconds * step, 15, True)
        assert [agreement.is_due(step + n) for n in (steps - 1, steps)] == [False, True]


def test_a_process_that_is_alone_looks_after_every_update() -> None:
    agreement = Agreement(ALONE)
    for step in (1, 2):
        assert agreement.is_due(step)
        assert agreement.reach(step, 1e-9, step, False) == (1e-9, step, False)


class Beside(World):
    """Rank 0, with the sums of another rank."""

    def all_gather(self, value: T) -> list[T]:
        return [value, OTHERS]  # type: ignore[list-item]


OTHERS: list[int] = []


@pytest.mark.parametrize("bits", [0, 1])
def test_one_bit_of_one_weight_is_noticed(bits: int) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2).double(), nn.Linear(4, 2).bfloat16())
    OTHERS[:] = checksums(model.parameters())
    with torch.no_grad():
        model.get_parameter("2.weight")[1, 2:3].view(torch.int16).bitwise_xor_(bits)
    found = drift(Beside(rank=0, size=2), model)
    expected = "rank 1 has other weights than rank 0 in 1 of 6 tensors, such as 2.weight, though all ranks "
    assert found == (f"{expected}make the same updates" if bits else "")
