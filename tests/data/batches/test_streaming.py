"""Training pairs that are read while training goes on: in which order, by whose share, and encoded when."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest

from nmt.data.batches.streaming import THREAD, StreamBuffers, StreamedText, closed
from nmt.data.batches.training_split import streamed
from nmt.data.cleaning.filtering import Chain
from nmt.data.cleaning.filters import FilterReport, filter_pairs
from nmt.data.cleaning.pair_filters import Context
from nmt.data.encoded_pairs import EncodedPairs, InParts, RaggedIds
from nmt.data.filter_table import parsed
from nmt.data.parallel_text import PairStream, ParallelText, concatenated
from nmt.data.reading.bundled_data import DemoData
from nmt.errors import UserError

PLAIN = Chain((), Context(("en", "de")))
"""No filters but those of all training pairs."""


class Source:
    """A corpus of numbered pairs in chunks of three, which counts how often it is read from the start."""

    def __init__(self, letter: str, size: int):
        self.text = ParallelText([f"{letter}{i}" for i in range(size)], [f"{letter}{i}" for i in range(size)])
        self.passes = 0

    def chunks(self) -> Iterator[ParallelText]:
        self.passes += 1
        for first in range(0, len(self.text), 3):
            yield self.text.part(slice(first, first + 3))


def text_of(*sources: Source, shares: tuple[float, ...] = (1.0,)) -> StreamedText:
    return streamed(
        [PairStream(lambda: "stamp", source.chunks) for source in sources],
        [shares],
        DemoData(),
        filter_pairs,
        [PLAIN] * len(sources),
    )


def numbered(text: ParallelText, report: FilterReport, number: int, stage: int) -> EncodedPairs:
    """Pairs whose ids are the numbers in the text, and the number of the buffer."""
    ids = np.asarray([int(line[1:]) for line in text.src] + [number], np.int32)
    side = RaggedIds(ids, np.ones(len(ids), np.int64))
    return EncodedPairs(side, side)


def ids_of(buffer: InParts) -> list[int]:
    pairs = buffer.part(0)
    return [int(i) for sentence in pairs.src.take(range(len(pairs))) for i in sentence]


def test_buffers_follow_each_other_through_the_corpus_and_begin_anew() -> None:
    source = Source("a", 10)
    buffers = list(islice(text_of(source).buffers(4, 0), 6))
    assert [line for text, _ in buffers for line in text.src] == [f"a{i % 10}" for i in range(24)]
    assert all(text.src == text.tgt for text, _ in buffers)
    assert source.passes == 3
    assert sum(report.read for _, report in buffers) == 26  # two chunks of the third pass


def test_each_corpus_has_its_share_of_a_buffer() -> None:
    for text, _ in islice(text_of(Source("a", 7), Source("b", 50), shares=(0.75, 0.25)).buffers(8, 0), 5):
        assert Counter(line[0] for line in text.src) == {"a": 6, "b": 2}


def test_what_is_dropped_is_accounted_for_and_replaced() -> None:
    source = Source("a", 6)
    source.text.tgt[1] = ""
    text, report = next(text_of(source).buffers(5, 0))
    assert text.src == ["a0", "a2", "a3", "a4", "a5"]
    assert str(report) == "6 pairs read, 5 kept (empty 1)"


def test_a_corpus_of_which_nothing_is_kept_is_an_error() -> None:
    source = Source("a", 6)
    source.text.tgt[:] = [""] * 6
    for nothing, account in ((source, "6 pairs read, 0 kept .empty 6."), (Source("a", 0), "0 pairs read")):
        with pytest.raises(UserError, match=f"no training pair is left: {account}.* see data.max_chars and"):
            next(text_of(nothing).buffers(2, 0))


def test_an_account_of_nothing_names_the_filters_and_the_corpus() -> None:
    rows, corpus = (
        parsed("data.filters", [{"name": "length", "min": 100}]),
        DemoData(key_prefix="data.corpora.a"),
    )
    chain = Chain(tuple(rows), Context(("en", "de"), corpus=corpus))
    source = PairStream(lambda: "stamp", Source("a", 6).chunks)
    text = streamed([source], [[1.0]], DemoData(), filter_pairs, [chain])
    account = (
        "of data.corpora.a is left: 6 pairs read, 0 kept .length 6.; see data.corpora.a.filters and data.f"
    )
    for read in (lambda: next(text.buffers(2, 0)), lambda: text.samples(2, seed=1)):
        with pytest.raises(UserError, match=account):
            read()


def test_a_tokenizer_sees_the_first_pairs() -> None:
    text = text_of(Source("a", 10), Source("b", 3), shares=(0.5, 0.5))
    assert concatenated(text.samples(8, seed=1)).src == ["a0", "a1", "a2", "a3", "b0", "b1", "b2"]
    assert text.sampling_key(8, seed=1) == text.sampling_key(8, seed=2) != text.sampling_key(6, seed=1)


def test_the_tokenizer_of_a_stream_depends_on_the_filter() -> None:
    sources = [PairStream(lambda: "stamp", Source("a", 3).chunks)]
    texts = [
        streamed(sources, [[1.0]], DemoData(max_chars=chars), filter_pairs, [PLAIN]) for chars in (10, 10, 11)
    ]
    assert texts[0].sha256 == texts[1].sha256 != texts[2].sha256


def test_a_buffer_is_a_function_of_its_number() -> None:
    straight = StreamBuffers(text_of(Source("a", 10)), 4, numbered)
    expected = [ids_of(straight(number, 0)) for number in range(1, 6)]
    assert expected[3] == [2, 3, 4, 5, 4]
    resumed = StreamBuffers(text_of(Source("a", 10)), 4, numbered)
    assert [ids_of(resumed(number, 0)) for number in (4, 5)] == expected[3:]
    assert ids_of(resumed(2, 0)) == expected[1]


def test_the_next_buffer_is_prepared_meanwhile() -> None:
    prepared = threading.Event()

    def prepare(text: ParallelText, report: FilterReport, number: int, stage: int) -> EncodedPairs:
        if number == 2:
            prepared.set()
        return numbered(text, report, number, stage)

    StreamBuffers(text_of(Source("a", 10)), 4, prepare)(1, 0).part(0)
    assert prepared.wait(timeout=30)


def test_the_digest_of_a_buffer_tells_all_text_up_to_its_end() -> None:
    def digests(source: Source, first: int) -> list[str]:
        buffers = StreamBuffers(text_of(source), 4, numbered)
        return [buffers(number, 0).part(0).digest for number in (first, first + 1)]

    one, two = digests(Source("a", 10), 1)
    assert one != two
    assert digests(Source("a", 10), 2)[0] == two
    assert StreamBuffers(text_of(Source("a", 10)), 4, numbered)(2, 0).part(0).digest_before == one
    other = Source("a", 10)
    other.text.tgt[0] = "a00"
    assert digests(other, 2)[0] != two
    other = Source("a", 10)
    other.text.tgt[9] = "a00"  # in the third buffer
    assert digests(other, 1) == [one, two]
    weighted = [Source("a", 10), Source("a", 10)]
    for source, weight in zip(weighted, (0.5, 0.25), strict=True):
        source.text.weights[:] = [weight, *[1.0] * 9]
    assert len({one, *(digests(source, 1)[0] for source in weighted)}) == 3


def test_nothing_is_read_after_the_end() -> None:
    source, started, gate = Source("a", 10), threading.Event(), threading.Event()
    before = set(threading.enumerate())  # buffers of other tests that are not collected yet

    def prepare(text: ParallelText, report: FilterReport, number: int, stage: int) -> EncodedPairs:
        if number == 2:
            started.set()
            gate.wait(timeout=30)
        return numbered(text, report, number, stage)

    def is_reading() -> bool:
        return any(thread.name.startswith(THREAD) for thread in set(threading.enumerate()) - before)

    buffers = StreamBuffers(text_of(source), 4, prepare)
    with closed(buffers):
        buffers(1, 0).part(0)
        assert started.wait(timeout=30)
        assert is_reading()
        gate.set()
    assert not is_reading()


def test_an_error_of_the_thread_reaches_the_caller() -> None:
    def prepare(text: ParallelText, report: FilterReport, number: int, stage: int) -> EncodedPairs:
        if number == 2:
            raise UserError("the second buffer is broken")
        return numbered(text, report, number, stage)

    buffers = StreamBuffers(text_of(Source("a", 10)), 4, prepare)
    buffers(1, 0).part(0)
    with pytest.raises(UserError, match="the second buffer"):
        buffers(2, 0).part(0)


def staged() -> StreamedText:
    """Two corpora, read half and half, then the second alone."""
    sources = [PairStream(lambda: "stamp", source.chunks) for source in (Source("a", 10), Source("b", 7))]
    return streamed(sources, [[0.5, 0.5], [0.0, 1.0]], DemoData(), filter_pairs, [PLAIN] * 2)


def test_a_buffer_is_a_function_of_its_number_and_its_stage() -> None:
    straight = StreamBuffers(staged(), 4, numbered)
    found = [ids_of(straight(number, stage)) for number, stage in ((1, 0), (2, 0), (3, 1), (4, 1), (5, 0))]
    assert found == [[0, 1, 0, 1, 1], [2, 3, 2, 3, 2], [1, 2, 3, 4, 3], [5, 6, 0, 1, 4], [8, 9, 1, 2, 5]]
    for number, stage in ((2, 0), (3, 1), (4, 1)):
        resumed = StreamBuffers(staged(), 4, numbered)
        assert ids_of(resumed(number, stage)) == found[number - 1]
        fresh = StreamBuffers(staged(), 4, numbered)(number + 1, 1).part(0)
        assert resumed(number + 1, 1).part(0).digest == fresh.digest


def test_a_corpus_without_a_share_is_not_read() -> None:
    unread, read = Source("a", 10), Source("b", 7)
    sources = [PairStream(lambda: "stamp", source.chunks) for source in (unread, read)]
    text = streamed(sources, [[0.0, 1.0], [0.5, 0.5]], DemoData(), filter_pairs, [PLAIN] * 2)
    assert next(text.buffers(4, 0))[0].src == ["b0", "b1", "b2", "b3"]
    assert (unread.passes, read.passes) == (0, 1)
    assert concatenated(text.samples(8, seed=1)).src == [
        "a0",
        "a1",
        "b0",
        "b1",
        "b2",
        "b3",
        "b4",
        "b5",
    ]  # of all stages
