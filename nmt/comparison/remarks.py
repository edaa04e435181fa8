"""What is odd about translations, which may then not be what they are taken for.

Files of other systems come from anywhere: tokenised, cut into pieces, of other sentences or in another order.
Nothing is refused for that, since all of it may be the fault of the system; it is said beside the scores.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from nmt.comparison.breakdown import SENTENCE_CHRF
from nmt.comparison.significance import scores_by
from nmt.comparison.translations import Entry

TOKENISED = re.compile(r"\S [.,](?: |$)|@@ |▁|&(?:amp|apos|quot);")
"""What detokenised text hardly ever has: signs by themselves, marks between pieces of words, entities."""
MOST_TOKENISED = 0.1
"""Share of translations, beyond that of the references, that may look tokenised without a remark."""
LEAST_LIKENESS = 1.2
"""Ratio of the chrF against the references to that against those of the next lines, without a remark."""


def remarks(entry: Entry, split: str) -> Iterator[str]:
    """Yield what is odd about the translations of `split`, or the labels, of an entry that is compared."""
    lines, references = entry.hypotheses, entry.references[0]
    if entry.has_labels:
        known = {*references}
        yield from _remark(entry, "are labels that no reference has", [line not in known for line in lines])
        return
    pairs = zip(lines, entry.sources, strict=True)
    yield from _remark(entry, "are empty", [not hyp.strip() and bool(src.strip()) for hyp, src in pairs])
    looks = [[bool(TOKENISED.search(line)) for line in side] for side in (lines, references)]
    if sum(looks[0]) - sum(looks[1]) > MOST_TOKENISED * len(lines):
        yield from _remark(entry, "look tokenised, but scores are of detokenised text", looks[0])
    if entry.record is None and not _is_in_order(lines, references):
        yield (
            f"the lines of {entry.name} are hardly more like their references than like those of the next "
            f"lines; are they translations of {split}, in its order?"
        )


def _remark(entry: Entry, what: str, are: Sequence[bool]) -> Iterator[str]:
    """Yield a remark on the lines of a mask, if there are any."""
    if any(are):
        first = are.index(True) + 1
        yield f"{sum(are):,} of {len(are):,} lines of {entry.name}, first line {first:,}, {what}"


def _is_in_order(lines: Sequence[str], references: Sequence[str]) -> bool:
    """Return whether translations are clearly more like their references than like others."""
    others, everything = [*references[1:], references[0]], np.arange(len(lines))
    own, other = (
        scores_by(SENTENCE_CHRF, [lines], [side]).score_on(0)(everything) for side in (references, others)
    )
    return own > LEAST_LIKENESS * other or len(lines) < 2
