"""The ids of a split: what is laid out flat, what the cache keeps, and that it is never trusted blindly."""

from __future__ import annotations

import json
import multiprocessing
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt import encoding
from nmt.corpus import Account, ParallelText
from nmt.encoding import EncodedPairs, encode_pairs, joined, sample_pairs, windows
from nmt.errors import UserError
from nmt.tokenizer import BOS_ID, EOS_ID, Tokenizer, TokenizerConfig


def corpus(size: int = 200, seed: int = 1) -> ParallelText:
    rng = random.Random(seed)
    words = ["dog", "cat", "house", "tree", "sees", "the", "green", "old", "runs", "sleeps"]
    sides = [[" ".join(rng.choices(words, k=rng.randint(1, 20))) for _ in range(size)] for _ in range(2)]
    return ParallelText(sides[0], sides[1])


TEXT = corpus()
TOKENIZER = Tokenizer.train(TokenizerConfig(vocab_size=28), TEXT, seed=1)
LOWERCASE = Tokenizer.train(TokenizerConfig(vocab_size=28, lowercase=True), TEXT, seed=1)
OTHER = Tokenizer.train(TokenizerConfig(vocab_size=25), TEXT, seed=1)


def as_lists(pairs: EncodedPairs) -> list[tuple[list[int], list[int]]]:
    return [(pairs.src(i).tolist(), pairs.tgt(i).tolist()) for i in range(len(pairs))]


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
        patch.setattr(encoding, "CHUNK_PAIRS", chunk)
        kept = expected(text, max_tokens)
        if text and not kept:
            with pytest.raises(UserError, match="no pair is left"):
                encode_pairs(text, TOKENIZER, max_tokens=max_tokens, cache_dir=None)
            return
        encoded, account = encode_pairs(text, TOKENIZER, max_tokens=max_tokens, cache_dir=None)
    assert as_lists(encoded) == kept
    assert encoded.src_lengths.tolist() == [len(src) for src, _ in kept]
    assert encoded.tgt_lengths.tolist() == [len(tgt) for _, tgt in kept]
    assert (account.read, account.kept) == (len(text), len(encoded))


def test_types_and_ends() -> None:
    encoded, _ = encode_pairs(TEXT, TOKENIZER, max_tokens=None, cache_dir=None)
    assert encoded.src(0).dtype == encoded.tgt(0).dtype == np.int32
    assert encoded.src_lengths.dtype == encoded.tgt_lengths.dtype == np.int64
    assert all(encoded.src(i)[-1] == encoded.tgt(i)[-1] == EOS_ID for i in range(len(encoded)))


def test_long_pairs_are_dropped_with_an_account() -> None:
    encoded, account = encode_pairs(TEXT, TOKENIZER, max_tokens=12, cache_dir=None)
    assert 0 < len(encoded) < len(TEXT)
    assert account == Account(200, {"over 12 pieces": 200 - len(encoded)})
    with pytest.raises(UserError) as caught:
        encode_pairs(ParallelText(["dog " * 9], ["cat"]), TOKENIZER, max_tokens=5, cache_dir=None)
    assert str(caught.value) == (
        "no pair is left: 1 pairs read, 0 kept (over 5 pieces 1); "
        "raise data.max_tokens or model.max_positions"
    )


def test_pairs_that_the_tokenizer_empties_are_dropped_from_training_alone() -> None:
    text = ParallelText(["dog", "...", "cat", "tree tree tree"], ["old", "house", "?!", "old"])
    cfg = TokenizerConfig(vocab_size=28, strip_punctuation=True)
    tokenizer = Tokenizer.train(cfg, TEXT, seed=1)
    everything, account = encode_pairs(text, tokenizer, max_tokens=None, cache_dir=None)
    assert (len(everything), account) == (4, Account(4, {}))
    assert everything.src(1).tolist() == everything.tgt(2).tolist() == [EOS_ID]
    longest = int(everything.src_lengths.max()) - 1
    kept, account = encode_pairs(text, tokenizer, max_tokens=longest, cache_dir=None, drop_empty=True)
    assert as_lists(kept) == as_lists(everything)[:1]
    assert str(account) == f"4 pairs read, 1 kept (empty to the tokenizer 2, over {longest} pieces 1)"
    drawn, account = sample_pairs(text, tokenizer, max_tokens=None, alpha=0.1, seed=1, epoch=1)
    assert (len(drawn), account) == (2, Account(4, {"empty to the tokenizer": 2}))
    with pytest.raises(UserError) as caught:
        encode_pairs(ParallelText(["..."], ["cat"]), tokenizer, max_tokens=9, cache_dir=None, drop_empty=True)
    assert str(caught.value) == (
        "no pair is left: 1 pairs read, 0 kept (empty to the tokenizer 1); raise data.max_tokens or "
        "model.max_positions, or see tokenizer.strip_punctuation and tokenizer.normalization"
    )


