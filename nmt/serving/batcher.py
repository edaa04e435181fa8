"""Requests that wait, and the batches of one worker.

The queue belongs to the event loop, so that nothing is locked; one thread owns the model and answers one
batch after the other. Several models have a queue each and share the thread, in which they take turns batch
by batch: no two compute at once, each with all cores of the processor. A batch is what waits for the same
search, nearest in length to the sentence whose turn it is, up to `decoding.batch_tokens`; nothing waits for a
batch to become full. Requests take turns by their tokens (start-time fair queueing, Goyal et al. 1996): a
line alone overtakes the rest of a long request. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from math import ceil
from operator import attrgetter
from time import monotonic
from typing import Any

from nmt.errors import NmtError
from nmt.serving.answers import Question
from nmt.serving.configs import ServingConfig
from nmt.serving.counters import Counters

Answer = dict[str, Any]
Worker = Callable[[Sequence[str], Sequence[Question]], list[Answer]]
"""A function of lines and the question about each, of one search, that returns the answers."""


class Refused(NmtError):
    """The server cannot take a request now."""

    def __init__(self, message: str, retry_after: int):
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds after which it is worth trying again."""


class PendingRequest:
    """The lines of a request, and their answers when all are there."""

    def __init__(self, question: Question, num_lines: int):
        self.question = question
        self.is_suspect = False
        """Whether a batch with lines of this request has failed; it then shares no other."""
        self.answers: list[Answer | None] = [None] * num_lines
        self.done: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()


@dataclass
class Waiting:
    """A line in the queue."""

    request: PendingRequest
    place: int
    line: str
    tokens: int
    turn: float
    """Tokens that are translated before its turn, by the clock of the queue."""


class ModelThread:
    """The thread in which models answer, one batch at a time; it first calls `begin`. A context manager."""

    def __init__(self, begin: Callable[[], None] | None = None):
        self.turn = asyncio.Lock()
        """What the model has that is at work; the others get it in the order in which they came."""
        self._executor = ThreadPoolExecutor(1, "model", initializer=begin)

    def __enter__(self) -> ModelThread:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown()

    def call(
        self, worker: Worker, lines: Sequence[str], questions: Sequence[Question]
    ) -> asyncio.Future[list[Answer]]:
        """Call a worker in the thread."""
        return asyncio.get_running_loop().run_in_executor(self._executor, worker, lines, questions)


