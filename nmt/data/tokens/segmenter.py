"""SentencePiece models as messages: read, told apart, and given our special ids.

A model that others have trained has special ids of its own: unknown 0, begin 1 and end 2 by default, end 0 in
Marian. A renumbered model has ours first, and segments text as the original does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import sentencepiece
from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2

from nmt.data.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.data.tokens.tokenizer_training import SPECIAL_SPELLINGS, TokenizerKind
from nmt.errors import UserError

UNKNOWN_PENALTY = 10.0
"""As in SentencePiece, an unknown character has the score of the least probable piece, less this."""
Model: Any = sentencepiece_model_pb2.ModelProto  # type: ignore[attr-defined]  # made at run time
PieceType = Model.SentencePiece
"""A piece of a model, which also names the types of pieces: `PieceType.NORMAL`."""
SPECIAL_PIECES = [
    PieceType(piece=spelling, score=0.0, type=PieceType.UNKNOWN if number == UNK_ID else PieceType.CONTROL)
    for number, spelling in enumerate(SPECIAL_SPELLINGS)
]
"""The pieces of our special ids, in their order."""
SPECIAL_FIELDS = {
    f"{name}_{part}": value
    for number, name in {PAD_ID: "pad", UNK_ID: "unk", BOS_ID: "bos", EOS_ID: "eos"}.items()
    for part, value in (("id", number), ("piece", SPECIAL_SPELLINGS[number]))
} | {"unk_surface": Model().trainer_spec.unk_surface}
"""Fields of a model about its special pieces, with our values."""
_KINDS = {1: TokenizerKind.unigram, 2: TokenizerKind.bpe, 3: TokenizerKind.word, 4: TokenizerKind.char}
_TEXT = (PieceType.NORMAL, PieceType.USER_DEFINED, PieceType.BYTE)


def processor_of(model: bytes) -> Any:
    """Return the processor of a model; raise `UserError` when SentencePiece does not accept the bytes."""
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.load_from_serialized_proto(model)
    except RuntimeError as error:
        raise UserError(f"is not a readable SentencePiece model: {error}") from error
    return processor


class Segmenter(NamedTuple):
    """A SentencePiece model, parsed."""

    proto: Any

    @classmethod
    def parse(cls, model: bytes) -> Segmenter:
        """Return the content of a model file; raise `UserError` when the bytes are none."""
        try:
            return cls(Model.FromString(model))
        except DecodeError as error:
            raise UserError(f"is not a readable SentencePiece model: {error}") from error

    @property
    def kind(self) -> TokenizerKind:
        """How the model segments."""
        return _KINDS[self.proto.trainer_spec.model_type]

    @property
    def pieces(self) -> dict[str, Any]:
        """The pieces that text is segmented into, by their spelling."""
        return {piece.piece: piece for piece in self.proto.pieces if piece.type in _TEXT}

    def ids_of(self, kind: int) -> dict[str, int]:
        """Return the ids of the pieces of a type, by their spelling."""
        return {piece.piece: i for i, piece in enumerate(self.proto.pieces) if piece.type == kind}

    def renumbered(self, pieces: Iterable[Any]) -> bytes:
        """Return the model with `pieces` behind our special ids in place of its own.

        Raises:
            UserError: SentencePiece cannot hold a piece: one without a spelling, say.
        """
        renumbered = Model()
        renumbered.CopyFrom(self.proto)
        del renumbered.pieces[:]
        renumbered.pieces.extend([*SPECIAL_PIECES, *pieces])
        fields: dict[str, Any] = dict(SPECIAL_FIELDS)
        if len(renumbered.pieces) != len(self.proto.pieces):
            fields["vocab_size"] = len(renumbered.pieces)
        spec = renumbered.trainer_spec
        for name, value in fields.items():
            if getattr(spec, name) != value:  # a field that is not there may have the value, too
                setattr(spec, name, value)
        model: bytes = renumbered.SerializeToString()
        try:
            processor_of(model)
        except UserError as error:
            raise UserError(f"SentencePiece cannot hold the vocabulary of the model: {error}") from error
        return model
