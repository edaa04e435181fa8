"""SentencePiece models rewritten for the ids of another vocabulary.

Models of transformers number their pieces by a file of their own, apart from SentencePiece's numbers, and
have other special ids than ours. A rewritten model segments text as the original does, and its ids are rows
of our matrices: the special ids first, then the pieces of the vocabulary in their old order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from nmt.data.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.data.subword_sampling import UNKNOWN_PENALTY
from nmt.data.tokenizer_training import SPACE, TokenizerKind
from nmt.errors import UserError

SPECIAL = {PAD_ID: "<pad>", UNK_ID: "<unk>", BOS_ID: "<s>", EOS_ID: "</s>"}
"""Our special ids and their spellings, in the order of the ids."""
_Model: Any = sentencepiece_model_pb2.ModelProto  # type: ignore[attr-defined]  # made at run time
_Piece = _Model.SentencePiece
KINDS = {1: TokenizerKind.unigram, 2: TokenizerKind.bpe, 3: TokenizerKind.word, 4: TokenizerKind.char}
"""Types of models in SentencePiece's format -> our names."""


class Segmenter(NamedTuple):
    """A SentencePiece model, parsed."""

    proto: Any

    @classmethod
    def parse(cls, model: bytes) -> Segmenter:
        """Return the content of a model file.

        Raises:
            google.protobuf.message.DecodeError: the bytes are no such file.
            RuntimeError: SentencePiece does not accept the model.
        """
        sentencepiece.SentencePieceProcessor().load_from_serialized_proto(model)
        return cls(_Model.FromString(model))

    @property
    def kind(self) -> TokenizerKind:
        """How the model segments."""
        return KINDS[self.proto.trainer_spec.model_type]

    @property
    def pieces(self) -> dict[str, Any]:
        """The pieces that text is segmented into, by their spelling."""
        return {piece.piece: piece for piece in self.proto.pieces if piece.type in _TEXT}

    def renumbered(self, spellings: Iterable[str], symbols: Iterable[str] = ()) -> bytes:
        """Return the model with the pieces `spellings` behind the special ids.

        A spelling that the model lacks has a number and can be turned back into text, but no text becomes
        it; except for single characters, which would be unknown otherwise. Each of `symbols`, which are
        among the spellings, is one piece wherever a word begins with it.

        Raises:
            UserError: SentencePiece cannot hold a spelling: an empty one, say.
        """
        own, words = self.pieces, set(symbols)
        lowest = min((piece.score for piece in own.values()), default=0.0) - UNKNOWN_PENALTY
        renumbered = type(self.proto)()
        renumbered.CopyFrom(self.proto)
        del renumbered.pieces[:]
        for number, spelling in SPECIAL.items():
            kind = _Piece.UNKNOWN if number == UNK_ID else _Piece.CONTROL
            renumbered.pieces.add(piece=spelling, score=0.0, type=kind)
        for spelling in spellings:
            if spelling in own:
                renumbered.pieces.append(own[spelling])
            elif spelling in words:
                renumbered.pieces.add(piece=SPACE + spelling, score=0.0, type=_Piece.USER_DEFINED)
            else:
                kind = _Piece.NORMAL if len(spelling) == 1 else _Piece.UNUSED
                renumbered.pieces.add(piece=spelling, score=lowest, type=kind)
        spec = renumbered.trainer_spec
        spec.pad_id, spec.unk_id, spec.bos_id, spec.eos_id = PAD_ID, UNK_ID, BOS_ID, EOS_ID
        spec.vocab_size = len(renumbered.pieces)
        model: bytes = renumbered.SerializeToString()
        try:
            sentencepiece.SentencePieceProcessor().load_from_serialized_proto(model)
        except RuntimeError as error:
            raise UserError(f"SentencePiece cannot hold the vocabulary of the model: {error}") from error
        return model


_TEXT = (_Piece.NORMAL, _Piece.USER_DEFINED, _Piece.BYTE)


class Numbering(NamedTuple):
    """Pieces behind our special ids, and the row of the imported matrices that each of our ids has."""

    spellings: list[str]
    rows: list[int]
    """Of all our ids, the special ones first. A piece that the vocabulary lacks has the unknown's row."""
    num_added: int
    """Pieces at the end that text is segmented into, but that the vocabulary lacks."""


def numbering(
    vocabulary: Mapping[str, int], segmenters: Iterable[Segmenter], special: Mapping[int, int]
) -> Numbering:
    """Return the numbers for the pieces of `vocabulary`, spelling -> row, and of what the segmenters add.

    `special` has the row of each of our special ids.
    """
    taken = set(special.values())
    known = [spelling for spelling, row in sorted(vocabulary.items(), key=lambda x: x[1]) if row not in taken]
    known = [spelling for spelling in known if spelling not in SPECIAL.values()]
    present = {*known, *SPECIAL.values()}
    added = [piece for segmenter in segmenters for piece in segmenter.pieces if piece not in present]
    added = list(dict.fromkeys(added))
    rows = [special[number] for number in SPECIAL]
    rows += [vocabulary[spelling] for spelling in known] + [special[UNK_ID]] * len(added)
    return Numbering([*known, *added], rows, len(added))
