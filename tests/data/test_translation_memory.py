"""Matches of a translation memory: the most similar source, by the edit distance of words."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.data import translation_memory
from nmt.data.pairs import ParallelText
from nmt.data.translation_memory import PADDING, Match, Neighbours, TranslationMemory, edit_distances
from nmt.errors import UserError

PAIRS = [
    ("A black dog runs.", "Ein schwarzer Hund rennt."),
    ("A white cat sleeps.", "Eine weiße Katze schläft."),
    ("A black dog runs.", "Ein schwarzer Hund läuft."),
    ("Press the red button to start the machine.", "Drücken Sie zum Starten den roten Knopf."),
]
SENTENCES = st.lists(st.integers(0, 4), max_size=8)


def plain_distance(a: list[int], b: list[int]) -> int:
    """Return the edit distance by its definition."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        above, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (x != y))
    return row[-1]


@given(SENTENCES, st.lists(SENTENCES, min_size=1, max_size=5))
def test_distances_are_those_of_the_definition(words: list[int], others: list[list[int]]) -> None:
    lengths = np.array([len(other) for other in others])
    padded = np.full((len(others), max(8, *lengths)), PADDING)
    for row, other in zip(padded, others, strict=True):
        row[: len(other)] = other
    found = edit_distances(np.array(words, np.int64), padded, lengths)
    assert found.tolist() == [plain_distance(words, other) for other in others]


@pytest.mark.parametrize(
    ("line", "least", "found"),
    [
        ("A black dog runs.", 1.0, (2, 1.0)),  # of two with the same source the last
        ("a BLACK dog runs .", 1.0, (2, 1.0)),
        ("A black dog sleeps.", 0.5, (2, 1 - 1 / 5)),
        ("A black dog sleeps.", 0.81, None),
        ("Press the green button to start the machine.", 0.5, (3, 1 - 1 / 9)),
        ("Nothing of it.", 0.5, None),
        ("xyz", 0.01, None),
        ("", 0.01, None),
    ],
)
def test_the_best_match_of_a_line(line: str, least: float, found: tuple[int, float] | None) -> None:
    match = TranslationMemory.of(PAIRS).best(line, least)
    assert match == (found and Match(*found))


def test_of_equal_matches_that_with_the_very_text_is_taken() -> None:
    memory = TranslationMemory.of([("US dollars", "US-Dollar"), ("us dollars", "uns Dollar")])
    assert [memory.best(line, 0.5) for line in ("US dollars", "us dollars", "Us dollars")] == [
        (0, 1.0),
        (1, 1.0),
        (1, 1.0),
    ]


def test_a_memory_without_pairs_is_refused_and_blank_sides_are_passed_over() -> None:
    assert len(TranslationMemory.of([*PAIRS, ("a", " "), ("", "b")])) == len(PAIRS)
    with pytest.raises(UserError, match="there is no pair"):
        TranslationMemory.of([("a", "")])


def test_matches_are_the_best_of_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all that are compared; those that are compared have nine of ten, here of words drawn at random."""
    rng = random.Random(1)
    lines = [
        " ".join(f"w{rng.paretovariate(0.8):.0f}" for _ in range(rng.randint(3, 12))) for _ in range(300)
    ]
    lines += [" ".join(w if rng.random() < 0.8 else "other" for w in line.split()) for line in lines[:60]]
    memory = TranslationMemory(ParallelText(lines, [f"t{i}" for i in range(len(lines))]))
    numbers = dict[str, int]()
    spelt = [[numbers.setdefault(word, len(numbers)) for word in line.split()] for line in lines]

    def likeness(one: list[int], other: list[int]) -> float:
        return 1 - plain_distance(one, other) / max(len(one), len(other))

    rows = range(0, len(lines), 13)
    best = [max(likeness(spelt[row], other) for i, other in enumerate(spelt) if i != row) for row in rows]
    wanted = [score if score >= 0.5 else 0.0 for score in best]

    def found() -> list[float]:
        matches = list(memory.neighbours(0.5))
        return [match.score if match else 0.0 for match in (matches[row] for row in rows)]

    scores = found()
    assert sum(
        score == pytest.approx(other) for score, other in zip(scores, wanted, strict=True)
    ) >= 0.9 * len(rows)
    monkeypatch.setattr(translation_memory, "MOST_COMPARED", len(lines))
    assert found() == pytest.approx(wanted)


def test_words_without_spaces_count_one_by_one() -> None:
    memory = TranslationMemory.of([("黒い犬が走る。", "A black dog runs.")])
    assert memory.best("白い犬が走る。", 0.5) == Match(0, 1 - 1 / 7)


def test_long_lines_have_no_match(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = TranslationMemory.of([("a b c d", "x")])
    assert memory.best("a b c d", 0.5)
    monkeypatch.setattr(translation_memory, "MOST_WORDS", 3)
    assert memory.best("a b c d", 0.5) is None


def test_neighbours_leave_out_the_pair_itself_and_its_copies(tmp_path: Path) -> None:
    src, tgt = (list(side) for side in zip(*PAIRS, PAIRS[1], strict=True))
    text = ParallelText(src, tgt)
    made = Neighbours.cached(lambda: text, "digest", 0.5, tmp_path)
    assert made.translation(src[0], 0.5) in (tgt[0], tgt[2])  # one source, two translations
    assert [made.translation(one, 0.5) for one in (src[1], src[3], "unknown")] == [None] * 3
    assert len(made) == 1
    read = Neighbours.cached(lambda: text, "digest", 0.5, tmp_path)
    assert read.translation(src[0], 0.5) == made.translation(src[0], 0.5)
    near = ParallelText(["a b c d", "a b c e"], ["x", "y"])
    found = Neighbours.of(near, 0.5)
    assert [found.translation(one, 0.5) for one in near.src] == ["y", "x"]
    assert found.translation("a b c d", 0.76) is None
