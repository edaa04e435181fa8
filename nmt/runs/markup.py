"""Inline tags through a translation: taken out of the lines, and put back where attention says.

The text is that of `nmt.data.text`, the weights are those of cross-attention between a line and its
translation, by one more pass for the lines that have tags alone. A model without such weights gets tags by
position.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nmt.attention_views.alignment import mean_weights
from nmt.attention_views.maps import SentenceMaps, attend_tokens
from nmt.data.text.inline_tags import TaggedLine, Weights, by_position, unit_weights, units
from nmt.errors import Log, first_of
from nmt.translation.requests import Request
from nmt.translation.translate import Translation, beginnings, longest_source

if TYPE_CHECKING:
    from nmt.decoding.configs import DecodingConfig
    from nmt.runs.task import TrainedModel


class Markup:
    """The tags of some lines, while their plain text is translated."""

    def __init__(self, lines: Sequence[str | Request], warn: Log, first_line: int = 1):
        requests = list(map(Request.of, lines))
        self.lines = [TaggedLine(one.src) for one in requests]
        self.requests = [
            one if line.is_plain else dataclasses.replace(one, src=line.text)
            for one, line in zip(requests, self.lines, strict=True)
        ]
        """The requests with plain sources."""
        if wrong := [i for i, line in enumerate(self.lines, start=first_line) if not line.is_well_formed]:
            warn(_message(wrong))

    def restore(
        self,
        run: TrainedModel,
        parts: Sequence[Sequence[Part]],
        translations: Sequence[Translation],
        search: DecodingConfig,
    ) -> None:
        """Put the tags into the texts of the translations, alternatives included.

        `parts` are those of each line that were translated one by one, and joined to its translation.
        """
        todo = [
            (line, [part.candidate(number) for part in several], candidate)
            for line, several, best in zip(self.lines, parts, translations, strict=True)
            if not line.is_plain
            for number, candidate in enumerate((best, *best.alternatives))
        ]
        found = iter(_maps(run, [part for line, several, _ in todo if line.tags for part in several], search))
        for line, several, one in todo:
            weights = by_position(len(units(one.text)), len(line.units))
            if line.tags:
                blocks = _diagonal([_weights(next(found), part) for part in several])
                weights = blocks if blocks.shape == weights.shape else weights
            one.text = line.put_into(one.text, weights)


class Part(NamedTuple):
    """A line, or one of its sentences, and its translation."""

    text: str
    """The plain source."""
    asked: str
    """The source as the model got it, perhaps with the tag of a language in front."""
    translation: Translation

    def candidate(self, number: int) -> Part:
        """Return the part with one of its translations; 0 is the best."""
        return self._replace(translation=self.translation.alternatives[number - 1]) if number else self


def _maps(run: TrainedModel, parts: Sequence[Part], search: DecodingConfig) -> list[SentenceMaps]:
    """Return what the translations attend to in their sources; empty where there is nothing to attend to."""
    longest = longest_source(run.model, search)
    pieces = run.tokenizer.src_pieces(beginnings([part.asked for part in parts], longest))
    sentences = [
        SentenceMaps(number, src[:longest], run.tokenizer.decoded_pieces(part.translation.ids))
        if part.translation.ids
        else SentenceMaps(number)
        for number, (src, part) in enumerate(zip(pieces, parts, strict=True))
    ]
    if not sentences:
        return []
    return list(attend_tokens(sentences, run.model.members[0], run.tokenizer, device=run.device))


def _weights(maps: SentenceMaps, part: Part) -> Weights:
    if not maps.cross:
        return by_position(len(units(part.translation.text)), len(units(part.text)))
    src, tgt = ([piece.surface for piece in side] for side in (maps.src, maps.tgt))
    return unit_weights(mean_weights(maps.cross), src, tgt, part.text, part.translation.text)


def _diagonal(blocks: Sequence[Weights]) -> Weights:
    """Return the weights of texts that follow each other, of which each belongs to its own source alone."""
    whole = np.zeros([sum(block.shape[side] for block in blocks) for side in (0, 1)])
    row = column = 0
    for block in blocks:
        rows, columns = block.shape
        whole[row : row + rows, column : column + columns] = block
        row, column = row + rows, column + columns
    return whole


def _message(numbers: Sequence[int]) -> str:
    return (
        f"the tags of line {first_of(numbers)} are not well-formed (one has no partner, or pairs cross); "
        "each is put where the words beside it are"
    )
