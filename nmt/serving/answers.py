"""What a request asks about its lines, and the answers as plain data.

Translations are those of `nmt.translation.translate`, which `nmt translate` writes, too. Confidence comes
from one more pass of the model over each translation, attention from another. Knows no HTTP.

Shapes: T target tokens, S source tokens.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nmt.attention_views.alignment import Weights, mean_weights, word_indices, word_weights
from nmt.attention_views.maps import SentenceMaps, attend_tokens
from nmt.data.configs import CONTEXT_SEPARATOR
from nmt.data.documents import current
from nmt.data.reading.mixture import split_front
from nmt.data.special_ids import EOS_ID
from nmt.data.tokens.tokenizer import Piece
from nmt.decoding import DecodingConfig
from nmt.errors import UserError
from nmt.runs.markup import Markup, Part
from nmt.runs.opened import Run
from nmt.translation.offers import NO_OFFERS, Offers
from nmt.translation.requests import Request, Wishes
from nmt.translation.score import score_ids
from nmt.translation.segments import Segments
from nmt.translation.translate import (
    Translation,
    beginnings,
    is_shortened,
    longest_source,
    longest_target,
    require_room,
)

MOST_WISHED = 4_000_000
"""Sum over the lines of a request of `Wish.size`, some ten bytes each."""


class TooLarge(UserError):
    """A request that asks for more than the limits of the server allow."""


@dataclass(frozen=True)
class Question:
    """What is asked about a line."""

    search: DecodingConfig
    scores: bool = False
    """Whether the answer has scores, and the probability of each word and token."""
    attention: bool = False
    """Whether the answer has weights of cross-attention."""
    prefix: str = ""
    must: tuple[str, ...] = ()
    avoid: tuple[str, ...] = ()
    """Text that translations begin with, must have and must not have: see `nmt.translation.requests`."""
    terms: tuple[tuple[str, str], ...] = ()
    """Terms of the sources and their translations."""
    markup: bool = False
    """Whether inline tags of the line are put into the answer."""
    offers: Offers = NO_OFFERS
    """What the source is offered, or the translation must have, besides."""

    @property
    def has_wishes(self) -> bool:
        """Whether anything is asked of the text; the answer then has `unmet`."""
        return bool(self.prefix or self.must or self.avoid or self.terms)

    def request(self, line: str) -> Request:
        """Return what the search is given for a line."""
        return Request(line, self.prefix, list(self.must), list(self.avoid), terms=dict(self.terms))


@dataclass
class _Candidate:
    """One translation of a line, and what the answer says of it."""

    src: list[Piece]
    translation: Translation
    given: int
    """The first tokens of the translation that were given, not predicted."""
    told: dict[str, Any] = field(default_factory=dict)


def answers(run: Run, lines: Sequence[str], questions: Sequence[Question]) -> list[dict[str, Any]]:
    """Return the answer to each line; all questions have one search."""
    search = questions[0].search
    markup, segments = _parts(run, lines, questions)
    plain, offered = _offered(run, segments, questions)
    # What is unmet is in the answers; what would be cut, or has no room, is refused by `num_tokens`.
    found = run.translated_requests(offered, search, range(1, len(offered) + 1), warn_unmet=False)
    whole = segments.joined(found)
    parts = [
        Part(one.src, asked.src, translation)
        for one, asked, translation in zip(plain, segments.requests, found, strict=True)
    ]
    markup.restore(run, segments.by_line(parts), whole, search)
    sources = run.tokenizer.src_pieces([one.src for one in offered])
    givens = [
        len(run.tokenizer.tgt_start(one.src)) if best.ids else 0  # a blank line has an answer without it
        for one, best in zip(offered, found, strict=True)
    ]
    candidates = [
        [_Candidate(src, one, given, {"text": one.text}) for one in (best, *best.alternatives)]
        for src, best, given in zip(sources, found, givens, strict=True)
    ]
    asked = [(questions[i], several) for i, several in zip(segments.lines, candidates, strict=True)]
    for one in (one for question, some in asked if question.has_wishes for one in some):
        one.told["unmet"] = one.translation.unmet
    _add_confidence(run, search, [one for question, some in asked if question.scores for one in some])
    _add_attention(run, [one for question, some in asked if question.attention for one in some])
    told = [
        best.told | ({"alternatives": [x.told for x in more]} if more else {}) for best, *more in candidates
    ]
    return [
        several[0] if len(several) == 1 else {"text": one.text, "sentences": several}
        for one, several in zip(whole, segments.by_line(told), strict=True)
    ]


def _parts(run: Run, lines: Sequence[str], questions: Sequence[Question]) -> tuple[Markup, Segments]:
    """Return the tags of lines, and the requests for them, for the sentences of long lines with tags.

    Lines without `Question.markup` are sentences, with their context, already.
    """
    fronts = [_front(run, line) for line in lines]
    bodies = [line[len(front) :] for line, front in zip(lines, fronts, strict=True)]
    markup = Markup(
        [body if one.markup else "" for one, body in zip(questions, bodies, strict=True)], lambda _: None
    )
    found = []
    for line, front, plain, one in zip(lines, fronts, markup.requests, questions, strict=True):
        several = run.segments([one.request(plain.src)], one.search).requests if one.markup else []
        found.append([replace(x, src=front + x.src) for x in several] or [one.request(line)])
    return markup, Segments(found)


def _offered(
    run: Run, segments: Segments, questions: Sequence[Question]
) -> tuple[list[Request], list[Request]]:
    """Return the parts of lines without what is in front of their sentences, and with their offers."""
    plain, offered = list[Request](), list[Request]()
    for line, one in zip(segments.lines, segments.requests, strict=True):
        front, question = _front(run, one.src), questions[line]
        plain.append(replace(one, src=one.src[len(front) :]))
        [wish] = run.with_offers(plain[-1:], question.search, question.offers)
        offered += run.fitted([replace(wish, src=front + wish.src)], question.search)
    return plain, offered


def _front(run: Run, line: str) -> str:
    """Return what stands in front of the sentence itself: tags of language and domain, and the context."""
    if run.cfg.data.context and CONTEXT_SEPARATOR in line:
        return line[: len(line) - len(current(line))]
    return split_front(line)[0] if run.cfg.data.tags or run.cfg.data.domains else ""


def num_tokens(run: Run, lines: Sequence[str], question: Question, numbers: Sequence[int]) -> list[int]:
    """Return the number of source tokens of each line, EOS and what is offered counted, and inline tags not.

    Raises:
        TooLarge: all lines together ask for too many phrases.
        UserError: a line has more tokens than are read, or asks for more; names the line by its number, from
            0, among those of the request, which `numbers` has of each line.
    """
    longest = longest_source(run.model, question.search)
    _, segments = _parts(run, lines, [question] * len(lines))
    _, offered = _offered(run, segments, [question] * len(lines))
    encoded = run.tokenizer.encode_src(beginnings([one.src for one in offered], longest))
    wishes, size = Wishes(run.tokenizer), 0
    for line, one, ids in zip(segments.lines, offered, encoded, strict=True):
        name = f"text[{numbers[line]}]"
        if len(ids) > longest or is_shortened(one.src, len(ids), longest):
            raise UserError(f"{name} has more than the {longest} tokens that are read; split it")
        wish = wishes.of(one)
        require_room(wish, longest_target(run.model, question.search), name)
        size += wish.size
        if size > MOST_WISHED:
            raise TooLarge(
                "must, avoid and terms have too many phrases for so many lines; ask for fewer of either"
            )
    return [sum(map(len, several)) for several in segments.by_line(encoded)]


def _add_confidence(run: Run, search: DecodingConfig, candidates: Sequence[_Candidate]) -> None:
    """Add the score, and the probability of each word and token given what the model predicts before it."""
    sources = [[piece.id for piece in one.src] for one in candidates]
    targets = [[*one.translation.ids, EOS_ID] for one in candidates]
    model = run.searched(search)
    found = score_ids(sources, targets, model, search.tokens_at_once(run.device.type), device=run.device)
    for one, log_probs in zip(candidates, found, strict=True):
        log_probs = log_probs[one.given :]
        pieces = run.tokenizer.decoded_pieces(one.translation.ids)[one.given :]
        pairs = list(zip(pieces, log_probs, strict=True))
        if run.tokenizer.cfg.right_to_left:
            pairs[:-1] = pairs[-2::-1]
        surfaces = [piece.surface for piece, _ in pairs]
        confidence = [1.0 for _ in _words(surfaces)]
        for word, (_, log_prob) in zip(word_indices(surfaces), pairs, strict=True):
            if word is not None:
                confidence[word] *= math.exp(log_prob)
        named = zip(_words(surfaces), confidence, strict=True)
        words = [{"text": word, "confidence": value} for word, value in named]
        tokens = [{"text": piece.text, "log_prob": log_prob} for piece, log_prob in pairs]
        scores = {"score": one.translation.score, "log_prob": math.fsum(log_probs)}
        one.told |= {**scores, "words": words, "tokens": tokens}


def _add_attention(run: Run, candidates: Sequence[_Candidate]) -> None:
    """Add the mean of cross-attention over all layers and heads: between tokens, and between words."""
    sentences = [
        SentenceMaps(number, one.src, run.tokenizer.decoded_pieces(one.translation.ids))
        for number, one in enumerate(candidates)
    ]
    found = attend_tokens(sentences, run.model, run.tokenizer, device=run.device) if sentences else ()
    for one, maps in zip(candidates, found, strict=True):
        weights = mean_weights(maps.cross)
        src, tgt = ([piece.surface for piece in side] for side in (maps.src, maps.tgt))
        _, _, between = word_weights(weights, word_indices(src), word_indices(tgt))
        one.told["attention"] = {
            "src_tokens": [piece.text for piece in maps.src],
            "tgt_tokens": [piece.text for piece in maps.tgt],
            "weights": _rounded(weights),
            "src_words": _words(src),
            "tgt_words": _words(tgt),
            "word_weights": _rounded(between),
        }


def _words(surfaces: Sequence[str]) -> list[str]:
    """Return the words of a line, as `word_indices` counts them."""
    return re.findall(r"\S+", "".join(surfaces))


def _rounded(weights: Weights) -> list[list[float]]:
    return [[round(weight, 4) for weight in row] for row in weights.tolist()]
