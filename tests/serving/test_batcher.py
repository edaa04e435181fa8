"""The queue of a server: what shares a batch, whose turn it is, and what is refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from nmt.decoding import BeamConfig
from nmt.serving.answers import Question
from nmt.serving.batcher import Batcher, ModelThread, PendingRequest, Refused
from nmt.serving.configs import ServingConfig
from nmt.serving.counters import Counters

QUESTION = Question(BeamConfig(beam_size=1, batch_tokens=12))


class Worker:
    """A worker that answers a line with itself, when it may."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.begun, self.may_go_on = threading.Semaphore(0), threading.Event()

    def __call__(self, lines: Sequence[str], questions: Sequence[Question]) -> list[dict[str, Any]]:
        self.batches.append(list(lines))
        self.begun.release()
        assert self.may_go_on.wait(10)
        if "fail" in lines:
            raise ValueError("a bug")
        return [{"text": line} for line in lines]


def run(test: Callable[[Batcher, Worker], Awaitable[None]], **limits: Any) -> Worker:
    """Run a test whose worker is at work on the line "first", which it does not answer yet."""

    async def whole() -> Worker:
        worker = Worker()
        with ModelThread() as thread:
            async with Batcher(worker, ServingConfig(**limits), Counters(), thread) as batcher:
                first = put(batcher, "first")
                await asyncio.to_thread(worker.begun.acquire)
                try:
                    await test(batcher, worker)
                finally:
                    worker.may_go_on.set()
                assert await first.done == [{"text": "first"}]
        return worker

    return asyncio.run(asyncio.wait_for(whole(), 20))


def put(batcher: Batcher, *lines: str, question: Question = QUESTION) -> PendingRequest:
    """Put lines into the queue, each with as many tokens as it has characters."""
    return batcher.submit(lines, [len(line) for line in lines], question)


def test_the_thread_of_the_worker_begins_as_it_is_told() -> None:
    """A GPU is made the current one of this thread."""
    seen: list[str] = []

    def worker(lines: Sequence[str], questions: Sequence[Question]) -> list[dict[str, Any]]:
        seen.append(f"worker in {threading.current_thread().name}")
        return [{"text": line} for line in lines]

    def begin() -> None:
        seen.append(f"begun in {threading.current_thread().name}")

    async def whole() -> None:
        with ModelThread(begin) as thread:
            async with Batcher(worker, ServingConfig(), Counters(), thread) as batcher:
                await put(batcher, "line").done

    asyncio.run(asyncio.wait_for(whole(), 20))
    assert seen == ["begun in model_0", "worker in model_0"]


async def texts(request: PendingRequest) -> list[str]:
    return [answer["text"] for answer in await request.done]


def test_requests_share_batches_of_similar_length_and_keep_their_order() -> None:
    async def test(batcher: Batcher, worker: Worker) -> None:
        one, two = put(batcher, "aaaa", "bb", "cccc"), put(batcher, "dd", "eeee", "ff")
        worker.may_go_on.set()
        assert await texts(one) == ["aaaa", "bb", "cccc"]
        assert await texts(two) == ["dd", "eeee", "ff"]

    assert [sorted(batch) for batch in run(test).batches] == [
        ["first"],
        ["aaaa", "cccc", "eeee"],
        ["bb", "dd", "ff"],
    ]


def test_a_batch_has_the_lines_nearest_in_length_as_far_as_there_is_room() -> None:
    async def test(batcher: Batcher, worker: Worker) -> None:
        several = put(batcher, "aaa", "bbbbbb", "cc", "ddddd", "e", "ff", "ggggg")
        worker.may_go_on.set()
        await several.done

    assert run(test).batches == [["first"], ["aaa", "cc", "ff"], ["bbbbbb", "ddddd"], ["e", "ggggg"]]


def test_another_search_is_another_batch() -> None:
    async def test(batcher: Batcher, worker: Worker) -> None:
        other = put(batcher, "b", question=Question(BeamConfig(beam_size=2, batch_tokens=12)))
        equal = put(batcher, "a", question=Question(BeamConfig(beam_size=1, batch_tokens=12), scores=True))
        same = put(batcher, "c")
        worker.may_go_on.set()
        await asyncio.gather(other.done, equal.done, same.done)

    assert run(test).batches == [["first"], ["b"], ["a", "c"]]


def test_a_line_alone_overtakes_the_rest_of_a_long_request() -> None:
    async def test(batcher: Batcher, worker: Worker) -> None:
        long = put(batcher, *(12 * letter for letter in "abcdef"))
        alone = put(batcher, "x")
        worker.may_go_on.set()
        await asyncio.gather(long.done, alone.done)

    assert ["x"] in run(test).batches[:3]


def test_lines_alone_do_not_keep_a_long_request_waiting_for_ever() -> None:
    async def test(batcher: Batcher, worker: Worker) -> None:
        long = put(batcher, *(12 * letter for letter in "abcdef"))
        worker.may_go_on.set()

        async def ask() -> None:
            for _ in range(40):
                await put(batcher, 12 * "x").done

        await asyncio.gather(ask(), ask())
        assert long.done.done()

    batches = run(test).batches
    assert [["x" * 12]] * 4 not in [batches[i : i + 4] for i in range(batches.index(["f" * 12]))]


