"""Training pairs that are read during training, again and again, and never stored.

Training begins before the corpus is read to its end, and no disk has to hold the corpus. A buffer of pairs is
read, shuffled and trained on while a thread prepares the next buffer; to the trainer a buffer is an epoch.
Buffer number n is a function of the source and of the shares of its stage alone, as if all buffers before it
had those shares, so a resumed run reads up to where it stopped, and so does a stage that begins.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from nmt.data.cleaning.filters import FilterReport
from nmt.data.encoded_pairs import EncodedPairs, InParts
from nmt.data.parallel_text import ParallelText, concatenated
from nmt.data.reading.mixture import mean_shares

Filtered = Callable[[], Iterator[tuple[ParallelText, FilterReport]]]
"""One pass over a corpus: chunks of filtered pairs, with reports."""
THREAD = "nmt-stream"
"""How the name of the thread that prepares a buffer begins."""


class _Corpus:
    """The pairs of one corpus, repeated without end."""

    def __init__(self, passes: Filtered):
        self._chunks = itertools.chain.from_iterable(passes() for _ in itertools.count())
        self._rest = ParallelText()

    def take(self, count: int) -> tuple[ParallelText, FilterReport]:
        """Return the next `count` pairs, with a report of what was read for them."""
        text, report = ParallelText(), FilterReport(0)
        while len(text) < count:
            if not self._rest:
                self._rest, read = next(self._chunks)
                report += read
            missing = count - len(text)
            text.extend(self._rest.part(slice(missing)))
            self._rest = self._rest.part(slice(missing, None))
        return text, report


@dataclass
class StreamedText:
    """The corpora to train on, whose sizes are unknown before they are read."""

    corpora: Sequence[Filtered]
    shares: Sequence[Sequence[float]]
    """The share of each corpus in a buffer of each stage; those of a stage add up to 1."""
    sha256: str
    """A hash of the stamps of the sources and of the options of the filter."""

    def counts(self, size: int, stage: int) -> list[int]:
        """Return how many pairs of each corpus are in a buffer of `size` pairs of a stage."""
        return [max(1, round(size * share)) if share else 0 for share in self.shares[stage]]

    def buffers(self, size: int, stage: int) -> Iterator[tuple[ParallelText, FilterReport]]:
        """Yield `size` pairs of the corpora of a stage, without end, with reports of what was read."""
        counts = zip(self.corpora, self.counts(size, stage), strict=True)
        corpora = [(_Corpus(passes), count) for passes, count in counts]
        while True:
            parts = [corpus.take(count) for corpus, count in corpora]
            report = sum((read for _, read in parts), FilterReport(0))
            yield concatenated(text for text, _ in parts), report

    def samples(self, most: int, seed: int) -> list[ParallelText]:
        """Return of each corpus the first of its share of `most` pairs, or all; `seed` is not used."""
        found = list[ParallelText]()
        for passes, share in zip(self.corpora, mean_shares(self.shares), strict=True):
            text, wanted = ParallelText(), round(most * share)
            for chunk, _ in passes():
                text.src += chunk.src[:wanted]
                text.tgt += chunk.tgt[:wanted]
                wanted -= min(wanted, len(chunk))
                if not wanted:
                    break
            found.append(text)
        return found

    def sampling_key(self, most: int, seed: int) -> tuple[object, ...]:
        """Return the values besides the text on which `samples` depend."""
        return (most, *mean_shares(self.shares))


class Buffer:
    """The pairs of one buffer as an epoch of one part; the thread is set to work when that part is taken.

    Until then nothing has to be encoded, so that ranks which encode together can leave together: a signal may
    interrupt any of them before it takes the part, and they take it once all have agreed to go on.
    """

    num_parts = 1

    def __init__(self, take_up: Callable[[], EncodedPairs]):
        """Hold the function that waits for the pairs, which is called once."""
        self._pairs = functools.cache(take_up)

    def part(self, number: int) -> EncodedPairs:
        """Return all pairs, once they are encoded."""
        return self._pairs()


class StreamBuffers:
    """The encoded pairs of one buffer after the other; a thread prepares the next buffer in advance.

    The digest of a buffer covers all text of the stream up to its end.
    """

    def __init__(
        self,
        text: StreamedText,
        size: int,
        prepare: Callable[[ParallelText, FilterReport, int, int], EncodedPairs],
    ):
        """Read buffers of `size` pairs.

        `prepare` encodes the pairs of a buffer, given their report and the numbers of buffer and stage.
        """
        self._text, self._size, self._prepare = text, size, prepare
        self._upcoming: tuple[int, int] | None = None  # number and stage of the buffer that comes next
        self._next: Future[EncodedPairs] | None = None
        self._thread = ThreadPoolExecutor(1, THREAD)

    def __call__(self, number: int, stage: int) -> Buffer:
        """Return buffer `number`, from 1, of a stage; fast only for the buffer after the last one."""
        if (number, stage) != self._upcoming:
            self._restart(number, stage)
        return Buffer(functools.partial(self._take_up, number, stage))

    def _take_up(self, number: int, stage: int) -> EncodedPairs:
        """Return the pairs of the upcoming buffer, and let the thread prepare the one after it."""
        pairs = (self._next or self._thread.submit(self._read, number, stage)).result()
        self._upcoming = number + 1, stage
        self._next = self._thread.submit(self._read, number + 1, stage)
        return pairs

    def close(self) -> None:
        """Wait for the thread, which may still prepare the next buffer, and end it."""
        self._thread.shutdown()
        self._next, self._upcoming = None, None

    def _restart(self, number: int, stage: int) -> None:
        self.close()  # the thread reads from the same stream
        self._thread = ThreadPoolExecutor(1, THREAD)
        self._buffers, self._digest = self._text.buffers(self._size, stage), hashlib.sha256()
        for _ in range(number - 1):
            self._take()
        self._upcoming = number, stage

    def _take(self) -> tuple[ParallelText, FilterReport]:
        text, report = next(self._buffers)
        for lines in (text.src, text.tgt, map(repr, text.weights)):
            self._digest.update("\n".join([*lines, ""]).encode())
        return text, report

    def _read(self, number: int, stage: int) -> EncodedPairs:
        before = self._digest.hexdigest()
        text, report = self._take()
        pairs = self._prepare(text, report, number, stage)
        pairs.digest, pairs.digest_before = self._digest.hexdigest(), before
        return pairs


@contextmanager
def closed(pairs_of_epoch: Callable[[int, int], InParts]) -> Iterator[None]:
    """End the thread that reads a stream, if there is one, at the end of the block."""
    try:
        yield
    finally:
        if isinstance(pairs_of_epoch, StreamBuffers):
            pairs_of_epoch.close()
