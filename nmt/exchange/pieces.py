"""SentencePiece models rewritten for the ids of another vocabulary.

Models of transformers number their pieces by a file of their own, apart from SentencePiece's numbers, and
have other special ids than ours. A rewritten model segments text as the original does, and its ids are rows
of our matrices: the special ids first, then the pieces of the vocabulary in their old order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from nmt.data.special_ids import UNK_ID
from nmt.data.tokens.segmenter import UNKNOWN_PENALTY, PieceType, Segmenter
from nmt.data.tokens.tokenizer_training import SPACE, SPECIAL_SPELLINGS


def renumbered(segmenter: Segmenter, spellings: Iterable[str], symbols: Iterable[str] = ()) -> bytes:
    """Return the model of `segmenter` with the pieces `spellings` behind the special ids.

    A spelling that the model lacks has a number and can be turned back into text, but no text becomes it;
    except for single characters, which would be unknown otherwise. transformers looks up several unknown
    characters in a row as one spelling, too, which SentencePiece cannot. Each of `symbols`, which are among
    the spellings, is one piece wherever a word begins with it.

    Raises:
        UserError: SentencePiece cannot hold a spelling: an empty one, say.
    """
    return segmenter.renumbered(_pieces(segmenter.pieces, spellings, {*symbols}))


def _pieces(own: Mapping[str, Any], spellings: Iterable[str], symbols: Collection[str]) -> Iterator[Any]:
    """Yield a piece for each spelling; `own` are those of the model."""
    lowest = min((piece.score for piece in own.values()), default=0.0) - UNKNOWN_PENALTY
    for spelling in spellings:
        if spelling in own:
            yield own[spelling]
        elif spelling in symbols:
            yield PieceType(piece=SPACE + spelling, score=0.0, type=PieceType.USER_DEFINED)
        else:
            kind = PieceType.NORMAL if len(spelling) == 1 else PieceType.UNUSED
            yield PieceType(piece=spelling, score=lowest, type=kind)


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
    known = [spelling for spelling in known if spelling not in SPECIAL_SPELLINGS]
    present = {*known, *SPECIAL_SPELLINGS}
    added = [piece for segmenter in segmenters for piece in segmenter.pieces if piece not in present]
    added = list(dict.fromkeys(added))
    rows = [special[number] for number in range(len(SPECIAL_SPELLINGS))]
    rows += [vocabulary[spelling] for spelling in known] + [special[UNK_ID]] * len(added)
    return Numbering([*known, *added], rows, len(added))
