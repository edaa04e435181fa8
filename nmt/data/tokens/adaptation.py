"""A tokenizer for new text, made from that of a trained model: kept, extended, or replaced by another.

Old ids stay what they were when a model is extended: new pieces come behind all others. They are words,
characters, or joined pieces of the old model, found as byte-pair encoding goes on where the old one ended
(Sennrich et al. 2016), for unigram models, too; their scores make the old algorithm use them. No new piece
mixes letters and digits, or goes across a space. `origins` says from which old pieces the vector of a new
one should begin: the piece itself, or the pieces that the old model would split it into.
"""

from __future__ import annotations

import heapq
import itertools
import math
import struct
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import sentencepiece

from nmt.data.parallel_text import ParallelText
from nmt.data.reading.mixture import TAG
from nmt.data.special_ids import EOS_ID, UNK_ID
from nmt.data.text.source_factors import small
from nmt.data.tokens.piece_models import PieceModel, piece_model
from nmt.data.tokens.segmenter import PieceType, Segmenter, processor_of
from nmt.data.tokens.subword_sampling import Pieces
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.data.tokens.tokenizer_training import (
    COUNTED,
    SPACE,
    TagSide,
    TokenizerConfig,
    TokenizerKind,
    own_pieces,
    prepare_lines,
    punctuated,
    words,
)
from nmt.errors import UserError

NORMAL, USER_DEFINED, UNUSED = 1, 4, 5
"""Types of pieces in the format of SentencePiece."""
LONGEST = 16
"""Characters of a joined piece at most, as when SentencePiece is trained by default."""
LEAST_COUNT = 2
"""Occurrences of a joined piece at least."""
GAIN = 0.01
"""Logarithm by which a joined piece of a unigram model is at least more probable than its parts."""

Origins = list[int | list[int]]
"""For each new id: the old id of the same piece, or the old ids whose mean it begins as; empty: of all."""


class Inherited(NamedTuple):
    """The tokenizer of a trained model, for a training that starts from the model."""

    tokenizer: Tokenizer
    new_pieces: int | None
    """Most pieces to add on each side; None: the tokenizer is kept as it is."""


class NewPiece(NamedTuple):
    """A piece to append to a model."""

    text: str
    score: float
    kind: int = NORMAL


