"""Inline tags: taken out of a line, and put into a translation by an alignment."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest

from nmt.data.text.inline_tags import TAG, TaggedLine, by_position, unit_weights, units


def put(line: str, translation: str, *links: tuple[int, int]) -> str:
    """Return the translation with the tags of the line, given links (source unit, target unit)."""
    tagged = TaggedLine(line)
    weights = np.full((len(units(translation)), len(tagged.units)), 1e-6)
    for source, target in links:
        weights[target, source] = 1.0
    return tagged.put_into(translation, weights)


def diagonal(number: int) -> list[tuple[int, int]]:
    return [(i, i) for i in range(number)]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("a <b>red</b> car", "a red car"),
        ('the <g id="1">cat</g><x/>', "the cat"),
        ("one <br/> two<br>three", "one two three"),
        ("one<br><b>two</b>", "one two"),
        ("one</p><br/><hr><!-- c --><i>two", "one two"),
        ("one<br><b></b>, two", "one , two"),
        ("<i>one &brand;</i>", "one &brand;"),
        ("one <!-- a\ncomment --> two", "one two"),
        ("fish &amp; chips &lt;3&#33;", "fish & chips <3!"),
        ("a&nbsp;dog&#10;runs&#8203;on", "a dog runs on"),
        ("a d&shy;og&lrm; x&zwnj;y", "a dog x\u200cy"),
        ("Hello {name}, %d items", "Hello, items"),
        ('<a title="x > y" href=#>go</a>', "go"),
        ('press <ph id="1">&lt;b&gt;</ph>now', "press now"),
        ("a < b and c > d & e", "a < b and c > d & e"),
        ("the &fjlig;ord &bne;", "the fjord =\u20e5"),
        ("5% of 10 % dogs {", "5% of 10 % dogs {"),
        ("  plain  text ", "  plain  text "),
    ],
)
def test_the_text_of_a_line(line: str, text: str) -> None:
    assert TaggedLine(line).text == text
    assert TaggedLine(line).is_plain == (line == text)


@pytest.mark.parametrize(
    ("line", "translation", "links", "expected"),
    [
        ("a <b>red</b> car", "ein rotes Auto", diagonal(3), "ein <b>rotes</b> Auto"),
        (
            "a <b>red car</b> is here.",
            "u v x y z.",
            [(0, 2), (1, 3), (2, 4), (3, 1), (4, 0)],
            "u v x <b>y z</b>.",
        ),
        ("<p>a <b>big <i>red</i></b> car</p>", "x y z w", diagonal(4), "<p>x <b>y <i>z</i></b> w</p>"),
        ("a<br>b <br/> c", "x y z", diagonal(3), "x<br>y <br/> z"),
        ("a<br><b>b</b> c", "x y z", diagonal(3), "x<br><b>y</b> z"),
        ("<b>a</b> &own; c", "x &own; y", [(0, 0)], "<b>x</b> &own; y"),
        ("<b> a </b>b", "x y", diagonal(2), "<b>x </b>y"),
        ("(<b>a</b>), b", "(x), y", [(1, 1), (4, 4)], "(<b>x</b>), y"),
        ("Hello {name}, you", "Hallo, du", diagonal(3), "Hallo {name}, du"),
        ("you {name} hello", "Hallo du", [(0, 1), (1, 0)], "Hallo du {name}"),
        ("dog, {name}, red", "rot", [(3, 0)], "{name} rot"),
        ("red (%s) dog.", "rot.", [(0, 0)], "rot %s."),
        ("re{n}d", "rot", [], "{n}rot"),
        ("狗 ({n}) 红", "红", [(3, 0)], "{n}红"),
        ("狗{n}红", "dog red", diagonal(2), "dog {n} red"),
        ("ファイル{n}を", "file", [(0, 0)], "file {n}"),
        ("<b>R&amp;D</b> > all", "R&D < ganz", diagonal(5), "<b>R&amp;D</b> &lt; ganz"),
        ("<b></b>a<i>b</i>", "x", [(0, 0)], "<b></b><i>x</i>"),
        ("<b>a</b> c", "", [], "<b></b>"),
        ("a <b>c d", "x y z", diagonal(3), "x <b>y z"),
        ("a c</b> d", "x y z", diagonal(3), "x y</b> z"),
        ("a &quot;c&quot;", 'x "y"', [], "x &quot;y&quot;"),
        ("<b>我</b>们", "我们", diagonal(2), "<b>我</b>们"),
    ],
)
def test_tags_are_where_the_words_are(
    line: str, translation: str, links: list[tuple[int, int]], expected: str
) -> None:
    assert put(line, translation, *links) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("%sさんが%d个文件", ["%s", "%d"]),
        ("%s님, %.2fсм %d×%d", ["%s", "%.2f", "%d", "%d"]),
        ("%1$sth %(n)spx", ["%1$s", "%(n)s"]),
        ("100%sure 100%sûr 5%d_", []),
    ],
)
def test_a_placeholder_may_stand_before_letters_of_which_it_begins_no_word(
    line: str, expected: list[str]
) -> None:
    assert [tag.raw for tag in TaggedLine(line).tags] == expected


def test_a_stretch_leaves_out_a_word_far_away_that_is_aligned_by_mistake() -> None:
    links = [(0, 0), (1, 1), (1, 5), (2, 2), (3, 3), (4, 4)]
    assert put("a <b>c</b> d e f", "u v w x y z", *links) == "u <b>v</b> w x y z"


def random_line(rng: random.Random) -> str:
    """Return words with nested pairs, points, and sometimes tags without partners or that cross."""
    parts, waiting = list[str](), list[str]()
    for _ in range(rng.randrange(14)):
        what = rng.random()
        if what < 0.2:
            waiting.append(rng.choice(["b", "i", "g"]))
            parts.append(f'<{waiting[-1]} n="{rng.random()}">')
        elif what < 0.4 and waiting:
            parts.append(f"</{waiting.pop(-1 if rng.random() < 0.8 else 0)}>")
        elif what < 0.5:
            parts.append(rng.choice(["<x/>", "<br>", "{n}", "</u>", "&amp;"]))
        else:
            parts.append(rng.choice(["dog", "cat.", " ", " , ", " red "]))
    return "".join([*parts, *(f"</{name}>" for name in reversed(waiting) if rng.random() < 0.9)])


def is_nested(line: str) -> bool:
    """Return whether each pair of b, i, g and u ends inside of the pair that it begins in."""
    path = list[str]()
    for closing, name in re.findall(r"<(/?)([bigu])\b[^>]*>", line):
        if not closing:
            path.append(name)
        elif not path or path.pop() != name:
            return False
    return not path


def test_no_tag_is_lost_or_doubled_and_what_was_nested_stays_nested() -> None:
    rng, num_nested = random.Random(1), 0
    for seed in range(800):
        line = random_line(rng)
        tagged = TaggedLine(line)
        translation = " ".join(rng.choices(["Hund", "Katze", "rot", ",", "."], k=rng.randrange(9)))
        weights = np.random.default_rng(seed).random((len(units(translation)), len(tagged.units)))
        found = tagged.put_into(translation, weights)
        assert sorted(one[0] for one in TAG.finditer(found)) == sorted(one[0] for one in TAG.finditer(line))
        assert TAG.sub("", found).split() == translation.split() or "".join(
            TAG.sub("", found).split()
        ) == "".join(translation.split())
        if is_nested(line):
            num_nested += 1
            assert tagged.is_well_formed, line
            assert is_nested(found), (line, found)
    assert num_nested > 250


def test_what_is_not_well_formed_is_known() -> None:
    assert TaggedLine("<b>a <i>b</i></b><br>").is_well_formed
    assert TaggedLine('<bx id="1"/>a<ex rid="1"/>').root.parts[0].span == (0, 1)
    for line in ("<b>a", "a</b>", "<b>a <i>b</b> c</i>"):
        assert not TaggedLine(line).is_well_formed


def test_weights_of_pieces_become_those_of_units() -> None:
    weights = np.array([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3], [0.0, 0.0, 1.0]], np.float32)
    found = unit_weights(weights, ["<2de>", " ab", "c."], ["x", " y", "!"], "abc.", "x y!")
    # "c." is a letter of "abc" and the stop; the tag of the language belongs to nothing
    np.testing.assert_allclose(found, [[0.75, 0.15], [0.35, 0.15], [0.5, 0.5]], atol=1e-6)
    assert by_position(2, 2).argmax(1).tolist() == [0, 1]


def test_an_entity_of_two_characters_is_not_spelt_again() -> None:
    assert put("the &fjlig;ord <b>&amp;</b>", "der fjord &", *diagonal(3)) == "der fjord <b>&amp;</b>"


def test_hostile_lines_take_no_time_and_no_stack() -> None:
    for line in (
        "<b>x</b> " * 1500,
        "<b>" * 1500 + "a" + "</b>" * 1500,
        '<b "' * 1500,
        "<!--" * 1500,
        "{" * 9000,
        "<bpt>" * 2000,
    ):
        tagged = TaggedLine(line)
        found = tagged.put_into("x", np.ones((1, len(tagged.units))))
        assert len(list(TAG.finditer(found))) == len(tagged.tags)
