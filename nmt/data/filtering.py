"""The filters of a corpus run in order, once: which pairs are kept is a bit each, cached with an account.

Later readings of the corpus apply the bits alone. A filter that compares pairs with all others ends a pass
over the corpus; the filters behind it see what it has left in the next pass. Some dropped pairs are written
down for each filter, drawn evenly from the corpus, so that a person can judge a threshold.
"""

from __future__ import annotations

import functools
import hashlib
import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.data import filter_table, sources
from nmt.data.documents import without_context
from nmt.data.filter_table import FILTERS, FilterConfig, ModelFilterConfig, OpusCleanerConfig
from nmt.data.filters import Filter, FilterReport
from nmt.data.lines import require_file
from nmt.data.opuscleaner import expanded
from nmt.data.pair_filters import Context, Mask, ModelScorers, NumberedText, PairFilter
from nmt.data.pairs import DataConfig, PairStream, ParallelText, Split, stamp_of_files
from nmt.disk_cache import Metadata, entry_name, open_entry, write_entry
from nmt.errors import UserError
from nmt.files import write_lines
from nmt.loading import loaded
from nmt.progress import told

FORMAT_VERSION = 4
"""Increased when the format of a cache entry, or what a filter means, changes."""
NUM_EXAMPLES = 50
"""Dropped pairs that are written down for each filter."""
EXAMPLES = "dropped.tsv"
CHANGED = "the training data has changed while it was read; run the same command again"


@dataclass(frozen=True)
class Chain:
    """The filters of one corpus, in order."""

    rows: tuple[FilterConfig, ...]
    context: Context
    tag: str = ""
    """What stands in front of the sources of the corpus, with a space after it; filters do not see it."""
    has_context: bool = False
    """Whether sentences stand behind previous ones; filters do not see those."""

    def __bool__(self) -> bool:
        return bool(self.rows)

    @property
    def reasons(self) -> list[str]:
        """Return the names of the filters in an account, numbered where a row is there several times."""
        names = [row.name for row in self.rows]
        return [
            name if names.count(name) == 1 else f"{name} {names[: i + 1].count(name)}"
            for i, name in enumerate(names)
        ]

    def stamp(self) -> str:
        """Return a hash of the settings of the filters, and of all that they read.

        Raises:
            UserError: a file or a model is not there.
        """
        parts: list[object] = [FORMAT_VERSION, self.context.languages, self.tag, NUM_EXAMPLES]
        for row in self.rows:
            for key, file in row.files.items():
                require_file(file, f"{row.key_prefix}.{key}")
            parts += [repr(row), stamp_of_files(row.files.values())]
            if isinstance(row, ModelFilterConfig) and self.context.scorers:
                parts.append(self.context.scorers.digest(row))
            if row.name == "overlap":
                parts += [(name, text.src, text.tgt) for name, text in self.context.scored_on.items()]
        return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()

    def opened(self) -> list[PairFilter]:
        """Return the filters, ready to judge."""
        return [loaded(FILTERS[row.name].code)(row, self.context) for row in self.rows]

    def bare(self, text: ParallelText, numbers: NDArray[np.int64]) -> NumberedText:
        """Return pairs as filters see them."""
        src = [line.removeprefix(self.tag) for line in text.src] if self.tag else text.src
        found = NumberedText(src, text.tgt, numbers=numbers)
        return without_context(found) if self.has_context else found


def chains(
    cfg: DataConfig, scored_on: Mapping[str, ParallelText], scorers: ModelScorers | None
) -> dict[str, Chain]:
    """Return the filters of each corpus by name: those of the data, then those of the corpus itself."""
    found = {}
    scored_on = {split: _bare(text, cfg) for split, text in scored_on.items()}
    for name, part in cfg.parts(Split.train).items():
        rows = filter_table.parsed(f"{cfg.key_prefix}.filters", cfg.filters, streaming=cfg.streaming)
        if part is not cfg:
            rows += filter_table.parsed(f"{part.key_prefix}.filters", part.filters, streaming=cfg.streaming)
        listed = [expanded(row) if isinstance(row, OpusCleanerConfig) else [row] for row in rows]
        context = Context((part.src, part.tgt), scored_on, scorers, part)
        found[name] = Chain(
            tuple(itertools.chain.from_iterable(listed)),
            context,
            "".join(f"{tag} " for tag in cfg.tags_in_front(name)),
            cfg.context > 0,
        )
    return found


