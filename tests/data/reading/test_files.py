"""Reading the user's files: what a line is, what the columns are called, and what every defect is told as."""

from __future__ import annotations

import bz2
import contextlib
import dataclasses
import functools
import gzip
import json
import lzma
import os
import random
import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.data.parallel_text import MAX_LINE_CHARS, ParallelText, Split
from nmt.data.reading.files import FilesData, TextData, parting_line, stream, stream_text
from nmt.data.reading.lines import read_lines
from nmt.errors import UserError
from nmt.extras import ZSTANDARD

zstd = import_module(ZSTANDARD)
ENGLISH = ["A dog runs.", "Two cats sleep.", "It rains."]
GERMAN = ["Ein Hund läuft.", "Zwei Katzen schlafen.", "Es regnet."]


def write_pair(folder: Path, src: bytes | str, tgt: bytes | str, name: str = "train") -> FilesData:
    """Two plain text files, and the config that reads them as the training split."""
    for language, content in (("en", src), ("de", tgt)):
        raw = content.encode() if isinstance(content, str) else content
        (folder / f"{name}.{language}").write_bytes(raw)
    return FilesData(train=str(folder / f"{name}.{{lang}}"))


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def error_of(cfg: FilesData) -> str:
    with pytest.raises(UserError) as caught:
        stream(cfg, Split.train).read()
    return str(caught.value)


def lines(sentences: list[str], end: str = "\n") -> str:
    return "".join(sentence + end for sentence in sentences)


def test_a_pair_of_files_is_read_line_by_line(tmp_path: Path) -> None:
    cfg = write_pair(tmp_path, lines(ENGLISH), lines(GERMAN))
    assert stream(cfg, Split.train).read() == ParallelText(ENGLISH, GERMAN)


def test_the_languages_may_be_swapped(tmp_path: Path) -> None:
    cfg = write_pair(tmp_path, lines(ENGLISH), lines(GERMAN))
    swapped = FilesData(src="de", tgt="en", train=cfg.train)
    assert stream(swapped, Split.train).read() == ParallelText(GERMAN, ENGLISH)


def test_a_path_without_a_place_for_the_language_is_a_prefix(tmp_path: Path) -> None:
    write_pair(tmp_path, lines(ENGLISH), lines(GERMAN))
    assert stream(FilesData(train=str(tmp_path / "train")), Split.train).read() == ParallelText(
        ENGLISH, GERMAN
    )


def test_the_sides_may_be_called_otherwise_than_their_languages(tmp_path: Path) -> None:
    write(tmp_path, "train.source", lines(ENGLISH))
    write(tmp_path, "train.target", lines(GERMAN))
    cfg = FilesData(train=str(tmp_path / "train"), src_column="source", tgt_column="target")
    assert stream(cfg, Split.train).read() == ParallelText(ENGLISH, GERMAN)


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\0")), min_size=1),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
    st.booleans(),
)
def test_only_a_line_feed_ends_a_line(
    tmp_path_factory: pytest.TempPathFactory, sentences: list[str], end: str, closed: bool, zipped: bool
) -> None:
    """U+2028, U+0085, form feeds and lone carriage returns stay inside, whatever the end and the packing."""
    sentences = [sentence.lstrip("\ufeff").rstrip("\r") for sentence in sentences]
    raw = end.join(sentences).encode() + (end.encode() if closed or not sentences[-1] else b"")
    path = tmp_path_factory.mktemp("lines") / ("a.gz" if zipped else "a")
    path.write_bytes(gzip.compress(raw) if zipped else raw)
    assert list(read_lines(path, "data.train")) == sentences


@pytest.mark.fault(26)
@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85", "\r", "\x0b", "\x0c", "\x1c"])
def test_other_separators_do_not_shift_the_lines(tmp_path: Path, character: str) -> None:
    english = [f"a{character}b", "c"]
    cfg = write_pair(tmp_path, lines(english), lines(["x", "y"]))
    assert stream(cfg, Split.train).read() == ParallelText(english, ["x", "y"])


