"""Progress of work: who listens is told of every item, and nobody else pays for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nmt.distributed import World
from nmt.progress import Work, heard_by, told

BATCHES = [[1, 2], [3], [4, 5, 6]]


def test_a_list_tells_its_total_and_the_share_of_its_items() -> None:
    heard: list[Work | None] = []
    with heard_by(heard.append):
        assert list(told(BATCHES, "translating", "lines")) == BATCHES
    assert heard == [
        *(Work("translating", "lines", done, 6, share / 3) for share, done in enumerate([0, 2, 3])),
        None,
    ]


@pytest.mark.parametrize(("total", "shares"), [(None, [None] * 3), (6, [0.0, 1 / 3, 0.5])])
def test_a_stream_tells_what_it_knows(total: int | None, shares: list[float | None]) -> None:
    heard: list[Work | None] = []
    with heard_by(heard.append):
        list(told(iter(BATCHES), "reading", "pairs", total=total))
    assert [work.share for work in heard if work] == shares
    assert [work.done for work in heard if work] == [0, 2, 3]
    assert heard[-1] is None


def test_work_that_fails_has_ended() -> None:
    heard: list[Work | None] = []

    def failing() -> Iterator[list[int]]:
        yield BATCHES[0]
        raise OSError

    with heard_by(heard.append), pytest.raises(OSError, match=r"^$"):
        list(told(failing(), "reading", "pairs"))
    assert heard[-1] is None


def test_nobody_listens_outside_the_block() -> None:
    heard: list[Work | None] = []
    with heard_by(heard.append):
        pass
    assert list(told(BATCHES, "translating", "lines")) == BATCHES
    assert heard == []


def test_a_rank_tells_of_the_work_of_all_ranks() -> None:
    heard: list[Work | None] = []
    with heard_by(heard.append):
        assert list(World(rank=1, size=2).shard(told(BATCHES, "translating", "lines"))) == [[3]]
    assert [work.done for work in heard if work] == [0, 2, 3]
    assert heard[-1] is None