def chains_without_models(cfg: DataConfig) -> dict[str, Chain]:
    """Return the filters of each corpus, as `chains` does, but for those that open models."""
    found = chains(cfg, {}, None)
    if any(row.name == "overlap" for chain in found.values() for row in chain.rows):
        splits = [split for split in (Split.validation, Split.test) if sources.has_split(cfg, split)]
        found = chains(cfg, {split.value: sources.stream(cfg, split).read() for split in splits}, None)
    return {
        name: replace(chain, rows=tuple(row for row in chain.rows if not isinstance(row, ModelFilterConfig)))
        for name, chain in found.items()
    }


def _bare(text: ParallelText, cfg: DataConfig) -> ParallelText:
    """Return pairs to score on as filters see pairs: without the tags of languages, and without context."""
    fronts = [f"{tag} " for tag in cfg.tags.values()]
    src = [functools.reduce(str.removeprefix, fronts, line) for line in text.src] if fronts else text.src
    found = ParallelText(src, text.tgt)
    return without_context(found) if cfg.context else found


def judged_alone(
    source: PairStream, cfg: DataConfig, pair_filter: Filter, chain: Chain | None
) -> Iterator[tuple[ParallelText, FilterReport]]:
    """Yield the filtered chunks of a stream with reports; each pair is judged by itself."""
    opened = chain.opened() if chain else []
    reasons = chain.reasons if chain else []
    for chunk in source.chunks():
        text, report = pair_filter(chunk, cfg)
        for reason, one in zip(reasons, opened, strict=True):
            assert chain
            kept = one.accept(one.values(chain.bare(text, np.arange(len(text)))))
            report.dropped[reason] = int((~kept).sum())
            text = compressed(text, kept)
        yield text, report


def compressed(text: ParallelText, kept: Mask) -> ParallelText:
    """Return the pairs that are kept."""
    return text if kept.all() else text.kept(kept)


class Filtered(NamedTuple):
    """A corpus after its filters."""

    source: PairStream
    report: FilterReport
    remarks: list[str]
    """What a person should know: a line for each filter."""


def filtered(source: PairStream, cfg: DataConfig, pair_filter: Filter, chain: Chain, cache: Path) -> Filtered:
    """Return the stream of the pairs that `pair_filter` and all filters of a chain keep, and the account.

    The filters run once; what they kept is found in the cache by the stamps of the source and the chain.

    Raises:
        UserError: no pair is kept, a filter cannot read what it needs, or the source changes meanwhile.
    """
    before, settings = source.stamp(), chain.stamp()
    options = pair_filter.__name__, cfg.max_chars, cfg.max_ratio, before, settings
    entry = cache / entry_name("filtered", FORMAT_VERSION, *options)
    metadata, file = open_entry(entry), entry / "kept"
    if metadata is not None:
        bits = np.unpackbits(np.fromfile(file, np.uint8), count=metadata["pairs"]).view(bool)
    else:
        run = _Run(source, cfg, pair_filter, chain)
        bits = run.kept()
        metadata = made = run.metadata()
        if source.stamp() != before:
            raise UserError(CHANGED)

        def fill(draft: Path) -> Metadata:
            np.packbits(bits).tofile(draft / "kept")
            write_lines(draft / EXAMPLES, run.examples())
            return made

        write_entry(entry, fill)
    report = FilterReport(**metadata["report"])
    if not report.kept:
        raise UserError(f"no training pair is left: {report}; see {cfg.key_prefix}.filters")
    remarks = list(_remarks(report, chain))
    if (entry / EXAMPLES).is_file() and report.kept < report.read:
        remarks.append(f"some dropped pairs of each filter: {entry / EXAMPLES}")
    stamp = hashlib.sha256(repr(options).encode()).hexdigest()
    return Filtered(_left(source, cfg, pair_filter, bits, (before, stamp)), report, remarks)