def test_a_second_call_opens_what_the_first_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "new" / "cache"
    wanted = expected(TEXT, 30)
    fresh, first = encode_pairs(TEXT, TOKENIZER, max_tokens=30, cache_dir=cache)
    monkeypatch.setattr(Tokenizer, "encode_src", None)  # not to be used again
    opened, second = encode_pairs(TEXT, TOKENIZER, max_tokens=30, cache_dir=cache)
    assert as_lists(opened) == as_lists(fresh) == wanted
    assert first == second
    assert len(entries(cache)) == 1


def test_an_opened_entry_may_be_written_to_without_harm(tmp_path: Path) -> None:
    first, _ = encode_pairs(TEXT, TOKENIZER, max_tokens=None, cache_dir=tmp_path)
    first.src(0)[:] = 0
    second, _ = encode_pairs(TEXT, TOKENIZER, max_tokens=None, cache_dir=tmp_path)
    assert as_lists(second) == expected(TEXT)


def test_whatever_changes_the_ids_changes_the_entry(tmp_path: Path) -> None:
    one = ParallelText(["dog cat", "tree"], ["old", "house"])
    moved = ParallelText(["dog ", "cattree"], ["old", "house"])  # the same characters, another line break
    swapped = ParallelText(one.tgt, one.src)
    for count, (text, tokenizer, limit) in enumerate(
        [
            (one, TOKENIZER, None),
            (one, TOKENIZER, 99),
            (one, OTHER, None),
            (moved, TOKENIZER, None),
            (swapped, TOKENIZER, None),
            (one, LOWERCASE, None),
        ],
        start=1,
    ):
        encode_pairs(text, tokenizer, max_tokens=limit, cache_dir=tmp_path)
        assert len(entries(tmp_path)) == count
    encode_pairs(one, TOKENIZER, max_tokens=None, cache_dir=tmp_path, drop_empty=True)
    assert len(entries(tmp_path)) == count + 1


def damage(path: Path, how: str) -> None:
    raw = bytearray(path.read_bytes())
    if how == "flip":
        raw[-3] ^= 1
    elif how == "truncate":
        del raw[-4:]
    elif how == "empty":
        raw.clear()
    path.unlink()
    if how != "remove":
        path.write_bytes(raw)


@pytest.mark.parametrize("how", ["flip", "truncate", "empty", "remove"])
@pytest.mark.parametrize("name", ["src_ids.npy", "tgt_offsets.npy", "entry.json"])
def test_a_damaged_entry_is_made_again(tmp_path: Path, name: str, how: str) -> None:
    encode_pairs(TEXT, TOKENIZER, max_tokens=None, cache_dir=tmp_path)
    [entry] = entries(tmp_path)
    damage(tmp_path / entry / name, how)
    again, account = encode_pairs(TEXT, TOKENIZER, max_tokens=None, cache_dir=tmp_path)
    assert as_lists(again) == expected(TEXT)
    assert account.read == len(TEXT)
    assert entries(tmp_path) == [entry]
    assert encoding._open_entry(tmp_path / entry) is not None


@pytest.mark.parametrize("header", ["[]", "{}", '{"content": {}, "crc32": 0}', "null", '"x"'])
def test_a_header_of_another_shape_is_not_trusted(tmp_path: Path, header: str) -> None:
    encode_pairs(TEXT, TOKENIZER, max_tokens=None, cache_dir=tmp_path)
    [entry] = entries(tmp_path)
    (tmp_path / entry / "entry.json").write_text(header)
    assert encoding._open_entry(tmp_path / entry) is None


