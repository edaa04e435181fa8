"""From weights over pieces to weights over words, and from those to links."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.attention_views.alignment import Weights, mean_weights, pharaoh, word_indices, word_links


def weights(*rows: list[float]) -> Weights:
    return np.array(rows, dtype=np.float32)


@pytest.mark.parametrize(
    ("surfaces", "words"),
    [
        (["A", " man", " rid", "es", ".", ""], [0, 1, 2, 2, 2, None]),
        ([], []),
        ([""], [None]),
        (["a", " ", "☃", ""], [0, 1, 1, None]),  # white space alone leads the next word
        (["horse", "", "", "…", " x", ""], [0, 0, 0, 0, 1, None]),  # three pieces of one character
        (["don", "", "´", "t", ""], [0, 0, 0, 0, None]),  # a normalised space is none in the line
        ([" ", "", "", "☃", ""], [0, 0, 0, 0, None]),  # bytes of one character
        (["A", " ⁇ ", "b", ""], [0, 1, 2, None]),  # an unknown piece of a translation
        (["a\u3000b", " c", ""], [1, 2, None]),  # a piece over two words counts for the second
        (["  a", "  ", ""], [0, None, None]),  # nothing follows
    ],
)
def test_pieces_belong_to_the_word_indices_their_line(surfaces: list[str], words: list[int | None]) -> None:
    assert word_indices(surfaces) == words


@given(st.lists(st.text(alphabet="ab \t\u3000", max_size=3), max_size=8))
def test_words_are_counted_as_the_line_is_split(surfaces: list[str]) -> None:
    words = word_indices(surfaces)
    count = len("".join(surfaces).split())
    assert len(words) == len(surfaces)
    assert all(word is None or 0 <= word < count for word in words)
    known = [word for word in words if word is not None]
    assert known == sorted(known)


def test_the_mean_is_that_of_all_heads_or_of_those_of_a_layer() -> None:
    first = np.array([[[1.0, 0.0]], [[0.0, 1.0]]], dtype=np.float32)  # two heads, T = 1, S = 2
    second = np.array([[[0.25, 0.75]], [[0.75, 0.25]]], dtype=np.float32)
    third = np.array([[[0.0, 1.0]]], dtype=np.float32)
    assert mean_weights([first, second, third]).tolist() == pytest.approx(weights([0.4, 0.6]))
    assert mean_weights([first, second, third], 1).tolist() == [[0.5, 0.5]]
    assert mean_weights([first, second, third], 3).tolist() == [[0.0, 1.0]]


def test_source_pieces_are_added_and_target_pieces_averaged() -> None:
    """Two source pieces with 0.3 each outweigh one with 0.4; no target piece decides alone."""
    assert word_links(weights([0.3, 0.3, 0.4]), [0, 0, 1], [0]) == [(0, 0)]
    rows = weights([0.9, 0.1, 0.0], [0.0, 0.5, 0.5], [0.0, 0.5, 0.5])
    assert word_links(rows, [0, 1, 1], [0, 0, 0]) == [(1, 0)]


def test_the_end_of_a_sentence_is_aligned_with_nothing() -> None:
    rows = weights([0.1, 0.2, 0.7], [0.4, 0.1, 0.5], [0.0, 0.0, 1.0])
    assert word_links(rows, [0, 1, None], [0, 1, None]) == [(1, 0), (0, 1)]


def test_a_word_without_a_piece_keeps_its_number() -> None:
    assert word_links(weights([0.3, 0.7]), [0, 2], [1]) == [(2, 1)]


@pytest.mark.parametrize(("src_words", "tgt_words"), [([None], [0, None]), ([0, None], [None])])
def test_where_one_side_has_no_word_there_is_no_link(
    src_words: list[int | None], tgt_words: list[int | None]
) -> None:
    assert word_links(np.ones((len(tgt_words), len(src_words)), np.float32), src_words, tgt_words) == []


def test_equal_weights_go_to_the_first_word() -> None:
    assert word_links(weights([0.5, 0.5]), [0, 1], [0]) == [(0, 0)]


def word_numbers() -> st.SearchStrategy[list[int | None]]:
    return st.lists(st.none() | st.integers(0, 6), min_size=1, max_size=8)


@given(src_words=word_numbers(), tgt_words=word_numbers(), seed=st.integers(0, 99))
def test_every_target_word_has_one_link_to_a_source_word(
    src_words: list[int | None], tgt_words: list[int | None], seed: int
) -> None:
    random = np.random.default_rng(seed).random((len(tgt_words), len(src_words)), dtype=np.float32)
    links = word_links(random, src_words, tgt_words)
    sources = {word for word in src_words if word is not None}
    targets = sorted({word for word in tgt_words if word is not None})
    assert [target for _, target in links] == (targets if sources else [])
    assert {source for source, _ in links} <= sources


def test_pharaoh() -> None:
    assert pharaoh([(0, 0), (12, 1)]) == "0-0 12-1"
    assert pharaoh([]) == ""
