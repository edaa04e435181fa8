"""Matches of a translation memory: the most similar source, by the edit distance of words."""

from __future__ import annotations

import itertools
import random
import re
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.data.augment import translation_memory
from nmt.data.augment.translation_memory import PADDING, Match, Neighbours, TranslationMemory, edit_distances
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
    match = TranslationMemory(PAIRS).best(line, least)
    assert match == (found and Match(*found))


def test_of_equal_matches_that_with_the_very_text_is_taken() -> None:
    memory = TranslationMemory([("US dollars", "US-Dollar"), ("us dollars", "uns Dollar")])
    assert [memory.best(line, 0.5) for line in ("US dollars", "us dollars", "Us dollars")] == [
        (0, 1.0),
        (1, 1.0),
        (1, 1.0),
    ]


def test_a_memory_without_pairs_is_refused_and_blank_sides_are_passed_over() -> None:
    assert len(TranslationMemory([*PAIRS, ("a", " "), ("", "b"), PAIRS[0]])) == len(PAIRS)
    for pairs, told in (
        ([("a", "")], "there is no pair"),
        ("memory.tmx", "pairs are (source, translation), but number 0 is 'm'"),
        ([("a", "b"), ("a", "b", "c")], "number 1 is ('a', 'b', 'c')"),
        ([("a", None)], "number 0 is ('a', None)"),
    ):
        with pytest.raises(UserError, match=re.escape(told)):
            TranslationMemory(cast(Any, pairs))


def test_the_line_itself_is_found_among_many_that_are_like_it() -> None:
    """Also where each of its words is more frequent than what is looked up."""
    memory = TranslationMemory([("Thank you.", "Danke."), *((f"Thank you {i}.", "x") for i in range(300))])
    assert memory.best("Thank you.", 0.5) == Match(0, 1.0)
    assert TranslationMemory([("yes yes", "j"), *((f"yes w{i}", "x") for i in range(200))]).best(
        "yes yes", 0.5
    ) == Match(0, 1.0)
    kinds = [[f"{kind}{i}" for i in range(8)] for kind in "abcde"]
    lines = [" ".join(words) for words in itertools.product(*kinds)]
    random.Random(1).shuffle(lines)
    large = TranslationMemory((line, "x") for line in lines)
    for row in range(0, len(lines), 3001):
        assert large.best(lines[row], 0.5) == Match(row, 1.0)
        other = large.best(f"{lines[row]} more", 0.5)
        assert other == Match(row, 1 - 1 / 6)


def test_rare_words_do_not_keep_frequent_ones_from_being_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation_memory, "MOST_PLACES", 50)
    texts = [f"name{i} : the file was saved to the disk at n{i} ." for i in range(200)]
    memory = TranslationMemory([("name7 is far", "x"), *((text, "x") for text in texts)])
    scores = [match.score if match else 0.0 for match in memory.neighbours(0.5)]
    assert min(scores[1:]) == 1 - 2 / 12
    assert memory.best("name7 : the file was saved to the disk at noon .", 0.5) == Match(8, 1 - 1 / 12)


def test_a_score_of_the_very_least_counts_and_composed_characters_are_one() -> None:
    words = [f"w{i}" for i in range(20)]
    memory = TranslationMemory([(" ".join(words), "x"), ("café", "y")])
    line = " ".join([*words[:9], *(f"v{i}" for i in range(11))])
    assert memory.best(line, 0.45)
    assert not memory.best(line, 0.46)
    assert memory.best("cafe\u0301", 1.0) == Match(1, 1.0)


def test_matches_are_the_best_of_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all that are compared; those that are compared have nine of ten, here of words drawn at random."""
    rng = random.Random(1)
    lines = [
        " ".join(f"w{rng.paretovariate(0.8):.0f}" for _ in range(rng.randint(3, 12))) for _ in range(300)
    ]
    lines += [" ".join(w if rng.random() < 0.8 else "other" for w in line.split()) for line in lines[:60]]
    memory = TranslationMemory((line, f"t{i}") for i, line in enumerate(lines))
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
    memory = TranslationMemory([("黒い犬が走る。", "A black dog runs.")])
    assert memory.best("白い犬が走る。", 0.5) == Match(0, 1 - 1 / 7)


def test_long_lines_have_no_match(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = TranslationMemory([("a b c d", "x")])
    assert memory.best("a b c d", 0.5)
    monkeypatch.setattr(translation_memory, "MOST_WORDS", 3)
    assert memory.best("a b c d", 0.5) is None


def test_neighbours_leave_out_the_pair_itself_and_its_copies(tmp_path: Path) -> None:
    def memory() -> TranslationMemory:
        return TranslationMemory([*PAIRS, *[PAIRS[1]] * 300])

    for _ in range(2):  # made, then read
        found = Neighbours.cached(memory, "digest", 0.5, tmp_path)
        assert [found.translation(*pair, 0.5) for pair in PAIRS] == [PAIRS[2][1], None, PAIRS[0][1], None]
        assert found.translation("A  black dog runs. ", PAIRS[0][1], 1.0) == PAIRS[2][1]
        assert found.translation("A black dog runs.", "another", 0.5) is None
        assert len(found) == 2
    near = [("a b c d", "x"), ("a b c e", "y")]
    other = Neighbours.of(TranslationMemory(near), 0.5)
    assert [other.translation(*pair, 0.75) for pair in near] == ["y", "x"]
    assert other.translation(*near[0], 0.76) is None
