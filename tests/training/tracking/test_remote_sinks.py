"""Trackers get each point once, and their faults end and slow no training; stand-ins take the calls."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nmt.errors import UserError
from nmt.training.tracking import remote_sinks
from nmt.training.tracking.configs import TrackingConfig
from nmt.training.tracking.sinks import TrackedRun, Tracker

CONFIG = {"run": "x", "model": {"d_model": 16}, "metrics": ["bleu"], "tgt": None}
PIXELS = np.zeros((2, 3, 3), np.uint8)


class Server:
    """What the stand-ins were given: points (name, step, value), other calls, and what they should raise."""

    def __init__(self) -> None:
        self.points: list[tuple[str, int, Any]] = []
        self.calls: list[tuple[Any, ...]] = []
        self.failing = False
        self.blocked = threading.Event()
        self.blocked.set()

    def log(self, values: dict[str, Any], step: int) -> None:
        self.blocked.wait(5)
        if self.failing:
            raise ConnectionError("the server is gone")
        self.points += [(name, step, value) for name, value in values.items()]

    def init(self, **settings: Any) -> SimpleNamespace:
        self.calls.append(("init", settings))
        summary = SimpleNamespace(update=lambda values: self.calls.append(("final", values)))
        finish = lambda **facts: self.calls.append(("finish", facts))  # noqa: E731
        return SimpleNamespace(log=self.log, finish=finish, summary=summary)

    def took(self, *call: Any) -> SimpleNamespace:
        self.calls.append(call)
        return SimpleNamespace(info=SimpleNamespace(run_id="r1"))

    def client(self) -> SimpleNamespace:
        def log_batch(run_id: str, metrics: Any = (), params: Any = ()) -> None:
            self.calls += [("param", x.key, x.value) for x in params]
            for metric in metrics:
                self.log({metric.key: metric.value}, metric.step)

        return SimpleNamespace(
            get_experiment_by_name=lambda name: None,
            create_experiment=lambda name: self.took("experiment", name),
            create_run=lambda number, run_name: self.took("init", {"name": run_name}),
            update_run=lambda run_id, status: self.calls.append(("init", {"id": run_id, "status": status})),
            log_batch=log_batch,
            log_text=lambda run_id, text, file: self.log({file: text}, 0),
            log_image=lambda run_id, pixels, file: self.log({file: pixels.shape}, 0),
            set_terminated=lambda run_id, status: self.calls.append(("finish", status)),
        )

    def of(self, name: str) -> list[Any]:
        return [call[1] for call in self.calls if call[0] == name]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()
    like_wandb = SimpleNamespace(
        init=server.init,
        Settings=lambda **settings: settings,
        Table=lambda columns, data: ("table", columns, data),
        Image=lambda pixels: ("image", pixels.shape),
    )
    entities = SimpleNamespace(
        Metric=lambda key, value, now, step: SimpleNamespace(key=key, value=value, step=step),
        Param=lambda key, value: SimpleNamespace(key=key, value=value),
    )
    modules = {
        "wandb": like_wandb,
        "trackio": like_wandb,
        "mlflow": SimpleNamespace(MlflowClient=server.client),
        "mlflow.entities": entities,
    }
    for name, module in modules.items():
        module.__spec__ = SimpleNamespace(name=name)
        monkeypatch.setitem(sys.modules, name, module)
    return server


@contextmanager
def tracking(run: Path, name: str, resume_step: int = 0) -> Iterator[Tracker]:
    tracked = TrackedRun(run, resume_step)
    with Tracker(tracked, TrackingConfig(["jsonl", name], project="mine")) as tracker:
        tracker.begin(replace(tracked, config=CONFIG))
        yield tracker


def state(run: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "trackers" / f"{name}.json").read_text())
    return found


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_a_tracker_gets_values_texts_images_and_the_end(tmp_path: Path, server: Server, name: str) -> None:
    run = tmp_path / "run"
    with tracking(run, name) as tracker:
        tracker.log(10, {"train/loss": 2.5, "train/lr": float("inf")})
        tracker.log(10, {"valid/chrf++": 31.0})
        tracker.table(10, "valid/samples", ("source",), [("a|b",)])
        tracker.image(10, "valid/attention_1", PIXELS)
        tracker.conclude(10, {"test": {"bleu": 12.5, "perplexity": float("inf")}})
    if name == "mlflow":
        assert server.points == [
            ("train/loss", 10, 2.5),
            ("valid/chrfpp", 10, 31.0),
            ("valid/samples/step_00000010.md", 0, "| source |\n| --- |\n| a&#124;b |"),
            ("valid/attention_1/step_00000010.png", 0, (2, 3, 3)),
            ("bleu/test", 10, 12.5),
        ]
        assert [call for call in server.calls if call[0] != "param"] == [
            ("experiment", "mine"),
            ("init", {"name": "run"}),
            ("finish", "FINISHED"),
        ]
        assert ("param", "model.d_model", "16") in server.calls
        return
    points = [
        ("train/loss", 10, 2.5),
        ("valid/chrf++", 10, 31.0),
        ("valid/samples", 10, ("table", ["source"], [["a|b"]])),
        ("valid/attention_1", 10, ("image", (2, 3, 3))),
    ]
    final = {"bleu/test": 12.5}
    (opened,) = server.of("init")
    assert opened["project"] == "mine"
    assert opened["resume"] == "allow"
    if name == "wandb":
        assert server.points == points
        assert (server.of("final"), server.of("finish")) == ([final], [{"exit_code": 0}])
        assert (opened["id"], opened["config"]) == (state(run, name)["id"], CONFIG)
    else:
        assert server.points == [*points, ("bleu/test", 10, 12.5)]
        assert opened["name"] == f"run-{state(run, name)['id']}"
        assert opened["config"] == {"run": "x", "model.d_model": 16, "metrics": '["bleu"]'}


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_a_training_that_goes_on_adds_to_the_same_run_without_doubled_points(
    tmp_path: Path, server: Server, name: str
) -> None:
    run = tmp_path / "run"
    with contextlib.suppress(KeyboardInterrupt), tracking(run, name) as tracker:
        for step in (1, 2, 3):
            tracker.log(step, {"train/loss": float(step)})
        raise KeyboardInterrupt
    run = run.rename(tmp_path / "renamed")
    with tracking(run, name, resume_step=2) as tracker:
        tracker.log(3, {"train/loss": 3.0})
        tracker.log(3, {"valid/loss": 5.0})
        tracker.log(4, {"train/loss": 4.0})
    training = [(step, value) for key, step, value in server.points if key == "train/loss"]
    assert training == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]
    assert ("valid/loss", 3, 5.0) in server.points
    first, second = server.of("init")
    if name == "mlflow":
        assert second == {"id": "r1", "status": "RUNNING"}
        assert server.of("finish") == ["FAILED", "FINISHED"]
    else:
        assert first.get("id", first["name"]) == second.get("id", second["name"])
    with tracking(run, name) as tracker:  # from the start: another run
        tracker.log(1, {"train/loss": 9.0})
    assert ("train/loss", 1, 9.0) in server.points


def test_a_training_that_ends_before_its_first_update_has_no_run(tmp_path: Path, server: Server) -> None:
    with contextlib.suppress(KeyboardInterrupt), Tracker(TrackedRun(tmp_path), TrackingConfig(["wandb"])):
        raise KeyboardInterrupt
    assert server.calls == []


def test_a_damaged_state_is_named(tmp_path: Path, server: Server) -> None:
    run = tmp_path / "run"
    with tracking(run, "wandb") as tracker:
        tracker.log(1, {"train/loss": 1.0})
    (run / "trackers" / "wandb.json").write_text('{"id": ')
    named = pytest.raises(UserError, match=r"wandb\.json is damaged: .*; remove it, and wandb gets a new run")
    with named, tracking(run, "wandb", resume_step=1):
        pass
    (run / "trackers" / "wandb.json").unlink()
    with tracking(run, "wandb", resume_step=1) as tracker:
        tracker.log(2, {"train/loss": 2.0})


def test_what_a_server_has_missed_is_sent_when_the_training_goes_on(tmp_path: Path, server: Server) -> None:
    run = tmp_path / "run"
    with tracking(run, "wandb") as tracker:
        tracker.log(1, {"train/loss": 1.0})
    with tracking(run, "wandb", resume_step=1) as tracker:
        server.failing = True
        tracker.log(2, {"train/loss": 2.0})
        tracker.log(3, {"train/loss": 3.0})
    server.failing = False
    with tracking(run, "wandb", resume_step=3) as tracker:
        tracker.log(4, {"train/loss": 4.0})
    assert [step for _, step, _ in server.points] == [1, 3, 4]  # the one that was on its way is lost


def test_a_long_training_that_goes_on_is_not_behind_at_once(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tracking(tmp_path, "wandb") as tracker:
        for step in range(1, 61):
            tracker.log(step, {"train/loss": 1.0})
    (tmp_path / "trackers" / "wandb.json").unlink()  # so that all of it is sent again
    monkeypatch.setattr(remote_sinks, "MAX_PENDING", 20)
    server.points.clear()
    server.blocked.clear()
    with tracking(tmp_path, "wandb", resume_step=60) as tracker:
        tracker.log(61, {"train/loss": 1.0})
        server.blocked.set()
    assert [step for _, step, _ in server.points] == [*range(1, 62)]


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_a_server_that_fails_is_named_once(
    tmp_path: Path, server: Server, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    server.failing = True
    with tracking(run, name) as tracker:
        for step in range(1, 50):
            tracker.log(step, {"train/loss": 1.0})
        tracker.conclude(50, {"test": {"bleu": 1.0}})
    warning = f"warning: {name} gets nothing more of {run}: the server is gone; training goes on\n"
    assert capsys.readouterr().err == warning
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 49


def test_a_server_that_does_not_answer_slows_nothing(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(remote_sinks, "CLOSE_SECONDS", 0.05)
    monkeypatch.setattr(remote_sinks, "MAX_PENDING", 20)
    server.blocked.clear()
    started = time.perf_counter()
    with tracking(tmp_path / "a", "wandb") as tracker:
        tracker.log(1, {"train/loss": 1.0})
    assert "has not answered for 0.05 seconds; training goes on" in capsys.readouterr().err
    with tracking(tmp_path / "b", "wandb") as tracker:
        for step in range(60):
            tracker.log(step, {"train/loss": 1.0})
    assert "it is 20 calls behind; training goes on" in capsys.readouterr().err
    assert time.perf_counter() - started < 3
    server.blocked.set()


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_a_package_that_is_missing_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("nmt.extras.find_spec", lambda module: None)
    with pytest.raises(UserError) as caught, tracking(tmp_path, name):
        pass
    assert str(caught.value) == f"tracking.sinks has {name}, which needs {name}: pip install 'nmt[{name}]'"


def test_the_real_wandb_takes_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    _all_of_it(tmp_path / "run", "wandb")
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    assert "warning" not in capsys.readouterr().err


def test_the_real_mlflow_takes_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    _all_of_it(tmp_path / "run", "mlflow")
    run_id, client = state(tmp_path / "run", "mlflow")["run_id"], mlflow.MlflowClient()
    assert [point.step for point in client.get_metric_history(run_id, "train/loss")] == [1, 2]
    assert client.get_run(run_id).data.metrics["bleu/test"] == 12.5
    assert client.get_run(run_id).data.params["model.d_model"] == "16"
    assert "warning" not in capsys.readouterr().err


def test_the_real_trackio_takes_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "store"))
    _all_of_it(tmp_path / "run", "trackio")
    assert "warning" not in capsys.readouterr().err


def _all_of_it(run: Path, name: str) -> None:
    with tracking(run, name) as tracker:
        tracker.log(1, {"train/loss": 2.5})
    with tracking(run, name, resume_step=1) as tracker:
        tracker.log(2, {"train/loss": 2.0})
        tracker.table(2, "valid/samples", ("source",), [("a|b",)])
        tracker.image(2, "valid/attention_1", PIXELS)
        tracker.conclude(2, {"test": {"bleu": 12.5}})