class Batcher:
    """The queue and its worker, which is called in `thread`; a context manager of a running event loop."""

    def __init__(self, worker: Worker, cfg: ServingConfig, counters: Counters, thread: ModelThread):
        self.cfg = cfg
        self.counters = counters
        self.requests = set[PendingRequest]()
        """Those that wait or are being answered."""
        self._worker, self._thread = worker, thread
        self._waiting: list[Waiting] = []
        self._running: list[Waiting] = []
        self._clock = 0.0
        self._seconds_per_token = 0.0
        self._num_read = 0
        self._closed = False
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Batcher:
        self._task = asyncio.create_task(self._work())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
        await self._task

    @property
    def queue(self) -> dict[str, int]:
        """What waits or is being answered, requests that are being read included."""
        every = [*self._waiting, *self._running]
        tokens = sum(one.tokens for one in every)
        return {"requests": len(self.requests) + self._num_read, "sentences": len(every), "tokens": tokens}

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Count a request whose tokens are not known yet, while the block lasts, among those of the queue.

        Raises:
            Refused: the queue is full, or the server is stopping.
        """
        self._require_room(1)
        self._num_read += 1
        try:
            yield
        finally:
            self._num_read -= 1

    def submit(self, lines: Sequence[str], tokens: Sequence[int], question: Question) -> PendingRequest:
        """Put a request into the queue.

        Raises:
            Refused: the queue is full, or the server is stopping.
        """
        self._require_room(sum(tokens))
        request = PendingRequest(question, len(lines))
        turns = accumulate(tokens, initial=self._clock)
        places = zip(range(len(lines)), lines, tokens, turns, strict=False)
        self._waiting += [Waiting(request, *place) for place in places]
        self.requests.add(request)
        request.done.add_done_callback(lambda _: self._forget(request))
        if not lines:
            request.done.set_result([])
        self._changed.set()
        return request

    def _require_room(self, tokens: int) -> None:
        """Raise `Refused` unless another request of so many tokens may wait."""
        if self._closed:
            raise Refused("the server is stopping", 1)
        queued = self.queue
        full = queued["requests"] >= self.cfg.queue_requests or (
            queued["tokens"] and queued["tokens"] + tokens > self.cfg.queue_tokens
        )
        if full:
            seconds = ceil(queued["tokens"] * self._seconds_per_token)
            raise Refused(
                f"the server is busy: {queued['requests']} requests with {queued['tokens']:,} tokens wait; "
                "try again later",
                min(max(seconds, 1), 60),
            )

    def close(self) -> None:
        """Refuse what waits and what comes; a request of which the rest is being translated is answered."""
        self._closed = True
        ending = {one.request for one in self._running} - {one.request for one in self._waiting}
        for request in self.requests - ending:
            if not request.done.done():
                request.done.set_exception(Refused("the server is stopping", 1))
        self._changed.set()

    def _forget(self, request: PendingRequest) -> None:
        """Drop what still waits of a request that is answered, refused or given up."""
        self.requests.discard(request)
        self._waiting = [one for one in self._waiting if one.request is not request]

    async def _work(self) -> None:
        """Answer batch after batch until the queue is closed."""
        while not self._closed or self._waiting:
            if not self._waiting:
                self._changed.clear()
                await self._changed.wait()
                continue
            async with self._thread.turn:
                if self._waiting:  # still: clients leave meanwhile
                    await self._answer(self._next_batch())

    async def _answer(self, batch: Sequence[Waiting]) -> None:
        """Have the worker answer a batch."""
        self._running = [*batch]
        lines, questions = [one.line for one in batch], [one.request.question for one in batch]
        begun = monotonic()
        job = self._thread.call(self._worker, lines, questions)
        await asyncio.wait([job])
        self._running = []
        self._count(batch, monotonic() - begun)
        self._deliver(batch, job)

    def _next_batch(self) -> list[Waiting]:
        """Take the next batch out of the queue."""
        first = min(self._waiting, key=attrgetter("turn"))
        search = first.request.question.search
        sharing = {one for one in self.requests if _may_share(one, first.request)}
        alike = (one for one in self._waiting if one.request in sharing)
        room = search.tokens_at_once("cpu") // search.rows_per_sentence  # also on a GPU: answers are awaited
        most = max(1, room // first.tokens)  # which is the first of them, and perhaps not the longest
        nearest = heapq.nsmallest(most, alike, lambda one: (abs(one.tokens - first.tokens), one.turn))
        longest, batch = 0, list[Waiting]()
        for one in nearest:
            longest = max(longest, one.tokens)
            if batch and longest * (len(batch) + 1) > room:
                break
            batch.append(one)
        self._clock = max(self._clock, first.turn) + sum(one.tokens for one in batch) / len(self.requests)
        taken = {id(one) for one in batch}
        self._waiting = [one for one in self._waiting if id(one) not in taken]
        return batch

    def _count(self, batch: Sequence[Waiting], seconds: float) -> None:
        tokens = sum(one.tokens for one in batch)
        self._seconds_per_token = seconds / tokens
        self.counters.sentences += len(batch)
        self.counters.src_tokens += tokens
        self.counters.batch_sentences.observe(len(batch))
        self.counters.batch_seconds.observe(seconds)

    def _deliver(self, batch: Sequence[Waiting], job: asyncio.Future[list[Answer]]) -> None:
        """Hand the answers of a batch to the requests; its error to the one that it must come from.

        The requests of a batch that failed are answered one by one.
        """
        error = job.exception()
        if error is not None and len({one.request for one in batch}) > 1 and not self._closed:
            for one in batch:
                one.request.is_suspect = True
            self._waiting += [one for one in batch if not one.request.done.done()]
            return
        for number, one in enumerate(batch):
            request = one.request
            if request.done.done():  # given up
                continue
            if error is not None:
                request.done.set_exception(error)
                continue
            request.answers[one.place] = job.result()[number]
            if None not in request.answers:
                request.done.set_result([answer for answer in request.answers if answer is not None])


def _may_share(one: PendingRequest, other: PendingRequest) -> bool:
    """Return whether lines of two requests may be in one batch."""
    if one is other:
        return True
    return one.question.search == other.question.search and not (one.is_suspect or other.is_suspect)
