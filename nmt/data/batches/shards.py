"""Encode a large corpus shard by shard, in several processes if asked, and lay its pairs out in random order.

    CACHE/shards-HASH/00017/    the pairs of a shard, bucket by bucket, in the order of the text
    CACHE/blocks-HASH/          all pairs in random order; the shards are removed then

Each pair belongs to a bucket that is drawn at random; every shard is encoded by itself, and finished ones
outlive a process that is killed. In the end the pairs of each bucket are collected from all shards and
shuffled in memory. So any order of the pairs is as probable as any other, memory hardly grows with the
corpus, and the result depends on text and tokenizer alone. Batches are unknown here.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nmt.data.batches.encode import Chunks, Counts, Layout, LineEncoder, chosen, laid_out, opened
from nmt.data.cleaning.filters import FilterReport
from nmt.data.encoded_pairs import STRIDE, EncodedPairs, RaggedIds, starts_of
from nmt.data.parallel_text import ParallelText, in_blocks
from nmt.data.workers import worked
from nmt.disk_cache import Metadata, must_be_written, open_entry, write_entry
from nmt.errors import UserError
from nmt.progress import told
from nmt.runtime import derive_seed
from nmt.temporary import temporary_folder

SHARD_PAIRS = 1 << 17
"""Pairs of the text that are encoded together."""
BUCKET_PAIRS = 1 << 19
"""Pairs that are shuffled in memory, on average."""
GATHERED_PAIRS = 1 << 16
"""Pairs that are copied at a time."""
BYTES_PER_PAIR = 240
"""Usual size of the ids of a pair, in its shard and in random order."""


def is_encoded(content: str, encoder: LineEncoder, cache: Path, *, is_large: bool) -> bool:
    """Return whether `cache` has the pairs of a corpus, or seems to."""
    return (cache / encoder.entry_name("blocks" if is_large else "ids", content) / "entry.json").is_file()


def encode_shards(
    chunks: Chunks,
    content: str,
    num_pairs: int,
    encoder: LineEncoder,
    cache: Path,
) -> tuple[EncodedPairs, FilterReport]:
    """Encode a stream of `num_pairs` pairs in random order, or open the entry of an earlier call in `cache`.

    `content` is a hash of the text. A cache that cannot be written is not used, unless it is `required`.

    Raises:
        UserError: there is no room for the ids, neither in the cache nor, if they may be there, in the
            temporary folder.
    """
    entry, folder = (cache / encoder.entry_name(kind, content) for kind in ("blocks", "shards"))
    metadata = open_entry(entry)
    if metadata is None:
        shards = Shards(folder, content, num_pairs, encoder, SHARD_PAIRS, BUCKET_PAIRS)
        if shards.make(chunks()):
            write_entry(entry, shards.merge)
        metadata = open_entry(entry)  # perhaps of another process, which was faster and removed the shards
    if metadata is not None:
        shutil.rmtree(folder, ignore_errors=True)  # also what a process left that was killed while it did so
        return opened(entry, metadata)
    if must_be_written():
        way_out = "set NMT_CACHE to a folder on a larger disk; what is encoded is kept"
        raise _no_room(num_pairs, cache, way_out)
    return _uncached(chunks, content, num_pairs, encoder)


def sample_shards(chunks: Chunks, num_pairs: int, encoder: LineEncoder) -> tuple[EncodedPairs, FilterReport]:
    """Encode a stream with an encoder that samples, into files that are deleted at once."""
    return _uncached(chunks, f"{encoder.seed}/{encoder.epoch}", num_pairs, encoder)


def _uncached(
    chunks: Chunks, content: str, num_pairs: int, encoder: LineEncoder
) -> tuple[EncodedPairs, FilterReport]:
    with temporary_folder() as folder:
        shards = Shards(folder / "shards", content, num_pairs, encoder, SHARD_PAIRS, BUCKET_PAIRS)
        files = folder / "blocks"
        made = shards.make(chunks()) and write_entry(files, shards.merge)
        metadata = open_entry(files) if made else None
        if metadata is None:
            way_out = "set NMT_CACHE or TMPDIR to a folder on a larger disk"
            raise _no_room(num_pairs, folder.parent.parent, way_out)
        return opened(files, metadata)


def _no_room(num_pairs: int, folder: Path, way_out: str) -> UserError:
    return UserError(
        f"the ids of {num_pairs:,} training pairs need about {num_pairs * BYTES_PER_PAIR / 1e9:,.1f} GB of "
        f"disk for a while, and {folder} has less; free some, or {way_out}"
    )


@dataclass(frozen=True)
class Shards:
    """The shards of one corpus, made or to be made."""

    folder: Path
    content: str
    num_pairs: int
    encoder: LineEncoder
    shard_pairs: int
    bucket_pairs: int

    @property
    def num_buckets(self) -> int:
        """The number of buckets: a function of the text alone."""
        return -(-self.num_pairs // self.bucket_pairs)

    def entry(self, number: int) -> Path:
        """Return the folder of a shard."""
        return self.folder / f"{number:05d}"

    def make(self, chunks: Iterable[ParallelText]) -> bool:
        """Make the shards that are missing; return whether all are there, and False for lack of room."""
        texts = enumerate(in_blocks(chunks, self.shard_pairs))
        missing = ((number, text) for number, text in texts if not self.has(number, text))
        with worked(missing, self.write, self.writer, "what is encoded is kept") as written:
            return all(fits for _, fits in written)

    def writer(self) -> Callable[[tuple[int, ParallelText]], bool]:
        """Return `write`, for a process that is one of several."""
        torch.set_num_threads(1)
        return self.write

    def has(self, number: int, text: ParallelText) -> bool:
        """Return whether a shard is there; one of other text, which has changed meanwhile, is removed."""
        facts = open_entry(self.entry(number))
        if facts is not None and facts.get("text") != _hash(text):
            shutil.rmtree(self.entry(number), ignore_errors=True)
            return False
        return facts is not None

    def write(self, shard: tuple[int, ParallelText]) -> bool:
        """Encode the pairs of a shard and write its files; return False when they cannot be written."""
        number, text = shard

        def fill(draft: Path) -> Metadata:
            src, tgt = self.encoder(text, number * self.shard_pairs)
            kept, counts = chosen(src, tgt, self.encoder.options)
            rng = np.random.default_rng(derive_seed("buckets", self.content, number))
            buckets = rng.integers(self.num_buckets, size=len(kept))[kept]
            arrays = laid_out(src, tgt, text.all_weights, kept, self.encoder.options)
            index = self._write_records(draft / "records", arrays, buckets)
            index.tofile(draft / "index")
            return {"counts": list(counts), "text": _hash(text)}

        return write_entry(self.entry(number), fill, is_passing=True)

    def _write_records(
        self, file: Path, arrays: Sequence[NDArray[Any]], buckets: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Write the pairs of each bucket as one record; return the sizes of its arrays, (buckets, files)."""
        order, kinds = np.argsort(buckets, kind="stable"), self.encoder.types
        src, tgt, *further = RaggedIds(*arrays[:2]), RaggedIds(*arrays[2:4]), *arrays[4:]
        sizes = np.bincount(buckets, minlength=self.num_buckets)
        index, rows = (
            np.zeros((self.num_buckets, len(kinds)), np.int64),
            np.split(order, np.cumsum(sizes)[:-1]),
        )
        with file.open("wb") as records:
            for bucket, own in enumerate(rows):
                parts = [part for side in (src, tgt) for part in (_gathered(side, own), side.lengths[own])]
                parts += [part[own] for part in further]
                for place, (part, kind) in enumerate(zip(parts, kinds, strict=True)):
                    records.write(part.astype(kind).data)
                    index[bucket, place] = len(part)
        return index

    def merge(self, draft: Path) -> Metadata:
        """Write all pairs, bucket by bucket, each shuffled, into `draft`; return the metadata."""
        entries = [self.entry(number) for number in range(-(-self.num_pairs // self.shard_pairs))]
        counts = Counts()
        num_files = len(self.encoder.files)
        sizes = np.empty((len(entries), self.num_buckets, num_files), np.uint32)  # 230 MB of a billion pairs
        for place, entry in enumerate(entries):
            facts = open_entry(entry)
            if facts is None:
                raise OSError(f"{entry} has vanished")  # another process has finished
            counts = counts.plus(Counts(*facts["counts"]))
            sizes[place] = np.fromfile(entry / "index", np.int64).reshape(sizes.shape[1:])
        report = counts.report(self.encoder.options)
        with ExitStack() as stack:
            layout = Layout(draft, self.encoder, stack)
            numbers = list(range(self.num_buckets))
            for bucket in told(numbers, "shuffling the training data", "parts", lambda _: 1):
                for arrays in self._shuffled(entries, sizes, bucket):
                    layout.add(*arrays)
        for side, kind in (("src", self.encoder.types[1]), ("tgt", self.encoder.types[3])):
            write_starts(draft / f"{side}_starts", np.memmap(draft / f"{side}_lengths", kind, "r"))
        return layout.metadata(report)

    def _shuffled(
        self, entries: Sequence[Path], sizes: NDArray[np.uint32], bucket: int
    ) -> Iterator[list[NDArray[Any]]]:
        """Yield the arrays of all pairs of a bucket in random order, a few at a time."""
        kinds = [np.dtype(kind) for kind in self.encoder.types]
        widths = np.array([kind.itemsize for kind in kinds])
        parts: list[list[NDArray[Any]]] = [[] for _ in kinds]
        for entry, own in zip(entries, sizes, strict=True):
            with (entry / "records").open("rb") as records:
                records.seek(int((own[:bucket] * widths).sum()))
                content, at = records.read(int((own[bucket] * widths).sum())), 0
            for part, kind, size in zip(parts, kinds, own[bucket].tolist(), strict=True):
                part.append(np.frombuffer(content, kind, size, at))
                at += size * kind.itemsize
        joined = [np.concatenate(part) for part in parts]
        src, tgt, *further = RaggedIds(*joined[:2]), RaggedIds(*joined[2:4]), *joined[4:]
        rng = np.random.default_rng(derive_seed("order", self.content, bucket))
        order = rng.permutation(len(src.lengths))
        for first in range(0, len(order), GATHERED_PAIRS):
            rows = order[first : first + GATHERED_PAIRS]
            sides = [part for side in (src, tgt) for part in (_gathered(side, rows), side.lengths[rows])]
            yield [*sides, *(part[rows] for part in further)]


def _gathered(side: RaggedIds, rows: NDArray[np.int64]) -> NDArray[Any]:
    """Return the ids of the sentences `rows`, end to end."""
    lengths = np.asarray(side.lengths, np.int64)
    starts, sizes = np.cumsum(lengths) - lengths, lengths[rows]
    ends = np.cumsum(sizes)
    places = np.repeat(starts[rows] - (ends - sizes), sizes) + np.arange(sizes.sum())
    found: NDArray[Any] = side.ids[places]
    return found


def _hash(text: ParallelText) -> str:
    return hashlib.sha256(
        "\n".join([*text.src, "", *text.tgt, *map(repr, text.weights)]).encode()
    ).hexdigest()


def write_starts(file: Path, lengths: NDArray[Any]) -> None:
    """Write `starts_of` the lengths, a few at a time."""
    total, step = 0, STRIDE * GATHERED_PAIRS
    with file.open("wb") as opened_file:
        for first in range(0, len(lengths), step):
            starts = starts_of(lengths[first : first + step]) + total
            total = int(starts[-1])
            opened_file.write(starts[:-1].astype("<i8").data)
        opened_file.write(np.array([total], "<i8").data)
