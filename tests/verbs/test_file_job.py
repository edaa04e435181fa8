"""Several workers give what one stream gives, whatever ends them in between; parts, and what is refused."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from rich.console import Console

from nmt.cli import main
from nmt.config.roots import TranslateConfig
from nmt.data.reading.lines import decoded
from nmt.decoding.configs import BeamConfig, LineSplitting
from nmt.errors import Log, NmtError, TrainingStopped, UserError
from nmt.runs.directory import RunDirectory
from nmt.runs.opening import open_run
from nmt.runtime_config import RuntimeConfig
from nmt.training.checkpoint import Checkpoint
from nmt.training.train_state import TrainState
from nmt.translation.translate import LINES_AT_ONCE
from nmt.verbs import file_parts
from nmt.verbs.file_job import (
    Answers,
    LineCounter,
    LineWork,
    _answer_block,
    _begin,
    _workers,
    answer,
    answer_file,
    worker_settings,
)
from nmt.verbs.file_parts import Block, Job, read_part
from nmt.verbs.translate import TRANSLATION, output_lines
from tests.runs.untrained import untrained

CPU = RuntimeConfig(device="cpu", threads=1)
SEARCH = BeamConfig(beam_size=2, max_length_offset=3, max_length_ratio=1.0)
NUM_BLOCKS = 12
"""Of a file that takes long enough to be interrupted."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run directory whose model has learnt nothing, but always answers the same."""
    return untrained(tmp_path_factory.mktemp("runs") / "untrained", "decoding.beam_size=2")


def config(run: Path, folder: Path, **fields: Any) -> TranslateConfig:
    files = {"input": str(folder / "in"), "output": str(folder / "out")}
    values: dict[str, Any] = {"runtime": CPU, "decoding": SEARCH, **files}
    return TranslateConfig(run=str(run), **(values | fields))


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers be forks of this process, which do not take seconds to import torch."""
    fork = multiprocessing.get_context("fork")
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: fork)


def streamed(run: Path, text: bytes, search: BeamConfig = SEARCH, chunk: int = LINES_AT_ONCE) -> bytes:
    """Return standard output for `text` on standard input."""
    opened = open_run(run, runtime_cfg=CPU)
    with mock.patch("nmt.runs.opened.LINES_AT_ONCE", chunk):
        found = list(opened.translate(decoded(io.BytesIO(text)), search))
    lines = [line for i, one in enumerate(found) for line in output_lines(i, one, search.n_best)]
    return "".join(f"{line}\n" for line in lines).encode()


def test_two_workers_give_what_a_stream_gives(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of n-best lists, blank lines, both line ends, a line that is cut, and a last line without an end."""
    text = b"ab ba\n\nca\r\n   \nabc d\n" * 3 + b"a b c d e f g h\nhg"
    (tmp_path / "in").write_bytes(text)
    search = BeamConfig(beam_size=3, n_best=2, max_source_tokens=8, max_length_offset=3, max_length_ratio=1.0)
    search.split_lines = LineSplitting.none
    expected = streamed(run, text, search, chunk=4)
    capsys.readouterr()
    monkeypatch.setattr(file_parts, "LINES_AT_ONCE", 4)
    answer(config(run, tmp_path, workers=2, decoding=search), TRANSLATION)
    shown = capsys.readouterr()
    assert (tmp_path / "out").read_bytes() == expected
    assert b"16 ||| " in expected
    assert shown.out == f"written     {tmp_path}/out\n"
    assert "workers: 2 on cpu, threads of each: 1\n" in shown.err
    assert (
        "warning: only the first 8 tokens of line 16 are translated, because decoding.max_source_tokens=8\n"
        in shown.err
    )
    assert "17 of 17 lines  " in shown.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


