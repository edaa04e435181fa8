"""A signal ends a block at once or is noted; a second one, or the grace limit, ends the process."""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nmt import signals
from nmt.errors import Interrupted
from nmt.signals import AT_ONCE_SECONDS, SIGNALS, StopRequest, requeue_job, without_interrupt


def send(number: int) -> None:
    os.kill(os.getpid(), number)


def interrupted(body: Callable[[StopRequest], object], deferred: bool = True) -> Interrupted:
    """Return the error that ends `body`."""
    stop = StopRequest()
    block = stop.deferred() if deferred else contextlib.nullcontext()
    with pytest.raises(Interrupted) as caught, stop, block:
        body(stop)
    return caught.value


@pytest.mark.fault(16, 17, 18)
@pytest.mark.parametrize("number", SIGNALS)
def test_where_nothing_is_to_be_saved_a_signal_ends_the_block_at_once(number: signal.Signals) -> None:
    handler, descriptor = signal.getsignal(number), signal.set_wakeup_fd(-1)

    def body(stop: StopRequest) -> None:
        assert not stop.requested
        send(number)
        pytest.fail("the signal did not arrive")

    error = interrupted(body, deferred=False)
    assert str(error) == f"stopped by {number.name}; the same command takes it up again"
    assert error.exit_code == 128 + number
    assert signal.getsignal(number) is handler
    assert signal.set_wakeup_fd(descriptor) == -1


@pytest.mark.fault(16, 17, 18)
@pytest.mark.parametrize("number", SIGNALS)
def test_a_deferred_signal_is_granted_when_everything_is_saved(number: signal.Signals) -> None:
    texts = []

    def body(stop: StopRequest) -> None:
        send(number)
        assert stop.requested
        texts.append(str(stop.interruption(" after step 7")))

    assert interrupted(body).exit_code == 128 + number
    assert texts == [f"stopped by {number.name} after step 7; the same command goes on from there"]


def test_an_error_is_not_hidden_by_a_signal() -> None:
    def body(stop: StopRequest) -> None:
        send(signal.SIGTERM)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted(body)


def test_an_action_is_abandoned_by_a_signal_before_it_or_meanwhile() -> None:
    def action() -> int:
        send(signal.SIGTERM)
        pytest.fail("not abandoned")

    def body(stop: StopRequest) -> None:
        assert stop.unless_stopped(lambda: 1) == 1
        assert stop.unless_stopped(action) is None
        assert stop.unless_stopped(lambda: pytest.fail("begun")) is None
        send(signal.SIGTERM)  # deferred again

    interrupted(body)


def say_last_words() -> None:
    os.write(2, b"last words\n")


def ended(
    body: Callable[[], object], *moments: float, grace_seconds: float = 60.0, deferred: bool = True
) -> tuple[int | None, float]:
    """Run `body` in a fork that gets SIGTERM at some moments; return its exit code and seconds."""
    context = multiprocessing.get_context("fork")
    begun = context.Event()

    def run() -> None:
        with StopRequest(grace_seconds) as stop:
            stop.before_leaving = say_last_words
            with stop.deferred() if deferred else contextlib.nullcontext():
                begun.set()
                body()

    process = context.Process(target=run)
    process.start()
    assert begun.wait(60)
    start = time.monotonic()
    for moment in moments:
        time.sleep(max(0.0, start + moment - time.monotonic()))
        os.kill(process.pid or 0, signal.SIGTERM)
    process.join(60)
    seconds = time.monotonic() - start
    process.kill()
    return process.exitcode, seconds


def compute() -> None:
    """Stay in C for long, where no handler of Python runs, without Python's lock."""
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)


@pytest.mark.fault(16)
def test_the_grace_limit_ends_what_is_busy_in_c(capfd: pytest.CaptureFixture[str]) -> None:
    code, seconds = ended(compute, 0.0, grace_seconds=1.5)
    assert code == 128 + signal.SIGTERM
    assert 1.4 < seconds < 20
    assert (
        capfd.readouterr().err == "last words\nstopped by SIGTERM at once; what was saved before is intact\n"
    )