@pytest.mark.fault(27)
def test_a_byte_order_mark_is_not_part_of_the_text(tmp_path: Path) -> None:
    cfg = write_pair(tmp_path, "\ufeff" + lines(ENGLISH), lines(GERMAN))
    assert stream(cfg, Split.train).read().src == ENGLISH


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": functools.partial(zstd.compress, options={zstd.CompressionParameter.checksum_flag: 1}),
}


@pytest.mark.fault(27)
@pytest.mark.parametrize("suffix", PACKERS)
def test_compression_is_told_by_the_content(tmp_path: Path, suffix: str) -> None:
    """With the suffix in the config, without it, and in a name that hides it; files of two frames."""
    for language, sentences in (("en", ENGLISH), ("de", GERMAN)):
        frames = (sentences[:1], sentences[1:])
        packed = b"".join(PACKERS[suffix](lines(part).encode()) for part in frames)
        write(tmp_path, f"a.{language}.{suffix}", packed)
        write(tmp_path, f"b.{language}", packed)
    for place in (f"a.{{lang}}.{suffix}", "a.{lang}", "a", "b"):
        cfg = FilesData(train=str(tmp_path / place))
        assert stream(cfg, Split.train).read() == ParallelText(ENGLISH, GERMAN)


@pytest.mark.parametrize("suffix", PACKERS)
def test_a_damaged_compressed_file_is_told(tmp_path: Path, suffix: str) -> None:
    packed = PACKERS[suffix](b"A dog runs.\n" * 99)
    for damaged in (packed[:-5], packed[:12] + b"garbage" + packed[19:]):
        assert " is a damaged file (" in error_of(write_pair(tmp_path, damaged, lines(GERMAN)))


@pytest.mark.parametrize("name", ["train", "train.jsonl", "train.en"])
def test_a_pipe_is_refused_with_the_way_out(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    message = error_of(FilesData(train=str(tmp_path / name.removesuffix(".en"))))
    assert f"data.train: {tmp_path / name} is a pipe, which can be read only once" in message
    assert message.endswith("... | gzip > FILE.gz")


def test_zstandard_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, ZSTANDARD, None)
    message = error_of(write_pair(tmp_path, zstd.compress(b"A dog\n"), lines(GERMAN)))
    assert "train.en is compressed by Zstandard (or decompress it: zstd -d), which needs" in message
    assert message.endswith("pip install 'nmt[zst]'")


