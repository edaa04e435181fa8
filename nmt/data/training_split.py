"""The one place that prepares what a run trains on: text, tokenizer and the pairs of each epoch.

A pass over a large corpus takes minutes, so that all a start wants to know is kept in the cache: the report
of the filter, a hash of the pairs, how many of them are also scored on, and the tokenizers trained on them.
Metadata is found by the stamps of the sources; whoever reads the text afterwards checks the hash on the way,
so that text that does not belong to the metadata is an error and never trained on.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import operator
import random
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import sentencepiece

from nmt.data import sources
from nmt.data.encoded_pairs import EncodedPairs
from nmt.data.filters import Filter, FilterReport, TrainTestOverlap
from nmt.data.pairs import DataConfig, PairStream, ParallelText, Split
from nmt.data.streaming import StreamedText
from nmt.data.tokenizer import Tokenizer, TokenizerConfig
from nmt.data.tokenizer_training import TRAINING_THREADS
from nmt.disk_cache import Metadata, cache_dir, entry_name, open_entry, write_entry
from nmt.errors import Log, UserError
from nmt.files import write_lines, written_lines

FORMAT_VERSION = 2
"""Raised when the meaning of an entry changes."""


@dataclass
class CorpusText:
    """The pairs of one corpus to train on, as a stream, and what is known about them."""

    report: FilterReport
    """What the filter read and dropped."""
    sha256: str
    """A hash of all pairs."""
    shared: dict[str, int]
    """How many pairs of each split that is scored on are also trained on."""
    kept: Callable[[], Iterator[ParallelText]]
    """Chunks of the pairs."""

    def __len__(self) -> int:
        return self.report.kept

    def chunks(self) -> Iterator[ParallelText]:
        """Yield the pairs from the first to the last, some of them at a time.

        Raises:
            UserError: they are others than before.
        """
        digest = _Digest()
        for chunk in self.kept():
            digest.add(chunk)
            yield chunk
        if digest.hexdigest() != self.sha256:
            raise UserError("the training data has changed while it was read; run the same command again")

    def sample(self, most: int, seed: int) -> ParallelText:
        """Return all pairs, or `most` of them drawn at random; in order."""
        if len(self) <= most:
            return PairStream(lambda: "", self.chunks).read()
        rows = np.asarray(sorted(random.Random(seed).sample(range(len(self)), most)))
        picked, before = ParallelText(), 0
        for chunk in self.chunks():
            inside = slice(*np.searchsorted(rows, [before, before + len(chunk)]))
            for row in (rows[inside] - before).tolist():
                picked.src.append(chunk.src[row])
                picked.tgt.append(chunk.tgt[row])
            before += len(chunk)
        return picked


class TrainingText:
    """The pairs to train on: those of one corpus, or of several, one after the other."""

    def __init__(self, parts: Mapping[str, CorpusText], shares: Sequence[float]):
        """`shares` say how much of what is trained on comes from each corpus."""
        self.parts, self.shares = list(parts.values()), shares
        self.report = functools.reduce(operator.add, (part.report for part in self.parts))
        self.sha256 = self.parts[0].sha256
        if len(self.parts) > 1:
            self.sha256 = hashlib.sha256("".join(part.sha256 for part in self.parts).encode()).hexdigest()

    def __len__(self) -> int:
        return self.report.kept

    def shared(self, split: str) -> int:
        """Return how many pairs of a split that is scored on are also trained on, counted in each corpus."""
        return sum(part.shared[split] for part in self.parts)

    def chunks(self) -> Iterator[ParallelText]:
        """Yield the pairs from the first to the last; raise `UserError` when they are others than before."""
        return itertools.chain.from_iterable(part.chunks() for part in self.parts)

    def sample(self, most: int, seed: int) -> ParallelText:
        """Return all pairs, or of each corpus its share of `most`, if it has so many."""
        if len(self) <= most:
            return PairStream(lambda: "", self.chunks).read()
        whole = ParallelText()
        for part, share in zip(self.parts, self.shares, strict=True):
            drawn = part.sample(round(most * share), seed)
            whole.src += drawn.src
            whole.tgt += drawn.tgt
        return whole

    def sampling_key(self, most: int, seed: int) -> tuple[object, ...]:
        """Return what `sample` depends on beside the text; the last share follows from the others."""
        return (most, seed, *self.shares[:-1]) if len(self) > most else ()


class _Digest:
    """A hash of pairs that does not depend on how they are cut into chunks."""

    def __init__(self) -> None:
        self._sides = hashlib.sha256(), hashlib.sha256()

    def add(self, chunk: ParallelText) -> None:
        for digest, lines in zip(self._sides, (chunk.src, chunk.tgt), strict=True):
            digest.update("\n".join([*lines, ""]).encode())

    def hexdigest(self) -> str:
        return hashlib.sha256(b"".join(digest.digest() for digest in self._sides)).hexdigest()


class Examples(ABC):
    """What a task makes of a corpus; see `nmt.data.examples`."""

    @abstractmethod
    def view(self, text: ParallelText) -> ParallelText:
        """Return what of a text the task is about."""

    @property
    @abstractmethod
    def filter(self) -> Filter:
        """The function that chooses the pairs to train on."""

    @abstractmethod
    def epochs(
        self, text: TrainingText | StreamedText, tokenizer: Tokenizer, log: Log
    ) -> Callable[[int], EncodedPairs]:
        """Return the function that gives the pairs of an epoch, by its number from 1."""


class RunFiles(Protocol):
    """What a run directory keeps of its data; see `nmt.runs.directory`."""

    path: Path

    def keep_text(self, split: Split, text: ParallelText, data: DataConfig) -> None: ...

    def require_same_data(self, text: TrainingText) -> None: ...

    def has_tokenizer(self) -> bool: ...

    def tokenizer(self, cfg: TokenizerConfig) -> Tokenizer: ...


class TrainingData(NamedTuple):
    """All that a training needs of its data."""

    text: TrainingText | StreamedText
    tokenizer: Tokenizer
    pairs_of_epoch: Callable[[int], EncodedPairs]
    """The pairs of each epoch, by its number from 1."""


def prepare(
    cfg: DataConfig, tokenizer: TokenizerConfig, examples: Examples, run: RunFiles, *, seed: int, log: Log
) -> TrainingData:
    """Prepare what a run trains on; the evaluation splits and the tokenizer are kept in the run.

    Raises:
        UserError: the data cannot be read, or is other than that of the run.
    """
    scored_on: dict[str, ParallelText] = {}
    for split in (Split.validation, Split.test):
        if split is Split.validation or sources.has_split(cfg, split):
            text = evaluation_split(sources.stream(cfg, split), cache_dir())
            scored_on[split.value] = examples.view(text)
    training = training_text(cfg, examples.filter, scored_on, log)
    if isinstance(training, TrainingText):
        run.require_same_data(training)
    for name, kept in scored_on.items():
        run.keep_text(Split(name), kept, cfg)
        also = _in_training(training, name, kept) if isinstance(training, TrainingText) else ""
        log(f"{name} data: {len(kept):,} pairs{also}")
    if not run.has_tokenizer():
        log(f"training a {tokenizer.kind.value} tokenizer")
        tags = list(cfg.tags.values())
        train_tokenizer(tokenizer, training, tags=tags, seed=seed, cache=cache_dir()).save(run.path)
    trained = run.tokenizer(tokenizer)
    return TrainingData(training, trained, examples.epochs(training, trained, log))


def _in_training(training: TrainingText, name: str, kept: ParallelText) -> str:
    """Return the remark on pairs of a split that are also trained on."""
    count = min(training.shared(name), len(kept))  # a pair may be in several corpora
    about = "up to " if len(training.parts) > 1 else ""
    return f", {about}{count:,} of them also in the training data" if count else ""


def training_text(
    cfg: DataConfig, pair_filter: Filter, scored_on: Mapping[str, ParallelText], log: Log
) -> TrainingText | StreamedText:
    """Return the filtered training split, scanned, or to be read while training goes on."""
    streams = sources.streams(cfg, Split.train)
    if cfg.streaming:
        shares = _logged_shares(cfg, dict.fromkeys(streams, 1), log)
        log(f"training data: a stream, shuffled {cfg.buffer_pairs:,} pairs at a time")
        return streamed(list(streams.values()), shares, cfg, pair_filter)
    parts = {name: scan(part, cfg, pair_filter, scored_on, cache_dir()) for name, part in streams.items()}
    for name, part in parts.items():
        log(f"training data{f' of {name}' if len(parts) > 1 else ''}: {part.report}")
    return TrainingText(parts, _logged_shares(cfg, {name: len(part) for name, part in parts.items()}, log))


def _logged_shares(cfg: DataConfig, sizes: Mapping[str, int], log: Log) -> list[float]:
    shares = cfg.shares(list(sizes.values()))
    if len(shares) > 1:
        log("shares: " + ", ".join(f"{name} {x:.1%}" for name, x in zip(sizes, shares, strict=True)))
    return shares


def streamed(
    streams: Sequence[PairStream], shares: Sequence[float], cfg: DataConfig, pair_filter: Filter
) -> StreamedText:
    """Return the filtered pairs of streams, to be read while training goes on."""
    corpora = [functools.partial(_filtered, source, cfg, pair_filter) for source in streams]
    depends_on = [source.stamp() for source in streams], pair_filter.__name__, cfg.max_chars, cfg.max_ratio
    return StreamedText(corpora, shares, hashlib.sha256(repr(depends_on).encode()).hexdigest())


def scan(
    source: PairStream,
    cfg: DataConfig,
    pair_filter: Filter,
    scored_on: Mapping[str, ParallelText],
    cache: Path,
) -> CorpusText:
    """Filter a stream and learn about it; the pass that this takes is made once for the same data."""

    def kept() -> Iterator[ParallelText]:
        return (chunk for chunk, _ in _filtered(source, cfg, pair_filter))

    others = [(split, digest_of(text)) for split, text in scored_on.items()]
    options = pair_filter.__name__, cfg.max_chars, cfg.max_ratio, others
    before = source.stamp()
    entry = cache / entry_name("text", FORMAT_VERSION, before, *options)
    metadata = open_entry(entry)
    if metadata is None:
        metadata = made = _scan_once(source, cfg, pair_filter, scored_on)
        if source.stamp() != before:
            raise UserError("the training data has changed while it was read; run the same command again")
        write_entry(entry, lambda draft: made)
    return CorpusText(FilterReport(**metadata["report"]), metadata["sha256"], metadata["shared"], kept)


def digest_of(text: ParallelText) -> str:
    """Return the hash that `CorpusText` has of its pairs."""
    digest = _Digest()
    digest.add(text)
    return digest.hexdigest()


def _filtered(
    source: PairStream, cfg: DataConfig, pair_filter: Filter
) -> Iterator[tuple[ParallelText, FilterReport]]:
    for chunk in source.chunks():
        yield pair_filter(chunk, cfg)


def _scan_once(
    source: PairStream, cfg: DataConfig, pair_filter: Filter, scored_on: Mapping[str, ParallelText]
) -> Metadata:
    """Read everything once."""
    total, digest = FilterReport(0), _Digest()
    overlaps = {split: TrainTestOverlap(text) for split, text in scored_on.items()}
    for chunk, report in _filtered(source, cfg, pair_filter):
        total += report
        digest.add(chunk)
        for overlap in overlaps.values():
            overlap.add(chunk)
    if not total.kept:
        raise UserError(f"no training pair is left: {total}; see data.max_chars and data.max_ratio")
    shared = {split: overlap.count for split, overlap in overlaps.items()}
    return {"report": dataclasses.asdict(total), "sha256": digest.hexdigest(), "shared": shared}


def evaluation_split(source: PairStream, cache: Path) -> ParallelText:
    """Return a split to score on, whole; the cache has what an earlier call has read."""
    entry = cache / entry_name("split", FORMAT_VERSION, source.stamp())
    if open_entry(entry) is not None:
        return ParallelText(*(written_lines(entry / side) for side in ("src", "tgt")))
    text = source.read()

    def fill(draft: Path) -> Metadata:
        write_lines(draft / "src", text.src)
        write_lines(draft / "tgt", text.tgt)
        return {}

    write_entry(entry, fill)
    return text


def train_tokenizer(
    cfg: TokenizerConfig,
    text: TrainingText | StreamedText,
    *,
    tags: Sequence[str] = (),
    seed: int,
    cache: Path,
) -> Tokenizer:
    """Train on `text`, or on a sample of it that `seed` picks; take what the cache has for the same input.

    Each of `tags` is one piece, wherever it stands.
    """
    most = cfg.max_sentences // 2
    versions = FORMAT_VERSION, sentencepiece.__version__, unicodedata.unidata_version, TRAINING_THREADS
    settings = dataclasses.replace(cfg, sampling_alpha=0.0)
    sampling_key = text.sampling_key(most, seed)
    entry = cache / entry_name("tokenizer", *versions, text.sha256, settings, sampling_key, *tags)
    if open_entry(entry) is not None:
        return Tokenizer.load(cfg, entry)
    tokenizer = Tokenizer.train(cfg, text.sample(most, seed), tags)

    def fill(draft: Path) -> Metadata:
        tokenizer.save(draft)
        return {}

    write_entry(entry, fill)
    return tokenizer
