"""The target pieces that each source piece may become: vocabulary shortlists (Jean et al. 2015, section 3.3).

A shortlist is made of training pairs and a tokenizer: the most probable translations of each source piece by
the lexicon of `nmt.data.augment`, the target piece that is spelt like it (names, numbers), and for every
sentence the most frequent target pieces, bytes and special ids. Knows pieces as ids; knows no model.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from nmt.data.augment.lexicon import MOST_CELLS, train_lexicon
from nmt.data.encoded_pairs import RaggedIds
from nmt.data.parallel_text import ParallelText, stamp_of_files
from nmt.data.special_ids import EOS_ID, UNK_ID
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.errors import UserError
from nmt.files import write_atomically

PieceIds = NDArray[np.int64]

MAX_BYTES = 1 << 30
"""Bytes that a file may expand to: a quarter of a billion pieces."""
DAMAGED = (OSError, ValueError, KeyError, TypeError, EOFError, MemoryError, BadZipFile, zlib.error)
"""What a file that is no shortlist raises."""
HOW_TO_MAKE = "make one with nmt shortlist run=RUN"


@dataclass
class Shortlist:
    """Target pieces for each source piece, and those for every sentence."""

    fingerprint: str
    """That of the tokenizer whose ids these are."""
    always: PieceIds
    """Ascending ids that every sentence may have, the special ones among them."""
    first: PieceIds
    """(V + 1,): of source piece i, the ids are `pieces[first[i] : first[i + 1]]`."""
    pieces: PieceIds

    def allowed(self, src: Iterable[int]) -> PieceIds:
        """Return the target ids, ascending, that the translation of the source ids may have."""
        num_pieces = len(self.first) - 1  # a source id may have factors packed behind its piece
        parts = [self.pieces[self.first[i] : self.first[i + 1]] for i in {i % num_pieces for i in src}]
        return np.unique(np.concatenate([self.always, *parts]))

    def save(self, path: Path) -> None:
        """Write one file, whole or not at all."""
        buffer = io.BytesIO()
        arrays: dict[str, Any] = {name: value.astype(np.int32) for name, value in self._arrays().items()}
        np.savez_compressed(buffer, fingerprint=np.array(self.fingerprint), **arrays)
        write_atomically(path, buffer.getvalue())

    @classmethod
    def load(cls, path: Path, tokenizer: Tokenizer) -> Shortlist:
        """Read the file that `save` wrote.

        Raises:
            UserError: there is no such file, it is damaged, or it was made for another tokenizer.
        """
        key = f"decoding.shortlist={path}"
        if not path.is_file():
            raise UserError(f"{key}: there is no such file; {HOW_TO_MAKE}")
        try:
            found = _read(path, stamp_of_files([path]))
        except DAMAGED as error:
            raise UserError(f"{key} is no shortlist, or a damaged one; {HOW_TO_MAKE}") from error
        if found.fingerprint != tokenizer.fingerprint:
            raise UserError(
                f"{key} was made for another tokenizer than that of the run; {HOW_TO_MAKE} for this run"
            )
        if not found._is_sound(tokenizer.src_vocab_size, tokenizer.tgt_vocab_size):
            raise UserError(f"{key} is no shortlist, or a damaged one; {HOW_TO_MAKE}")
        return found

    def _arrays(self) -> dict[str, PieceIds]:
        return {"always": self.always, "first": self.first, "pieces": self.pieces}

    def _is_sound(self, src_size: int, tgt_size: int) -> bool:
        """Return whether all numbers are in their ranges, and the special ids among `always`."""
        if any(array.ndim != 1 for array in self._arrays().values()):
            return False
        first, ids = self.first, np.concatenate([self.always, self.pieces])
        has_special = np.array_equal(self.always[: EOS_ID + 1], np.arange(EOS_ID + 1))
        is_falling = len(first) != src_size + 1 or first[0] != 0 or (np.diff(first) < 0).any()
        return (
            has_special
            and not is_falling
            and first[-1] == len(self.pieces)
            and 0 <= ids.min() <= ids.max() < tgt_size
        )


@lru_cache(maxsize=1)
def _read(path: Path, version: str) -> Shortlist:
    """Return what is in this version of a file; kept, since a long text asks for it block by block."""
    with path.open("rb") as file:
        with ZipFile(file) as archive:
            if sum(part.file_size for part in archive.infolist()) > MAX_BYTES:
                raise ValueError(f"it expands to more than {MAX_BYTES:,} bytes")
        file.seek(0)
        with np.load(file, allow_pickle=False) as stored:
            arrays = [stored[name].astype(np.int64) for name in ("always", "first", "pieces")]
            return Shortlist(str(stored["fingerprint"]), *arrays)


def build_shortlist(
    chunks: Iterable[ParallelText], tokenizer: Tokenizer, *, translations: int, frequent: int
) -> Shortlist:
    """Return the shortlist of pairs: `translations` of each source piece, `frequent` pieces for all.

    The lexicon is estimated part by part, so that memory does not grow with the number of pairs; the
    probabilities of the parts are added.
    """
    src_size, tgt_size = tokenizer.src_vocab_size, tokenizer.tgt_vocab_size
    counts = np.zeros(tgt_size, np.int64)
    keys: PieceIds = np.empty(0, np.int64)
    sums: Any = np.empty(0)
    for packed, tgt in _parts(chunks, tokenizer):
        src = RaggedIds(np.asarray(packed.ids[:]) % src_size, packed.lengths)  # without source factors
        counts += np.bincount(np.asarray(tgt.ids[:]), minlength=tgt_size)
        lexicon = train_lexicon(src, tgt, src_size, tgt_size)
        keys, places = np.unique(np.concatenate([keys, lexicon.keys]), return_inverse=True)
        sums = np.bincount(places, np.concatenate([sums, lexicon.forward]), len(keys))
    of_src, ids = keys // tgt_size, keys % tgt_size
    order = np.lexsort((-sums, of_src))
    of_src, ids = of_src[order], ids[order]
    rank = np.arange(len(order)) - np.searchsorted(of_src, of_src)
    same = _spelt_alike(tokenizer)
    has_twin = np.flatnonzero(same != UNK_ID)
    chosen = np.concatenate([keys[order][rank < translations], has_twin * tgt_size + same[has_twin]])
    chosen = np.unique(chosen)
    always = np.union1d(_needed(tokenizer), np.argsort(-counts, kind="stable")[:frequent])
    chosen = chosen[~np.isin(chosen % tgt_size, always)]
    first = np.searchsorted(chosen // tgt_size, np.arange(src_size + 1))
    return Shortlist(tokenizer.fingerprint, always, first, chosen % tgt_size)


def _parts(chunks: Iterable[ParallelText], tokenizer: Tokenizer) -> Iterator[tuple[RaggedIds, RaggedIds]]:
    """Yield the ids of the pairs in parts of about as many cells as a lexicon is estimated from."""
    src, tgt, cells = list[RaggedIds](), list[RaggedIds](), 0
    for chunk in chunks:
        own = tokenizer.flat_src(chunk.src), tokenizer.flat_tgt(chunk.tgt)
        size = int((own[0].lengths.astype(np.int64) * own[1].lengths).sum())
        if src and cells + size > MOST_CELLS:
            yield _joined(src), _joined(tgt)
            src, tgt, cells = [], [], 0
        src.append(own[0])
        tgt.append(own[1])
        cells += size
    if src:
        yield _joined(src), _joined(tgt)


def _joined(parts: Sequence[RaggedIds]) -> RaggedIds:
    ids, lengths = ([getattr(part, name)[:] for part in parts] for name in ("ids", "lengths"))
    return RaggedIds(np.concatenate(ids), np.concatenate(lengths))


def _spelt_alike(tokenizer: Tokenizer) -> PieceIds:
    """Return for each source piece the id (V,) of the target piece of its spelling, `UNK_ID` for none."""
    if tokenizer.src_model == tokenizer.tgt_model:
        return np.arange(tokenizer.src_vocab_size)
    spellings = tokenizer.src_spellings(range(tokenizer.src_vocab_size))
    return np.asarray(tokenizer.tgt_ids_of(spellings), np.int64)


def _needed(tokenizer: Tokenizer) -> PieceIds:
    """Return the special ids, and the ids of bytes, with which any text can be spelt."""
    return np.array([*range(EOS_ID + 1), *sorted(tokenizer.tgt_byte_ids)], np.int64)