def test_tsv_with_a_header(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv", 'de\tid\ten\nEin "Hund\t1\tA "dog\n')
    assert stream(FilesData(train=str(path)), Split.train).read() == ParallelText(['A "dog'], ['Ein "Hund'])


def test_tsv_without_a_header_has_numbered_columns(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv.gz", gzip.compress(b"A dog\tEin Hund\nA cat\tEine Katze\n"))
    cfg = FilesData(train=str(path), src_column="1", tgt_column="2")
    assert stream(cfg, Split.train).read() == ParallelText(["A dog", "A cat"], ["Ein Hund", "Eine Katze"])


@pytest.mark.parametrize(
    "record",
    [
        '{"en": "a\\nb", "de": "c\\u0000"}',
        '{"id": 7, "translation": {"de": "c\\r\\n", "en": "a\\r\\nb"}}',
    ],
)
def test_jsonl_flat_and_nested(tmp_path: Path, record: str) -> None:
    """A line break inside a sentence becomes a space: one sentence is one line."""
    path = write(tmp_path, "a.jsonl", f"{record}\n{record}")
    assert stream(FilesData(train=str(path)), Split.train).read() == ParallelText(["a b"] * 2, ["c "] * 2)


def test_jsonl_with_named_keys(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", '{"text": {"source": "a"}, "target": "\\ud800b"}\n')
    cfg = FilesData(train=str(path), src_column="text.source", tgt_column="target")
    assert stream(cfg, Split.train).read() == ParallelText(["a"], ["\ufffdb"])


@pytest.mark.fault(26)
def test_line_counts_must_match(tmp_path: Path) -> None:
    cfg = write_pair(tmp_path, lines(ENGLISH), lines(GERMAN[:-1]))
    message = error_of(cfg)
    assert f"data.train: {tmp_path}/train.en has 3 lines but {tmp_path}/train.de has 2" in message
    assert "they part near line" in message


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("lost", [0, 57, 199])
def test_the_parting_line_is_found(side: int, lost: int) -> None:
    rng = random.Random(lost)
    lengths = [rng.randint(5, 120) for _ in range(200)]
    sides = [lengths, [int(n * rng.uniform(0.9, 1.2)) for n in lengths]]
    del sides[side][lost]
    src, tgt = (np.asarray(side, np.int32) for side in sides)
    assert abs(parting_line(src, tgt) - (lost + 1)) <= 2


@pytest.mark.fault(31)
def test_one_file_cannot_be_both_sides(tmp_path: Path) -> None:
    path = write(tmp_path, "a.en", lines(ENGLISH))
    (tmp_path / "a.de").symlink_to(path)
    assert "is both the source and the target; name two different files" in error_of(
        FilesData(train=str(tmp_path / "a"))
    )


@pytest.mark.fault(26, 27)
@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", "is empty"),
        (b"\xef\xbb\xbf", "is empty"),
        ("A dog\n".encode("utf-16"), "is UTF-16, not UTF-8; convert it: iconv -f UTF-16 -t UTF-8"),
        ("ab\nA dog\n".encode("utf-16-le"), "line 1, byte 2 of the line (0x00) is a NUL character"),
        (b"ok\na\0b\n", "line 2, byte 2 of the line (0x00) is a NUL character"),
        ("ok\nlä\n".encode("latin-1"), "line 2, byte 2 of the line (0xe4) is not UTF-8; in Windows-1252"),
        ("ok\nlä\n".encode("latin-1"), "that byte is 'ä'; if so, convert the file: iconv -f cp1252 -t UTF-8"),
        (b"\xef\xbb\xbf\x81\n", "line 1, byte 1 of the line (0x81) is not UTF-8; find its encoding"),
        (gzip.compress(gzip.compress(b"A dog\n", mtime=0), mtime=0), "is compressed twice; decompress"),
        (gzip.compress(b"A dog runs.\n" * 99, mtime=0)[:-9], "is a damaged file"),
        (b"\x1f\x8b\x08garbage-garbage", "is a damaged file"),
    ],
)
def test_what_is_not_utf8_text_is_told(tmp_path: Path, raw: bytes, expected: str) -> None:
    message = error_of(write_pair(tmp_path, raw, lines(GERMAN)))
    assert expected in message
    assert f"data.train: {tmp_path}/train.en" in message


@pytest.mark.fault(27)
def test_a_false_gz_name_is_told(tmp_path: Path) -> None:
    write(tmp_path, "a.en.gz", lines(ENGLISH))
    write(tmp_path, "a.de.gz", lines(GERMAN))
    message = error_of(FilesData(train=str(tmp_path / "a.{lang}.gz")))
    assert "a.en.gz ends in .gz but is not gzip-compressed; remove .gz from its name" in message


@pytest.mark.fault(31)
def test_a_missing_file_is_told_with_its_neighbours(tmp_path: Path) -> None:
    write_pair(tmp_path, lines(ENGLISH), lines(GERMAN))
    message = error_of(FilesData(train=str(tmp_path / "trian.{lang}")))
    assert f"data.train: there is no file {tmp_path}/trian.en; did you mean 'train.en'?" in message
    message = error_of(FilesData(train=str(tmp_path / "corpus" / "train")))
    assert f"there is no file {tmp_path}/corpus/train.en, nor a directory {tmp_path}/corpus" in message


@pytest.mark.parametrize(
    ("files", "path", "message"),
    [
        (
            ["train.en", "train.de"],
            "train.en",
            "{tmp}/train.en is the text of one side; leave out its language, which is put behind the path: "
            "data.train={tmp}/train",
        ),
        (
            ["train.en", "train.fr.gz", "train.log"],
            "train",
            "there is no file {tmp}/train.de, but there are files for en, fr; say which languages are meant, "
            "such as data.src=en data.tgt=fr",
        ),
        (
            ["uk/train.txt", "fi/train.txt"],
            "{lang}/train.txt",
            "there is no file {tmp}/en/train.txt, but there are files for fi, uk; say which languages are "
            "meant, such as data.src=fi data.tgt=uk",
        ),
        (
            ["c/train.en.gz", "c/train.de", "c/dev.en", "c/dev.de", "c/half.en", "c/README"],
            "c",
            "{tmp}/c is a directory; name what its files begin with: data.train={tmp}/c/dev or "
            "data.train={tmp}/c/train",
        ),
        (
            ["c/x.txt"],
            "c",
            "{tmp}/c is a directory; name what its files NAME.en and NAME.de begin with: "
            "data.train={tmp}/c/NAME; data=hub data.path={tmp}/c reads dataset folders",
        ),
    ],
)
def test_the_path_or_the_languages_that_are_meant_are_told(
    tmp_path: Path, files: list[str], path: str, message: str
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path, name, lines(ENGLISH))
    cfg = FilesData(train=f"{tmp_path}/{path}")
    assert error_of(cfg) == "data.train: " + message.replace("{tmp}", str(tmp_path))


def test_sides_with_names_of_their_own_are_no_languages_to_set(tmp_path: Path) -> None:
    write_pair(tmp_path, lines(ENGLISH), lines(GERMAN))
    cfg = FilesData(train=str(tmp_path / "train"), tgt_column="second")
    assert "languages" not in error_of(cfg)


@pytest.mark.fault(27)
def test_a_directory_is_not_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").mkdir()
    message = error_of(FilesData(train=str(tmp_path / "a.jsonl")))
    assert "a.jsonl is a directory, not a file; data=hub data.path=" in message


def test_one_file_of_unknown_format_is_told(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", lines(ENGLISH))
    assert (
        "a.txt is one file of unknown format; pairs come from one .tsv, .csv, .jsonl or .tmx file, or "
        in (error_of(FilesData(train=str(path))))
    )


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            "en\tdd\na\tb\n",
            "data.tgt=de: {path} has no column 'de', only en, dd; set data.tgt or data.tgt_column; "
            "without a header, give numbers: data.src_column=1 data.tgt_column=2",
        ),
        (
            "en\tde-AT\na\tb\n",
            "data.tgt=de: {path} has no column 'de', only en, de-AT; did you mean 'de-AT'?; set data.tgt or",
        ),
        (
            "en\tde\na\tb\na\n",
            "data.train: {path}:3: the number of columns is 1, but that of line 1 is 2",
        ),
        (
            "en\tde\na\tb\tc\n",
            "data.train: {path}:2: the number of columns is 3, but that of line 1 is 2",
        ),
    ],
)
def test_errors_in_tsv(tmp_path: Path, content: str, expected: str) -> None:
    path = write(tmp_path, "a.tsv", content)
    assert error_of(FilesData(train=str(path))).startswith(expected.format(path=path))


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("a.tsv", "en\tde\na\tb\n\n", 3),
        ("a.tsv", " \nen\tde\n", 1),
        ("a.csv", "en,de\n\na,b\n", 2),
        ("a.csv", "\nen,de\n", 1),
        ("a.jsonl", '{"en": "a", "de": "b"}\n\n', 2),
    ],
)
def test_a_blank_line_is_no_row(tmp_path: Path, name: str, content: str, line: int) -> None:
    path = write(tmp_path, name, content)
    expected = f"data.train: {path}:{line}: the line is blank; remove it"
    assert error_of(FilesData(train=str(path))) == expected


