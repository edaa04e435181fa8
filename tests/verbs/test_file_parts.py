"""Blocks hold every line once, in order; parts are whole, of one job, and shared by several processes."""

from __future__ import annotations

import gzip
import os
import threading
import tracemalloc
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from nmt.config.roots import Shard
from nmt.data.reading import lines
from nmt.data.reading.compression import COMPRESSIONS, compression_of
from nmt.data.reading.lines import read_lines
from nmt.errors import UserError
from nmt.extras import EXTRAS
from nmt.files import locked
from nmt.verbs import file_parts
from nmt.verbs.file_parts import Job, require_files, write_part

TEXT = b"a\n\nb\r\nc\nd\n\xc3\xa4\ne"
LINES = ["a", "", "b", "c", "d", "ä", "e"]
FACTS: dict[str, Any] = {"checkpoint": "abc", "decoding.beam_size": 5}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Return a job of three blocks of at most three lines."""
    monkeypatch.setattr(file_parts, "LINES_AT_ONCE", 3)
    (tmp_path / "in").write_bytes(TEXT)
    return Job.read(tmp_path / "in", tmp_path / "out", "translated")


def save(job: Job, *numbers: int) -> None:
    """Write the parts of these blocks: their lines in capitals."""
    for number, block in enumerate(job.blocks()):
        if number in numbers:
            write_part(block.part, "".join(f"{line}\n" for line in block.lines).upper().encode())


def present(job: Job) -> list[int]:
    return [number for number, part in enumerate(job.parts) if part.exists()]


def test_blocks_hold_every_line_once_in_order(job: Job) -> None:
    blocks = list(job.blocks())
    assert [line for block in blocks for line in block.lines] == LINES
    assert [(block.first_line, len(block.lines)) for block in blocks] == [(0, 3), (3, 3), (6, 1)]
    assert [block.part for block in blocks] == list(job.parts)
    assert job.num_lines == 7


def test_a_compressed_input_is_the_same_text(job: Job) -> None:
    other = job.source.with_name("in.gz")
    with gzip.open(other, "wb") as file:
        file.write(TEXT)
    compressed = Job.read(other, job.output, job.done)
    assert compressed.sha256 == job.sha256
    assert list(compressed.blocks()) == list(job.blocks())


def test_memory_does_not_grow_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"a line that stands there again and again, with some forty words more\n" * 100_000)
    monkeypatch.setattr(lines, "BLOCK_BYTES", 1 << 14)
    tracemalloc.start()
    try:
        num_blocks = sum(1 for _ in Job.read(path, tmp_path / "out", "translated").blocks())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert num_blocks == 98
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
        (
            "new",
            b"a\nb\nc\nd\ne \xff\n",
            "input: {tmp}/new: line 5, byte 3 of the line (0xff) is not UTF-8; in Windows-1252 that byte is "
            "'ÿ'; if so, convert the file: iconv -f cp1252 -t UTF-8",
        ),
        (
            "new",
            gzip.compress(b"a\n" * 9, mtime=0)[:-5],
            "input: {tmp}/new is a damaged file (Compressed file ended before the end-of-stream marker "
            "was reached); copy it again",
        ),
    ],
)
def test_inputs_that_cannot_be_read(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    (tmp_path / "in").touch()
    os.mkfifo(tmp_path / "pipe")
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        Job.read(tmp_path / name, tmp_path / "out", "translated")
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
def test_outputs_that_cannot_be_made(job: Job, tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "there").write_bytes(b"precious")
    with pytest.raises(UserError) as caught:
        Job.read(job.source, tmp_path / name, "translated")
    assert str(caught.value) == message.format(tmp=tmp_path)


def test_a_job_goes_on_from_its_parts(job: Job) -> None:
    with job.locked(FACTS):
        assert job.progress == "0 of 7 lines"
        save(job, 2)
        assert job.progress == "1 of 7 lines"
        save(job, 0)
    with job.locked(FACTS):
        assert job.progress == "4 of 7 lines"
        assert present(job) == [0, 2]
        save(job, 1)
    assert job.finish()
    assert job.output.read_bytes() == "A\n\nB\nC\nD\nÄ\nE\n".encode()
    assert sorted(path.name for path in job.output.parent.iterdir()) == ["in", "out"]


@pytest.mark.parametrize("suffix", [kind.suffix for kind in COMPRESSIONS])
def test_a_compressed_output_holds_the_same(job: Job, suffix: str) -> None:
    if suffix == ".zst" and not EXTRAS["zst"].is_there:
        pytest.skip("the extra `zst` is not installed")
    job.output = job.output.with_name(f"out{suffix}")
    with job.locked(FACTS):
        save(job, 0, 1, 2)
    assert job.finish()
    compressed = job.output.read_bytes()
    assert compression_of(compressed) is not None
    assert "".join(f"{line}\n" for line in read_lines(job.output, "output")) == "A\n\nB\nC\nD\nÄ\nE\n"


def test_an_output_that_cannot_be_compressed_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(name: str, what: str) -> None:
        raise UserError(f"{what} needs {name}")

    monkeypatch.setattr("nmt.extras.require", lacking)
    (tmp_path / "in").write_text("a\n")
    with pytest.raises(UserError, match=r"out\.zst is to be compressed by Zstandard, which needs zst"):
        require_files(tmp_path / "in", tmp_path / "out.zst")


@pytest.mark.parametrize("damage", [b"", b"0" * 64 + b"\nE", b"nonsense"])
def test_a_damaged_part_is_made_again(job: Job, damage: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    with job.locked(FACTS):
        save(job, 0, 1, 2)
    *_, part = job.parts
    part.write_bytes(damage)
    with job.locked(FACTS):
        assert present(job) == [0, 1]
        part.write_bytes(damage)  # and damaged while the others were made
    with pytest.raises(UserError, match=r"_00000002 is damaged; its lines .* again by the same command$"):
        job.finish()
    assert capsys.readouterr().err == f"warning: {part} is damaged; its lines are translated again\n"
    assert not job.output.exists()


def test_the_parts_of_another_job_are_refused_and_kept(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    with job.locked(FACTS):
        save(job, 0)
    with (
        pytest.raises(UserError) as caught,
        job.locked(FACTS | {"decoding.beam_size": 4, "decoding.length_penalty_alpha": 1.0}),
    ):
        pass
    assert str(caught.value) == (
        f"{job.folder} belongs to another job:\n"
        "  decoding.beam_size: 5 -> 4\n  decoding.length_penalty_alpha: unset -> 1.0\n"
        "repeat that one to finish it, remove the directory, or choose another output=..."
    )
    job.source.write_bytes(b"another\n")
    with (
        pytest.raises(UserError, match=r"input\.lines: 7 -> 1\n  input\.sha256: "),
        Job.read(job.source, job.output, job.done).locked(FACTS),
    ):
        pass
    assert present(job) == [0]
    job.source.write_bytes(TEXT)
    monkeypatch.setattr(file_parts, "LINES_AT_ONCE", 2)  # of another version
    with pytest.raises(UserError, match=r"\n  lines per part: 3 -> 2\n"), job.locked(FACTS):
        pass


def test_a_folder_of_the_user_is_left_alone(job: Job) -> None:
    job.folder.mkdir()
    (job.folder / "thesis.txt").write_text("precious")
    with pytest.raises(UserError) as caught, job.locked(FACTS):
        pass
    assert str(caught.value) == (
        f"{job.folder} is where parts of the output go, but it holds thesis.txt and no job.json; "
        "move it away, or choose another output=..."
    )
    assert (job.folder / "thesis.txt").read_text() == "precious"


@pytest.mark.fault(37)
def test_a_link_among_the_parts_is_refused(job: Job, tmp_path: Path) -> None:
    """Where many may write, such as /tmp, somebody else may have made the folder."""
    job.folder.mkdir()
    (tmp_path / "victim").write_text("precious")
    (job.folder / ".lock").symlink_to(tmp_path / "victim")
    with pytest.raises(UserError, match=r"out.parts/\.lock is a link that leads out of"), job.locked(FACTS):
        pass
    assert (tmp_path / "victim").read_text() == "precious"


def test_a_job_has_one_process(job: Job) -> None:
    with (
        job.locked(FACTS),
        pytest.raises(
            UserError, match=f"out.parts is in use by process {os.getpid()} on .*; wait for it, or"
        ),
        job.locked(FACTS),
    ):
        pass


def test_a_job_that_fails_at_once_leaves_nothing(job: Job) -> None:
    with pytest.raises(KeyError), job.locked(FACTS):
        raise KeyError
    assert [path.name for path in job.output.parent.iterdir()] == ["in"]


def test_an_input_that_changes_is_noticed(job: Job) -> None:
    with job.locked(FACTS):
        save(job, 0, 1, 2)
        job.source.write_bytes(TEXT[::-1])
        with pytest.raises(UserError, match="has changed while it was translated; start anew"):
            next(job.blocks())
    with pytest.raises(UserError, match="has changed while it was translated; start anew"):
        job.finish()


def test_an_output_that_appears_meanwhile_is_not_overwritten(job: Job) -> None:
    with job.locked(FACTS):
        save(job, 0, 1, 2)
        job.output.write_bytes(b"precious")
    with pytest.raises(UserError, match="out is there already and stays; remove it, or choose another"):
        job.finish()
    assert job.output.read_bytes() == b"precious"
    job.output.unlink()
    assert job.finish()


# Several processes


@pytest.fixture
def overtaken(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let another process do the whole job while this one is about to lock the folder."""

    def late(*lock: Any, **kind: Any) -> AbstractContextManager[None]:
        monkeypatch.setattr(file_parts, "locked", locked)
        with job.locked(FACTS):
            save(job, *job.missing)
        assert job.finish()
        return locked(*lock, **kind)

    monkeypatch.setattr(file_parts, "locked", late)


