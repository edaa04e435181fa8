"""Blocks, parts and the output: what counts as finished, what is refused, what is left behind."""

from __future__ import annotations

import gzip
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from nmt.errors import UserError
from nmt.verbs import translation_job
from nmt.verbs.translation_job import Job, Source, opened_job, require_output

LINES = [b"a\n", b"\n", b"b\r\n", b"c\n", b"d\n", b"\xc3\xa4\n", b"e"]
FACTS: dict[str, Any] = {"checkpoint": "abc", "decoding.beam_size": 5}


@pytest.fixture(autouse=True)
def _three_lines_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation_job, "LINES_AT_ONCE", 3)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    (tmp_path / "in").write_bytes(b"".join(LINES))
    return Source.read(tmp_path / "in")


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out"


def no_note(text: str) -> None:
    raise AssertionError(text)


def save_all(job: Job) -> None:
    for block in job.missing():
        job.save(block.number, b"".join(line.upper() for line in block.raw))


def test_blocks_hold_every_line_once_in_order(source: Source) -> None:
    blocks = list(source.blocks())
    assert [line for block in blocks for line in block.raw] == LINES
    assert [(block.number, block.first_line, len(block.raw)) for block in blocks] == [
        (0, 0, 3),
        (1, 3, 3),
        (2, 6, 1),
    ]
    assert (source.num_lines, source.num_blocks) == (7, 3)


def test_a_compressed_input_is_the_same_text(source: Source, tmp_path: Path) -> None:
    with gzip.open(tmp_path / "in.gz", "wb") as file:
        file.write(b"".join(LINES))
    compressed = Source.read(tmp_path / "in.gz")
    assert compressed.sha256 == source.sha256
    assert list(compressed.blocks()) == list(source.blocks())


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"a line that stands there again and again, with some forty words more\n" * 100_000)
    tracemalloc.start()
    try:
        num_blocks = sum(1 for _ in Source.read(path).blocks())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert num_blocks == 33_334
    assert peak < path.stat().st_size / 10


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("inn", None, "input: there is no file {tmp}/inn; did you mean 'in'?"),
        ("x/in", None, "input: there is no file {tmp}/x/in, nor a directory {tmp}/x"),
        (".", None, "input: {tmp} is a directory, not a file"),
        (
            "pipe",
            None,
            "input: {tmp}/pipe is no regular file; leave out input and output to read a stream",
        ),
        ("new", b"a\nb\nc\nd\ne \xff\n", "line 5 of input={tmp}/new is not UTF-8: byte 2 is 0xff"),
        (
            "new",
            gzip.compress(b"a\n" * 9, mtime=0)[:-5],
            "input: {tmp}/new is a damaged gzip file (Compressed file ended before the end-of-stream marker "
            "was reached); copy it again",
        ),
    ],
)
def test_inputs_that_cannot_be_read(
    source: Source, tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    os.mkfifo(tmp_path / "pipe")
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        Source.read(tmp_path / name)
    assert str(caught.value) == message.format(tmp=tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (".", "output: {tmp} is a directory; name a file in it: output={tmp}/in"),
        ("x/out", "output: there is no directory {tmp}/x; make it, or choose another output=..."),
        ("in", "output: {tmp}/in is the input; choose another output=..."),
        (
            "there",
            "output: {tmp}/there is there already and stays; remove it, or choose another output=...",
        ),
    ],
)
def test_outputs_that_cannot_be_made(source: Source, tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "there").write_bytes(b"precious")
    with pytest.raises(UserError) as caught:
        require_output(tmp_path / name, source.path)
    assert str(caught.value) == message.format(tmp=tmp_path)


def test_a_job_goes_on_from_its_parts(source: Source, output: Path) -> None:
    require_output(output, source.path)
    with opened_job(source, output, FACTS, no_note) as job:
        assert job.lines_finished == 0
        job.save(2, b"E")
        job.save(0, b"A\n\nB\r\n")
        assert job.lines_finished == 4
    with opened_job(source, output, FACTS, no_note) as job:
        assert job.finished == {0, 2}
        assert [block.number for block in job.missing()] == [1]
        save_all(job)
        job.finish()
    assert output.read_bytes() == b"".join(line.upper() for line in LINES)
    assert sorted(path.name for path in output.parent.iterdir()) == ["in", "out"]


