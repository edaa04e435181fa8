"""Words of sources dropped, masked and moved: how many, how far, and what stays where it is."""

from __future__ import annotations

import itertools

import pytest

from nmt.data import modifiers
from nmt.data.augment.augmentation import Augmentation
from nmt.data.modifiers import MASK
from nmt.data.parallel_text import ParallelText

SENTENCE = [f"w{number}" for number in range(20)]
TEXT = ParallelText([" ".join(SENTENCE)] * 500, ["Ziel ."] * 500)


def noisy(text: ParallelText, symbols: tuple[str, ...] = (), **row: object) -> list[str]:
    """Return the sources with one modifier for every pair; the targets stay."""
    entry = {"rate": 1.0, **row}
    of_all = Augmentation(tuple(modifiers.parsed("data.augment", [entry])), ("en", "de"), symbols)
    found = of_all(text, seed=1)
    assert found.tgt == text.tgt
    return found.src


def test_a_share_of_the_words_is_left_out_and_the_others_keep_their_order() -> None:
    found = [line.split() for line in noisy(TEXT, name="drop_words", words=0.2)]
    assert all(words == [word for word in SENTENCE if word in words] for words in found)
    assert 0.18 < 1 - sum(map(len, found)) / (500 * len(SENTENCE)) < 0.22
    assert noisy(ParallelText(["a b"], ["x"]), name="drop_words", words=1.0) == ["a b"]  # never empty


def test_a_share_of_the_words_is_a_mark() -> None:
    found = [line.split() for line in noisy(TEXT, name="mask_words")]
    masked = sum(word == MASK for words in found for word in words)
    assert 0.085 < masked / (500 * len(SENTENCE)) < 0.115
    pairs = [pair for words in found for pair in zip(words, SENTENCE, strict=True)]
    assert all(new in (old, MASK) for new, old in pairs)


@pytest.mark.parametrize("window", [1, 3])
def test_words_move_within_a_window(window: int) -> None:
    found = [line.split() for line in noisy(TEXT, name="shuffle_words", window=window)]
    moves = [abs(words.index(word) - place) for words in found for place, word in enumerate(SENTENCE)]
    assert all(sorted(words) == sorted(SENTENCE) for words in found)
    assert set(moves) == set(range(window + 1))
    assert moves.count(0) < 0.8 * len(moves)


def test_no_word_leaves_its_sentence_or_passes_what_stays() -> None:
    symbols, line = ("<2de>", "<brk>"), "<2de> {} <brk> {} {{x}}s <b class='y'> e (https://x.org/a) ."
    text = ParallelText([line.format("a b", "c d")] * 200, ["Ziel"] * 200)
    found = set(noisy(text, symbols, name="shuffle_words"))
    assert found == {line.format(*both) for both in itertools.product(("a b", "b a"), ("c d", "d c"))}
    kept = noisy(text, symbols, name="drop_words", words=1.0)[0]
    assert kept == "<2de> <brk> {x}s <b class='y'> (https://x.org/a)"


def test_scripts_without_spaces_have_words_too() -> None:
    text = ParallelText(["犬が寝る。 ორი სახლი"] * 50, ["x"] * 50)
    assert {len(line) for line in noisy(text, name="shuffle_words")} == {len(text.src[0])}
    assert len(set(noisy(text, name="drop_words", words=0.5))) > 20
    assert noisy(text, name="mask_words", words=1.0)[0] == f"{MASK * 5} {MASK} {MASK}"
