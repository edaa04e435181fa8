"""The shares of several corpora in an epoch, and the tags in front of their sources.

The share of a corpus is in proportion to weight * pairs^(1 / temperature): a temperature of 1 follows the
sizes of the corpora, a higher one favours small corpora, and `null` follows the weights alone (Arivazhagan et
al. 2019, section 4.2). The pairs may be those of all corpora of a direction, which share its part of an epoch
by their sizes. A tag such as <2de> in front of a source asks for a target language, so that one model
translates into several (Johnson et al. 2017). A tag such as <domain:med>, behind it, tells of what domain a
text is (Kobus et al. 2017). A tag such as <bt> tells in training where a pair is from, such as
back-translation (Caswell et al. 2019). Knows neither files nor tokens; `sources` has the corpora.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from enum import Enum

from nmt.data.configs import DataConfig
from nmt.data.parallel_text import PairStream, ParallelText
from nmt.errors import UserError, suggest

SPECIAL = ("s", "pad", "unk")
"""Words that with angle brackets are special pieces of a tokenizer."""


class TemperatureOf(Enum):
    """What is the larger, the more often it is read."""

    corpora = "corpora"
    directions = "directions"


def shares(
    weights: Sequence[float], sizes: Sequence[int], temperature: float | None, groups: Sequence[object]
) -> list[float]:
    """Return the share of each corpus in an epoch; the shares add up to 1.

    The temperature is of the groups, of which `groups` has that of each corpus. A corpus of weight 0 is not
    read, and no part of its group.
    """
    power = 0.0 if temperature is None else 1.0 / temperature
    corpora, totals = list(zip(weights, sizes, groups, strict=True)), Counter[object]()
    for weight, size, group in corpora:
        totals[group] += size if weight else 0
    largest = max(*sizes, *totals.values())  # powers of ratios do not overflow
    parts = [
        weight * (size / totals[group]) * (totals[group] / largest) ** power if weight else 0.0
        for weight, size, group in corpora
    ]
    return [part / sum(parts) for part in parts]


def mean_shares(shares: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean share of each corpus over all stages; `shares` has those of each stage."""
    return [sum(of_corpus) / len(shares) for of_corpus in zip(*shares, strict=True)]


def tagged(lines: Iterable[str], tag: str) -> Iterator[str]:
    """Put `tag` in front of the lines; blank ones stay as they are."""
    return (f"{tag} {line}" if line.strip() else line for line in lines)


TAG = re.compile(r"<2[^<>\s]+>")
"""The tag of a target language, such as `<2de>`."""


def split_tag(line: str) -> tuple[str, str]:
    """Return the tag of a target language in front of a line, empty without one, and the rest of the line."""
    tag = TAG.match(line)
    is_tagged = tag is not None and line[tag.end() : tag.end() + 1] == " "
    return (tag[0], line[tag.end() + 1 :]) if tag and is_tagged else ("", line)


def tag_of_language(language: str) -> str:
    """Return the tag that asks for a target language: <2de> for de."""
    return f"<2{language}>"


def language_of_tag(tag: str) -> str:
    """Return the language that a tag asks for: de of <2de>."""
    return tag.removeprefix("<2").removesuffix(">")


def untagged(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines without the tag of a target language in front, such as `<2de>`."""
    return (split_tag(line)[1] for line in lines)


FRONT = re.compile(rf"((?:{TAG.pattern} )?)((?:<domain:[a-z0-9]+> )?)")
"""The tags of a line to translate, of its language and of its domain, each with a space behind it."""


def split_front(line: str) -> tuple[str, str]:
    """Return the tags of a language and of a domain in front of a line, as they stand there, and the rest."""
    front = FRONT.match(line)[0]  # type: ignore[index]  # which may be empty
    return front, line[len(front) :]


def without_front(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines without the tags of a language and of a domain in front."""
    return (split_front(line)[1] for line in lines)


def domain_of(line: str) -> str:
    """Return the tag of a domain in front of a line, with a space behind it; empty without one."""
    return str(FRONT.match(line)[2])  # type: ignore[index]


def in_domain(lines: Iterable[str], tag: str, known: Collection[str]) -> Iterator[str]:
    """Put the tag of a domain in front, behind that of a language; lines that have a `known` one keep it."""
    for line in lines:
        language = split_front(line)[0].removesuffix(own := domain_of(line))
        text = line.removeprefix(language)
        yield line if own.strip() in known or not text.strip() else f"{language}{tag} {text}"


def require_domain(domain: str, data: DataConfig, where: str = "domain") -> None:
    """Raise `UserError` unless a run of `data` knows a domain; `where` says what names it."""
    known = list(dict.fromkeys(data.domains.values()))
    if not known:
        raise UserError(
            f"{where}={domain}: the run was trained without domains, which data.corpora.NAME.domain names; "
            "leave it out"
        )
    if domain not in known:
        raise UserError(f"{where}={domain}: the run knows {', '.join(known)}{suggest(domain, known)}")


def require_tag(key: str, tag: object) -> None:
    """Raise `UserError` unless `tag`, the value of `key`, can be a piece of a tokenizer in angle brackets."""
    if not isinstance(tag, str) or not re.fullmatch("[a-z][a-z0-9]*", tag) or tag in SPECIAL:
        raise UserError(
            f"{key} must be a word of small letters a to z and digits, such as bt, "
            f"and none of {', '.join(SPECIAL)}, but is {tag!r}"
        )


def tagged_stream(source: PairStream, tag: str) -> PairStream:
    """Put `tag` in front of the sources of a stream; an empty tag changes nothing."""

    def chunks() -> Iterator[ParallelText]:
        for chunk in source.chunks():
            yield replace(chunk, src=list(tagged(chunk.src, tag)))

    def stamp() -> str:
        return hashlib.sha256(f"{source.stamp()} {tag}".encode()).hexdigest()

    return PairStream(stamp, chunks) if tag else source


def weighted_stream(source: PairStream, factor: float) -> PairStream:
    """Multiply the weights of all pairs of a stream; a factor of 1 changes nothing."""

    def chunks() -> Iterator[ParallelText]:
        for chunk in source.chunks():
            yield replace(chunk, weights=[factor * weight for weight in chunk.all_weights])

    def stamp() -> str:
        return hashlib.sha256(f"{source.stamp()} times {factor}".encode()).hexdigest()

    return source if factor == 1.0 else PairStream(stamp, chunks)
