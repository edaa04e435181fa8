"""Attention maps of a model, sentence by sentence: tokens as people read them, and the weights between them.

A target may be given (forced decoding); else the target is the translation that search finds. Row t of a map
from the target belongs to the position that predicts target token t. Knows the contract of the models and no
family; writes nothing.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

import numpy as np
import torch

from nmt.attention_views.alignment import Weights, mean_weights
from nmt.attention_views.table import weights_table
from nmt.data.batches.batching import pad
from nmt.data.tokens.tokenizer import BOS, EOS, Piece, Tokenizer
from nmt.decoding.configs import DecodingConfig
from nmt.errors import Log, UserError, warn
from nmt.models.base import TranslationModel
from nmt.translation.classify import classify
from nmt.translation.translate import (
    beginnings,
    cut_message,
    evaluating,
    is_shortened,
    longest_source,
    longest_target,
    translate,
)

BATCH_TOKENS = 2048
"""Tokens of a batch with padding: all weights of a batch, which take far more, are in memory at once."""


@dataclass(repr=False)
class SentenceMaps:
    """One sentence pair and the weights of every layer; all of it empty for a blank line."""

    line: int
    """Number of the line, counted from 1."""
    src: list[Piece] = field(default_factory=list)
    """S source tokens, EOS the last."""
    tgt: list[Piece] = field(default_factory=list)
    """T target tokens, EOS the last."""
    encoder: list[Weights] = field(default_factory=list)
    """(H, S, S) per layer: from the source to itself."""
    decoder: list[Weights] = field(default_factory=list)
    """(H, T, T) per layer: from the position that predicts target token t to BOS and the other tokens; the
    weight of a token that is not predicted before is 0."""
    cross: list[Weights] = field(default_factory=list)
    """(H, T, S) per layer: from the position that predicts target token t to the source."""
    factors: dict[str, list[tuple[Weights, Weights]]] = field(default_factory=dict)
    """Kind (encoder, decoder or cross) -> queries and keys per layer, (H, rows, C) and (H, columns, C), whose
    products / sqrt(C) are the scores; only where they were asked for and scores are such products."""

    def __repr__(self) -> str:
        kinds = {"encoder": self.encoder, "decoder": self.decoder, "cross": self.cross}
        counts = ", ".join(f"{kind} of {len(layers)} layers" for kind, layers in kinds.items() if layers)
        return f"SentenceMaps(line {self.line}: {self.src_text!r} -> {self.tgt_text!r}, {counts or 'empty'})"

    def _repr_html_(self) -> str:
        """Return the mean of all layers and heads as a table: cross-attention, where the model has it."""
        if not (self.cross or self.encoder):
            return f"<div>{escape(repr(self))}</div>"
        rows, layers = (self.tgt, self.cross) if self.cross else (self.src, self.encoder)
        title = "target to source" if self.cross else "source to itself"
        labels = ([piece.text for piece in side] for side in (self.src, rows))
        return weights_table(f"{title}, mean of all layers and heads", mean_weights(layers), *labels)

    @property
    def tgt_in(self) -> list[Piece]:
        """Input of the target positions: BOS, and the target without EOS."""
        return [BOS, *self.tgt[:-1]] if self.tgt else []

    def turn(self) -> None:
        """Put what a model has that predicts the target from right to left into the order of the text."""
        T = len(self.tgt)
        rows, columns = [*range(T - 2, -1, -1), T - 1], [0, *range(T - 1, 0, -1)]
        self.tgt = [self.tgt[row] for row in rows]
        self.cross = [layer[:, rows] for layer in self.cross]
        self.decoder = [layer[:, rows][:, :, columns] for layer in self.decoder]
        of_keys = {"cross": [*range(len(self.src))], "decoder": columns}
        for kind, order in of_keys.items():
            if kind in self.factors:
                self.factors[kind] = [(q[:, rows], k[:, order]) for q, k in self.factors[kind]]

    @property
    def src_text(self) -> str:
        """The source line, as far as the model reads it."""
        return "".join(piece.surface for piece in self.src)

    @property
    def tgt_text(self) -> str:
        """The target line, as far as the model reads it."""
        return "".join(piece.surface for piece in self.tgt)


def attend(
    lines: Iterable[str],
    model: TranslationModel,
    tokenizer: Tokenizer,
    cfg: DecodingConfig,
    *,
    device: torch.device,
    warn: Log = warn,
    chunk: int = 4096,
    neuron_lines: int = 0,
) -> Iterator[SentenceMaps]:
    """Yield what the model attends to for each line, in order; a line is SOURCE or SOURCE, TAB, TARGET.

    The first `neuron_lines` lines have queries and keys, too.

    Raises:
        UserError: a line has more than one TAB.
    """
    remaining = enumerate(lines, start=1)
    while taken := dict(itertools.islice(remaining, chunk)):
        pairs = [_split(line, number) for number, line in taken.items()]
        numbers = {"first_line": min(taken), "neuron_lines": neuron_lines}
        yield from attend_pairs(pairs, model, tokenizer, cfg, device=device, warn=warn, **numbers)


def attend_pairs(
    pairs: Sequence[tuple[str, str | None]],
    model: TranslationModel,
    tokenizer: Tokenizer,
    cfg: DecodingConfig,
    *,
    device: torch.device,
    warn: Log = warn,
    first_line: int = 1,
    neuron_lines: int = 0,
) -> Iterator[SentenceMaps]:
    """Yield what the model attends to for pairs (source, target); search for a target that is None.

    A line of more tokens than `decoding.max_source_tokens`, or than the model has positions, is cut; `warn`
    then gets a message that names it, counted from `first_line`. Lines up to number `neuron_lines` get
    queries and keys, too.
    """
    tokens = _tokens(pairs, model, tokenizer, cfg, device, warn, first_line)
    yield from attend_tokens(tokens, model, tokenizer, device=device, neuron_lines=neuron_lines)


def attend_labels(
    lines: Iterable[str],
    model: TranslationModel,
    tokenizer: Tokenizer,
    cfg: DecodingConfig,
    *,
    device: torch.device,
    warn: Log = warn,
    chunk: int = 4096,
    neuron_lines: int = 0,
) -> Iterator[SentenceMaps]:
    """Yield what a classifier attends to for each line, in order; the target is the label that it finds.

    The first `neuron_lines` lines have queries and keys, too.
    """
    remaining, first_line, longest = iter(lines), 1, longest_source(model, cfg)
    while taken := list(itertools.islice(remaining, chunk)):
        found = classify(taken, model, tokenizer, cfg, device=device, warn=warn, first_line=first_line)
        src = tokenizer.src_pieces(beginnings(taken, longest))
        tgt = tokenizer.tgt_pieces([one.label for one in found])
        sentences = [
            SentenceMaps(line, _cut(src[i], longest), tgt[i]) if taken[i].strip() else SentenceMaps(line)
            for i, line in enumerate(range(first_line, first_line + len(taken)))
        ]
        yield from attend_tokens(sentences, model, tokenizer, device=device, neuron_lines=neuron_lines)
        first_line += len(taken)


def attend_tokens(
    sentences: Sequence[SentenceMaps],
    model: TranslationModel,
    tokenizer: Tokenizer,
    *,
    device: torch.device,
    neuron_lines: int = 0,
) -> Iterator[SentenceMaps]:
    """Yield sentences that have tokens, in the order of the model, with weights, in the order of the text.

    Those of the first `neuron_lines` lines get queries and keys, too.
    """
    for batch in _batches(sentences):
        for sentence in _add_weights(batch, model, device, neuron_lines):
            if tokenizer.cfg.right_to_left and sentence.tgt:
                sentence.turn()
            yield sentence


def empty_maps(model: TranslationModel, device: torch.device) -> SentenceMaps:
    """Return the maps of an empty sentence, which show the kinds of attention and the number of layers."""
    (empty,) = _add_weights([SentenceMaps(1, [EOS], [EOS])], model, device)
    return empty


def _split(line: str, number: int) -> tuple[str, str | None]:
    source, *targets = line.split("\t")
    if len(targets) > 1:
        raise UserError(
            f"line {number} of the input has {len(targets)} TABs; a line is SOURCE, or SOURCE TAB TARGET"
        )
    return source, targets[0] if targets else None


def _tokens(
    pairs: Sequence[tuple[str, str | None]],
    model: TranslationModel,
    tokenizer: Tokenizer,
    cfg: DecodingConfig,
    device: torch.device,
    warn: Callable[[str], None],
    first_line: int,
) -> list[SentenceMaps]:
    """Return the tokens of both sides, without weights; search for the targets that are not given."""
    to_translate = ["" if target is not None else source for source, target in pairs]
    numbers = range(first_line, first_line + len(pairs))
    found = translate(to_translate, model, tokenizer, cfg, device=device, warn=warn, numbers=numbers)
    longest, most = longest_source(model, cfg), longest_target(model, cfg)
    src = tokenizer.src_pieces(beginnings((source for source, _ in pairs), longest))
    targets = beginnings((target or "" for _, target in pairs), most)
    tgt = tokenizer.tgt_pieces(targets, [source for source, _ in pairs])
    sentences = list[SentenceMaps]()
    too_long, shortened = (defaultdict[int, list[int]](list) for _ in range(2))  # lines by their limit
    for i, (line, (source, target)) in enumerate(zip(numbers, pairs, strict=True)):
        if target is None:
            tgt[i] = tokenizer.decoded_pieces(found[i].ids)
        else:
            for text, pieces, limit in ((source, src[i], longest), (target, tgt[i], most)):
                if len(pieces) > limit:
                    too_long[limit].append(line)
                elif is_shortened(text, len(pieces), limit):
                    shortened[limit].append(line)
            tgt[i] = _cut(tgt[i], most)
        blank = len(src[i]) == 1 or not source.strip()
        sentences.append(SentenceMaps(line) if blank else SentenceMaps(line, _cut(src[i], longest), tgt[i]))
    for unit, cut in (("tokens", too_long), ("characters", shortened)):
        for limit, lines in cut.items():
            warn(cut_message(lines, limit, cfg, done="looked at", unit=unit))
    return sentences


def _cut(pieces: list[Piece], longest: int) -> list[Piece]:
    return pieces if len(pieces) <= longest else [*pieces[: longest - 1], EOS]


def _batches(sentences: Sequence[SentenceMaps]) -> Iterator[list[SentenceMaps]]:
    """Yield batches of neighbouring sentences, each as large as `BATCH_TOKENS` allows."""
    batch: list[SentenceMaps] = []
    for sentence in sentences:
        longest = max(len(side) for other in (*batch, sentence) for side in (other.src, other.tgt))
        if batch and longest * (len(batch) + 1) > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(sentence)
    yield batch


def _add_weights(
    batch: Sequence[SentenceMaps], model: TranslationModel, device: torch.device, neuron_lines: int = 0
) -> Sequence[SentenceMaps]:
    """Return the batch after adding the weights to each of its sentences."""
    with_factors = any(sentence.line <= neuron_lines for sentence in batch)
    sentences = [sentence for sentence in batch if sentence.src]
    if not sentences:
        return batch
    src, src_mask = pad([[piece.id for piece in sentence.src] for sentence in sentences])
    tgt_in, _ = pad([[piece.id for piece in sentence.tgt_in] for sentence in sentences])
    with evaluating(model):
        maps = model.attention(
            src.to(device), src_mask.to(device), tgt_in.to(device), with_factors=with_factors
        )
    kinds = (maps.encoder, maps.decoder, maps.cross)
    encoder, decoder, cross = ([np.asarray(layer.cpu()) for layer in kind] for kind in kinds)
    factors = {
        kind: [tuple(np.asarray(factor.cpu()) for factor in layer) for layer in layers]
        for kind, layers in maps.factors.items()
    }
    for i, sentence in enumerate(sentences):
        S, T = len(sentence.src), len(sentence.tgt)
        sentence.encoder = [layer[i, :, :S, :S] for layer in encoder]
        sentence.decoder = [layer[i, :, :T, :T] for layer in decoder]
        sentence.cross = [layer[i, :, :T, :S] for layer in cross]
        if sentence.line <= neuron_lines:
            sizes = {"encoder": (S, S), "decoder": (T, T), "cross": (T, S)}
            for kind, layers in factors.items():
                R, C = sizes[kind]
                sentence.factors[kind] = [(q[i, :, :R], k[i, :, :C]) for q, k in layers]
    return batch
