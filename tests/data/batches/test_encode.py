"""The ids of a split: what is laid out flat, what the cache keeps, and that it is never trusted blindly."""

from __future__ import annotations

import errno
import multiprocessing
import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.data.augment.augmentation import Augmentation
from nmt.data.batches import encode
from nmt.data.batches.encode import (
    Chunks,
    EncodingOptions,
    LineEncoder,
    encode_pairs,
    encode_stream,
    sample_pairs,
)
from nmt.data.cleaning.filters import FilterReport
from nmt.data.encoded_pairs import EncodedPairs, FileIds, RaggedIds, joined, windows
from nmt.data.modifiers import parsed
from nmt.data.parallel_text import ParallelText
from nmt.data.special_ids import BOS_ID, EOS_ID
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.data.tokens.tokenizer_training import TokenizerConfig
from nmt.disk_cache import open_entry, required
from nmt.errors import TrainingStopped, UserError


def corpus(size: int = 200, seed: int = 1) -> ParallelText:
    rng = random.Random(seed)
    words = ["dog", "cat", "house", "tree", "sees", "the", "green", "old", "runs", "sleeps"]
    sides = [[" ".join(rng.choices(words, k=rng.randint(1, 20))) for _ in range(size)] for _ in range(2)]
    return ParallelText(sides[0], sides[1])


TEXT = corpus()
TOKENIZER = Tokenizer.train(TokenizerConfig(vocab_size=28), TEXT)
TURNED = Tokenizer(replace(TOKENIZER.cfg, right_to_left=True), TOKENIZER.src_model, TOKENIZER.tgt_model)
LOWERCASE = Tokenizer.train(TokenizerConfig(vocab_size=28, lowercase=True), TEXT)
OTHER = Tokenizer.train(TokenizerConfig(vocab_size=25), TEXT)


def as_lists(pairs: EncodedPairs) -> list[tuple[list[int], list[int]]]:
    return [(pairs.src[i].tolist(), pairs.tgt[i].tolist()) for i in range(len(pairs))]


def expected(text: ParallelText, max_tokens: int | None = None) -> list[tuple[list[int], list[int]]]:
    pairs = zip(TOKENIZER.encode_src(text.src), TOKENIZER.encode_tgt(text.tgt), strict=True)
    return [(src, tgt) for src, tgt in pairs if max_tokens is None or max(len(src), len(tgt)) <= max_tokens]


def entries(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir())


@given(
    st.lists(st.tuples(st.text("dogs ", max_size=30), st.text("cat ", max_size=30)), max_size=12),
    st.none() | st.integers(2, 12),
    st.integers(1, 5),
)
def test_what_is_laid_out_is_what_the_tokenizer_gives(
    pairs: list[tuple[str, str]], max_tokens: int | None, chunk: int
) -> None:
    text = ParallelText([src for src, _ in pairs], [tgt for _, tgt in pairs])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode, "CHUNK_PAIRS", chunk)
        kept = expected(text, max_tokens)
        if text and not kept:
            with pytest.raises(UserError, match="no pair is left"):
                encode_pairs(text, TOKENIZER, EncodingOptions(max_tokens, max_tokens))
            return
        encoded, report = encode_pairs(text, TOKENIZER, EncodingOptions(max_tokens, max_tokens))
    assert as_lists(encoded) == kept
    assert encoded.src_lengths.tolist() == [len(src) for src, _ in kept]
    assert encoded.tgt_lengths.tolist() == [len(tgt) for _, tgt in kept]
    assert (report.read, report.kept) == (len(text), len(encoded))


def test_types_and_ends() -> None:
    encoded, _ = encode_pairs(TEXT, TOKENIZER, EncodingOptions(None, None))
    assert encoded.src[0].dtype == encoded.tgt[0].dtype == np.uint16
    assert all(encoded.src[i][-1] == encoded.tgt[i][-1] == EOS_ID for i in range(len(encoded)))


