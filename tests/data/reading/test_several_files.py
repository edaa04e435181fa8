"""Splits that are several files: read in order, documents of their own, told by name when one is wrong."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from nmt.cli import main
from nmt.config.stored import load_config
from nmt.data.parallel_text import Split
from nmt.data.reading.files import FilesData, TextData
from nmt.data.reading.sources import MixtureData, ends_of_documents, load, stream, training_streams
from nmt.errors import UserError
from tests.runs.untrained import untrained


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of plain text (two parts, one compressed), and of tables."""
    for name, src, tgt in (("part-2", "c\nd", "C\nD"), ("part-1", "a\nb", "A\nB")):
        for side, text in (("en", src), ("de", tgt)):
            (tmp_path / f"{name}.{side}").write_text(f"{text}\n")
    (tmp_path / "part-1.de").unlink()
    (tmp_path / "part-1.de.gz").write_bytes(gzip.compress(b"A\nB\n"))
    (tmp_path / "x.tsv").write_text("en\tde\ne\tE\n")
    (tmp_path / "y.jsonl.gz").write_bytes(gzip.compress(b'{"de": "F", "en": "f"}\n'))
    return tmp_path


def pairs(cfg: FilesData | MixtureData) -> str:
    text = stream(cfg, Split.train).read()
    assert text.src == [line.lower() for line in text.tgt]
    return "".join(text.src)


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        (["part-2", "x.tsv", "part-1"], "cdeab"),
        (["x.tsv", "x.tsv"], "ee"),
        ("part-*", "abcd"),
        ("{lang}/../part-[0-9].{lang}", None),
        ("part-?.{lang}", "abcd"),
        ("{lang}/*", "gh"),
        ("*.jsonl", "f"),
        ("*.jsonl.gz", "f"),
        (["y.jsonl", "part-*"], "fabcd"),
    ],
)
def test_files_are_read_in_order(folder: Path, train: Any, expected: str | None) -> None:
    """Those of a pattern in the order of their names, compressed or not."""
    for language in ("en", "de"):
        (folder / language).mkdir()
        for name in "gh":
            text = name if language == "en" else name.upper()
            (folder / language / f"{name}.gz").write_bytes(gzip.compress(f"{text}\n".encode()))
    named = [f"{folder}/{one}" for one in train] if isinstance(train, list) else f"{folder}/{train}"
    assert pairs(FilesData(train=named)) == (expected or "abcd")
    assert pairs(MixtureData(corpora={"a": {"train": named}})) == (expected or "abcd")


@pytest.mark.parametrize(
    ("train", "expected"),
    [("*.jsonl.gz", "f"), ("*.jsonl", "o"), ("part-*.{lang}.gz", "gh"), ("part-*", "cd")],
)
def test_a_pattern_of_compressed_files_means_no_others(folder: Path, train: str, expected: str) -> None:
    """Nor two forms of one file, of which the plain one is read."""
    (folder / "y.jsonl").write_text('{"de": "O", "en": "o"}\n')
    (folder / "part-1.en").unlink()
    (folder / "part-1.de.gz").unlink()
    for side, text in (("en", "g\nh\n"), ("de", "G\nH\n")):
        (folder / f"part-2.{side}.gz").write_bytes(gzip.compress(text.encode()))
    assert pairs(FilesData(train=f"{folder}/{train}")) == expected


def test_a_change_of_any_file_is_seen(folder: Path) -> None:
    cfg = FilesData(train=[f"{folder}/part-*", f"{folder}/x.tsv"], validation=f"{folder}/part-*")
    assert "".join(load(cfg, Split.validation).src) == "abcd"
    assert cfg.origins == {f"{folder}/part-*", f"{folder}/x.tsv"}
    stamps = [stream(cfg, Split.train).stamp()]
    (folder / "x.tsv").write_text("en\tde\nee\tEE\n")
    stamps.append(stream(cfg, Split.train).stamp())
    for side in ("en", "de"):
        (folder / f"part-3.{side}").write_text("g\n")
    assert len({*stamps, stream(cfg, Split.train).stamp()}) == 3
    one = FilesData(train=f"{folder}/x.tsv")
    assert (
        stream(one, Split.train).stamp() == stream(FilesData(train=[f"{folder}/x.tsv"]), Split.train).stamp()
    )


def test_a_file_ends_a_document(folder: Path) -> None:
    cfg = FilesData(train=f"{folder}/part-*", context=1, context_short=0.0)
    assert stream(cfg, Split.train).read().src == ["a", "a <brk> b", "c", "c <brk> d"]
    assert ends_of_documents(cfg) == []  # numbers beside the pairs have none for the end of a file


def test_text_is_held_out_of_all_files_together(folder: Path) -> None:
    cfg = TextData(train=[f"{folder}/part-2.en", f"{folder}/part-1.en"], blocks=2, held_out=0.5)
    found = {split: stream(cfg, split).read().tgt for split in (Split.train, Split.validation)}
    assert found == {Split.train: ["c", "a"], Split.validation: ["d", "b"]}
    whole = TextData(train=f"{folder}/part-*.en", validation=f"{folder}/x.tsv")
    assert stream(whole, Split.train).read().tgt == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("train", "told"),
    [
        (["part-1", "no"], "data.train: there is no file {0}/no.en"),
        ("no-*", "data.train: no file is named like {0}/no-*.en or {0}/no-*.de"),
        ("no-*.tsv", "data.train: no file is named like {0}/no-*.tsv"),
        ("half-*", "data.train: there is no file {0}/half-1.en"),
        (["x.tsv", "broken.tsv"], "data.train: {0}/broken.tsv:2: the number of columns is 1, but"),
    ],
)
def test_errors_name_the_file(folder: Path, train: Any, told: str) -> None:
    (folder / "half-1.de").write_text("x\n")
    (folder / "broken.tsv").write_text("en\tde\nx\n")
    named = [f"{folder}/{one}" for one in train] if isinstance(train, list) else f"{folder}/{train}"
    with pytest.raises(UserError) as caught:
        stream(FilesData(train=named), Split.train).read()
    assert str(caught.value).startswith(told.format(folder))


def test_weights_beside_several_files_are_refused(folder: Path) -> None:
    cfg = FilesData(train=f"{folder}/part-*", weights=f"{folder}/w")
    with pytest.raises(UserError, match=r"is beside the files of one path, but data.train=.* means 2; name"):
        stream(cfg, Split.train)


@pytest.mark.parametrize("value", [[], [""], " ", {"a": 1}, [["a"]], [None]])
def test_what_is_no_path_is_refused(value: Any) -> None:
    for kind in (FilesData, TextData):
        with pytest.raises(
            UserError, match=r"^data.test must be a path, or a list of paths such as \[a.tsv, "
        ):
            kind(test=value)


def test_the_command_line_takes_lists_and_patterns(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NMT_CACHE", str(folder / "cache"))
    monkeypatch.chdir(folder)
    given = ["experiment=none", "data=files", "data.train=[part-*,x.tsv]", "data.validation=part-?"]
    given += ["data.scored_split=validation", "tokenizer=char", "run=run"]
    assert main(["prepare", *given]) == 0
    out, err = capsys.readouterr()
    assert "training data: 5 pairs read, 5 kept" in out + err
    data = load_config(untrained(folder / "run", data=given[1:5]) / "config.yaml").data
    assert (data.places(Split.train), data.place(Split.validation)) == (["part-*", "x.tsv"], "part-?")
    assert list(training_streams(data)) == ["files"]
