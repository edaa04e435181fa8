"""The one place that prepares the training data of a run: text, tokenizer and the pairs of each epoch.

A pass over a large corpus takes minutes, so that its results are cached: the report of the filter, a hash of
the pairs, the number of pairs that are also scored on, and the tokenizers trained on the pairs. Cached
results are found by the stamps of the sources. Every later reading of the text checks the hash, so that text
that does not belong to the results is an error and never trained on.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import random
import tempfile
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import sentencepiece

from nmt.data.augment.augmentation import UNMODIFIED, Augmentation, JoinedAugmentation
from nmt.data.batches.streaming import StreamedText
from nmt.data.cleaning import repairs
from nmt.data.cleaning.filtered_files import files_of
from nmt.data.cleaning.filtering import Chain, chains, filtered, judged_alone
from nmt.data.cleaning.filters import Filter, FilterReport, TrainTestOverlap
from nmt.data.cleaning.pair_filters import ModelScorers
from nmt.data.configs import DataConfig
from nmt.data.encoded_pairs import InParts
from nmt.data.parallel_text import CHUNK_PAIRS, PairStream, ParallelText, Split, concatenated, one_line
from nmt.data.reading import sources, stages
from nmt.data.reading.mixture import mean_shares
from nmt.data.reading.swapped import swapped_parts, way_out
from nmt.data.text import casing
from nmt.data.tokens.adaptation import Inherited, extended
from nmt.data.tokens.label_set import label_set, require_known
from nmt.data.tokens.ready_tokenizers import ready_models
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.data.tokens.tokenizer_training import (
    TRAINING_THREADS,
    Case,
    Normalization,
    TokenizerConfig,
    TokenizerKind,
    moses_versions,
    prepare_lines,
    punctuated,
)
from nmt.disk_cache import Metadata, cache_dir, entry_name, open_entry, write_entry
from nmt.distributed import ALONE, World
from nmt.errors import Log, UserError
from nmt.files import write_lines, written_lines
from nmt.progress import told
from nmt.temporary import remove_abandoned

FORMAT_VERSION = 4
"""Increased when the format of a cache entry, or what it counts, changes."""
MAX_COPIES = 0.2
"""Largest share of pairs with the same text on both sides that is nothing to warn of."""
MOST_CHANGED = 0.01
"""Share of target lines that a tokenizer that was trained may write otherwise without a warning."""
FEWEST_CHANGED = 4
"""Number of lines that it may, however few there are."""
UNKNOWN = "\u2047"
"""What SentencePiece writes for a piece that stands for no known character."""
MOST_TRIED = 1000
"""Lines on which a tokenizer that is ready is tried."""
BREAKS = {"CR": "\r", "U+0085": "\x85", "U+2028": "\u2028", "U+2029": "\u2029"}
"""Characters inside lines that other programs take for the end of a line."""


@dataclass
class CorpusText:
    """The pairs of one corpus to train on, as a stream, with report and hash."""

    report: FilterReport
    """Pairs that the filter read and dropped."""
    sha256: str
    """A hash of all pairs."""
    shared: dict[str, int]
    """Name of a split to score on -> number of its pairs that are also trained on."""
    kept: Callable[[], Iterator[ParallelText]]
    """A function that yields the pairs in chunks."""
    copies: int = 0
    """Pairs with the same text on both sides."""
    breaks: dict[str, int] = field(default_factory=dict)
    """Name of a character of `BREAKS` -> how often it occurs in the pairs."""
    account: list[str] = field(default_factory=list)
    """A line for each of data.filters."""

    def __len__(self) -> int:
        return self.report.kept

    def remarks(self) -> Iterator[str]:
        """Yield what a person should know about the pairs."""
        yield from self.account
        if self.copies > MAX_COPIES * len(self):
            yield (
                f"warning: {self.copies:,} of {len(self):,} pairs have the same text on both sides; is one "
                "side a copy of the other?"
            )
        if counts := [f"{name} {count:,}" for name, count in self.breaks.items() if count]:
            yield f"inside of lines, where other programs may break them: {', '.join(counts)}"

    def chunks(self) -> Iterator[ParallelText]:
        """Yield the pairs in chunks, in order; raise `UserError` at the end when their hash has changed."""
        digest = _Digest()
        for chunk in told(self.kept(), "reading the training data", "pairs", total=len(self)):
            digest.add(chunk)
            yield chunk
        if digest.hexdigest() != self.sha256:
            raise UserError("the training data has changed while it was read; run the same command again")

    def sample(self, most: int, seed: int) -> ParallelText:
        """Return all pairs, or `most` of them sampled at random, in order."""
        if len(self) <= most:
            return concatenated(self.chunks())
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
    """The pairs to train on: the corpora one after the other, with their shares, the mean of all stages."""

    def __init__(self, parts: Mapping[str, CorpusText], shares: Sequence[float]):
        self.parts, self.shares = list(parts.values()), shares
        self.report = sum((part.report for part in self.parts), FilterReport(0))
        self.sha256 = self.parts[0].sha256
        if len(self.parts) > 1:
            self.sha256 = hashlib.sha256("".join(part.sha256 for part in self.parts).encode()).hexdigest()

    def __len__(self) -> int:
        return self.report.kept

    def shared(self, split: str) -> int:
        """Return how many pairs of a split to score on are also trained on, summed over the corpora."""
        return sum(part.shared[split] for part in self.parts)

    def chunks(self) -> Iterator[ParallelText]:
        """Yield the pairs in chunks, in order; raise `UserError` when the hash of a corpus has changed."""
        return itertools.chain.from_iterable(part.chunks() for part in self.parts)

    def samples(self, most: int, seed: int) -> list[ParallelText]:
        """Return of each corpus all pairs, or as many as its share of `most`, or all that it has."""
        if len(self) <= most:
            return [concatenated(part.chunks()) for part in self.parts]
        shares = zip(self.parts, self.shares, strict=True)
        return [part.sample(round(most * share), seed) for part, share in shares]

    def sampling_key(self, most: int, seed: int) -> tuple[object, ...]:
        """Return the values besides the text on which `samples` depend; shares add up to 1."""
        return (most, seed, *self.shares[:-1]) if len(self) > most else ()


class _Digest:
    """A hash of pairs that does not depend on the size of chunks, and the counts of `BREAKS`."""

    def __init__(self) -> None:
        self._sides = hashlib.sha256(), hashlib.sha256()
        self._weights = hashlib.sha256()
        self._is_weighted = False
        self.breaks = dict.fromkeys(BREAKS, 0)

    def add(self, chunk: ParallelText) -> None:
        for digest, lines in zip(self._sides, (chunk.src, chunk.tgt), strict=True):
            text = "\n".join([*lines, ""])
            digest.update(text.encode())
            for name, character in BREAKS.items():
                self.breaks[name] += text.count(character)
        self._is_weighted |= bool(chunk.weights)
        self._weights.update("".join(f"{weight!r}\n" for weight in chunk.weights).encode())

    def hexdigest(self) -> str:
        digests = [*self._sides, *([self._weights] if self._is_weighted else [])]
        return hashlib.sha256(b"".join(digest.digest() for digest in digests)).hexdigest()


PairsOfEpoch = Callable[[int, int], InParts]
"""A function of the number of an epoch, from 1, and of that of its stage, from 0: a pure one."""


class Examples(ABC):
    """The training examples of a task; see `nmt.data.batches.examples`."""

    filtered: Path | None = None
    """Folder for files of what filters keep and drop; None: no such files."""
    world: World = ALONE
    """The processes that encode a stream together, in the thread that reads it."""

    @abstractmethod
    def view(self, text: ParallelText) -> ParallelText:
        """Return the part of a text that the task is scored on."""

    @property
    @abstractmethod
    def filter(self) -> Filter:
        """The function that chooses the pairs to train on."""

    @abstractmethod
    def epochs(self, text: TrainingText | StreamedText, tokenizer: Tokenizer, log: Log) -> PairsOfEpoch:
        """Return the function that gives the pairs of an epoch."""


class RunFiles(Protocol):
    """The files that a run directory keeps of its data; see `nmt.runs.directory`."""

    path: Path

    def keep_text(self, split: Split, text: ParallelText, data: DataConfig) -> None: ...

    def require_same_data(self, text: TrainingText) -> None: ...

    def seal(self) -> None: ...


class TrainingData(NamedTuple):
    """The data of a training."""

    text: TrainingText | StreamedText
    tokenizer: Tokenizer
    pairs_of_epoch: PairsOfEpoch


def prepare(
    cfg: DataConfig,
    tokenizer: TokenizerConfig,
    examples: Examples,
    run: RunFiles,
    *,
    seed: int,
    log: Log,
    max_steps: int | None,
    inherited: Inherited | None = None,
    scorers: ModelScorers | None = None,
) -> TrainingData:
    """Prepare the training data of a run; the evaluation splits and the tokenizer are copied into the run.

    `max_steps` is the length of the training in updates, of which stages are perhaps a share. Without an
    `inherited` tokenizer one is trained. `scorers` open the models of `cfg.filters`.

    Raises:
        UserError: the data cannot be read, or has changed since the run began.
    """
    if tokenizer.path and inherited is None and not Tokenizer.exists(run.path):
        Tokenizer(tokenizer, *ready_models(tokenizer, cfg.symbols))  # refused before the data is read
    for folder in (cache_dir(), Path(tempfile.gettempdir())):
        remove_abandoned(folder)
    splits = [Split.validation, *([Split.test] if sources.has_split(cfg, Split.test) else [])]
    scored_on = {name: examples.view(text) for name, text in scored_text(cfg, splits).items()}
    training = training_text(
        cfg, examples.filter, scored_on, log, max_steps, scorers, filtered_to=examples.filtered
    )
    if isinstance(training, TrainingText):
        run.require_same_data(training)
    for name, kept in scored_on.items():
        run.keep_text(Split(name), kept, cfg)
        also = _in_training(training, name, kept) if isinstance(training, TrainingText) else ""
        log(f"{name} data: {len(kept):,} pairs{also}")
        for side in _blank_sides(cfg, kept):
            log(f"warning: {cfg.key(Split(name))}: no {side} line has text, so its scores mean nothing")
        for part in swapped_parts(cfg, Split(name), cache_dir()) if not cfg.streaming else ():
            log(
                f"warning: {part.key(Split(name))}: source and target are like target and source of the "
                f"training pairs; {way_out(part, Split(name))}"
            )
    if not Tokenizer.exists(run.path):
        made = _first_tokenizer(cfg, tokenizer, training, inherited, seed, log)
        remarks = ready_remarks if tokenizer.path else trained_remarks
        for line in remarks(made, scored_on["validation"].tgt) if inherited is None else ():
            log(line)
        made.save(run.path)
    trained = Tokenizer.load(tokenizer, run.path)
    for name, kept in scored_on.items() if tokenizer.labels else ():
        require_known(kept.tgt, trained.labels, name)
    run.seal()
    return TrainingData(training, trained, examples.epochs(training, trained, log))


def _blank_sides(cfg: DataConfig, text: ParallelText) -> Iterator[str]:
    """Yield the sides of pairs to score on that have nothing but spaces and pieces such as tags."""
    symbols = set(cfg.symbols)
    for side, lines in (("source", text.src if cfg.has_source else []), ("target", text.tgt)):
        if lines and all(symbols.issuperset(line.split()) for line in lines):
            yield side


def _first_tokenizer(
    cfg: DataConfig,
    tokenizer: TokenizerConfig,
    training: TrainingText | StreamedText,
    inherited: Inherited | None,
    seed: int,
    log: Log,
) -> Tokenizer:
    """Return the tokenizer of a run that has none yet: `inherited`, or one made as `tokenizer` says."""
    modify = [of_corpus.of_pairs_alone for of_corpus in Augmentation.of_corpora(cfg)]
    if inherited is None:
        made = train_tokenizer(
            tokenizer, training, tags=cfg.symbols, seed=seed, cache=cache_dir(), log=log, modify=modify
        )
    else:
        made = inherited_tokenizer(inherited, training, tags=cfg.symbols, seed=seed, modify=modify)
    if tokenizer.labels and isinstance(training, TrainingText):
        made = made.with_labels(tokenizer, label_set(training.chunks()))
    return made


def ready_remarks(tokenizer: Tokenizer, lines: Sequence[str]) -> Iterator[str]:
    """Yield what a person should know about a tokenizer that is ready, tried on target lines."""
    cfg, sizes = tokenizer.cfg, [f"{tokenizer.src_vocab_size:,}"]
    if tokenizer.tgt_model != tokenizer.src_model:
        sizes.append(f"{tokenizer.tgt_vocab_size:,}")
    yield f"tokenizer.path={cfg.path}: {' and '.join(sizes)} pieces, with those of nmt"
    if tokenizer.kinds[0] and cfg.case is Case.keep and _has_marks(tokenizer):
        yield (
            "warning: it has the marks of tokenizer.case=markup, and so no pieces with capitals, but "
            "tokenizer.case is keep; set it to markup"
        )
    tried = _written_again(tokenizer, lines)
    if changed := [pair for pair in tried if pair[0] != pair[1]]:
        yield _cannot_be_written(changed, len(tried))


def trained_remarks(tokenizer: Tokenizer, lines: Sequence[str]) -> Iterator[str]:
    """Yield what a person should know about a tokenizer that was trained, tried on target lines.

    Unknown words of `tokenizer=word`, and capitals where they are folded, are what the config asks for.
    """
    cfg = tokenizer.cfg
    if cfg.kind is TokenizerKind.word or cfg.normalization.value.endswith("_cf"):
        return
    tried = _written_again(tokenizer, lines)
    changed = [pair for pair in tried if pair[0].split() != pair[1].split()]
    if len(changed) <= max(MOST_CHANGED * len(tried), FEWEST_CHANGED):
        return
    yield _cannot_be_written(changed, len(tried))
    unknown = sum(UNKNOWN in other for _, other in changed)
    if unknown < len(changed) and cfg.normalization is not Normalization.identity:
        yield "tokenizer.normalization=identity keeps characters as they are"
    if unknown:
        yield f"{unknown:,} of these have a character without a piece; tokenizer.byte_fallback=true spells it"


def _written_again(tokenizer: Tokenizer, lines: Sequence[str]) -> list[tuple[str, str]]:
    """Return some target lines, and what their pieces are when they are put together; no labels."""
    cfg, lines = tokenizer.cfg, [] if tokenizer.cfg.labels else lines[:MOST_TRIED]
    back = [tokenizer.decode(ids[:-1]) for ids in tokenizer.encode_tgt(lines)]
    own = [tokenizer.in_case(one_line(line)) for line in prepare_lines(cfg, punctuated(lines, cfg.moses_tgt))]
    return list(zip(own, back, strict=True))


def _cannot_be_written(changed: Sequence[tuple[str, str]], number: int) -> str:
    line, other = changed[0]
    return (
        f"warning: {len(changed):,} of {number:,} targets are not the same when their pieces are put "
        f"together again, and so cannot be written by the model: {line!r} becomes {other!r}"
    )


def _has_marks(tokenizer: Tokenizer) -> bool:
    return {*casing.MARKS}.issubset(tokenizer.src_spellings(range(tokenizer.src_vocab_size)))


def _in_training(training: TrainingText, name: str, kept: ParallelText) -> str:
    """Return the remark on pairs of a split that are also trained on."""
    count = min(training.shared(name), len(kept))  # a pair may be in several corpora
    about = "up to " if len(training.parts) > 1 else ""
    return f", {about}{count:,} of them also in the training data" if count else ""


def training_text(
    cfg: DataConfig,
    pair_filter: Filter,
    scored_on: Mapping[str, ParallelText],
    log: Log,
    max_steps: int | None,
    scorers: ModelScorers | None = None,
    *,
    filtered_to: Path | None = None,
) -> TrainingText | StreamedText:
    """Return the filtered training split, scanned, or with `cfg.streaming` to be read during training.

    What filters keep and drop of a split that is scanned is written to the folder `filtered_to`, if any.
    """
    streams, filters = sources.training_streams(cfg), chains(cfg, scored_on, scorers)
    named = {name: f"training data{f' of {name}' if len(streams) > 1 else ''}" for name in streams}
    if cfg.streaming:
        for name, part in cfg.parts(Split.train).items():
            for line in repairs.tried(part, CHUNK_PAIRS):
                log(f"{named[name]}: {line}")
        shares = _logged_shares(cfg, dict.fromkeys(streams, 1), log, max_steps)
        log(f"training data: a stream, shuffled {cfg.buffer_pairs:,} pairs at a time")
        return streamed(list(streams.values()), shares, cfg, pair_filter, list(filters.values()))
    parts = dict[str, CorpusText]()
    for name, corpus in cfg.parts(Split.train).items():
        for line in repairs.account(corpus, cache_dir()):
            log(f"{named[name]}: {line}")
        parts[name] = scan(streams[name], cfg, pair_filter, filters[name], cache_dir())
        for line in (str(parts[name].report), *parts[name].remarks()):
            log(f"{named[name]}: {line}")
        if filtered_to is not None:
            files = files_of(cfg, filtered_to)[name]
            both = streams[name], sources.training_streams(cfg, weighted=False)[name]
            log(f"{named[name]}: {files.write(*both, cfg, pair_filter, filters[name], cache_dir())}")
    sizes = {name: len(part) for name, part in parts.items()}
    return TrainingText(parts, mean_shares(_logged_shares(cfg, sizes, log, max_steps)))


def _logged_shares(
    cfg: DataConfig, sizes: Mapping[str, int], log: Log, max_steps: int | None
) -> list[list[float]]:
    """Return the shares of the corpora in each stage, and log them and the ends of the stages."""
    shares = [cfg.shares(list(sizes.values()), stage) for stage in range(cfg.num_stages)]
    named = [dict(zip(sizes, of_stage, strict=True)) for of_stage in shares]
    if len(shares) > 1:
        for line in stages.described(cfg.last_updates(max_steps), named, max_steps):
            log(line)
    elif len(sizes) > 1:
        log("shares: " + ", ".join(f"{name} {share:.1%}" for name, share in named[0].items()))
    return shares


def streamed(
    streams: Sequence[PairStream],
    shares: Sequence[Sequence[float]],
    cfg: DataConfig,
    pair_filter: Filter,
    filters: Sequence[Chain],
) -> StreamedText:
    """Return the filtered pairs of streams, to be read during training, with their shares in each stage."""
    both = list(zip(streams, filters, strict=True))
    corpora = [functools.partial(judged_alone, source, cfg, pair_filter, chain) for source, chain in both]
    stamps = [source.stamp() + (chain.stamp() if chain else "") for source, chain in both]
    depends_on = stamps, pair_filter.__name__, *cfg.limits
    return StreamedText(corpora, shares, hashlib.sha256(repr(depends_on).encode()).hexdigest())


def scan(source: PairStream, cfg: DataConfig, pair_filter: Filter, chain: Chain, cache: Path) -> CorpusText:
    """Filter a stream, and report and hash the pairs, in one pass whose results are cached.

    The pairs are those that all filters of the chain keep. Copies, and pairs that are also scored on, are
    counted as these filters see pairs: without tags and context.
    """
    if chain:
        left = filtered(source, cfg, pair_filter, chain, cache)
        text = scan(left.source, cfg, pair_filter, dataclasses.replace(chain, rows=()), cache)
        return dataclasses.replace(text, report=left.report, account=left.remarks)
    others = [(split, digest_of(text)) for split, text in chain.context.scored_on.items()]
    options = pair_filter.__name__, *cfg.limits, others
    before = source.stamp()
    entry = cache / entry_name("text", FORMAT_VERSION, before, *options)
    metadata = open_entry(entry)
    if metadata is None:
        metadata = made = _scan_once(source, cfg, pair_filter, chain)
        if source.stamp() != before:
            raise UserError("the training data has changed while it was read; run the same command again")
        write_entry(entry, lambda draft: made)
    known = metadata | {"report": FilterReport(**metadata["report"])}
    judged = functools.partial(judged_alone, source, cfg, pair_filter, chain)
    return CorpusText(**known, kept=lambda: (chunk for chunk, _ in judged()))


def digest_of(text: ParallelText) -> str:
    """Return the hash that `CorpusText.sha256` is for the pairs of `text`."""
    digest = _Digest()
    digest.add(text)
    return digest.hexdigest()


def _scan_once(source: PairStream, cfg: DataConfig, pair_filter: Filter, chain: Chain) -> Metadata:
    """Filter, count and hash all pairs; return the metadata of a cache entry."""
    total, digest, copies = FilterReport(0), _Digest(), 0
    overlaps = {split: TrainTestOverlap(text) for split, text in chain.context.scored_on.items()}
    judged = judged_alone(source, cfg, pair_filter, chain)
    for chunk, report in told(judged, "reading the training data", "pairs", lambda part: part[1].read):
        total += report
        digest.add(chunk)
        bare = chain.bare(chunk, np.arange(len(chunk)))
        copies += sum(src == tgt != "" for src, tgt in zip(bare.src, bare.tgt, strict=True))
        for overlap in overlaps.values():
            overlap.add(bare)
    shared = {split: overlap.count for split, overlap in overlaps.items()}
    return {
        "report": dataclasses.asdict(total),
        "sha256": digest.hexdigest(),
        "shared": shared,
        "copies": copies,
        "breaks": digest.breaks,
    }


def evaluation_split(source: PairStream, cache: Path) -> ParallelText:
    """Read a split to score on, whole, from the cache if an earlier call has read it."""
    entry = cache / entry_name("split", FORMAT_VERSION, source.stamp())
    if open_entry(entry) is not None:
        return ParallelText(written_lines(entry / "src"), written_lines(entry / "tgt"))
    text = source.read()

    def fill(draft: Path) -> None:
        write_lines(draft / "src", text.src)
        write_lines(draft / "tgt", text.tgt)

    write_entry(entry, fill)
    return text


def scored_text(cfg: DataConfig, splits: Sequence[Split]) -> dict[str, ParallelText]:
    """Return splits to score on by name, with all their references."""
    found = {split: evaluation_split(sources.stream(cfg, split), cache_dir()) for split in splits}
    return {
        split.value: dataclasses.replace(text, references=sources.references(cfg, split))
        for split, text in found.items()
    }


def inherited_tokenizer(
    inherited: Inherited,
    text: TrainingText | StreamedText,
    *,
    tags: Sequence[str],
    seed: int,
    modify: Sequence[Augmentation],
) -> Tokenizer:
    """Return the tokenizer as it is, or with more pieces for a sample of `text` as it is modified."""
    tokenizer, number = inherited
    if number is None:
        return tokenizer
    sample = _modified(text.samples(tokenizer.cfg.max_sentences // 2, seed), modify, seed)
    return extended(tokenizer, sample, number, tags)


def _modified(samples: Sequence[ParallelText], modify: Sequence[Augmentation], seed: int) -> ParallelText:
    """Return the samples of corpora as one text, each with its own of `modify`."""
    parts = zip(modify or [UNMODIFIED] * len(samples), map(len, samples), strict=True)
    return JoinedAugmentation(tuple(parts))(concatenated(samples), seed=seed)


def train_tokenizer(
    cfg: TokenizerConfig,
    text: TrainingText | StreamedText,
    *,
    tags: Sequence[str] = (),
    seed: int,
    cache: Path,
    log: Log,
    modify: Sequence[Augmentation] = (),
) -> Tokenizer:
    """Train on `text`, or on a random sample of it, or load the cached tokenizer for the same input.

    Each of `tags` is one piece. The sample of each corpus is modified by its own of `modify` as the pairs of
    an epoch are, so that words in capitals have pieces, too. With `cfg.path` nothing is trained.
    """
    most = cfg.max_sentences // 2
    if cfg.path:
        labelled = concatenated(text.samples(most, seed)) if cfg.labels else ParallelText()
        return Tokenizer.train(cfg, labelled, tags)
    libraries = sentencepiece.__version__, unicodedata.unidata_version
    versions = FORMAT_VERSION, *libraries, TRAINING_THREADS, *moses_versions(cfg)
    settings = dataclasses.replace(cfg, sampling_alpha=0.0)
    sampling_key = text.sampling_key(most, seed)
    if any(modify):
        sampling_key += (*modify, seed)
    entry = cache / entry_name("tokenizer", *versions, text.sha256, settings, sampling_key, *tags)
    if open_entry(entry) is not None:
        log(f"a {cfg.kind.value} tokenizer, found in the cache")
        return Tokenizer.load(cfg, entry)
    log(f"training a {cfg.kind.value} tokenizer")
    tokenizer = Tokenizer.train(cfg, _modified(text.samples(most, seed), modify, seed), tags)
    write_entry(entry, tokenizer.save)
    return tokenizer
