"""Made-up misaligned pairs: what each kind does to a pair, labels, and what they do not depend on."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from nmt.data.augment import damage
from nmt.data.augment.damage import ALIGNED, KINDS, MISALIGNED, Block, damaged, labelled, units
from nmt.data.parallel_text import PairStream, ParallelText, Split
from nmt.data.reading.sources import AlignmentData, MixtureData, load, stream
from nmt.errors import UserError

WORDS = ["ein", "großer", "roter", "Hund", "läuft", ",", "springt", "und", "bellt", "laut", "am", "Zaun"]
TEXT = ParallelText(
    [f"dog {number} is red, runs to house {number} and barks" for number in range(60)],
    [f"Hund {number} " + " ".join(WORDS[number % 7 :]) for number in range(60)],
)
RATES = {kind: rate for kind, (rate, _) in KINDS.items()}
TRUE = set(zip(TEXT.src, TEXT.tgt, strict=True))


def made(kind: str, text: ParallelText = TEXT) -> list[tuple[str, str]]:
    """Return what each row becomes by one kind alone."""
    block = Block(text)
    draws = (damage._draw(random.Random(row)) for row in range(len(text)))
    found = [damaged(block, row, {kind: 1.0}, draw) for row, draw in enumerate(draws)]
    return [pair for pair in found if pair]


def in_chunks(size: int) -> PairStream:
    """Return `TEXT` as a stream with chunks of a size."""

    def chunks() -> Iterator[ParallelText]:
        for start in range(0, len(TEXT), size):
            yield ParallelText(TEXT.src[start : start + size], TEXT.tgt[start : start + size])

    return PairStream(lambda: "text", chunks)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_makes_pairs_that_are_not_true(kind: str) -> None:
    pairs = made(kind)
    assert len(pairs) > 50
    assert not TRUE & set(pairs)


def test_foreign_targets_are_whole_targets_of_others() -> None:
    for kind in ("foreign", "like_length", "same_word"):
        assert {tgt for _, tgt in made(kind)} <= set(TEXT.tgt)
    lengths = dict(zip(TEXT.src, map(len, TEXT.tgt), strict=True))
    assert max(abs(len(tgt) - lengths[src]) for src, tgt in made("like_length")) < 10
    alone = ParallelText([*TEXT.src, "only"], [*TEXT.tgt, "one Zaun Katze"])
    assert all("Zaun" in tgt for src, tgt in made("same_word", alone) if src == "only")


def test_truncated_sides_are_parts_and_extended_ones_hold_the_whole() -> None:
    whole = dict(TRUE) | {tgt: src for src, tgt in TRUE}
    for src, tgt in made("truncated"):
        side, other = (src, tgt) if tgt in whole else (tgt, src)
        assert side
        assert side != whole[other]
        assert whole[other].startswith(side) or whole[other].endswith(side)
    for src, tgt in made("extended"):
        side, other = (src, tgt) if tgt in whole else (tgt, src)
        assert whole[other] in side
        assert len(side) > len(whole[other]) + 5


def test_what_is_cut_is_a_clause_in_half_of_the_cases() -> None:
    block = Block(ParallelText(["a b , c d e f g h"], ["ja"]))
    draws = [damage._draw(random.Random(number)) for number in range(400)]
    found = Counter(damaged(block, 0, {"truncated": 1.0}, draw) for draw in draws)
    assert min(found.pop(("a b ,", "ja")), found.pop(("c d e f g h", "ja"))) > 40
    assert max(count for pair, count in found.items() if pair) < 30


def test_sides_are_swapped_copied_shuffled_and_replaced() -> None:
    assert {pair[::-1] for pair in made("swapped")} <= TRUE
    assert all(src == tgt for src, tgt in made("copied"))
    words = {" ".join(sorted(text.split())) for text in (*TEXT.src, *TEXT.tgt)}
    assert all(" ".join(sorted(side.split())) in words for pair in made("shuffled") for side in pair)
    known = {word for text in (*TEXT.src, *TEXT.tgt) for word in text.split()}
    assert all(word in known for pair in made("replaced") for side in pair for word in side.split())


def test_text_without_spaces_is_cut_and_shuffled_by_characters() -> None:
    for text in ("狗在跑。", "你好", "はい", "สวัสดี"):
        assert units(text) == (list(text), "")
    for text in (
        "그는 「토지」를 읽었다",
        "정말 좋다 ㅋㅋ",
        "크기는 30㎡ 정도이다",
        "the word 犬 is a dog",
    ):
        assert units(text) == (text.split(), " ")
    chinese = ParallelText(["狗在跑，猫在睡觉。"], ["犬が走り、猫が寝ている。"])
    pairs = made("truncated", chinese) + made("shuffled", chinese)
    assert len(pairs) == 2
    assert not any(" " in side for pair in pairs for side in pair)


def test_a_kind_that_can_do_nothing_gives_way_to_the_next() -> None:
    block, draw = Block(ParallelText(["yes"], ["ja"])), damage._draw(random.Random(1))
    assert damaged(block, 0, {"foreign": 1.0, "truncated": 1.0, "swapped": 1.0}, draw) == ("ja", "yes")
    assert damaged(block, 0, {"foreign": 1.0, "truncated": 1.0}, draw) is None
    assert labelled(
        PairStream(lambda: "", lambda: iter([ParallelText(["yes"], ["ja"])])),
        {"truncated": 1.0},
        seed=1,
        copies=2,
    ).read().tgt == [ALIGNED, ALIGNED]


def test_chunks_make_no_difference_and_seeds_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage, "BLOCK_PAIRS", 16)
    texts = [labelled(in_chunks(size), RATES, seed=1, copies=2).read() for size in (60, 7, 16)]
    assert texts[0] == texts[1] == texts[2]
    other = labelled(in_chunks(60), RATES, seed=2, copies=2)
    assert other.read() != texts[0]
    assert other.stamp() != labelled(in_chunks(60), RATES, seed=1, copies=2).stamp()


def test_a_block_lends_to_its_own_lines_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage, "BLOCK_PAIRS", 20)
    text = labelled(in_chunks(60), {"foreign": 1.0}, seed=1, copies=2).read()
    assert len(text) == 120
    for number, line in enumerate(text.src):
        src, tgt = line.split("\t")
        assert TEXT.src.index(src) == number % 60
        assert TEXT.tgt.index(tgt) // 20 == number % 60 // 20


def test_half_of_the_lines_are_aligned_and_an_even_number_of_copies_has_both() -> None:
    text = labelled(in_chunks(60), RATES, seed=1, copies=4).read()
    assert text.tgt.count(ALIGNED) == text.tgt.count(MISALIGNED) == 120
    by_line = [text.tgt[line::60] for line in range(60)]
    assert {tuple(sorted(labels)) for labels in by_line} == {(ALIGNED,) * 2 + (MISALIGNED,) * 2}
    aligned = [line for line, label in zip(text.src, text.tgt, strict=True) if label == ALIGNED]
    assert {tuple(line.split("\t")) for line in aligned} == TRUE
    once = labelled(in_chunks(60), RATES, seed=1, copies=1).read()
    assert 15 < once.tgt.count(ALIGNED) < 45


def test_a_blank_side_is_misaligned_and_a_tab_becomes_a_space() -> None:
    text = ParallelText(["a\tb", " "], ["c d", "e"])
    found = labelled(PairStream(lambda: "", lambda: iter([text])), {"swapped": 1.0}, seed=1, copies=2).read()
    assert sorted(zip(found.src, found.tgt, strict=True)) == [
        (" \te", MISALIGNED),
        (" \te", MISALIGNED),
        ("a b\tc d", ALIGNED),
        ("c d\ta b", MISALIGNED),
    ]


@pytest.fixture
def corpus(tmp_path: Path) -> dict[str, str]:
    for side, lines in (("en", TEXT.src), ("de", TEXT.tgt)):
        (tmp_path / f"pairs.{side}").write_text("".join(f"{line}\n" for line in lines))
    return {"train": f"{tmp_path}/pairs", "validation": f"{tmp_path}/pairs"}


def test_a_source_reads_any_corpus(corpus: dict[str, str]) -> None:
    cfg = AlignmentData(corpus=corpus)
    assert (
        MixtureData(corpora={"a": {"name": "alignment", "corpus": corpus}}).symbols
        == cfg.symbols
        == ["<sep>"]
    )
    assert len(stream(cfg, Split.train).read()) == 4 * len(TEXT)
    assert len(load(cfg, Split.validation)) == len(TEXT)
    assert cfg.place(Split.test) is None
    assert cfg.key(Split.test) == "data.corpus.test"
    assert cfg.origins == {corpus["train"]}
    mixed = MixtureData(corpora={"pairs": {"name": "alignment", "corpus": corpus, "copies": 2}})
    assert len(stream(mixed, Split.train).read()) == 2 * len(TEXT)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"corpus": {"trian": "x"}}, r"unknown key data\.corpus\.trian.*train"),
        ({"damage": {"foregn": 1.0}}, r"data\.damage: there is no kind 'foregn', only .*foreign"),
        ({"damage": {"foreign": -1.0}}, r"data\.damage\.foreign must be 0 or more, but is -1"),
        ({"damage": {"foreign": 0.0}}, r"data\.damage: all rates are 0"),
        ({"copies": 0}, r"data\.copies must be at least 1"),
    ],
)
def test_bad_keys_are_refused(keys: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        AlignmentData(**({"corpus": {"train": "x"}} | keys))  # type: ignore[arg-type]


def test_a_corpus_that_is_not_named_is_asked_for() -> None:
    with pytest.raises(UserError, match=r"data\.corpus\.train is not set, but the train split is needed"):
        stream(AlignmentData(), Split.train)