def test_long_pairs_are_dropped_with_an_account() -> None:
    encoded, report = encode_pairs(TEXT, TOKENIZER, EncodingOptions(12, 12))
    assert 0 < len(encoded) < len(TEXT)
    assert report == FilterReport(200, {"over 12 pieces": 200 - len(encoded)})
    with pytest.raises(UserError) as caught:
        encode_pairs(ParallelText(["dog " * 9], ["cat"]), TOKENIZER, EncodingOptions(5, 5))
    assert str(caught.value) == (
        "no pair is left: 1 pairs read, 0 kept (over 5 pieces 1); "
        "raise data.max_tokens or model.max_positions"
    )


@pytest.mark.parametrize(
    ("limits", "kept", "reason"),
    [
        ((None, 6), 0, "target over 6 pieces"),
        ((6, None), 1, "source over 6 pieces"),
        ((30, 6), 0, "source over 30 or target over 6 pieces"),
    ],
)
def test_each_side_has_its_own_limit(limits: tuple[int | None, int | None], kept: int, reason: str) -> None:
    text = ParallelText(["dog " * 7, "dog"], ["cat", "cat " * 7])
    encoded, report = encode_pairs(text, TOKENIZER, EncodingOptions(*limits))
    assert as_lists(encoded) == [expected(text)[kept]]
    assert report == FilterReport(2, {reason: 1})


def test_pairs_that_the_tokenizer_empties_are_dropped_from_training_alone() -> None:
    text = ParallelText(["dog", "...", "cat", "tree tree tree"], ["old", "house", "?!", "old"])
    cfg = TokenizerConfig(vocab_size=28, strip_punctuation=True)
    tokenizer = Tokenizer.train(cfg, TEXT)
    everything, report = encode_pairs(text, tokenizer, EncodingOptions(None, None))
    assert (len(everything), report) == (4, FilterReport(4, {}))
    assert everything.src[1].tolist() == everything.tgt[2].tolist() == [EOS_ID]
    longest = int(everything.src_lengths.max()) - 1
    kept, report = encode_pairs(text, tokenizer, EncodingOptions(longest, longest, drop_empty=True))
    assert as_lists(kept) == as_lists(everything)[:1]
    assert str(report) == f"4 pairs read, 1 kept (empty to the tokenizer 2, over {longest} pieces 1)"
    drawn, report = sample_pairs(
        lambda: iter([text]), LineEncoder(tokenizer, EncodingOptions(drop_empty=True), 0.1, 1, 1)
    )
    assert (len(drawn), report) == (2, FilterReport(4, {"empty to the tokenizer": 2}))
    with pytest.raises(UserError) as caught:
        encode_pairs(ParallelText(["..."], ["cat"]), tokenizer, EncodingOptions(9, 9, drop_empty=True))
    assert str(caught.value) == (
        "no pair is left: 1 pairs read, 0 kept (empty to the tokenizer 1); raise data.max_tokens or "
        "model.max_positions, or see tokenizer.strip_punctuation and tokenizer.normalization"
    )


SHORT = EncodingOptions(30, 30)


def chunks() -> Iterator[ParallelText]:
    for first in range(0, len(TEXT), 64):
        yield ParallelText(TEXT.src[first : first + 64], TEXT.tgt[first : first + 64])


def in_cache(cache: Path, content: str = "TEXT", layout: EncodingOptions = SHORT) -> EncodedPairs:
    return encode_stream(chunks, content, TOKENIZER, layout, cache)[0]


def test_a_second_call_opens_what_the_first_wrote(tmp_path: Path) -> None:
    cache = tmp_path / "new" / "cache"
    fresh, first = encode_stream(chunks, "TEXT", TOKENIZER, EncodingOptions(30, 30), cache)

    def unread() -> Iterator[ParallelText]:
        raise AssertionError("the text is read again")

    opened, second = encode_stream(unread, "TEXT", TOKENIZER, EncodingOptions(30, 30), cache)
    assert as_lists(opened) == as_lists(fresh) == expected(TEXT, 30)
    assert (first, fresh.digest) == (second, opened.digest)
    assert len(entries(cache)) == 1


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def add(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(encode.Layout, "add", add)
    with pytest.raises(TrainingStopped, match=r"cannot be written to .*: the disk is full; .* set TMPDIR"):
        in_cache(tmp_path)
    told = (
        r"^ids-\w+ cannot be kept in the cache .*: No space left on device; make room there, or set NMT_CACHE"
    )
    with required(), pytest.raises(UserError, match=told):
        in_cache(tmp_path)


def test_ids_of_a_large_corpus_stay_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "IN_MEMORY_BYTES", 100)
    for pairs in (in_cache(tmp_path), encode_pairs(TEXT, TOKENIZER, EncodingOptions(30, 30))[0]):
        assert isinstance(pairs.src.ids, FileIds)
        shutil.rmtree(tmp_path, ignore_errors=True)  # an open file outlives its name
        wanted = expected(TEXT, 30)
        assert as_lists(pairs) == wanted
        some = [3, 150, 64, 63, 0, len(wanted) - 1]
        assert [ids.tolist() for ids in pairs.tgt.take(some)] == [wanted[i][1] for i in some]


