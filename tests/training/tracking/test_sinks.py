"""Tracking: each step exactly once, readable lines, and text from strangers that stays text."""

from __future__ import annotations

import io
import json
import math
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from nmt.cli import main
from nmt.errors import Interrupted, TrainingStopped, UserError, warn
from nmt.files import read_json, write_lines
from nmt.progress import Work, told
from nmt.training.checkpoint import Checkpoint, CheckpointStore
from nmt.training.tracking import display
from nmt.training.tracking.configs import SINKS, TrackingConfig
from nmt.training.tracking.sinks import (
    Display,
    Sink,
    TrackedRun,
    Tracker,
    literal_markdown,
    markdown_table,
    printable,
    rewind,
)
from nmt.training.tracking.status_line import StatusLine, duration, shown_perplexity, validation_line

TRAIN = {
    "train/loss": 3.214,
    "train/nll": 2.5,
    "train/lr": 7e-4,
    "train/tgt_tokens_per_second": 9812.4,
    "train/grad_norm": 1.5,
}
HOSTILE = (
    "<script>alert(1)</script> **bold** [link](http://x) `code` <img src=x onerror=y>\n\n# title\n* item"
)


@pytest.fixture(autouse=True)
def _outside_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CI", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def plain() -> Console:
    return Console(file=io.StringIO(), width=80)


def terminal(width: int = 80) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=25)


@contextmanager
def tracking(
    run_dir: Path, console: Console | None = None, sinks: list[str] | None = None, **facts: Any
) -> Iterator[Tracker]:
    """Yield a tracker on `console`, by default with all sinks, of a run that chooses checkpoints by BLEU."""
    cfg = TrackingConfig() if sinks is None else TrackingConfig(sinks)
    run = TrackedRun(run_dir, **({"best_metric": "bleu"} | facts))
    opened = replace(run, total_steps=None, config={})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(display, "Console", lambda stderr: console or plain())
        with Tracker(opened, cfg) as tracker:
            tracker.begin(run)
            yield tracker


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def metrics(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def train_log(run_dir: Path) -> list[str]:
    """Return the lines of train.log without their times."""
    lines = (run_dir / "train.log").read_text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", line) for line in lines)
    return [line[20:] for line in lines]


def tensorboard(run_dir: Path, run: str) -> Any:
    """Return what a run of TensorBoard has, as any reader of event files sees it."""
    from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
        EventAccumulator,
    )

    return EventAccumulator(str(run_dir / "tb" / run)).Reload()


def points(run_dir: Path, run: str, tag: str) -> list[tuple[int, float]]:
    """Return the steps and values of a curve."""
    return [(event.step, round(event.value, 3)) for event in tensorboard(run_dir, run).Scalars(tag)]


def texts(run_dir: Path, run: str, tag: str) -> list[tuple[int, str]]:
    """Return the texts as the TensorBoard server shows them, without steps that a resumed run repeats."""
    from tensorboard.backend.event_processing.plugin_event_accumulator import (  # type: ignore[import-untyped]
        EventAccumulator,
    )

    events = EventAccumulator(str(run_dir / "tb" / run)).Reload().Tensors(f"{tag}/text_summary")
    return [(event.step, event.tensor_proto.string_val[0].decode()) for event in events]


# Recording


def test_one_log_reaches_every_file(tmp_path: Path) -> None:
    console = plain()
    with tracking(tmp_path, console, total_steps=100) as tracker:
        tracker.log(50, TRAIN)
        tracker.log(50, {"valid/bleu": 18.34, "valid/loss": 2.5})
        tracker.log(100, TRAIN | {"train/padding_src": 0.1})
        assert metrics(tmp_path)[-1]["step"] == 100  # at once, not at the end
    assert metrics(tmp_path) == [
        {"step": 50, **TRAIN},
        {"step": 50, "valid/bleu": 18.34, "valid/loss": 2.5},
        {"step": 100, **TRAIN, "train/padding_src": 0.1},
    ]
    assert points(tmp_path, "train", "objective") == [(50, 3.214), (100, 3.214)]
    assert points(tmp_path, "train", "loss") == [(50, 2.5), (100, 2.5)]  # one chart and one scale
    assert points(tmp_path, "valid", "loss") == [(50, 2.5)]
    assert points(tmp_path, "valid", "bleu") == [(50, 18.34)]
    assert train_log(tmp_path) == shown(console).splitlines()
    assert len(train_log(tmp_path)) == 2


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_null(tmp_path: Path, value: float) -> None:
    with tracking(tmp_path) as tracker:
        tracker.log(1, {"train/loss": value, "train/lr": 0.5})
    assert metrics(tmp_path) == [{"step": 1, "train/loss": None, "train/lr": 0.5}]
    assert tensorboard(tmp_path, "train").Tags()["scalars"] == ["lr"]


