"""The training text of a run: a filtered stream, what is known about it, and the tokenizer it gives.

A pass over a large corpus takes minutes, so that all a start wants to know is kept in the cache: the account
of the filter, a hash of the pairs, how many of them are also scored on, and the tokenizers trained on them.
Facts are found by the stamps of the sources; whoever reads the text afterwards checks the hash on the way, so
that text that does not belong to the facts is an error and never trained on.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import operator
import random
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sentencepiece

from nmt.data.sources import DataConfig, FilterReport, PairStream, ParallelText, TrainTestOverlap
from nmt.data.streaming import StreamedText
from nmt.data.tokenizer import Tokenizer, TokenizerConfig
from nmt.data.tokenizer_training import TRAINING_THREADS
from nmt.disk_cache import Facts, entry_name, open_entry, write_entry
from nmt.errors import UserError
from nmt.files import write_lines, written_lines

FORMAT_VERSION = 2
"""Raised when the meaning of an entry changes."""

Filter = Callable[[ParallelText, DataConfig], tuple[ParallelText, FilterReport]]


@dataclass
class TrainingText:
    """The pairs to train on, as a stream, and what is known about them."""

    report: FilterReport
    """What the filter read and dropped."""
    sha256: str
    """Of all pairs."""
    shared: dict[str, int]
    """How many pairs of each split that is scored on are also trained on."""
    kept: Callable[[], Iterator[ParallelText]]
    """Chunks of the pairs."""
    shares: tuple[float, ...] = ()
    """How much of what is trained on comes from each corpus of a mixture."""

    def __len__(self) -> int:
        return self.report.kept

    def chunks(self) -> Iterator[ParallelText]:
        """The pairs from the first to the last, some of them at a time.

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
        """All pairs, or `most` of them drawn at random; in order."""
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

    def drawn(self, most: int, seed: int) -> tuple[object, ...]:
        """What `sample` depends on beside the text."""
        return (most, seed, *self.shares) if len(self) > most else ()


class MixedText(TrainingText):
    """The pairs of several corpora, one after the other."""

    def __init__(self, parts: Sequence[TrainingText], shares: Sequence[float]):
        report = functools.reduce(operator.add, (part.report for part in parts))
        digest = hashlib.sha256("".join(part.sha256 for part in parts).encode()).hexdigest()
        shared = {split: sum(part.shared[split] for part in parts) for split in parts[0].shared}
        super().__init__(report, digest, shared, self.chunks, tuple(shares))
        self.parts = parts

    def chunks(self) -> Iterator[ParallelText]:
        """The pairs from the first to the last; each corpus finds out by itself whether it has changed."""
        return itertools.chain.from_iterable(part.chunks() for part in self.parts)

    def sample(self, most: int, seed: int) -> ParallelText:
        """All pairs, or of each corpus its share of `most`, if it has so many."""
        if len(self) <= most:
            return super().sample(most, seed)
        whole = ParallelText()
        for part, share in zip(self.parts, self.shares, strict=True):
            drawn = part.sample(round(most * share), seed)
            whole.src += drawn.src
            whole.tgt += drawn.tgt
        return whole


class _Digest:
    """A hash of pairs that does not depend on how they are cut into chunks."""

    def __init__(self) -> None:
        self._sides = hashlib.sha256(), hashlib.sha256()

    def add(self, chunk: ParallelText) -> None:
        for digest, lines in zip(self._sides, (chunk.src, chunk.tgt), strict=True):
            digest.update("\n".join([*lines, ""]).encode())

    def hexdigest(self) -> str:
        return hashlib.sha256(b"".join(digest.digest() for digest in self._sides)).hexdigest()


def streamed(
    sources: Sequence[PairStream], shares: Sequence[float], cfg: DataConfig, keep: Filter
) -> StreamedText:
    """The pairs of streams, filtered as `keep` does, to be read while training goes on."""
    corpora = [functools.partial(_filtered, source, cfg, keep) for source in sources]
    facts = [source.stamp() for source in sources], keep.__name__, cfg.max_chars, cfg.max_ratio
    return StreamedText(corpora, shares, hashlib.sha256(repr(facts).encode()).hexdigest())


def survey(
    source: PairStream, cfg: DataConfig, keep: Filter, scored_on: Mapping[str, ParallelText], cache: Path
) -> TrainingText:
    """Filter a stream as `keep` does; the pass that this takes is made once for the same data and options."""

    def kept() -> Iterator[ParallelText]:
        return (chunk for chunk, _ in _filtered(source, cfg, keep))

    others = [(split, digest_of(text)) for split, text in scored_on.items()]
    options = keep.__name__, cfg.max_chars, cfg.max_ratio, others
    before = source.stamp()
    entry = cache / entry_name("text", FORMAT_VERSION, before, *options)
    facts = open_entry(entry)
    if facts is None:
        facts = made = _pass(source, cfg, keep, scored_on)
        if source.stamp() != before:
            raise UserError("the training data has changed while it was read; run the same command again")
        write_entry(entry, lambda draft: made)
    return TrainingText(FilterReport(**facts["report"]), facts["sha256"], facts["shared"], kept)


def digest_of(text: ParallelText) -> str:
    """The hash that `TrainingText` has of its pairs."""
    digest = _Digest()
    digest.add(text)
    return digest.hexdigest()


def _filtered(
    source: PairStream, cfg: DataConfig, keep: Filter
) -> Iterator[tuple[ParallelText, FilterReport]]:
    for chunk in source.chunks():
        yield keep(chunk, cfg)


def _pass(source: PairStream, cfg: DataConfig, keep: Filter, scored_on: Mapping[str, ParallelText]) -> Facts:
    """Read everything once."""
    total, digest = FilterReport(0), _Digest()
    overlaps = {split: TrainTestOverlap(text) for split, text in scored_on.items()}
    for chunk, report in _filtered(source, cfg, keep):
        total += report
        digest.add(chunk)
        for overlap in overlaps.values():
            overlap.add(chunk)
    if not total.kept:
        raise UserError(f"no training pair is left: {total}; see data.max_chars and data.max_ratio")
    shared = {split: overlap.count for split, overlap in overlaps.items()}
    return {"report": dataclasses.asdict(total), "sha256": digest.hexdigest(), "shared": shared}


def evaluation_split(source: PairStream, cache: Path) -> ParallelText:
    """A split to score on, whole; the cache has what an earlier call has read."""
    entry = cache / entry_name("split", FORMAT_VERSION, source.stamp())
    if open_entry(entry) is not None:
        return ParallelText(*(written_lines(entry / side) for side in ("src", "tgt")))
    text = source.read()

    def fill(draft: Path) -> Facts:
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
    drawn = text.drawn(most, seed)
    entry = cache / entry_name("tokenizer", *versions, text.sha256, settings, drawn, *tags)
    if open_entry(entry) is not None:
        return Tokenizer.load(cfg, entry)
    tokenizer = Tokenizer.train(cfg, text.sample(most, seed), tags)

    def fill(draft: Path) -> Facts:
        tokenizer.save(draft)
        return {}

    write_entry(entry, fill)
    return tokenizer