def tried(
    source: PairStream, cfg: DataConfig, pair_filter: Filter, chain: Chain, *, is_whole: bool
) -> Filtered:
    """Return a corpus, or its beginning, after a chain, with the account, as `filtered` does.

    Nothing is cached, and no pair may be left.
    """
    before = source.stamp()
    run = _Run(source, cfg, pair_filter, chain, is_whole=is_whole)
    bits = run.kept()
    report = FilterReport(**run.metadata()["report"])
    left = _left(source, cfg, pair_filter, bits, (before, before))
    return Filtered(left, report, list(_remarks(report, chain)))


def _left(
    source: PairStream, cfg: DataConfig, pair_filter: Filter, bits: Mask, stamps: tuple[str, str]
) -> PairStream:
    """Return the stream of the pairs whose bit is set; `stamps` are those of the source and of the result."""
    chunks = functools.partial(_masked, source, cfg, pair_filter, np.packbits(bits), len(bits))
    return PairStream(lambda: _same(source, *stamps), chunks)


def _same(source: PairStream, before: str, stamp: str) -> str:
    """Return `stamp`, or another one when the source is not what it was before."""
    now = source.stamp()
    return stamp if now == before else hashlib.sha256(f"{stamp} {now}".encode()).hexdigest()


def _remarks(report: FilterReport, chain: Chain) -> Iterator[str]:
    """Yield for each filter how many pairs it dropped, and of how many."""
    before = {reason: count for reason, count in report.dropped.items() if reason not in chain.reasons}
    left = report.read - sum(before.values())
    for reason in chain.reasons:
        count = report.dropped[reason]
        share = f" ({count / left:.2%})" if left else ""
        yield f"filter {reason} dropped {count:,} of {left:,} pairs{share}"
        left -= count


