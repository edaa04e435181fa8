"""The training examples of each task: sentence pairs, or windows of one long text.

The examples of an epoch are a pure function of the text, the tokenizer, the options and the number of the
epoch. Batches are unknown here.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from nmt.data.augment.augmentation import Augmentation, JoinedAugmentation
from nmt.data.augment.lexicon import WordLexicon
from nmt.data.augment.translation_memory import Neighbours, TranslationMemory
from nmt.data.batches.blocks import LARGE_PAIRS, epochs_of
from nmt.data.batches.encode import EncodingOptions, LineEncoder, encode_stream, encode_together, sample_pairs
from nmt.data.batches.shards import encode_shards, is_encoded, sample_shards
from nmt.data.batches.streaming import StreamBuffers, StreamedText
from nmt.data.batches.training_split import CorpusText, Examples, PairsOfEpoch, TrainingText
from nmt.data.cleaning.filters import (
    Filter,
    FilterReport,
    all_lines,
    filter_pairs,
    filter_texts,
    targets_alone,
)
from nmt.data.configs import DataConfig
from nmt.data.encoded_pairs import EncodedPairs, InParts, windows
from nmt.data.modifiers import MatchesConfig, Need
from nmt.data.parallel_text import ParallelText, concatenated
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.disk_cache import cache_dir
from nmt.errors import Log
from nmt.runtime import derive_seed

LEXICON_PAIRS = 1_000_000
"""Pairs that a lexicon of words is made from."""
MEMORY_PAIRS = 1_000_000
"""Pairs of a corpus that are compared with each other to find matches."""


@dataclass
class SentencePairs(Examples):
    """Sentence pairs, the same in each epoch, or modified and segmented anew (subword regularisation)."""

    cfg: DataConfig
    seed: int
    sampling_alpha: float = 0.0
    """Above 0, segmentations are sampled anew for each epoch."""
    joined: bool = False
    """Whether source and target are one text, and both are to be predicted."""
    lexicon: WordLexicon | None = None
    """The translations of the words of the training text, if terms are offered."""
    neighbours: list[Neighbours | None] = field(default_factory=list)
    """For each corpus the matches of its sources, if their translations are offered."""

    @property
    def options(self) -> EncodingOptions:
        """The options with which the pairs are encoded."""
        most = self.cfg.max_tokens
        return EncodingOptions(most, most, drop_empty=True, joined=self.joined, weighted=self.cfg.has_weights)

    def view(self, text: ParallelText) -> ParallelText:
        """Return the whole text."""
        return text

    @property
    def filter(self) -> Filter:
        """The filter for pairs that are empty, too long or uneven."""
        return filter_pairs

    def epochs(self, text: TrainingText | StreamedText, tokenizer: Tokenizer, log: Log) -> PairsOfEpoch:
        """Return the function that gives the pairs of an epoch."""
        if any(one.needs(Need.lexicon) for one in self._augmentations):
            self.lexicon = self._learnt(text, log)
        if any(one.needs(Need.neighbours) for one in self._augmentations):
            assert isinstance(text, TrainingText)  # a stream is refused with matches
            self.neighbours = [
                self._matched(part, one, log) if one.needs(Need.neighbours) else None
                for part, one in zip(text.parts, self._augmentations, strict=True)
            ]
        if isinstance(text, StreamedText):
            encode = functools.partial(self._encode_buffer, text, tokenizer, log)
            return StreamBuffers(text, self.cfg.buffer_pairs, encode)
        if self._changes:

            def sampled(epoch: int, stage: int) -> InParts:
                shares = self.cfg.shares(list(map(len, text.parts)), stage)
                both = zip(text.parts, shares, strict=True)
                encoded = [
                    self._sampled(part if share else None, tokenizer, epoch, corpus)
                    for corpus, (part, share) in enumerate(both)
                ]
                done = "segmented" if self.sampling_alpha else "modified"
                corpora = _reported(encoded, f"{done} for epoch {epoch}", log)
                return self._epochs(corpora, stage)(epoch)

            return sampled
        encoder = LineEncoder(tokenizer, self.options)
        known = all(
            is_encoded(part.sha256, encoder, cache_dir(), is_large=len(part) > LARGE_PAIRS)
            for part in text.parts
        )
        encoded = [self._encoded(part, encoder) for part in text.parts]
        corpora = _reported(encoded, "found in the cache, encoded" if known else "encoded", log)
        of_stage = functools.lru_cache(1)(lambda stage: self._epochs(corpora, stage))
        return lambda epoch, stage: of_stage(stage)(epoch)

    def _learnt(self, text: TrainingText | StreamedText, log: Log) -> WordLexicon:
        """Return the lexicon of the words of a text, or of so many of its pairs at random."""
        found = lexicon_of(text, self.seed)
        log(f"words for terms: {len(found.src):,} of {self.cfg.src}, {len(found.tgt):,} of {self.cfg.tgt}")
        return found

    def _matched(self, part: CorpusText, augmentation: Augmentation, log: Log) -> Neighbours:
        """Return the matches of the sources of a corpus, or of so many of its pairs at random."""
        least = min(row.least for row in augmentation.modifiers if isinstance(row, MatchesConfig))
        sampling = (MEMORY_PAIRS, self.seed) if len(part) > MEMORY_PAIRS else ()
        digest = repr((part.sha256, *augmentation.symbols, *sampling))

        def memory() -> TranslationMemory:
            text = augmentation.sentences(part.sample(MEMORY_PAIRS, self.seed))
            return TranslationMemory(zip(text.src, text.tgt, strict=True))

        found = Neighbours.cached(memory, digest, least, cache_dir())
        log(f"matches: {len(found):,} of {len(found.tgt):,} pairs have one of {least:g} or more")
        return found

    def _encoded(self, part: CorpusText, encoder: LineEncoder) -> tuple[EncodedPairs, FilterReport]:
        if len(part) > LARGE_PAIRS:
            return encode_shards(part.chunks, part.sha256, len(part), encoder, cache_dir())
        return encode_stream(part.chunks, part.sha256, encoder.tokenizer, encoder.options, cache_dir())

    def _sampled(
        self, part: CorpusText | None, tokenizer: Tokenizer, epoch: int, corpus: int
    ) -> tuple[EncodedPairs, FilterReport]:
        """Encode a corpus anew for an epoch, or nothing in place of one that is not read."""
        encoder = self._encoder(tokenizer, epoch, self._augmentations[corpus], corpus)
        if part is not None and len(part) > LARGE_PAIRS:
            return sample_shards(part.chunks, len(part), encoder)
        return sample_pairs(part.chunks if part else _nothing, encoder)

    @property
    def _changes(self) -> bool:
        """Whether the ids of a pair differ from epoch to epoch."""
        return bool(self.sampling_alpha or self.cfg.is_augmented)

    @property
    def _augmentations(self) -> list[Augmentation]:
        """The modifiers of each corpus."""
        of_corpora = Augmentation.of_corpora(self.cfg)
        neighbours: Sequence[Neighbours | None] = self.neighbours or [None] * len(of_corpora)
        return [
            dataclasses.replace(of_corpus, lexicon=self.lexicon, neighbours=own)
            for of_corpus, own in zip(of_corpora, neighbours, strict=True)
        ]

    def _encoder(
        self,
        tokenizer: Tokenizer,
        epoch: int,
        augmentation: Augmentation | JoinedAugmentation,
        corpus: int = 0,
    ) -> LineEncoder:
        """Return the encoder of an epoch, to which the same pair in another corpus is another."""
        seed = derive_seed(self.seed, corpus)
        return LineEncoder(tokenizer, self.options, self.sampling_alpha, seed, epoch, augmentation)

    def _epochs(self, corpora: Sequence[EncodedPairs], stage: int) -> Callable[[int], InParts]:
        """Return the function that gives the epochs of a stage: of each corpus its share."""
        return epochs_of(corpora, self.cfg.shares(list(map(len, corpora)), stage), self.seed)

    def _encode_buffer(
        self,
        text: StreamedText,
        tokenizer: Tokenizer,
        log: Log,
        buffer: ParallelText,
        read: FilterReport,
        number: int,
        stage: int,
    ) -> EncodedPairs:
        """Encode a buffer of a stream; `read` reports the pairs that were read for it."""
        counts = text.counts(self.cfg.buffer_pairs, stage)
        modify = JoinedAugmentation(tuple(zip(self._augmentations, counts, strict=True)))
        encoder = self._encoder(tokenizer, number, modify)
        pairs, report = encode_together(buffer, encoder, self.world)
        source = f"; for it, {read}" if read.read else ""  # else the chunk was read for an earlier buffer
        log(f"buffer {number}: {report}{source}")
        return pairs


def lexicon_of(text: TrainingText | StreamedText, seed: int) -> WordLexicon:
    """Return the lexicon of a text, or of `LEXICON_PAIRS` of its pairs; from the cache if it is there."""
    digest = repr((text.sha256, *text.sampling_key(LEXICON_PAIRS, seed)))
    return WordLexicon.cached(lambda: concatenated(text.samples(LEXICON_PAIRS, seed)), digest, cache_dir())


def _nothing() -> Iterator[ParallelText]:
    """Return no chunks, in place of those of a corpus that is not read."""
    return iter(())


def _reported(
    encoded: Sequence[tuple[EncodedPairs, FilterReport]], done: str, log: Log
) -> list[EncodedPairs]:
    """Return the pairs of the corpora, and log what was `done`."""
    corpora = [pairs for pairs, _ in encoded]
    report = sum((report for _, report in encoded), FilterReport(0))
    tokens = sum(len(pairs.tgt.ids) for pairs in corpora)
    log(f"{done}: {report}, {tokens:,} target tokens")
    return corpora


class LabelledTexts(SentencePairs):
    """Texts with their labels, the same in each epoch or segmented anew."""

    @property
    def options(self) -> EncodingOptions:
        """The options with which the pairs are encoded: the label, one id, is not empty."""
        return EncodingOptions(self.cfg.max_tokens, self.cfg.max_tokens, weighted=self.cfg.has_weights)

    @property
    def filter(self) -> Filter:
        """The filter for texts that are blank or too long."""
        return filter_texts


@dataclass
class TextWindows(Examples):
    """Windows of the targets as one long text, cut at other places in each epoch."""

    cfg: DataConfig
    seed: int

    def view(self, text: ParallelText) -> ParallelText:
        """Return the targets alone."""
        return targets_alone(text)

    @property
    def filter(self) -> Filter:
        """The filter that keeps all lines."""
        return all_lines

    def epochs(self, text: TrainingText | StreamedText, tokenizer: Tokenizer, log: Log) -> PairsOfEpoch:
        """Return the function that gives the windows of an epoch."""
        assert isinstance(text, TrainingText)  # a stream is refused with this task
        pairs, _ = encode_stream(text.chunks, text.sha256, tokenizer, EncodingOptions(), cache_dir())
        log(f"encoded: {len(text):,} lines, {len(pairs.tgt.ids):,} tokens")
        length = self.cfg.max_tokens

        def shifted(epoch: int, stage: int) -> InParts:
            first = np.random.default_rng(derive_seed("windows", self.seed, epoch)).integers(length)
            return epochs_of([windows(pairs, length, int(first))], [1.0], self.seed)(epoch)

        return shifted
