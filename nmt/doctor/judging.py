"""The findings that the counts of a corpus give: how bad each is, and what to do, with keys of the config."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from nmt.config.roots import RecipeConfig
from nmt.data.configs import DataConfig
from nmt.data.parallel_text import MAX_LINE_CHARS, Split
from nmt.data.reading.files import missing_splits
from nmt.data.reading.sources import AlignmentData
from nmt.data.reading.swapped import are_swapped, way_out
from nmt.data.tokens.label_set import named
from nmt.doctor import characters
from nmt.doctor.corpus import FLAGS, LOPSIDED, SideCounts, SplitReport, Unreadable, percentiles, ratio_of
from nmt.doctor.findings import Example, Finding, Severity, visible_text
from nmt.doctor.hashes import Group, Repetition
from nmt.doctor.similar import SIMILAR
from nmt.errors import UserError, first_of
from nmt.metrics.scoring import require_computable

LEAST_CORRELATION = 0.3
"""Correlation of lengths below which the sides are no translations of each other."""
ENOUGH_PAIRS = 200
"""Pairs from which a correlation or a share says something."""
MANY_COPIES = 0.2
"""Share of identical pairs, above which one side is perhaps a copy of the other."""
SMALL_CORPUS = 100_000
"""Training pairs below which the recipe for small data is worth naming."""


class Kind(NamedTuple):
    """A kind of finding about single pairs."""

    severity: Severity
    text: str
    """What the pairs have, after their number."""
    remedy: str
    row: str = ""
    """Row of data.filters that drops such training pairs."""
    fixers: str = ""
    """Rows of data.fixers that repair such training pairs."""


DROP = "remove them"


def with_row(report: SplitReport, remedy: str, row: str, fixers: str = "") -> str:
    """Return a remedy with the rows of the config that repair or drop such pairs of a training split."""
    if report.split is not Split.train or not report.cfg.has_source:
        return remedy
    is_repairable = fixers and not report.cfg.has_labels
    repairs = f"data.fixers=[{fixers}] repairs such {report.noun}s" if is_repairable else ""
    drops = f"data.filters=[{row}] drops such {report.noun}s" if row else ""
    return "; ".join(filter(None, [remedy, repairs, drops]))


KINDS: dict[str, Kind] = {  # of which `Examination` counts each
    "empty": Kind(Severity.costs, "have an empty side", "training drops them; remove those of test sets"),
    "unread": Kind(
        Severity.costs,
        f"have a line of over {MAX_LINE_CHARS:,} characters, of which only the beginning is read",
        "training drops them; is a line feed missing?",
    ),
    "over_long": Kind(
        Severity.note,
        "have a side of more than data.max_chars characters",
        "training drops them: split them into sentences, or raise data.max_chars and data.max_tokens",
    ),
    "lopsided": Kind(
        Severity.costs,
        f"have sides whose lengths differ {LOPSIDED:g} times as much as usual",
        "they are rarely translations",
        "{name: ratio}",
    ),
    "identical": Kind(
        Severity.note,
        "have the same text on both sides",
        "names and numbers are fine; sentences teach the model to copy",
        "{name: identical, short: 20}",
    ),
    "copies": Kind(
        Severity.note,
        "have the same letters and digits on both sides, but for case and punctuation",
        "look whether they are sentences",
        "{name: identical, normalise: true, short: 20}",
    ),
    "numbers": Kind(
        Severity.note,
        "have different numbers (of two digits or more) on the two sides",
        "times, units and thousands may be written in another way; else the pair is misaligned",
        "{name: numbers}",
    ),
    "open": Kind(
        Severity.note,
        "have brackets or quotes that are closed on one side only",
        "often a sentence cut in two",
    ),
    "control": Kind(
        Severity.costs,
        "have control characters",
        "delete these characters from the files",
        "{name: characters}",
        "invisible",
    ),
    "breaks": Kind(
        Severity.note,
        "have a line break of another kind inside (CR, U+0085, U+2028, form feed)",
        "here they are text, but other programs break lines at them: replace them by spaces",
        fixers="invisible",
    ),
    "invisible": Kind(
        Severity.costs,
        "have invisible characters (zero-width, soft hyphen, direction marks)",
        "delete these characters; the same word with and without them is two words to the model",
        fixers="invisible",
    ),
    "byte_order": Kind(
        Severity.costs,
        "have a byte order mark inside",
        "files were joined with their marks: delete U+FEFF",
        fixers="invisible",
    ),
    "replacement": Kind(
        Severity.costs,
        "have U+FFFD, which stands for a byte that could not be read",
        "convert the original files anew, with the right encoding, or remove them",
        "{name: characters}",
    ),
    "private": Kind(
        Severity.costs,
        "have characters of private use, which have no meaning",
        "remove or replace them",
        "{name: characters}",
    ),
    "mojibake": Kind(
        Severity.costs,
        "look as if UTF-8 had been read as Windows-1252, such as Ã¼ for ü",
        "repair them (the library ftfy does), or remove them",
        fixers="mojibake",
    ),
    "mixed_words": Kind(
        Severity.costs,
        "have a word with letters of two scripts that look alike, such as a Cyrillic а in a Latin word",
        "replace the letters by those of the script of the word",
    ),
    "foreign": Kind(
        Severity.costs, "have a side without a letter of the script of its language", DROP, "{name: script}"
    ),
    "html": Kind(
        Severity.costs,
        "have HTML tags or entities",
        "replace entities by their characters, and remove tags unless they are to be translated",
        fixers="html_entities, html_tags",
    ),
    "url": Kind(
        Severity.note,
        "have an address of the web",
        "few do no harm; many are boilerplate",
        "{name: regex, pattern: '://'}",
    ),
}


def judged(
    cfg: RecipeConfig, reports: Sequence[SplitReport], unreadable: Sequence[Unreadable]
) -> list[Finding]:
    """Return what is found in `cfg.data`, the worst first; of a severity in the order of the splits."""
    found = [
        Finding(Severity.breaks, one.name, "unreadable", f"cannot be read: {one.problem}")
        for one in unreadable
    ]
    found += [*_missing(cfg.data), *_unscorable(cfg), *_labels(reports)]
    for report in reports:
        found += [*_swapped(report, reports), *_sides(report), *_languages(report), *_overlaps(report)]
        found += [*_repeats(report), *_kinds(report), *_size(report), *_filtered(report), *_trial(report)]
    order = list(Severity)
    return sorted(found, key=lambda finding: order.index(finding.severity))


def share(count: int, total: int) -> str:
    """Return a number with its share of `total`, such as "12 (0.4%)"."""
    percent = 100.0 * count / total if total else 0.0
    told = "all" if count == total else "<0.01%" if percent < 0.01 else f"{percent:.2g}%"
    return f"{count:,} ({told})" if percent < 99.5 or count == total else f"{count:,} ({percent:.4g}%)"


def _missing(data: DataConfig) -> Iterator[Finding]:
    for split in missing_splits(data):
        need, other = "training needs", ""
        if split is Split.test:
            need, other = "the score at the end needs", ", or data.scored_split=validation"
        text = f"is not set; {need} it"
        yield Finding(Severity.note, split.value, "missing", text, f"set {data.key(split)}{other}")


def _unscorable(cfg: RecipeConfig) -> Iterator[Finding]:
    if cfg.data.has_labels or not cfg.data.has_source:
        return
    try:
        require_computable(cfg.metrics, cfg.data.scored_language, cfg.scoring)
    except UserError as error:
        yield Finding(
            Severity.costs,
            Split.validation.value,
            "metrics",
            f"cannot be scored by metrics=[{','.join(cfg.metrics)}]: {error}",
            "a training asks for it before its first update; install it, or set metrics=[chrf]",
        )


def _labels(reports: Sequence[SplitReport]) -> Iterator[Finding]:
    """Yield what keeps a classifier from being trained: a single label, labels that no training text has."""
    trained = [report for report in reports if report.split is Split.train and report.cfg.has_labels]
    if not trained or not all(report.is_whole for report in trained):
        return
    left = [report.labels if report.trial.labels is None else report.trial.labels for report in trained]
    known = sorted({label for labels in left for label in labels})
    if len(known) < 2:
        text = f"all texts have the same label, {known[0]!r}" if known else "no text has a label"
        yield Finding(
            Severity.breaks,
            trained[0].name,
            "labels",
            text,
            f"check {trained[0].cfg.key_prefix}.label_column",
        )
    for report in reports:
        unknown = [label for label in report.labels if label not in known]
        if report.split is not Split.train and unknown:
            first = report.labels[unknown[0]]
            yield Finding(
                Severity.breaks,
                report.name,
                "labels",
                f"the labels of {first_of(map(repr, unknown))} are those of no training text; text {first:,} "
                f"has the first of them",
                f"training texts have {named(known)}; leave other texts out, or name their labels so",
            )


def _sides(report: SplitReport) -> Iterator[Finding]:
    shift, total = report.shift, report.pairs
    if shift is not None and shift.parts * 20 >= shift.of:
        first = max(1, shift.first - 1)
        yield Finding(
            Severity.breaks,
            report.name,
            "shifted",
            f"from about pair {first:,} on, the source fits the target "
            f"{abs(shift.lines)} line{'s' if abs(shift.lines) > 1 else ''} "
            f"{'later' if shift.lines > 0 else 'earlier'}, judging by lengths "
            f"({shift.parts:,} of {shift.of:,} parts of 1,000 pairs)",
            "a line is missing or added on one side: align the files again",
        )
    elif report.correlation is not None and report.correlation < LEAST_CORRELATION and total >= ENOUGH_PAIRS:
        yield Finding(
            Severity.breaks,
            report.name,
            "unrelated",
            f"the lengths of source and target hardly go together (correlation {report.correlation:.2f}; "
            "translations have 0.8 or more)",
            "are the files of the same corpus, in the same order?",
        )
    copies = report.gallery.counts.get("identical", 0)
    if total >= ENOUGH_PAIRS and copies > MANY_COPIES * total:
        yield Finding(
            Severity.breaks,
            report.name,
            "one_language",
            f"{share(copies, total)} pairs have the same text on both sides; is a file a copy of the other?",
            "name the right files, or src_column and tgt_column",
        )


def _swapped(report: SplitReport, reports: Sequence[SplitReport]) -> Iterator[Finding]:
    """Yield that the sides of a split to score on are the other way round than those to train on."""
    cfg, trained = report.cfg, {one.cfg.key_prefix: one for one in reports if one.split is Split.train}
    other = trained.get(cfg.key_prefix, trained.get("data"))
    if report.split is Split.train or other is None or not cfg.has_source or cfg.has_labels:
        return
    if (cfg.src, cfg.tgt) == (other.cfg.src, other.cfg.tgt) and are_swapped(other.sample, report.sample):
        yield Finding(
            Severity.breaks,
            report.name,
            "swapped",
            "the source is like the target of the training pairs, and the target like their source",
            way_out(cfg, report.split),
        )


def _languages(report: SplitReport) -> Iterator[Finding]:
    names = [told.expected for told in report.languages]
    if report.cfg.has_labels:  # a text and its label are named by what they are, and not by languages
        return
    for number, told in enumerate(report.languages):
        side = ("source", "target")[number] if len(names) == 2 else "text"
        if told.problem:
            yield Finding(Severity.note, report.name, "language_unknown", f"{side}: {told.problem}")
        elif told.wrong:
            other = names[1 - number] if len(names) == 2 else ""
            is_other = other and told.counts.get(other, 0) * 2 > told.looked_at
            others = ", ".join(f"{name} {n:,}" for name, n in list(told.counts.items())[:4])
            many = told.wrong * 200 >= told.looked_at
            yield Finding(
                Severity.breaks if is_other else Severity.costs if many else Severity.note,
                report.name,
                "language",
                f"{side}: {share(told.wrong, told.looked_at)} of the sampled lines that are long and clear "
                f"enough look like another language than {told.expected}: {others}",
                way_out(report.cfg, report.split) if is_other else with_row(report, DROP, "{name: language}"),
                told.wrong,
                told.looked_at,
                [one for one in report.wrong_language if one.note.startswith(f"{_name(report, number)} ")],
            )


def _name(report: SplitReport, number: int) -> str:
    cfg = report.cfg
    return (cfg.src if number == 0 else cfg.tgt) if len(report.languages) == 2 else cfg.tgt


def _overlaps(report: SplitReport) -> Iterator[Finding]:
    are_pairs = report.cfg.has_source and not report.cfg.has_labels
    for overlap in report.overlaps:
        told = [
            f"{name} {share(count, overlap.total)}"
            for name, count in (
                (f"{report.noun}s", overlap.pairs),
                (f"{report.noun}s but for case and punctuation", overlap.plain_pairs),
                ("sources", overlap.sources if report.cfg.has_source else 0),
                ("targets", overlap.targets if are_pairs else 0),
            )
            if count
        ]
        if told:
            is_costly = overlap.plain_pairs * 1000 > overlap.total and report.split is Split.train
            yield Finding(
                Severity.costs if is_costly else Severity.note,
                report.name,
                "overlap",
                f"has lines of {overlap.split}: {', '.join(told)}",
                with_row(
                    report,
                    "scores on them measure memory",
                    "{name: overlap, normalise: true}" if overlap.of_data else "",
                )
                if report.split is Split.train
                else "",
                overlap.plain_pairs,
                overlap.total,
                overlap.examples,
            )


def _repeats(report: SplitReport) -> Iterator[Finding]:
    pairs, plain = report.repeats["pair"], report.repeats["plain"]
    total, training = report.pairs, report.split is Split.train
    if pairs.repeated and not isinstance(report.cfg, AlignmentData):  # which are copies, as asked for
        yield _repetition(
            report, "duplicates", pairs, "are repetitions of one before them", "{name: duplicates}"
        )
    if plain.variants and not isinstance(report.cfg, AlignmentData):
        groups = [group for group in plain.groups if group.variants > 1]
        yield _repetition(
            report,
            "near_duplicates",
            plain._replace(repeated=plain.variants, groups=groups),
            "repeat one before them but for case, punctuation and spaces",
            "{name: duplicates, normalise: true}",
        )
    if report.similar_count:
        sampled = len(report.sample)
        yield Finding(
            Severity.note,
            report.name,
            "similar",
            f"of a sample of {sampled:,} {report.noun}s, {share(report.similar_count, sampled)} share "
            f"{SIMILAR:.0%} of their letters, five at a time, with another one of the sample",
            "templates and boilerplate: keep a few of each" if training else "",
            report.similar_count,
            sampled,
            report.similar,
        )
    both = (("source", "targets"), ("target", "sources"))
    for kind, other in both[: 1 if report.cfg.has_labels else 2] if report.cfg.has_source else ():
        found = report.repeats[kind]
        if found.ambiguous:
            groups = [group for group in found.groups if group.variants > 1]
            yield Finding(
                Severity.note,
                report.name,
                f"ambiguous_{kind}",
                f"{'' if found.is_exact else 'about '}{found.ambiguous:,} different {kind}s have several "
                f"different {other}",
                "several translations are fine; very many are placeholders or misaligned",
                found.ambiguous,
                total,
                [example_of(g, f"{g.times:,} times, {g.variants:,} {other}") for g in groups],
            )


def example_of(group: Group, note: str) -> Example:
    """Return a line that repeats as an example."""
    src, tgt = map(visible_text, group.texts)
    return Example(group.first, src, tgt, note)


def _repetition(report: SplitReport, kind: str, found: Repetition, text: str, row: str) -> Finding:
    many = found.repeated * 100 >= report.pairs and report.split is Split.train
    return Finding(
        Severity.costs if many else Severity.note,
        report.name,
        kind,
        f"{'' if found.is_exact else 'about '}{share(found.repeated, report.pairs)} {report.noun}s {text}",
        with_row(report, "keep one of each", row) if report.split is Split.train else "",
        found.repeated,
        report.pairs,
        [example_of(g, f"{g.times:,} times") for g in found.groups],
    )


def _kinds(report: SplitReport) -> Iterator[Finding]:
    for kind, row in KINDS.items():
        if count := report.gallery.counts.get(kind, 0):
            names = _odd_characters(report, kind)
            yield Finding(
                row.severity,
                report.name,
                kind,
                f"{share(count, report.pairs)} {report.noun}s {row.text}{f': {names}' if names else ''}",
                with_row(report, row.remedy, row.row, row.fixers),
                count,
                report.pairs,
                report.gallery.examples(kind),
            )


def _odd_characters(report: SplitReport, kind: str) -> str:
    """Return the characters that are found, with their numbers, the most first."""
    if kind not in ("control", "breaks", "invisible", "private"):
        return ""
    both = report.src.characters + report.tgt.characters
    codes = np.flatnonzero((characters.tables().flags & FLAGS[kind] > 0) & (both > 0))
    ranked = codes[np.argsort(-both[codes], kind="stable")][:5].tolist()
    named = [f"U+{code:04X} {unicodedata.name(chr(code), '').lower()}".strip() for code in ranked]
    return ", ".join(f"{name} {int(both[code]):,}" for name, code in zip(named, ranked, strict=True))


def _size(report: SplitReport) -> Iterator[Finding]:
    is_translation = report.split is Split.train and report.noun == "pair"
    if is_translation and report.is_whole and report.pairs < SMALL_CORPUS:
        yield Finding(
            Severity.note,
            report.name,
            "small",
            f"{report.pairs:,} pairs are few",
            "experiment=small_data chooses the size of the vocabulary, and dropout, by them",
        )


def _filtered(report: SplitReport) -> Iterator[Finding]:
    if report.filtered is not None and report.filtered.kept < report.filtered.read:
        yield Finding(
            Severity.note if report.filtered.kept else Severity.breaks,
            report.name,
            "filtered",
            f"the filter of training would keep: {report.filtered}",
            "data.max_chars decides" if report.cfg.has_labels else "data.max_chars and data.max_ratio decide",
            report.filtered.read - report.filtered.kept,
            report.filtered.read,
        )


def _trial(report: SplitReport) -> Iterator[Finding]:
    """Yield what data.fixers did, and what data.filters would do."""
    if report.repairs:
        text = f"data.fixers: {'; '.join(report.repairs)}"
        yield Finding(Severity.note, report.name, "fixers", text, "docs/fixers.md says what each fixer does")
    trial = report.trial
    for problem in trial.problems:
        yield Finding(Severity.breaks, report.name, "filters", f"data.filters cannot run: {problem}")
    if left_out := ", ".join(trial.left_out):
        yield Finding(
            Severity.note,
            report.name,
            "filters_left_out",
            f"filters of data.filters that need a model were not run: {left_out}",
            "nmt prepare runs them, too, and says what they drop",
        )
    if trial.report is not None:
        yield Finding(
            Severity.note if trial.report.kept else Severity.breaks,
            report.name,
            "filters",
            f"data.filters would keep {share(trial.report.kept, trial.report.read)} of "
            f"{trial.report.read:,} {report.noun}s: {'; '.join(trial.remarks)}",
            "docs/filters.md says what each filter measures",
            trial.report.read - trial.report.kept,
            trial.report.read,
        )


def numbers_of(side: SideCounts) -> list[tuple[str, list[int]]]:
    """Return the median, the 99th percentile and the most of characters and words of a line."""
    shares = 0.01, 0.5, 0.99, 1.0
    return [
        ("characters", percentiles(side.char_lengths, shares)),
        ("words", percentiles(side.word_lengths, shares)),
    ]


def usual_ratios(report: SplitReport) -> list[float]:
    """Return the 1st, 50th and 99th percentile of the ratio of target to source characters."""
    return [ratio_of(place) for place in percentiles(report.ratios, (0.01, 0.5, 0.99))]
