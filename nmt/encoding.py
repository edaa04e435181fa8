"""The ids of a whole split: flat arrays, mapped from a cache on disk when there is one.

The cache is keyed by content: a hash of every line, the tokenizer and the options, so that it is never stale.
An entry is a directory that appears whole, by renaming, or not at all; several processes may write the same
one. Every byte is checked when an entry is opened, and a damaged one is made again. Batches are unknown here.

An entry holds ids and offsets of either side as .npy (sentence i is ids[offsets[i] : offsets[i + 1]]) and
entry.json: the account, and size and CRC-32 of each array file.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import secrets
import shutil
import unicodedata
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from nmt.corpus import Account
from nmt.errors import UserError
from nmt.pairs import ParallelText
from nmt.runtime import derive_seed
from nmt.tokenizer import BOS_ID, Tokenizer

FORMAT_VERSION = 2
"""Raised when the meaning of a cache entry changes."""
CHUNK_PAIRS = 50_000
"""Pairs that exist as Python lists at a time."""

Ids = list[list[int]]
ARRAYS = ("src_ids", "src_offsets", "tgt_ids", "tgt_offsets")


class EncodedPairs:
    """The ids of sentence pairs, EOS included; a sentence is a view into one array of its side."""

    def __init__(
        self,
        src_ids: NDArray[np.int32],
        src_offsets: NDArray[np.int64],
        tgt_ids: NDArray[np.int32],
        tgt_offsets: NDArray[np.int64],
    ):
        self.arrays: dict[str, NDArray[Any]] = dict(
            zip(ARRAYS, (src_ids, src_offsets, tgt_ids, tgt_offsets), strict=True)
        )
        self.src_lengths: NDArray[np.int64] = np.diff(src_offsets)
        self.tgt_lengths: NDArray[np.int64] = np.diff(tgt_offsets)

    def __len__(self) -> int:
        return len(self.src_lengths)

    def src(self, i: int) -> NDArray[np.int32]:
        """The source ids of pair `i`."""
        return self._sentence("src", i)

    def tgt(self, i: int) -> NDArray[np.int32]:
        """The target ids of pair `i`."""
        return self._sentence("tgt", i)

    def _sentence(self, side: str, i: int) -> NDArray[np.int32]:
        offsets = self.arrays[f"{side}_offsets"]
        ids: NDArray[np.int32] = self.arrays[f"{side}_ids"][offsets[i] : offsets[i + 1]]
        return ids


def encode_pairs(
    text: ParallelText,
    tokenizer: Tokenizer,
    *,
    max_tokens: int | None,
    cache_dir: Path | None,
    drop_empty: bool = False,
) -> tuple[EncodedPairs, Account]:
    """Encode a split, or open what an earlier call has left in `cache_dir`.

    Pairs with a side of more than `max_tokens` ids are dropped and accounted for; None keeps all. So are
    those with a side of which only EOS is left, given `drop_empty`. A cache that cannot be written is done
    without.
    """
    if cache_dir is None:
        return _encode(text, tokenizer, max_tokens, drop_empty)
    entry = cache_dir / _key(text, tokenizer, max_tokens, drop_empty)
    found = _open_entry(entry)
    if found is not None:
        return found
    pairs, account = _encode(text, tokenizer, max_tokens, drop_empty)
    _write_entry(entry, pairs, account)
    return _open_entry(entry) or (pairs, account)


def sample_pairs(
    text: ParallelText,
    tokenizer: Tokenizer,
    *,
    max_tokens: int | None,
    alpha: float,
    seed: int,
    epoch: int,
) -> tuple[EncodedPairs, Account]:
    """Encode training pairs with segmentations drawn anew for each epoch: a pure function of the arguments.

    Pairs are dropped as by `encode_pairs`, those with an empty side among them.
    """
    chunks = (
        (
            tokenizer.sample_src(chunk.src, alpha=alpha, seed=derive_seed("src", seed, epoch, number)),
            tokenizer.sample_tgt(chunk.tgt, alpha=alpha, seed=derive_seed("tgt", seed, epoch, number)),
        )
        for number, chunk in enumerate(_chunks(text))
    )
    return _collect(chunks, max_tokens, drop_empty=True)


def joined(pairs: EncodedPairs) -> EncodedPairs:
    """Source, BOS and target of each pair as one target without a source: both are to be predicted."""
    arrays, num_src, num_tgt = pairs.arrays, pairs.src_lengths, pairs.tgt_lengths
    offsets = _offsets(num_src + 1 + num_tgt)
    starts = offsets[:-1]
    ids = np.full(offsets[-1], BOS_ID, np.int32)
    for side, lengths, first in (("src", num_src, starts), ("tgt", num_tgt, starts + num_src + 1)):
        shift = np.repeat(first - arrays[f"{side}_offsets"][:-1], lengths)
        ids[np.arange(len(shift)) + shift] = arrays[f"{side}_ids"]
    return _targets(ids, offsets)


def windows(pairs: EncodedPairs, length: int, first: int = 0) -> EncodedPairs:
    """The targets as one text, cut after `first` tokens and then after every `length`, without a source."""
    ids = pairs.arrays["tgt_ids"]
    cuts = np.arange(first, len(ids), length, dtype=np.int64)
    return _targets(ids, np.unique(np.concatenate([[0], cuts, [len(ids)]])))


def _targets(ids: NDArray[np.int32], offsets: NDArray[np.int64]) -> EncodedPairs:
    return EncodedPairs(np.empty(0, np.int32), np.zeros_like(offsets), ids, offsets)


def _encode(
    text: ParallelText, tokenizer: Tokenizer, max_tokens: int | None, drop_empty: bool
) -> tuple[EncodedPairs, Account]:
    chunks = ((tokenizer.encode_src(chunk.src), tokenizer.encode_tgt(chunk.tgt)) for chunk in _chunks(text))
    return _collect(chunks, max_tokens, drop_empty)


def _chunks(text: ParallelText) -> Iterator[ParallelText]:
    for first in range(0, len(text), CHUNK_PAIRS):
        yield ParallelText(text.src[first : first + CHUNK_PAIRS], text.tgt[first : first + CHUNK_PAIRS])


def _collect(
    chunks: Iterable[tuple[Ids, Ids]], max_tokens: int | None, drop_empty: bool
) -> tuple[EncodedPairs, Account]:
    """Lay the ids out flat, without the pairs that are too long, or empty."""
    read = empty = 0
    ids: tuple[list[NDArray[np.int32]], ...] = ([], [])
    lengths: tuple[list[NDArray[np.int64]], ...] = ([], [])
    for src, tgt in chunks:
        read += len(src)
        pairs = [pair for pair in zip(src, tgt, strict=True) if not drop_empty or min(map(len, pair)) > 1]
        empty += len(src) - len(pairs)
        kept = [pair for pair in pairs if max_tokens is None or max(map(len, pair)) <= max_tokens]
        for side in (0, 1):
            sentences = [pair[side] for pair in kept]
            lengths[side].append(np.fromiter(map(len, sentences), np.int64))
            ids[side].append(np.fromiter(itertools.chain.from_iterable(sentences), np.int32))
    sides = [(_joined(ids[side], np.int32), _offsets(_joined(lengths[side], np.int64))) for side in (0, 1)]
    encoded = EncodedPairs(*sides[0], *sides[1])
    dropped = {"empty to the tokenizer": empty} if drop_empty else {}
    dropped |= {f"over {max_tokens} pieces": read - empty - len(encoded)} if max_tokens else {}
    account = Account(read, dropped)
    if read and not encoded:
        way_out = "raise data.max_tokens or model.max_positions"
        if empty:
            way_out += ", or see tokenizer.strip_punctuation and tokenizer.normalization"
        raise UserError(f"no pair is left: {account}; {way_out}")
    return encoded, account


def _joined(parts: list[NDArray[Any]], dtype: type[np.generic]) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def _offsets(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _key(text: ParallelText, tokenizer: Tokenizer, max_tokens: int | None, drop_empty: bool) -> str:
    """A hash of all that the ids depend on."""
    versions = f"{FORMAT_VERSION} {sentencepiece.__version__} {unicodedata.unidata_version}"
    options = f"{tokenizer.fingerprint} {max_tokens} {drop_empty}"
    digest = hashlib.sha256(f"{versions} {options}".encode())
    for chunk in _chunks(text):
        for lines in (chunk.src, chunk.tgt):
            digest.update(np.fromiter(map(len, lines), np.int64).tobytes())  # says where each line ends
            digest.update("".join(lines).encode())
    return digest.hexdigest()


def _write_entry(entry: Path, pairs: EncodedPairs, account: Account) -> None:
    """Write an entry under another name, then rename it: it is there whole or not at all."""
    temporary = entry.parent / f".{entry.name}.{secrets.token_hex(4)}"
    try:
        temporary.mkdir(parents=True)
        files = {}
        for name, array in pairs.arrays.items():
            path = temporary / f"{name}.npy"
            np.save(path, array, allow_pickle=False)
            files[path.name] = _measure(path)
        content = {"read": account.read, "dropped": account.dropped, "files": files}
        sealed = {"content": content, "crc32": _crc32_of(content)}
        (temporary / "entry.json").write_text(json.dumps(sealed), encoding="utf-8")
        if _open_entry(entry) is None:  # and not the whole one of a process that was faster
            shutil.rmtree(entry, ignore_errors=True)
            os.rename(temporary, entry)
    except OSError:  # no space, no permission, or another process was faster still
        pass
    shutil.rmtree(temporary, ignore_errors=True)


def _open_entry(entry: Path) -> tuple[EncodedPairs, Account] | None:
    """The pairs of an entry, or None when it is not there or not exactly as it was written."""
    try:
        sealed = json.loads((entry / "entry.json").read_text(encoding="utf-8"))
        content = sealed["content"]
        if sealed["crc32"] != _crc32_of(content):
            return None
        if any(_measure(entry / name) != measure for name, measure in content["files"].items()):
            return None
        # Copy on write: a reader may treat the arrays as its own, and the file stays as it is.
        arrays = [np.load(entry / f"{name}.npy", mmap_mode="c", allow_pickle=False) for name in ARRAYS]
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
    ):  # an array, too, may vanish
        return None
    plain = [np.asarray(array) for array in arrays]  # views without the cost of np.memmap per slice
    return EncodedPairs(*plain), Account(content["read"], content["dropped"])


def _measure(path: Path) -> list[int]:
    """Size and CRC-32 of a file."""
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            checksum = zlib.crc32(block, checksum)
    return [path.stat().st_size, checksum]


def _crc32_of(content: object) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
