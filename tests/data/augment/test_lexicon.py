"""Lexicon: word translation probabilities, and the alignment of words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nmt.data.augment import lexicon
from nmt.data.augment.lexicon import WORD, WordLexicon, train_lexicon
from nmt.data.encoded_pairs import RaggedIds
from nmt.data.parallel_text import ParallelText


def _planted(num_pairs: int = 400, words: int = 30) -> tuple[list[list[int]], list[list[int]]]:
    """Return pairs whose source word s is the target word s + 1, with neighbours swapped in the target."""
    rng = np.random.default_rng(1)
    sources = [
        rng.choice(words, size=int(rng.integers(2, 9)), replace=False).tolist() for _ in range(num_pairs)
    ]
    targets = [[s + 1 for s in source[1::-1] + source[2:]] for source in sources]
    return sources, targets


def test_a_planted_dictionary_is_found_and_links_cross() -> None:
    sources, targets = _planted()
    found = train_lexicon(RaggedIds.of(sources), RaggedIds.of(targets), 30, 31)
    for word in range(30):
        ids, probs = found.probabilities(word)
        assert ids[0] == word + 1
        assert probs[0] > 0.9
        assert probs.sum() <= 1 + 1e-9
    assert found.align([3, 4, 5, 6], [5, 4, 6, 7]) == [(0, 1), (1, 0), (2, 2), (3, 3)]
    assert found.align([3, -1], [9, 4]) == [(0, 1)]
    assert found.align([], [1]) == []


def test_a_corpus_of_nothing_has_an_empty_lexicon() -> None:
    nothing = RaggedIds.of([[], []])
    found = train_lexicon(nothing, RaggedIds.of([[0], []]), 1, 1)
    assert len(found.keys) == 0
    assert found.align([0], [0]) == []
    assert found.probabilities(0)[0].tolist() == []


def test_of_a_corpus_that_is_too_large_every_so_many_pairs_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = list(map(RaggedIds.of, _planted()))
    part = [RaggedIds.of([list(map(int, side[i])) for i in range(0, 400, 3)]) for side in sides]
    cells = sum(int(a) * int(b) for a, b in zip(sides[0].lengths, sides[1].lengths, strict=True))
    expected = train_lexicon(part[0], part[1], 30, 31)
    monkeypatch.setattr(lexicon, "MOST_CELLS", -(-cells // 3))
    found = train_lexicon(sides[0], sides[1], 30, 31)
    assert np.array_equal(found.keys, expected.keys)
    assert np.array_equal(found.forward, expected.forward)


def test_words_are_aligned_in_any_case_and_the_lexicon_is_cached(tmp_path: Path) -> None:
    src = ["the dog runs", "a dog sleeps", "the cat sleeps", "a cat runs"] * 5
    tgt = ["der Hund rennt", "ein Hund schläft", "der Kater schläft", "ein Kater rennt"] * 5
    made = WordLexicon.cached(lambda: ParallelText(src, tgt), "digest", tmp_path)
    assert made.translations("Dog")[0][0] == "hund"
    assert made.translations("horse") == []
    again = WordLexicon.cached(ParallelText, "digest", tmp_path)  # found, not made
    assert (again.src, again.tgt) == (made.src, made.tgt)
    assert again.align(["THE", "DOG", "x"], ["der", "HUND"]) == [(0, 0), (1, 1)]


def test_words_of_scripts_with_and_without_spaces() -> None:
    assert WORD.findall("Don't re-do it, 42 犬です!") == [
        "Don't",
        "re-do",
        "it",
        ",",
        "42",
        "犬",
        "で",
        "す",
        "!",
    ]
