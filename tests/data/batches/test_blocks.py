"""The epochs of large corpora: every pair once, part by part, in sequence, and the same after a restart."""

from __future__ import annotations

import os
from collections import Counter
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from nmt.data.batches import blocks
from nmt.data.batches.blocks import epochs_of
from nmt.data.encoded_pairs import EncodedPairs, FileIds, InParts, RaggedIds
from nmt.errors import TrainingStopped


def corpus(size: int, first: int = 0, folder: Path | None = None) -> EncodedPairs:
    """Return pairs whose source is their number, repeated, and whose target is twice as long."""
    sides = []
    for name, factor in (("src", 1), ("tgt", 2)):
        lengths = (np.arange(size) % 5 + 1) * factor
        ids = np.repeat(np.arange(first, first + size), lengths).astype(np.int32)
        if folder:
            (folder / f"{name}{first}").write_bytes(ids.tobytes())
        sides.append(RaggedIds(FileIds(folder / f"{name}{first}", "<i4") if folder else ids, lengths))
    return EncodedPairs(*sides, digest=f"{size}/{first}")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LARGE_PAIRS", 200), ("BLOCK_PAIRS", 16), ("PART_PAIRS", 100)):
        monkeypatch.setattr(blocks, name, value)


def numbers(pairs: EncodedPairs) -> list[int]:
    """Return the numbers of the pairs, once all of their ids are what they must be."""
    found = [int(pairs.src[i][0]) for i in range(len(pairs))]
    for i, number in enumerate(found):
        assert set(pairs.src[i].tolist()) == set(pairs.tgt[i].tolist()) == {number}
        assert len(pairs.tgt[i]) == 2 * len(pairs.src[i])
    return found


def parts(epoch: InParts) -> list[list[int]]:
    return [numbers(epoch.part(number)) for number in range(epoch.num_parts)]


def test_an_epoch_has_every_pair_once_in_an_order_of_its_own(tmp_path: Path) -> None:
    pairs = corpus(1003, folder=tmp_path)
    of_epoch = epochs_of([pairs], [1.0], seed=1)
    first, second = (parts(of_epoch(number)) for number in (1, 2))
    assert len(first) == 11
    assert {len(part) for part in first} <= {91, 92}
    assert sorted(chain(*first)) == sorted(chain(*second)) == list(range(1003))
    assert first != second
    assert set(first[0]) != set(second[0])  # other pairs meet in a part
    assert of_epoch(1).part(3).digest == of_epoch(2).part(0).digest != pairs.digest


def test_a_part_is_a_pure_function_of_its_number() -> None:
    pairs = corpus(1003)
    wanted = parts(epochs_of([pairs], [1.0], seed=1)(2))
    asked = epochs_of([pairs], [1.0], seed=1)(2)  # which reads ahead what may not be asked for next
    for number in (7, 3, 10, 3):
        assert numbers(asked.part(number)) == wanted[number]
        assert numbers(epochs_of([pairs], [1.0], seed=1)(2).part(number)) == wanted[number]
    assert parts(epochs_of([pairs], [1.0], seed=2)(2)) != wanted


def test_blocks_are_read_in_one_piece_and_in_sequence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = corpus(1024, folder=tmp_path)
    assert pairs.src.start(1024) == len(pairs.src.ids)
    reads, plain = list[int](), FileIds.__getitem__

    def counted(ids: FileIds, part: slice) -> object:
        if ids is pairs.src.ids and part != slice(0, 0):
            reads.append(part.start)
        return plain(ids, part)

    monkeypatch.setattr(FileIds, "__getitem__", counted)
    large = blocks.LargeCorpora([pairs], [1.0], 1)
    large.read(1, 4)
    assert len(reads) <= 8
    assert reads == sorted(reads)


def test_ids_that_vanish_end_the_training(tmp_path: Path) -> None:
    epoch = epochs_of([corpus(1003, folder=tmp_path)], [1.0], seed=1)(1)
    os.truncate(tmp_path / "src0", 400)
    message = "the training pairs cannot be read: a file of ids in the cache was cut short; what was saved is"
    with pytest.raises(TrainingStopped, match=message):
        parts(epoch)


def test_corpora_keep_their_shares_in_every_part() -> None:
    large, small = corpus(600), corpus(100, 1000)
    of_epoch = epochs_of([large, corpus(50, 2000), small], [0.5, 0.0, 0.5], seed=1)(1)
    found = parts(of_epoch)
    assert sum(map(len, found)) == 700
    for part in found:
        assert sum(number >= 1000 for number in part) == pytest.approx(len(part) / 2, abs=1)
    counts = Counter(chain(*found))
    assert max(counts[n] for n in range(600)) == 1
    assert {counts[n] for n in range(1000, 1100)} == {3, 4}
    assert not any(2000 <= number < 3000 for number in counts)
    rare = chain(*parts(epochs_of([large, small], [0.9999, 0.0001], seed=1)(1)))
    assert sum(number >= 1000 for number in rare) == 1


def test_each_pass_over_each_corpus_draws_anew_and_keeps_the_order_of_a_small_one() -> None:
    """Two corpora of one size, each read twice in six parts: the second pass begins with the fourth."""
    found = parts(epochs_of([corpus(150), corpus(150, 1000)], [1.0, 1.0], seed=1)(1))
    one, two = (
        [[n - first for n in part if n // 1000 == first // 1000] for part in found] for first in (0, 1000)
    )
    assert [len(part) for part in (*one, *two)] == [50] * 12
    assert one[:3] != one[3:]
    assert one[:3] != two[:3]
    assert all(part == sorted(part) for part in (*one, *two))


def test_long_pairs_make_more_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = corpus(1000)  # of 36 bytes each
    monkeypatch.setattr(blocks, "PART_BYTES", 1800)
    assert epochs_of([pairs], [1.0], seed=1)(1).num_parts == 20


def test_corpora_that_are_not_large_are_one_part_as_they_are() -> None:
    pairs = corpus(200)
    epoch = epochs_of([pairs, corpus(100, 1000)], [1.0, 0.0], seed=1)(1)
    assert epoch.num_parts == 1
    assert epoch.part(0) is pairs
