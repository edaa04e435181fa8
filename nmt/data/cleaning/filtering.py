"""The filters of a corpus run in order, once: which one drops a pair is a number, cached with an account.

Later readings of the corpus apply the numbers alone. A filter that compares pairs with all others ends a pass
over the corpus; the filters behind it see what it has left in the next pass. Some dropped pairs are written
down for each filter, drawn evenly from the corpus, so that a person can judge a threshold.
"""

from __future__ import annotations

import functools
import hashlib
import heapq
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.data import filter_table
from nmt.data.cleaning.filters import Filter, FilterReport
from nmt.data.cleaning.measuring import BLOCK_PAIRS, Block, Measurement, depends_on, is_alone, opened
from nmt.data.cleaning.opuscleaner import expanded
from nmt.data.cleaning.pair_filters import Context, Mask, ModelScorers, NumberedText, PairFilter, Values
from nmt.data.configs import DataConfig
from nmt.data.documents import without_context
from nmt.data.filter_table import FilterConfig, ModelFilterConfig, OpusCleanerConfig
from nmt.data.parallel_text import PairStream, ParallelText, Split, in_blocks
from nmt.data.reading import sources
from nmt.data.reading.lines import require_file
from nmt.data.workers import are_several, worked
from nmt.disk_cache import Metadata, entry_name, open_entry, write_entry
from nmt.errors import UserError
from nmt.files import write_lines
from nmt.progress import told

