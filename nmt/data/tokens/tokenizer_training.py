"""Train SentencePiece on the pairs of a run, deterministically: the same pairs and config, the same bytes.

Also holds the config of a tokenizer, and prepares lines for tokenisation as the config says. Errors of
SentencePiece are restated with the config key to change; its own log stays silent.

SentencePiece: Kudo and Richardson 2018. Unigram model: Kudo 2018. BPE: Sennrich et al. 2016.
"""

from __future__ import annotations

import functools
import io
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from importlib.metadata import version
from typing import Any

from nmt import extras
from nmt.checks import at_least, within
from nmt.data.configs import SEPARATOR
from nmt.data.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.data.text import casing, source_factors
from nmt.data.text.source_factors import SPACE as SPACE
from nmt.errors import UserError

TRAINING_THREADS = 8
"""Fixed, because sums over threads are rounded differently for different numbers of threads."""
RESERVED = "\N{LOWER FIVE EIGHTHS BLOCK}"
"""The character that SentencePiece writes for a rare one; it trains on no line with this character."""


SPECIAL_SPELLINGS = ("<pad>", "<unk>", "<s>", "</s>")
"""The pieces of the special ids, in the order of the ids."""


class TokenizerKind(Enum):
    """The unit of a piece, and for subwords the algorithm that finds them."""

    unigram = "unigram"
    bpe = "bpe"
    char = "char"
    word = "word"


COUNTED = (TokenizerKind.word, TokenizerKind.char)
"""Kinds whose pieces are the most frequent words or characters."""


class TagSide(Enum):
    """Where the tag of a target language stands: in front of the source, of the target, or of both."""

    source = "source"
    target = "target"
    both = "both"


class Normalization(Enum):
    """The Unicode normalisation before tokenising; all but identity also unify the kinds of white space."""

    nmt_nfkc = "nmt_nfkc"
    nfkc = "nfkc"
    nmt_nfkc_cf = "nmt_nfkc_cf"
    nfkc_cf = "nfkc_cf"
    identity = "identity"


class Case(Enum):
    """What becomes of capitals."""

    keep = "keep"
    markup = "markup"


OF_TRAINING = ("kind", "min_frequency", "byte_fallback", "character_coverage", "normalization")
"""Keys that decide how a tokenizer is trained, and mean nothing for one that is ready."""