def test_resume_gives_each_step_exactly_once(tmp_path: Path) -> None:
    def train(first: int, last: int) -> None:
        config = {"seed": 1, "data": {"src": "ä"}}
        with tracking(tmp_path, resume_step=first, total_steps=9, config=config) as tracker:
            for step in range(first + 1, last + 1):
                tracker.log(step, {"train/loss": 10.0 * first + step})
                if step % 2 == 0:
                    tracker.log(step, {"valid/bleu": float(step)})
                    tracker.table(step, "valid/samples", ["text"], [[f"step {step} from {first}"]])

    for first, last in [(0, 3), (0, 5), (4, 7), (4, 9)]:
        train(first, last)
    assert [(r["step"], r["train/loss"]) for r in metrics(tmp_path) if "train/loss" in r] == [
        *((step, float(step)) for step in range(1, 5)),
        *((step, 40.0 + step) for step in range(5, 10)),
    ]
    assert [r["step"] for r in metrics(tmp_path) if "valid/bleu" in r] == [2, 4, 6, 8]
    objective = points(tmp_path, "train", "objective")
    assert [step for step, _ in objective] == list(range(1, 10))
    assert [value for _, value in objective][3:5] == [4.0, 45.0]
    assert points(tmp_path, "valid", "bleu") == [(2, 2.0), (4, 4.0), (6, 6.0), (8, 8.0)]
    assert texts(tmp_path, "valid", "samples") == [
        (step, f"| text |\n| --- |\n| step {step} from {4 * (step > 4)} |") for step in (2, 4, 6, 8)
    ]
    assert texts(tmp_path, "train", "config") == [(0, "    seed: 1\n    data:\n      src: ä\n    ")]
    assert len(train_log(tmp_path)) == 3 + 5 + 3 + 5  # what was shown stays in the log


def test_images_reach_tensorboard_as_they_are(tmp_path: Path) -> None:
    pixels = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    with tracking(tmp_path) as tracker:
        tracker.image(5, "valid/attention_1", pixels)
        (event,) = tensorboard(tmp_path, "valid").Images("attention_1")  # at once, not at the end
    assert (event.step, event.width, event.height) == (5, 6, 4)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(event.encoded_image_string))), pixels)


def test_killed_without_close_loses_no_step(tmp_path: Path) -> None:
    tracker = Tracker(TrackedRun(tmp_path), TrackingConfig(["jsonl", "tensorboard"]))
    tracker.__enter__()  # never closed
    tracker.log(1, {"train/loss": 1.0})
    tracker.log(2, {"train/loss": 0.5})
    assert [record["step"] for record in metrics(tmp_path)] == [1, 2]
    assert points(tmp_path, "train", "objective") == [(1, 1.0), (2, 0.5)]
    tracker.__exit__(None, None, None)


def test_rewind_drops_later_steps_and_torn_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    rewind(path, 5)
    assert not path.exists()
    path.write_bytes(
        b'{"step": 0, "x": 1}\n{"step": 2, "x": 0.1}\n\n[1]\n{"y": 1}\n\xff\n{"step": 3}\n{"step": 2, "to'
    )
    for _ in range(2):
        rewind(path, 2)
        assert path.read_text() == '{"step": 0, "x": 1}\n{"step": 2, "x": 0.1}\n'
    rewind(path, 0)
    assert path.read_text() == ""
    assert list(tmp_path.iterdir()) == [path]


def test_rewind_that_is_interrupted_leaves_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n')

    def killed(*paths: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        rewind(path, 1)
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'


@pytest.mark.fault(12)
def test_what_a_full_disk_refuses_is_written_when_there_is_room(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with tracking(tmp_path, sinks=["train_log", "jsonl"]) as tracker:
        tracker.log(1, TRAIN)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "metrics.jsonl").stat().st_size + 3, hard))
            for step in range(2, 200):  # more than a buffer of the usual size
                tracker.log(step, TRAIN)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        tracker.log(200, TRAIN)
    assert capsys.readouterr().err == "".join(
        f"warning: {tmp_path}: {name} cannot be written: File too large; training goes on\n"
        for name in ("train_log", "jsonl")
    )
    assert metrics(tmp_path) == [{"step": step, **TRAIN} for step in range(1, 201)]
    lines = train_log(tmp_path)
    assert [line.partition("  ")[0] for line in lines if line.startswith("step")] == [
        f"step {step}" for step in range(1, 201)
    ]
    assert len([line for line in lines if line.startswith(f"warning: {tmp_path}: ")]) == len(lines) - 200 == 2


