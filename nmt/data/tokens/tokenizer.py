"""Text to ids and ids to text, by models that are trained on the pairs of a run, or ready (tokenizer.path).

Both sides end with EOS; nothing else is added here (see `nmt.data.special_ids`). With
`tokenizer.right_to_left` the target ids are those of the line from its last piece to its first, and then EOS:
all ids and pieces of the target are in this order, the order of the model, and only text is turned back.

A tag in front of a source asks for a target language (`nmt.data.reading.mixture`). With `tokenizer.tag_side`
it is the first id of the target, too, or instead: a target is then encoded together with its source.

A line is prepared first, in training and at every use alike: lower-cased and freed of punctuation if the
config says so. Then the model normalises the line and splits it into pieces. Scoring never prepares a
line: translations are compared with references as they were read.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from nmt.data.encoded_pairs import RaggedIds
from nmt.data.parallel_text import ParallelText, one_line
from nmt.data.reading.mixture import TAG, split_tag, untagged
from nmt.data.special_ids import EOS_ID, UNK_ID
from nmt.data.text import casing, source_factors
from nmt.data.tokens.label_set import label_model, named, spelt
from nmt.data.tokens.piece_models import BOS as BOS
from nmt.data.tokens.piece_models import EOS as EOS
from nmt.data.tokens.piece_models import Piece as Piece
from nmt.data.tokens.piece_models import PieceModel, piece_model
from nmt.data.tokens.ready_tokenizers import ready_models, require_fit
from nmt.data.tokens.subword_sampling import SubwordSampler
from nmt.data.tokens.tokenizer_training import (
    SPACE,
    Case,
    TagSide,
    TokenizerConfig,
    TokenizerKind,
    moses_versions,
    prepare_lines,
    punctuated,
    train_model,
)
from nmt.errors import UserError
from nmt.files import write_atomically

_T = TypeVar("_T")

JOINT_FILE = "tokenizer.model"
SRC_FILE, TGT_FILE = "tokenizer.src.model", "tokenizer.tgt.model"

PART_LINES = 2048
"""Lines that a thread encodes at a time."""


class Tokenizer:
    """A pair of models: text to ids on either side, ids to text on the target side."""

    def __init__(self, cfg: TokenizerConfig, src_model: bytes, tgt_model: bytes):
        self.cfg = cfg
        self.src_model = src_model
        self.tgt_model = tgt_model
        self._src = piece_model(src_model)
        self._tgt = self._src if tgt_model == src_model else piece_model(tgt_model)
        if cfg.path:
            require_fit(cfg, self.kinds[:1] if cfg.labels or not cfg.tgt_path else self.kinds)
        self._src_tag = _tag(self._src, cfg.src_tag, "src_tag")
        self._tgt_tag = None if cfg.labels else _tag(self._tgt, cfg.tgt_tag, "tgt_tag")
        self.labels: list[str] = []  # those of a classifier, in the order of their ids
        if cfg.labels:
            pieces = self.tgt_spellings(range(EOS_ID + 1, self.tgt_vocab_size))
            self.labels = [piece.removeprefix(SPACE) for piece in pieces]
        self._samplers: dict[tuple[bytes, float], SubwordSampler] = {}
        self._language_tags: dict[str, Piece] = {}  # as `prepare_lines` leaves them, in front of targets
        if cfg.tag_side is not TagSide.source:
            texts = self.tgt_spellings(range(self.tgt_vocab_size))
            found = {text.removeprefix(SPACE): Piece(i, text, "") for i, text in enumerate(texts)}
            self._language_tags = {tag: piece for tag, piece in found.items() if TAG.fullmatch(tag)}

    @classmethod
    def train(cls, cfg: TokenizerConfig, text: ParallelText, tags: Sequence[str] = ()) -> Tokenizer:
        """Train on both sides of `text`; each of `tags` is a piece of each side that has it.

        With `cfg.path` the tokenizer is ready, and learns the labels of a classifier alone.
        """
        if cfg.path:
            src_model, tgt_model = ready_models(cfg, tags)
            return cls(cfg, src_model, label_model(sorted({*text.tgt})) if cfg.labels else tgt_model)
        src, tgt = punctuated(text.src, cfg.moses_src), punctuated(text.tgt, cfg.moses_tgt)
        if cfg.tells_case:
            src = list(map(source_factors.small, src))
        if cfg.labels:
            return cls(cfg, train_model(cfg, src, "this corpus", tags), label_model(sorted({*text.tgt})))
        if cfg.joint:
            model = train_model(cfg, src + tgt, "this corpus", tags)
            return cls(cfg, model, model)
        src_model = train_model(cfg, src, "the source side of this corpus", tags)
        told = cfg.tag_side is not TagSide.source
        spoken = [tag for tag in tags if (told and TAG.fullmatch(tag)) or _is_in(tag, tgt)]
        tgt += dict.fromkeys(filter(None, (split_tag(line)[0] for line in text.src * told)))
        return cls(cfg, src_model, train_model(cfg, tgt, "the target side of this corpus", spoken))

    @classmethod
    def exists(cls, directory: Path) -> bool:
        """Return whether `directory` holds all files of a tokenizer."""
        return _files(directory) is not None

    @classmethod
    def load(cls, cfg: TokenizerConfig, directory: Path) -> Tokenizer:
        """Read the files that `save` wrote; raise `UserError` when they are missing or damaged.

        `cfg` is the config of the training: the files hold the pieces, not how a line is prepared.
        """
        files = _files(directory)
        if files is None:
            raise UserError(
                f"{directory} has no tokenizer: neither {JOINT_FILE} nor both {SRC_FILE} and {TGT_FILE}"
            )
        src_model, tgt_model = (_read_model(path) for path in files)
        return cls(cfg, src_model, tgt_model)

    def save(self, directory: Path) -> None:
        """Write one model file, or one for each side; a file is written whole or not at all."""
        models = {JOINT_FILE: self.src_model}
        if self.tgt_model != self.src_model:
            models = {SRC_FILE: self.src_model, TGT_FILE: self.tgt_model}
        for name, model in models.items():
            write_atomically(directory / name, model)

    @property
    def kinds(self) -> tuple[TokenizerKind | None, TokenizerKind | None]:
        """How the models of source and target segment; None for tokenizers of the library `tokenizers`."""
        return self._src.kind, self._tgt.kind

    @property
    def src_vocab_size(self) -> int:
        """Pieces of the source side."""
        return self._src.size

    @property
    def num_src_ids(self) -> int:
        """Ids of the source side: those of pieces, times the values of the factors."""
        return source_factors.num_ids(self.src_vocab_size, self.cfg.source_factors)

    @property
    def tgt_vocab_size(self) -> int:
        """Pieces of the target side."""
        return self._tgt.size

    @functools.cached_property
    def tgt_byte_ids(self) -> frozenset[int]:
        """The target ids of bytes, with which any text can be spelt; none without tokenizer.byte_fallback."""
        return frozenset(self._tgt.byte_ids())

    @property
    def src_start(self) -> list[int]:
        """The id in front of every source, if there is one."""
        return [self._src_tag.id] if self._src_tag else []

    def tgt_start(self, src: str) -> list[int]:
        """Return the id in front of every target of a source line, if there is one."""
        return [piece.id for piece in self._tgt_tags(src)]

    def _tgt_tags(self, src: str) -> list[Piece]:
        if not self._language_tags:
            return _tagged(self._tgt_tag)
        tag, _ = split_tag(src)
        if not tag:
            return []
        (spelling,) = prepare_lines(self.cfg, [tag])
        if spelling not in self._language_tags:
            raise UserError(
                f"tokenizer.tag_side={self.cfg.tag_side.value}: the tag {tag} is not in the vocabulary "
                "of the run"
            )
        return [self._language_tags[spelling]]

    @property
    def versions(self) -> str:
        """The versions of the libraries on which the ids of a text depend."""
        return " ".join(dict.fromkeys([self._src.version, self._tgt.version, *moses_versions(self.cfg)]))

    def tgt_ids_of(self, spellings: Sequence[str]) -> list[int]:
        """Return the target ids of pieces that are given by their spellings, `UNK_ID` for none."""
        return list(map(self._tgt.id_of, spellings))

    @property
    def fingerprint(self) -> str:
        """A hash of models and settings: two tokenizers are the same if their fingerprints are."""
        return self._fingerprint(self.cfg.source_factors)

    @property
    def fingerprint_without_factors(self) -> str:
        """As `fingerprint`, but for the factors of sources, which a language model does not read."""
        return self._fingerprint([])

    def _fingerprint(self, factors: Sequence[str]) -> str:
        cfg = self.cfg
        order: list[object] = [
            name for name in ("right_to_left", "labels") if getattr(cfg, name)
        ]  # absent if without effect
        order += [("case", cfg.case.value)] if cfg.case is not Case.keep else []
        order += [("moses", cfg.moses_src, cfg.moses_tgt)] if cfg.moses_src or cfg.moses_tgt else []
        order += [("symbols", *cfg.symbols)] if cfg.symbols else []
        tags: tuple[str, ...] = (cfg.src_tag, cfg.tgt_tag) if cfg.src_tag or cfg.tgt_tag else ()
        if cfg.tag_side is not TagSide.source:
            tags += (cfg.tag_side.value,)
        if factors:
            tags += ("factors", *factors)
        kind = self.kinds[0] or cfg.kind
        settings = repr((kind, cfg.lowercase, cfg.strip_punctuation, *order, *tags)).encode()
        digests = (hashlib.sha256(part).digest() for part in (self.src_model, self.tgt_model, settings))
        return hashlib.sha256(b"".join(digests)).hexdigest()

    def encode_src(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of source lines, each ending with `EOS_ID`."""
        return [[*self.src_start, *ids] for ids in self._encode_sources(self._of_src(lines))]

    def encode_tgt(self, lines: Sequence[str], sources: Sequence[str] | None = None) -> list[list[int]]:
        """Return the ids of target lines, each ending with `EOS_ID`; the id of a label is alone.

        The `sources` of the lines say which tags are in front of them.

        Raises:
            UserError: a line should be a label, and is none.
        """
        if self.cfg.labels:
            return [[self._label_id(line)] for line in lines]
        starts = [self.tgt_start(src) for src in sources or [""] * len(lines)]
        encoded = zip(starts, self._encode(self._tgt, self._of_tgt(lines)), strict=True)
        return [[*start, *self._turned(ids)] for start, ids in encoded]

    def flat_src(self, lines: Sequence[str]) -> RaggedIds:
        """Return the ids of `encode_src` as arrays."""
        return _after(self.src_start, _flat(self._encode_sources, self._of_src(lines)))

    def flat_tgt(self, lines: Sequence[str], sources: Sequence[str] | None = None) -> RaggedIds:
        """Return the ids of `encode_tgt` as arrays."""
        if self.cfg.labels:
            return RaggedIds.of(self.encode_tgt(lines))
        flat = _flat(functools.partial(self._encode, self._tgt), self._of_tgt(lines))
        return self._begun(flat, sources)

    def _begun(self, targets: RaggedIds, sources: Sequence[str] | None) -> RaggedIds:
        """Return targets in the order of the model, behind their tags."""
        turned = self._all_turned(targets)
        if not self._language_tags or sources is None:
            return _after(self.tgt_start(""), turned)
        return turned.behind([next(iter(self.tgt_start(src)), None) for src in sources])

    def sample_src(self, lines: Sequence[str], *, alpha: float, seed: int, first: int = 0) -> RaggedIds:
        """Return the ids of source lines, from line number `first` on, in sampled segmentations.

        The ids of a line are a pure function of the line, its number, the seed and alpha.
        """
        sampler = self._sampler(self.src_model, alpha)
        ready = prepare_lines(self.cfg, self._of_src(lines))
        sampled = sampler.sample(ready, seed=seed, first=first)
        if self.cfg.source_factors:
            sampled = RaggedIds.of([self._told(ids.tolist()) for ids in sampled.take(range(len(lines)))])
        return _after(self.src_start, sampled)

    def sample_tgt(
        self,
        lines: Sequence[str],
        sources: Sequence[str] | None = None,
        *,
        alpha: float,
        seed: int,
        first: int = 0,
    ) -> RaggedIds:
        """Return the ids of target lines, sampled as those of `sample_src`; labels are not sampled."""
        if self.cfg.labels:
            return self.flat_tgt(lines)
        sampled = self._sampler(self.tgt_model, alpha).sample(
            prepare_lines(self.cfg, self._of_tgt(lines)), seed=seed, first=first
        )
        return self._begun(sampled, sources)

    def src_pieces(self, lines: Sequence[str]) -> list[list[Piece]]:
        """Return the tokens of source lines, with the ids of `encode_src`."""
        read = self._of_src(lines)
        found = self._factored(read) if self.cfg.source_factors else self._pieces(self._src, read)
        return [[*_tagged(self._src_tag), *pieces] for pieces in found]

    def tgt_pieces(self, lines: Sequence[str], sources: Sequence[str] | None = None) -> list[list[Piece]]:
        """Return the tokens of target lines, with the ids of `encode_tgt`."""
        if self.cfg.labels:
            return [[Piece(self._label_id(line), line, line)] for line in lines]
        tags = [self._tgt_tags(src) for src in sources or [""] * len(lines)]
        found = zip(tags, self._pieces(self._tgt, self._of_tgt(lines)), strict=True)
        return [[*tag, *self._turned(pieces)] for tag, pieces in found]

    def src_spellings(self, ids: Sequence[int]) -> list[str]:
        """Return the spelling of source ids in the vocabulary, as `tgt_spellings` does of target ids."""
        return self._src.spellings(ids)

    def tgt_spellings(self, ids: Sequence[int]) -> list[str]:
        """Return the spelling of target ids in the vocabulary, in their order: `Piece.text`."""
        return self._tgt.spellings(ids)

    def decoded_pieces(self, ids: Sequence[int]) -> list[Piece]:
        """Return the tokens of a translation and EOS; `ids` are those of `decode`."""
        found = self._tgt.decoded_pieces(self._in_text_order(ids))
        return [*self._own_tag(ids), *self._turned(self._with_case(found))]

    def decode(self, ids: Sequence[int]) -> str:
        """Return one line of target text, without special ids and tags, and with " ⁇ " for unknown pieces."""
        tags = {tag.id for tag in self._language_tags.values()}  # wherever an untrained model puts them
        kept = [token for token in self._in_text_order(ids) if token not in tags]
        return self.in_case(one_line(self._tgt.decode(kept)))

    def in_case(self, text: str) -> str:
        """Return text of pieces with the capitals that marks among the pieces ask for."""
        return casing.restored(text) if self.cfg.case is Case.markup else text

    def _with_case(self, pieces: list[Piece]) -> list[Piece]:
        """Return the pieces of a line with the capitals of the line in their surfaces."""
        if self.cfg.case is Case.keep:
            return pieces
        surfaces = casing.restored_parts([piece.surface for piece in pieces])
        return [piece._replace(surface=part) for piece, part in zip(pieces, surfaces, strict=True)]

    def _label_id(self, label: str) -> int:
        found = self._tgt.id_of(spelt(label))
        if found == UNK_ID:
            raise UserError(f"{label!r} is no label of the training; these are {named(self.labels)}")
        return found

    def with_labels(self, cfg: TokenizerConfig, labels: Sequence[str]) -> Tokenizer:
        """Return this tokenizer of sources, with `labels` as its targets."""
        return Tokenizer(cfg, self.src_model, label_model(labels))

    def _in_text_order(self, ids: Sequence[int]) -> list[int]:
        found = [int(token) for token in ids][len(self._own_tag(ids)) :]
        return found[::-1] if self.cfg.right_to_left else found

    def own_start(self, ids: Sequence[int]) -> list[int]:
        """Return the id of the tag that the ids of a target begin with, if it has one."""
        return [tag.id for tag in self._own_tag(ids)]

    def _own_tag(self, ids: Sequence[int]) -> list[Piece]:
        """Return the tag that a translation begins with; that of a blank line begins with none."""
        tags = [*_tagged(self._tgt_tag), *self._language_tags.values()]
        return [tag for tag in tags if len(ids) > 0 and ids[0] == tag.id]

    def _turned(self, ended: Sequence[_T]) -> list[_T]:
        """Return tokens of the target, EOS the last, in the order of the model, given that of the text."""
        return [*reversed(ended[:-1]), ended[-1]] if self.cfg.right_to_left else list(ended)

    def _all_turned(self, sentences: RaggedIds) -> RaggedIds:
        return sentences.turned() if self.cfg.right_to_left else sentences

    def _of_src(self, lines: Sequence[str]) -> list[str]:
        """Return source lines as the source side has them: without the tags that the target alone has."""
        read = untagged(lines) if self.cfg.tag_side is TagSide.target else lines
        return punctuated(list(read), self.cfg.moses_src)

    def _of_tgt(self, lines: Sequence[str]) -> list[str]:
        return punctuated(lines, self.cfg.moses_tgt)

    def _encode(self, model: PieceModel, lines: Sequence[str]) -> list[list[int]]:
        return model.encode(prepare_lines(self.cfg, lines))

    def _encode_sources(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of source lines, with the values of their factors, where there are some."""
        if self.cfg.tells_case:
            return [[piece.id for piece in pieces] for pieces in self._factored(lines)]
        found = self._encode(self._src, lines)
        return [self._told(ids) for ids in found] if self.cfg.source_factors else found

    def _factored(self, lines: Sequence[str]) -> list[list[Piece]]:
        """Return the pieces of source lines, EOS the last, whose ids hold the values of their factors."""
        if not self.cfg.tells_case:
            found = self._pieces(self._src, lines)
            return [self._with_values(pieces, [piece.surface for piece in pieces]) for pieces in found]
        cfg = replace(self.cfg, lowercase=False)
        read = prepare_lines(cfg, lines)
        found = self._pieces(self._src, list(map(source_factors.small, read)))
        texts = self._pieces(self._src, read) if self.kinds[0] is TokenizerKind.word else []
        if texts:  # words are those of the normalised line
            own = [[piece.surface for piece in words] for words in texts]
        else:
            own = [
                source_factors.texts_of(line, [piece.surface for piece in pieces])
                for line, pieces in zip(read, found, strict=True)
            ]
        return [self._with_values(*both) for both in zip(found, own, strict=True)]

    def _with_values(self, pieces: Sequence[Piece], texts: Sequence[str]) -> list[Piece]:
        """Return the pieces of a line, EOS the last, with the values of their factors."""
        ids, spellings = [piece.id for piece in pieces[:-1]], [piece.text for piece in pieces[:-1]]
        factors = self.cfg.source_factors
        found = source_factors.packed(ids, spellings, texts[: len(ids)], factors, self.src_vocab_size)
        return [*(piece._replace(id=i) for piece, i in zip(pieces, found, strict=False)), pieces[-1]]

    def _told(self, ids: Sequence[int]) -> list[int]:
        """Return the ids of a source, EOS the last, with the factors that the spellings of pieces tell."""
        pieces, factors = ids[:-1], self.cfg.source_factors
        spellings = self._src.spellings(pieces)
        packed = source_factors.packed(pieces, spellings, spellings, factors, self.src_vocab_size)
        return [*packed, ids[-1]]

    def _sampler(self, model: bytes, alpha: float) -> SubwordSampler:
        """Return the sampler of a model, which keeps what it knows of words for the next epoch."""
        if (model, alpha) not in self._samplers:
            self._samplers[model, alpha] = SubwordSampler(model, alpha)
        return self._samplers[model, alpha]

    def _pieces(self, model: PieceModel, lines: Sequence[str]) -> list[list[Piece]]:
        return [self._with_case(pieces) for pieces in model.pieces(prepare_lines(self.cfg, lines))]


def _files(directory: Path) -> tuple[Path, Path] | None:
    for src, tgt in ((JOINT_FILE, JOINT_FILE), (SRC_FILE, TGT_FILE)):
        if (directory / src).is_file() and (directory / tgt).is_file():
            return directory / src, directory / tgt
    return None


def _read_model(path: Path) -> bytes:
    """Return the bytes of a model file, once its library accepts them and the special ids are ours."""
    try:
        model = path.read_bytes()
        piece_model(model)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except UserError as error:
        raise UserError(f"{path} {error}") from error
    return model


def _tag(model: PieceModel, spelling: str, key: str) -> Piece | None:
    """Return the piece in front of every line; raise `UserError` if the model has none of this spelling."""
    if not spelling:
        return None
    number = model.id_of(spelling)
    if number == UNK_ID:
        raise UserError(f"tokenizer.{key}={spelling} is not in the vocabulary of the run")
    return Piece(number, spelling, "")


def _flat(encode: Callable[[Sequence[str]], list[list[int]]], lines: Sequence[str]) -> RaggedIds:
    """Encode in threads that also make the arrays: the libraries compute without Python's lock."""
    parts = [lines[start : start + PART_LINES] for start in range(0, len(lines), PART_LINES)]
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        encoded = list(threads.map(lambda part: RaggedIds.of(encode(part)), parts))
    encoded.append(RaggedIds.of([]))  # np.concatenate needs an array
    ids, lengths = [part.ids for part in encoded], [part.lengths for part in encoded]
    return RaggedIds(np.concatenate(ids), np.concatenate(lengths))


def _is_in(text: str, lines: Sequence[str]) -> bool:
    return any(text in line for line in lines)


def _tagged(tag: Piece | None) -> list[Piece]:
    return [] if tag is None else [tag]


def _after(start: Sequence[int], sentences: RaggedIds) -> RaggedIds:
    return sentences.after(start[0]) if start else sentences
