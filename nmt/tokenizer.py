"""SentencePiece: trained on the training pairs of a run, then text to ids and ids to text.

Sole owner of the special ids: nothing else says which id ends a sentence, and nothing else adds it. Training
is deterministic: the same pairs and config give the same model bytes. What SentencePiece complains about is
restated with the config key to change; its own log stays silent.

A line is prepared first, in training and at every use alike: lower-cased and freed of punctuation when the
config says so. Then SentencePiece normalises it and cuts it into pieces. What is scored is never prepared:
translations are compared with references as they were read.

SentencePiece: Kudo and Richardson 2018. Unigram model and subword regularisation: Kudo 2018. BPE: Sennrich et
al. 2016; BPE-dropout: Provilkov et al. 2020.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import random
import re
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import sentencepiece

from nmt.errors import UserError
from nmt.files import write_atomically
from nmt.pairs import ParallelText, one_line
from nmt.preparation import prepare
from nmt.runtime import derive_seed

PAD_ID, UNK_ID, BOS_ID, EOS_ID = 0, 1, 2, 3

JOINT_FILE = "tokenizer.model"
SRC_FILE, TGT_FILE = "tokenizer.src.model", "tokenizer.tgt.model"

MAX_TRAINING_PAIRS = 1_000_000
"""A larger corpus is sampled: more text costs memory and hardly changes the pieces."""
TRAINING_THREADS = 8
"""Fixed, because sums over threads are rounded differently for different numbers of them."""
SAMPLING_THREADS = 8
SAMPLING_LINES = 4096
"""Lines that one thread samples; fixed like the number of threads, since the result depends on both."""
MAX_UINT32 = 2**32 - 1
"""SentencePiece takes this seed to mean: any."""
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""What SentencePiece writes for a space, and in front of a line."""
RESERVED = "\N{LOWER FIVE EIGHTHS BLOCK}"
"""What SentencePiece writes for a rare character; it trains on no line that has it."""


class TokenizerKind(Enum):
    """What a piece is."""

    unigram = "unigram"
    bpe = "bpe"
    char = "char"
    word = "word"


COUNTED = (TokenizerKind.word, TokenizerKind.char)
"""Kinds whose pieces are simply the most frequent words or characters."""


class Normalization(Enum):
    """What is made equal before tokenising; all but identity also fold the many kinds of white space."""

    nmt_nfkc = "nmt_nfkc"
    nfkc = "nfkc"
    nmt_nfkc_cf = "nmt_nfkc_cf"
    nfkc_cf = "nfkc_cf"
    identity = "identity"


@dataclass
class TokenizerConfig:
    """The SentencePiece model of a run."""

    kind: TokenizerKind = TokenizerKind.unigram
    """unigram, bpe, char or word."""
    vocab_size: int = 8000
    """Pieces, special ones included; for word and char an upper bound."""
    min_frequency: int = 1
    """Words (characters, for char) that the training text has less often get no piece and are unknown."""
    joint: bool = True
    """One model for both languages, or one for each."""
    byte_fallback: bool = False
    """Spell unknown characters as bytes, so that nothing is unknown; takes 256 pieces."""
    character_coverage: float = 1.0
    """Share of the characters of the corpus that get a piece; rarer ones are unknown, or spelt as bytes."""
    normalization: Normalization = Normalization.nmt_nfkc
    """Unicode normalisation; _cf folds case."""
    lowercase: bool = False
    """Lower-case both sides before normalisation; keeps ß, where _cf makes it ss."""
    strip_punctuation: bool = False
    """Take the punctuation out of both sides before normalisation: apostrophes vanish, other marks become
    spaces."""
    sampling_alpha: float = 0.0
    """Above 0, another segmentation is drawn each epoch: for unigram with its probability to the power of
    alpha (0.1 is usual), for bpe with each merge left out with probability alpha (0.1 is usual)."""

    def __post_init__(self) -> None:
        if self.vocab_size <= EOS_ID + 1:
            raise UserError(f"tokenizer.vocab_size must be at least {EOS_ID + 2}, but is {self.vocab_size}")
        if not 0.98 <= self.character_coverage <= 1.0:
            raise UserError(
                f"tokenizer.character_coverage must be in [0.98, 1], but is {self.character_coverage}"
            )
        if not 0.0 <= self.sampling_alpha <= 1.0:
            raise UserError(f"tokenizer.sampling_alpha must be in [0, 1], but is {self.sampling_alpha}")
        if self.sampling_alpha and self.kind not in (TokenizerKind.unigram, TokenizerKind.bpe):
            raise UserError(
                f"tokenizer.sampling_alpha={self.sampling_alpha} needs tokenizer.kind=unigram or bpe: "
                f"{self.kind.value} has one segmentation only"
            )
        if self.byte_fallback and self.kind is TokenizerKind.word:
            raise UserError("tokenizer.byte_fallback=true needs another tokenizer.kind than word")
        self._check_min_frequency()

    def _check_min_frequency(self) -> None:
        if self.min_frequency < 1:
            raise UserError(f"tokenizer.min_frequency must be at least 1, but is {self.min_frequency}")
        if self.min_frequency == 1:
            return
        key = f"tokenizer.min_frequency={self.min_frequency}"
        if self.kind not in COUNTED:
            raise UserError(
                f"{key} needs tokenizer.kind=word or char: the pieces of {self.kind.value} are not counted; "
                "lower tokenizer.vocab_size instead"
            )
        if self.kind is TokenizerKind.word and self.character_coverage < 1.0:
            raise UserError(
                f"{key} needs tokenizer.character_coverage=1 with tokenizer.kind=word, "
                f"but it is {self.character_coverage}: both would say which words are too rare"
            )