@pytest.mark.fault(12)
def test_a_full_disk_tears_no_record_of_tensorboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fill(patch: pytest.MonkeyPatch) -> None:
        patch.setattr("nmt.files.shutil.disk_usage", lambda _: SimpleNamespace(free=1000))

    with monkeypatch.context() as patch:
        fill(patch)
        problem = "1,048,576 bytes are needed, but 1,000 are free; its checkpoints are intact"
        with pytest.raises(TrainingStopped, match=problem), tracking(tmp_path, sinks=["tensorboard"]):
            pass
        assert not (tmp_path / "tb").exists()
    with tracking(tmp_path, sinks=["tensorboard", "jsonl"]) as tracker:
        tracker.log(1, TRAIN)
        with monkeypatch.context() as patch:
            fill(patch)
            tracker.log(2, TRAIN)
            tracker.log(3, TRAIN)
        tracker.log(4, TRAIN)
    assert [step for step, _ in points(tmp_path, "train", "objective")] == [1, 4]
    assert [line["step"] for line in metrics(tmp_path)] == [1, 2, 3, 4]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(
        "tensorboard cannot be written: 1,048,576 bytes are needed, but 1,000 are free; training goes on"
    )


def test_a_report_that_is_not_needed_may_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    with tracking(tmp_path, sinks=[]) as tracker:
        for _ in range(2):
            with tracker.spared("hypotheses"):
                raise TrainingStopped("cannot write it: the disk is full") from OSError()
        with tracker.spared("samples"):
            write_lines(tmp_path / "file" / "hypotheses", [])
        with pytest.raises(UserError), tracker.spared("hypotheses"):
            raise UserError("another fault")
    reason = "cannot write it: the disk is full"
    hypotheses, samples = capsys.readouterr().err.splitlines()
    assert hypotheses == f"warning: {tmp_path}: hypotheses cannot be written: {reason}; training goes on"
    reason = f"cannot write {tmp_path / 'file' / 'hypotheses'}: File exists"
    assert samples == f"warning: {tmp_path}: samples cannot be written: {reason}; training goes on"


