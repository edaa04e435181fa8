"""Training pairs that are read while training goes on, again and again, and never kept.

What comes first need not wait for what comes last, and no disk has to hold the corpus. A buffer of pairs is
read, shuffled and trained on while a thread prepares the next one; to the trainer it is an epoch. Buffer
number n is a function of the source alone, so a resumed run reads up to where it stopped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from nmt.corpus import Account
from nmt.encoded import EncodedPairs
from nmt.errors import UserError
from nmt.pairs import ParallelText

Filtered = Callable[[], Iterator[tuple[ParallelText, Account]]]
"""One pass over a corpus: chunks of the pairs that are kept, with accounts."""


class _Corpus:
    """The pairs of one corpus, from the first to the last and then from the first again."""

    def __init__(self, passes: Filtered):
        self._passes = passes
        self._chunks: Iterator[tuple[ParallelText, Account]] = iter(())
        self._rest = ParallelText()
        self._kept_in_pass = 1

    def take(self, count: int) -> tuple[ParallelText, Account]:
        """The next `count` pairs, with the account of what was read for them."""
        text, account = ParallelText(), Account(0)
        while len(text) < count:
            if not self._rest:
                self._rest, read = self._next_chunk()
                account += read
            missing = count - len(text)
            text.src += self._rest.src[:missing]
            text.tgt += self._rest.tgt[:missing]
            self._rest = ParallelText(self._rest.src[missing:], self._rest.tgt[missing:])
        return text, account

    def _next_chunk(self) -> tuple[ParallelText, Account]:
        found = next(self._chunks, None)
        if found is None:
            if not self._kept_in_pass:
                raise UserError("no training pair is left; see data.max_chars and data.max_ratio")
            self._chunks, self._kept_in_pass = self._passes(), 0
            found = next(self._chunks)  # a corpus without pairs is an error of its source
        self._kept_in_pass += len(found[0])
        return found


@dataclass
class StreamedText:
    """The corpora to train on, of which nothing is known before they are read."""

    corpora: Sequence[Filtered]
    shares: Sequence[float]
    """How much of what is trained on comes from each corpus."""
    sha256: str
    """Of the stamps of the sources."""

    def buffers(self, size: int) -> Iterator[tuple[ParallelText, Account]]:
        """Without end, `size` pairs of all corpora, with the account of what was read for them."""
        corpora = [_Corpus(passes) for passes in self.corpora]
        while True:
            text, account = ParallelText(), Account(0)
            for corpus, share in zip(corpora, self.shares, strict=True):
                part, read = corpus.take(max(1, round(size * share)))
                text.src += part.src
                text.tgt += part.tgt
                account += read
            yield text, account

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

    def drawn(self, most: int, seed: int) -> tuple[object, ...]:
        """What `sample` depends on beside the text."""
        return (most, *self.shares)


class Buffers:
    """The encoded pairs of one buffer after the other; a thread prepares the next one meanwhile."""

    def __init__(
        self,
        text: StreamedText,
        size: int,
        prepare: Callable[[ParallelText, Account, int], EncodedPairs],
    ):
        """`prepare` encodes the pairs of the buffer with the given number, from 1."""
        self._text, self._size, self._prepare = text, size, prepare
        self._buffers = text.buffers(size)
        self._number = 0
        self._next: _Task | None = None

    def __call__(self, number: int) -> EncodedPairs:
        """Buffer `number`, from 1; one after the other is the fast way."""
        if self._next is None or number != self._number + 1:
            self._restart(number)
        assert self._next is not None
        pairs = self._next.result()
        self._number, self._next = number, _Task(lambda: self._read(number + 1))
        return pairs

    def _restart(self, number: int) -> None:
        if self._next is not None:
            self._next.result()  # it reads from the same stream
        self._buffers = self._text.buffers(self._size)
        for _ in range(number - 1):
            next(self._buffers)
        self._next = _Task(lambda: self._read(number))

    def _read(self, number: int) -> EncodedPairs:
        text, account = next(self._buffers)
        return self._prepare(text, account, number)


class _Task:
    """What a function returns or raises in a thread, which no end of the process waits for."""

    def __init__(self, function: Callable[[], EncodedPairs]):
        self._function = function
        self._result: EncodedPairs | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._function()
        except BaseException as error:
            self._error = error

    def result(self) -> EncodedPairs:
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result
