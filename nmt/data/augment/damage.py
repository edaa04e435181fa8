"""Made-up misaligned pairs from true ones, so that a classifier of pairs is trained without labels.

What a pair becomes is a pure function of a seed, of the number of its line, and of the text of its block: the
`BLOCK_PAIRS` lines around it, counted from the beginning of the stream, among which foreign sentences and
words are looked for. So the chunks in which a stream is read make no difference, and one block is in memory.

The kinds are those of filters that learn without labels: sentences that do not belong together (Munteanu and
Marcu 2005; Bicleaner, Sanchez-Cartagena et al. 2018), also hard ones of a similar length or with a word in
common, sides that tell less or more than the other, the wrong language, and text that is broken by itself.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from nmt.data.parallel_text import PairStream, ParallelText
from nmt.data.text.words import NO_SPACES

ALIGNED, MISALIGNED = "aligned", "misaligned"
"""The labels."""
BLOCK_PAIRS = 10_000
"""Pairs of a stream that lend each other sentences and words."""
VERSION = 4
"""Increased when the same seed makes other pairs: part of the stamp of labelled pairs."""
NEAR = 0.01
"""Targets of a similar length are those at most so far away in the order by length, as a share of a block."""

_SPACELESS = re.compile(f"[{NO_SPACES}]")

Pair = tuple[str, str]
Draw = Callable[[int], int]
"""A function that returns a random number from 0 up to, but without, a number."""


class Block:
    """Pairs of a stream, and which of their targets are alike."""

    def __init__(self, text: ParallelText):
        self.pairs: list[Pair] = list(zip(text.src, text.tgt, strict=True))

    @functools.cached_property
    def by_length(self) -> list[int]:
        """Rows in the order of the lengths of their targets."""
        return sorted(range(len(self.pairs)), key=lambda row: len(self.pairs[row][1]))

    @functools.cached_property
    def rank(self) -> list[int]:
        """The place of each row in `by_length`."""
        places = [0] * len(self.pairs)
        for place, row in enumerate(self.by_length):
            places[row] = place
        return places

    @functools.cached_property
    def rows_with(self) -> Mapping[str, Sequence[int]]:
        """The rows of each word of the targets."""
        rows: defaultdict[str, list[int]] = defaultdict(list)
        for row, (_, tgt) in enumerate(self.pairs):
            for word in dict.fromkeys(units(tgt)[0]):
                rows[word].append(row)
        return rows


def units(text: str) -> tuple[list[str], str]:
    """Return the words of a text and what joins them; in a script without spaces each character is a word.

    A text is in such a script if half of its characters are.
    """
    words = text.split()
    if text.isascii() or 2 * len(_SPACELESS.findall(text)) < sum(map(len, words)):
        return words, " "
    return list(text.strip()), ""


# The kinds: each returns what a pair of a block becomes, which is the pair itself where nothing can be done.


def foreign(block: Block, row: int, draw: Draw) -> Pair:
    """Return the source with the target of any other pair."""
    return block.pairs[row][0], block.pairs[draw(len(block.pairs))][1]


def foreign_of_like_length(block: Block, row: int, draw: Draw) -> Pair:
    """Return the source with the target of another pair, one of nearly the same length."""
    reach = max(1, round(NEAR * len(block.pairs)))
    place = block.rank[row] + (1 + draw(reach)) * (1 if draw(2) else -1)
    other = block.by_length[min(max(place, 0), len(block.pairs) - 1)]
    return block.pairs[row][0], block.pairs[other][1]


def foreign_with_same_word(block: Block, row: int, draw: Draw) -> Pair:
    """Return the source with another target that shares a word, the rarest of three at random."""
    words = units(block.pairs[row][1])[0]
    drawn = [block.rows_with[words[draw(len(words))]] for _ in range(3)]
    rows = min((rows for rows in drawn if len(rows) > 1), key=len, default=[row])
    return block.pairs[row][0], block.pairs[rows[draw(len(rows))]][1]


def truncated(block: Block, row: int, draw: Draw) -> Pair:
    """Return the pair without a clause, or a quarter to three quarters, at the end or beginning of a side."""

    def cut(text: str) -> str:
        words, joiner = units(text)
        if len(words) < 2:
            return text
        clauses = [place for place in range(1, len(words)) if re.search(r"[,;:.!?。、，]$", words[place - 1])]
        missing = min(max(1, round(len(words) * (25 + draw(51)) / 100)), len(words) - 1)
        clause = clauses[draw(len(clauses))] if clauses and draw(2) else None
        if draw(2):  # without the beginning
            return joiner.join(words[missing if clause is None else clause :])
        return joiner.join(words[: len(words) - missing if clause is None else clause])

    return _on_a_side(block.pairs[row], draw, cut)


def extended(block: Block, row: int, draw: Draw) -> Pair:
    """Return the pair with the sentence of another pair before or behind one side."""
    side, donor = draw(2), block.pairs[draw(len(block.pairs))]
    own, more = block.pairs[row][side], donor[side].strip()
    joined = units(own)[1].join((own.strip(), more) if draw(2) else (more, own.strip()))
    return _with_side(block.pairs[row], side, joined if more != own.strip() else own)


def swapped(block: Block, row: int, draw: Draw) -> Pair:
    """Return the target and the source."""
    return block.pairs[row][::-1]


def copied(block: Block, row: int, draw: Draw) -> Pair:
    """Return one of the sides twice."""
    side = block.pairs[row][draw(2)]
    return side, side


def shuffled(block: Block, row: int, draw: Draw) -> Pair:
    """Return the pair with the words of one side in another order."""

    def shuffle(text: str) -> str:
        words, joiner = units(text)
        for last in range(len(words) - 1, 0, -1):
            other = draw(last + 1)
            words[last], words[other] = words[other], words[last]
        return joiner.join(words)

    return _on_a_side(block.pairs[row], draw, shuffle)


def replaced(block: Block, row: int, draw: Draw) -> Pair:
    """Return the pair with a quarter to three quarters of the words of one side from other pairs."""
    side = draw(2)
    words, joiner = units(block.pairs[row][side])
    share = 25 + draw(51)
    for place in range(len(words)):
        donors = units(block.pairs[draw(len(block.pairs))][side])[0]
        if donors and draw(100) < share:
            words[place] = donors[draw(len(donors))]
    return _with_side(block.pairs[row], side, joiner.join(words))


def _on_a_side(pair: Pair, draw: Draw, change: Callable[[str], str]) -> Pair:
    """Return the pair with one of its sides, at random, changed."""
    side = draw(2)
    return _with_side(pair, side, change(pair[side]))


def _with_side(pair: Pair, side: int, text: str) -> Pair:
    return (pair[0], text) if side else (text, pair[1])


KINDS: dict[str, tuple[float, Callable[[Block, int, Draw], Pair]]] = {
    "foreign": (2.0, foreign),
    "like_length": (1.0, foreign_of_like_length),
    "same_word": (2.0, foreign_with_same_word),
    "truncated": (2.0, truncated),
    "extended": (1.0, extended),
    "swapped": (0.5, swapped),
    "copied": (0.5, copied),
    "shuffled": (1.0, shuffled),
    "replaced": (1.0, replaced),
}
"""Kind of damage -> how often it is chosen by default, relative to the others, and its function."""


def damaged(block: Block, row: int, rates: Mapping[str, float], draw: Draw) -> Pair | None:
    """Return a misaligned pair made of a row, or None where no kind can make one.

    The kind is drawn by `rates`; where it leaves the pair as it is, as a cut does with one word, the next
    ones of the table are tried.
    """
    names = [name for name in KINDS if rates.get(name, 0.0) > 0.0]
    weights = list(itertools.accumulate(rates[name] for name in names))
    drawn = draw(1 << 30) / (1 << 30) * weights[-1]
    first = next(number for number, weight in enumerate(weights) if drawn < weight)
    for name in names[first:] + names[:first]:
        found = KINDS[name][1](block, row, draw)
        if [side.split() for side in found] != [side.split() for side in block.pairs[row]]:
            return found
    return None


def labelled(source: PairStream, rates: Mapping[str, float], *, seed: int, copies: int) -> PairStream:
    """Return the pairs of a stream, each `copies` times, as sources `SRC TAB TGT` and labels as targets.

    A pair is in turn true and damaged, half of the pairs beginning with one and half with the other: an even
    number of copies has as many of both. A pair with a blank side is always misaligned, and one that cannot
    be damaged always aligned.
    """

    def chunks() -> Iterator[ParallelText]:
        for copy in range(copies):
            first = 0
            for text in blocks(source.chunks()):
                yield _judged(text, rates, seed, copy, first)
                first += len(text)

    def stamp() -> str:
        depends_on = VERSION, source.stamp(), sorted(rates.items()), seed, copies
        return hashlib.sha256(repr(depends_on).encode()).hexdigest()

    return PairStream(stamp, chunks)


def _judged(text: ParallelText, rates: Mapping[str, float], seed: int, copy: int, first: int) -> ParallelText:
    """Return a block with labels; `first` is the number of its first line."""
    block, found = Block(text), ParallelText()
    for row, pair in enumerate(block.pairs):
        is_late = random.Random(f"{seed} {first + row}").random() < 0.5
        true = is_late == bool(copy % 2)
        draw = _draw(random.Random(f"{seed} {first + row} {copy}"))
        blank = not all(map(str.strip, pair))
        made = None if true or blank else damaged(block, row, rates, draw)
        found.src.append("\t".join(side.replace("\t", " ") for side in made or pair))
        found.tgt.append(MISALIGNED if made or blank else ALIGNED)
    return found


def _draw(rng: random.Random) -> Draw:
    """Return a function that draws by `random` alone, whose values are the same in each version of Python."""
    return lambda number: int(rng.random() * number)


def blocks(chunks: Iterable[ParallelText]) -> Iterator[ParallelText]:
    """Yield the pairs of all chunks, `BLOCK_PAIRS` at a time, the last ones perhaps fewer."""
    pairs = itertools.chain.from_iterable(zip(chunk.src, chunk.tgt, strict=True) for chunk in chunks)
    while block := list(itertools.islice(pairs, BLOCK_PAIRS)):
        yield ParallelText([src for src, _ in block], [tgt for _, tgt in block])
