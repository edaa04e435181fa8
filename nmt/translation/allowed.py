"""The tokens that the translation of each line may have: of decoding.allowed, of a shortlist, or of both.

The file of decoding.allowed has a word, a phrase or a character in each line. Of a word or a phrase the
pieces that spell it are allowed; of characters all pieces that have no others. Pieces of words may be put
together to other words, but a file of characters alone lets no other character through, except by what a
request asks for, and by bytes where the vocabulary spells one of the characters so.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nmt.data.parallel_text import MAX_LINE_CHARS, stamp_of_files
from nmt.data.reading.lines import is_cut, read_lines
from nmt.data.special_ids import EOS_ID
from nmt.data.tokens.shortlist import PieceIds, Shortlist
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.data.tokens.tokenizer_training import SPACE
from nmt.decoding.configs import DecodingConfig
from nmt.errors import Log, UserError, first_of
from nmt.files import path_of
from nmt.translation.requests import Wishes

KEY = "decoding.allowed"


class AllowedTokens:
    """What a search with a config may find, besides what requests ask for."""

    def __init__(self, cfg: DecodingConfig, tokenizer: Tokenizer, log: Log):
        """Read the files that the config names; `log` is told what a process has read for the first time.

        Raises:
            UserError: a file cannot be read, or allows nothing of the vocabulary.
        """
        self.shortlist = Shortlist.load(path_of(cfg.shortlist), tokenizer) if cfg.shortlist else None
        self.ids = _loaded(path_of(cfg.allowed), tokenizer, log) if cfg.allowed else None

    def of(self, sources: Sequence[Iterable[int]]) -> list[PieceIds] | None:
        """Return the ids, ascending, that each translation of `sources` may have; None where all are allowed.

        With a shortlist and decoding.allowed, these are the ids that both allow.
        """
        if self.shortlist is None:
            return None if self.ids is None else [self.ids] * len(sources)
        found = [self.shortlist.allowed(src) for src in sources]
        return found if self.ids is None else [np.intersect1d(own, self.ids) for own in found]


class _Read(NamedTuple):
    """The content of a file for one vocabulary."""

    ids: PieceIds
    unspelt: list[int]
    """Numbers of the lines that the vocabulary cannot spell."""


def _loaded(path: Path, tokenizer: Tokenizer, log: Log) -> PieceIds:
    """Return the ids that a file allows; tell `log` how many, unless that is told already."""
    num_read = _read.cache_info().misses
    found = _read(path, stamp_of_files([path]) if path.exists() else None, tokenizer)
    if _read.cache_info().misses > num_read:
        total = tokenizer.tgt_vocab_size
        log(f"{KEY}={path}: {len(found.ids):,} of {total:,} pieces of the vocabulary are left")
        if found.unspelt:
            log(f"{KEY}={path}: the vocabulary cannot spell line {first_of(found.unspelt)}, left out")
    return found.ids


@lru_cache(maxsize=4)
def _read(path: Path, version: str | None, tokenizer: Tokenizer) -> _Read:
    """Return what is in this version of a file; kept, since a long text asks for it block by block."""
    wishes, ids, unspelt = Wishes(tokenizer), set[int](), list[int]()
    characters = set[str]()
    for number, line in enumerate(read_lines(path, KEY), start=1):
        if is_cut(line):
            raise UserError(f"{KEY}: line {number} of {path} has more than {MAX_LINE_CHARS:,} characters")
        if not (text := line.strip()):
            continue
        own = [*itertools.chain(*wishes.phrase(text))]
        ids.update(own)
        if not own:
            unspelt.append(number)
        if own and len(text) == 1:
            spelt = tokenizer.tgt_spellings([token for token in own if token not in tokenizer.tgt_byte_ids])
            characters.update(text, *spelt)
    if characters:
        others = [i for i in range(EOS_ID + 1, tokenizer.tgt_vocab_size) if i not in tokenizer.tgt_byte_ids]
        spellings = zip(others, tokenizer.tgt_spellings(others), strict=True)
        ids.update(i for i, spelling in spellings if characters.issuperset(spelling.replace(SPACE, "")))
    if not ids:
        raise UserError(
            f"{KEY}: {path} has no word, phrase or character that the vocabulary of the run can spell; write "
            f"one in each line, or set {KEY}=null for all pieces"
        )
    return _Read(np.array(sorted({EOS_ID, *ids}), np.int64), unspelt)
