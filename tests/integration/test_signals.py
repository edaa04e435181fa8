"""A signal in the phases of `nmt train` in which nothing is to be saved yet, or any more."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from nmt.cli import main
from nmt.runs import train

Command = Callable[..., "subprocess.CompletedProcess[str]"]


def signalled_run(arguments: Sequence[str], environment: dict[str, str], folder: Path, awaited: str) -> int:
    """Run `nmt` in a fork, send SIGTERM once `awaited` is in its train.log, and return the exit code."""

    def command() -> None:
        os.environ.update(environment)
        sys.stdout = sys.stderr = (folder / "output").open("w", buffering=1, encoding="utf-8")
        sys.exit(main(arguments))

    process = multiprocessing.get_context("fork").Process(target=command)
    process.start()
    log, deadline = folder / "run" / "train.log", time.monotonic() + 60
    while not (log.is_file() and awaited in log.read_text()) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.5)
    os.kill(process.pid or 0, signal.SIGTERM)
    start = time.monotonic()
    process.join(60)
    assert time.monotonic() - start < 20
    assert process.exitcode is not None
    return process.exitcode


@pytest.mark.fault(16)
def test_a_signal_while_the_tokenizer_is_trained(
    tiny: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    rng = random.Random(1)
    words = ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(2, 9))) for _ in range(20_000)]
    text = "".join(" ".join(rng.choices(words, k=12)) + "\n" for _ in range(30_000))
    for side in ("a", "b"):
        (tmp_path / f"train.{side}").write_text(text)
    unigram = ["tokenizer.kind=unigram", "tokenizer.vocab_size=4000", f"data.train={tmp_path}/train"]
    command = [sys.executable, "-m", "nmt", "train", f"run={tmp_path}/run", *tiny, *unigram]
    log = tmp_path / "run" / "train.log"
    with (tmp_path / "output").open("w", encoding="utf-8") as output:  # in forks it has crashed
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        deadline = time.monotonic() + 60
        while not (log.is_file() and "training a unigram" in log.read_text()) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 128 + signal.SIGTERM
    assert (tmp_path / "output").read_text().splitlines()[-1].startswith("stopped by SIGTERM")
    found = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (found["state"], found["step"], found["reason"]) == ("preempted", 0, "SIGTERM")
    assert not [path for path in (tmp_path / "run").rglob(".*") if path.name != ".lock"]


@pytest.mark.fault(16)
def test_a_signal_while_the_final_weights_are_scored(
    nmt: Command,
    tiny: list[str],
    environment: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = ["train", f"run={tmp_path}/run", *tiny, "trainer.max_steps=4", "decoding=greedy"]
    with monkeypatch.context() as patch:
        patch.setattr(train, "load_weights", lambda *_: time.sleep(60))
        code = signalled_run(command, environment, tmp_path, "scoring the final weights")
    assert code == 128 + signal.SIGTERM
    text = "stopped by SIGTERM; the same command takes it up again"
    assert (tmp_path / "output").read_text().splitlines()[-1] == text
    file = tmp_path / "run" / "status.json"
    assert json.loads(file.read_text())["state"] == "preempted"
    again = nmt(*command)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "run" / "results.json").exists()
    found = json.loads(file.read_text())
    assert (found["state"], found["step"]) == ("finished", 4)
