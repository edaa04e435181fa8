"""Lines as the parts that are translated: sentences of long lines, and the sentence behind its context.

A line that is split gives several requests, and their translations are joined again, so that one line gives
one translation. Of a model that translates the context, too, what stands behind the last separator is the
translation. If it has another number of separators than its source, nobody knows where the sentence begins;
the sentence is then translated again without context.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from nmt.data.configs import CONTEXT_SEPARATOR
from nmt.data.documents import current
from nmt.data.reading.mixture import split_front
from nmt.data.text.sentences import joined, parts, sentences
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.decoding.configs import LineSplitting
from nmt.errors import Log
from nmt.translation.requests import Request
from nmt.translation.translate import CHARS_PER_TOKEN, Translation

MOST_CHARS = 1 << 16
"""Characters of the longest line that is split, about 10,000 words; other lines have to wait for it."""


class Usual(NamedTuple):
    """The longest lines that `LineSplitting.long` leaves whole."""

    tokens: int
    sentences: int | None = None
    """None: any number of them."""


def usual_of(sources: Sequence[str], tokenizer: Tokenizer, language: str) -> Usual | None:
    """Return the length of the longest of some sources, and how many sentences 99% of them have at most.

    None without sources.
    """
    counts = sorted(max(1, len(sentences(source, language))) for source in sources)
    if not counts:
        return None
    return Usual(max(map(len, tokenizer.encode_src(sources))), counts[(99 * len(counts) - 1) // 100])


@dataclass
class Splitting:
    """What is split, and how."""

    which: LineSplitting
    usual: Usual
    longest: int
    """Tokens that the model can read; a sentence of more is divided at clauses or words."""
    tokenizer: Tokenizer
    language: str = ""
    """Language of the lines."""

    def of(self, request: Request) -> list[Request]:
        """Return the parts of a line, each with those before it behind the context of the line; or the line.

        A line of which a prefix or phrases are asked, or that has a match, stays whole: nobody knows of which
        part they are. So does one of more than `MOST_CHARS`: it is cut where the model ends.
        """
        if self.which is LineSplitting.none or request.prefix or request.must or request.match:
            return [request]
        if len(request.src) > MOST_CHARS:
            return [request]
        texts = sentences(request.src, self.language)
        if self.which is LineSplitting.long and self._is_usual(request.src, len(texts)):
            return [request]
        if not all(is_short(text, self.longest, self.tokenizer) for text in texts):
            texts = parts(
                request.src, lambda text: is_short(text, self.longest, self.tokenizer), self.language
            )
        if len(texts) < 2:
            return [request]
        return [
            dataclasses.replace(request, src=text, context=[*request.context, *texts[:number]])
            for number, text in enumerate(texts)
        ]

    def _is_usual(self, line: str, num_sentences: int) -> bool:
        tokens, most = self.usual
        has_few = most is None or num_sentences <= most
        return has_few and is_short(line, min(tokens, self.longest), self.tokenizer)


def is_short(text: str, most: int, tokenizer: Tokenizer) -> bool:
    """Return whether a source has at most `most` tokens."""
    if 4 * len(text) + 4 < most - len(tokenizer.src_start):
        return True  # a character has four pieces at most, its bytes
    if len(text) > CHARS_PER_TOKEN * most:
        return False
    return len(tokenizer.encode_src([text])[0]) <= most


def with_less_context(src: str, most: int, tokenizer: Tokenizer) -> str:
    """Return a source with as much of its context as `most` tokens hold, the latest sentences."""
    while CONTEXT_SEPARATOR in src and not is_short(src, most, tokenizer):
        front, text = split_front(src)
        src = front + text.partition(CONTEXT_SEPARATOR)[2].lstrip()
    return src


class Segments:
    """The parts of some lines."""

    def __init__(self, found: Sequence[Sequence[Request]]):
        self.counts = [len(several) for several in found]
        self.requests = [one for several in found for one in several]
        """The parts of all lines, in order."""
        self.lines = [line for line, several in enumerate(found) for _ in several]
        """For each part the number of its line, from 0."""

    def by_line(self, of_parts: Iterable[Any]) -> list[list[Any]]:
        """Return what there is of each part as a list for each line."""
        remaining = iter(of_parts)
        return [list(itertools.islice(remaining, count)) for count in self.counts]

    def joined(self, translations: Sequence[Translation]) -> list[Translation]:
        """Return the translation of each line, given those of its parts."""
        return [
            several[0] if len(several) == 1 else joined_translations(several)
            for several in self.by_line(translations)
        ]


def joined_translations(several: Sequence[Translation]) -> Translation:
    """Return the translations of the parts of a line as one; its score is the sum of theirs.

    Alternative number i is made of the alternatives of this number, as far as every part has one.
    """
    text = joined([one.text for one in several])
    others = zip(*(one.alternatives for one in several), strict=False)
    return Translation(
        text,
        sum(one.score for one in several),
        [joined_translations(list(ones)) for ones in others],
        [token for one in several for token in one.ids],
        [token for one in several for token in one.tokens],
        [value for one in several for value in one.log_probs],
        any(one.truncated for one in several),
        list(dict.fromkeys(phrase for one in several for phrase in one.unmet)),
        len(several),
    )


Translate = Callable[[list[Request], Sequence[int]], list[Translation]]
"""A function of requests, and of the place of each among all, that returns their translations."""


def translated_behind_context(
    requests: Sequence[Request], translate: Translate, warn: Log
) -> list[Translation]:
    """Translate requests with context by a model whose targets have it, too; return the sentences themselves.

    The score of a translation stays that of the whole.
    """
    asked = [_without_wish(request) for request in requests]
    found = translate(asked, range(len(asked)))
    breaks = [_num_breaks(one.src) for one in asked]
    lost = [i for i, one in enumerate(found) if breaks[i] and _num_breaks(one.text) != breaks[i]]
    if lost:
        num_sentences = sum(bool(one.src.strip()) for one in asked)
        again = [dataclasses.replace(asked[i], src=_alone(asked[i].src)) for i in lost]
        for i, one in zip(lost, translate(again, lost), strict=True):
            found[i] = one
        warn(
            f"{len(lost):,} of {num_sentences:,} sentences were translated without context: of them with "
            "their context the model made another number of sentences"
        )
    return [_behind(one) for one in found]


def _num_breaks(text: str) -> int:
    return text.count(CONTEXT_SEPARATOR)


def _alone(src: str) -> str:
    """Return the last sentence of a source, with the tags in front if the source has some."""
    return split_front(src)[0] + current(src) if CONTEXT_SEPARATOR in src else src


def _without_wish(request: Request) -> Request:
    """Return a request without context if it has a prefix or phrases that the sentence itself must have."""
    is_asked = request.prefix or request.must
    return dataclasses.replace(request, src=_alone(request.src)) if is_asked else request


def _behind(one: Translation) -> Translation:
    """Return a translation without that of the context, and the alternatives with as many sentences as it."""
    others = [other for other in one.alternatives if _num_breaks(other.text) == _num_breaks(one.text)]
    return dataclasses.replace(one, text=current(one.text), alternatives=[_behind(other) for other in others])