@pytest.mark.parametrize(("name", "comma"), [("a.tsv", "\t"), ("a.csv", ",")])
def test_a_column_that_is_there_twice_is_refused(tmp_path: Path, name: str, comma: str) -> None:
    path = write(tmp_path, name, "en\tde\ten\nA dog.\tEin Hund.\tA cat.\n".replace("\t", comma))
    expected = f"data.train: {path}:1: the column 'en' is there twice; rename one of them"
    assert error_of(FilesData(train=str(path))) == expected


def test_a_column_number_beyond_the_last_is_told(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv", "a\tb\n")
    message = error_of(FilesData(train=str(path), src_column="1", tgt_column="3"))
    assert message.endswith("has no column '3', only 1, 2; set data.tgt or data.tgt_column")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", "data.train: {path}:2: not JSON: "),
        ("[1]", "{path}:2 has no column 'en', only no keys"),
        ('{"en": "a", "translation": {"ger": "b"}}', "{path}:2 has no column 'de', only en, translation.ger"),
        ('{"en": null, "de": "b"}', "data.train: {path}:2: en must be text, but is null"),
        ('{"en": "a", "de": 3}', "data.train: {path}:2: de must be text, but is 3"),
        ('{"en": "a", "de": NaN}', "data.train: {path}:2: de must be text, but is NaN"),
        ('{"en": "a", "de": [["b"]]}', "data.train: {path}:2: de must be text, but is a list"),
        ('{"en": "a", "de": {}}', "data.tgt=de: {path}:2 has no column 'de', only en; set data.tgt"),
        ('"text"', "{path}:2 has no column 'en', only no keys"),
        ("[" * 100_000, "data.train: {path}:2: JSON that is nested too deeply; write a flat record"),
        ('{"en":' * 100_000, "data.train: {path}:2: JSON that is nested too deeply; write a flat record"),
        (
            '{"en": "a", "de": "b", "id": ' + "7" * 5000 + "}",
            "data.train: {path}:2: JSON with a number of thousands of digits; write it as text",
        ),
        (
            '{"en": "a", "de": "b", "x": {"en": 1, "en": 2}}',
            "data.train: {path}:2: the key 'en' is there twice; keep one of them",
        ),
        (
            '{"\\u001b[31mred\\u0007": 1, "\\ud800": 2, "' + "k" * 99 + '": 3}',
            r"only '\x1b[31mred\x07', '\ud800', " + "k" * 30 + "; set data.src",
        ),
        ("{" + ", ".join(f'"k{i}": 1' for i in range(9999)) + "}", "k18, k19, ...; set data.src"),
        ('{"' + "k" * 500_000 + '": {' + ", ".join(f'"{i}": {{}}' for i in range(9999)) + "}}", "no keys"),
    ],
    ids=lambda text: text[:40],
)
def test_errors_in_jsonl(tmp_path: Path, line: str, expected: str) -> None:
    path = write(tmp_path, "a.jsonl", '{"en": "a", "de": "b"}\n' + line + "\n")
    message = error_of(FilesData(train=str(path)))
    assert expected.format(path=path) in message
    assert len(message) < 500