@dataclass
class TokenizerConfig:
    """The model that splits lines into pieces: SentencePiece, trained by the run, or a ready one."""

    kind: TokenizerKind = TokenizerKind.unigram
    """unigram, bpe, char or word."""
    vocab_size: int = 8000
    """Pieces, special ones included; for word and char, and with joint=false, an upper bound."""
    min_frequency: int = 1
    """Words (characters, for char) that occur less often in the training text are unknown."""
    joint: bool = True
    """Whether both languages share one model, or each has its own."""
    byte_fallback: bool = False
    """Spell unknown characters as bytes, so that nothing is unknown; needs 256 pieces."""
    character_coverage: float = 1.0
    """Share of the characters of the corpus that get a piece; rarer ones are unknown, or spelt as bytes."""
    normalization: Normalization = Normalization.nmt_nfkc
    """Unicode normalisation; _cf folds case."""
    lowercase: bool = False
    """Lower-case both sides before normalisation; keeps ß, where _cf makes it ss."""
    strip_punctuation: bool = False
    """Remove the punctuation of both sides before normalisation: apostrophes vanish, other marks become
    spaces."""
    case: Case = Case.keep
    """markup: words are in lower case, and pieces of their own behind them say which letters are capitals, so
    that HELLO, Hello and hello share theirs; translations have their capitals. keep: capitals are letters."""
    moses_src: str = ""
    """Language whose rules of MosesPunctNormalizer every source goes through first, such as en: they unify
    quotes, dashes and spaces; empty: none. Needs the extra moses."""
    moses_tgt: str = ""
    """The same for targets; references stay as they are, so that a score may suffer."""
    symbols: list[str] = field(default_factory=list)
    """Placeholders such as ⟨num⟩: each is one piece of both sides wherever it occurs, never split, normalised
    or put in lower case."""
    max_sentences: int = 2_000_000
    """Sentences of both sides together to train on, a random sample of the pairs of a larger corpus. More
    costs memory and time, and hardly changes the pieces."""
    sampling_alpha: float = 0.0
    """Above 0, segmentations are sampled anew each epoch: for unigram by probability to the power of alpha
    (0.1 is usual), for bpe by leaving out each merge with probability alpha (0.1 is usual)."""
    right_to_left: bool = False
    """Whether the model learns and finds the target from its last piece to its first; the text of a
    translation is in its usual order. Meant for reranking: see nmt rerank."""
    src_tag: str = ""
    """Piece in front of every source: imported models of many languages are told theirs by it."""
    labels: bool = False
    """Whether a target is a label, one piece by itself; task=classification sets it."""
    tgt_tag: str = ""
    """Piece in front of every target, with which the search begins each translation; no part of the text."""
    source_factors: list[str] = field(default_factory=list)
    """What the model is told of each piece of a source, too: case (pieces are then in small letters) and
    position (of the piece in its word); see docs/data.md."""
    tag_side: TagSide = TagSide.source
    """Where the tags of data.target_tags go: source; target, which the search then begins with the tag; or
    both."""
    path: str = ""
    """A ready model to use instead of training: a SentencePiece model, also the tokenizer.model of another
    run, or a tokenizer.json of Hugging Face, which needs the extra tokenizers; empty: none. Then unigram and
    bpe, vocab_size and max_sentences have no effect."""
    tgt_path: str = ""
    """The ready model of the target side, where it is not that of path; needs joint=false."""

    def __post_init__(self) -> None:
        at_least(self, "tokenizer", EOS_ID + 2, "vocab_size")
        at_least(self, "tokenizer", 2, "max_sentences")
        within(self, "tokenizer", "[0.98, 1]", "character_coverage")
        within(self, "tokenizer", "[0, 1]", "sampling_alpha")
        if self.sampling_alpha and self.kind not in (TokenizerKind.unigram, TokenizerKind.bpe):
            raise UserError(
                f"tokenizer.sampling_alpha={self.sampling_alpha} needs tokenizer.kind=unigram or bpe: "
                f"{self.kind.value} has one segmentation only"
            )
        self.source_factors = list(self.source_factors or [])
        source_factors.require_known(self.source_factors)
        if self.sampling_alpha and self.tells_case:
            raise UserError(
                f"tokenizer.source_factors=[case] needs tokenizer.sampling_alpha=0, not {self.sampling_alpha}"
                ": sampled pieces do not tell which text they are of"
            )
        if self.byte_fallback and self.kind is TokenizerKind.word:
            raise UserError("tokenizer.byte_fallback=true needs another tokenizer.kind than word")
        if self.right_to_left and self.tgt_tag:
            raise UserError(f"tokenizer.tgt_tag={self.tgt_tag} needs tokenizer.right_to_left=false")
        if self.tgt_tag and self.tag_side is not TagSide.source:
            raise UserError(
                f"tokenizer.tgt_tag={self.tgt_tag} is in front of every target already; set "
                "tokenizer.tag_side=source"
            )
        self._check_min_frequency()
        self._check_case()
        self._check_symbols()
        self._check_path()

    def _check_path(self) -> None:
        if self.tgt_path and (self.joint or not self.path):
            raise UserError(
                f"tokenizer.tgt_path={self.tgt_path} needs tokenizer.path, of the source side, and "
                "tokenizer.joint=false"
            )
        if not self.path:
            return
        for key in OF_TRAINING:
            value, usual = getattr(self, key), getattr(TokenizerConfig, key)
            has_no_effect = value in (TokenizerKind.unigram, TokenizerKind.bpe)  # recipes choose one
            if value != usual and not has_no_effect:
                raise UserError(
                    f"tokenizer.{key}={shown_value(value)} is for a tokenizer that is trained, but that of "
                    f"tokenizer.path={self.path} is ready; leave out one of the two"
                )

    def _check_case(self) -> None:
        if self.case is Case.keep:
            return
        if self.kind is TokenizerKind.word:
            raise UserError(
                "tokenizer.case=markup needs another tokenizer.kind than word, whose pieces are whole words; "
                "tokenizer.lowercase=true makes one word of all its cases"
            )
        if self.tells_case:
            raise UserError(
                "tokenizer.source_factors=[case] tells the case of sources, and so does "
                "tokenizer.case=markup; choose one"
            )
        if self.lowercase or self.normalization.value.endswith("_cf"):
            raise UserError(
                "tokenizer.case=markup needs tokenizer.lowercase=false and a tokenizer.normalization without "
                f"_cf, but they are {str(self.lowercase).lower()} and {self.normalization.value}: no "
                "capitals are left to mark"
            )

    def _check_symbols(self) -> None:
        if self.symbols and self.kind is TokenizerKind.word:
            raise UserError(
                "tokenizer.symbols needs another tokenizer.kind than word, which splits no word anyway"
            )
        for number, symbol in enumerate(self.symbols):
            key = f"tokenizer.symbols[{number}]"
            if not symbol or re.search(rf"[\s{SPACE}{RESERVED}{''.join(casing.MARKS)}]", symbol):
                raise UserError(
                    f"{key} must have characters, none of them white space or one of {SPACE} {RESERVED} "
                    f"{' '.join(casing.MARKS)}, but is {symbol!r}"
                )
            if self.tells_case and symbol != source_factors.small(symbol):
                raise UserError(
                    f"{key} must be in small letters, with tokenizer.source_factors=[case], but is {symbol!r}"
                )
            if symbol in SPECIAL_SPELLINGS or symbol in self.symbols[:number]:
                raise UserError(f"{key} is {symbol!r}, which is a piece already; remove it")
            if self.case is Case.markup and (symbol[0].isalpha() or symbol[-1].isalpha()):
                raise UserError(
                    f"{key} must not begin or end with a letter, with tokenizer.case=markup, but is "
                    f"{symbol!r}; put it in brackets, as in ⟨num⟩"
                )

    @property
    def tells_case(self) -> bool:
        """Whether sources are tokenised in small letters, and a factor tells their case."""
        return any(source_factors.FACTORS[name].reads_text for name in self.source_factors)

    def _check_min_frequency(self) -> None:
        at_least(self, "tokenizer", 1, "min_frequency")
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


