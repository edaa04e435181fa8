"""The models that split lines into pieces, behind one contract: SentencePiece, and Hugging Face tokenizers.

A model is bytes, which a run keeps as they are: the protobuf message of SentencePiece, or the JSON of the
library `tokenizers`, whose ids `ready_tokenizers` has made ours. `piece_model` tells them apart.
Lines are prepared before they come here, and tags are put in front of ids later: see `tokenizer`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise, takewhile
from typing import Any, NamedTuple, Protocol

import sentencepiece

from nmt import extras
from nmt.data.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.data.tokens.segmenter import Segmenter, processor_of
from nmt.data.tokens.tokenizer_training import SPACE, SPECIAL_SPELLINGS, TokenizerKind, words
from nmt.errors import UserError

UNKNOWN = " \N{DOUBLE QUESTION MARK} "
"""The text of an unknown piece, as SentencePiece writes it."""
BYTE = re.compile(r"<0x[0-9A-F]{2}>")
"""The spelling of a byte of a character that has no piece."""
ANCHOR = "a"
"""A token in front of another, which shows whether that one begins with a space."""


class Piece(NamedTuple):
    """A token as people read it."""

    id: int
    text: str
    """Spelling in the vocabulary: ▁ is the space before a word, and `<unk>`, `<s>`, `</s>` are special."""
    surface: str
    """The part of the line; all surfaces together are the line. Empty for `<s>` and `</s>`."""


BOS, EOS = Piece(BOS_ID, "<s>", ""), Piece(EOS_ID, "</s>", "")


class PieceModel(Protocol):
    """What a `Tokenizer` needs of a model: pieces with our special ids, and the way to them and back."""

    size: int
    """Pieces, special ones included."""
    version: str
    """The version of the library, on which the ids of a text depend."""
    kind: TokenizerKind | None
    """How a model of SentencePiece segments; None for the library `tokenizers`."""

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of lines, each ending with `EOS_ID`, in one thread."""

    def pieces(self, lines: Sequence[str]) -> list[list[Piece]]:
        """Return the tokens of lines, with the ids of `encode`."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, with " ⁇ " for unknown pieces and nothing for the other special ids."""

    def decoded_pieces(self, ids: Sequence[int]) -> list[Piece]:
        """Return a token for each of the ids, and EOS; the surfaces together are the text of `decode`."""

    def spellings(self, ids: Sequence[int]) -> list[str]:
        """Return the spelling of each id in the vocabulary: `Piece.text`."""

    def id_of(self, spelling: str) -> int:
        """Return the id of a piece, `UNK_ID` if there is none."""

    def byte_ids(self) -> list[int]:
        """Return the ids of the pieces that are bytes, with which any text can be spelt."""


def piece_model(model: bytes) -> PieceModel:
    """Return the model of these bytes.

    Raises:
        UserError: the bytes are no model, its special ids are not ours, or its library is missing.
    """
    if model.startswith(b"{"):
        return HuggingFaceModel(model)
    return SentencePieceModel(model)


