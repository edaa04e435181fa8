"""How often each of several corpora is drawn from, and the tags that ask for a target language.

In an epoch a corpus has a share in proportion to weight * pairs^(1 / temperature): with a temperature of 1
that of its size, with a higher one more for the small corpora, with `null` that of its weight alone
(Arivazhagan et al. 2019, section 4.2). A tag such as <2de> in front of a source says which language is
wanted, so that one model translates into several (Johnson et al. 2017). Knows neither files nor tokens; which
corpora there are is up to `nmt.data.sources`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence

from nmt.data.pairs import PairStream, ParallelText


def shares(weights: Sequence[float], sizes: Sequence[int], temperature: float | None) -> list[float]:
    """Return which part of what is drawn comes from each corpus; the parts add up to 1."""
    power = 0.0 if temperature is None else 1.0 / temperature
    largest = max(sizes)  # sizes matter by their ratios, and powers of those do not overflow
    drawn = [weight * (size / largest) ** power for weight, size in zip(weights, sizes, strict=True)]
    return [x / sum(drawn) for x in drawn]


def tagged(lines: Iterable[str], tag: str) -> Iterator[str]:
    """Put `tag` in front of the lines; blank ones stay as they are."""
    return (f"{tag} {line}" if line.strip() else line for line in lines)


def untagged(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines without the tag of a target language in front, such as `<2de>`."""
    return (re.sub(r"^<2[^<>\s]+> ", "", line) for line in lines)


def tagged_stream(source: PairStream, tag: str) -> PairStream:
    """Put `tag` in front of the sources of a stream; an empty tag changes nothing."""

    def chunks() -> Iterator[ParallelText]:
        for chunk in source.chunks():
            yield ParallelText(list(tagged(chunk.src, tag)), chunk.tgt)

    def stamp() -> str:
        return hashlib.sha256(f"{source.stamp()} {tag}".encode()).hexdigest()

    return PairStream(stamp, chunks) if tag else source


def concatenated(sources: Sequence[PairStream]) -> PairStream:
    """Return several streams as one, one after the other."""

    def chunks() -> Iterator[ParallelText]:
        for source in sources:
            yield from source.chunks()

    def stamp() -> str:
        return hashlib.sha256(repr([source.stamp() for source in sources]).encode()).hexdigest()

    return PairStream(stamp, chunks)
