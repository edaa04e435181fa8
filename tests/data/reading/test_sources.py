"""One split from any source."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nmt.data.cleaning.filters import TrainTestOverlap
from nmt.data.parallel_text import ParallelText, Split
from nmt.data.reading import sources
from nmt.data.reading.bundled_data import DemoData, ToyData
from nmt.data.reading.files import FilesData
from nmt.data.reading.hub import HubData
from nmt.data.tokens.tokenizer_training import TokenizerConfig, prepare_lines
from nmt.errors import UserError


@pytest.fixture
def files(tmp_path: Path) -> FilesData:
    for language, word in (("en", "house"), ("de", "Haus")):
        (tmp_path / f"train.{language}").write_text(f"{word}\n" * 3, encoding="utf-8")
    return FilesData(train=str(tmp_path / "train"))


@pytest.mark.fault(31, 37)
def test_a_split_to_score_on_is_whole_and_fits_into_memory(
    files: FilesData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.validation = str(tmp_path / "train")
    for split in (Split.train, Split.validation):
        assert len(sources.load(files, split)) == 3
    monkeypatch.setattr(sources, "MAX_SCORED_BYTES", 200)
    with pytest.raises(
        UserError, match=r"^data\.validation=.*train takes more than 0 MB of memory, where a "
    ):
        sources.stream(files, Split.validation).read()
    (tmp_path / "train.de").write_text(f"Haus\n{'Haus' * (1 << 18)}\n{'Haus' * (1 << 18)}!\n")
    monkeypatch.undo()
    assert sum(map(len, sources.stream(files, Split.train).read().tgt)) == 4 + (2 << 20) + 1
    for split in (Split.train, Split.validation):
        expected = (
            rf"^data\.{split.value}: pair 3 has a side of over 1,048,576 characters and cannot be scored"
        )
        with pytest.raises(UserError, match=expected):
            sources.load(files, split)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"src": "de"}, "data.src and data.tgt must be two languages, not 'de' and 'de'"),
        ({"tgt": ""}, "data.src and data.tgt must be two languages, not 'en' and ''"),
        ({"max_chars": 0}, "data.max_chars must be at least 1, but is 0"),
        ({"max_ratio": 0.5}, "data.max_ratio must be at least 1, but is 0.5"),
        ({"max_tokens": 1}, "data.max_tokens must be at least 2, but is 1"),
        ({"tgt": "fr"}, "data=demo has the languages en and de, not data.src=en data.tgt=fr"),
    ],
)
def test_impossible_data_configs(fields: dict[str, object], expected: str) -> None:
    with pytest.raises(UserError) as caught:
        DemoData(**fields)  # type: ignore[arg-type]
    assert str(caught.value) == expected


def test_the_demo_reads_in_both_directions() -> None:
    there = sources.load(DemoData(), Split.test)
    back = sources.load(DemoData(src="de", tgt="en"), Split.test)
    assert (back.src, back.tgt) == (there.tgt, there.src)
    assert there == sources.load(DemoData(), Split.test)
    overlap = TrainTestOverlap(there)
    overlap.add(sources.load(DemoData(), Split.train))
    assert overlap.count == 0


def test_the_toy_is_ten_pairs_in_either_direction_and_every_split() -> None:
    there = sources.load(ToyData(), Split.train)
    back = sources.load(ToyData(src="fr", tgt="en"), Split.test)
    assert (back.src, back.tgt) == (there.tgt, there.src)
    assert len(set(there.src)) == len(set(there.tgt)) == len(there) == 10
    assert sources.load(ToyData(), Split.validation) == there
    for lines in (there.src, there.tgt):  # so that a translation can be the very reference
        assert prepare_lines(TokenizerConfig(lowercase=True, strip_punctuation=True), lines) == lines
    with pytest.raises(UserError) as caught:
        ToyData(tgt="de")
    assert str(caught.value) == "data=toy has the languages en and fr, not data.src=en data.tgt=de"


def test_files_load_as_configured(files: FilesData) -> None:
    assert sources.load(files, Split.train) == ParallelText(["house"] * 3, ["Haus"] * 3)
    assert sources.has_split(files, Split.train)
    assert not sources.has_split(files, Split.test)


def test_a_split_that_is_not_set_is_told(files: FilesData) -> None:
    with pytest.raises(UserError) as caught:
        sources.load(files, Split.test)
    assert str(caught.value) == (
        "data.test is not set, but the test split is needed; the splits that are set: train"
    )
    with pytest.raises(UserError, match=r"data.validation_split is not set, .* set: train, test"):
        sources.load(HubData(dataset="a/b", validation_split=None), Split.validation)


def test_a_split_without_pairs_is_told(tmp_path: Path) -> None:
    (tmp_path / "test.tsv").write_text("en\tde\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"data.test=.*/test.tsv has no sentence pairs"):
        sources.load(FilesData(test=str(tmp_path / "test.tsv")), Split.test)


@pytest.mark.parametrize("name", ["hub", "nonsense"])
def test_the_name_of_a_source_is_not_to_be_overridden(name: str) -> None:
    with pytest.raises(
        UserError, match=rf"data.name={name} does not fit .* choose data=demo\|toy\|hub\|files"
    ):
        sources.load(DemoData(name=name), Split.train)


def test_a_stamp_changes_with_the_content_alone(files: FilesData, tmp_path: Path) -> None:
    stamps = [sources.stream(files, Split.train).stamp() for _ in range(2)]
    path = tmp_path / "train.de"
    before = path.stat().st_mtime_ns
    path.write_text("Hund\n" * 3, encoding="utf-8")  # of the same size, and made to look as old
    os.utime(path, ns=(before, before))
    stamps.append(sources.stream(files, Split.train).stamp())
    assert stamps[0] == stamps[1] != stamps[2]
    there, back = (
        sources.stream(cfg, Split.test).stamp() for cfg in (DemoData(), DemoData(src="de", tgt="en"))
    )
    assert there != back