@pytest.mark.fault(16)
def test_what_can_be_abandoned_has_the_whole_time_to_save(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A single operation of a validation may take longer than an end at once."""
    monkeypatch.setattr(signals, "AT_ONCE_SECONDS", 0.1)

    def operation() -> None:
        with contextlib.suppress(Interrupted):
            time.sleep(100)
        time.sleep(1)

    def validate() -> None:
        signals._ACTIVE[0].unless_stopped(operation)
        (tmp_path / "saved").touch()

    ended(validate, 0.3)
    assert (tmp_path / "saved").exists()


@pytest.mark.fault(18)
@pytest.mark.parametrize("busy", [compute, lambda: time.sleep(100)])
def test_a_second_signal_ends_the_process_at_once(
    monkeypatch: pytest.MonkeyPatch, busy: Callable[[], object]
) -> None:
    monkeypatch.setattr(signals, "REPEATED_SECONDS", 0.1)
    code, seconds = ended(busy, 0.0, 0.4)
    assert code == 128 + signal.SIGTERM
    assert 0.3 < seconds < 20


@pytest.mark.fault(16)
def test_a_signal_that_arrives_twice_is_one_request(tmp_path: Path) -> None:
    """timeout(1) sends it to the process and to its group; what is deferred is saved."""

    def save() -> None:
        time.sleep(0.6)
        (tmp_path / "saved").touch()

    ended(save, 0.0, 0.05)
    assert (tmp_path / "saved").exists()


TOKENIZER = """
import random
from nmt import signals
from nmt.data.tokens.tokenizer_training import TokenizerConfig, train_model
rng = random.Random(1)
words = ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(2, 9))) for _ in range(20_000)]
lines = [" ".join(rng.choices(words, k=12)) for _ in range(160_000)]
signals.AT_ONCE_SECONDS = 0.5
with signals.StopRequest():
    print("begun", flush=True)
    train_model(TokenizerConfig(vocab_size=4000), lines, "this corpus")
"""


@pytest.mark.fault(16)
def test_the_training_of_a_tokenizer_ends_at_once() -> None:
    """Seconds of SentencePiece, where no handler of Python runs; in a process that has done nothing else."""
    process = subprocess.Popen(
        [sys.executable, "-c", TOKENIZER], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    start = time.monotonic()
    time.sleep(1.0)
    process.send_signal(signal.SIGTERM)
    _, shown = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert shown == "stopped by SIGTERM at once; what was saved before is intact\n"
    assert time.monotonic() - start < 20


@pytest.mark.fault(16)
def test_an_end_after_what_was_deferred_has_its_time_from_then_on() -> None:
    """A save may take longer than an end at once."""
    stop = StopRequest(grace_seconds=60.0)
    with stop.deferred():
        first = time.monotonic() - 30.0
        assert stop._end(first) == first + 60.0
    assert 0.0 < stop._end(first) - time.monotonic() <= AT_ONCE_SECONDS
    late = time.monotonic() - 58.0
    assert stop._end(late) == late + 60.0


def test_a_signal_of_another_kind_is_no_request() -> None:
    """The interpreter writes the numbers of all that have a handler, such as SIGALRM."""
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.send(bytes([signal.SIGALRM, signal.SIGTERM]))
        assert signals._next(reader, 10.0) == signal.SIGTERM
        assert signals._next(reader, 0.01) == 0


def test_ctrl_c_is_ignored_only_where_processes_start() -> None:
    with StopRequest():
        handler = signal.getsignal(signal.SIGINT)
        with without_interrupt():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGINT) == handler != signal.SIG_IGN


def test_a_signal_to_a_fork_is_its_own() -> None:
    with StopRequest() as stop, stop.deferred():
        process = multiprocessing.get_context("fork").Process(target=time.sleep, args=[100])
        process.start()
        process.terminate()
        process.join(30)
        time.sleep(0.3)
        assert not stop.requested
    assert process.exitcode == -signal.SIGTERM


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file with a line for each call of a `scontrol` that does what it is told."""
    calls, command = tmp_path / "calls", tmp_path / "bin" / "scontrol"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\necho "$@" >> "{calls}"\nif [ "$2" = 66 ]; then echo no >&2; exit 1; fi\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")
    return calls


@pytest.mark.fault(17)
def test_a_job_is_queued_again(scontrol: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    requeue_job()
    assert scontrol.read_text() == "requeue 17\n"


@pytest.mark.fault(17)
@pytest.mark.parametrize("job", ["", "17; rm", "--help", "x", "\u0661"])
def test_only_the_number_of_a_job_is_handed_to_slurm(
    scontrol: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], job: str
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", job)
    requeue_job()
    assert not scontrol.exists()
    assert f"this is no job of Slurm, as SLURM_JOB_ID is {job!r}" in capsys.readouterr().err


@pytest.mark.fault(17)
def test_a_job_that_cannot_be_queued_is_a_warning(
    scontrol: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "66")
    requeue_job()
    assert capsys.readouterr().err == "warning: scontrol requeue 66 failed: no\n"
    monkeypatch.setenv("PATH", "")
    requeue_job()
    assert "warning: scontrol requeue 66 failed: " in capsys.readouterr().err
