"""A report as text for a terminal of 80 columns, findings first; what a terminal would obey is escaped."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from nmt.doctor.corpus import SideCounts, SplitReport
from nmt.doctor.environment import Fact
from nmt.doctor.findings import Example, Finding, Severity
from nmt.doctor.judging import numbers_of, usual_ratios
from nmt.errors import visible

WIDTH = 80


def summary(
    title: str, findings: Sequence[Finding], reports: Sequence[SplitReport], facts: Sequence[Fact]
) -> str:
    """Return the text of a report: findings, then the counts of splits, then facts of the environment."""
    lines, nouns = [title], {report.name: report.noun for report in reports}
    for severity in Severity:
        chosen = [finding for finding in findings if finding.severity is severity]
        lines += ["", f"{severity.value.upper()}: {len(chosen) or 'nothing found'}"]
        for number, finding in enumerate(chosen, start=1):
            lines += _finding(number, finding, nouns.get(finding.where, ""))
    if reports:
        lines += ["", "COUNTS", *_counts(reports)]
    if facts:
        lines += ["", "ENVIRONMENT"]
        for fact in facts:
            lines += _wrapped(fact.value, f"  {fact.name:<15} ", " " * 18)
    return visible("\n".join(lines))


def _wrapped(text: str, first: str, later: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=later, break_on_hyphens=False
    ) or [first.rstrip()]


def _finding(number: int, finding: Finding, noun: str) -> Iterator[str]:
    yield from _wrapped(f"{finding.where}: {finding.text}", f" {number:>2}. ", "     ")
    if finding.remedy:
        yield from _wrapped(finding.remedy, "     -> ", "        ")
    for example in finding.examples:
        yield from _example(example, noun)


def _example(example: Example, noun: str) -> Iterator[str]:
    head = f"       {noun} {example.line:,}" + (f", {example.note}" if example.note else "")
    yield head if len(head) <= WIDTH else f"{head[: WIDTH - 1]}…"
    for text in (example.src, example.tgt):
        room = WIDTH - 11
        if text:
            yield f"         | {text if len(text) <= room else text[: room - 1] + '…'}"


def _counts(reports: Sequence[SplitReport]) -> Iterator[str]:
    for report in reports:
        first = "" if report.is_whole else ", the first ones"
        yield f"  {report.name}: {report.pairs:,} {report.noun}s{first}"
        sides = [report.src, report.tgt] if report.cfg.has_source else [report.tgt]
        for side in sides:
            yield from _side(side)
        if report.cfg.has_source and report.ratios.sum():
            low, middle, high = usual_ratios(report)
            yield (
                f"    characters of {report.tgt.language} for one of {report.src.language}: {middle:.2f} "
                f"(98% of pairs {low:.2f} to {high:.2f})"
            )
            if report.correlation is not None:
                yield f"    correlation of the lengths: {report.correlation:.2f}"


def _side(side: SideCounts) -> Iterator[str]:
    yield f"    {side.language}: {side.words:,} words, {side.chars:,} characters"
    for name, (least, median, many, most) in numbers_of(side):
        yield f"      {name} of a line: median {median:,}, 98% {least:,} to {many:,}, at most {most:,}"
    total = sum(side.scripts.values())
    scripts = [f"{name} {100 * count / total:.3g}%" for name, count in list(side.scripts.items())[:5]]
    yield from _wrapped(f"scripts: {', '.join(scripts) or 'no letters'}", "      ", "      ")