def final(run_dir: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the final scores in TensorBoard."""
    tags = tensorboard(run_dir, "final").Tags()["scalars"]
    return {tag: points(run_dir, "final", tag) for tag in tags}


def test_final_scores_are_those_of_the_last_end(tmp_path: Path) -> None:
    """Also where a kill comes between the scores and results.json, and where a finished run is prolonged."""
    scores = {"validation": {"bleu": 20.0, "perplexity": math.inf}, "test": {"bleu": 18.0}}
    for first, last in [(0, 4), (4, 4), (4, 8)]:
        with tracking(tmp_path, resume_step=first) as tracker:
            assert final(tmp_path) == {}  # not yet
            for step in range(first + 1, last + 1):
                tracker.log(step, {"valid/bleu": 1.0})
            tracker.conclude(last, scores)
            assert final(tmp_path) == {"bleu/validation": [(last, 20.0)], "bleu/test": [(last, 18.0)]}
    assert [step for step, _ in points(tmp_path, "valid", "bleu")] == list(range(1, 9))


def test_a_sweep_is_a_table_that_sorts_by_its_scores(tmp_path: Path) -> None:
    """The page HPARAMS has a row for each run, the keys that differ first, and the final scores alone."""
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData  # type: ignore[import-untyped]

    config = {
        "run": "outputs/mine",
        "seed": 1,
        "model": {"name": "gpt", "tied": True, "d_ff": None},
        "metrics": ["bleu"],
    }
    with tracking(tmp_path, config=config) as tracker:
        running = tensorboard(tmp_path, "final").summary_metadata
        tracker.conclude(5, {"test": {"bleu": 1.0}})
    assert list(running) == ["_hparams_/session_start_info"]
    done = tensorboard(tmp_path, "final").summary_metadata
    assert set(done) == {"_hparams_/session_start_info", "_hparams_/session_end_info"}
    assert final(tmp_path) == {"bleu/test": [(5, 1.0)]}
    content = done["_hparams_/session_start_info"].plugin_data.content
    stored = HParamsPluginData.FromString(content).session_start_info.hparams
    assert {key: value.number_value or value.string_value for key, value in stored.items()} == {
        "seed": 1.0,
        "model.name": "gpt",
        "model.tied": "true",
        "metrics": '["bleu"]',
    }


def test_a_run_of_version_0_1_goes_on_without_doubled_points(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path / "tensorboard")) as earlier:
        for step in range(1, 7):
            earlier.add_scalar("train/loss", 1.0, step)
    with tracking(tmp_path, resume_step=4) as tracker:
        tracker.log(5, TRAIN)
    old = tensorboard(tmp_path, "../tensorboard").Scalars("train/loss")
    assert [event.step for event in old] == [1, 2, 3, 4]
    assert points(tmp_path, "train", "objective") == [(5, 3.214)]


def test_train_log_has_what_was_shown_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    console = plain()
    with tracking(tmp_path, console) as tracker:
        warn("only 3 checkpoints are there")
        tracker.shown("run  x\ntest BLEU 1.0")
    warn("too late")
    assert train_log(tmp_path) == ["warning: only 3 checkpoints are there", "run  x", "test BLEU 1.0"]
    assert shown(console) == ""  # they are on stderr and stdout already
    assert capsys.readouterr().err == "warning: only 3 checkpoints are there\nwarning: too late\n"


def test_train_log_says_once_what_ended_the_training(tmp_path: Path) -> None:
    """A return to a checkpoint has been told before the error that leads to it."""

    def train() -> None:
        with tracking(tmp_path) as tracker:
            tracker.message("step 7: the loss is nan. Going back to step 4 (return 1 of at most 5)")
            raise TrainingStopped("step 7: the loss is nan. Going back to step 4")

    with pytest.raises(TrainingStopped):
        train()
    assert len(train_log(tmp_path)) == 1


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (TrainingStopped("the loss is nan"), "error: the loss is nan"),
        (Interrupted(15, "stopped by SIGTERM after step 3"), "stopped by SIGTERM after step 3"),
        (KeyError("x"), "KeyError: 'x'"),
    ],
)
def test_train_log_says_what_ended_the_training(tmp_path: Path, error: BaseException, line: str) -> None:
    with pytest.raises(type(error)), tracking(tmp_path):
        raise error
    assert train_log(tmp_path) == [line]


# Lines


def work(number: int) -> Iterator[list[int]]:
    """Yield `number` batches of 4 sentences as a search does."""
    return told([[0] * 4 for _ in range(number)], "translating", "lines")


def test_plain_lines_tell_of_long_work_once_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    console = plain()
    with tracking(tmp_path, console):
        for _ in work(300):
            now += 1.0
        for _ in work(50):  # another one starts its own minute
            now += 1.0
    assert (
        shown(console).splitlines()
        == train_log(tmp_path)
        == [
            "translating 240 of 1,200 lines  left 4:00",
            "translating 480 of 1,200 lines  left 3:00",
            "translating 720 of 1,200 lines  left 2:00",
            "translating 960 of 1,200 lines  left 1:00",
        ]
    )


@pytest.mark.parametrize("width", [80, 120])
def test_live_display_shows_the_work_in_its_two_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    console = terminal(width)
    with tracking(tmp_path, console, total_steps=100000, sinks=["display"]) as tracker:
        tracker.advance(99999, TRAIN, 0.99999)
        sink = tracker._sinks["display"]
        assert isinstance(sink, Display)
        before = lines(sink.screen, width)
        for index, _ in enumerate(work(10)):
            if index == 5:
                during = lines(sink.screen, width)
            now += 120.0
        assert lines(sink.screen, width) == before
    assert [len(line) <= width for line in during] == [True, True]
    assert re.fullmatch(r"translating 20 of 40 lines +[━╸╺ ]+ 10:00 left", during[1])
    assert during[0] == before[0]
    assert before[1].strip() == "loss 2.500  ppl 12.2  lr 7.0e-04  9,812 tok/s"


def lines(screen: display.Screen, width: int) -> list[str]:
    """Return the lines of the live display."""
    console = Console(file=io.StringIO(), width=width)
    console.print(screen._render())
    return shown(console).splitlines()


@pytest.mark.parametrize(
    ("step", "loss", "expected"),
    [
        (500, 13.456, "validation at step 500  loss 13.46  ppl 698,018  bleu 100.00  chrf 99.99  (best)"),
        (100_000, 4.5, "validation at step 100000  loss 4.50  ppl 90.0  bleu 100.00  chrf 99.99  (best)"),
    ],
)
def test_the_line_of_a_validation_fits_into_80_columns(step: int, loss: float, expected: str) -> None:
    values = {"loss": loss, "perplexity": math.exp(loss), "bleu": 100.0, "chrf": 99.994}
    line = validation_line(step, {f"valid/{name}": value for name, value in values.items()}, is_best=True)
    assert line == expected
    assert len(line) <= 80


def test_live_display_breaks_long_lines_itself(tmp_path: Path) -> None:
    """A row that the terminal breaks is not known to the display, which would leave a bar behind."""
    console = terminal(80)
    with tracking(tmp_path, console, sinks=["display"]) as tracker:
        tracker.message("word " * 40)
    visible = printable(shown(console).replace("\r", "\n")).split("\n")
    assert max(map(len, visible)) <= 80


def test_plain_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    console = plain()
    with tracking(tmp_path, console, total_steps=8000) as tracker:
        tracker.advance(1, {}, 1 / 8000)
        tracker.log(1, {"valid/bleu": 18.34})
        now += 499 * 0.1
        tracker.advance(500, {}, 500 / 8000)
        tracker.log(500, TRAIN)
    line = "step 500/8000  loss 2.500  ppl 12.2  lr 7.0e-04  9,812 tok/s  bleu 18.34  left 12:30"
    assert shown(console) == line + "\n"  # longer than 80 columns and yet one line
    assert train_log(tmp_path) == [line]


def test_time_left_counts_from_the_resumed_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    console = plain()
    with tracking(tmp_path, console, resume_step=900, total_steps=1000) as tracker:
        for step, now in ((901, 0.0), (950, 49.0), (1000, 99.0)):  # noqa: B007 - read by the clock
            tracker.advance(step, {}, step / 1000)
            tracker.log(step, {"train/loss": 0.0})
    ends = [line.partition("objective 0.000")[2] for line in shown(console).splitlines()]
    assert ends == ["", "  left 0:50", "  left 0:00"]


def test_time_left_without_a_limit_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    console = plain()
    with tracking(tmp_path, console) as tracker:
        tracker.log(1, {"train/loss": 0.0})
        tracker.advance(2, {}, 0.25)
        now = 600.0
        tracker.advance(3, {}, 0.5)
        tracker.log(3, {"train/loss": 0.0})
    assert shown(console) == "step 1  objective 0.000\nstep 3  objective 0.000  left 20:00\n"


def test_advance_alone_shows_and_writes_nothing(tmp_path: Path) -> None:
    console = plain()
    with tracking(tmp_path, console) as tracker:
        tracker.advance(1, TRAIN)
    assert shown(console) == ""
    assert (tmp_path / "metrics.jsonl").read_text() == (tmp_path / "train.log").read_text() == ""


def test_notes_are_lines_without_markup(tmp_path: Path) -> None:
    console = plain()
    long = "word " * 40 + "end"
    with tracking(tmp_path, console) as tracker:
        tracker.message(f"two [red]lines[/red] :smile:\n{long}")
    assert shown(console) == f"two [red]lines[/red] :smile:\n{long}\n"
    assert train_log(tmp_path) == ["two [red]lines[/red] :smile:", long]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[2J\x1b[1;1Htop", "top"),
        ("\x9b31mred", "red"),
        ("\x1b]0;title\x07text", "]0;titletext"),
        ("a\rb\x08c\x00d\x7fe\x85f", "abcdef"),
        ("tab\tnew\nline äöü 中文 \u2028", "tab\tnew\nline äöü 中文 \u2028"),
    ],
)
def test_printable(text: str, expected: str) -> None:
    assert printable(text) == expected


@pytest.mark.fault(38)
def test_escape_codes_reach_neither_screen_nor_files(tmp_path: Path) -> None:
    console = terminal()
    hostile = "\x1b[2J\x1b]0;owned\x07text\r\x9b1m"
    with tracking(tmp_path, console) as tracker:
        tracker.message(hostile)
        tracker.table(1, "valid/samples", ["text"], [[hostile]])
    assert "\x1b[2J" not in shown(console)
    assert "\x1b]" not in shown(console)
    assert "\x9b" not in shown(console)
    assert train_log(tmp_path) == ["]0;ownedtext"]
    assert texts(tmp_path, "valid", "samples") == [(1, "| text |\n| --- |\n| &#93;0&#59;ownedtext |")]


@pytest.mark.parametrize("show", [literal_markdown, lambda text: markdown_table(["a", "b"], [[text, "end"]])])
@pytest.mark.parametrize(
    "text",
    [
        *(HOSTILE, "```\n<script>x</script>\n```", "\n<b>x</b>", "a\r\n\r\n<b>x</b>", "</pre></code><b>"),
        *("a | b\n| --- |", "&lt;b&gt; &#60;i&#62; \\| 1. x", "", "http://example.org <a@b.c>"),
    ],
)
def test_text_of_strangers_is_shown_as_it_is(text: str, show: Callable[[str], str]) -> None:
    """Neither Markdown nor HTML in it has a meaning in TensorBoard."""
    from html import unescape

    from tensorboard.plugin_util import markdown_to_safe_html  # type: ignore[import-untyped]

    html = markdown_to_safe_html(show(printable(text)))
    assert set(re.findall(r"</?(\w+)", html)) <= {
        "pre",
        "code",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "br",
    }
    if "<td>" in html:
        cell, end = re.findall(r"<td>(.*?)</td>", html)
        assert (unescape(cell.replace("<br>", "\n")).strip(), end) == (printable(text).strip(), "end")
    else:
        assert unescape(re.sub(r"</?\w+>", "", html)).strip() == printable(text).strip()


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0:00"),
        (59.6, "1:00"),
        (760, "12:40"),
        (3599.7, "1:00:00"),
        (3723, "1:02:03"),
        (360000, "100:00:00"),
    ],
)
def test_duration(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected


@pytest.mark.parametrize(
    ("loss", "expected"),
    [(0.0, "1.0"), (3.214, "24.9"), (9.0, "8,103"), (20.0, "4.9e+08"), (1e9, "1.0e+304"), (math.nan, "nan")],
)
def test_perplexity(loss: float, expected: str) -> None:
    assert shown_perplexity(loss) == expected


@pytest.mark.parametrize(
    ("best", "values", "expected"),
    [
        ("bleu", {}, ""),
        ("bleu", {"valid/bleu": 9.956, "train/lr": 0.000123, "other": 1.0}, "lr 1.2e-04  bleu 9.96"),
        ("chrf", {"valid/bleu": 9.956, "valid/chrf": 30.0, "valid/loss": 2.0}, "chrf 30.00"),
        (
            "loss",
            {"valid/bleu": 9.956, "valid/loss": 2.0, "train/nll": 3.0, "train/loss": 4.0},
            "loss 3.000  ppl 20.1  valid loss 2.00",
        ),
        ("loss", {"train/loss": 4.0}, "objective 4.000"),
    ],
)
def test_the_status_has_the_score_that_picks_the_best(
    best: str, values: dict[str, float], expected: str
) -> None:
    status = StatusLine(best)
    status.update(1, values)
    assert status.describe() == expected


# Sinks


class Collector(Sink):
    """What a tracker hands over, as (name, arguments)."""

    made: list[Collector] = []  # noqa: RUF012 - emptied by the tests

    def __init__(self, run: TrackedRun, cfg: TrackingConfig):
        super().__init__(run, cfg)
        self.calls: list[tuple[Any, ...]] = []
        self.made.append(self)

    def advance(self, step: int, values: Any, share_done: float | None) -> None:
        self.calls.append(("advance", step, dict(values)))

    def log(self, step: int, values: Any) -> None:
        self.calls.append(("log", step, dict(values)))

    def message(self, line: str) -> None:
        self.calls.append(("message", line))

    def shown(self, line: str) -> None:
        self.calls.append(("shown", line))

    def work(self, work: Work | None) -> None:
        self.calls.append(("work", work.name if work else None))

    def table(self, step: int, tag: str, columns: Any, rows: Any) -> None:
        self.calls.append(("table", step, tag, columns, rows))

    def conclude(self, step: int, scores: Any) -> None:
        self.calls.append(("conclude", step, scores))

    def image(self, step: int, tag: str, pixels: Any) -> None:
        self.calls.append(("image", step, tag, pixels.shape))

    def close(self, error: BaseException | None) -> None:
        self.calls.append(("close", error))

    def of(self, name: str) -> list[tuple[Any, ...]]:
        """Return the arguments of all calls of a method."""
        return [call[1:] for call in self.calls if call[0] == name]


TOY = [
    *("experiment=none", "data=toy", "tokenizer=word", "model=transformer_tiny", "model.d_model=16"),
    *("model.d_ff=32", "model.num_heads=2", "model.encoder_layers=1", "model.decoder_layers=1"),
    *("schedule=constant", "data.max_tokens=16", "trainer.batch_tokens=32", "trainer.eval_every_steps=2"),
    *("trainer.save_every_steps=2", "trainer.log_every_steps=2", "trainer.num_samples=1"),
    *("runtime.device=cpu", "runtime.kernels=false", "decoding=greedy"),
]


def test_a_sink_is_one_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NMT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Collector, "made", [])
    monkeypatch.setitem(SINKS, "collector", Collector)
    run = tmp_path / "run"
    arguments = ["train", f"run={run}", *TOY]
    assert main([*arguments, "tracking.sinks=[collector]", "trainer.max_steps=2"]) == 0
    assert "step " not in capsys.readouterr().err  # there is no display, nor any file
    assert [(run / name).exists() for name in ("train.log", "metrics.jsonl", "tb")] == [False] * 3
    assert main([*arguments, "tracking.sinks=[collector,train_log]", "trainer.max_steps=4"]) == 0
    first, second = Collector.made
    assert (first.run.directory, first.run.resume_step, first.run.total_steps) == (run, 0, 2)
    assert (second.run.resume_step, second.run.total_steps, second.run.best_metric) == (2, 4, "bleu")
    assert first.run.config["model"]["d_model"] == 16
    names = {"advance", "log", "message", "shown", "work", "table", "image", "conclude", "close"}
    assert {call[0] for call in first.calls} == names
    assert [step for step, _ in first.of("advance")] == [1, 2]
    works = list(dict.fromkeys(first.of("work")))
    assert works == [("reading the training data",), (None,), ("computing the loss",), ("translating",)]
    for sink, step in ((first, 2), (second, 4)):
        training, validation = sink.of("log")
        assert (training[0], validation[0]) == (step, step)
        assert "train/loss" in training[1]
        assert list(validation[1]) == ["valid/loss", "valid/perplexity", "valid/bleu", "valid/chrf"]
        ((at, tag, columns, rows),) = sink.of("table")
        assert (at, tag, columns) == (step, "valid/samples", ("source", "reference", "translation"))
        assert rows[0][0] == "the cat sleeps in the house"
        ((at, scores),) = sink.of("conclude")
        assert at <= step
        assert list(scores) == ["validation", "test"]
        assert list(scores["test"]) == ["loss", "perplexity", "bleu", "chrf"]
        assert [line for (line,) in sink.of("shown")][:1] == [f"run         {run}"]
        assert sink.calls[-1] == ("close", None)
    last_score = first.of("log")[1][1]["valid/bleu"]
    assert second.of("advance")[0] == (2, {"valid/bleu": last_score})  # shown again after the resume
    (line,) = [line for line in train_log(run) if line.startswith("step 4/4 ")]
    assert f"  bleu {last_score:.2f}" in line


def test_sinks_know_the_length_and_the_numbers_that_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first start, too, which finds them when the sinks are open."""
    monkeypatch.setenv("NMT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Collector, "made", [])
    monkeypatch.setitem(SINKS, "collector", Collector)
    run, sinks = tmp_path / "run", "tracking.sinks=[collector,train_log]"
    assert main(["train", f"run={run}", *TOY, sinks, "trainer.max_steps='1 epoch'"]) == 0
    (sink,) = Collector.made
    trainer, steps = sink.run.config["trainer"], sink.run.total_steps
    assert (trainer["max_steps"], trainer["epoch_steps"]) == ("1 epoch", steps)
    assert trainer["update_tokens"] > 0
    assert any(line.startswith(f"step 2/{steps} ") for line in train_log(run))


@pytest.mark.fault(16)
def test_an_error_is_recorded_before_the_sinks_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which may take long; a signal that comes meanwhile cuts none of them short."""
    monkeypatch.setenv("NMT_CACHE", str(tmp_path / "cache"))
    found = list[str]()

    class Slow(Collector):
        def close(self, error: BaseException | None) -> None:
            assert isinstance(error, TrainingStopped)
            found.append(read_json(self.run.directory / "status.json")["state"])
            os.kill(os.getpid(), signal.SIGTERM)
            found.append("closed")

    monkeypatch.setitem(SINKS, "slow", Slow)
    rates = ["schedule.peak_rate=1e15", "schedule.warmup_steps=0", "optimizer.clip_norm=0"]
    arguments = ["train", f"run={tmp_path}/run", *TOY, *rates, "trainer.max_steps=9"]
    assert main([*arguments, "tracking.sinks=[slow]"]) == TrainingStopped.exit_code
    assert "the loss is" in capsys.readouterr().err
    assert [*found, read_json(tmp_path / "run" / "status.json")["state"]] == ["stopped", "closed", "stopped"]


@pytest.mark.parametrize("killed_at", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_killed_between_log_and_checkpoint_no_point_is_doubled_or_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: int
) -> None:
    monkeypatch.setenv("NMT_CACHE", str(tmp_path / "cache"))
    run, save = tmp_path / "run", CheckpointStore.save

    def killed(store: CheckpointStore, checkpoint: Checkpoint) -> None:
        if checkpoint.step == killed_at:
            raise SystemExit(137)
        save(store, checkpoint)

    arguments = ["train", f"run={run}", *TOY, "trainer.max_steps=4", "trainer.log_every_steps=1"]
    with monkeypatch.context() as patch:
        patch.setattr(CheckpointStore, "save", killed)
        with pytest.raises(SystemExit):
            main(arguments)
    assert [line["step"] for line in metrics(run)][-2:] == [killed_at] * 2  # trained and validated
    assert main(arguments) == 0
    assert [line["step"] for line in metrics(run)] == [1, 2, 2, 3, 4, 4]
    training = [line for line in metrics(run) if "train/loss" in line]
    epochs, tokens = ([line[f"train/{name}"] for line in training] for name in ("epoch", "tokens"))
    assert [epoch / epochs[0] for epoch in epochs] == pytest.approx([1, 2, 3, 4])
    assert 0 < epochs[0] < 1
    assert tokens == sorted(set(tokens))
    for tag in ("loss", "objective", "tokens", "epoch"):
        assert [step for step, _ in points(run, "train", tag)] == [1, 2, 3, 4]
    for tag in ("loss", "bleu", "chrf"):
        assert [step for step, _ in points(run, "valid", tag)] == [2, 4]
    assert [step for step, _ in texts(run, "valid", "samples")] == [2, 4]
    assert [step for step, _ in texts(run, "train", "config")] == [0]
    assert {len(curve) for curve in final(run).values()} == {1}
    log = train_log(run)
    assert any(line.startswith("test        BLEU ") for line in log)
    assert any(line.startswith("signature   bleu|") for line in log)


def test_a_sink_learns_what_ended_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Collector, "made", [])
    monkeypatch.setitem(SINKS, "collector", Collector)
    stopped = TrainingStopped("the loss is nan")
    with pytest.raises(TrainingStopped, match="the loss is nan"), tracking(tmp_path, sinks=["collector"]):
        raise stopped
    assert Collector.made[0].calls == [("close", stopped)]


def test_each_sink_is_closed_even_if_another_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Full(Sink):
        def close(self, error: BaseException | None) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(Collector, "made", [])
    for name, sink in (("first", Collector), ("full", Full), ("last", Collector)):
        monkeypatch.setitem(SINKS, name, sink)
    with tracking(tmp_path, sinks=["first", "full", "last"]):
        pass
    assert "full cannot be written: No space left on device; training goes on" in capsys.readouterr().err
    assert [[call[0] for call in sink.calls] for sink in Collector.made] == [["close"], ["close"]]


def test_a_sink_that_cannot_be_opened_closes_those_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Closed(Sink):
        def __init__(self, run: TrackedRun, cfg: TrackingConfig):
            raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Collector, "made", [])
    for name, sink in (("first", Collector), ("closed", Closed)):
        monkeypatch.setitem(SINKS, name, sink)
    with (
        pytest.raises(TrainingStopped, match="Permission denied"),
        tracking(tmp_path, sinks=["first", "closed"]),
    ):
        pass
    assert [call[0] for call in Collector.made[0].calls] == ["close"]


def test_a_reader_of_stderr_that_leaves_is_no_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Pipe(Sink):
        def message(self, line: str) -> None:
            raise BrokenPipeError

    monkeypatch.setitem(SINKS, "pipe", Pipe)
    with pytest.raises(BrokenPipeError), tracking(tmp_path, sinks=["pipe"]) as tracker:
        tracker.message("hello")


def test_no_sink_is_made_or_imported_that_is_not_chosen(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
import numpy as np
from nmt.training.tracking.sinks import TrackedRun, Tracker, TrackingConfig
with Tracker(TrackedRun(Path({str(tmp_path / "run")!r})), TrackingConfig(sinks=[])) as tracker:
    tracker.advance(1, {{"train/loss": 1.0}}, 0.5)
    tracker.log(1, {{"train/loss": 1.0}})
    tracker.message("hello")
    tracker.table(1, "sample", ["text"], [["text"]])
    tracker.conclude(1, {{"test": {{"bleu": 1.0}}}})
    tracker.image(1, "image", np.zeros((1, 1, 3), np.uint8))
print(*sorted({{"rich", "torch.utils.tensorboard", "tensorboard"}} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("\n", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("sinks", "message"),
    [
        (
            ["jsonl", "tensorbord"],
            "tracking.sinks[1] must be one of display, train_log, jsonl, tensorboard, wandb, mlflow, "
            "trackio, but is 'tensorbord'; did you mean 'tensorboard'?",
        ),
        (["jsonl", "jsonl"], "tracking.sinks must name each sink once, but is [jsonl, jsonl]"),
    ],
)
def test_sinks_are_known_and_named_once(sinks: list[str], message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        TrackingConfig(sinks)


# The live display


@pytest.mark.parametrize("width", [80, 120])
def test_live_display_fits_the_terminal(tmp_path: Path, width: int) -> None:
    console = terminal(width)
    with tracking(tmp_path, console, total_steps=100000) as tracker:
        tracker.advance(1, {}, 0.0)
        last = TRAIN | {"train/tgt_tokens_per_second": 1234567.0, "valid/bleu": 100.0}
        tracker.advance(99999, last, 0.99999)
        tracker.log(99999, TRAIN)
        tracker.message("a note")
    output = shown(console)
    assert "step 99999/100000 " in output
    assert "0:00 left" in output
    assert "a note\n" in output
    visible = printable(output.replace("\r", "\n")).split("\n")
    assert max(map(len, visible)) == width  # the bar fills the line and nothing is wider
    assert "loss 2.500  ppl 12.2  lr 7.0e-04  9,812 tok/s  bleu 100.00" in output
    assert not any(line.startswith("step 99999/100000  loss") for line in visible)  # the bar shows it instead
    assert train_log(tmp_path)[0].startswith("step 99999/100000  loss 2.500")
    assert output.count("\x1b[?25l") == output.count("\x1b[?25h") == 1  # the cursor is hidden and comes back


def test_live_display_before_the_first_step(tmp_path: Path) -> None:
    console = terminal()
    with tracking(tmp_path, console):
        pass
    assert "step 0" in shown(console)


@pytest.mark.parametrize(("name", "value"), [("CI", "true"), ("CI", "1"), ("TERM", "dumb")])
def test_no_live_display_in_ci_or_a_dumb_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    console = terminal()
    with tracking(tmp_path, console, total_steps=10) as tracker:
        tracker.log(5, {"train/loss": 1.0})
    assert shown(console) == "step 5/10  objective 1.000\n"


def test_no_color(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    console = terminal()
    with tracking(tmp_path, console, total_steps=10) as tracker:
        tracker.log(5, {"train/loss": 1.0})
    assert "step 5/10" in shown(console)
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", shown(console))


def test_display_goes_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Tracker(TrackedRun(tmp_path), TrackingConfig()) as tracker:
        tracker.message("hello")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "hello\n")


def test_stdout_stays_stdout_while_the_display_is_live(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    console = terminal()
    with tracking(tmp_path, console):
        print("a result")
    assert capsys.readouterr().out == "a result\n"
    assert "a result" not in shown(console)