def extended(
    tokenizer: Tokenizer, text: ParallelText, num_pieces: int, tags: Sequence[str] = ()
) -> Tokenizer:
    """Return `tokenizer` with at most `num_pieces` more pieces on each side, and a piece for each of `tags`.

    Tags are words of the source side, those of languages perhaps of the target, too. The pieces are
    those of which `text` has most. Labels, as targets, get none.
    """
    cfg, old = tokenizer.cfg, (tokenizer.src_model, tokenizer.tgt_model)
    if None in tokenizer.kinds:
        raise UserError(
            f"init.vocabulary=extend needs a SentencePiece model, but tokenizer.path={cfg.path} is a "
            "tokenizer of the library tokenizers; keep it, or take another by init.vocabulary=remap"
        )
    src, tgt = punctuated(text.src, cfg.moses_src), punctuated(text.tgt, cfg.moses_tgt)
    if cfg.tells_case:
        src = list(map(small, src))
    if old[0] == old[1]:
        model = _longer(old[0], _new_pieces(cfg, old[0], src + tgt, num_pieces, tags))
        return Tokenizer(cfg, model, model)
    if cfg.labels:
        return Tokenizer(cfg, _longer(old[0], _new_pieces(cfg, old[0], src, num_pieces, tags)), old[1])
    sizes = (num_pieces - num_pieces // 2, num_pieces // 2) if cfg.joint else (num_pieces, num_pieces)
    src_new = _new_pieces(cfg, old[0], src, sizes[0], tags)
    spoken = [] if cfg.tag_side is TagSide.source else [tag for tag in tags if TAG.fullmatch(tag)]
    tgt_new = _new_pieces(cfg, old[1], tgt, sizes[1], spoken)
    if cfg.joint:
        src_new, tgt_new = _numbered_alike(src_new, tgt_new)
    return Tokenizer(cfg, _longer(old[0], src_new), _longer(old[1], tgt_new))


def _numbered_alike(src: list[NewPiece], tgt: list[NewPiece]) -> tuple[list[NewPiece], list[NewPiece]]:
    """Return the pieces of both sides for each, in one order; those of the other side are of no text.

    An imported model may have two ways to segment, but one vocabulary.
    """
    texts = dict.fromkeys(piece.text for piece in (*src, *tgt))
    sides = ({piece.text: piece for piece in side} for side in (src, tgt))
    src, tgt = ([side.get(text, NewPiece(text, 0.0, UNUSED)) for text in texts] for side in sides)
    return src, tgt


def _longer(model: bytes, pieces: Iterable[NewPiece]) -> bytes:
    """Return the bytes of a model with more pieces: a message grows by what is written behind it."""
    return model + b"".join(map(_packed, pieces))


def _new_pieces(
    cfg: TokenizerConfig, model: bytes, lines: Sequence[str], num_pieces: int, tags: Sequence[str]
) -> list[NewPiece]:
    """Return at most `num_pieces` pieces to append to a model, behind a piece for each of `tags`."""
    known, new = Pieces(model), list[NewPiece]()
    for tag in own_pieces(cfg, tags):
        if known.kind is not TokenizerKind.word and tag not in known.symbols:
            new.append(NewPiece(tag, 0.0, USER_DEFINED))
    model = _longer(model, new)
    known = Pieces(model)
    counts = _counted_words(model, known, prepare_lines(cfg, lines))
    found = list[NewPiece]()
    if not known.bytes and known.kind is not TokenizerKind.word:
        found += _characters(cfg, counts, {*known.ids, *known.unused})
    if known.kind is TokenizerKind.word:
        least, order = cfg.min_frequency, sorted(counts, key=lambda word: (-counts[word], word))
        found += [NewPiece(w, 0.0) for w in order if w not in known.ids and counts[w] >= least]
    if known.kind not in COUNTED:
        joined = _Joining(model, known, found, counts)
        found += joined.pieces(num_pieces - len(found), is_bpe=known.kind is TokenizerKind.bpe)
    return [*new, *found[:num_pieces]]


def _counted_words(model: bytes, known: Pieces, lines: Sequence[str]) -> Counter[str]:
    """Count the words of normalised lines, spelt with their spaces; symbols cut them, and do not count."""
    normalize = sentencepiece.SentencePieceProcessor(model_proto=model).normalize
    units, counts = Counter[str](), Counter[str]()
    split = words if known.kind is TokenizerKind.word else known.units
    for line in lines:
        units.update(split(normalize(line)))
    for unit in units.keys() - known.symbols.keys():
        for word in words(unit):
            counts[word] += units[unit]
    return counts


def _splitter(model: bytes) -> Any:
    """Return a processor of words as `_counted_words` spells them; no unknown character becomes bytes."""
    proto = Segmenter.parse(model).proto
    proto.normalizer_spec.Clear()
    proto.normalizer_spec.add_dummy_prefix = False
    proto.normalizer_spec.remove_extra_whitespaces = False
    proto.trainer_spec.byte_fallback = False
    for piece in proto.pieces:
        if piece.type == PieceType.BYTE:
            piece.type = PieceType.UNUSED
    return processor_of(proto.SerializeToString())


def _characters(cfg: TokenizerConfig, counts: Counter[str], known: Container[str]) -> list[NewPiece]:
    """Return the unknown characters, the most frequent first, that the config would give a piece."""
    seen = Counter[str]()
    for word, count in counts.items():
        for character in word:
            seen[character] += count
    total, covered, found = sum(seen.values()), 0, list[NewPiece]()
    for character, count in sorted(seen.items(), key=lambda item: (-item[1], item[0])):
        if covered >= cfg.character_coverage * total or count < cfg.min_frequency:
            break
        covered += count
        if character not in known:
            found.append(NewPiece(character, math.log(count / total)))
    return found


class _Joining:
    """Words as sequences of pieces, of which the most frequent neighbours are joined again and again."""

    def __init__(self, model: bytes, known: Pieces, added: Sequence[NewPiece], counts: Counter[str]):
        self._scores = known.scores | {piece.text: piece.score for piece in added}
        self._unused = known.unused  # of an imported model
        self._words = sorted(counts)
        self._counts = [counts[word] for word in self._words]
        spelt = _splitter(model).encode(self._words, out_type=str)
        self._rows = [[part for piece in row for part in self._known_parts(piece)] for row in spelt]
        self._pairs = Counter[tuple[str, str]]()
        self._where = defaultdict[tuple[str, str], set[int]](set)
        for row in range(len(self._rows)):
            self._count(row, 1)
        self._heap = [(-count, pair) for pair, count in self._pairs.items()]
        heapq.heapify(self._heap)

    def _known_parts(self, piece: str) -> Iterable[str]:
        return [piece] if piece in self._scores else piece  # unknown characters one by one

    def _count(self, row: int, sign: int) -> None:
        """Add (or take away) the neighbours in one word to the counts."""
        pieces = self._rows[row]
        for pair in itertools.pairwise(pieces):
            self._pairs[pair] += sign * self._counts[row]
            if sign > 0:
                self._where[pair].add(row)

    def pieces(self, number: int, *, is_bpe: bool) -> list[NewPiece]:
        """Return at most `number` joined pieces; fewer where no neighbours are frequent enough."""
        found = list[NewPiece]()
        total = sum(count * len(row) for count, row in zip(self._counts, self._rows, strict=True))
        lowest = min(self._scores.values(), default=0.0)
        while len(found) < number and (pair := self._next()) is not None:
            text, count = "".join(pair), self._pairs[pair]
            if text not in self._scores and text not in self._unused:
                of_parts = sum(self._scores.get(part, lowest) for part in pair) + GAIN
                likely = max(math.log(count / total), of_parts)
                self._scores[text] = lowest - 1.0 - len(found) if is_bpe else min(likely, 0.0)
                found.append(NewPiece(text, self._scores[text]))
            self._join(pair)
        return found

    def _next(self) -> tuple[str, str] | None:
        """Return the most frequent neighbours that may be joined, or None."""
        while self._heap:
            count, pair = heapq.heappop(self._heap)
            if self._pairs[pair] == -count and -count >= LEAST_COUNT and _may_be_joined("".join(pair)):
                return pair
        return None

    def _join(self, pair: tuple[str, str]) -> None:
        touched = set[tuple[str, str]]()
        for row in sorted(self._where.pop(pair)):
            self._count(row, -1)
            old = self._rows[row]
            touched.update(itertools.pairwise(old))
            self._rows[row] = list(_joined(old, pair))
            self._count(row, 1)
            touched.update(itertools.pairwise(self._rows[row]))
        for other in touched:
            heapq.heappush(self._heap, (-self._pairs[other], other))


def _joined(pieces: Sequence[str], pair: tuple[str, str]) -> Iterator[str]:
    place = 0
    while place < len(pieces):
        size = 2 if tuple(pieces[place : place + 2]) == pair else 1
        yield "".join(pieces[place : place + size])
        place += size


def _may_be_joined(text: str) -> bool:
    """Return whether a piece is short enough, and of letters (with their marks) or digits alone."""
    kinds = {unicodedata.category(character)[0] for character in text.removeprefix(SPACE)}
    return len(text) <= LONGEST and bool(kinds) and (kinds <= {"L", "M"} or kinds <= {"N"})


def _packed(piece: NewPiece) -> bytes:
    """Return a piece as SentencePiece stores it in a model: field 1, with its text, score and type."""
    text = piece.text.encode()
    body = b"\x0a" + _integer(len(text)) + text + b"\x15" + struct.pack("<f", piece.score)
    body += b"\x18" + _integer(piece.kind)
    return b"\x0a" + _integer(len(body)) + body


def _integer(value: int) -> bytes:
    """Return a number as protobuf writes it: seven bits in each byte, the lowest first."""
    more = [value >> 7 * i & 127 | 128 for i in range(max(value.bit_length() - 1, 0) // 7)]
    return bytes([*more, value >> 7 * len(more)])


def origins(old: bytes, new: bytes) -> Origins:
    """Return from which pieces of model `old` each piece of model `new` begins."""
    models = [piece_model(model) for model in (old, new)]
    before, after = (model.spellings(range(model.size)) for model in models)
    ids = {text: i for i, text in enumerate(before)}
    if any(model.startswith(b"{") for model in (old, new)):
        return _origins_by_text(models[0], ids, after)
    known, symbols = Pieces(old), Pieces(new).symbols
    found: Origins = list(range(EOS_ID + 1))
    for text in after[EOS_ID + 1 :]:
        if text in ids:
            found.append(ids[text])
        elif text in symbols:
            found.append(sorted(known.symbols.values()))
        else:
            found.append(_split(text, known))
    return found


def _origins_by_text(old: PieceModel, ids: dict[str, int], after: Sequence[str]) -> Origins:
    """Return the origins of spellings where one of the models is not of SentencePiece.

    What has no piece of its own begins from the pieces of its text, as the old model splits it.
    """
    found: Origins = list(range(EOS_ID + 1))
    encoded = old.encode([text.replace(SPACE, " ").strip() for text in after])
    for text, parts in list(zip(after, encoded, strict=True))[EOS_ID + 1 :]:
        found.append(ids[text] if text in ids else [token for token in parts[:-1] if token != UNK_ID])
    return found


def _split(text: str, known: Pieces) -> list[int]:
    """Return the ids of the fewest pieces that `text` can be split into, of these the most probable."""
    best: list[tuple[int, float, list[int]]] = [(0, 0.0, [])]
    pieces = known.ids | known.unused
    for end in range(1, len(text) + 1):
        ways = list[tuple[int, float, list[int]]]()
        for start in range(max(0, end - known.longest), end):
            part, (size, loss, ids) = text[start:end], best[start]
            if part in pieces:
                ways.append((size + 1, loss - known.scores.get(part, -math.inf), [*ids, pieces[part]]))
            elif end - start == 1:  # a character without a piece; its bytes, if the model has them
                spelt = [token for token in known.spelt(part) if token != UNK_ID]
                ways.append((size + 2, loss, [*ids, *spelt]))
        best.append(min(ways))
    return best[-1][2]


@dataclass
class Coverage:
    """The pieces that a side of a text takes, and what the vocabulary lacks."""

    words: int
    pieces: int
    unknown: int

    @property
    def per_word(self) -> float:
        """Pieces for one word, as white space separates words."""
        return self.pieces / max(self.words, 1)

    @property
    def unknown_share(self) -> float:
        """Share of the pieces that are unknown."""
        return self.unknown / max(self.pieces, 1)


def coverage(tokenizer: Tokenizer, text: ParallelText) -> tuple[Coverage, Coverage]:
    """Return the coverage of both sides of `text`, the source first; EOS is not counted."""
    src, tgt = tokenizer.encode_src(text.src), tokenizer.encode_tgt(text.tgt)
    pieces = [[i % tokenizer.src_vocab_size for i in ids] for ids in src]  # without the values of factors
    return _coverage(text.src, pieces), _coverage(text.tgt, tgt)


def _coverage(lines: Sequence[str], encoded: Sequence[Sequence[int]]) -> Coverage:
    return Coverage(
        words=sum(len(line.split()) for line in lines),
        pieces=sum(len(ids) - 1 for ids in encoded),
        unknown=sum(ids.count(UNK_ID) for ids in encoded),
    )
