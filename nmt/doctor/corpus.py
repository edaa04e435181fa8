"""One pass over each split of a corpus, and its counts; memory does not grow with the corpus, but for hashes.

Splits to score on are read first, so that the pass over the training pairs can tell which of them are there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from nmt.data.cleaning import repairs
from nmt.data.cleaning.filtering import chains, chains_without_models, tried
from nmt.data.cleaning.filters import MIN_UNEVEN_CHARS, FilterReport, filter_of
from nmt.data.configs import DataConfig
from nmt.data.documents import without_context
from nmt.data.filter_table import ModelFilterConfig
from nmt.data.parallel_text import MAX_LINE_CHARS, ParallelText, Split
from nmt.data.reading import sources
from nmt.data.reading.augmented import AugmentedData
from nmt.doctor import characters
from nmt.doctor.alignment import Alignment, Shift
from nmt.doctor.characters import BLOCK_LINES, SCRIPTS, LineFacts, facts_of
from nmt.doctor.configs import DoctorOptions
from nmt.doctor.findings import Example, Gallery, visible_text
from nmt.doctor.hashes import Hashes, Repeats, Repetition, combined
from nmt.doctor.language import Languages, languages_of
from nmt.doctor.similar import Sample, similar_pairs
from nmt.errors import UserError, first_of
from nmt.progress import told

LONGEST = 10_000
"""Lengths are counted exactly up to this one."""
RATIO_STEPS = 20
"""Steps of the histogram of ratios from one ratio to its double."""
RATIO_DOUBLINGS = 6
LOPSIDED = 3.0
"""Ratio of characters, relative to the usual one, from which a pair is shown as uneven."""
FLAGS = {
    "control": characters.CONTROL,
    "breaks": characters.BREAK,
    "invisible": characters.INVISIBLE,
    "byte_order": characters.MARK,
    "replacement": characters.REPLACEMENT,
    "private": characters.PRIVATE,
    "mojibake": characters.GARBLED,
    "mixed_words": characters.MIXED,
}
"""Kinds of findings about the characters of a pair, by their bits."""
TEXT_ORDER = (Split.test, Split.validation, Split.train)


@dataclass
class SideCounts:
    """The counts of one side of a split."""

    language: str
    words: int = 0
    empty: int = 0
    over_long: int = 0
    characters: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0x110000, np.int64))
    """The number of each code point."""
    char_lengths: NDArray[np.int64] = field(default_factory=lambda: np.zeros(LONGEST + 1, np.int64))
    """The number of lines of each length; the last one of all longer lines."""
    word_lengths: NDArray[np.int64] = field(default_factory=lambda: np.zeros(LONGEST + 1, np.int64))
    script_sets: Counter[int] = field(default_factory=Counter)
    """The number of lines with each set of scripts."""

    def add(self, facts: LineFacts, max_chars: int) -> None:
        """Add the facts of a block."""
        self.words += int(facts.words.sum())
        self.empty += int((facts.words == 0).sum())
        self.over_long += int((facts.chars > max_chars).sum())
        for lengths, histogram in ((facts.chars, self.char_lengths), (facts.words, self.word_lengths)):
            histogram += np.bincount(np.minimum(lengths, LONGEST), minlength=LONGEST + 1)
        sets, counts = np.unique(facts.scripts, return_counts=True)
        self.script_sets.update(dict(zip(sets.tolist(), counts.tolist(), strict=True)))

    @property
    def chars(self) -> int:
        """Characters, but for the ends of lines."""
        return int(self.characters.sum() - self.characters[10])

    @property
    def scripts(self) -> dict[str, int]:
        """The number of letters of each script, the most first."""
        used = np.flatnonzero(self.characters)
        sets, numbers = characters.tables().scripts[used], self.characters[used]
        counts = {name: int(numbers[sets == 1 << bit].sum()) for bit, name in enumerate(SCRIPTS)}
        return dict(sorted(((n, c) for n, c in counts.items() if c), key=lambda item: (-item[1], item[0])))

    @property
    def main_scripts(self) -> int:
        """The scripts with a tenth of the letters or more, as a set: Japanese has three."""
        scripts = self.scripts
        total = sum(scripts.values())
        return sum(1 << SCRIPTS.index(name) for name, count in scripts.items() if count * 10 >= total)

    @property
    def foreign(self) -> int:
        """Lines with letters, none of which is of a main script."""
        main = self.main_scripts
        return sum(count for scripts, count in self.script_sets.items() if scripts and not scripts & main)


def percentiles(histogram: NDArray[np.int64], shares: tuple[float, ...]) -> list[int]:
    """Return the values below which these shares of a histogram of counts are."""
    running = np.cumsum(histogram)
    return [int(np.searchsorted(running, share * running[-1])) for share in shares]


@dataclass
class Overlap:
    """Pairs of a split to score on that occur in another split."""

    split: str
    pairs: int
    sources: int
    targets: int
    plain_pairs: int
    """Pairs that occur but for case, punctuation and spaces; `pairs` included."""
    total: int
    examples: list[Example]
    of_data: bool
    """Whether the split to score on is one of data, and not of `sets`, which the filter `overlap` ignores."""


class _Wanted:
    """The hashes of a split to score on, and which of them have been met in other pairs."""

    kinds = ("pairs", "sources", "targets", "plain_pairs")

    def __init__(self, name: str, keys: list[Hashes], most: int, *, of_data: bool):
        self.name, self._of_data = name, of_data
        self._lines = keys
        self._keys = [np.unique(one) for one in keys]
        self._met = [np.zeros(len(one), bool) for one in self._keys]
        self._examples, self._most = list[Example](), most

    def add(self, keys: list[Hashes], first: int, sides: tuple[list[str], list[str]]) -> None:
        """Look for the hashes among those of a block; each side has its texts."""
        for kind, (wanted, met, found) in enumerate(zip(self._keys, self._met, keys, strict=True)):
            if not len(wanted):
                continue
            places = np.minimum(np.searchsorted(wanted, found), len(wanted) - 1)
            rows = np.flatnonzero(wanted[places] == found)
            met[places[rows]] = True
            if self.kinds[kind] == "plain_pairs":
                for row in rows[: self._most - len(self._examples)].tolist():
                    line = int(np.flatnonzero(self._lines[kind] == found[row])[0]) + 1
                    src, tgt = (visible_text(side[row]) for side in sides)
                    self._examples.append(Example(first + row, src, tgt, f"pair {line:,} of {self.name}"))

    def overlap(self) -> Overlap:
        """Return what has been met in another split, and forget it."""
        counts = {}
        for kind, lines, keys, met in zip(self.kinds, self._lines, self._keys, self._met, strict=True):
            counts[kind] = int(np.isin(lines, keys[met]).sum())
            met[:] = False
        examples, self._examples = self._examples, []
        total = len(self._lines[0])
        return Overlap(self.name, total=total, examples=examples, of_data=self._of_data, **counts)


@dataclass
class FilterTrial:
    """What the filters of data.filters would drop."""

    report: FilterReport | None = None
    """The account of training; None where no filter was run."""
    remarks: list[str] = field(default_factory=list)
    """A line for each filter."""
    left_out: list[str] = field(default_factory=list)
    """The filters that need a trained model, and were not run."""
    problems: list[str] = field(default_factory=list)
    """Why the filters cannot run."""
    labels: frozenset[str] | None = None
    """The labels of the texts that are left; None where no filter was run, or texts have no labels."""


@dataclass
class SplitReport:
    """All that is known of one split of one corpus."""

    name: str
    """Such as "train", or "NAME: train" in a mixture."""
    split: Split
    cfg: DataConfig
    pairs: int
    src: SideCounts
    tgt: SideCounts
    gallery: Gallery
    ratios: NDArray[np.int64]
    """A histogram of the ratio of target to source characters; see `ratio_of`."""
    repeats: dict[str, Repetition]
    overlaps: list[Overlap]
    correlation: float | None
    shift: Shift | None
    similar: list[Example]
    similar_count: int
    sample: ParallelText
    languages: list[Languages]
    wrong_language: list[Example]
    filtered: FilterReport | None
    """What training would drop without data.filters; None but for training pairs."""
    is_whole: bool
    labels: dict[str, int]
    """The labels of texts, each with the number of the first text that has it, from 1; of training texts
    those that training keeps before data.filters."""
    repairs: list[str] = field(default_factory=list)
    """What data.fixers have changed of training pairs, a line for each."""
    trial: FilterTrial = field(default_factory=FilterTrial)
    """What data.filters would drop of training pairs."""

    @property
    def noun(self) -> str:
        """What the split is made of."""
        return _noun(self.cfg)


def ratio_of(place: float) -> float:
    """Return the ratio in the middle of a bar of the histogram of ratios."""
    return float(2.0 ** ((place - RATIO_STEPS * RATIO_DOUBLINGS) / RATIO_STEPS))


class Examination:
    """The pass over one split of one corpus of `whole`, whose limits count; see `examined`."""

    def __init__(self, name: str, split: Split, cfg: DataConfig, whole: DataConfig, options: DoctorOptions):
        self.name, self.split, self.cfg, self.options = name, split, cfg, options
        self.whole = whole
        self.src, self.tgt = SideCounts(cfg.src), SideCounts(cfg.tgt)
        self.gallery = Gallery(options.examples, options.seed)
        self.sample = Sample(options.sample, options.seed)
        self.alignment = Alignment()
        self.repeats = {kind: Repeats() for kind in ("pair", "source", "target", "plain")}
        self.ratios = np.zeros(2 * RATIO_STEPS * RATIO_DOUBLINGS + 1, np.int64)
        self.filtered = FilterReport(0)
        self.labels = dict[str, int]()
        self.keys: list[list[Hashes]] = []
        self.read = 0

    def add(self, text: ParallelText, wanted: list[_Wanted]) -> None:
        """Look at the pairs of a chunk, without their context, and for those of other splits among them."""
        text = without_context(text) if self.cfg.has_documents else text
        kept = text
        if self.split is Split.train and self.cfg.has_source:
            kept, report = filter_of(self.whole)(text, self.whole)
            self.filtered += report
        for number, label in enumerate(kept.tgt if self.cfg.has_labels else [], start=self.read + 1):
            self.labels.setdefault(label, number)
        for start in range(0, len(text), BLOCK_LINES):
            end = start + BLOCK_LINES
            self._block(ParallelText(text.src[start:end], text.tgt[start:end]), wanted)

    def _block(self, text: ParallelText, wanted: list[_Wanted]) -> None:
        first, rows = self.read + 1, np.arange(len(text)) + self.read + 1
        sides = text.src, text.tgt
        src = facts_of(text.src, self.src.characters)
        tgt = facts_of(text.tgt, self.tgt.characters)
        self.src.add(src, self.whole.max_chars)
        self.tgt.add(tgt, self.whole.max_chars)
        self.read += len(text)
        self.sample.add(*sides, rows)
        keys = _keys(src, tgt)
        if self.split is not Split.train:
            self.keys.append(keys)
        for other in wanted:
            other.add(keys, first, sides)
        self._repeats(src, tgt, rows, sides, keys)
        self._characters(src, tgt, first, sides)
        if self.cfg.has_source and not self.cfg.has_labels:  # a text and its label have nothing in common
            self.alignment.add(src.chars, tgt.chars, first)
            self._pairs(src, tgt, first, sides)

    def _repeats(
        self,
        src: LineFacts,
        tgt: LineFacts,
        rows: NDArray[np.int64],
        sides: tuple[list[str], list[str]],
        keys: list[Hashes],
    ) -> None:
        every = np.arange(len(rows))
        pairs, sources_, targets, plain = keys
        self.repeats["pair"].add(pairs, pairs, rows, sides, every)
        there = tgt.words > 0
        self.repeats["target"].add(targets[there], sources_[there], rows[there], sides, every[there])
        if self.cfg.has_source:
            there = src.words > 0
            self.repeats["source"].add(sources_[there], targets[there], rows[there], sides, every[there])
            there = (src.words > 0) & (tgt.words > 0)
            self.repeats["plain"].add(plain[there], pairs[there], rows[there], sides, every[there])

    def _characters(
        self, src: LineFacts, tgt: LineFacts, first: int, sides: tuple[list[str], list[str]]
    ) -> None:
        for kind, bit in FLAGS.items():
            self.gallery.add(kind, ((src.flags | tgt.flags) & bit) > 0, first, sides)
        self.gallery.add("html", src.html | tgt.html, first, sides)
        self.gallery.add("url", src.url | tgt.url, first, sides)
        longest = np.maximum(src.chars, tgt.chars)
        unread = longest > MAX_LINE_CHARS
        self.gallery.add("unread", unread, first, sides, longest.astype(np.float64))
        if self.split is Split.train and self.cfg.has_source:  # of which training drops them
            over_long = (longest > self.whole.max_chars) & ~unread
            self.gallery.add("over_long", over_long, first, sides, longest.astype(np.float64))
        empty = tgt.words == 0
        self.gallery.add("empty", empty | (src.words == 0) if self.cfg.has_source else empty, first, sides)
        self._foreign(src, tgt, first, sides)

    def _foreign(
        self, src: LineFacts, tgt: LineFacts, first: int, sides: tuple[list[str], list[str]]
    ) -> None:
        """Note lines without any letter of the main scripts, as far as these are known by now."""
        found = np.zeros(len(src.chars), bool)
        for facts, counts in ((src, self.src), (tgt, self.tgt)):
            found |= (facts.scripts > 0) & ((facts.scripts & np.uint32(counts.main_scripts)) == 0)
        self.gallery.add("foreign", found, first, sides)

    def _pairs(self, src: LineFacts, tgt: LineFacts, first: int, sides: tuple[list[str], list[str]]) -> None:
        full = (src.words > 0) & (tgt.words > 0)
        ratio = np.log2((tgt.chars + (tgt.chars == 0)) / (src.chars + (src.chars == 0)))
        places = np.clip(
            np.round(ratio * RATIO_STEPS), *(-RATIO_STEPS * RATIO_DOUBLINGS, len(self.ratios) // 2)
        )
        self.ratios += np.bincount(
            places[full].astype(np.int64) + len(self.ratios) // 2, minlength=len(self.ratios)
        )
        usual = np.log2(ratio_of(percentiles(self.ratios, (0.5,))[0]))
        long = np.maximum(src.chars, tgt.chars) > MIN_UNEVEN_CHARS
        odd = np.abs(ratio - usual)
        self.gallery.add("lopsided", full & long & (odd > np.log2(LOPSIDED)), first, sides, odd)
        same = (src.exact == tgt.exact) & full
        self.gallery.add("identical", same, first, sides)
        nearly = (src.plain == tgt.plain) & ~same & full
        self.gallery.add("copies", nearly, first, sides)
        self.gallery.add("numbers", (src.numbers != tgt.numbers) & full, first, sides)
        self.gallery.add("open", (src.is_open != tgt.is_open) & full, first, sides)

    def wanted(self) -> _Wanted:
        """Return the pairs of the split, to be looked for in others."""
        empty = [np.empty(0, np.uint64)] * len(_Wanted.kinds)
        keys = [np.concatenate(parts) for parts in zip(empty, *self.keys, strict=True)]
        self.keys = []
        of_data = not self.cfg.key_prefix.startswith("sets.")
        return _Wanted(self.name, keys, self.options.examples, of_data=of_data)

    def report(self, overlaps: list[Overlap], is_whole: bool) -> SplitReport:
        """Return the counts, after a look at the sample."""
        lines, text = self.sample.taken()
        similar = similar_pairs(text)
        shown = [
            Example(
                lines[row],
                visible_text(text.src[row]),
                visible_text(text.tgt[row]),
                f"{share:.0%} as pair {lines[other]:,}: {visible_text(text.tgt[other], 80)}",
            )
            for row, other, share in similar[: self.options.examples]
        ]
        languages, wrong = self._languages(lines, text)
        return SplitReport(
            name=self.name,
            split=self.split,
            cfg=self.cfg,
            pairs=self.read,
            src=self.src,
            tgt=self.tgt,
            gallery=self.gallery,
            ratios=self.ratios,
            repeats={kind: one.found(self.options.examples) for kind, one in self.repeats.items()},
            overlaps=overlaps,
            correlation=self.alignment.correlation,
            shift=self.alignment.shift,
            similar=shown,
            similar_count=len(similar),
            sample=text,
            languages=languages,
            wrong_language=wrong,
            filtered=self.filtered if self.split is Split.train and self.cfg.has_source else None,
            is_whole=is_whole,
            labels=self.labels,
        )

    def _languages(self, lines: list[int], text: ParallelText) -> tuple[list[Languages], list[Example]]:
        sides = [(text.src, self.cfg.src)] if self.cfg.has_source else []
        found, wrong = [], list[Example]()
        for side, language in [*sides, (text.tgt, self.cfg.tgt)]:
            told_ = languages_of(side, language)
            found.append(told_)
            surest = sorted(told_.others, key=lambda other: (-other[2], other[0]))[: self.options.examples]
            for row, other, _ in surest:
                texts = visible_text(text.src[row]), visible_text(text.tgt[row])
                wrong.append(Example(lines[row], *texts, f"{language} side: looks like {other}"))
        return found, wrong


def _keys(src: LineFacts, tgt: LineFacts) -> list[Hashes]:
    """Return the hashes of each pair by which splits are compared, in the order of `_Wanted.kinds`."""
    return [combined(src.exact, tgt.exact), src.exact, tgt.exact, combined(src.plain, tgt.plain)]


@dataclass
class Unreadable:
    """A split that cannot be read, and why."""

    name: str
    problem: str


def _unaugmented(one: DataConfig) -> DataConfig:
    """Return the corpus of a set that has a domain and no modifiers; others as they are."""
    return one.of if isinstance(one, AugmentedData) and not one.augment else one


def examined(
    cfg: DataConfig, sets: Mapping[str, DataConfig], options: DoctorOptions, log: Callable[[str], None]
) -> tuple[list[SplitReport], list[Unreadable]]:
    """Look at every corpus and split of a config, those to score on first, and tell `log` what is read.

    The `sets`, further corpora to score on, are looked at, too, but for those that modify other pairs.
    """
    sets = {name: _unaugmented(one) for name, one in sets.items()}
    modified = [name for name, one in sets.items() if isinstance(one, AugmentedData)]
    if modified:
        log(f"not looked at, because they are other pairs with data.augment: sets {first_of(modified)}")
    reports, unreadable = list[SplitReport](), list[Unreadable]()
    wanted = list[_Wanted]()
    for split in TEXT_ORDER:
        met = list(wanted)
        parts = [
            (part_name, f"{part_name}: {split.value}" if cfg.is_mixture else split.value, part, cfg)
            for part_name, part in cfg.parts(split).items()
        ]
        parts += [
            (part_name, f"{one.key_prefix}: {split.value}", part, one)
            for set_name, one in sets.items()
            if set_name not in modified
            for part_name, part in one.parts(split).items()
        ]
        for part_name, name, part, whole in parts:
            exam = Examination(name, split, part, whole, options)
            try:
                nouns = f"{_noun(part)}s"
                chunks = told(_limited(part, split, options.max_pairs), f"looking at {name}", nouns)
                for chunk in chunks:
                    exam.add(chunk, met)
            except UserError as error:
                unreadable += [Unreadable(name, problem) for problem in error.problems]
                continue
            is_whole = options.max_pairs is None or exam.read < options.max_pairs
            overlaps = [other.overlap() for other in met]
            log(f"{name}: {exam.read:,} {nouns} looked at")
            if split is not Split.train:
                wanted.append(exam.wanted())
            report = exam.report(overlaps, is_whole)
            if split is Split.train and part.has_source:
                report.repairs = repairs.tried(part, options.max_pairs)
                report.trial = _filtered(cfg, part_name, part, options.max_pairs, is_whole)
            reports.append(report)
    return sorted(reports, key=lambda report: list(Split).index(report.split)), unreadable


def _filtered(cfg: DataConfig, name: str, part: DataConfig, most: int | None, is_whole: bool) -> FilterTrial:
    """Run the filters of a corpus over its training pairs as training would, but for those with models."""
    found = FilterTrial()
    if not cfg.filters and not part.filters:
        return found
    try:
        every = chains(cfg, {}, None)[name].rows
        found.left_out = [row.name for row in every if isinstance(row, ModelFilterConfig)]
        chain = chains_without_models(cfg)[name]
        whole = sources.stream(part, Split.train)
        source = whole._replace(chunks=lambda: _limited(part, Split.train, most))
        if chain:
            left = tried(source, cfg, filter_of(cfg), chain, is_whole=is_whole)
            found.report, found.remarks = left.report, left.remarks
            if cfg.has_labels:
                found.labels = frozenset(label for chunk in left.source.chunks() for label in chunk.tgt)
    except UserError as error:
        found.problems = list(error.problems)
    return found


def _noun(cfg: DataConfig) -> str:
    """Return what the splits of a corpus are made of: pairs of sentences, or texts by themselves."""
    return "pair" if cfg.has_source and not cfg.has_labels else "text"


def _limited(cfg: DataConfig, split: Split, most: int | None) -> Iterator[ParallelText]:
    """Yield the pairs of a split in chunks, as training would read them, but for tags; the first `most`."""
    left = most
    for chunk in sources.stream(cfg, split).chunks():
        if left is not None and len(chunk) >= left:
            yield chunk.first(left)
            return
        left = None if left is None else left - len(chunk)
        yield chunk