class SentencePieceModel:
    """A model of SentencePiece; to one of words a line is given word by word."""

    version = sentencepiece.__version__

    def __init__(self, model: bytes):
        self._processor = processor_of(model)
        ids = (self._processor.pad_id(), self._processor.unk_id(), self._processor.bos_id())
        found = *ids, self._processor.eos_id()
        if found != (PAD_ID, UNK_ID, BOS_ID, EOS_ID):
            raise UserError(
                f"has the ids {found} for padding, unknown, begin and end, but they must be "
                f"{(PAD_ID, UNK_ID, BOS_ID, EOS_ID)}; use a model that nmt has trained, or give the file as "
                "tokenizer.path"
            )
        self.kind: TokenizerKind | None = Segmenter.parse(model).kind
        self._is_word = self.kind is TokenizerKind.word
        self.size = int(self._processor.get_piece_size())

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of lines; words are looked up one by one.

        SentencePiece would make a row of unknown words one unknown piece.
        """
        if not self._is_word:
            return self._each(lines, add_eos=True, return_type=int)
        of_line, normalize = self._processor.piece_to_id, self._processor.normalize
        return [[*of_line(words(normalize(line))), EOS_ID] for line in lines]

    def pieces(self, lines: Sequence[str]) -> list[list[Piece]]:
        """Return the tokens of lines."""
        if self._is_word:
            return [self._word_pieces(line) for line in lines]
        return [_of_proto(line) for line in self._each(lines, return_type="proto")]

    def _each(self, lines: Sequence[str], **options: object) -> list[Any]:
        """Return what SentencePiece makes of each line, in this thread."""
        if len(lines) == 1:  # for a list it would start a thread, which takes several times as long
            return [self._processor.encode(lines[0], **options)]
        return list(self._processor.encode(list(lines), num_threads=1, **options))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""
        return str(self._processor.decode(list(ids)))

    def decoded_pieces(self, ids: Sequence[int]) -> list[Piece]:
        """Return the tokens of a text that is given by its ids."""
        return _of_proto(self._processor.decode(list(ids), return_type="proto"))

    def spellings(self, ids: Sequence[int]) -> list[str]:
        """Return the spelling of each id."""
        return [str(text) for text in self._processor.id_to_piece(list(ids))]

    def id_of(self, spelling: str) -> int:
        """Return the id of a piece."""
        return int(self._processor.piece_to_id(spelling))

    def byte_ids(self) -> list[int]:
        """Return the ids of bytes."""
        return [i for i in range(EOS_ID + 1, self.size) if self._processor.is_byte(i)]

    def _word_pieces(self, line: str) -> list[Piece]:
        pieces: list[Piece] = []
        for word in words(self._processor.normalize(line)):
            token = self.id_of(word)
            surface = word.replace(SPACE, " ") if pieces else word.removeprefix(SPACE)
            pieces.append(Piece(token, "<unk>" if token == UNK_ID else word, surface))
        return [*pieces, EOS]


def _of_proto(line: Any) -> list[Piece]:
    """Return the pieces of a line that SentencePiece encoded as `proto`, and EOS."""
    pieces = [Piece(p.id, "<unk>" if p.id == UNK_ID else p.piece, p.surface) for p in line.pieces]
    return [*pieces, EOS]


class HuggingFaceModel:
    """A tokenizer of the library `tokenizers`, whose first four tokens are our special ones.

    A line begins with a space where the tokenizer does not see to that itself, so that its first word has the
    pieces of the word inside of a line; `▁` in a spelling is a space, however the tokenizer spells one.
    Special tokens are never read from text: what spells one is text, or unknown.
    """

    kind: TokenizerKind | None = None

    def __init__(self, model: bytes):
        extras.require("tokenizers", "a tokenizer.json of Hugging Face")
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # threads are those of the caller
        import tokenizers

        self.version = f"tokenizers {tokenizers.__version__}"
        self._tokenizer = loaded(model)
        self.size = int(self._tokenizer.get_vocab_size())
        self._tokens = [self._tokenizer.id_to_token(i) for i in range(self.size)]
        if tuple(self._tokens[: EOS_ID + 1]) != SPECIAL_SPELLINGS or None in self._tokens:
            raise UserError(
                f"has the tokens {' '.join(map(str, self._tokens[: EOS_ID + 1]))} first, but they must be "
                f"{' '.join(SPECIAL_SPELLINGS)}; give the file that it is made from as tokenizer.path"
            )
        self._tokenizer.encode_special_tokens = True
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = {*range(EOS_ID + 1), *(i for i, token in added.items() if token.special)}
        self._added = tuple(token.content for i, token in added.items() if i not in self._special)
        self._start = ""
        begins = [self.spellings(ids[:1]) for ids in self.encode(["a", " a"])]
        if begins[0] != begins[1] and begins[1][0].startswith(SPACE):
            self._start = " "

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of lines."""
        found = self._tokenizer.encode_batch_fast(self._begun(lines), add_special_tokens=False)
        return [[*self._without_special(line.ids), EOS_ID] for line in found]

    def pieces(self, lines: Sequence[str]) -> list[list[Piece]]:
        """Return the tokens of lines; the space before a word belongs to its first token."""
        begun = self._begun(lines)
        found = self._tokenizer.encode_batch(begun, add_special_tokens=False)
        pieces = []
        for line, longer, encoded in zip(lines, begun, found, strict=True):
            added = len(longer) - len(line)
            ends = [end - added for _, end in encoded.offsets]
            pieces.append(self._cut(line, self._without_special(encoded.ids), ends))
        return pieces

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids; around an unknown one each part is decoded by itself."""
        parts: list[list[int]] = [[]]
        for token in ids:
            if token == UNK_ID:
                parts.append([])
            elif token > EOS_ID:
                parts[-1].append(int(token))
        texts = [self._tokenizer.decode(part, skip_special_tokens=False).strip(" ") for part in parts]
        return UNKNOWN.join(texts)

    def decoded_pieces(self, ids: Sequence[int]) -> list[Piece]:
        """Return the tokens of a text; the bytes of one character are the surface of the last of them."""
        whole = self.decode(ids)
        ends = [_num_common(whole, self.decode(ids[: number + 1])) for number in range(len(ids))]
        return self._cut(whole, ids, ends)

    def spellings(self, ids: Sequence[int]) -> list[str]:
        """Return the spelling of each id."""
        return [self._spellings[i] for i in ids]

    def id_of(self, spelling: str) -> int:
        """Return the id of a piece, given its spelling or the token of the file."""
        return self._ids.get(spelling, UNK_ID)

    def byte_ids(self) -> list[int]:
        """Return the ids of bytes: those spelt `<0x41>`, and the 256 of byte-level BPE."""
        from tokenizers.pre_tokenizers import ByteLevel

        alphabet = {*ByteLevel.alphabet()}
        ids = range(EOS_ID + 1, self.size)
        return [i for i in ids if BYTE.fullmatch(self._tokens[i]) or self._tokens[i] in alphabet]

    def _begun(self, lines: Sequence[str]) -> list[str]:
        """Return lines as they are split: no space before a tag in front, and nothing in a blank line."""
        starts = ("" if line.startswith(self._added) else self._start for line in lines)
        return [start + line if line.strip() else "" for start, line in zip(starts, lines, strict=True)]

    def _without_special(self, ids: Sequence[int]) -> list[int]:
        """Return ids of text, without what the library reads as special nevertheless: a word that is one."""
        return [UNK_ID if i in self._special else i for i in ids]

    def _cut(self, line: str, ids: Sequence[int], ends: Sequence[int]) -> list[Piece]:
        """Return tokens whose surfaces are `line`, each up to its end, which is never before the last one."""
        places = [0]
        for end in ends:
            places.append(max(places[-1], end))
        places[-1] = len(line) if ids else 0
        cuts = zip(ids, self.spellings(ids), pairwise(places), strict=True)
        return [*(Piece(int(i), text, line[start:end]) for i, text, (start, end) in cuts), EOS]

    @cached_property
    def _spellings(self) -> list[str]:
        """Return each token as its text behind another one; as it is, where that is no text of its own."""
        decoder = self._tokenizer.decoder
        taken = dict[str, None].fromkeys(SPECIAL_SPELLINGS)
        for token in self._tokens[EOS_ID + 1 :]:
            text = decoder.decode([ANCHOR, token]) if decoder else f"{ANCHOR} {token}"
            shown = text[len(ANCHOR) :].replace(" ", SPACE)
            is_own = text.startswith(ANCHOR) and shown and "\N{REPLACEMENT CHARACTER}" not in shown
            if not is_own or shown in taken or BYTE.fullmatch(token):
                shown = token
            while shown in taken:  # what another token is shown as
                shown += SPACE
            taken[shown] = None
        return list(taken)

    @cached_property
    def _ids(self) -> dict[str, int]:
        tokens = {token: i for i, token in enumerate(self._tokens)}
        return tokens | {text: i for i, text in enumerate(self._spellings)}


def loaded(model: bytes) -> Any:
    """Return the tokenizer of a tokenizer.json; raise `UserError` when the library refuses it."""
    import tokenizers

    try:
        return tokenizers.Tokenizer.from_buffer(model)
    except Exception as error:
        if type(error) not in (Exception, ValueError):  # the library raises no class of its own
            raise
        version = tokenizers.__version__
        raise UserError(f"is not a tokenizer.json that tokenizers {version} reads: {error}") from None


def _num_common(a: str, b: str) -> int:
    """Return how many characters two texts begin with alike."""
    return sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(a, b, strict=False)))
