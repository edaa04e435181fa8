"""Splits whose sides are the other way round: told by their text, with the way out."""

from __future__ import annotations

from pathlib import Path

import pytest

from nmt.cli import main
from nmt.data.parallel_text import ParallelText, Split
from nmt.data.reading import sources
from nmt.data.reading.bundled_data import DemoData
from nmt.data.reading.files import FilesData
from nmt.data.reading.hub import HubData
from nmt.data.reading.swapped import are_swapped, way_out

DEMO = sources.load(DemoData(), Split.train)


def text(first: int, end: int, *, crossed: bool = False) -> ParallelText:
    sides = DEMO.src[first:end], DEMO.tgt[first:end]
    return ParallelText(*(sides[::-1] if crossed else sides))


@pytest.mark.parametrize("trained", [20, 1000])
@pytest.mark.parametrize("scored", [3, 200])
def test_crossed_sides_are_told_from_straight_ones(trained: int, scored: int) -> None:
    known = text(0, trained)
    assert are_swapped(known, text(2000, 2000 + scored, crossed=True))
    assert not are_swapped(known, text(2000, 2000 + scored))


def test_copies_blank_sides_and_nothing_are_not_swapped() -> None:
    known, english = text(0, 500), DEMO.src[2000:2100]
    assert not are_swapped(known, ParallelText(english, english))
    assert not are_swapped(ParallelText(english, english), text(0, 500))
    assert not are_swapped(known, ParallelText([""] * 100, english))
    assert not are_swapped(known, ParallelText())


def test_the_way_out_names_files_or_columns() -> None:
    columns = "; where all splits are the other way round, or set data.src_column=de data.tgt_column=en"
    plain = FilesData(validation="c/dev")
    assert way_out(plain, Split.validation) == f"swap the names of the files c/dev.en and c/dev.de{columns}"
    expected = f"swap the names of the columns en and de{columns}"
    assert way_out(FilesData(validation="c/dev.tsv.gz"), Split.validation) == expected
    assert way_out(HubData(dataset="a/b"), Split.validation) == expected
    assert way_out(DemoData(), Split.validation) == "swap data.src and data.tgt"


def test_a_training_warns_of_validation_pairs_the_other_way_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NMT_CACHE", str(tmp_path / "cache"))
    for split, pairs in (
        ("train", text(0, 500)),
        ("dev", text(2000, 2050, crossed=True)),
        ("test", text(3000, 3050)),
    ):
        for language, lines in (("en", pairs.src), ("de", pairs.tgt)):
            Path(f"{split}.{language}").write_text("".join(f"{line}\n" for line in lines))
    arguments = ["data=files", "data.train=train", "data.validation=dev", "data.test=test"]
    assert main(["prepare", *arguments, "tokenizer.vocab_size=200"]) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert told == [
        "warning: data.validation: source and target are like target and source of the training pairs; swap "
        "the names of the files dev.en and dev.de; where all splits are the other way round, or set "
        "data.src_column=de data.tgt_column=en"
    ]
