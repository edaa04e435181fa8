"""Facts of lines, against what plain Python says of the same lines."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from nmt.data.cleaning.pair_filters import normalised
from nmt.doctor import characters
from nmt.doctor.characters import MAX_LOOKED, SCRIPTS, LineFacts, facts_of


def facts(*lines: str) -> LineFacts:
    return facts_of(list(lines), np.zeros(0x110000, np.int64))


def random_lines() -> list[str]:
    alphabet = "abcABCäßéЖжλ漢字あアمرن12 .,()  \t\u00a0\u0301x"
    rng = random.Random(3)
    return ["".join(rng.choices(alphabet, k=rng.randrange(30))) for _ in range(300)]


def test_counts_are_those_of_plain_python() -> None:
    lines, counts = random_lines(), np.zeros(0x110000, np.int64)
    found = facts_of(lines, counts)
    assert found.words.tolist() == [len(line.split()) for line in lines]
    assert found.chars.tolist() == [len(line) for line in lines]
    assert counts[ord("a")] == sum(line.count("a") for line in lines)
    assert counts.sum() == sum(map(len, lines)) + len(lines)


def test_hashes_are_equal_where_lines_are_and_do_not_depend_on_the_block() -> None:
    lines = [*random_lines(), "Ab", "a b!", "ab"]
    found = facts(*lines)
    for hashes, keys in ((found.exact, lines), (found.plain, list(map(normalised, lines)))):
        assert len(set(hashes.tolist())) == len(set(keys))
        assert len(set(zip(hashes.tolist(), keys, strict=True))) == len(set(keys))
    assert facts(lines[7]).exact[0] == found.exact[7]
    assert facts("x" * MAX_LOOKED + "a").exact[0] != facts("x" * MAX_LOOKED + "ab").exact[0]


def test_what_is_compared_is_what_filters_compare() -> None:
    """Characters of several ones, that join with others, of compatibility, of two cases, and none at all."""
    alphabet = [*"aAbß ﬁİσςΣ½²２㎏¨éÅÅ.…!?", "\u0301", "\u0323", "\u1100", "\u1161", "\u11a8", "가", "\u09c7"]
    alphabet += [*"かがｶﾞ①𠀀", "\u09be", "\ufb1d", "\u3099", "\U0002f800", "\u4e3d"]
    rng = random.Random(5)
    lines = ["".join(rng.choices(alphabet, k=rng.randrange(1, 5))) for _ in range(20_000)]
    keys, hashes = list(map(normalised, lines)), facts(*lines).plain.tolist()
    assert len(set(hashes)) == len(set(zip(hashes, keys, strict=True))) == len(set(keys)) < len(lines) - 1_000
    assert facts("abc").plain == facts("A B-C").plain == facts("ａｂｃ").plain


def test_no_character_by_itself_is_compared_otherwise() -> None:
    ranges = range(0x20, 0x3400), range(0x3400, 0xD800, 50), range(0xE000, 0x20000, 3)
    lines = list(map(chr, [*itertools.chain(*ranges), *range(0x20000, 0x110000, 99)]))
    keys, hashes = list(map(normalised, lines)), facts(*lines).plain.tolist()
    assert len(set(hashes)) == len(set(zip(hashes, keys, strict=True))) == len(set(keys))


@pytest.mark.parametrize(
    ("line", "bit"),
    [
        ("a\x07b", characters.CONTROL),
        ("a\u2028b", characters.BREAK),
        ("a\u200bb", characters.INVISIBLE),
        ("soft\u00adhyphen", characters.INVISIBLE),
        ("\ufeffa", characters.MARK),
        ("a\ufffd", characters.REPLACEMENT),
        ("a\ue000", characters.PRIVATE),
        ("schÃ¶n", characters.GARBLED),
        ("â€œquoted", characters.GARBLED),
        ("Ð¿Ñ€Ð¸", characters.GARBLED),
        ("wоrd", characters.MIXED),  # with a Cyrillic o
    ],
)
def test_odd_characters_are_found(line: str, bit: int) -> None:
    odd = sum(getattr(characters, name) for name in (
        "CONTROL", "BREAK", "INVISIBLE", "MARK", "REPLACEMENT", "PRIVATE", "GARBLED", "MIXED",
    ))  # fmt: skip
    assert facts("good", line, "good").flags.tolist()[1] & odd == bit
    assert not facts("good", line, "good").flags[2] & odd


@pytest.mark.parametrize(
    "line", ["NÃO É", "Âge d’or", "می\u200cخواهم", "👩\u200d👩", "Жук and word", "a\tb", "Ð«", "«Â»"]
)
def test_good_text_has_none_of_them(line: str) -> None:
    odd = characters.INVISIBLE | characters.GARBLED | characters.MIXED | characters.CONTROL
    assert not facts(line).flags[0] & odd


def test_scripts_are_told_by_letters_alone() -> None:
    names = [
        {name for bit, name in enumerate(SCRIPTS) if scripts >> bit & 1}
        for scripts in facts("abc 12", "жук", "日本の", "한국", "12 ,.", "µm", "ᚠ").scripts.tolist()
    ]
    assert names == [{"Latin"}, {"Cyrillic"}, {"Han", "Hiragana"}, {"Hangul"}, set(), {"Latin"}, {"other"}]


def test_numbers_are_compared_in_any_order_and_script() -> None:
    found = facts("in 1999 with 25", "mit 25 in 1999", "٢٥ 1999", "25 25 1999", "3 of 4", "none").numbers
    assert found[0] == found[1] == found[2] != found[3]
    assert found[4] == found[5] == 0


def test_markup_addresses_and_brackets() -> None:
    found = facts("a &amp; b", "<b>x</b>", "AT&T < 3", "see https://x.org", "12:30", "(a", "a)b(", 'a "b')
    assert found.html.tolist() == [True, True] + [False] * 6
    assert found.url.tolist() == [False] * 3 + [True] + [False] * 4
    assert found.is_open.tolist() == [False] * 5 + [True, False, True]