def shown_value(value: object) -> str:
    """Return the value of a key as a command line has it."""
    return str(value.value if isinstance(value, Enum) else value).lower()


APOSTROPHES = "'\N{RIGHT SINGLE QUOTATION MARK}"


class _Unpunctuated(dict[int, int | str | None]):
    """A table for `str.translate`, which grows as characters occur."""

    def __missing__(self, code: int) -> int | str | None:
        character = chr(code)
        self[code] = code
        if unicodedata.category(character).startswith("P"):
            self[code] = None if character in APOSTROPHES else " "
        return self[code]


_UNPUNCTUATED = _Unpunctuated()


def prepare_lines(cfg: TokenizerConfig, lines: Sequence[str]) -> list[str]:
    """Lower-case the lines, remove their punctuation and mark their capitals, as the config says.

    No line is dropped: a line of punctuation alone becomes blank. Capitals are mapped by `str.lower`, which
    keeps ß; folding would make it ss. Punctuation is the Unicode categories P*: "%" and "-" are punctuation,
    the symbols "+", "=" and "€" are not. Each mark becomes a space, so that "red/blue" and "well-known"
    become two words; an apostrophe is removed, so that "don't" stays one word.
    """
    if cfg.labels:  # a TAB separates two texts
        lines = [line.replace("\t", f" {SEPARATOR} ") if "\t" in line else line for line in lines]
    if cfg.symbols:
        return _joined(cfg, [symbol_pattern(tuple(cfg.symbols)).split(line) for line in lines])
    return _prepared(cfg, lines)


@functools.lru_cache
def symbol_pattern(symbols: tuple[str, ...]) -> re.Pattern[str]:
    """Return the pattern of a symbol as one group, of several the longest."""
    return re.compile(f"({'|'.join(map(re.escape, sorted(symbols, key=len, reverse=True)))})")


def _joined(cfg: TokenizerConfig, lines: list[list[str]]) -> list[str]:
    """Return lines, given their parts, of which every second is a symbol and stays as it is."""
    ready = iter(_prepared(cfg, [part for line in lines for part in line[::2]]))
    return ["".join(part if i % 2 else next(ready) for i, part in enumerate(line)) for line in lines]


def _prepared(cfg: TokenizerConfig, lines: Sequence[str]) -> list[str]:
    ready = [line.lower() for line in lines] if cfg.lowercase else list(lines)
    if cfg.strip_punctuation:
        ready = [line.translate(_UNPUNCTUATED) for line in ready]
    return casing.marked(ready) if cfg.case is Case.markup else ready


def punctuated(lines: Sequence[str], language: str) -> list[str]:
    """Return lines with the punctuation that Moses gives `language`; without a language, as they are.

    Raises:
        UserError: sacremoses is not installed.
    """
    return [_moses(language).normalize(line) for line in lines] if language else list(lines)


@functools.lru_cache
def _moses(language: str) -> Any:
    require_moses(language)
    from sacremoses import MosesPunctNormalizer  # type: ignore[import-not-found]

    return MosesPunctNormalizer(lang=language)


def require_moses(language: str) -> None:
    """Raise `UserError` unless the library of a value of `moses_src` or `moses_tgt` is there."""
    extras.require("moses", f"tokenizer.moses_src or moses_tgt={language}")


def moses_versions(cfg: TokenizerConfig) -> list[str]:
    """Return the version of sacremoses where lines go through it first, else nothing.

    Raises:
        UserError: it is not installed.
    """
    language = cfg.moses_src or cfg.moses_tgt
    if not language:
        return []
    require_moses(language)
    return [f"sacremoses {version('sacremoses')}"]


