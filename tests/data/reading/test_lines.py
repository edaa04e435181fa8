"""What every reader of text shares: plain or compressed bytes, and lines of a stream."""

from __future__ import annotations

import codecs
import gzip
import io
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nmt.data.parallel_text import MAX_LINE_CHARS
from nmt.data.reading.lines import decoded, is_cut, open_bytes, read_lines
from nmt.errors import UserError

TEXT = "ein Häuschen\r\n\nzwei\u2028drei".encode()


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_bytes_are_read_plain_or_compressed(tmp_path: Path, compress: type[bytes]) -> None:
    file = tmp_path / "text"
    file.write_bytes(compress(TEXT))
    with open_bytes(file, "input") as lines:
        assert list(lines) == TEXT.splitlines(keepends=True)
    assert list(read_lines(file, "input")) == ["ein Häuschen", "", "zwei\u2028drei"]


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    damaged = tmp_path / "text.gz"
    damaged.write_bytes(gzip.compress(TEXT * 99)[:-9])
    with pytest.raises(UserError, match=r"^input: .*text\.gz is a damaged file .*; copy it again$"):
        list(read_lines(damaged, "input"))
    with (
        pytest.raises(UserError, match=r"^input: .*nowhere cannot be read: No such file"),
        open_bytes(tmp_path / "nowhere", "input"),
    ):
        pass


def test_lines_of_a_stream_are_decoded_one_by_one() -> None:
    assert list(decoded(io.BytesIO(TEXT))) == ["ein Häuschen", "", "zwei\u2028drei"]
    lines = decoded(io.BytesIO(b"a\nb\xff\n"))
    assert next(lines) == "a"
    with pytest.raises(UserError, match=r"^the input: line 2, byte 2 of the line "):
        next(lines)


@pytest.mark.fault(26)
@pytest.mark.parametrize(
    "content",
    [
        codecs.BOM_UTF8 + TEXT,
        b"a\n" + codecs.BOM_UTF8 + b"b\n",
        b"a\nb\0c\n",
        codecs.BOM_UTF8 + b"a\xe4\n",
        "a\n".encode("utf-16"),
    ],
)
def test_a_stream_is_read_by_the_rules_of_files(tmp_path: Path, content: bytes) -> None:
    """The lines are the same, or what is wrong with them."""
    file = tmp_path / "text"
    file.write_bytes(content)

    def read(lines: Callable[[], Iterator[str]], name: str) -> list[str] | str:
        try:
            return list(lines())
        except UserError as error:
            return str(error).removeprefix(name)

    found = read(lambda: decoded(io.BytesIO(content)), "the input")
    assert found == read(lambda: read_lines(file, "input"), f"input: {file}")


def test_a_compressed_stream_is_told() -> None:
    with pytest.raises(UserError, match=r"^the input is compressed; decompress it first$"):
        list(decoded(io.BytesIO(gzip.compress(TEXT))))


@pytest.mark.fault(28, 37)
@pytest.mark.parametrize("character", ["a", "ä", "😀"])
@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
def test_of_a_line_that_is_too_long_the_beginning_is_read(
    tmp_path: Path, character: str, mark: bytes
) -> None:
    long = character * (3 * MAX_LINE_CHARS)
    longest = character * MAX_LINE_CHARS
    file = tmp_path / "text"
    file.write_bytes(mark + "\n".join([long, "b", longest, long]).encode())
    expected = [long[: MAX_LINE_CHARS + 1], "b", longest, long[: MAX_LINE_CHARS + 1]]
    for lines in (list(read_lines(file, "input")), list(decoded(io.BytesIO(file.read_bytes())))):
        assert lines == expected
        assert [is_cut(line) for line in lines] == [True, False, False, True]


@pytest.mark.fault(37)
def test_a_bomb_without_a_line_feed_takes_bounded_memory(tmp_path: Path) -> None:
    file = tmp_path / "bomb.gz"
    file.write_bytes(b"".join([gzip.compress(b"a" * (1 << 24))] * 4))
    tracemalloc.start()
    try:
        assert [*map(len, read_lines(file, "input"))] == [MAX_LINE_CHARS + 1]
        with open_bytes(file, "input") as source:
            assert [*map(len, decoded(source))] == [MAX_LINE_CHARS + 1]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 40_000_000