FORMAT_VERSION = 6
"""Increased when the format of a cache entry, or what a filter means, changes."""
NUM_EXAMPLES = 50
"""Dropped pairs that are written down for each filter."""
MOST_VALUES = 100_000
"""Values of a filter from which quantiles are made: those of every pair, or of every 2nd, 4th, 8th ..."""
SHARES = 0.001, 0.01, 0.05
"""Shares of the pairs whose values are told, from either end."""
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
    def of_corpus(self) -> str:
        """The key of the corpus in a mixture; empty without one."""
        prefix = self.context.corpus.key_prefix if self.context.corpus else "data"
        return prefix if "." in prefix else ""

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
        parts: list[object] = [FORMAT_VERSION, self.tag, NUM_EXAMPLES]
        for row in self.rows:
            for key, file in row.files.items():
                require_file(file, f"{row.key_prefix}.{key}")
            parts += depends_on(row, self.context)
        return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()

    def opened(self) -> list[PairFilter]:
        """Return the filters, ready to judge."""
        return opened(self.rows, self.context)

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
    before = list[DataConfig]()
    for name, part in cfg.parts(Split.train).items():
        rows = filter_table.parsed(f"{cfg.key_prefix}.filters", cfg.filters, streaming=cfg.streaming)
        if part is not cfg:
            rows += filter_table.parsed(f"{part.key_prefix}.filters", part.filters, streaming=cfg.streaming)
        listed = [expanded(row) if isinstance(row, OpusCleanerConfig) else [row] for row in rows]
        flat = itertools.chain.from_iterable(listed)
        languages = part.src, part.tgt
        earlier = tuple(one for one in before if (one.src, one.tgt) == languages)
        before.append(part)
        context = Context(languages, scored_on, scorers, part, earlier)
        found[name] = Chain(
            tuple(row.of_texts() if part.has_labels else row for row in flat),
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
    """Return pairs to score on as filters see pairs: without the tags in front, and without context."""
    fronts = [f"{tag} " for tag in dict.fromkeys((*cfg.tags.values(), *cfg.domain_tags.values()))]
    src = [functools.reduce(str.removeprefix, fronts, line) for line in text.src] if fronts else text.src
    found = ParallelText(src, text.tgt)
    return without_context(found) if cfg.context else found


def judged_alone(
    source: PairStream, cfg: DataConfig, pair_filter: Filter, chain: Chain
) -> Iterator[tuple[ParallelText, FilterReport]]:
    """Yield the filtered chunks of a stream with reports; each pair is judged by itself.

    Raises:
        UserError: at the end, if no pair was kept.
    """
    filters, total = chain.opened(), FilterReport(0)
    for chunk in source.chunks():
        text, report = pair_filter(chunk, cfg)
        for reason, one in zip(chain.reasons, filters, strict=True):
            kept = one.accept(one.values(chain.bare(text, np.arange(len(text)))))
            report.dropped[reason] = int((~kept).sum())
            text = compressed(text, kept)
        total += report
        yield text, report
    if not total.kept:
        raise _nothing_left(total, chain)


def _number_type(chain: Chain) -> np.dtype[Any]:
    """Return the type of the numbers of the filters of a chain."""
    return np.min_scalar_type(len(chain.rows))


def compressed(text: ParallelText, kept: Mask) -> ParallelText:
    """Return the pairs that are kept."""
    return text if kept.all() else text.kept(kept)


class Filtered(NamedTuple):
    """A corpus after its filters."""

    source: PairStream
    report: FilterReport
    remarks: list[str]
    """What a person should know: a line for each filter."""
    dropped_by: NDArray[Any]
    """For each pair that the limits keep the number of the filter that dropped it, from 1, or 0."""


def filtered(source: PairStream, cfg: DataConfig, pair_filter: Filter, chain: Chain, cache: Path) -> Filtered:
    """Return the stream of the pairs that `pair_filter` and all filters of a chain keep, and the account.

    The filters run once; what each dropped is found in the cache by the stamps of the source and the chain.
    A run that was killed goes on: what filters have measured of blocks of pairs is there, too.

    Raises:
        UserError: no pair is kept, a filter cannot read what it needs, or the source changes meanwhile.
    """
    before, settings = source.stamp(), chain.stamp()
    options = pair_filter.__name__, *cfg.limits, before, settings
    entry = cache / entry_name("filtered", FORMAT_VERSION, *options)
    metadata, file = open_entry(entry), entry / "dropped_by"
    if metadata is not None:
        dropped_by = np.fromfile(file, _number_type(chain))
    else:
        run = _Run(source, cfg, pair_filter, chain, cache)
        dropped_by = run.dropped_by()
        metadata = made = run.metadata(dropped_by)
        if source.stamp() != before:
            raise UserError(CHANGED)

        def fill(draft: Path) -> Metadata:
            dropped_by.tofile(draft / "dropped_by")
            write_lines(draft / EXAMPLES, run.examples())
            return made

        write_entry(entry, fill)
    report = FilterReport(**metadata["report"])
    if not report.kept:
        raise _nothing_left(report, chain)
    remarks = list(_remarks(report, chain, metadata["quantiles"]))
    if (entry / EXAMPLES).is_file() and report.kept < report.read:
        remarks.append(f"some dropped pairs of each filter: {entry / EXAMPLES}")
    stamp = hashlib.sha256(repr(options).encode()).hexdigest()
    left = _left(source, cfg, pair_filter, dropped_by == 0, (before, stamp))
    return Filtered(left, report, remarks, dropped_by)


def _nothing_left(report: FilterReport, chain: Chain) -> UserError:
    """Return the error about a corpus of which no training pair is left, with the keys that decide it."""
    of_corpus = f" of {chain.of_corpus}" if chain.of_corpus else ""
    keys = [f"{chain.of_corpus}.filters"] if chain.of_corpus else []
    keys = [*keys, "data.filters"] if chain else ["data.max_chars", "data.max_ratio"]
    return UserError(f"no training pair{of_corpus} is left: {report}; see {' and '.join(keys)}")


def tried(
    source: PairStream, cfg: DataConfig, pair_filter: Filter, chain: Chain, *, is_whole: bool
) -> Filtered:
    """Return a corpus, or its beginning, after a chain, with the account, as `filtered` does.

    Nothing is cached, and no pair may be left.
    """
    before = source.stamp()
    run = _Run(source, cfg, pair_filter, chain, None, is_whole=is_whole)
    dropped_by = run.dropped_by()
    metadata = run.metadata(dropped_by)
    report = FilterReport(**metadata["report"])
    left = _left(source, cfg, pair_filter, dropped_by == 0, (before, before))
    return Filtered(left, report, list(_remarks(report, chain, metadata["quantiles"])), dropped_by)


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


def _remarks(report: FilterReport, chain: Chain, quantiles: Mapping[str, str]) -> Iterator[str]:
    """Yield for each filter how many pairs it dropped, and of how many; then what it measured."""
    before = {reason: count for reason, count in report.dropped.items() if reason not in chain.reasons}
    left = report.read - sum(before.values())
    for reason in chain.reasons:
        count = report.dropped[reason]
        share = f" ({count / left:.2%})" if left else ""
        yield f"filter {reason} dropped {count:,} of {left:,} pairs{share}"
        left -= count
    for reason, told_of in quantiles.items():
        yield f"filter {reason} measured {told_of}"


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
class Drawn:
    """Some of the pairs that a filter dropped, or a fixer changed: those with the smallest hashes."""

    rows: list[tuple[int, int, str]] = field(default_factory=list)
    """Negative hash, number and line of each, as a heap."""

    def add(self, text: NumberedText, rows: NDArray[np.int64], values: Sequence[str]) -> None:
        """Look at some rows of `text`, with their values as a person sees them."""
        for row, value in zip(rows.tolist(), values, strict=True):
            number = int(text.numbers[row])
            rank = -int.from_bytes(hashlib.blake2b(str(number).encode(), digest_size=8).digest(), "big")
            if len(self.rows) < NUM_EXAMPLES or rank > self.rows[0][0]:
                self._push((rank, number, line_of(text, row, value)))

    def merge(self, other: Drawn) -> None:
        """Look at what was drawn from other pairs."""
        for row in other.rows:
            self._push(row)

    def lines(self) -> list[str]:
        """Return the lines in the order of the corpus."""
        return [line for _, _, line in sorted(self.rows, key=lambda row: row[1])]

    def _push(self, row: tuple[int, int, str]) -> None:
        add = heapq.heappush if len(self.rows) < NUM_EXAMPLES else heapq.heappushpop
        add(self.rows, row)


@dataclass
class _Sample:
    """Values of a filter, those of pairs that are spread evenly."""

    step: int = 1
    numbers: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    values: Values = field(default_factory=lambda: np.zeros((0, 2)))
    """The lowest and the highest value of each pair."""

    def add(self, numbers: NDArray[np.int64], values: Values) -> None:
        sides = np.atleast_2d(values.T).astype(np.float64)
        self.numbers = np.concatenate([self.numbers, numbers])
        self.values = np.concatenate([self.values, np.stack([sides.min(0), sides.max(0)], 1)])
        chosen = self.numbers % self.step == 0
        while chosen.sum() > MOST_VALUES:
            self.step *= 2
            chosen = self.numbers % self.step == 0
        self.numbers, self.values = self.numbers[chosen], self.values[chosen]

    def quantiles(self, thresholds: Sequence[str]) -> str:
        """Return which values `SHARES` of the pairs have at the ends where a threshold may drop them."""
        found, (low, high) = list[str](), self.values.T
        if len(low) and {"min", "share"} & {*thresholds}:
            found.append(_ends(low, SHARES, "lower", "at most"))
        if len(high) and "max" in thresholds:
            found.append(_ends(high, [1 - share for share in SHARES], "higher", "at least"))
        return "; ".join(found)


def _ends(values: Values, places: Sequence[float], method: Any, bound: str) -> str:
    found = zip(np.quantile(values, places, method=method).tolist(), SHARES, strict=True)
    told_of = ", ".join(f"{value:.4g} for {100 * share:g}%" for value, share in found)
    return f"{bound} {told_of} of the pairs"


def line_of(text: NumberedText, row: int, value: str) -> str:
    """Return NUMBER OF THE PAIR, VALUE, SOURCE, TARGET with TABs between."""
    sides = (side.replace("\t", " ") for side in (text.src[row], text.tgt[row]))
    return "\t".join([str(int(text.numbers[row]) + 1), value, *sides])


def shown(one: PairFilter, values: Values) -> list[str]:
    """Return values as a person sees them: of both sides SRC/TGT, and nothing where they tell nothing."""
    if not one.shows_values:
        return [""] * len(values)
    return ["/".join(f"{value:.4g}" for value in np.atleast_1d(of_pair)) for of_pair in values]


def blocks_of(
    source: PairStream, cfg: DataConfig, pair_filter: Filter, chain: Chain, dropped_by: NDArray[Any] | None
) -> Iterator[tuple[ParallelText, Block]]:
    """Yield the pairs of a corpus, and as filters see them, in blocks; without `dropped_by` none is dropped.

    Raises:
        UserError: there are not as many pairs as in `dropped_by`.
    """
    first = lines = 0
    for read in in_blocks(source.chunks(), BLOCK_PAIRS):
        text, report = pair_filter(read, cfg)
        last = first + len(text)
        if dropped_by is None:
            own = np.zeros(len(text), _number_type(chain))
        elif last > len(dropped_by):
            raise UserError(CHANGED)
        else:
            own = dropped_by[first:last].copy()
        yield read, Block(lines, chain.bare(text, _kept_rows(read, text) + lines), own, report)
        first = last
        lines += len(read)


class _Step(NamedTuple):
    """A filter of a chain, ready to judge."""

    number: int
    """From 1."""
    reason: str
    row: FilterConfig
    filter: PairFilter


def _passes(steps: Sequence[_Step]) -> list[list[_Step]]:
    """Return the filters of each pass: one that needs all pairs ends a pass.

    Where several processes measure, those that they can measure have passes of their own.
    """
    found: list[list[_Step]] = []
    for step in steps:
        last = found[-1][-1] if found else None
        differs = last is not None and are_several() and is_alone(last.row) != is_alone(step.row)
        if last is None or last.filter.needs_all or differs:
            found.append([])
        found[-1].append(step)
    return found


class _Run:
    """One run of the filters of a chain over a corpus, or its beginning, in as many passes as they need."""

    def __init__(
        self,
        source: PairStream,
        cfg: DataConfig,
        pair_filter: Filter,
        chain: Chain,
        cache: Path | None,
        *,
        is_whole: bool = True,
    ):
        self._source, self._cfg, self._pair_filter, self._chain = source, cfg, pair_filter, chain
        self._cache, self._is_whole = cache, is_whole
        self._report = FilterReport(0)
        self._dropped = {reason: Drawn() for reason in chain.reasons}
        self._sampled = {reason: _Sample() for reason in chain.reasons}
        self._steps = list[_Step]()

    def dropped_by(self) -> NDArray[Any]:
        """Return for each pair that the limits keep the number of the filter that drops it, from 1, or 0."""
        chain = self._chain
        found: NDArray[Any] | None = None
        self._steps += map(_Step, itertools.count(1), chain.reasons, chain.rows, chain.opened())
        for own in _passes(self._steps):
            found = self._pass(own, found)
        assert found is not None
        return found

    def _pass(self, steps: Sequence[_Step], before: NDArray[Any] | None) -> NDArray[Any]:
        """Run some filters, of which the last perhaps needs all pairs at once."""
        last = steps[-1] if steps[-1].filter.needs_all else None
        values, parts, report = list[Values](), list[NDArray[Any]](), FilterReport(0)
        with self._measured(steps, before) as measured:
            for block, found in measured:
                for step, own in zip(steps, found, strict=True):
                    if step is not last:
                        self._judge(step, block, own)
                values += found[-1:] if last else []
                parts.append(block.dropped_by)
                report += block.read
        self._report = report
        for step in steps if self._is_whole else ():
            step.filter.finish(report.read)
        dropped_by = np.concatenate(parts) if parts else np.zeros(0, _number_type(self._chain))
        if last and values:
            together = np.concatenate(values)
            values.clear()  # which may be gigabytes
            self._judge_all(last, dropped_by, together)
        return dropped_by

    @contextmanager
    def _measured(
        self, steps: Sequence[_Step], before: NDArray[Any] | None
    ) -> Iterator[Iterator[tuple[Block, list[Values]]]]:
        """Yield an iterator over the blocks, each with what some filters measure."""
        blocks = self._blocks(before)
        measurement = Measurement.of([step.row for step in steps], self._chain.context, self._cache)
        measure = measurement.by([step.filter for step in steps])
        if all(is_alone(step.row) for step in steps):
            with worked(blocks, measure, measurement.start, "what is measured is kept") as found:
                yield found
        else:
            yield ((block, measure(block)) for block in blocks)

    def _judge(self, step: _Step, block: Block, values: Values) -> None:
        """Note the pairs of a block that a filter drops of those that are left."""
        gone, rows = ~step.filter.accept(values), np.flatnonzero(block.left)
        self._sampled[step.reason].add(block.text.numbers[rows], values)
        rows = rows[gone]
        self._dropped[step.reason].add(block.text, rows, shown(step.filter, values[gone]))
        block.dropped_by[rows] = step.number

    def _judge_all(self, step: _Step, dropped_by: NDArray[Any], values: Values) -> None:
        """Note the pairs that a filter drops that needs all; read the corpus for some of them."""
        gone = ~step.filter.accept(values)
        if step.filter.shows_values:
            self._sampled[step.reason].add(np.arange(len(values)), values)
        dropped_by[np.flatnonzero(dropped_by == 0)[gone]] = step.number
        values, first = values[gone], 0
        for block in self._blocks(dropped_by) if gone.any() else ():
            rows = np.flatnonzero(block.dropped_by == step.number)
            own = shown(step.filter, values[first : first + len(rows)])
            self._dropped[step.reason].add(block.text, rows, own)
            first += len(rows)

    def _blocks(self, dropped_by: NDArray[Any] | None) -> Iterator[Block]:
        found = blocks_of(self._source, self._cfg, self._pair_filter, self._chain, dropped_by)
        for _, block in told(found, "filtering the training data", "pairs", lambda pair: len(pair[0])):
            yield block

    def metadata(self, dropped_by: NDArray[Any]) -> Metadata:
        """Return the account."""
        counts = np.bincount(dropped_by, minlength=len(self._chain.rows) + 1).tolist()[1:]
        dropped = self._report.dropped | dict(zip(self._chain.reasons, counts, strict=True))
        told_of = {
            step.reason: found
            for step in self._steps
            if step.filter.shows_values
            and (found := self._sampled[step.reason].quantiles(step.row.thresholds))
        }
        report = {"read": self._report.read, "dropped": dropped}
        return {"report": report, "quantiles": {reason: found for reason, found in told_of.items() if found}}

    def examples(self) -> Iterator[str]:
        """Yield lines FILTER, NUMBER OF THE PAIR, VALUE, SOURCE, TARGET with TABs between."""
        for reason, dropped in self._dropped.items():
            yield from (f"{reason}\t{line}" for line in dropped.lines())


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