@pytest.mark.fault(29)
def test_a_thousand_lines_come_out_as_a_thousand(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In their order, ten of them empty, one far too long, one with line breaks of other systems."""
    lines = [f"{'abcdefgh'[i % 8]}b ca {'h' * (i % 5)}" for i in range(1000)]
    alone = {i: streamed(run, f"{lines[i]}\n".encode()) for i in (3, 501, 999)}
    for i in range(0, 1000, 100):
        lines[i] = "" if i % 200 else "  "
    lines[77], lines[78] = "ab " * 500_000, "ab\u2028ba\rca\x85"
    found = streamed(run, "".join(f"{line}\n" for line in lines).encode()).split(b"\n")
    assert len(found) == 1001
    assert [i for i, line in enumerate(found) if not line] == [*range(0, 1000, 100), 1000]
    assert {i: found[i] + b"\n" for i in alone} == alone
    assert "only the first 1024 tokens of line 78 are translated" in capsys.readouterr().err


def test_only_settings_to_blame_are_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without input= both would be wrong, so it is not to blame, and workers= is right beside it."""
    command = ["translate", f"run={run}", "input=a", "output=b", "workers=2", "lines_at_once=256"]
    assert main(command) == 2
    assert capsys.readouterr().err == "error: lines_at_once=256 is for standard input; leave it out\n"


@pytest.mark.parametrize(("is_terminal", "lines_at_once"), [(True, None), (False, 1)])
def test_lines_are_answered_as_they_come(
    run: Path, monkeypatch: pytest.MonkeyPatch, is_terminal: bool, lines_at_once: int | None
) -> None:
    written = io.BytesIO()

    class Typed(io.BytesIO):
        def readline(self, size: int | None = -1) -> bytes:
            line = super().readline(size)
            num_before = self.getvalue()[: self.tell() - len(line)].count(b"\n")
            assert written.getvalue().count(b"\n") == num_before
            return line

    stdin = io.TextIOWrapper(Typed(b"a b\nc\nd e f\n"))
    monkeypatch.setattr(stdin, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stdin", stdin)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written))
    cpu = RuntimeConfig(device="cpu")
    cfg = TranslateConfig(run=str(run), decoding=SEARCH, runtime=cpu, lines_at_once=lines_at_once)
    answer(cfg, TRANSLATION)
    assert written.getvalue() == streamed(run, b"a b\nc\nd e f\n")


@pytest.mark.usefixtures("forks")
def test_shards_of_an_array_give_what_a_stream_gives(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Three tasks of Slurm, the third of which has no line; and nothing is done twice."""
    text = b"ab ba\n\nca\nabc d\nhg\na\n"
    (tmp_path / "in").write_bytes(text)
    expected = streamed(run, text, chunk=4)
    capfd.readouterr()
    monkeypatch.setattr(file_parts, "LINES_AT_ONCE", 4)
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "3")
    shard = "shard=${oc.env:SLURM_ARRAY_TASK_ID}/${oc.env:SLURM_ARRAY_TASK_COUNT}"
    search = ["decoding.max_length_offset=3", "decoding.max_length_ratio=1.0", "runtime.device=cpu"]
    files = [f"input={tmp_path}/in", f"output={tmp_path}/out"]
    for task in ("2", "2", "1", "3"):
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", task)
        assert main(["translate", f"run={run}", *files, *search, "workers=1", shard]) == 0
    shown = capfd.readouterr()
    end = (
        "lines are translated; the last shard to end, or the same command without shard=..., "
        f"writes {tmp_path}/out"
    )
    assert shown.out.splitlines() == [
        *[f"parts       {tmp_path}/out.parts: 2 of all 6 {end}"] * 2,
        f"written     {tmp_path}/out",
        f"nothing     {tmp_path}/in has 6 lines, too few for shard 3/3",
    ]
    assert "2 of 2 lines of shard 2/3  " in shown.err
    assert "going on: 2 of 2 lines of shard 2/3 are translated\n" in shown.err
    assert "4 of 4 lines of shard 1/3  " in shown.err
    assert (tmp_path / "out").read_bytes() == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


def test_processes_of_others_go_on_when_a_job_ends(run: Path, tmp_path: Path) -> None:
    other = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    other.start()
    try:
        with _workers([config(run, tmp_path)], TRANSLATION, []):
            pass
        other.join(0.2)
        assert other.is_alive()
    finally:
        other.kill()
        other.join()


def test_nothing_to_translate(run: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"")
    answer_file(config(run, tmp_path), TRANSLATION)
    assert (tmp_path / "out").read_bytes() == b""


def begin(run: Path, folder: Path) -> subprocess.Popen[str]:
    """Start a process that translates, in a group of its own like that of a terminal."""
    files = [f"input={folder}/in", f"output={folder}/out"]
    return subprocess.Popen(
        [sys.executable, "-m", "nmt", "translate", f"run={run}", *files, "workers=1", "runtime.device=cpu"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("out.parts/block_*"))


def await_parts(process: subprocess.Popen[str], folder: Path, more_than: int) -> None:
    while len(parts(folder)) <= more_than:
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)


@pytest.mark.slow
@pytest.mark.fault(5, 18, 23)
def test_an_interrupted_job_goes_on_and_ends_with_the_same_bytes(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C, then a kill -9, then a damaged part."""
    text = b"".join(b"abcdefgh"[: 1 + i % 8] + b"\n" for i in range(LINES_AT_ONCE))
    (tmp_path / "in").write_bytes(text * NUM_BLOCKS)

    process = begin(run, tmp_path)
    await_parts(process, tmp_path, more_than=0)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    lines = f"{LINES_AT_ONCE * len(parts(tmp_path)):,} of {NUM_BLOCKS * LINES_AT_ONCE:,} lines"
    message = f"stopped by SIGINT; {lines} are translated; the same command goes on from there\n"
    assert message in errors
    assert "Traceback" not in errors
    kept = {part: part.stat().st_mtime_ns for part in parts(tmp_path)}
    assert len(kept) < NUM_BLOCKS

    process = begin(run, tmp_path)
    await_parts(process, tmp_path, more_than=len(kept))
    process.kill()
    assert process.wait() == -signal.SIGKILL
    process.communicate(timeout=60)  # the worker has its stderr, so this waits until that has ended, too
    assert not (tmp_path / "out").exists()
    assert {part: part.stat().st_mtime_ns for part in kept} == kept
    assert len(parts(tmp_path)) < NUM_BLOCKS

    damaged = parts(tmp_path)[0]
    damaged.write_bytes(damaged.read_bytes()[:-2])
    answer_file(config(run, tmp_path, workers=1), TRANSLATION)
    shown = capsys.readouterr()
    assert f"warning: {damaged} is damaged; its lines are translated again\ngoing on: " in shown.err
    assert (tmp_path / "out").read_bytes() == streamed(run, text) * NUM_BLOCKS
    with pytest.raises(UserError, match="out is there already and stays; remove it, or choose another"):
        answer_file(config(run, tmp_path, workers=1), TRANSLATION)


@pytest.mark.usefixtures("forks")
@pytest.mark.fault(5, 23)
def test_a_job_whose_worker_was_killed_goes_on_with_two(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    text = b"".join(b"abcdefgh"[: 1 + i % 8] + b" a\n" for i in range(15))
    (tmp_path / "in").write_bytes(text)
    monkeypatch.setattr(file_parts, "LINES_AT_ONCE", 4)

    def open_answers(cfg: TranslateConfig) -> Answers:
        answers = TRANSLATION.open_answers(cfg)

        def until_killed(lines: list[str], first_line: int, log: Log) -> Iterable[str]:
            if first_line == 8:
                os.kill(os.getpid(), signal.SIGKILL)
            return answers(lines, first_line, log)

        return until_killed

    with pytest.raises(TrainingStopped, match="a worker was ended by SIGKILL"):
        answer_file(config(run, tmp_path, workers=1), TRANSLATION._replace(open_answers=open_answers))
    kept = {part: part.stat().st_mtime_ns for part in parts(tmp_path)}
    assert len(kept) == 2
    job = Job.finish

    def finish(self: Job) -> bool:
        assert {part: part.stat().st_mtime_ns for part in kept} == kept
        return job(self)

    monkeypatch.setattr(Job, "finish", finish)
    answer_file(config(run, tmp_path, workers=2), TRANSLATION)
    assert "workers: 2 on cpu, " in capfd.readouterr().err
    assert (tmp_path / "out").read_bytes() == streamed(run, text, chunk=4)


@pytest.mark.fault(23)
def test_a_worker_that_is_killed_ends_the_job(run: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"a\n")
    others = {*multiprocessing.active_children()}

    def kill_the_first() -> None:
        while not (workers := {*multiprocessing.active_children()} - others):
            time.sleep(0.01)
        time.sleep(0.5)  # it is still importing then
        (worker,) = workers
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_the_first)
    killer.start()
    with pytest.raises(TrainingStopped) as caught:
        answer_file(config(run, tmp_path), TRANSLATION)
    killer.join()
    assert str(caught.value) == (
        "a worker was ended by SIGKILL, perhaps for lack of memory; what is translated is kept, and the same "
        "command goes on; fewer workers=... or a lower decoding.batch_tokens=... needs less memory"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.fault(24)
@pytest.mark.usefixtures("forks")
def test_a_worker_that_is_stuck_ends_the_job_and_shows_where_it_was(
    run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A search of thousands of beams, which takes longer than the worker may take."""
    endless = BeamConfig(beam_size=20_000, max_length_offset=1000)
    (tmp_path / "in").write_bytes(b"a b\n")
    with pytest.raises(NmtError) as caught:
        answer_file(config(run, tmp_path, worker_minutes=0.05, decoding=endless), TRANSLATION)
    assert caught.value.exit_code == 1
    assert str(caught.value) == (
        "a worker failed with exit code 1, for the reason above; what is translated is kept, and the same "
        "command goes on"
    )
    shown = capfd.readouterr().err
    assert "Timeout (0:00:03)!" in shown
    assert "in _answer_block" in shown
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_worker_that_has_nothing_more_to_do_waits_for_the_others(run: Path, tmp_path: Path) -> None:
    """The limit is one of each block."""
    context = multiprocessing.get_context("fork")
    work = LineWork("translated", lambda cfg: lambda lines, first_line, log: lines, lambda cfg: {})

    def quick_and_idle() -> None:
        _begin([config(run, tmp_path, worker_minutes=0.01)], work, context.Value("i", 0))
        _answer_block(Block(tmp_path / "part", 0, ["a"]))
        time.sleep(0.9)

    worker = context.Process(target=quick_and_idle)
    worker.start()
    worker.join()
    assert worker.exitcode == 0
    assert read_part(tmp_path / "part") == b"a\n"


def copied(run: Path, folder: Path) -> RunDirectory:
    other = folder / "run"
    other.mkdir()
    for file in run.glob("*.*"):
        (other / file.name).write_bytes(file.read_bytes())
    return RunDirectory(other)


@pytest.mark.usefixtures("forks")
def test_an_error_of_a_worker_is_shown_as_it_is(run: Path, tmp_path: Path) -> None:
    other = copied(run, tmp_path)
    other.checkpoints.save(Checkpoint(7, {"weight": torch.ones(1)}, {}, {"progress": asdict(TrainState())}))
    weights = other.checkpoints.folder(7) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    (tmp_path / "in").write_bytes(b"a\n")
    with pytest.raises(UserError, match=r"step_00000007 is damaged: model\.safetensors has"):
        answer_file(config(other.path, tmp_path, checkpoint="7"), TRANSLATION)


@pytest.mark.usefixtures("forks")
def test_an_error_in_a_worker_ends_the_job(run: Path, tmp_path: Path) -> None:
    other = copied(run, tmp_path)
    other.checkpoints.save(Checkpoint(7, {"weight": torch.ones(1)}, {}, {"progress": asdict(TrainState())}))
    (tmp_path / "in").write_bytes(b"a\n")
    with pytest.raises(UserError, match="do not fit the config: 44 of 44 tensors differ: "):
        answer_file(config(other.path, tmp_path, checkpoint="7"), TRANSLATION)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"output": None}, "input=a needs output=..., too; without both, standard input is read"),
        ({"input": None}, "output=b needs input=..., too; without both, standard input is read"),
        (
            {"input": None, "output": None, "workers": 2},
            "workers=2 needs input=... and output=...; a stream has one worker",
        ),
        ({"workers": -1}, "workers must not be negative, but is -1"),
        ({"shard": "3"}, "shard must be I/N, such as 3/16 for the third of 16, but is '3'"),
        ({"shard": "5/4"}, "shard=5/4: the first of N shards is 1/N, and the last one N/N"),
        (
            {"shard": "0/4"},
            "shard=0/4: the first of N shards is 1/N, and the last one N/N; for an array of Slurm: "
            "--array=1-N",
        ),
        (
            {"input": None, "output": None, "shard": "2/4"},
            "shard=2/4 needs input=... and output=...; a stream has one process",
        ),
        ({"input": " "}, "input must name a file, but is empty"),
        ({"output": ""}, "output must name a file, but is empty"),
    ],
)
def test_keys_that_do_not_fit(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        TranslateConfig(**({"run": "r", "input": "a", "output": "b"} | fields))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("workers", "threads", "of_torch", "num_blocks", "expected"),
    [
        (0, 0, 6, 100, [1] * 6),
        (0, 3, 6, 100, [3, 3]),
        (0, 8, 6, 100, [8]),
        (0, 0, 6, 2, [3, 3]),
        (4, 0, 6, 100, [1] * 4),
        (2, 1, 6, 100, [1, 1]),
        (0, 0, 6, 0, []),
        (0, 0, 1, 100, [1] * 6),  # OMP_NUM_THREADS=1
        (2, 0, 1, 100, [1, 1]),
        (0, 3, 1, 100, [3, 3]),
    ],
)
def test_each_worker_has_its_share_of_the_cores(
    workers: int,
    threads: int,
    of_torch: int,
    num_blocks: int,
    expected: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {*range(6)})
    monkeypatch.setattr(torch, "get_num_threads", lambda: of_torch)
    cfg = TranslateConfig("r", runtime=RuntimeConfig("cpu", threads=threads), input="a", output="b")
    cfg.workers = workers
    assert [one.runtime.threads for one in worker_settings(cfg, num_blocks)] == expected


@pytest.mark.parametrize(
    ("device", "workers", "expected"),
    [
        ("cuda", 0, ["cuda:0", "cuda:1"]),
        ("cuda", 3, ["cuda:0", "cuda:1", "cuda:0"]),
        ("cuda:1", 0, ["cuda:1"]),
        ("cuda:1", 2, ["cuda:1"] * 2),
    ],
)
def test_workers_are_spread_over_the_gpus(
    device: str, workers: int, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    cfg = TranslateConfig("r", runtime=RuntimeConfig(device), input="a", output="b", workers=workers)
    assert [one.runtime.device for one in worker_settings(cfg, 100)] == expected


def test_a_line_of_progress_now_and_then() -> None:
    out = io.StringIO()
    now = [0.0]
    counter = LineCounter(10_000, 4_000, console=Console(file=out, width=20), clock=lambda: now[0])
    with counter:
        for seconds in (10.0, 31.0, 60.0):
            now[0] = seconds
            counter.add(1_000, ["careful"] if seconds == 10.0 else [])
    assert out.getvalue().splitlines() == [
        "warning: careful",
        "6,000 of 10,000 lines  64.5 lines/s  1:02 left",
        "7,000 of 10,000 lines  50.0 lines/s  1:00 left",
    ]


def test_a_bar_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    out = io.StringIO()
    now = [0.0]
    console = Console(file=out, force_terminal=True, width=100, _environ={})
    with LineCounter(2_000, 0, console=console, clock=lambda: now[0]) as counter:
        assert "0 of 2,000 lines" in out.getvalue()
        now[0] = 10.0
        counter.add(1_000, [])
        counter.refresh()
        assert "1,000 of 2,000 lines  100.0 lines/s  0:10 left" in out.getvalue()
