"""Search over a part of the vocabulary, in which each sentence of a batch has a part of its own.

The tokens of all sentences of a batch are numbered from 0, in the order of their ids: special ids keep their
numbers. Searches see these numbers alone; wishes go in as numbers, and hypotheses come out as ids.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nmt.data.special_ids import EOS_ID, PAD_ID
from nmt.data.tokens.shortlist import PieceIds
from nmt.decoding.hypotheses import EDGE, Hypothesis, Wish
from nmt.models.base import TranslationModel
from nmt.models.narrowed import narrowed

Search = Callable[..., list[list[Hypothesis]]]
"""A strategy: model, src, src_mask, config and wishes to the hypotheses of each sentence."""
WIDTH = 64
"""The size of a part of the vocabulary is a multiple of this, so that sizes repeat."""


def narrow_search(search: Search, allowed: Sequence[PieceIds]) -> Search:
    """Return `search` over the tokens that are `allowed`, ascending ids for each sentence of the batch.

    EOS is always among these. What a wish asks for is allowed, too.
    """

    def found(
        model: TranslationModel,
        src: Tensor,
        src_mask: Tensor,
        cfg: Any,
        wishes: Sequence[Wish] | None = None,
    ) -> list[list[Hypothesis]]:
        asked: Sequence[Wish | None] = wishes or [None] * len(allowed)
        sets = [
            np.union1d(own, np.array(_asked_for(wish, own), np.int64))
            for own, wish in zip(allowed, asked, strict=True)
        ]
        ids = np.unique(np.concatenate([np.arange(EOS_ID + 1), *sets]))
        numbers = {token: number for number, token in enumerate(ids.tolist())}
        mask = np.zeros((len(sets), -(-len(ids) // WIDTH) * WIDTH), dtype=bool)
        for row, own in zip(mask, sets, strict=True):
            row[np.searchsorted(ids, own)] = True
        padded = np.concatenate([ids, np.full(mask.shape[1] - len(ids), PAD_ID)])
        narrow = narrowed(model, *(torch.from_numpy(x).to(src.device) for x in (padded, mask)))
        renamed = None if wishes is None else [_renumbered(wish, numbers) for wish in wishes]
        return [
            [replace(one, ids=padded[one.ids].tolist() if one.ids else []) for one in several]
            for several in search(narrow, src, src_mask, cfg, renamed)
        ]

    return found


def _asked_for(wish: Wish | None, allowed: PieceIds) -> list[int]:
    """Return the tokens that a translation needs, beside those `allowed`, to be as it is wished for."""
    if wish is None:
        return []
    asked = [*wish.prefix, *itertools.chain(*itertools.chain(*wish.must))]
    if len(wish.rest) == 1 and wish.rest[0].keys() & {*allowed.tolist(), *asked}:
        return asked  # one character is to come, perhaps the space that begins half of all tokens: it can
    return [*asked, *itertools.chain.from_iterable(wish.rest)]


def _renumbered(wish: Wish, numbers: dict[int, int]) -> Wish:
    """Return a wish about numbers; what it avoids cannot appear where the vocabulary lacks a token of it.

    Nor can it be spelt with such a token.
    """
    numbers = {**numbers, EDGE: EDGE}

    def of(ids: Iterable[int]) -> list[int]:
        return [numbers[token] for token in ids]

    return replace(
        wish,
        prefix=of(wish.prefix),
        rest=[
            {numbers[token]: spelt for token, spelt in row.items() if token in numbers} for row in wish.rest
        ],
        must=[[of(ids) for ids in spellings] for spellings in wish.must],
        word_parts=of(token for token in wish.word_parts if token in numbers),
        word_ends=of(token for token in wish.word_ends if token in numbers),
        capitals=of(token for token in wish.capitals if token in numbers),
        letters=of(token for token in wish.letters if token in numbers),
        avoid=[of(ids) for ids in wish.avoid if all(token in numbers for token in ids)],
    )
