"""Encode text as ids, chunk by chunk, into flat files that are cached by content.

An entry of the cache is named by a hash of every line, the tokenizer and the options, so that the entry is
never stale. The text of a cached corpus is not read. Batches are unknown here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.data.augment.augmentation import UNMODIFIED, Augmentation, JoinedAugmentation
from nmt.data.cleaning.filters import FilterReport
from nmt.data.encoded_pairs import EncodedPairs, FileIds, RaggedIds
from nmt.data.parallel_text import CHUNK_PAIRS, ParallelText
from nmt.data.special_ids import BOS_ID
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.disk_cache import Metadata, entry_name, open_entry, write_entry
from nmt.distributed import World
from nmt.errors import TrainingStopped, UserError
from nmt.files import FULL
from nmt.runtime import derive_seed
from nmt.temporary import temporary_folder

FORMAT_VERSION = 5
"""Increased when the format of a cache entry changes."""
IN_MEMORY_BYTES = 1 << 26
"""The ids of one side are held in memory up to this size; beyond it a batch reads what it needs."""

MAPPED_BYTES = 1 << 21
"""Lengths are held in memory up to this size; larger files are mapped."""

FILES = ("src_ids", "src_lengths", "tgt_ids", "tgt_lengths")
WEIGHTS = "weights"
"""The file of the weights, behind `FILES`, where pairs have some."""
SHORT = 1 << 16
"""Numbers below this are stored in two bytes, others in four."""

Chunks = Callable[[], Iterator[ParallelText]]


class EncodingOptions(NamedTuple):
    """Options of encoding: which pairs are left out, and reported, and how the others are laid out."""

    max_source: int | None = None
    """Pairs with a source of more ids, EOS included, are left out; None: no limit."""
    max_target: int | None = None
    """The same for the target."""
    drop_empty: bool = False
    """Whether pairs are left out of which one side is EOS alone."""
    joined: bool = False
    """Whether source, BOS and target become one target, with an empty source: the model predicts both."""
    weighted: bool = False
    """Whether the weights of the pairs are kept."""

    @property
    def limits(self) -> str:
        """The limits in words, as the reason to leave a pair out; empty where there is none."""
        if self.max_source == self.max_target:
            return f"over {self.max_source} pieces" if self.max_source else ""
        sides = {"source": self.max_source, "target": self.max_target}
        return f"{' or '.join(f'{side} over {most}' for side, most in sides.items() if most)} pieces"


UNLIMITED = EncodingOptions()


@dataclass(frozen=True)
class LineEncoder:
    """The way from text to ids, as one process can hand it to another."""

    tokenizer: Tokenizer
    options: EncodingOptions = UNLIMITED
    alpha: float = 0.0
    """Above 0, segmentations are sampled, by the seed and the numbers of epoch and pair."""
    seed: int = 0
    epoch: int = 0
    augmentation: Augmentation | JoinedAugmentation = UNMODIFIED
    """Modifies the text, by the seed and the numbers of epoch and pair."""

    def __call__(self, text: ParallelText, first: int) -> tuple[RaggedIds, RaggedIds]:
        """Return the ids of both sides of pairs from pair number `first` on, none left out."""
        if self.augmentation:
            seed = derive_seed("augment", self.seed, self.epoch)
            text = self.augmentation(text, seed=seed, first=first)
        if not self.alpha:
            return self.tokenizer.flat_src(text.src), self.tokenizer.flat_tgt(text.tgt, text.src)
        src_seed, tgt_seed = (derive_seed(side, self.seed, self.epoch) for side in ("src", "tgt"))
        src = self.tokenizer.sample_src(text.src, alpha=self.alpha, seed=src_seed, first=first)
        tgt = self.tokenizer.sample_tgt(text.tgt, text.src, alpha=self.alpha, seed=tgt_seed, first=first)
        return src, tgt

    def arrays(self, chunk: ParallelText, first: int) -> Encoded:
        """Return what is laid out of the pairs from pair number `first` on that are not left out."""
        src, tgt = self(chunk, first)
        kept, counts = chosen(src, tgt, self.options)
        return laid_out(src, tgt, chunk.all_weights, kept, self.options), counts

    def of_all(self, chunks: Iterable[ParallelText]) -> Iterator[Encoded]:
        """Yield what is laid out of all pairs, chunk by chunk."""
        first = 0
        for chunk in chunks:
            yield self.arrays(chunk, first)
            first += len(chunk)

    def of_ranks(self, text: ParallelText, world: World) -> Iterator[Encoded]:
        """Yield what is laid out of a text, of which each rank encodes every `world.size`-th chunk."""
        size = min(CHUNK_PAIRS, max(1, math.ceil(len(text) / world.size)))
        for first_of_all in range(0, len(text), size * world.size):
            first = first_of_all + size * world.rank
            own, counts = self.arrays(text.part(slice(first, first + size)), first)
            parts = [
                [np.frombuffer(data, kind) for data in world.all_gather_bytes(array.astype(kind).tobytes())]
                for array, kind in zip(own, self.types, strict=True)
            ]
            counts_of_ranks = [Counts(*of_rank) for of_rank in world.all_gather(counts)]
            yield from zip(map(list, zip(*parts, strict=True)), counts_of_ranks, strict=True)

    def entry_name(self, kind: str, *parts: object) -> str:
        """Return the name of an entry of the cache that depends on this encoder and on `parts`."""
        versions = FORMAT_VERSION, self.tokenizer.versions, unicodedata.unidata_version
        options = tuple(self.options)[: None if self.options.weighted else -1]  # absent if without effect
        return entry_name(kind, *versions, *parts, self.tokenizer.fingerprint, options)

    @property
    def files(self) -> tuple[str, ...]:
        """The names of the files of a corpus."""
        return (*FILES, *([WEIGHTS] if self.options.weighted else []))

    @property
    def types(self) -> list[str]:
        """The types of the numbers in `files`."""
        longest = (self.options.max_source or SHORT) + 1 + (self.options.max_target or SHORT)
        vocabularies = self.tokenizer.num_src_ids, self.tokenizer.tgt_vocab_size
        sides = [_type(size) for vocab_size in vocabularies for size in (vocab_size - 1, longest)]
        return [*sides, *(["<f4"] if self.options.weighted else [])]


Encoded = tuple[list[NDArray[Any]], "Counts"]
"""Ids and lengths of both sides of a chunk, perhaps weights, in the order of `LineEncoder.files`; counts."""


class Counts(NamedTuple):
    """The numbers of pairs that were read, that are empty to the tokenizer, and that are kept."""

    read: int = 0
    empty: int = 0
    kept: int = 0

    def plus(self, other: Counts) -> Counts:
        """Return the sums."""
        return Counts(*map(sum, zip(self, other, strict=True)))

    def report(self, options: EncodingOptions) -> FilterReport:
        """Return the account of the pairs; raise `UserError` when none is left."""
        dropped = {"empty to the tokenizer": self.empty} if options.drop_empty else {}
        if options.limits:
            dropped[options.limits] = self.read - self.empty - self.kept
        report = FilterReport(self.read, dropped)
        if self.read and not self.kept:
            way_out = "raise data.max_tokens or model.max_positions"
            if self.empty:
                way_out += ", or see tokenizer.strip_punctuation and tokenizer.normalization"
            raise UserError(f"no pair is left: {report}; {way_out}")
        return report


def encode_pairs(
    text: ParallelText, tokenizer: Tokenizer, options: EncodingOptions = UNLIMITED
) -> tuple[EncodedPairs, FilterReport]:
    """Encode a split that is in memory."""
    encoder = LineEncoder(tokenizer, options)
    return _encode_uncached(encoder.of_all(_chunks(text)), encoder)


def encode_stream(
    chunks: Chunks,
    content: str,
    tokenizer: Tokenizer,
    options: EncodingOptions,
    cache: Path,
) -> tuple[EncodedPairs, FilterReport]:
    """Encode a stream, or open the entry of an earlier call in `cache`; `content` is a hash of the text.

    A cache that cannot be written is not used, unless it is `required`.

    Raises:
        UserError: there is no room for the ids in the cache, and they must be there.
        TrainingStopped: there is no room for them in the temporary folder.
    """
    encoder = LineEncoder(tokenizer, options)
    entry = cache / encoder.entry_name("ids", content)
    metadata = open_entry(entry)
    if metadata is None:
        write_entry(entry, lambda draft: _lay_out(encoder.of_all(chunks()), encoder, draft))
        metadata = open_entry(entry)
    if metadata is not None:
        return opened(entry, metadata)
    return _encode_uncached(encoder.of_all(chunks()), encoder)


def sample_pairs(chunks: Chunks, encoder: LineEncoder) -> tuple[EncodedPairs, FilterReport]:
    """Encode pairs with an encoder that modifies or samples anew for each epoch, into files deleted at once.

    What becomes of a side depends on the pair, the encoder, the number of the pair and the side alone, and
    not on the size of chunks.
    """
    return _encode_uncached(encoder.of_all(chunks()), encoder)


def encode_together(
    text: ParallelText, encoder: LineEncoder, world: World
) -> tuple[EncodedPairs, FilterReport]:
    """Encode pairs that all ranks have read; each encodes its share, and gets those of the others.

    The result is that of one process, on every rank.
    """
    return _encode_uncached(encoder.of_ranks(text, world), encoder)


def _chunks(text: ParallelText) -> Iterator[ParallelText]:
    for first in range(0, len(text), CHUNK_PAIRS):
        yield text.part(slice(first, first + CHUNK_PAIRS))


def _encode_uncached(chunks: Iterable[Encoded], encoder: LineEncoder) -> tuple[EncodedPairs, FilterReport]:
    """Lay ids out in files that are deleted at once; an open file can be read until it is closed."""
    try:
        with temporary_folder() as folder:
            return opened(folder, _lay_out(chunks, encoder, folder))
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise TrainingStopped(
            f"the ids of an epoch cannot be written to {tempfile.gettempdir()}: the disk is full; make room "
            "there, or set TMPDIR to a folder on a larger disk"
        ) from error


class Layout:
    """The files of encoded pairs, while they are written, and their hash."""

    def __init__(self, folder: Path, encoder: LineEncoder, files: ExitStack):
        """Open the files, which `files` closes."""
        self._types = encoder.types
        self._files = [files.enter_context((folder / name).open("wb")) for name in encoder.files]
        self._hashes = [hashlib.sha256() for _ in encoder.files]

    def add(self, *arrays: NDArray[Any]) -> None:
        """Add ids and lengths of both sides, and perhaps weights, in the order of `LineEncoder.files`."""
        for file, hashed, array, kind in zip(self._files, self._hashes, arrays, self._types, strict=True):
            content = array.astype(kind, copy=False).data
            file.write(content)
            hashed.update(content)

    def metadata(self, report: FilterReport) -> Metadata:
        """Return the metadata of the entry of the cache."""
        digest = hashlib.sha256(b"".join(hashed.digest() for hashed in self._hashes)).hexdigest()
        return {"report": dataclasses.asdict(report), "types": self._types, "digest": digest}


def _lay_out(chunks: Iterable[Encoded], encoder: LineEncoder, folder: Path) -> Metadata:
    """Write ids and lengths into `folder`; return the metadata."""
    counts = Counts()
    with ExitStack() as stack:
        layout = Layout(folder, encoder, stack)
        for arrays, of_chunk in chunks:
            counts = counts.plus(of_chunk)
            layout.add(*arrays)
    return layout.metadata(counts.report(encoder.options))


def chosen(src: RaggedIds, tgt: RaggedIds, options: EncodingOptions) -> tuple[NDArray[np.bool_], Counts]:
    """Return which pairs are kept, and their numbers."""
    shorter = np.minimum(src.lengths, tgt.lengths)
    kept = shorter > 1 if options.drop_empty else np.ones(len(shorter), bool)
    num_empty = int((~kept).sum())
    for side, most in ((src, options.max_source), (tgt, options.max_target)):
        if most is not None:
            kept &= side.lengths <= most
    return kept, Counts(len(kept), num_empty, int(kept.sum()))


def laid_out(
    src: RaggedIds,
    tgt: RaggedIds,
    weights: Sequence[float],
    kept: NDArray[np.bool_],
    options: EncodingOptions,
) -> list[NDArray[Any]]:
    """Return the arrays of the pairs that are kept, in the order of `LineEncoder.files`."""
    sides = _only(src, kept), _only(tgt, kept)
    if options.joined:
        sides = RaggedIds(sides[0].ids[:0], sides[0].lengths * 0), _joined(*sides)
    arrays = [array for side in sides for array in (side.ids, side.lengths)]
    return [*arrays, *([np.asarray(weights, np.float32)[kept]] if options.weighted else [])]


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


def opened(folder: Path, metadata: Metadata) -> tuple[EncodedPairs, FilterReport]:
    """Open the files of encoded pairs, which may be deleted then."""
    types = metadata["types"]
    ids_and_lengths = dict(zip(FILES, types, strict=False))
    sides = []
    for side in ("src", "tgt"):
        file, kind = folder / f"{side}_ids", ids_and_lengths[f"{side}_ids"]
        large = file.stat().st_size > IN_MEMORY_BYTES
        lengths = _array(folder / f"{side}_lengths", ids_and_lengths[f"{side}_lengths"])
        known = folder / f"{side}_starts"
        starts = _array(known, "<i8") if known.exists() else None
        sides.append(RaggedIds(FileIds(file, kind) if large else np.fromfile(file, kind), lengths, starts))
    weights = _array(folder / WEIGHTS, types[-1]) if len(types) > len(FILES) else None
    pairs = EncodedPairs(*sides, weights=weights, digest=metadata["digest"])
    return pairs, FilterReport(**metadata["report"])


def _array(file: Path, kind: str) -> NDArray[Any]:
    """Return the numbers in a file: in memory or, if they are many, mapped."""
    if file.stat().st_size > MAPPED_BYTES:
        return np.asarray(np.memmap(file, kind, "r"))
    return np.fromfile(file, kind)