def test_keys_with_dots_are_found_in_any_nesting(tmp_path: Path) -> None:
    records = ['{"a.b": "x", "c": {"d": {"e": "y"}}}', '{"a": {"b": "x"}, "c": {"d.e": "y"}, "c.d": {}}']
    path = write(tmp_path, "a.jsonl", "\n".join(records))
    cfg = FilesData(train=str(path), src_column="a.b", tgt_column="c.d.e")
    assert stream(cfg, Split.train).read() == ParallelText(["x", "x"], ["y", "y"])


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_json_is_a_pair_or_a_message(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    path = tmp_path_factory.mktemp("json") / "a.jsonl"
    path.write_text(json.dumps(value) + "\n")
    with contextlib.suppress(UserError):
        stream(FilesData(train=str(path), src_column="a", tgt_column="b"), Split.train).read()


def test_a_header_with_escapes_is_shown_escaped(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv", "\x1b[31mred\x07\tde\na\tb\n")
    message = error_of(FilesData(train=str(path)))
    assert r"only '\x1b[31mred\x07', de; set data.src" in message
    assert message.isprintable()


def text_data(tmp_path: Path, lines: int, **changes: Any) -> TextData:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{i}\n" if i % 3 else "\n" for i in range(lines)), encoding="utf-8")
    return TextData(train=str(path), **changes)


def test_the_tails_of_blocks_are_held_out(tmp_path: Path) -> None:
    cfg = text_data(tmp_path, 40, blocks=4, held_out=0.2)
    train, held_out = (stream_text(cfg, split).read().tgt for split in (Split.train, Split.validation))
    assert held_out == ["8", "", "", "19", "28", "29", "38", ""]  # a line may be blank
    assert len(train) == 32
    assert train[:9] == ["", "1", "2", "", "4", "5", "", "7", "10"]
    assert stream_text(cfg, Split.train).read().src == [""] * 32
    assert TextData(test=cfg.train).place(Split.validation) is None  # of a text that is only scored


def test_a_validation_text_leaves_the_training_text_whole(tmp_path: Path) -> None:
    cfg = text_data(tmp_path, 40)
    other = tmp_path / "other.txt"
    other.write_text("a\nb\n", encoding="utf-8")
    cfg = dataclasses.replace(cfg, validation=str(other), test=str(other))
    assert len(stream_text(cfg, Split.train).read()) == 40
    assert (
        stream_text(cfg, Split.validation).read().tgt == stream_text(cfg, Split.test).read().tgt == ["a", "b"]
    )


@pytest.mark.parametrize(
    ("split", "held_out", "part"),
    [(Split.validation, 0.1, "held out"), (Split.train, 0.9, "left for training")],
)
def test_a_text_too_short_for_its_blocks_is_told(
    tmp_path: Path, split: Split, held_out: float, part: str
) -> None:
    cfg = text_data(tmp_path, 9, blocks=9, held_out=held_out)
    message = (
        f"data.train={cfg.train} has 9 lines in data.blocks=9; none of them is {part} with "
        f"data.held_out={held_out}; set data.validation, or fewer blocks"
    )
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        stream_text(cfg, split).read()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"held_out": 0.0}, "data.held_out must be in (0, 1), but is 0.0"),
        ({"held_out": 1.0}, "data.held_out must be in (0, 1), but is 1.0"),
        ({"blocks": 0}, "data.blocks must be at least 1, but is 0"),
    ],
)
def test_text_values_out_of_range(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        TextData(**changes)


@pytest.mark.fault(28)
def test_no_line_of_a_text_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, "text.txt", "a\n" + "b" * (MAX_LINE_CHARS + 1) + "\n")
    message = f"data.train: line 2 of {path} has more than 1,048,576 characters; break it into several"
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        stream_text(TextData(train=str(path), validation=str(path)), Split.train).read()


