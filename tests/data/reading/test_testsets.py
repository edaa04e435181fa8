"""Test sets of sacreBLEU by name: read from its cache, or one error that says what is missing."""

from __future__ import annotations

import urllib.error
from pathlib import Path

import pytest
from sacrebleu.dataset import DATASETS, base

from nmt.data.parallel_text import ParallelText, Split
from nmt.data.reading import sources
from nmt.data.reading.testsets import TestsetData
from nmt.errors import UserError
from nmt.files import write_lines

XML = """<?xml version='1.0' encoding='utf-8'?>
<dataset id="x"><doc id="d" origlang="en">
<src lang="en"><p><seg id="1">A dog.</seg><seg id="2">B</seg></p></src>
<ref lang="de" translator="A"><p><seg id="1">Ein Hund.</seg><seg id="2">X</seg></p></ref>
<ref lang="de" translator="B"><p><seg id="1">Hund!</seg><seg id="2">Y</seg></p></ref></doc></dataset>
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder in the place of the cache of sacreBLEU; there is no network."""
    for name in ("wmt14", "wmt22"):
        monkeypatch.setattr(DATASETS[name], "_outdir", str(tmp_path / name))
        monkeypatch.setattr(DATASETS[name], "_rawdir", str(tmp_path / name / "raw"))

    def no_network(source: str, target: str, **options: object) -> None:
        if not Path(target).exists():
            raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr(base, "download_file", no_network)
    return tmp_path


def test_a_test_set_of_text_files_is_read_from_the_cache(cache: Path) -> None:
    for field in ("docid", "genre", "origlang"):
        write_lines(cache / "wmt14" / f"wmt14.en-de.{field}", ["x", "y"])
    write_lines(cache / "wmt14" / "wmt14.en-de.src", ["A dog.", "B"])
    write_lines(cache / "wmt14" / "wmt14.en-de.ref", ["Ein Hund.", "X"])
    data = TestsetData(test="wmt14")
    assert sources.load(data, Split.test) == ParallelText(["A dog.", "B"], ["Ein Hund.", "X"])
    write_lines(cache / "wmt14" / "wmt14.en-de.ref", ["Ein Hund."])
    with pytest.raises(
        UserError, match=r"^data\.test: .* has 2 lines but .* has 1; remove .*/wmt14, so that"
    ):
        sources.load(data, Split.test)


def test_all_references_of_a_test_set_count(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = cache / "wmt22" / "raw"
    file = raw / "wmt22-news-systems-1.1" / "xml" / "wmttest2022.en-de.all.xml"
    file.parent.mkdir(parents=True)
    file.write_text(XML)
    (raw / "wmt22.v1.1.tar.gz").touch()
    monkeypatch.setitem(DATASETS["wmt22"].kwargs, "refs", ["A", "B"])
    found = sources.load(TestsetData(test="wmt22", validation="wmt22"), Split.validation)
    assert found.src == ["A dog.", "B"]
    both = sorted([found.tgt, *found.references])
    assert both == [["Ein Hund.", "X"], ["Hund!", "Y"]]
    second = sources.load(TestsetData(test="wmt22", reference=1), Split.test)
    assert (second.tgt, second.references) == (found.references[0], [found.tgt])
    with pytest.raises(UserError, match=r"^data\.reference must be from 0 to 1, but is 2$"):
        sources.load(TestsetData(test="wmt22", reference=2), Split.test)


def test_without_a_network_one_error_names_the_cache_and_its_files(cache: Path) -> None:
    with pytest.raises(UserError) as caught:
        sources.load(TestsetData(test="wmt22", key_prefix="testset"), Split.test)
    assert str(caught.value) == (
        f"testset=wmt22 cannot be downloaded: Name or service not known; sacreBLEU reads the folder "
        f"{cache}/wmt22; copy that of a machine with a network, made by "
        "`sacrebleu -t wmt22 -l en-de --echo src`, with "
        "raw/wmt22.v1.1.tar.gz, raw/wmt22-news-systems-1.1/xml/wmttest2022.en-de.all.xml"
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (TestsetData(test="wmt222"), "data.test: sacreBLEU has no test set 'wmt222'; did you mean 'wmt22'?"),
        (TestsetData(test="wmt22", tgt="xx"), "data.test=wmt22 has no en-xx, only cs-en, cs-uk, de-en, "),
    ],
)
def test_a_test_set_that_does_not_exist_is_one_error(data: TestsetData, message: str) -> None:
    with pytest.raises(UserError) as caught:
        sources.load(data, Split.test)
    assert str(caught.value).startswith(message)


def test_test_sets_are_not_for_training() -> None:
    with pytest.raises(UserError, match=r"^data\.train: test sets of sacreBLEU are not for training$"):
        TestsetData(train="wmt22")
