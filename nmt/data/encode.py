"""From text to ids: a split is encoded chunk by chunk into flat files, which the cache keeps.

An entry of the cache is named after the content: a hash of every line, the tokenizer and the options, so that
it is never stale. Where a corpus is in the cache, its text is not read. Batches are unknown here.
"""

from __future__ import annotations

import dataclasses
import tempfile
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

FORMAT_VERSION = 4
"""Raised when the meaning of an entry changes."""
IN_MEMORY_BYTES = 1 << 26
"""The ids of one side are held in memory up to this size; beyond it a batch reads what it needs."""

FILES = ("src_ids", "src_lengths", "tgt_ids", "tgt_lengths")
SHORT = 1 << 16
"""Numbers below this are stored in two bytes, others in four."""

Chunks = Callable[[], Iterator[ParallelText]]


class EncodingOptions(NamedTuple):
    """Which pairs are left out, and accounted for, and how the others are laid out."""

    max_tokens: int | None = None
    """Pairs with a side of more ids are left out; None: none."""
    drop_empty: bool = False
    """So are those with a side of which only EOS is left."""
    joined: bool = False
    """Source, BOS and target are one target without a source: both are to be predicted."""


UNLIMITED = EncodingOptions()


def encode_pairs(
    text: ParallelText, tokenizer: Tokenizer, options: EncodingOptions = UNLIMITED
) -> tuple[EncodedPairs, FilterReport]:
    """Encode a split that is in memory."""
    return _throwaway(_encoded(lambda: _chunks(text), tokenizer), tokenizer, options)


def encode_stream(
    chunks: Chunks, content: str, tokenizer: Tokenizer, options: EncodingOptions, cache: Path
) -> tuple[EncodedPairs, FilterReport]:
    """Encode a stream, or open what an earlier call has left in `cache`; `content` is a hash of its text.

    A cache that cannot be written is done without.
    """
    versions = FORMAT_VERSION, sentencepiece.__version__, unicodedata.unidata_version
    entry = cache / entry_name("ids", *versions, content, tokenizer.fingerprint, tuple(options))
    metadata = open_entry(entry)
    if metadata is None:
        write_entry(entry, lambda draft: _lay_out(_encoded(chunks, tokenizer), tokenizer, options, draft))
        metadata = open_entry(entry)
    if metadata is None:
        return _throwaway(_encoded(chunks, tokenizer), tokenizer, options)
    return _opened(entry, metadata)


def sample_pairs(
    chunks: Chunks, tokenizer: Tokenizer, options: EncodingOptions, *, alpha: float, seed: int, epoch: int
) -> tuple[EncodedPairs, FilterReport]:
    """Encode pairs with segmentations drawn anew for each epoch: a pure function of the arguments."""
    drawn = (
        (
            RaggedIds.of(
                tokenizer.sample_src(chunk.src, alpha=alpha, seed=derive_seed("src", seed, epoch, number))
            ),
            RaggedIds.of(
                tokenizer.sample_tgt(chunk.tgt, alpha=alpha, seed=derive_seed("tgt", seed, epoch, number))
            ),
        )
        for number, chunk in enumerate(chunks())
    )
    return _throwaway(drawn, tokenizer, options)


def _encoded(chunks: Chunks, tokenizer: Tokenizer) -> Iterator[tuple[RaggedIds, RaggedIds]]:
    for chunk in chunks():
        yield tokenizer.flat_src(chunk.src), tokenizer.flat_tgt(chunk.tgt)


def _chunks(text: ParallelText) -> Iterator[ParallelText]:
    for first in range(0, len(text), CHUNK_PAIRS):
        yield ParallelText(text.src[first : first + CHUNK_PAIRS], text.tgt[first : first + CHUNK_PAIRS])


def _throwaway(
    encoded: Iterable[tuple[RaggedIds, RaggedIds]], tokenizer: Tokenizer, options: EncodingOptions
) -> tuple[EncodedPairs, FilterReport]:
    """Lay ids out in files without names: they go when nobody reads them any more."""
    with tempfile.TemporaryDirectory(prefix="nmt-ids-") as folder:
        return _opened(Path(folder), _lay_out(encoded, tokenizer, options, Path(folder)))


def _lay_out(
    encoded: Iterable[tuple[RaggedIds, RaggedIds]],
    tokenizer: Tokenizer,
    options: EncodingOptions,
    folder: Path,
) -> Metadata:
    """Write ids and lengths into `folder`, without the pairs to leave out; return the metadata."""
    vocabularies = tokenizer.src_vocab_size, tokenizer.tgt_vocab_size
    longest = 2 * (options.max_tokens or SHORT) + 1
    types = [_type(size) for vocab_size in vocabularies for size in (vocab_size - 1, longest)]
    read = empty = left = 0
    with ExitStack() as stack:
        files = [stack.enter_context((folder / name).open("wb")) for name in FILES]
        for src, tgt in encoded:
            shorter, longer = np.minimum(src.lengths, tgt.lengths), np.maximum(src.lengths, tgt.lengths)
            kept = shorter > 1 if options.drop_empty else np.ones(len(shorter), bool)
            read, empty = read + len(kept), empty + int((~kept).sum())
            if options.max_tokens is not None:
                kept &= longer <= options.max_tokens
            left += int(kept.sum())
            sides = _only(src, kept), _only(tgt, kept)
            if options.joined:
                sides = RaggedIds(sides[0].ids[:0], sides[0].lengths * 0), _joined(*sides)
            arrays = [array for side in sides for array in (side.ids, side.lengths)]
            for file, array, kind in zip(files, arrays, types, strict=True):
                file.write(array.astype(kind).data)
    dropped = {"empty to the tokenizer": empty} if options.drop_empty else {}
    dropped |= {f"over {options.max_tokens} pieces": read - empty - left} if options.max_tokens else {}
    report = FilterReport(read, dropped)
    if read and not left:
        way_out = "raise data.max_tokens or model.max_positions"
        if empty:
            way_out += ", or see tokenizer.strip_punctuation and tokenizer.normalization"
        raise UserError(f"no pair is left: {report}; {way_out}")
    return {"report": dataclasses.asdict(report), "types": types}


def _type(largest: int) -> str:
    """The type that numbers up to `largest` are stored as, in the byte order of every machine in use."""
    return "<u2" if largest < SHORT else "<i4"


def _only(side: RaggedIds, kept: NDArray[np.bool_]) -> RaggedIds:
    """The sentences that are kept."""
    return side if kept.all() else RaggedIds(side.ids[np.repeat(kept, side.lengths)], side.lengths[kept])


def _joined(src: RaggedIds, tgt: RaggedIds) -> RaggedIds:
    """Source, BOS and target of each pair."""
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
    return EncodedPairs(*sides), FilterReport(**metadata["report"])