@pytest.mark.usefixtures("overtaken")
def test_a_job_that_another_process_ends_before_the_lock_is_not_done_again(job: Job) -> None:
    with pytest.raises(UserError, match="out is there already and stays"), job.locked(FACTS):
        pytest.fail("begun")
    assert sorted(path.name for path in job.output.parent.iterdir()) == ["in", "out"]


def test_parts_that_another_process_joins_before_the_lock_are_not_joined_again(
    job: Job, request: pytest.FixtureRequest
) -> None:
    with job.locked(FACTS):
        save(job, 0, 1, 2)
    request.getfixturevalue("overtaken")
    assert job.finish()
    assert job.output.read_bytes() == "A\n\nB\nC\nD\nÄ\nE\n".encode()
    assert sorted(path.name for path in job.output.parent.iterdir()) == ["in", "out"]


def shards(job: Job, of: int) -> list[Job]:
    """Return the same job in several processes, as it were."""
    return [Job.read(job.source, job.output, job.done, shard=Shard(n, of)) for n in range(1, of + 1)]


def save_own(job: Job) -> None:
    save(job, *job.own)


def test_shards_together_do_each_block_once_and_the_last_one_joins(job: Job) -> None:
    first, second = shards(job, 2)
    assert [list(one.own) for one in (first, second)] == [[0, 2], [1]]
    assert [[block.part for block in one.own_blocks()] for one in (first, second)] == [
        [path for number, path in enumerate(job.parts) if number in one.own] for one in (first, second)
    ]
    with first.locked(FACTS):
        with second.locked(FACTS):
            save_own(second)
            assert second.progress == "3 of 3 lines of shard 2/2"
            assert first.progress == "0 of 4 lines of shard 1/2"
            assert first.num_written == 3
        assert not second.finish()
        save_own(first)
    assert first.finish()
    assert job.output.read_bytes() == "A\n\nB\nC\nD\nÄ\nE\n".encode()
    assert sorted(path.name for path in job.output.parent.iterdir()) == ["in", "out"]
    with pytest.raises(UserError, match="out is there already and stays"), second.locked(FACTS):  # late
        pass
    assert second.finish()  # it ended with the other
    assert sorted(path.name for path in job.output.parent.iterdir()) == ["in", "out"]