class Piece(NamedTuple):
    """A token as people read it."""

    id: int
    text: str
    """As the vocabulary spells it: ▁ is the space before a word, and `<unk>`, `<s>`, `</s>` are special."""
    surface: str
    """What it stands for in its line; the surfaces of a line make up the line. Nothing for `<s>`, `</s>`."""


BOS, EOS = Piece(BOS_ID, "<s>", ""), Piece(EOS_ID, "</s>", "")


class Tokenizer:
    """Text to ids on either side, and ids to text on the target side."""

    def __init__(self, cfg: TokenizerConfig, src_model: bytes, tgt_model: bytes):
        self.cfg = cfg
        self.src_model = src_model
        self.tgt_model = tgt_model
        self._src = sentencepiece.SentencePieceProcessor(model_proto=src_model)
        self._tgt = self._src
        if tgt_model != src_model:
            self._tgt = sentencepiece.SentencePieceProcessor(model_proto=tgt_model)

    @classmethod
    def train(cls, cfg: TokenizerConfig, text: ParallelText, *, seed: int) -> Tokenizer:
        """Train on both sides of `text`; `seed` picks the pairs of a corpus too large to be used whole."""
        picked = _pick(text, seed)
        if cfg.joint:
            model = _train_model(cfg, picked.src + picked.tgt, "this corpus")
            return cls(cfg, model, model)
        src_model = _train_model(cfg, picked.src, "the source side of this corpus")
        return cls(cfg, src_model, _train_model(cfg, picked.tgt, "the target side of this corpus"))

    @classmethod
    def exists(cls, directory: Path) -> bool:
        """Whether `directory` holds a whole tokenizer."""
        return _files(directory) is not None

    @classmethod
    def load(cls, cfg: TokenizerConfig, directory: Path) -> Tokenizer:
        """Read what `save` wrote; raise `UserError` when it is missing or damaged.

        `cfg` is that of the training; the files hold the pieces, not how a line is prepared.
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
    def src_vocab_size(self) -> int:
        """Pieces of the source side."""
        return int(self._src.get_piece_size())

    @property
    def tgt_vocab_size(self) -> int:
        """Pieces of the target side."""
        return int(self._tgt.get_piece_size())

    @property
    def fingerprint(self) -> str:
        """What two tokenizers have in common only if they are the same: a hash of models and settings."""
        settings = repr((self.cfg.kind, self.cfg.lowercase, self.cfg.strip_punctuation)).encode()
        digests = (hashlib.sha256(part).digest() for part in (self.src_model, self.tgt_model, settings))
        return hashlib.sha256(b"".join(digests)).hexdigest()

    def encode_src(self, lines: Sequence[str]) -> list[list[int]]:
        """The ids of source lines, each ending with `EOS_ID`."""
        return self._encode(self._src, lines)

    def encode_tgt(self, lines: Sequence[str]) -> list[list[int]]:
        """The ids of target lines, each ending with `EOS_ID`."""
        return self._encode(self._tgt, lines)

    def sample_src(self, lines: Sequence[str], *, alpha: float, seed: int) -> list[list[int]]:
        """Like `encode_src` with a segmentation drawn at random, a pure function of the arguments."""
        return _sample(self._src, _prepared(self.cfg, lines), alpha, seed)

    def sample_tgt(self, lines: Sequence[str], *, alpha: float, seed: int) -> list[list[int]]:
        """Like `encode_tgt` with a segmentation drawn at random, a pure function of the arguments."""
        return _sample(self._tgt, _prepared(self.cfg, lines), alpha, seed)

    def src_pieces(self, lines: Sequence[str]) -> list[list[Piece]]:
        """The tokens of source lines, as `encode_src` makes them."""
        return [_pieces(line) for line in self._src.encode(list(lines), return_type="proto")]

    def tgt_pieces(self, lines: Sequence[str]) -> list[list[Piece]]:
        """The tokens of target lines, as `encode_tgt` makes them."""
        return [_pieces(line) for line in self._tgt.encode(list(lines), return_type="proto")]

    def decoded_pieces(self, ids: Sequence[int]) -> list[Piece]:
        """The tokens of a translation and the end of it; `ids` are what `decode` takes."""
        return _pieces(self._tgt.decode([int(token) for token in ids], return_type="proto"))

    def decode(self, ids: Sequence[int]) -> str:
        """One line of target text; special ids are dropped, except that an unknown piece shows as " ⁇ "."""
        return one_line(self._tgt.decode([int(token) for token in ids]))

    def _encode(self, processor: Any, lines: Sequence[str]) -> list[list[int]]:
        encode = _encode_words if self.cfg.kind is TokenizerKind.word else _encode
        return encode(processor, _prepared(self.cfg, lines))


def _prepared(cfg: TokenizerConfig, lines: Sequence[str]) -> list[str]:
    return prepare(lines, lowercase=cfg.lowercase, strip_punctuation=cfg.strip_punctuation)


def _files(directory: Path) -> tuple[Path, Path] | None:
    for src, tgt in ((JOINT_FILE, JOINT_FILE), (SRC_FILE, TGT_FILE)):
        if (directory / src).is_file() and (directory / tgt).is_file():
            return directory / src, directory / tgt
    return None


def _read_model(path: Path) -> bytes:
    """The bytes of a model file, once SentencePiece has accepted them and its special ids are ours."""
    try:
        model = path.read_bytes()
        processor = sentencepiece.SentencePieceProcessor()
        processor.load_from_serialized_proto(model)
    except (OSError, RuntimeError) as error:
        raise UserError(f"{path} is not a readable SentencePiece model: {error}") from error
    found = processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id()
    if found != (PAD_ID, UNK_ID, BOS_ID, EOS_ID):
        raise UserError(
            f"{path} has the ids {found} for padding, unknown, begin and end, but they must be "
            f"{(PAD_ID, UNK_ID, BOS_ID, EOS_ID)}; use a model that nmt has trained"
        )
    return model


def _pick(text: ParallelText, seed: int) -> ParallelText:
    if len(text) <= MAX_TRAINING_PAIRS:
        return text
    rows = sorted(random.Random(seed).sample(range(len(text)), MAX_TRAINING_PAIRS))
    return ParallelText([text.src[row] for row in rows], [text.tgt[row] for row in rows])


def _train_model(cfg: TokenizerConfig, lines: list[str], corpus: str) -> bytes:
    """The bytes of one SentencePiece model; `corpus` is what an error calls the lines."""
    lines = [line.replace(RESERVED, " ") for line in _prepared(cfg, lines)]
    if not any(line.strip() for line in lines):
        rest = " but what tokenizer.strip_punctuation=true removes" if cfg.strip_punctuation else ""
        raise UserError(f"a tokenizer cannot be trained: {corpus} has no text{rest}")
    vocab_size = cfg.vocab_size
    if cfg.min_frequency > 1:
        vocab_size = min(vocab_size, _reserved_ids(cfg) + _num_frequent(cfg, lines, corpus))
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type=cfg.kind.value,
            vocab_size=vocab_size,
            hard_vocab_limit=cfg.kind not in COUNTED,  # else vocab_size is an upper bound
            byte_fallback=cfg.byte_fallback,
            character_coverage=cfg.character_coverage,
            normalization_rule_name=cfg.normalization.value,
            max_sentence_length=max(
                4 * max(map(len, lines)), 10
            ),  # bytes; longer lines are left out silently
            pad_id=PAD_ID,
            unk_id=UNK_ID,
            bos_id=BOS_ID,
            eos_id=EOS_ID,
            num_threads=TRAINING_THREADS,
            minloglevel=2,  # errors only, and those are raised
        )
    except RuntimeError as error:
        raise _training_error(cfg, str(error), corpus) from error
    return model.getvalue()


def _reserved_ids(cfg: TokenizerConfig) -> int:
    """Ids in front of those of the words or characters: the special ones, and the bytes."""
    return EOS_ID + 1 + (256 if cfg.byte_fallback else 0)


def _num_frequent(cfg: TokenizerConfig, lines: list[str], corpus: str) -> int:
    """How many words or characters occur `min_frequency` times; SentencePiece puts just these first."""
    normalizer = sentencepiece.SentencePieceNormalizer(
        rule_name=cfg.normalization.value,
        add_dummy_prefix=True,
        escape_whitespaces=True,
        remove_extra_whitespaces=True,
    )
    counts: Counter[str] = Counter()
    for line in lines:
        normal = normalizer.normalize(line)
        counts.update(_words(normal) if cfg.kind is TokenizerKind.word else normal)
    frequent = sum(count >= cfg.min_frequency for count in counts.values())
    if not frequent:
        unit = "word" if cfg.kind is TokenizerKind.word else "character"
        raise UserError(
            f"no {unit} of {corpus} occurs tokenizer.min_frequency={cfg.min_frequency} times; lower it"
        )
    return frequent


def _words(normal: str) -> list[str]:
    """The words of a line that SentencePiece has normalised, each as the piece it would be."""
    return [SPACE + word for word in normal.split(SPACE)[1:]]


def _training_error(cfg: TokenizerConfig, message: str, corpus: str) -> UserError:
    """What SentencePiece complains about, in terms of the config."""
    size = f"tokenizer.vocab_size={cfg.vocab_size}"
    if most := re.search(r"set it to a value <= (\d+)", message):
        return UserError(f"{size} is too large for {corpus}, which gives {most[1]} pieces at most; lower it")
    if least := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return UserError(
            f"{size} is too small for {corpus}: its characters and the special pieces alone are {least[1]}; "
            "raise it, or give rare characters no piece with tokenizer.character_coverage=0.9995"
        )
    return UserError(f"SentencePiece cannot be trained on {corpus} with {size}: {message}")


def _encode(processor: Any, lines: Sequence[str], **options: Any) -> list[list[int]]:
    """All lines, by all threads unless there is one to use."""
    options.setdefault("num_threads", -1)
    ids: list[list[int]] = processor.encode(list(lines), out_type=int, add_eos=True, **options)
    return ids


def _encode_words(processor: Any, lines: Sequence[str]) -> list[list[int]]:
    """Look the words up one by one: SentencePiece would make a row of unknown words one unknown piece."""
    return [[*processor.piece_to_id(_words(processor.normalize(line))), EOS_ID] for line in lines]


def _pieces(line: Any) -> list[Piece]:
    """The pieces of a line as SentencePiece reports them, and EOS."""
    pieces = [Piece(p.id, "<unk>" if p.id == UNK_ID else p.piece, p.surface) for p in line.pieces]
    return [*pieces, EOS]


def _sample(processor: Any, lines: Sequence[str], alpha: float, seed: int) -> list[list[int]]:
    """Draw segmentations, the same for the same seed.

    SentencePiece keeps a random generator for each thread and seeds it when that thread first draws, so a
    seed takes effect in fresh threads only. Each round has its own seed, and in it each thread its own lines.
    """
    options = {"num_threads": 1, "enable_sampling": True, "nbest_size": -1, "alpha": alpha}
    parts = [lines[start : start + SAMPLING_LINES] for start in range(0, len(lines), SAMPLING_LINES)]
    ids: list[list[int]] = []
    for first in range(0, len(parts), SAMPLING_THREADS):
        sentencepiece.set_random_generator_seed(derive_seed(seed, first) % MAX_UINT32)
        with contextlib.ExitStack() as stack:
            draws = []
            for part in parts[first : first + SAMPLING_THREADS]:
                thread = stack.enter_context(ThreadPoolExecutor(max_workers=1))
                draws.append(thread.submit(_encode, processor, part, **options))
            ids.extend(itertools.chain.from_iterable(draw.result() for draw in draws))
    return ids
