"""An interrupted run ends with the very bits of an uninterrupted one."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nmt.config.stored import load_config
from nmt.runs.checkpoint_names import identify_checkpoint

Command = Callable[..., "subprocess.CompletedProcess[str]"]

STEPS = 60
OPTIONS = [
    f"trainer.max_steps={STEPS}",
    "trainer.eval_every_steps=20",
    "trainer.save_every_steps=10",
    "trainer.log_every_steps=4",
    "trainer.keep_last=4",
    "trainer.average=3",
    "trainer.accumulate=2",
    "model.dropout=0.3",
    "model.attention_dropout=0.1",
]


@pytest.fixture(scope="module")
def uninterrupted(nmt: Command, tiny: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("straight") / "run"
    done = nmt("train", f"run={run}", *tiny, *OPTIONS)
    assert done.returncode == 0, done.stderr
    return run


def outcome(run: Path, steps: int = STEPS) -> dict[str, object]:
    """Everything that must not depend on interruptions."""
    last = run / "checkpoints" / f"step_{steps:08d}"
    progress = json.loads((last / "state.json").read_text())["progress"]
    timeless = {key: value for key, value in progress.items() if "seconds" not in key and key != "window"}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    metrics = [{k: v for k, v in line.items() if "second" not in k} for line in lines]
    tensors = [(last / name).read_bytes() for name in ("model.safetensors", "optimizer.safetensors")]
    results = json.loads((run / "results.json").read_text())
    scores = {key: value for key, value in results.items() if "second" not in key}
    assert "compared" in scores  # the average of the last checkpoints was made, too
    return {"tensors": tensors, "progress": timeless, "metrics": metrics, "scores": scores}


def interrupt(
    command: list[str], environment: dict[str, str], awaited: Path | Callable[[], bool], number: int
) -> int:
    """Start `command`, send the signal once `awaited` exists or holds, and return the exit code."""
    is_time = awaited.exists if isinstance(awaited, Path) else awaited
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not is_time() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(number)
    return process.wait(timeout=60)


def killed_and_resumed(
    nmt: Command, options: list[str], environment: dict[str, str], run: Path, step: int
) -> Path:
    """Kill a training when the checkpoint of `step` is there, run the same command again and return `run`."""
    command = [sys.executable, "-m", "nmt", "train", f"run={run}", *options]
    awaited = run / "checkpoints" / f"step_{step:08d}"
    assert interrupt(command, environment, awaited, signal.SIGKILL) == -signal.SIGKILL
    again = nmt("train", f"run={run}", *options)
    assert "going on after step" in again.stderr, again.stderr
    return run


@pytest.mark.fault(1, 8, 16, 18)
@pytest.mark.parametrize(
    ("number", "awaited", "code"),
    [
        (signal.SIGKILL, 20, -signal.SIGKILL),
        # A prolonged run that is stopped by SIGTERM, below, goes the same way.
        pytest.param(signal.SIGTERM, 30, 128 + signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, 10, 128 + signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_interrupted_equals_uninterrupted(
    uninterrupted: Path,
    nmt: Command,
    tiny: list[str],
    environment: dict[str, str],
    tmp_path: Path,
    number: int,
    awaited: int,
    code: int,
) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "nmt", "train", f"run={run}", *tiny, *OPTIONS]
    ended = interrupt(command, environment, run / "checkpoints" / f"step_{awaited:08d}", number)
    assert ended == code
    assert not (run / "results.json").exists()
    again = nmt("train", f"run={run}", *tiny, *OPTIONS)
    assert again.returncode == 0, again.stderr
    assert "going on after step" in again.stderr
    assert outcome(run) == outcome(uninterrupted)


@pytest.mark.fault(6, 25)
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_sampled_segmentations_are_drawn_again_after_a_kill(
    nmt: Command, tiny: list[str], environment: dict[str, str], tmp_path: Path, kind: str
) -> None:
    """With accumulation, dropout, label smoothing and an average that teaches; killed in its second epoch."""
    sampled = [f"tokenizer.kind={kind}", "tokenizer.vocab_size=25", "tokenizer.sampling_alpha=0.1"]
    steps = ["trainer.max_steps=12", "trainer.eval_every_steps=6", "trainer.save_every_steps=3"]
    small = ["data.max_chars=8", "data.max_tokens=32", "trainer.batch_tokens=200", "decoding=greedy"]
    update = ["trainer.accumulate=4", "objective.label_smoothing=0.1"]
    average = ["trainer.ema_decay=0.9", "objective=r_drop", "objective.teacher=ema"]
    options = [*tiny, *OPTIONS, *sampled, *steps, *small, *update, *average]
    straight = nmt("train", f"run={tmp_path / 'straight'}", *options)
    assert straight.returncode == 0, straight.stderr
    tokens = [line.split(", ")[-1] for line in straight.stderr.splitlines() if "segmented for epoch" in line]
    assert len(tokens) == len(set(tokens)) > 1
    run = killed_and_resumed(nmt, options, environment, tmp_path / "run", 9)
    assert outcome(run, 12) == outcome(tmp_path / "straight", 12)


AUTO = ["data.max_tokens=32", "decoding=greedy", "trainer.batch_tokens=auto"]


@pytest.mark.slow
def test_a_number_of_tokens_that_is_found_gives_the_bits_of_one_that_is_given(
    nmt: Command, tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmt.training.gradients.TIMED_SECONDS", 0)
    steps = ["trainer.max_steps=4", "trainer.eval_every_steps=4", "trainer.save_every_steps=2"]
    options = [*tiny, *OPTIONS, *steps, *AUTO]
    searched = nmt("train", f"run={tmp_path / 'found'}", *options)
    assert searched.returncode == 0, searched.stderr
    found = load_config(tmp_path / "found" / "config.yaml").trainer.auto_batch_tokens
    assert found is not None
    assert f"trainer.batch_tokens=auto is {found:,} tokens: " in searched.stderr
    monkeypatch.setattr("nmt.training.trainer.search", lambda *_, **__: pytest.fail("it is searched again"))
    given = nmt("train", f"run={tmp_path / 'given'}", *options, f"trainer.auto_batch_tokens={found}")
    assert given.returncode == 0, given.stderr
    assert outcome(tmp_path / "found", 4) == outcome(tmp_path / "given", 4)
    again = nmt("train", f"run={tmp_path / 'found'}", *options)
    assert (again.returncode, "is finished" in again.stdout) == (0, True)
    assert nmt("evaluate", f"run={tmp_path / 'found'}").returncode == 0


@pytest.mark.fault(1, 22)
@pytest.mark.slow
@pytest.mark.parametrize("awaited", [0, 3])
def test_a_run_keeps_the_number_of_tokens_that_it_has_found(
    nmt: Command,
    tiny: list[str],
    environment: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    awaited: int,
) -> None:
    """Killed before its first checkpoint, or after it; then the machine has changed."""
    steps = ["trainer.max_steps=8", "trainer.eval_every_steps=8", "trainer.save_every_steps=3"]
    options = [*tiny, *OPTIONS, *steps, *AUTO]
    run = tmp_path / "run"
    command = [sys.executable, "-m", "nmt", "train", f"run={run}", *options]

    def number() -> int | None:
        file = run / "config.yaml"
        return load_config(file).trainer.auto_batch_tokens if file.exists() else None

    ended = interrupt(
        command,
        environment,
        (run / "checkpoints" / f"step_{awaited:08d}").exists if awaited else lambda: number() is not None,
        signal.SIGKILL,
    )
    found = number()
    assert (ended, found is not None) == (-signal.SIGKILL, True)
    assert bool(awaited) == (run / "checkpoints").exists()
    monkeypatch.setattr("nmt.training.trainer.search", lambda *_, **__: pytest.fail("it is searched again"))
    again = nmt("train", f"run={run}", *options)
    assert again.returncode == 0, again.stderr
    straight = nmt("train", f"run={tmp_path / 'straight'}", *options, f"trainer.auto_batch_tokens={found}")
    assert straight.returncode == 0, straight.stderr
    assert outcome(run, 8) == outcome(tmp_path / "straight", 8)
    assert number() == found


@pytest.mark.slow
def test_a_stream_goes_on_where_it_stopped(
    nmt: Command, tiny: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    streaming = [*tiny, *OPTIONS, "data.streaming=true", "data.buffer_pairs=150"]
    straight = nmt("train", f"run={tmp_path / 'straight'}", *streaming)
    assert straight.returncode == 0, straight.stderr
    assert "training data: a stream, shuffled 150 pairs at a time" in straight.stderr
    first, second = (
        next(line for line in straight.stderr.splitlines() if f"buffer {number}: 150 pairs read" in line)
        for number in (1, 2)
    )
    assert "for it, 2,000 pairs read" in first
    assert "for it" not in second  # what is left of a chunk is not read again
    run = killed_and_resumed(nmt, streaming, environment, tmp_path / "run", 30)
    assert outcome(run) == outcome(tmp_path / "straight")


def test_a_stream_that_has_changed_is_refused(nmt: Command, tiny: list[str], tmp_path: Path) -> None:
    text = {}
    for side in ("a", "b"):
        source = next(value.partition("=")[2] for value in tiny if value.startswith("data.train="))
        text[side] = Path(f"{source}.{side}").read_text()
        (tmp_path / f"train.{side}").write_text(text[side])
    streaming = [*tiny, f"data.train={tmp_path / 'train'}", "data.streaming=true", "data.buffer_pairs=1500"]
    steps = ["trainer.eval_every_steps=3", "trainer.save_every_steps=3", f"run={tmp_path / 'run'}"]
    first = nmt("train", *streaming, *steps, "trainer.max_steps=3")
    assert first.returncode == 0, first.stderr
    for side, lines in text.items():
        (tmp_path / f"train.{side}").write_text("".join(reversed(lines.splitlines(keepends=True))))
    again = nmt("train", *streaming, *steps, "trainer.max_steps=6")
    assert again.returncode == 2
    assert "error: the training data has changed since step 3" in again.stderr


@pytest.mark.slow
@pytest.mark.fault(9)
def test_a_damaged_newest_checkpoint_is_replaced_by_the_one_before(
    uninterrupted: Path, nmt: Command, tiny: list[str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    done = nmt("train", f"run={run}", *tiny, *OPTIONS[1:], "trainer.max_steps=40")
    assert done.returncode == 0, done.stderr
    weights = run / "checkpoints" / "step_00000040" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    again = nmt("train", f"run={run}", *tiny, *OPTIONS)
    assert again.returncode == 0, again.stderr
    assert "step_00000040" in again.stderr
    assert "going on after step 30" in again.stderr
    assert outcome(run)["tensors"] == outcome(uninterrupted)["tensors"]


def test_an_average_that_validates_worse_is_not_what_is_scored(
    uninterrupted: Path, nmt: Command, tiny: list[str]
) -> None:
    results = json.loads((uninterrupted / "results.json").read_text())
    compared = results["compared"]
    assert compared["average"] < compared["best"] == results["validation"]["bleu"]
    assert not (uninterrupted / "checkpoints" / "average").exists()
    assert identify_checkpoint(uninterrupted)[0] == str(results["step"]) == str(STEPS)
    shown = nmt("train", f"run={uninterrupted}", *tiny, *OPTIONS).stdout
    assert f"weights     step {STEPS}, the best; validation bleu " in shown
    assert f"{compared['average']:.2f} of the average, {compared['best']:.2f} of the best\n" in shown


@pytest.mark.slow
def test_a_prolonged_run_goes_on_after_an_interruption(
    nmt: Command, tiny: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert nmt("train", f"run={run}", *tiny, *OPTIONS[1:], "trainer.max_steps=20").returncode == 0
    command = [sys.executable, "-m", "nmt", "train", f"run={run}", *tiny, *OPTIONS]
    ended = interrupt(command, environment, run / "checkpoints" / "step_00000040", signal.SIGTERM)
    assert ended == 128 + signal.SIGTERM
    assert not (run / "results.json").exists()
    scored = nmt("evaluate", f"run={run}", "data.scored_split=test")
    assert f"the training of {run} is at step 4" in scored.stderr
    again = nmt("train", f"run={run}", *tiny, *OPTIONS)
    assert again.returncode == 0, again.stderr
    assert "evaluations of earlier weights are removed: test\n" in again.stderr
    assert not (run / "evaluations" / "test.json").exists()
    assert json.loads((run / "results.json").read_text())["step"] == STEPS
    assert "is at step" not in nmt("evaluate", f"run={run}").stderr


def test_the_directory_alone_goes_on(nmt: Command, tiny: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert nmt("train", f"run={run}", *tiny, "seed=7", "trainer.max_steps=4").returncode == 0
    again = nmt("train", f"run={run}")
    assert f"{run} is finished:" in again.stdout, again.stderr
    longer = nmt("train", f"run={run}", "trainer.max_steps=6")
    assert f"going on after step 4 of {run}" in longer.stderr
    assert f"with the config of {run}: data=files data." in longer.stderr
    assert load_config(run / "config.yaml").seed == 7
    assert json.loads((run / "results.json").read_text())["step"] <= 6
    other = nmt("train", f"run={run}", "model.dropout=0.3").stderr.splitlines()
    assert other[1].startswith("  model.dropout: ")
    assert other[2].startswith("  and what this command leaves to its defaults: seed, ")
    before = (run / "environment.json").read_text()
    shorter = nmt("train", f"run={run}", "trainer.max_steps=5")
    assert (shorter.returncode, "the run has made 6 updates; set it to 6 or more" in shorter.stderr) == (
        2,
        True,
    )
    assert json.loads((run / "status.json").read_text())["state"] == "finished"
    assert nmt("train", f"run={run}", "metrics=[bleu,ter]").returncode == 0
    assert (run / "environment.json").read_text() == before  # that of the updates
    shutil.rmtree(run / "checkpoints")  # as if it was killed before the first was saved
    anew = nmt("train", f"run={run}", "trainer.max_steps=4")
    assert f"with the config of {run}: data=files data." in anew.stderr
    assert load_config(run / "config.yaml").seed == 7


def test_a_start_that_failed_does_not_claim_the_directory(
    nmt: Command, tiny: list[str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    failed = nmt("train", f"run={run}", *tiny, "trainer.max_steps=4", "tokenizer.min_frequency=99999")
    assert failed.returncode == 2
    assert "tokenizer.min_frequency=99999" in failed.stderr
    done = nmt("train", f"run={run}", *tiny, "trainer.max_steps=4")
    assert done.returncode == 0, done.stderr


def test_changed_training_data_is_refused(
    nmt: Command, tiny: list[str], copy_corpus: Path, tmp_path: Path
) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for file in copy_corpus.iterdir():
        (corpus / file.name).write_bytes(file.read_bytes())
    options = [option.replace(str(copy_corpus), str(corpus)) for option in tiny]
    run = tmp_path / "run"
    assert nmt("train", f"run={run}", *options, "trainer.max_steps=4").returncode == 0
    with (corpus / "train.a").open("a") as a, (corpus / "train.b").open("a") as b:
        a.write("1 2 3 4\n")
        b.write("1 2 3 4\n")
    done = nmt("train", f"run={run}", *options, "trainer.max_steps=8")
    assert done.returncode == 2
    assert "has changed since the run began" in done.stderr


@pytest.mark.fault(14)
def test_two_processes_cannot_share_a_run(
    nmt: Command, tiny: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "nmt", "train", f"run={run}", *tiny, "trainer.max_steps=100000"]
    first = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not (run / "config.yaml").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        second = nmt("train", f"run={run}", *tiny, "trainer.max_steps=100000")
    finally:
        first.kill()
        first.wait()
    assert second.returncode == 2
    assert f"process {first.pid}" in second.stderr