def test_an_altered_account_is_not_trusted(tmp_path: Path) -> None:
    encode_pairs(TEXT, TOKENIZER, max_tokens=None, cache_dir=tmp_path)
    [entry] = entries(tmp_path)
    path = tmp_path / entry / "entry.json"
    header = json.loads(path.read_text())
    header["content"]["read"] += 1
    path.write_text(json.dumps(header))
    assert encoding._open_entry(tmp_path / entry) is None


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    encoded, _ = encode_pairs(TEXT, TOKENIZER, max_tokens=None, cache_dir=tmp_path / "file")
    assert as_lists(encoded) == expected(TEXT)


def test_an_entry_that_vanishes_while_it_is_opened_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when another process takes it for damaged, removes it and writes it anew."""
    encode_pairs(TEXT, TOKENIZER, max_tokens=None, cache_dir=tmp_path)
    [entry] = entries(tmp_path)
    measure = encoding._measure

    def measure_and_remove(path: Path) -> list[int]:
        found = measure(path)
        path.unlink()
        return found

    monkeypatch.setattr(encoding, "_measure", measure_and_remove)
    assert encoding._open_entry(tmp_path / entry) is None
    encoded, _ = encode_pairs(TEXT, TOKENIZER, max_tokens=None, cache_dir=tmp_path)
    assert as_lists(encoded) == expected(TEXT)


def test_a_whole_entry_is_left_alone(tmp_path: Path) -> None:
    encoded, account = encode_pairs(TEXT, TOKENIZER, max_tokens=None, cache_dir=tmp_path)
    [entry] = entries(tmp_path)
    before = (tmp_path / entry).stat().st_ino
    encoding._write_entry(tmp_path / entry, encoded, account)
    assert (tmp_path / entry).stat().st_ino == before
    assert len(list(tmp_path.iterdir())) == 1


def _encode_in_a_process(cache: Path, results: Any) -> None:
    encoded, _ = encode_pairs(TEXT, TOKENIZER, max_tokens=None, cache_dir=cache)
    results.put(as_lists(encoded) == expected(TEXT))


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


def test_sampled_pairs_are_a_pure_function_of_seed_and_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "CHUNK_PAIRS", 64)

    def sample(seed: int, epoch: int) -> list[tuple[list[int], list[int]]]:
        pairs, account = sample_pairs(TEXT, TOKENIZER, max_tokens=None, alpha=0.02, seed=seed, epoch=epoch)
        assert account == Account(len(TEXT), {"empty to the tokenizer": 0})
        return as_lists(pairs)

    first = sample(1, 1)
    assert sample(1, 2) != first
    assert sample(2, 1) != first
    assert sample(1, 1) == first
    assert [TOKENIZER.decode(tgt) for _, tgt in first] == TEXT.tgt
    same = ParallelText(TEXT.src, TEXT.src)
    pairs, _ = sample_pairs(same, TOKENIZER, max_tokens=None, alpha=0.02, seed=1, epoch=1)
    assert any(src != tgt for src, tgt in as_lists(pairs))  # the sides draw differently


def test_sampled_pairs_keep_the_limit() -> None:
    pairs, account = sample_pairs(TEXT, TOKENIZER, max_tokens=25, alpha=0.02, seed=1, epoch=1)
    assert max(pairs.src_lengths.max(), pairs.tgt_lengths.max()) <= 25
    assert account.dropped == {"empty to the tokenizer": 0, "over 25 pieces": len(TEXT) - len(pairs)}
    assert account.kept < len(TEXT)


def test_joined_pairs_are_one_target() -> None:
    pairs, _ = encode_pairs(TEXT, TOKENIZER, max_tokens=None, cache_dir=None)
    both = joined(pairs)
    assert [(src, tgt) for src, tgt in as_lists(both)] == [
        ([], [*src, BOS_ID, *tgt]) for src, tgt in as_lists(pairs)
    ]


@settings(max_examples=30, deadline=None)
@given(length=st.integers(1, 50), first=st.integers(0, 60))
def test_windows_hold_the_text_once(length: int, first: int) -> None:
    pairs, _ = encode_pairs(TEXT, TOKENIZER, max_tokens=None, cache_dir=None)
    cut = as_lists(windows(pairs, length, first % length))
    assert [token for _, tgt in cut for token in tgt] == [t for _, tgt in as_lists(pairs) for t in tgt]
    assert all(src == [] for src, _ in cut)
    inner = [len(tgt) for _, tgt in cut[1:-1]]
    assert set(inner) <= {length}
    assert all(0 < len(tgt) <= length for _, tgt in cut)
    assert not first % length or len(cut[0][1]) == first % length
