"""Large corpora on disk: encoded shard by shard, by one process or several, and in random order."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nmt.data.augment.augmentation import Augmentation
from nmt.data.batches import shards
from nmt.data.batches.encode import EncodingOptions, LineEncoder, encode_pairs
from nmt.data.batches.shards import encode_shards, is_encoded, sample_shards
from nmt.data.cleaning.filters import FilterReport
from nmt.data.encoded_pairs import EncodedPairs, starts_of
from nmt.data.modifiers import TyposConfig
from nmt.data.parallel_text import ParallelText
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.data.tokens.tokenizer_training import TokenizerConfig
from nmt.data.workers import several_processes
from nmt.disk_cache import required
from nmt.errors import UserError

WORDS = ["dog", "cat", "house", "tree", "sees", "the", "green", "old", "runs", "sleeps"]


def _text() -> ParallelText:
    rng = random.Random(1)
    sides = [[" ".join(rng.choices(WORDS, k=rng.randint(0, 12))) for _ in range(1000)] for _ in range(2)]
    return ParallelText(sides[0], sides[1])


TEXT = _text()
TOKENIZER = Tokenizer.train(TokenizerConfig(vocab_size=28), TEXT)
ENCODER = LineEncoder(TOKENIZER, EncodingOptions(20, 20, drop_empty=True))


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SHARD_PAIRS", 128)
    monkeypatch.setattr(shards, "BUCKET_PAIRS", 300)
    monkeypatch.setattr(shards, "GATHERED_PAIRS", 70)


class Reader:
    """The text in chunks; a count of the chunks that were read, and perhaps a signal in the middle."""

    def __init__(self, size: int = 90, most: int = 1000):
        self.size, self.most, self.read = size, most, 0

    def __call__(self) -> Iterator[ParallelText]:
        for first in range(0, len(TEXT), self.size):
            if self.read == self.most:
                raise KeyboardInterrupt
            self.read += 1
            part = slice(first, first + self.size)
            yield ParallelText(TEXT.src[part], TEXT.tgt[part])


def encoded(cache: Path, reader: Reader) -> tuple[EncodedPairs, FilterReport]:
    return encode_shards(reader, "TEXT", len(TEXT), ENCODER, cache)


def as_lists(pairs: EncodedPairs) -> list[tuple[list[int], list[int]]]:
    return [(pairs.src[i].tolist(), pairs.tgt[i].tolist()) for i in range(len(pairs))]


def test_all_pairs_are_there_in_another_order_and_with_the_same_account(tmp_path: Path) -> None:
    plain, report = encode_pairs(TEXT, TOKENIZER, ENCODER.options)
    pairs, same = encoded(tmp_path, Reader())
    assert same == report
    assert report.kept < len(TEXT)
    assert as_lists(pairs) != as_lists(plain)
    assert sorted(as_lists(pairs)) == sorted(as_lists(plain))
    assert pairs.src._starts.tolist() == starts_of(pairs.src.lengths).tolist()
    assert [path.name[:6] for path in tmp_path.iterdir()] == ["blocks"]  # the shards are gone


def test_pairs_that_were_neighbours_are_anywhere(tmp_path: Path) -> None:
    text = ParallelText([f"{'dog ' * (i // 100)}cat" for i in range(1000)], ["cat"] * 1000)
    options = EncodingOptions()
    pairs, _ = encode_shards(lambda: iter([text]), "", 1000, LineEncoder(TOKENIZER, options), tmp_path)
    lengths = np.asarray(pairs.src_lengths, np.float64)
    assert abs(np.corrcoef(lengths, np.arange(1000))[0, 1]) < 0.1
    assert abs(np.corrcoef(lengths[1:], lengths[:-1])[0, 1]) < 0.1


def test_the_order_depends_neither_on_chunks_nor_on_processes(tmp_path: Path) -> None:
    first, _ = encoded(tmp_path / "one", Reader())
    other, _ = encoded(tmp_path / "other", Reader(333))
    assert as_lists(first) == as_lists(other)
    assert first.digest == other.digest != encode_pairs(TEXT, TOKENIZER, ENCODER.options)[0].digest


@pytest.mark.slow
def test_several_processes_write_the_same_files(tmp_path: Path) -> None:
    first, _ = encoded(tmp_path / "one", Reader())
    with several_processes(2):
        other, _ = encoded(tmp_path / "other", Reader(333))
    assert as_lists(first) == as_lists(other)
    assert first.digest == other.digest


def test_a_second_call_reads_no_text(tmp_path: Path) -> None:
    assert not is_encoded("TEXT", ENCODER, tmp_path, is_large=True)
    first, _ = encoded(tmp_path, Reader())
    assert [is_encoded("TEXT", ENCODER, tmp_path, is_large=x) for x in (True, False)] == [True, False]
    again, _ = encoded(tmp_path, Reader(most=0))
    assert as_lists(again) == as_lists(first)


def test_shards_go_at_the_next_call_where_a_kill_has_left_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = shutil.rmtree

    def killed(folder: Path, **options: Any) -> None:
        remove(next(folder.iterdir()) if folder.name.startswith("shards") else folder, **options)
        if folder.name.startswith("shards"):
            raise SystemExit(137)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(SystemExit):
            encoded(tmp_path, Reader())
    assert sorted(path.name[:6] for path in tmp_path.iterdir()) == ["blocks", "shards"]
    encoded(tmp_path, Reader(most=0))
    assert [path.name[:6] for path in tmp_path.iterdir()] == ["blocks"]


@pytest.mark.fault(1)
def test_shards_that_are_done_outlive_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = encoded(tmp_path / "whole", Reader())
    with pytest.raises(KeyboardInterrupt):
        encoded(tmp_path, Reader(most=6))
    made = list[int]()
    plain = LineEncoder.__call__

    def counted(encoder: LineEncoder, text: ParallelText, first: int) -> object:
        made.append(first)
        return plain(encoder, text, first)

    monkeypatch.setattr(LineEncoder, "__call__", counted)
    again, _ = encoded(tmp_path, Reader())
    assert made == [512, 640, 768, 896]
    assert again.digest == whole.digest


@pytest.mark.fault(1)
def test_shards_of_text_that_was_changed_meanwhile_are_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = encoded(tmp_path / "whole", Reader())
    with monkeypatch.context() as changed:
        changed.setattr(TEXT, "src", [*TEXT.src[:200], "dog", *TEXT.src[201:]])
        with pytest.raises(KeyboardInterrupt):
            encoded(tmp_path, Reader(most=6))
    assert encoded(tmp_path, Reader())[0].digest == whole.digest


def test_what_another_process_has_finished_meanwhile_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It removes the shards, and with them what this one is writing."""
    plain = shards.Shards.write

    def late(shard: shards.Shards, piece: tuple[int, ParallelText]) -> bool:
        monkeypatch.setattr(shards.Shards, "write", plain)
        encoded(tmp_path, Reader())
        return False

    monkeypatch.setattr(shards.Shards, "write", late)
    monkeypatch.setattr(shards, "_uncached", None)
    assert len(encoded(tmp_path, Reader())[0]) > 0
    assert [path.name[:6] for path in tmp_path.iterdir()] == ["blocks"]


