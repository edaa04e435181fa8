"""The plan of an epoch as a function of its arguments, and what a batch is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nmt.data.batches import batching
from nmt.data.batches.batching import (
    Batch,
    Indices,
    collate,
    dealt,
    pad,
    plan_epoch,
    plan_in_order,
)
from nmt.data.encoded_pairs import EncodedPairs, Lengths, RaggedIds
from nmt.data.special_ids import BOS_ID, EOS_ID, PAD_ID
from nmt.runtime import derive_seed

Sides = tuple[Lengths, Lengths]


def share_of_padding(batches: Sequence[Indices], lengths: Lengths) -> float:
    positions = sum(len(batch) * int(lengths[batch].max()) for batch in batches)
    return 1.0 - sum(int(lengths[batch].sum()) for batch in batches) / positions


def as_sides(lengths: list[tuple[int, int]]) -> Sides:
    array = np.asarray(lengths, dtype=np.int64).reshape(-1, 2)
    return array[:, 0], array[:, 1]


corpora = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), max_size=80).map(as_sides)
budgets = st.integers(1, 200)
seeds = st.integers(0, 2**31)


def as_lists(plan: Sequence[Indices]) -> list[list[int]]:
    return [batch.tolist() for batch in plan]


def check_plan(plan: Sequence[Indices], sides: Sides, max_tokens: int) -> None:
    everything = [index for batch in as_lists(plan) for index in batch]
    assert sorted(everything) == list(range(len(sides[0])))
    for batch in plan:
        padded_size = len(batch) * max(int(lengths[batch].max()) for lengths in sides)
        assert padded_size <= max_tokens or len(batch) == 1


@given(corpora, seeds, st.integers(1, 5), budgets)
def test_every_pair_once_and_within_the_budget(sides: Sides, seed: int, epoch: int, max_tokens: int) -> None:
    plan = plan_epoch(*sides, seed=seed, epoch=epoch, max_tokens=max_tokens)
    check_plan(plan, sides, max_tokens)
    again = plan_epoch(*sides, seed=seed, epoch=epoch, max_tokens=max_tokens)
    assert as_lists(plan) == as_lists(again)


@given(corpora, seeds, st.integers(1, 30), budgets)
def test_pools_hold_every_pair_once_too(sides: Sides, seed: int, pool: int, max_tokens: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batching, "POOL_PAIRS", pool)
        plan = plan_epoch(*sides, seed=seed, epoch=1, max_tokens=max_tokens)
        again = plan_epoch(*sides, seed=seed, epoch=1, max_tokens=max_tokens)
    check_plan(plan, sides, max_tokens)
    assert as_lists(plan) == as_lists(again)


def by_longer_side(sides: Sides, rng: np.random.Generator) -> list[int]:
    """Pair by pair: the longer side, the difference in alternating direction, and then by lot."""
    lot = rng.permutation(len(sides[0])).tolist()

    def key(pair: int) -> tuple[int, int, int]:
        src, tgt = (int(lengths[pair]) for lengths in sides)
        longer = max(src, tgt)
        return longer, src - tgt if longer % 2 else tgt - src, lot.index(pair)

    return sorted(lot, key=key)


def by_target(sides: Sides, rng: np.random.Generator) -> list[int]:
    """As in the plans of runs that earlier versions began."""
    return np.lexsort((rng.random(len(sides[0])), sides[0] // 2, sides[1])).tolist()


@pytest.mark.parametrize("sort", [by_longer_side, by_target])
@given(corpora, seeds, st.integers(1, 5), budgets)
def test_one_pool_is_sorted_cut_and_shuffled(
    sort: Callable[[Sides, np.random.Generator], list[int]],
    sides: Sides,
    seed: int,
    epoch: int,
    max_tokens: int,
) -> None:
    rngs = [np.random.default_rng(derive_seed(seed, epoch, part)) for part in ("pairs", "batches")]
    order = sort(sides, rngs[0])
    batches: list[list[int]] = []
    for pair in order:
        tried = [*batches[-1], pair] if batches else [pair]
        size = len(tried) * max(int(lengths[tried].max()) for lengths in sides)
        if batches and size <= max_tokens:
            batches[-1] = tried
        else:
            batches.append([pair])
    is_old = sort is by_target
    plan = plan_epoch(*sides, seed=seed, epoch=epoch, max_tokens=max_tokens, by_target=is_old)
    assert as_lists(plan) == [batches[turn] for turn in rngs[1].permutation(len(batches))]
    assert as_lists(plan[1:]) == as_lists(plan)[1:]


def test_batches_of_pools_are_hardly_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "POOL_PAIRS", 1000)
    lengths = np.random.default_rng(1).integers(1, 40, size=10_000).astype(np.uint16)
    plan = plan_epoch(lengths, lengths, seed=1, epoch=1, max_tokens=400)
    assert share_of_padding(plan, lengths) < 0.05
    pools = [set((np.sort(batch) // 1000).tolist()) for batch in plan]
    assert sum(len(pool) > 1 for pool in pools) > len(plan) / 2  # a pool is a random sample of the corpus


@given(corpora, budgets)
def test_in_order_every_pair_once_from_short_to_long(sides: Sides, max_tokens: int) -> None:
    plan = plan_in_order(*sides, max_tokens=max_tokens)
    check_plan(plan, sides, max_tokens)
    tgt_lengths = [int(sides[1][index]) for batch in plan for index in batch]
    assert tgt_lengths == sorted(tgt_lengths)


@settings(max_examples=20)
@given(seeds, st.integers(1, 1000))
def test_another_epoch_or_seed_is_another_plan(seed: int, epoch: int) -> None:
    lengths = np.arange(1, 101) % 10 + 1
    plans = [
        plan_epoch(lengths, lengths, seed=s, epoch=e, max_tokens=40)
        for s, e in ((seed, epoch), (seed, epoch + 1), (seed + 1, epoch))
    ]
    for first, second in ((0, 1), (0, 2), (1, 2)):
        assert as_lists(plans[first]) != as_lists(plans[second])  # another order
        batches = [{frozenset(batch) for batch in as_lists(plans[i])} for i in (first, second)]
        assert batches[0] != batches[1]  # and other companions


def test_a_long_pair_leaves_the_next_batch_whole() -> None:
    src_lengths, tgt_lengths = np.array([50, 2, 2, 2, 2]), np.array([1, 2, 2, 2, 2])
    assert as_lists(plan_in_order(src_lengths, tgt_lengths, max_tokens=50)) == [[0], [1, 2, 3, 4]]


def test_batches_come_in_random_order() -> None:
    lengths = np.arange(1, 101)
    plan = plan_epoch(lengths, lengths, seed=1, epoch=1, max_tokens=200)
    longest = [int(lengths[batch].max()) for batch in plan]
    assert longest not in (sorted(longest), sorted(longest, reverse=True))


def test_batches_are_full_and_hardly_padded() -> None:
    rng = np.random.default_rng(1)
    src_lengths = rng.integers(1, 40, size=2000)
    tgt_lengths = np.maximum(src_lengths + rng.integers(-2, 3, size=2000), 1)
    plan = plan_epoch(src_lengths, tgt_lengths, seed=1, epoch=1, max_tokens=800)
    assert len(plan) <= 1.06 * np.maximum(src_lengths, tgt_lengths).sum() / 800
    assert share_of_padding(plan, tgt_lengths) < 0.05
    assert share_of_padding(plan, src_lengths) < 0.05
    as_they_come = [np.arange(first, first + 20) for first in range(0, 2000, 20)]
    assert share_of_padding(as_they_come, tgt_lengths) > 0.4


@given(corpora, seeds, budgets)
def test_the_largest_batches_are_those_of_most_padded_tokens(
    sides: Sides, seed: int, max_tokens: int
) -> None:
    """Of both sides together, and of most pairs of tokens, as attention sees them."""
    assume(len(sides[0]))
    plan = plan_epoch(*sides, seed=seed, epoch=1, max_tokens=max_tokens)
    found = plan.largest(*sides)
    assert len(found) in (1, 2)
    assert {tuple(batch) for batch in found} <= set(map(tuple, as_lists(plan)))
    for power in (1, 2):
        sizes, of_largest = (
            [len(batch) * sum(int(lengths[batch].max()) for lengths in sides) ** power for batch in batches]
            for batches in (plan, found)
        )
        assert max(of_largest) == max(sizes)


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 12), st.integers(1, 9))
def test_every_pair_of_an_update_has_one_process(
    num_batches: int, accumulate: int, size: int, longest: int
) -> None:
    """Whatever their number; all compute as many parts, and as many pairs as come out even."""
    num_batches = min(num_batches, accumulate)  # fewer at the end of an epoch
    group = [np.arange(100 * i, 100 * i + 1 + i % longest) for i in range(num_batches)]
    parts = [dealt(group, accumulate, rank, size) for rank in range(size)]
    assert len({len(part) for part in parts}) == 1
    found = sorted(int(pair) for part in parts for indices in part for pair in indices)
    assert found == sorted(int(pair) for indices in group for pair in indices)
    if accumulate % size == 0:
        assert {tuple(indices) for part in parts for indices in part if len(indices)} == set(
            map(tuple, group)
        )
        assert len(parts[0]) == -(-num_batches // size)


def test_batches_that_are_too_few_for_all_processes_are_shared() -> None:
    group = [np.arange(8) + 10 * i for i in range(3)]
    assert as_lists(dealt(group[:1], 1, 1, 2)) == [[1, 3, 5, 7]]
    assert [as_lists(dealt(group[:2], 2, rank, 4)) for rank in (0, 3)] == [[[0, 2, 4, 6]], [[11, 13, 15, 17]]]
    assert as_lists(dealt(group, 3, 1, 2)) == [[*range(10, 18)], [21, 23, 25, 27]]
    assert as_lists(dealt(group[:1], 2, 3, 4)) == [[]]  # the last update of an epoch: no larger parts


def encoded(src: list[list[int]], tgt: list[list[int]]) -> EncodedPairs:
    return EncodedPairs(*(RaggedIds.of(side) for side in (src, tgt)))


def test_collate_pads_and_shifts() -> None:
    src = [[11, EOS_ID], [12, 13, 14, EOS_ID], [15, 16, EOS_ID]]
    tgt = [[21, 22, 23, EOS_ID], [24, EOS_ID], [25, 26, EOS_ID]]
    batch = collate(encoded(src, tgt), np.array([2, 1]))
    assert batch.src.tolist() == [[15, 16, EOS_ID, PAD_ID], [12, 13, 14, EOS_ID]]
    assert batch.src_mask.tolist() == [[True, True, True, False], [True, True, True, True]]
    assert batch.tgt_in.tolist() == [[BOS_ID, 25, 26], [BOS_ID, 24, EOS_ID]]
    assert batch.tgt_out.tolist() == [[25, 26, EOS_ID], [24, EOS_ID, PAD_ID]]
    assert batch.num_tokens == 5
    assert {batch.src.dtype, batch.tgt_in.dtype, batch.tgt_out.dtype} == {torch.int64}
    assert batch.to(torch.device("cpu")) is batch


sentence = st.lists(st.integers(EOS_ID + 1, 1000), max_size=8).map(lambda ids: [*ids, EOS_ID])


@given(st.lists(st.tuples(sentence, sentence), min_size=1, max_size=6))
def test_collate_keeps_every_token(pairs: list[tuple[list[int], list[int]]]) -> None:
    src, tgt = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    batch = collate(encoded(src, tgt), range(len(pairs)))
    real = batch.tgt_out != PAD_ID
    assert [row[mask].tolist() for row, mask in zip(batch.src, batch.src_mask, strict=True)] == src
    assert [row[mask].tolist() for row, mask in zip(batch.tgt_out, real, strict=True)] == tgt
    assert torch.equal(batch.src_mask, batch.src != PAD_ID)
    assert batch.num_tokens == int(real.sum()) == sum(map(len, tgt))
    assert (batch.tgt_in[:, 0] == BOS_ID).all()
    assert torch.equal(batch.tgt_in[:, 1:], batch.tgt_out[:, :-1])
    assert batch.src.shape[1] == max(map(len, src))
    assert batch.tgt_out.shape[1] == max(map(len, tgt))


def test_pad_of_lists() -> None:
    ids, mask = pad([[5, 6, EOS_ID], [EOS_ID]])
    assert ids.tolist() == [[5, 6, EOS_ID], [EOS_ID, PAD_ID, PAD_ID]]
    assert mask.tolist() == [[True, True, True], [True, False, False]]


@pytest.mark.gpu
def test_batch_moves_to_the_gpu() -> None:
    device = torch.device("cuda")
    batch = collate(encoded([[11, EOS_ID]], [[21, 22, EOS_ID]]), [0])
    moved: Batch = batch.to(device)
    for field in ("src", "src_mask", "tgt_in", "tgt_out"):
        there, here = getattr(moved, field), getattr(batch, field)
        assert there.device.type == "cuda"
        assert torch.equal(there.cpu(), here)
    assert moved.num_tokens == batch.num_tokens