def test_a_long_request_and_lines_alone_have_the_same_share() -> None:
    async def test(batcher: Batcher, worker: Worker) -> None:
        long = put(batcher, *(12 * letter for letter in "abcdefgh"))
        worker.may_go_on.set()
        while not long.done.done():
            await put(batcher, 12 * "x").done

    order = "".join(batch[0][0] for batch in run(test).batches[1:])
    assert order == "axbxcxdxexfxgxhx"


def test_a_full_queue_refuses_at_once_and_says_when_to_come_again() -> None:
    async def test(batcher: Batcher, worker: Worker) -> None:
        put(batcher, "a" * 15)
        for seconds_per_token, retry_after in ((0.0, 1), (0.3, 6), (1000.0, 60)):
            batcher._seconds_per_token = seconds_per_token
            with pytest.raises(
                Refused, match="the server is busy: 2 requests with 20 tokens wait"
            ) as refused:
                put(batcher, "b")
            assert refused.value.retry_after == retry_after
        assert batcher.queue == {"requests": 2, "sentences": 2, "tokens": 20}

    run(test, queue_tokens=20)

    async def of_requests(batcher: Batcher, worker: Worker) -> None:
        with pytest.raises(Refused, match="1 requests"):
            put(batcher, "b")

    run(of_requests, queue_requests=1)


def test_a_request_that_is_read_has_its_place_in_the_queue() -> None:
    async def test(batcher: Batcher, worker: Worker) -> None:
        with batcher.reading():
            assert batcher.queue == {"requests": 2, "sentences": 1, "tokens": 5}
            with pytest.raises(Refused, match="2 requests"), batcher.reading():
                pass
            with pytest.raises(Refused, match="2 requests"):
                put(batcher, "b")
        put(batcher, "a")
        batcher.close()
        with pytest.raises(Refused, match="the server is stopping"), batcher.reading():
            pass

    run(test, queue_requests=2)


def test_a_request_that_is_given_up_leaves_the_queue() -> None:
    async def test(batcher: Batcher, worker: Worker) -> None:
        left = put(batcher, "aaa", "bbb")
        left.done.cancel()
        await asyncio.sleep(0)
        assert batcher.queue == {"requests": 1, "sentences": 1, "tokens": 5}

    assert run(test).batches == [["first"]]


def test_a_stop_answers_what_is_translated_and_refuses_the_rest() -> None:
    async def test(batcher: Batcher, worker: Worker) -> None:
        waiting = put(batcher, "a")
        batcher.close()
        with pytest.raises(Refused, match="the server is stopping"):
            await waiting.done
        with pytest.raises(Refused, match="the server is stopping"):
            put(batcher, "b")

    assert run(test).batches == [["first"]]


def test_an_error_reaches_the_request_that_it_comes_from() -> None:
    async def test(batcher: Batcher, worker: Worker) -> None:
        failed, other = put(batcher, "fail", "aaaa"), put(batcher, "bbbb")
        worker.may_go_on.set()
        with pytest.raises(ValueError, match="a bug"):
            await failed.done
        assert await texts(other) == ["bbbb"]

    assert run(test).batches == [["first"], ["fail", "bbbb", "aaaa"], ["fail", "aaaa"], ["bbbb"]]


def test_models_that_share_a_thread_take_turns_and_never_answer_at_once() -> None:
    calls, one_at_a_time = list[str](), threading.Lock()
    begun, may_go_on = threading.Semaphore(0), threading.Event()

    def worker_of(name: str) -> Callable[[Sequence[str], Sequence[Question]], list[dict[str, Any]]]:
        def worker(lines: Sequence[str], questions: Sequence[Question]) -> list[dict[str, Any]]:
            assert one_at_a_time.acquire(blocking=False)
            calls.append(name)
            begun.release()
            assert may_go_on.wait(10)
            one_at_a_time.release()
            return [{"text": line} for line in lines]

        return worker

    async def test(one: Batcher, two: Batcher) -> None:
        long = put(one, *(12 * letter for letter in "abcd"))
        await asyncio.to_thread(begun.acquire)
        first, second, left, stopped = (put(two, 12 * letter) for letter in "efgh")
        await asyncio.sleep(0)
        left.done.cancel()
        may_go_on.set()
        await asyncio.gather(first.done, second.done)
        two.close()
        with pytest.raises(Refused, match="the server is stopping"):
            await stopped.done
        await long.done

    async def whole() -> None:
        with ModelThread() as thread:
            async with (
                Batcher(worker_of("one"), ServingConfig(), Counters(), thread) as one,
                Batcher(worker_of("two"), ServingConfig(), Counters(), thread) as two,
            ):
                await test(one, two)

    asyncio.run(asyncio.wait_for(whole(), 20))
    assert calls == ["one", "two", "one", "two", "one", "one"]
