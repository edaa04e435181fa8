"""What an objective asks of its training: teachers, and the text behind ids (alignments, samples, costs).

Alignments are of words, and are mapped to the pieces of each batch, whose segmentation may differ from epoch
to epoch. They come from a file, or from the lexicon of the training data: links that are best in both
directions of IBM model 1 with a diagonal prior (`nmt.data.augment.lexicon`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import torch

from nmt.config.roots import TrainConfig
from nmt.data.augment.lexicon import WORD, Links
from nmt.data.batches.batching import Batch
from nmt.data.batches.examples import lexicon_of
from nmt.data.batches.training_split import TrainingData
from nmt.data.reading import sources
from nmt.data.reading.lines import read_lines
from nmt.data.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.data.tokens.tokenizer_training import TokenizerKind, prepare_lines
from nmt.decoding.configs import SamplingConfig
from nmt.decoding.hypotheses import Wish
from nmt.decoding.sampling import draw_samples
from nmt.errors import UserError
from nmt.files import path_of
from nmt.layers.low_precision import in_low_precision
from nmt.metrics.scoring import METRICS, SCORERS
from nmt.models.base import TranslationModel
from nmt.runs.learnt_files import ALIGNMENTS
from nmt.runs.teachers import open_teacher
from nmt.runtime import derive_seed
from nmt.runtime_config import Precision
from nmt.training.objectives.objective import Align, Costs, Places, Sample

SPACED = re.compile(r"\S+")
"""A word of an alignment in a file."""
UNKNOWN = "\ufffd"
"""The text of pieces that stand for no known character."""
UNKNOWNS = re.compile(f"{UNKNOWN}+")
"""Pieces that spell a character together, or several of them; they are read as one."""
KNOWN_PAIRS = 1 << 18
"""Pairs of ids whose links are remembered, some kilobytes each."""
WordLinks = Callable[[str, str], Links]
"""A function of the texts of a pair, as its pieces spell them, that returns the links between its words."""


class RunContext:
    """The `Context` of the objective of a run, whose configuration and data it knows."""

    def __init__(self, cfg: TrainConfig, data: TrainingData):
        self.cfg = cfg
        self.data = data
        self.tokenizer = data.tokenizer

    def open_model(self, run: str) -> TranslationModel:
        """Return the model of a teacher; raise `UserError` when it has another tokenizer."""
        return open_teacher(run, self.cfg, self.tokenizer)

    def aligner(self, alignments: str | None) -> Align:
        """Return the function that aligns the pieces of a batch.

        Raises:
            UserError: the file cannot be read, or does not fit the training data.
        """
        src, tgt = (Spelling(self.tokenizer, self.cfg.data.symbols, is_target=side) for side in (False, True))
        if alignments is None:
            align, word = _estimated(self.data, self.cfg.seed), WORD
        else:
            align, word = from_file(path_of(alignments), self.cfg, self.tokenizer, src, tgt), SPACED

        @lru_cache(KNOWN_PAIRS)
        def of_pair(source: tuple[int, ...], target: tuple[int, ...]) -> list[tuple[int, int]]:
            (text, pieces), (translation, others) = src.read(source), tgt.read(target)
            rows, columns = src.places(pieces, word), tgt.places(others, word)
            links = align(text, translation)
            return [(s, t) for i, j in links for s in rows[i] for t in columns[j]]

        def of_batch(batch: Batch) -> Places:
            both = zip(batch.src.tolist(), batch.tgt_out.tolist(), strict=True)
            found = [
                (number, t, s)
                for number, (source, target) in enumerate(both)
                for s, t in of_pair(_unpadded(source), _unpadded(target))
            ]
            links = torch.tensor(found, dtype=torch.long).reshape(-1, 3).to(batch.src.device)
            return Places(*links.unbind(1))

        return of_batch

    def sampler(self, temperature: float) -> Sample:
        """Return the function that samples translations, behind the tags of their references."""

        def sampled(model: TranslationModel, batch: Batch, step: int, num: int) -> list[list[list[int]]]:
            drawing = SamplingConfig(
                max_length_ratio=self.cfg.decoding.max_length_ratio,
                max_length_offset=self.cfg.decoding.max_length_offset,
                temperature=temperature,
                seed=derive_seed(self.cfg.seed, "minimum risk", step),
            )
            starts = map(self.tokenizer.own_start, batch.tgt_out.tolist())
            wishes = [Wish(start, num_given=len(start)) for start in starts]
            searched = in_low_precision(model, Precision.fp32)
            found = draw_samples(searched, batch.src, batch.src_mask, drawing, num, wishes)
            return [[[*sample.ids, EOS_ID] for sample in group] for group in found]

        return sampled

    def costs(self, metric: str) -> Costs:
        """Return the function that scores translations of a sentence against its reference."""
        scorer: Any = SCORERS[metric](self.cfg.data.scored_language, self.cfg.scoring)
        if hasattr(scorer, "effective_order"):
            scorer.effective_order = True  # BLEU of a short sentence is that of the orders it has

        def costs(translations: Sequence[Sequence[int]], reference: Sequence[int]) -> list[float]:
            text = self.tokenizer.decode(reference)
            lines = map(self.tokenizer.decode, translations)
            scores = [scorer.sentence_score(line, [text]).score / 100 for line in lines]
            return [1 - score for score in scores] if METRICS[metric].higher_is_better else scores

        return costs


class Spelling:
    """The text that ids of one side spell, whatever the segmentation, and the places of their words."""

    def __init__(self, tokenizer: Tokenizer, symbols: Sequence[str], *, is_target: bool):
        size = tokenizer.tgt_vocab_size if is_target else tokenizer.src_vocab_size
        pieces = tokenizer.tgt_spellings(range(size)) if is_target else tokenizer.src_spellings(range(size))
        silent = {*symbols, *prepare_lines(tokenizer.cfg, symbols)}
        silent.add(tokenizer.cfg.tgt_tag if is_target else tokenizer.cfg.src_tag)
        self.turned = is_target and tokenizer.cfg.right_to_left
        self.texts = [_text(number, piece, silent) for number, piece in enumerate(pieces)]
        if tokenizer.kinds[is_target] is TokenizerKind.word:
            self.texts[UNK_ID] = f" {UNKNOWN}"

    def read(self, ids: Sequence[int]) -> tuple[str, list[str]]:
        """Return the text of `ids`, without space around it, and the text of each id in the order of text."""
        texts = [self.texts[token % len(self.texts)] for token in ids]  # without the factors of a source
        texts = texts[::-1] if self.turned else texts
        return UNKNOWNS.sub(UNKNOWN, "".join(texts)).strip(), texts

    def places(self, texts: Sequence[str], word: re.Pattern[str]) -> list[list[int]]:
        """Return for each word the places of the ids that spell a part of it, in the order of the model."""
        owners = [[place] for place, text in enumerate(texts) for _ in text]  # of each character
        spelt = "".join(texts)
        for found in reversed(list(UNKNOWNS.finditer(spelt))):
            owners[slice(*found.span())] = [[*itertools.chain(*owners[slice(*found.span())])]]
        last, words = len(texts) - 1, word.finditer(UNKNOWNS.sub(UNKNOWN, spelt))
        several = (dict.fromkeys(itertools.chain(*owners[slice(*m.span())])) for m in words)
        return [[last - place if self.turned else place for place in places] for places in several]


def _text(number: int, piece: str, silent: set[str]) -> str:
    if number in (PAD_ID, BOS_ID, EOS_ID):
        return ""
    if piece.replace("▁", "") in silent:
        return " "
    if number == UNK_ID or re.fullmatch(r"<0x[0-9A-F]{2}>", piece):
        return UNKNOWN
    return piece.replace("▁", " ")


def _estimated(data: TrainingData, seed: int) -> WordLinks:
    """Return the links by the lexicon of the training data."""
    lexicon = lexicon_of(data.text, seed)
    return lambda source, target: lexicon.align(WORD.findall(source), WORD.findall(target))


def _unpadded(ids: list[int]) -> tuple[int, ...]:
    return tuple(ids[: ids.index(EOS_ID) + 1] if EOS_ID in ids else ids)


def from_file(path: Path, cfg: TrainConfig, tokenizer: Tokenizer, src: Spelling, tgt: Spelling) -> WordLinks:
    """Return the links of the pairs of the training data in a file with one line for each of its lines.

    A pair that is in no line, because it was modified, has no links.

    Raises:
        UserError: the file cannot be read, or does not fit the training data.
    """
    ((name, pairs),) = sources.training_streams(cfg.data).items()
    tags = cfg.data.tags_in_front(name)  # no words of the corpus
    lines = list(read_lines(path, ALIGNMENTS))
    known: dict[int, Links] = {}
    number = 0
    src_words, tgt_words = _words(tokenizer.encode_src, src), _words(tokenizer.encode_tgt, tgt)
    for chunk in pairs.chunks():
        encoded = tokenizer.encode_src(chunk.src), tokenizer.encode_tgt(chunk.tgt)
        for source, target, src_ids, tgt_ids in zip(chunk.src, chunk.tgt, *encoded, strict=True):
            if number < len(lines):
                where, texts = f"{path}:{number + 1}", (src.read(src_ids)[0], tgt.read(tgt_ids)[0])
                rows = src_words(source, texts[0], where)[len(tags) :]
                columns = tgt_words(target, texts[1], where)
                links = _parsed(lines[number], (len(rows), len(columns)), where)
                known[hash(texts)] = [(s, t) for i, j in links for s in rows[i] for t in columns[j]]
            number += 1
    if number != len(lines):
        raise UserError(
            f"{ALIGNMENTS}={path} has {len(lines):,} lines, but the training data has {number:,} "
            "pairs before filtering; it needs one line for each"
        )
    return lambda source, target: known.get(hash((source, target)), [])


def _words(
    encode: Callable[[Sequence[str]], list[list[int]]], side: Spelling
) -> Callable[[str, str, str], list[range]]:
    """Return the function that tells for each word of a line which words of `text` are made of it.

    `text` is what the pieces of the line spell. It has no word where the line has punctuation that
    `tokenizer.strip_punctuation` removes, and two for one that is parted.

    Raises:
        UserError: the function cannot tell, as words of the line are joined.
    """

    @cache
    def size(word: str) -> int:
        return len(side.read(encode([word])[0])[0].split())

    def words(line: str, text: str, where: str) -> list[range]:
        ends = [0, *itertools.accumulate(map(size, line.split()))]
        if ends[-1] != len(text.split()):
            raise UserError(
                f"{where}: the tokenizer reads {line!r:.80} as {text!r:.80}, in which the words of the line "
                f"cannot be told; write it so in the corpus, too, or set {ALIGNMENTS}=null to estimate "
                "alignments"
            )
        return [range(*both) for both in itertools.pairwise(ends)]

    return words


def _parsed(line: str, sizes: Sequence[int], where: str) -> Links:
    """Return the links of a line such as `0-0 2-1` between words that are as many as `sizes`.

    Raises:
        UserError: the line is none, or names a word that the pair does not have.
    """
    links = []
    for part in line.split():
        found = re.fullmatch(r"(\d+)-(\d+)", part)
        if not found:
            raise UserError(f"{where}: {part!r} is no link; write source-target, from 0, as 0-0 2-1")
        link = int(found[1]), int(found[2])
        if link[0] >= sizes[0] or link[1] >= sizes[1]:
            raise UserError(
                f"{where}: the link {part} names a word that is not there: the source has {sizes[0]} words "
                f"between spaces and the target {sizes[1]}, counted from 0"
            )
        links.append(link)
    return links