@pytest.mark.parametrize("alpha", [0.0, 0.1])
def test_pairs_drawn_anew_are_those_of_a_small_corpus(alpha: float) -> None:
    typos = Augmentation((TyposConfig("typos", rate=0.5),))
    encoder = LineEncoder(TOKENIZER, ENCODER.options, alpha, seed=3, epoch=2, augmentation=typos)
    pairs, report = sample_shards(Reader(), len(TEXT), encoder)
    src, tgt = encoder(TEXT, 0)
    kept = (np.minimum(src.lengths, tgt.lengths) > 1) & (np.maximum(src.lengths, tgt.lengths) <= 20)
    wanted = [(src[i].tolist(), tgt[i].tolist()) for i in np.flatnonzero(kept).tolist()]
    assert sorted(as_lists(pairs)) == sorted(wanted)
    assert report.kept == len(wanted)


def test_no_pair_is_left(tmp_path: Path) -> None:
    encoder = LineEncoder(TOKENIZER, EncodingOptions(1, 1, drop_empty=True))
    with pytest.raises(UserError, match=r"no pair is left: 1,000 pairs read, .*raise data.max_tokens"):
        encode_shards(Reader(), "TEXT", len(TEXT), encoder, tmp_path)


def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    assert encoded(tmp_path / "file", Reader())[0].digest == encoded(tmp_path, Reader())[0].digest
    monkeypatch.setattr(shards, "write_entry", lambda *_, **__: False)
    with pytest.raises(UserError) as caught:
        encode_shards(Reader(), "OTHER", len(TEXT), ENCODER, tmp_path)
    assert str(caught.value).startswith(
        "the ids of 1,000 training pairs need about 0.0 GB of disk for a while, and /"
    )
    assert str(caught.value).endswith(
        " has less; free some, or set NMT_CACHE or TMPDIR to a folder on a larger disk"
    )
    told = "set NMT_CACHE to a folder on a larger disk; what is encoded is kept"
    with required(), pytest.raises(UserError, match=told):
        encode_shards(Reader(), "OTHER", len(TEXT), ENCODER, tmp_path)


def test_shards_that_a_faster_process_has_removed_are_no_lack_of_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, calls = shards.Shards._write_records, itertools.count()

    def overtaken(self: shards.Shards, *arguments: Any) -> Any:
        if next(calls) == 0:
            expected.append(encoded(tmp_path, Reader())[0].digest)
        return write(self, *arguments)

    expected = list[str]()
    monkeypatch.setattr(shards.Shards, "_write_records", overtaken)
    with required():
        found = encoded(tmp_path, Reader())[0].digest
    assert [found] == expected
