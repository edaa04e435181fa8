"""Inline tags through a translation: taken out of the lines, and put back where attention says.

The text is that of `nmt.data.inline_tags`, the weights are those of cross-attention between a line and its
translation, by one more pass for the lines that have tags alone. A model without such weights gets tags by
position.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nmt.attention_views.alignment import mean_weights
from nmt.attention_views.maps import SentenceMaps, attend_tokens
from nmt.data.inline_tags import TaggedLine, Weights, by_position, unit_weights, units
from nmt.decoding.requests import Request
from nmt.decoding.translate import Translation, beginnings, longest_source
from nmt.errors import Log
from nmt.models.ensemble import Ensemble

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
        asked: Sequence[str | Request],
        translations: Sequence[Translation],
        search: DecodingConfig,
    ) -> None:
        """Put the tags into the texts of the translations, alternatives included.

        `asked` are the requests as the model got them, perhaps with the tag of a language in front.
        """
        todo = [
            (line, Request.of(one).src, candidate)
            for line, one, best in zip(self.lines, asked, translations, strict=True)
            if not line.is_plain
            for candidate in (best, *best.alternatives)
        ]
        tagged = [(source, one) for line, source, one in todo if line.tags]
        found = iter(_maps(run, [source for source, _ in tagged], [one.ids for _, one in tagged], search))
        for line, _, one in todo:
            weights = _weights(next(found), line, one.text) if line.tags else by_position(0, 0)
            one.text = line.put_into(one.text, weights)


def _maps(
    run: TrainedModel, sources: Sequence[str], targets: Sequence[list[int]], search: DecodingConfig
) -> list[SentenceMaps]:
    """Return what the translations attend to in their sources; empty where there is nothing to attend to."""
    longest = longest_source(run.model, search)
    pieces = run.tokenizer.src_pieces(beginnings(sources, longest))
    sentences = [
        SentenceMaps(number, src[:longest], run.tokenizer.decoded_pieces(ids))
        if ids
        else SentenceMaps(number)
        for number, (src, ids) in enumerate(zip(pieces, targets, strict=True))
    ]
    if not sentences:
        return []
    model = run.model.members[0] if isinstance(run.model, Ensemble) else run.model
    return list(attend_tokens(sentences, model, run.tokenizer, device=run.device))


def _weights(maps: SentenceMaps, line: TaggedLine, translation: str) -> Weights:
    if not maps.cross:
        return by_position(len(units(translation)), len(line.units))
    src, tgt = ([piece.surface for piece in side] for side in (maps.src, maps.tgt))
    return unit_weights(mean_weights(maps.cross), src, tgt, line.text, translation)


def _message(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:5])) + (f" and {len(numbers) - 5} more" if len(numbers) > 5 else "")
    return (
        f"the tags of line {shown} are not well-formed (one has no partner, or pairs cross); each is put "
        "where the words beside it are"
    )
