"""Training pairs that are read while training goes on, again and again, and never kept.

What comes first need not wait for what comes last, and no disk has to hold the corpus. A buffer of pairs is
read, shuffled and trained on while a thread prepares the next one; to the trainer it is an epoch. Buffer
number n is a function of the source alone, so a resumed run reads up to where it stopped.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from nmt.data.encoded_pairs import EncodedPairs
from nmt.data.filters import FilterReport
from nmt.data.pairs import ParallelText
from nmt.errors import UserError

Filtered = Callable[[], Iterator[tuple[ParallelText, FilterReport]]]
"""One pass over a corpus: chunks of the pairs that are kept, with accounts."""


THREAD = "nmt-stream"
"""The name of the thread that prepares a buffer."""


class _Corpus:
    """The pairs of one corpus, from the first to the last and then from the first again."""

    def __init__(self, passes: Filtered):
        self._passes = passes
        self._chunks: Iterator[tuple[ParallelText, FilterReport]] = iter(())
        self._rest = ParallelText()
        self._kept_in_pass = 1

    def take(self, count: int) -> tuple[ParallelText, FilterReport]:
        """The next `count` pairs, with the account of what was read for them."""
        text, report = ParallelText(), FilterReport(0)
        while len(text) < count:
            if not self._rest:
                self._rest, read = self._next_chunk()
                report += read
            missing = count - len(text)
            text.src += self._rest.src[:missing]
            text.tgt += self._rest.tgt[:missing]
            self._rest = ParallelText(self._rest.src[missing:], self._rest.tgt[missing:])
        return text, report

    def _next_chunk(self) -> tuple[ParallelText, FilterReport]:
        found = next(self._chunks, None)
        if found is None:
            if not self._kept_in_pass:
                raise UserError("no training pair is left; see data.max_chars and data.max_ratio")
            self._chunks, self._kept_in_pass = self._passes(), 0
            return self._next_chunk()
        self._kept_in_pass += len(found[0])
        return found


@dataclass
class StreamedText:
    """The corpora to train on, of which nothing is known before they are read."""

    corpora: Sequence[Filtered]
    shares: Sequence[float]
    """How much of what is trained on comes from each corpus."""
    sha256: str
    """Of the stamps of the sources, and of what the filter depends on."""

    def buffers(self, size: int) -> Iterator[tuple[ParallelText, FilterReport]]:
        """Without end, `size` pairs of all corpora, with the account of what was read for them."""
        corpora = [_Corpus(passes) for passes in self.corpora]
        while True:
            text, report = ParallelText(), FilterReport(0)
            for corpus, share in zip(corpora, self.shares, strict=True):
                part, read = corpus.take(max(1, round(size * share)))
                text.src += part.src
                text.tgt += part.tgt
                report += read
            yield text, report

    def sample(self, most: int, seed: int) -> ParallelText:
        """The first pairs, `most` of them or all there are; nothing is drawn, whatever `seed` is."""
        text = ParallelText()
        for passes, share in zip(self.corpora, self.shares, strict=True):
            wanted = round(most * share)
            for chunk, _ in passes():
                text.src += chunk.src[:wanted]
                text.tgt += chunk.tgt[:wanted]
                wanted -= min(wanted, len(chunk))
                if not wanted:
                    break
        return text

    def sampling_key(self, most: int, seed: int) -> tuple[object, ...]:
        """Return what `sample` depends on beside the text."""
        return (most, *self.shares)


class StreamBuffers:
    """The encoded pairs of one buffer after the other; a thread prepares the next one meanwhile.

    The digest of a buffer covers all text up to its end.
    """

    def __init__(
        self,
        text: StreamedText,
        size: int,
        prepare: Callable[[ParallelText, FilterReport, int], EncodedPairs],
    ):
        """`prepare` encodes the pairs of the buffer with the given number, from 1."""
        self._text, self._size, self._prepare = text, size, prepare
        self._number = 0  # of the buffer handed out last
        self._next: _Task | None = None
        self._restart(1)

    def __call__(self, number: int) -> EncodedPairs:
        """Buffer `number`, from 1; one after the other is the fast way."""
        if number != self._number + 1:
            self._restart(number)
        pairs = (self._next or _Task(self._read)).result()
        self._number = number
        self._next = _Task(self._read)
        return pairs

    def close(self) -> None:
        """Wait for the thread, which may still be at the next buffer."""
        if self._next is not None:
            self._next.finish()
            self._next = None

    def _restart(self, number: int) -> None:
        self.close()  # it reads from the same stream
        self._buffers, self._digest = self._text.buffers(self._size), hashlib.sha256()
        self._number = 0
        while self._number < number - 1:
            self._take()
            self._number += 1

    def _take(self) -> tuple[ParallelText, FilterReport]:
        text, report = next(self._buffers)
        for lines in (text.src, text.tgt):
            self._digest.update("\n".join([*lines, ""]).encode())
        return text, report

    def _read(self) -> EncodedPairs:
        text, report = self._take()
        number = self._number + 1
        pairs = self._prepare(text, report, number)
        pairs.digest = self._digest.hexdigest()
        return pairs


@contextmanager
def closed(pairs_of_epoch: Callable[[int], EncodedPairs]) -> Iterator[None]:
    """At the end of the block, no thread is left that reads a stream."""
    try:
        yield
    finally:
        if isinstance(pairs_of_epoch, StreamBuffers):
            pairs_of_epoch.close()


class _Task:
    """What a function returns or raises in a thread; the end of the process waits for it."""

    def __init__(self, function: Callable[[], EncodedPairs]):
        self._function = function
        self._result: EncodedPairs | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=THREAD)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._function()
        except BaseException as error:
            self._error = error

    def finish(self) -> None:
        """Wait for the end of it, whatever that is."""
        self._thread.join()

    def result(self) -> EncodedPairs:
        self.finish()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result