def require_kept_symbols(key: str, language: str, symbols: Sequence[str]) -> None:
    """Raise `UserError` unless symbols stay what they are between words by the rules of a `language`.

    `language` is the value of `key`, moses_src or moses_tgt; lines go through its rules before symbols are
    looked for. An empty one has none.

    Raises:
        UserError: also where sacremoses is not installed, with and without symbols.
    """
    if language:
        require_moses(language)
    for number, symbol in enumerate(symbols):
        (line,) = punctuated([f"a {symbol} b"], language)
        if symbol not in line:
            found = line.removeprefix("a ").removesuffix(" b")
            raise UserError(
                f"tokenizer.symbols[{number}]={symbol} would never be found: the rules of tokenizer.{key}="
                f"{language} make it {found!r}; choose one that they leave alone, such as ⟨num⟩"
            )


def train_model(cfg: TokenizerConfig, lines: list[str], corpus: str, tags: Sequence[str] = ()) -> bytes:
    """Return the bytes of one SentencePiece model.

    Each of `tags` is one piece, and so are the symbols of the config. Errors name the lines by `corpus`.
    """
    import sentencepiece

    lines = [line.replace(RESERVED, " ") for line in prepare_lines(cfg, lines)]
    if not any(line.strip() for line in lines):
        rest = " but what tokenizer.strip_punctuation=true removes" if cfg.strip_punctuation else ""
        raise UserError(f"a tokenizer cannot be trained: {corpus} has no text{rest}")
    vocab_size = cfg.vocab_size
    symbols = [] if cfg.kind is TokenizerKind.word else own_pieces(cfg, tags)  # no word is ever split
    if cfg.min_frequency > 1:  # ids begin with the special ones, bytes and tags
        num_reserved = EOS_ID + 1 + 256 * cfg.byte_fallback + len(symbols)
        vocab_size = min(vocab_size, num_reserved + _num_frequent(cfg, lines, corpus))
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type=cfg.kind.value,
            vocab_size=vocab_size,
            hard_vocab_limit=cfg.joint and cfg.kind not in COUNTED,  # else vocab_size is an upper bound
            byte_fallback=cfg.byte_fallback,
            character_coverage=cfg.character_coverage,
            normalization_rule_name=cfg.normalization.value,
            user_defined_symbols=symbols,
            # bytes; longer lines are left out silently
            max_sentence_length=max(4 * max(map(len, lines)), 10),
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


def own_pieces(cfg: TokenizerConfig, tags: Sequence[str]) -> list[str]:
    """Return what is one piece wherever it occurs: tags as in prepared lines, symbols, marks of case."""
    marks = casing.MARKS if cfg.case is Case.markup else ()
    prepared = prepare_lines(cfg, tags)
    in_sources = map(source_factors.small, prepared) if cfg.tells_case else ()
    return list(dict.fromkeys([*prepared, *in_sources, *cfg.symbols, *marks]))


def _num_frequent(cfg: TokenizerConfig, lines: list[str], corpus: str) -> int:
    """Count the words or characters that occur `min_frequency` times; SentencePiece puts these first."""
    import sentencepiece

    normalizer = sentencepiece.SentencePieceNormalizer(
        rule_name=cfg.normalization.value,
        add_dummy_prefix=True,
        escape_whitespaces=True,
        remove_extra_whitespaces=True,
    )
    counts: Counter[str] = Counter()
    for line in lines:
        normal = normalizer.normalize(line)
        counts.update(words(normal) if cfg.kind is TokenizerKind.word else normal)
    frequent = sum(count >= cfg.min_frequency for count in counts.values())
    if not frequent:
        unit = "word" if cfg.kind is TokenizerKind.word else "character"
        raise UserError(
            f"no {unit} of {corpus} occurs tokenizer.min_frequency={cfg.min_frequency} times; lower it"
        )
    return frequent


def words(normal: str) -> list[str]:
    """Split a line that SentencePiece has normalised into words, each spelt as a piece."""
    first, *others = normal.split(SPACE)  # nothing is first in a model with a space before each line
    return [*filter(None, [first]), *(SPACE + word for word in others)]


def _training_error(cfg: TokenizerConfig, message: str, corpus: str) -> UserError:
    """Return an error of SentencePiece in terms of the config."""
    size = f"tokenizer.vocab_size={cfg.vocab_size}"
    if most := re.search(r"set it to a value <= (\d+)", message):
        return UserError(f"{size} is too large for {corpus}, which gives {most[1]} pieces at most; lower it")
    if least := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return UserError(
            f"{size} is too small for {corpus}: its characters and the special pieces alone are {least[1]}; "
            "raise it, or give rare characters no piece with tokenizer.character_coverage=0.9995"
        )
    return UserError(f"SentencePiece cannot be trained on {corpus} with {size}: {message}")