def test_a_compressed_output_holds_the_same(source: Source, output: Path) -> None:
    output = output.with_name("out.gz")
    with opened_job(source, output, FACTS, no_note) as job:
        save_all(job)
        job.finish()
    assert gzip.decompress(output.read_bytes()) == b"".join(line.upper() for line in LINES)


@pytest.mark.parametrize("damage", [b"", b"0" * 64 + b"\nE", b"nonsense"])
def test_a_damaged_part_is_made_again(source: Source, output: Path, damage: bytes) -> None:
    with opened_job(source, output, FACTS, no_note) as job:
        save_all(job)
    part = output.parent / "out.parts" / "block_00000002"
    part.write_bytes(damage)
    notes: list[str] = []
    with opened_job(source, output, FACTS, notes.append) as job:
        assert job.finished == {0, 1}
        save_all(job)
        part.write_bytes(damage)  # and damaged while the others were made
        with pytest.raises(UserError, match="block_00000002 is damaged; the same command translates its li"):
            job.finish()
    assert notes == [f"warning: {part} is damaged; its lines are translated again"]
    assert not output.exists()


def test_the_parts_of_another_job_are_refused_and_kept(source: Source, output: Path) -> None:
    with opened_job(source, output, FACTS, no_note) as job:
        job.save(0, b"A")
    parts = output.parent / "out.parts"
    other = FACTS | {"decoding.beam_size": 4, "decoding.length_penalty_alpha": 1.0}
    with pytest.raises(UserError) as caught, opened_job(source, output, other, no_note):
        pass
    assert str(caught.value) == (
        f"{parts} is left over from another job:\n"
        "  decoding.beam_size: 5 -> 4\n  decoding.length_penalty_alpha: unset -> 1.0\n"
        "repeat that one to finish it, remove the directory, or choose another output=..."
    )
    source.path.write_bytes(b"another\n")
    with (
        pytest.raises(UserError, match=r"input\.lines: 7 -> 1\n  input\.sha256: "),
        opened_job(Source.read(source.path), output, FACTS, no_note),
    ):
        pass
    assert (parts / "block_00000000").exists()


def test_a_folder_of_the_user_is_left_alone(source: Source, output: Path) -> None:
    parts = output.parent / "out.parts"
    parts.mkdir()
    (parts / "thesis.txt").write_text("precious")
    with pytest.raises(UserError) as caught, opened_job(source, output, FACTS, no_note):
        pass
    assert str(caught.value) == (
        f"{parts} is where parts of the output go, but it holds thesis.txt and no job.json; "
        "move it away, or choose another output=..."
    )
    assert (parts / "thesis.txt").read_text() == "precious"


def test_a_job_has_one_process(source: Source, output: Path) -> None:
    with (
        opened_job(source, output, FACTS, no_note),
        pytest.raises(
            UserError, match=f"out.parts is in use by process {os.getpid()} on .*; wait for it, or"
        ),
        opened_job(source, output, FACTS, no_note),
    ):
        pass


def test_a_job_that_fails_at_once_leaves_nothing(source: Source, output: Path) -> None:
    with pytest.raises(KeyError), opened_job(source, output, FACTS, no_note):
        raise KeyError
    assert [path.name for path in output.parent.iterdir()] == ["in"]


def test_an_input_that_changes_is_noticed(source: Source, output: Path) -> None:
    with opened_job(source, output, FACTS, no_note) as job:
        save_all(job)
        source.path.write_bytes(b"".join(reversed(LINES)))
        with pytest.raises(UserError, match="has changed while it was translated; start anew"):
            next(job.source.blocks())
        with pytest.raises(UserError, match="has changed while it was translated; start anew"):
            job.finish()


def test_an_output_that_appears_meanwhile_is_not_overwritten(source: Source, output: Path) -> None:
    with opened_job(source, output, FACTS, no_note) as job:
        save_all(job)
        output.write_bytes(b"precious")
        with pytest.raises(UserError, match="out is there already and stays; remove it, or choose another"):
            job.finish()
    assert output.read_bytes() == b"precious"
    output.unlink()
    with opened_job(source, output, FACTS, no_note) as job:
        job.finish()
    assert output.exists()