def test_the_last_part_is_not_the_end_while_another_process_is_at_work(job: Job) -> None:
    """It may hold a part of another's shard as damaged, so whoever ends last joins."""
    first, second = shards(job, 2)
    with first.locked(FACTS):
        save_own(first)
        with second.locked(FACTS):
            save_own(second)
        assert not second.finish()
        assert not job.output.exists()
    assert first.finish()
    assert job.output.exists()


def test_a_job_without_a_shard_does_what_killed_shards_have_left(job: Job) -> None:
    first, _, third = shards(job, 3)
    for one in (first, third):
        with one.locked(FACTS):
            save_own(one)
        assert not one.finish()
    with job.locked(FACTS):
        assert job.progress == "4 of 7 lines"
        assert job.missing == [1]
        save(job, 1)
    assert job.finish()


def test_a_shard_has_one_process_and_none_beside_that_of_all(job: Job) -> None:
    first, second = shards(job, 2)
    with first.locked(FACTS):
        with (
            pytest.raises(
                UserError, match=r"\.shard_1_of_2 is in use by process .*, or give this process another"
            ),
            first.locked(FACTS),
        ):
            pass
        with pytest.raises(UserError, match=r"out\.parts is in use by another"), job.locked(FACTS):
            pass
    with (
        job.locked(FACTS),
        pytest.raises(UserError, match=r"out\.parts is in use by process "),
        second.locked(FACTS),
    ):
        pass


def test_a_shard_of_another_job_is_refused_and_the_folder_stays_for_those_at_work(job: Job) -> None:
    first, second = shards(job, 2)
    with first.locked(FACTS):
        with (
            pytest.raises(UserError, match=r"out\.parts belongs to another job:\n  checkpoint: abc -> def\n"),
            second.locked(FACTS | {"checkpoint": "def"}),
        ):
            pass
        with pytest.raises(KeyError), second.locked(FACTS):
            raise KeyError
        save_own(first)
    (*_, part) = first.parts
    part.write_bytes(b"damaged")
    with second.locked(FACTS):
        save_own(second)
    with pytest.raises(UserError, match=r"damaged; .* again by the same command without shard=\.\.\.$"):
        second.finish()


def test_one_of_the_processes_that_start_at_once_claims_the_folder(tmp_path: Path) -> None:
    barrier, claimed, refused = threading.Barrier(8), list[int](), list[str]()

    def claim(number: int) -> None:
        barrier.wait()
        try:
            file_parts._claim(tmp_path, {"checkpoint": number})
            claimed.append(number)
        except UserError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=claim, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = claimed
    assert sum(f"belongs to another job:\n  checkpoint: {winner} -> " in text for text in refused) == 7
    assert [path.name for path in tmp_path.iterdir()] == ["job.json"]
