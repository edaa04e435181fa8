"""Encode text as ids, chunk by chunk, into flat files that are cached by content.

An entry of the cache is named by a hash of every line, the tokenizer and the options, so that the entry is
never stale. The text of a cached corpus is not read. Batches are unknown here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from nmt.data.encoded_pairs import EncodedPairs, FileIds, RaggedIds
from nmt.data.filters import FilterReport
from nmt.data.pairs import CHUNK_PAIRS, ParallelText
from nmt.data.special_ids import BOS_ID
from nmt.data.tokenizer import Tokenizer
from nmt.disk_cache import Metadata, entry_name, open_entry, write_entry
from nmt.errors import UserError
from nmt.runtime import derive_seed
from nmt.temporary import temporary_folder

FORMAT_VERSION = 5
"""Increased when the format of a cache entry changes."""
IN_MEMORY_BYTES = 1 << 26
"""The ids of one side are held in memory up to this size; beyond it a batch reads what it needs."""

FILES = ("src_ids", "src_lengths", "tgt_ids", "tgt_lengths")
SHORT = 1 << 16
"""Numbers below this are stored in two bytes, others in four."""

Chunks = Callable[[], Iterator[ParallelText]]


class EncodingOptions(NamedTuple):
    """Options of encoding: which pairs are left out, and reported, and how the others are laid out."""

    max_tokens: int | None = None
    """Pairs with a side of more ids, EOS included, are left out; None: no limit."""
    drop_empty: bool = False
    """Whether pairs are left out of which one side is EOS alone."""
    joined: bool = False
    """Whether source, BOS and target become one target, with an empty source: the model predicts both."""


UNLIMITED = EncodingOptions()


def encode_pairs(
    text: ParallelText, tokenizer: Tokenizer, options: EncodingOptions = UNLIMITED
) -> tuple[EncodedPairs, FilterReport]:
    """Encode a split that is in memory."""
    return _encode_uncached(_encoded(_chunks(text), tokenizer), tokenizer, options)


def encode_stream(
    chunks: Chunks, content: str, tokenizer: Tokenizer, options: EncodingOptions, cache: Path
) -> tuple[EncodedPairs, FilterReport]:
    """Encode a stream, or open the entry of an earlier call in `cache`; `content` is a hash of the text.

    A cache that cannot be written is not used.
    """
    versions = FORMAT_VERSION, sentencepiece.__version__, unicodedata.unidata_version
    entry = cache / entry_name("ids", *versions, content, tokenizer.fingerprint, tuple(options))
    metadata = open_entry(entry)
    if metadata is None:
        write_entry(entry, lambda draft: _lay_out(_encoded(chunks(), tokenizer), tokenizer, options, draft))
        metadata = open_entry(entry)
    if metadata is None:
        return _encode_uncached(_encoded(chunks(), tokenizer), tokenizer, options)
    return _opened(entry, metadata)


def sample_pairs(
    chunks: Chunks, tokenizer: Tokenizer, options: EncodingOptions, *, alpha: float, seed: int, epoch: int
) -> tuple[EncodedPairs, FilterReport]:
    """Encode pairs with segmentations sampled anew for each epoch: a pure function of the arguments.

    The segmentation of a side depends on its text, `alpha`, `seed`, `epoch`, the number of the pair and the
    side alone, and not on the size of chunks.
    """
    src_seed, tgt_seed = (derive_seed(side, seed, epoch) for side in ("src", "tgt"))

    def sampled() -> Iterator[tuple[RaggedIds, RaggedIds]]:
        first = 0
        for chunk in chunks():
            src = tokenizer.sample_src(chunk.src, alpha=alpha, seed=src_seed, first=first)
            tgt = tokenizer.sample_tgt(chunk.tgt, alpha=alpha, seed=tgt_seed, first=first)
            first += len(chunk)
            yield src, tgt

    return _encode_uncached(sampled(), tokenizer, options)


def _encoded(chunks: Iterable[ParallelText], tokenizer: Tokenizer) -> Iterator[tuple[RaggedIds, RaggedIds]]:
    for chunk in chunks:
        yield tokenizer.flat_src(chunk.src), tokenizer.flat_tgt(chunk.tgt)


def _chunks(text: ParallelText) -> Iterator[ParallelText]:
    for first in range(0, len(text), CHUNK_PAIRS):
        yield ParallelText(text.src[first : first + CHUNK_PAIRS], text.tgt[first : first + CHUNK_PAIRS])


def _encode_uncached(
    encoded: Iterable[tuple[RaggedIds, RaggedIds]], tokenizer: Tokenizer, options: EncodingOptions
) -> tuple[EncodedPairs, FilterReport]:
    """Lay ids out in files that are deleted at once; an open file can be read until it is closed."""
    with temporary_folder() as folder:
        return _opened(folder, _lay_out(encoded, tokenizer, options, folder))


def _lay_out(
    encoded: Iterable[tuple[RaggedIds, RaggedIds]],
    tokenizer: Tokenizer,
    options: EncodingOptions,
    folder: Path,
) -> Metadata:
    """Write ids and lengths into `folder`, without pairs that `options` leave out; return the metadata."""
    vocabularies = tokenizer.src_vocab_size, tokenizer.tgt_vocab_size
    longest = 2 * (options.max_tokens or SHORT) + 1
    types = [_type(size) for vocab_size in vocabularies for size in (vocab_size - 1, longest)]
    num_read = num_empty = num_kept = 0
    hashes = [hashlib.sha256() for _ in FILES]
    with ExitStack() as stack:
        files = [stack.enter_context((folder / name).open("wb")) for name in FILES]
        for src, tgt in encoded:
            shorter, longer = np.minimum(src.lengths, tgt.lengths), np.maximum(src.lengths, tgt.lengths)
            kept = shorter > 1 if options.drop_empty else np.ones(len(shorter), bool)
            num_read, num_empty = num_read + len(kept), num_empty + int((~kept).sum())
            if options.max_tokens is not None:
                kept &= longer <= options.max_tokens
            num_kept += int(kept.sum())
            sides = _only(src, kept), _only(tgt, kept)
            if options.joined:
                sides = RaggedIds(sides[0].ids[:0], sides[0].lengths * 0), _joined(*sides)
            arrays = [array for side in sides for array in (side.ids, side.lengths)]
            for file, hashed, array, kind in zip(files, hashes, arrays, types, strict=True):
                content = array.astype(kind).data
                file.write(content)
                hashed.update(content)
    dropped = {"empty to the tokenizer": num_empty} if options.drop_empty else {}
    if options.max_tokens:
        dropped[f"over {options.max_tokens} pieces"] = num_read - num_empty - num_kept
    report = FilterReport(num_read, dropped)
    if num_read and not num_kept:
        way_out = "raise data.max_tokens or model.max_positions"
        if num_empty:
            way_out += ", or see tokenizer.strip_punctuation and tokenizer.normalization"
        raise UserError(f"no pair is left: {report}; {way_out}")
    digest = hashlib.sha256(b"".join(hashed.digest() for hashed in hashes)).hexdigest()
    return {"report": dataclasses.asdict(report), "types": types, "digest": digest}


def _type(largest: int) -> str:
    """Return the little-endian type in which numbers up to `largest` are stored."""
    return "<u2" if largest < SHORT else "<i4"


def _only(side: RaggedIds, kept: NDArray[np.bool_]) -> RaggedIds:
    return side if kept.all() else RaggedIds(side.ids[np.repeat(kept, side.lengths)], side.lengths[kept])


def _joined(src: RaggedIds, tgt: RaggedIds) -> RaggedIds:
    """Concatenate source, BOS and target of each pair."""
    lengths = src.lengths + 1 + tgt.lengths
    starts = np.cumsum(lengths) - lengths
    ids = np.full(lengths.sum(), BOS_ID, np.int32)
    for side, first in ((src, starts), (tgt, starts + src.lengths + 1)):
        shift = np.repeat(first - (np.cumsum(side.lengths) - side.lengths), side.lengths)
        ids[np.arange(len(shift)) + shift] = side.ids
    return RaggedIds(ids, lengths)


def _opened(folder: Path, metadata: Metadata) -> tuple[EncodedPairs, FilterReport]:
    ids_and_lengths = dict(zip(FILES, metadata["types"], strict=True))
    sides = []
    for side in ("src", "tgt"):
        file, kind = folder / f"{side}_ids", ids_and_lengths[f"{side}_ids"]
        large = file.stat().st_size > IN_MEMORY_BYTES
        lengths = np.fromfile(folder / f"{side}_lengths", ids_and_lengths[f"{side}_lengths"])
        sides.append(RaggedIds(FileIds(file, kind) if large else np.fromfile(file, kind), lengths))
    return EncodedPairs(*sides, digest=metadata["digest"]), FilterReport(**metadata["report"])