def test_what_needs_four_bytes_has_them() -> None:
    lengths = np.array([70_000, 2, 70_000], np.int32)
    ids = np.arange(lengths.sum(), dtype=np.int32)
    sentences = RaggedIds(ids, lengths)
    assert [(int(x[0]), len(x)) for x in sentences.take([2, 0, 1])] == [
        (70_002, 70_000),
        (0, 70_000),
        (70_000, 2),
    ]
    assert encode._type(65_535) == "<u2"
    assert encode._type(65_536) == "<i4"


def test_whatever_changes_the_ids_changes_the_entry(tmp_path: Path) -> None:
    layouts = [
        EncodingOptions(),
        EncodingOptions(99, 99),
        EncodingOptions(None, None, True),
        EncodingOptions(None, None, False, True),
    ]
    for count, layout in enumerate(layouts, start=1):
        in_cache(tmp_path, layout=layout)
        assert len(entries(tmp_path)) == count
    in_cache(tmp_path, "other text", layouts[0])
    for tokenizer in (OTHER, LOWERCASE, TURNED):
        encode_stream(chunks, "TEXT", tokenizer, layouts[0], tmp_path)
    assert len(entries(tmp_path)) == len(layouts) + 4


def test_a_model_from_right_to_left_learns_the_targets_from_their_end() -> None:
    pairs, _ = encode_pairs(TEXT, TURNED)
    assert as_lists(pairs) == [(src, [*tgt[-2::-1], tgt[-1]]) for src, tgt in expected(TEXT)]


def test_a_damaged_entry_is_made_again(tmp_path: Path) -> None:
    in_cache(tmp_path)
    [entry] = entries(tmp_path)
    (tmp_path / entry / "src_ids").write_bytes(b"")
    assert as_lists(in_cache(tmp_path)) == expected(TEXT, 30)
    assert entries(tmp_path) == [entry]
    assert open_entry(tmp_path / entry) is not None


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert as_lists(in_cache(tmp_path / "file")) == expected(TEXT, 30)