def test_a_missing_text_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^data\.train: there is no file .*nothing\.txt"):
        stream_text(TextData(train=str(tmp_path / "nothing.txt")), Split.validation)


def test_a_quote_that_is_not_closed_is_told_where_its_row_begins(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", 'en,de\na,b\nc,"d\n' + "e,f\n" * 5)
    expected = (
        f"data.train: {path}:3: not CSV: unexpected end of data; the row goes on to line 8, so close a quote "
        "before that"
    )
    assert error_of(FilesData(train=str(path))) == expected


def test_a_row_of_csv_is_told_by_its_first_line(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", 'en,de\n"a\nb",c\n"d\n\ne"\n')
    expected = f"data.train: {path}:4: the number of columns is 1, but that of line 1 is 2; mend the line or"
    assert error_of(FilesData(train=str(path))).startswith(expected)


def test_a_field_of_csv_may_be_as_long_as_a_line(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text(f'en,de\n"{"a" * 140_000}",b\nc,d\n')
    found = stream(FilesData(train=str(tmp_path / "train.csv")), Split.train).read()
    assert [len(line) for line in found.src] == [140_000, 1]
    (tmp_path / "train.csv").write_text(f"en,de\n{'a' * (MAX_LINE_CHARS + 1)},b\nc,d\n")
    with pytest.raises(UserError, match=r"train.csv:2 has more than 1,048,576 characters; remove it$"):
        stream(FilesData(train=str(tmp_path / "train.csv")), Split.train).read()


def test_a_first_row_that_is_too_long_is_not_taken_for_a_header(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv", f"{'a' * (MAX_LINE_CHARS + 1)}\tb\nc\td\n")
    expected = f"data.train: {path}:1 has more than 1,048,576 characters; remove it"
    assert error_of(FilesData(train=str(path), src_column="1", tgt_column="2")) == expected
