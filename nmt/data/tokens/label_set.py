"""The set of labels of a classifier: found in the training texts, and kept as the target side of a tokenizer.

A label is one piece, whatever it is spelt of, and a target is that piece alone, without EOS.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nmt.data.parallel_text import ParallelText
from nmt.data.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.data.tokens.segmenter import SPECIAL_PIECES, Model, PieceType
from nmt.data.tokens.tokenizer_training import SPACE
from nmt.errors import UserError, suggest

MAX_NAMED = 20
"""Labels that an error lists."""


def label_set(chunks: Iterable[ParallelText]) -> list[str]:
    """Return the labels of all pairs, sorted; raise `UserError` when there are not two."""
    found = sorted({label for chunk in chunks for label in chunk.tgt})
    if len(found) < 2:
        named = f"one label, {found[0]!r}," if found else "no label"
        raise UserError(
            f"the training texts have {named} but there must be two; check the label_column of the data"
        )
    return found


def named(labels: Sequence[str]) -> str:
    """Return the first labels as an error lists them."""
    return ", ".join(labels[:MAX_NAMED]) + (", ..." if len(labels) > MAX_NAMED else "")


def require_known(labels: Sequence[str], known: Sequence[str], split: str) -> None:
    """Raise `UserError` when one of the `labels` of a split is not `known` from the training."""
    places = set(known)
    for number, label in enumerate(labels, start=1):
        if label not in places:
            raise UserError(
                f"{split} text {number:,} has the label {label!r}, which no training text has; these have "
                f"{named(known)}{suggest(label, known)}"
            )


def label_model(labels: Sequence[str]) -> bytes:
    """Return a SentencePiece model whose pieces, behind the special ids, are the labels."""
    model = Model(normalizer_spec={"name": "identity"})
    spec = model.trainer_spec
    spec.model_type = spec.WORD
    spec.pad_id, spec.unk_id, spec.bos_id, spec.eos_id = PAD_ID, UNK_ID, BOS_ID, EOS_ID
    for special in SPECIAL_PIECES:
        model.pieces.append(PieceType(piece=special.piece, type=special.type))
    for label in labels:
        model.pieces.append(PieceType(piece=spelt(label), type=PieceType.NORMAL))
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def spelt(label: str) -> str:
    """Return the piece of a label, which is no special piece whatever the label is."""
    return SPACE + label
