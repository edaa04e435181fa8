"""Text to translate, n-best lists and their lines, and which translations become pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nmt.data.batches.training_split import CorpusText, scan
from nmt.data.cleaning.filtering import chains
from nmt.data.cleaning.filters import filter_pairs
from nmt.data.configs import DataConfig
from nmt.data.parallel_text import Split
from nmt.data.reading.bundled_data import DemoData
from nmt.data.reading.files import FilesData
from nmt.data.reading.hub import HubData
from nmt.data.reading.sources import MixtureData, stream
from nmt.errors import UserError
from nmt.runs import synthetic
from nmt.runs.configs import KeptCandidates, SelectionConfig, Side
from nmt.runs.stages import StageFolder
from nmt.runs.synthetic import Candidate, Selection, judged, n_best_lists

SRC = ["a b c", "d e f", "g h i"]
TGT = ["A B C", "D E F", "g h i"]


def lines(path: Path, *content: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in content))
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> CorpusText:
    lines(tmp_path / "train.en", *SRC, "")
    lines(tmp_path / "train.de", *TGT, "left over")
    cfg = FilesData(src="en", tgt="de", train=str(tmp_path / "train"))
    return scan(
        stream(cfg, Split.train), cfg, filter_pairs, chains(cfg, {}, None)["files"], tmp_path / "cache"
    )


@pytest.fixture
def text(corpus: CorpusText, tmp_path: Path) -> StageFolder:
    stage = synthetic.stage_of_pairs(tmp_path / "stages", corpus)
    report = stage.made(synthetic.write_pairs(corpus))
    assert report == {"read": 4, "dropped": {"empty": 1, "too long": 0, "uneven": 0}}
    return stage


def translations(root: Path, name: str, *content: str) -> StageFolder:
    stage = StageFolder(root, "translations", {"of": name}, [synthetic.TRANSLATIONS])

    def fill(folder: Path) -> dict[str, Any]:
        lines(folder / synthetic.TRANSLATIONS, *content)
        return {}

    stage.made(fill)
    return stage


def chosen(
    text: StageFolder, translated: list[StageFolder], side: Side = Side.src, **rules: Any
) -> tuple[Any, Any, Any]:
    """Return the chosen pairs, both sides, and the reasons for the others."""
    selection = Selection(text, translated, side, SelectionConfig(**rules), ("en", "de"))
    stage = selection.stage(text.root)
    report = stage.made(selection.write)
    sides = [(stage.folder / f"pairs.{language}").read_text().splitlines() for language in ("en", "de")]
    assert report["read"] - sum(report["dropped"].values()) == len(sides[0])
    return *sides, report["dropped"]


def test_a_text_has_both_sides_of_the_pairs_that_are_kept(text: StageFolder) -> None:
    assert (text.folder / "src").read_text().splitlines() == SRC
    assert (text.folder / "tgt").read_text().splitlines() == TGT


def test_text_in_one_language_is_known_by_its_lines(tmp_path: Path) -> None:
    files = [str(lines(tmp_path / "1", "x", "", "y" * 30)), str(lines(tmp_path / "2", "z"))]
    stage = synthetic.stage_of_text(tmp_path, files, Side.tgt, 20)
    report = stage.made(synthetic.write_text(stage, files, Side.tgt, 20))
    assert (stage.folder / "tgt").read_text() == "x\nz\n"
    assert report == {"read": 4, "dropped": {"blank or too long": 2}}
    assert synthetic.stage_of_text(tmp_path, files[::-1], Side.tgt, 20).folder != stage.folder
    assert synthetic.stage_of_text(tmp_path, files, Side.src, 20).folder != stage.folder
    with pytest.raises(UserError, match=r"distil.tgt_text: there is no file"):
        synthetic.stage_of_text(tmp_path, [str(tmp_path / "3")], Side.tgt, 20)
    with pytest.raises(UserError, match=r"distil.src_text=.* has no line to translate"):
        synthetic.stage_of_text(tmp_path, [str(lines(tmp_path / "4", "", " "))], Side.src, 20)


def test_text_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    files = [str(lines(tmp_path / "1", "x"))]
    stage = synthetic.stage_of_text(tmp_path, files, Side.src, 20)
    lines(tmp_path / "1", "y")
    with pytest.raises(UserError, match=r"distil.src_text has changed while it was read"):
        stage.made(synthetic.write_text(stage, files, Side.src, 20))


def test_an_n_best_list_is_read_whatever_its_texts_hold(tmp_path: Path) -> None:
    file = lines(tmp_path / "n", "0 ||| a ||| b ||| -1.5", "0 |||  ||| 0.0000", "1 ||| \u2028 ||| -2.0")
    assert list(n_best_lists(file, 2)) == [
        [Candidate("a ||| b", -1.5), Candidate("", 0.0)],
        [Candidate("\u2028", -2.0)],
    ]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (["0 ||| a ||| 1.0"], "translations of 1 lines, but the text has 2"),
        (["0 ||| a ||| 1.0", "2 ||| a ||| 1.0"], "translations of line 2, where 1 is expected"),
        (["1 ||| a ||| 1.0", "0 ||| a ||| 1.0"], "translations of line 1, where 0 is expected"),
        (["0 ||| a ||| 1", "1 ||| a ||| 1", "2 ||| a ||| 1"], "translations of line 2, where 2 is expected"),
        (["0 ||| a ||| 1.0", "a b"], r"'a b' is not NUMBER \|\|\| TEXT \|\|\| SCORE"),
        (["0 ||| a", "1 ||| b ||| x"], r"'0 \|\|\| a' is not NUMBER"),
    ],
)
def test_a_list_of_another_text_is_refused(tmp_path: Path, content: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        list(n_best_lists(lines(tmp_path / "n", *content), 2))


GOOD = ["0 ||| A B C ||| -1.0", "0 ||| A B X ||| -2.0", "1 ||| D E F ||| -3.0", "2 ||| g h i ||| -0.5"]


def test_everything_is_kept_unless_a_rule_says_otherwise(text: StageFolder, tmp_path: Path) -> None:
    src, tgt, dropped = chosen(text, [translations(text.root, "1", *GOOD)])
    assert src == ["a b c", "a b c", "d e f", "g h i"]
    assert tgt == ["A B C", "A B X", "D E F", "g h i"]  # the reference is a copy, too
    assert dropped == {}


def test_translated_targets_become_sources(text: StageFolder) -> None:
    back = ["0 ||| a b c ||| -1.0", "1 |||  ||| 0.0", "2 ||| g h ||| -1.0"]
    src, tgt, dropped = chosen(text, [translations(text.root, "1", *back)], Side.tgt)
    assert (src, tgt) == (["a b c", "g h"], ["A B C", "g h i"])
    assert dropped == {"empty": 1}


def test_copies_and_repetitions_are_dropped(text: StageFolder) -> None:
    first = translations(text.root, "1", *GOOD)
    second = ["0 ||| a b c ||| -1.0", "1 ||| D E F ||| -1.0", "2 ||| G H I ||| -1.0", "2 ||| G H I ||| -1.5"]
    src, tgt, dropped = chosen(text, [first, translations(text.root, "2", *second)])
    assert list(zip(src, tgt, strict=True)) == [
        ("a b c", "A B C"),
        ("a b c", "A B X"),
        ("d e f", "D E F"),
        ("g h i", "g h i"),
        ("g h i", "G H I"),
    ]
    assert dropped == {"copy of the source": 1, "repeated": 2}


def test_the_closest_of_each_list_is_kept(text: StageFolder) -> None:
    mixed = [
        "0 ||| X ||| -0.1",
        "0 ||| A B C ||| -2.0",
        "1 ||| D ||| -1.0",
        "2 ||| z ||| 0.0",
        "2 ||| g h ||| -9",
    ]
    _, tgt, dropped = chosen(text, [translations(text.root, "1", *mixed)], candidates=KeptCandidates.closest)
    assert tgt == ["A B C", "D", "g h"]
    assert dropped == {"not the closest to the reference": 2}


def test_what_is_far_from_the_reference_is_dropped(text: StageFolder) -> None:
    mixed = ["0 ||| A B C ||| -1.0", "1 ||| Q ||| -1.0", "2 ||| g h i ||| -1.0"]
    _, tgt, dropped = chosen(text, [translations(text.root, "1", *mixed)], min_chrf=50.0)
    assert tgt == ["A B C", "g h i"]
    assert dropped == {"far from the reference": 1}


def test_low_scores_are_dropped(text: StageFolder) -> None:
    _, tgt, dropped = chosen(text, [translations(text.root, "1", *GOOD)], min_score=-2.0)
    assert tgt == ["A B C", "A B X", "g h i"]
    assert dropped == {"low score": 1}


def test_the_best_share_is_that_of_each_teacher(text: StageFolder) -> None:
    second = ["0 ||| 1 ||| -11", "1 ||| 2 ||| -12", "2 ||| 3 ||| -13"]
    teachers = [translations(text.root, "1", *GOOD), translations(text.root, "2", *second)]
    _, tgt, dropped = chosen(text, teachers, best_share=0.5)
    assert tgt == ["A B C", "1", "2", "g h i"]  # 2 of 4, and 2 of 3
    assert dropped == {"not of the best share": 3}


def test_equal_scores_are_cut_in_order() -> None:
    verdicts, scores = np.zeros(4, np.uint8), np.zeros(4)
    assert synthetic.best_share(verdicts, scores, 0.5).tolist() == [0, 0, 6, 6]
    assert synthetic.best_share(verdicts[:0], scores[:0], 0.5).tolist() == []


def test_nothing_kept_is_an_error(text: StageFolder) -> None:
    stage = translations(text.root, "1", *GOOD)
    with pytest.raises(
        UserError, match=r"no translation is kept: 4 translations read, 0 kept \(low score 4\); loosen"
    ):
        chosen(text, [stage], min_score=1.0)


def test_a_text_without_references_has_no_closest() -> None:
    found = judged(
        [Candidate("x", 0.0), Candidate("y", 0.0)], "z", None, SelectionConfig(KeptCandidates.closest)
    )
    assert found == [0, 0]


def test_other_rules_translations_or_texts_are_another_stage(text: StageFolder) -> None:
    first, second = (translations(text.root, name, *GOOD) for name in "12")
    languages = ("en", "de")
    selections = [
        Selection(text, [first], Side.src, SelectionConfig(), languages),
        Selection(text, [first], Side.src, SelectionConfig(min_score=1.0), languages),
        Selection(text, [first], Side.src, SelectionConfig(best_share=0.9), languages),
        Selection(text, [first], Side.src, SelectionConfig(KeptCandidates.closest), languages),
        Selection(text, [first], Side.tgt, SelectionConfig(), languages),
        Selection(text, [first, second], Side.src, SelectionConfig(), languages),
        Selection(second, [first], Side.src, SelectionConfig(), languages),
    ]
    assert len({selection.stage(text.root).folder for selection in selections}) == len(selections)


@pytest.mark.parametrize(
    "part",
    [
        DemoData(src="de", tgt="en"),
        HubData(dataset="a/b", config="{src}-{tgt}", src="en", tgt="ro", train_split="train[:10]"),
        FilesData(train="x", validation="y", tgt="fr", src_column="1", tgt_column="2"),
    ],
    ids=["demo", "hub", "files"],
)
def test_an_entry_of_a_mixture_reads_the_same(part: DataConfig) -> None:
    mixture = synthetic.mixture_of(part, {"one": synthetic.entry_of(part) | {"weight": 0.5}})
    assert isinstance(mixture, MixtureData)
    assert (mixture.src, mixture.tgt, mixture.scored_split) == (part.src, part.tgt, part.scored_split)
    (read,) = mixture.parts(Split.train).values()
    assert read == part


def test_filters_are_those_of_the_original_corpora_alone() -> None:
    part = FilesData(train="x", validation="y", filters=[{"name": "length", "max": 9}])
    mixture = synthetic.mixture_of(part, {"one": synthetic.entry_of(part), "two": {"train": "z"}})
    assert mixture.filters == []
    assert [one.filters for one in mixture.parts(Split.train).values()] == [part.filters, []]


def test_a_mixture_stays_as_it_is_but_for_its_corpora() -> None:
    corpora = {"a": {"train": "x"}, "b": {"train": "y", "validation": "z"}}
    mixture = MixtureData(corpora=corpora, temperature=5.0, target_tags=True, scored=["b"], max_tokens=99)
    more = synthetic.mixture_of(mixture, corpora | {"a_forward": {"train": "p"}})
    assert (more.temperature, more.target_tags, more.scored, more.max_tokens) == (5.0, True, ["b"], 99)
    assert list(more.parts(Split.train)) == ["a", "b", "a_forward"]
    assert synthetic.mixture_of(mixture, {"a": corpora["a"]}).scored == []
