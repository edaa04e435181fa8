"""Documents: previous sentences in front of each pair of a stream, and of each line to translate.

A pair of a corpus with `data.context=2` becomes

    first source <brk> second source <brk> source        target                     "2+1"
    first source <brk> second source <brk> source        first target <brk> ...     "2+2", context_target

(Tiedemann and Scherrer 2017). Context never crosses the end of a document, which is a pair of blank lines.
Sources with a column of documents put such a pair where the document changes; it is no pair to train on. What
stands after the last separator is the sentence itself: it alone is filtered by length, and scored. Knows text
alone.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from nmt.data.configs import CONTEXT_SEPARATOR, DataConfig
from nmt.data.parallel_text import PairStream, ParallelText, Split

BYTES_PER_TOKEN = 3
"""Bytes of UTF-8 that a side with its context may have for each of `data.max_tokens`: fewer than a piece has
in most texts, so that a pair is hardly ever dropped as too long for its context."""
ESCAPED = CONTEXT_SEPARATOR.replace("<", "< ")
"""What stands for a separator that is part of the text itself."""

Text = TypeVar("Text", bound=ParallelText)


def without_separators(line: str) -> str:
    """Return a sentence that cannot be taken for several."""
    return line.replace(CONTEXT_SEPARATOR, ESCAPED) if CONTEXT_SEPARATOR in line else line


def current(line: str) -> str:
    """Return the sentence itself, without the context in front."""
    return line.rpartition(CONTEXT_SEPARATOR)[2].lstrip() if CONTEXT_SEPARATOR in line else line


def current_of_each(lines: list[str]) -> list[str]:
    """Return the sentences themselves; the list as it is where none has context."""
    return [current(line) for line in lines] if any(CONTEXT_SEPARATOR in line for line in lines) else lines


def ends_document(src: str, tgt: str) -> bool:
    """Return whether a line of a corpus with documents is no pair, but the end of a document."""
    return not (src.strip() or tgt.strip())


def without_context(text: Text) -> Text:
    """Return pairs whose sides are the sentences themselves."""
    return replace(text, src=current_of_each(text.src), tgt=current_of_each(text.tgt))


def in_context(sentence: str, context: Sequence[str]) -> str:
    """Return previous sentences and a sentence as one line."""
    return f" {CONTEXT_SEPARATOR} ".join([*context, sentence])


def fits(sentence: str, context: Sequence[str], cfg: DataConfig) -> bool:
    """Return whether a sentence with its context is short enough to be trained on and translated."""
    line = in_context(sentence, context)
    return len(line) <= cfg.max_chars and len(line.encode(errors="replace")) <= (
        BYTES_PER_TOKEN * cfg.max_tokens
    )


def composed(sentence: str, context: Sequence[str], cfg: DataConfig) -> str:
    """Return a source with as much of its context as the model was trained with, the latest sentences.

    Blank sentences are no context, and a blank sentence has none.
    """
    sentence = without_separators(sentence)
    found = [without_separators(one.strip()) for one in context if one.strip()]
    found = found[len(found) - min(cfg.context, len(found)) :] if sentence.strip() else []
    while found and not fits(sentence, found, cfg):
        found = found[1:]
    return in_context(sentence, found)


class PreviousLines:
    """The lines before the next one to translate, of the same document, which a blank line ends."""

    def __init__(self, most: int):
        """Remember the latest `most` lines."""
        self._lines: deque[str] = deque(maxlen=most)

    def of(self, line: str, *, begins: bool = False) -> list[str]:
        """Return the lines before the next one, which may begin another document, and remember that, too."""
        if begins or not line.strip():
            self._lines.clear()
        found = list(self._lines)
        if line.strip():
            self._lines.append(line)
        return found


def with_context(source: PairStream, cfg: DataConfig, split: Split) -> PairStream:
    """Put previous sentences in front of the pairs of a stream, and leave out the ends of documents.

    In training, a share `cfg.context_short` of the pairs has less context than there is, perhaps none: a pure
    function of the number of the pair. The stream does not depend on the sizes of chunks.
    """
    short = cfg.context_short if split is Split.train else 0.0
    options = cfg.context, cfg.context_target, short, cfg.max_tokens, cfg.max_chars

    def chunks() -> Iterator[ParallelText]:
        history: deque[tuple[str, str]] = deque(maxlen=cfg.context)
        number = 0
        for chunk in source.chunks():
            found = ParallelText()
            for *pair, weight in zip(chunk.src, chunk.tgt, chunk.all_weights, strict=True):
                if ends_document(*pair):
                    history.clear()
                    continue
                is_whole = all(map(str.strip, pair))
                src, tgt = map(without_separators, pair)
                wanted = _wanted(number, cfg.context, short)
                number += 1
                context = list(history)[max(0, len(history) - wanted) :] if is_whole else []
                _add(found, src, tgt, context, cfg)
                if chunk.weights:
                    found.weights.append(weight)
                if is_whole:
                    history.append((src.strip(), tgt.strip()))
            yield found

    def stamp() -> str:
        return hashlib.sha256(f"{source.stamp()} context {options}".encode()).hexdigest()

    return PairStream(stamp, chunks)


def _add(text: ParallelText, src: str, tgt: str, context: list[tuple[str, str]], cfg: DataConfig) -> None:
    """Add a pair with as much of its context as fits, the latest sentences."""
    while context:
        before = [one for one, _ in context], [one for _, one in context] if cfg.context_target else []
        if fits(src, before[0], cfg) and fits(tgt, before[1], cfg):
            src, tgt = in_context(src, before[0]), in_context(tgt, before[1])
            break
        context = context[1:]
    text.src.append(src)
    text.tgt.append(tgt)


def _wanted(number: int, most: int, short: float) -> int:
    """Return how many sentences of context a pair has at most: `most`, or with probability `short` fewer."""
    if not short:
        return most
    digest = hashlib.blake2b(number.to_bytes(8, "little"), digest_size=8).digest()
    chance, fewer = int.from_bytes(digest[:4], "little") / 2**32, int.from_bytes(digest[4:], "little")
    return fewer % most if chance < short else most


class DocumentEnds:
    """Blank pairs where the document of a row is not that of the row before."""

    def __init__(self) -> None:
        self._last: object = None

    def starts(self, document: object) -> bool:
        """Return whether a row of `document` begins another document than that of the row before."""
        if document is None:  # unknown: the same
            return False
        before, self._last = self._last, document
        return before is not None and document != before

    def parted(self, rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[str, ...]]:
        """Yield the texts of rows (text, ..., document), with a blank row between two documents."""
        for *texts, document in rows:
            if self.starts(document):
                yield ("",) * len(texts)
            yield tuple(texts)