def test_an_error_leaves_no_draft(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no pair is left"):
        in_cache(tmp_path, layout=EncodingOptions(2, 2))
    assert list(tmp_path.iterdir()) == []


def _encode_in_a_process(cache: Path, results: Any) -> None:
    results.put(as_lists(in_cache(cache)) == expected(TEXT, 30))


def test_several_processes_may_write_the_same_entry(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    workers = [context.Process(target=_encode_in_a_process, args=(tmp_path, results)) for _ in range(4)]
    for worker in workers:
        worker.start()
    assert [results.get(timeout=60) for _ in workers] == [True] * 4
    for worker in workers:
        worker.join()
    assert len(entries(tmp_path)) == 1


def test_sampled_pairs_are_a_pure_function_of_seed_and_epoch() -> None:
    def sample(seed: int, epoch: int) -> list[tuple[list[int], list[int]]]:
        pairs, report = sample_pairs(
            chunks, LineEncoder(TOKENIZER, EncodingOptions(drop_empty=True), 0.02, seed, epoch)
        )
        assert report == FilterReport(len(TEXT), {"empty to the tokenizer": 0})
        return as_lists(pairs)

    first = sample(1, 1)
    assert sample(1, 2) != first
    assert sample(2, 1) != first
    assert sample(1, 1) == first
    assert [TOKENIZER.decode(tgt) for _, tgt in first] == TEXT.tgt
    same = ParallelText(TEXT.src, TEXT.src)
    pairs, _ = sample_pairs(lambda: iter([same]), LineEncoder(TOKENIZER, EncodingOptions(), 0.02, 1, 1))
    assert any(src != tgt for src, tgt in as_lists(pairs))  # the sides draw differently


def test_modified_pairs_are_a_pure_function_of_seed_and_epoch() -> None:
    typos = Augmentation(tuple(parsed("data.augment", [{"name": "typos", "rate": 0.5}])), ("en", "de"))

    def sources(seed: int, epoch: int) -> list[list[int]]:
        encoder = LineEncoder(TOKENIZER, seed=seed, epoch=epoch, augmentation=typos)
        return [src for src, _ in as_lists(sample_pairs(chunks, encoder)[0])]

    first = sources(1, 1)
    assert sources(1, 1) == first
    assert sources(1, 2) != first
    assert sources(2, 1) != first


@pytest.mark.fault(6, 25)
def test_the_digest_tells_the_pairs_apart() -> None:
    """The same for the same pairs, however they are read; another one for other ids."""
    lengths = EncodingOptions(25, 25, drop_empty=True)

    def of(chunks: Chunks, seed: int = 1, epoch: int = 1, options: EncodingOptions = lengths) -> str:
        sampled, _ = sample_pairs(chunks, LineEncoder(TOKENIZER, options, 0.1, seed, epoch))
        return sampled.digest

    first = of(chunks)
    assert of(chunks) == of(lambda: iter([TEXT])) == first
    swapped = ParallelText(TEXT.src, [*TEXT.tgt[:-2], TEXT.tgt[-1], TEXT.tgt[-2]])
    plain = [encode_pairs(text, TOKENIZER)[0] for text in (TEXT, swapped, ParallelText(TEXT.tgt, TEXT.src))]
    others = [of(chunks, seed=2), of(chunks, epoch=2), of(chunks, options=EncodingOptions())]
    assert len({first, *others, *(pairs.digest for pairs in plain)}) == 7
    assert windows(plain[0], 7).digest == encode_pairs(TEXT, TOKENIZER)[0].digest
    both = joined([plain[0], plain[1]], [0.5, 0.5]).digest
    assert both not in ("", plain[0].digest)
    assert both != joined([plain[1], plain[0]], [0.5, 0.5]).digest
    assert joined([plain[0]], [1.0]).digest == plain[0].digest


def test_sampled_pairs_keep_the_limit() -> None:
    pairs, report = sample_pairs(
        chunks, LineEncoder(TOKENIZER, EncodingOptions(25, 25, drop_empty=True), 0.02, 1, 1)
    )
    assert max(pairs.src_lengths.max(), pairs.tgt_lengths.max()) <= 25
    assert report.dropped == {"empty to the tokenizer": 0, "over 25 pieces": len(TEXT) - len(pairs)}
    assert report.kept < len(TEXT)


def test_joined_pairs_are_one_target() -> None:
    pairs, report = encode_pairs(TEXT, TOKENIZER, EncodingOptions(12, 12))
    both, same = encode_pairs(TEXT, TOKENIZER, EncodingOptions(12, 12, joined=True))
    assert as_lists(both) == [([], [*src, BOS_ID, *tgt]) for src, tgt in as_lists(pairs)]
    assert report == same


@settings(max_examples=30, deadline=None)
@given(length=st.integers(1, 50), first=st.integers(0, 60))
def test_windows_hold_the_text_once(length: int, first: int) -> None:
    pairs, _ = encode_pairs(TEXT, TOKENIZER, EncodingOptions(None, None))
    cut = as_lists(windows(pairs, length, first % length))
    assert [token for _, tgt in cut for token in tgt] == [t for _, tgt in as_lists(pairs) for t in tgt]
    assert all(src == [] for src, _ in cut)
    inner = [len(tgt) for _, tgt in cut[1:-1]]
    assert set(inner) <= {length}
    assert all(0 < len(tgt) <= length for _, tgt in cut)
    assert not first % length or len(cut[0][1]) == first % length