def _masked(
    source: PairStream, cfg: DataConfig, pair_filter: Filter, packed: NDArray[np.uint8], size: int
) -> Iterator[ParallelText]:
    """Yield the pairs whose bit is set; the bits are those of the pairs that `pair_filter` keeps."""
    first = 0
    for chunk in source.chunks():
        text, _ = pair_filter(chunk, cfg)
        last = first + len(text)
        if last > size:
            raise UserError(CHANGED)
        bits = np.unpackbits(packed[first // 8 : -(-last // 8)])[first % 8 :][: len(text)]
        yield compressed(text, bits.view(bool))
        first = last


@dataclass
class _Dropped:
    """Some of the pairs that a filter dropped: those whose numbers have the smallest hashes."""

    rows: list[tuple[int, int, str]] = field(default_factory=list)
    """Negative hash, number and line of each, as a heap."""

    def add(self, text: NumberedText, kept: Mask, values: Callable[[int], str]) -> None:
        for i in np.flatnonzero(~kept).tolist():
            number = int(text.numbers[i])
            rank = -int.from_bytes(hashlib.blake2b(str(number).encode(), digest_size=8).digest(), "big")
            if len(self.rows) < NUM_EXAMPLES or rank > self.rows[0][0]:
                line = "\t".join(
                    [
                        str(number + 1),
                        values(i),
                        *(side.replace("\t", " ") for side in (text.src[i], text.tgt[i])),
                    ]
                )
                add = heapq.heappush if len(self.rows) < NUM_EXAMPLES else heapq.heappushpop
                add(self.rows, (rank, number, line))


class _Run:
    """One run of the filters of a chain over a corpus, or its beginning, in as many passes as they need."""

    def __init__(
        self,
        source: PairStream,
        cfg: DataConfig,
        pair_filter: Filter,
        chain: Chain,
        *,
        is_whole: bool = True,
    ):
        self._source, self._cfg, self._pair_filter, self._chain = source, cfg, pair_filter, chain
        self._is_whole, self._read = is_whole, 0
        self._report = FilterReport(0)
        self._counts = dict.fromkeys(chain.reasons, 0)
        self._dropped = {reason: _Dropped() for reason in chain.reasons}

    def kept(self) -> Mask:
        """Return which of the pairs that the first filter keeps are kept by all."""
        bits: Mask | None = None
        steps = list(zip(self._chain.reasons, self._chain.opened(), strict=True))
        while steps:
            ends = [i for i, (_, one) in enumerate(steps) if one.needs_all]
            count = ends[0] + 1 if ends else len(steps)
            bits = self._pass(steps[:count], bits)
            steps = steps[count:]
        assert bits is not None
        return bits

    def _pass(self, steps: Sequence[tuple[str, PairFilter]], bits: Mask | None) -> Mask:
        """Run some filters, of which the last perhaps needs all pairs at once."""
        found: list[Mask] = []
        last = steps[-1] if steps[-1][1].needs_all else None
        values: list[NDArray[Any]] = []
        for text, kept, read in self._chunks(bits):
            for reason, one in steps[: len(steps) - (last is not None)]:
                text = self._judge(text, kept, reason, one)
            if last:
                values.append(last[1].values(text))
            if bits is None:
                self._report += read
            found.append(kept)
        for _, one in steps if self._is_whole else ():
            one.finish(self._read)
        bits = np.concatenate(found) if found else np.zeros(0, bool)
        if last:
            accepted = last[1].accept(np.concatenate(values)) if values else np.zeros(0, bool)
            self._note(last, bits.copy(), accepted, values)
            bits[bits] = accepted
        return bits

    def _judge(self, text: NumberedText, kept: Mask, reason: str, one: PairFilter) -> NumberedText:
        """Return the pairs that a filter accepts, and clear the bits of the others."""
        values = one.values(text)
        accepted = one.accept(values)
        self._counts[reason] += int((~accepted).sum())
        self._dropped[reason].add(text, accepted, functools.partial(_shown, one, values))
        kept[np.flatnonzero(kept)[~accepted]] = False
        left = compressed(text, accepted)
        return NumberedText(left.src, left.tgt, numbers=text.numbers[accepted])

    def _note(
        self, last: tuple[str, PairFilter], bits: Mask, accepted: Mask, values: Sequence[NDArray[Any]]
    ) -> None:
        """Count what a filter dropped that saw all pairs, and read the corpus for some of them."""
        reason, one = last
        self._counts[reason] = int((~accepted).sum())
        if accepted.all():
            return
        known, first = np.concatenate(values), 0
        for text, _, _ in self._chunks(bits):
            own = slice(first, first + len(text))
            self._dropped[reason].add(text, accepted[own], functools.partial(_shown, one, known[own]))
            first += len(text)

    def _chunks(self, bits: Mask | None) -> Iterator[tuple[NumberedText, Mask, FilterReport]]:
        """Yield the pairs that are left, the bits of a chunk, and the report of the first filter."""
        first = lines = 0
        for chunk in told(self._source.chunks(), "filtering the training data", "pairs", len):
            text, report = self._pair_filter(chunk, self._cfg)
            own = np.ones(len(text), bool) if bits is None else bits[first : first + len(text)].copy()
            if len(own) != len(text):
                raise UserError(CHANGED)
            numbers = _kept_rows(chunk, text) + lines
            yield self._chain.bare(compressed(text, own), numbers[own]), own, report
            first += len(text)
            lines += len(chunk)
        self._read = lines

    def metadata(self) -> Metadata:
        """Return the number of bits and the account."""
        dropped = {**self._report.dropped, **self._counts}
        pairs = self._report.read - sum(self._report.dropped.values())
        return {"pairs": pairs, "report": {"read": self._report.read, "dropped": dropped}}

    def examples(self) -> Iterator[str]:
        """Yield lines FILTER, NUMBER OF THE PAIR, VALUE, SOURCE, TARGET with TABs between."""
        for reason, dropped in self._dropped.items():
            for _, _, line in sorted(dropped.rows, key=lambda row: row[1]):
                yield f"{reason}\t{line}"


def _shown(one: PairFilter, values: NDArray[Any], row: int) -> str:
    return "/".join(f"{value:.4g}" for value in np.atleast_1d(values[row])) if one.shows_values else ""


def _kept_rows(chunk: ParallelText, text: ParallelText) -> NDArray[np.int64]:
    """Return the rows of a chunk that a filter kept, which judges a pair by its text and keeps the order."""
    if len(chunk) == len(text):
        return np.arange(len(text))
    rows, kept = np.empty(len(text), np.int64), 0
    for row, (src, tgt) in enumerate(zip(chunk.src, chunk.tgt, strict=True)):
        if kept < len(text) and src == text.src[kept] and tgt == text.tgt[kept]:
            rows[kept] = row
            kept += 1
    return rows
