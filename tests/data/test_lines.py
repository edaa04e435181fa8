"""What every reader of text shares: plain or compressed bytes, and lines of a stream."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import pytest

from nmt.data.lines import decoded, open_bytes, read_lines
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
    with pytest.raises(UserError, match=r"^input: .*text\.gz is a damaged gzip file .*; copy it again$"):
        list(read_lines(damaged, "input"))
    with (
        pytest.raises(UserError, match=r"^input: .*nowhere cannot be read: No such file"),
        open_bytes(tmp_path / "nowhere", "input"),
    ):
        pass


def test_lines_of_a_stream_are_decoded_one_by_one() -> None:
    assert list(decoded(io.BytesIO(TEXT))) == ["ein Häuschen", "", "zwei\u2028drei"]
    lines = decoded(io.BytesIO(b"a\nb\xff\n"), first_line=11, name="input=x")
    assert next(lines) == "a"
    with pytest.raises(UserError) as caught:
        next(lines)
    assert str(caught.value) == "line 12 of input=x is not UTF-8: byte 1 is 0xff"
