"""Trackers with a server or a store of their own: Weights & Biases, MLflow and trackio.

Each is set up by its own environment variables (WANDB_MODE=offline, MLFLOW_TRACKING_URI=..., TRACKIO_DIR=...)
and imported when it is chosen. A thread does all that is sent, so that a slow server slows no training; one
that fails, or that lags behind too far, is named once and gets nothing more. `RUN/trackers/NAME.json` has the
id of the tracker's run and what it has got, so that a training that goes on adds to the same run, without
doubled points; what is missing there is sent from metrics.jsonl, if the training writes that.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import os
import queue
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from nmt import extras
from nmt.errors import UserError, warn
from nmt.files import load_json, step_records, write_json
from nmt.training.tracking.configs import TrackingConfig
from nmt.training.tracking.sinks import Rows, Sink, TrackedRun, flat, markdown_table

MAX_PENDING = 10_000
"""Calls that may wait for a server before it counts as one that does not answer."""
CLOSE_SECONDS = 30.0
"""Longest time that the end of a training waits for what is still to be sent."""


def require_sink(name: str) -> None:
    """Raise `UserError` unless the library of the sink `name` is there; some need none."""
    if name in extras.EXTRAS:
        extras.require(name, f"tracking.sinks has {name}, which")


class Remote(Sink):
    """A tracker outside of the run directory; a subclass says how its library is called, in one thread."""

    name: ClassVar[str]
    """Row of `SINKS`, and of `EXTRAS`."""

    def __init__(self, run: TrackedRun, cfg: TrackingConfig):
        super().__init__(run, cfg)
        require_sink(self.name)
        self.file = run.directory / "trackers" / f"{self.name}.json"
        fresh: dict[str, Any] = {"id": uuid.uuid4().hex[:8], "step": 0, "names": []}
        fresh["name"] = run.directory.absolute().name
        self.goes_on = bool(run.resume_step) and self.file.is_file()
        try:
            self.state = load_json(self.file) if self.goes_on else fresh
        except ValueError as error:
            raise UserError(
                f"{self.file} is damaged: {error}; remove it, and {self.name} gets a new run of this training"
            ) from error
        write_json(self.file, self.state)
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._error: BaseException | str | None = None
        self._told = False
        self._thread = threading.Thread(target=self._work, name=f"nmt-{self.name}", daemon=True)
        self._has_begun = False
        self._thread.start()

    def begin(self, run: TrackedRun) -> None:
        super().begin(run)
        self._has_begun = True
        self._call(self.start)
        records = step_records(run.directory / "metrics.jsonl") if run.resume_step else ()
        missing = [one for one in records if one["step"] <= run.resume_step]
        self._call(lambda: self._send_missing(missing))  # one call, however many records a long training has

    def start(self) -> None:
        """Open the tracker's run: a new one, or if `goes_on` the one with the id of the state."""

    def send(self, step: int, values: Mapping[str, float]) -> None:
        """Record finite values."""

    def send_table(self, step: int, tag: str, columns: Sequence[str], rows: Rows) -> None:
        """Record a table of texts."""

    def send_image(self, step: int, tag: str, pixels: NDArray[np.uint8]) -> None:
        """Record an image (height, width, 3)."""

    def send_final(self, step: int, scores: Mapping[str, float]) -> None:
        """Record the final scores, whose names are such as bleu/test."""

    def finish(self, failed: bool) -> None:
        """Close the tracker's run."""

    @property
    def title(self) -> str:
        """The name of the tracker's run: that of the run directory at first, and its own id."""
        return f"{self.state.get('name', self.run.directory.absolute().name)}-{self.state['id']}"

    def log(self, step: int, values: Mapping[str, float]) -> None:
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        self._call(lambda: self._send_new(step, finite))

    def table(self, step: int, tag: str, columns: Sequence[str], rows: Rows) -> None:
        send = functools.partial(self.send_table, step, tag, columns, rows)
        self._call(lambda: self._send_new(step, {tag: 0.0}, send))

    def image(self, step: int, tag: str, pixels: NDArray[np.uint8]) -> None:
        send = functools.partial(self.send_image, step, tag, pixels)
        self._call(lambda: self._send_new(step, {tag: 0.0}, send))

    def conclude(self, step: int, scores: Mapping[str, Mapping[str, float]]) -> None:
        named = {f"{name}/{split}": x for split, values in scores.items() for name, x in values.items()}
        self._call(lambda: self.send_final(step, {name: x for name, x in named.items() if math.isfinite(x)}))

    def close(self, error: BaseException | None) -> None:
        if self._has_begun:
            self._call(lambda: self.finish(error is not None))
        self._calls.put(None)
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive() and self._error is None:
            self._error = f"it has not answered for {CLOSE_SECONDS:g} seconds"
        self._tell()

    def _send_missing(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Send what the tracker has not got of the records of metrics.jsonl."""
        for record in records:
            values = {name: value for name, value in record.items() if name != "step" and value is not None}
            self._send_new(record["step"], values)

    def _send_new(
        self, step: int, values: Mapping[str, float], send: Callable[[], object] | None = None
    ) -> None:
        """Send what the tracker has not got, and take note of it first, so that a kill doubles no point."""
        got, names = self.state["step"], self.state["names"]
        new = {name: x for name, x in values.items() if step > got or (step == got and name not in names)}
        if not new:
            return
        self.state |= {"step": step, "names": [*(names if step == got else []), *new]}
        write_json(self.file, self.state)
        (send or (lambda: self.send(step, new)))()

    def _call(self, action: Callable[[], object]) -> None:
        """Let the thread do `action`, unless the tracker has failed."""
        if self._calls.qsize() > MAX_PENDING:
            self._error = self._error or f"it is {MAX_PENDING:,} calls behind"
        if self._error is None:
            self._calls.put(action)
        self._tell()

    def _tell(self) -> None:
        """Warn once of a tracker that has failed; only the thread of the training calls this."""
        if self._error is not None and not self._told:
            self._told = True
            reason = " ".join(str(self._error).split())[:500] or type(self._error).__name__
            warn(f"{self.name} gets nothing more of {self.run.directory}: {reason}; training goes on")

    def _work(self) -> None:
        """Do what is called, one after the other, until the tracker fails."""
        while (action := self._calls.get()) is not None:
            try:
                action()
            except Exception as error:  # a library and its server raise what they like
                self._error = error
                return


class Logging(Remote):
    """A tracker whose library has `Table`, `Image` and runs with `log`, as Weights & Biases has them."""

    library: Any
    opened: Any
    """The run of the tracker."""

    def send(self, step: int, values: Mapping[str, float]) -> None:
        self.opened.log(dict(values), step=step)

    def send_table(self, step: int, tag: str, columns: Sequence[str], rows: Rows) -> None:
        table = self.library.Table(columns=list(columns), data=[list(row) for row in rows])
        self.opened.log({tag: table}, step=step)

    def send_image(self, step: int, tag: str, pixels: NDArray[np.uint8]) -> None:
        self.opened.log({tag: self.library.Image(pixels)}, step=step)


class WandB(Logging):
    """Weights & Biases."""

    name = "wandb"

    def start(self) -> None:
        self.library = importlib.import_module("wandb")
        settings = self.library.Settings(
            silent=True, console="off", symlink=False, disable_git=True, save_code=False, init_timeout=60.0
        )
        self.opened = self.library.init(
            project=self.cfg.project,
            name=self.run.directory.absolute().name,
            id=self.state["id"],
            resume="allow",
            config=dict(self.run.config),
            settings=settings,
        )

    def send_final(self, step: int, scores: Mapping[str, float]) -> None:
        self.opened.summary.update(dict(scores))

    def finish(self, failed: bool) -> None:
        self.opened.finish(exit_code=int(failed))


class MLflow(Remote):
    """MLflow, in any store that MLFLOW_TRACKING_URI names."""

    name = "mlflow"

    def start(self) -> None:
        for key, value in (("REQUEST_TIMEOUT", "10"), ("REQUEST_MAX_RETRIES", "2")):
            os.environ.setdefault(f"MLFLOW_HTTP_{key}", value)
        self.library = importlib.import_module("mlflow")
        self.entities = importlib.import_module("mlflow.entities")
        self.client = self.library.MlflowClient()
        if self.goes_on and "run_id" in self.state:
            self.client.update_run(self.state["run_id"], status="RUNNING")
            return
        experiment = self.client.get_experiment_by_name(self.cfg.project)
        number = experiment.experiment_id if experiment else self.client.create_experiment(self.cfg.project)
        name = self.run.directory.absolute().name
        self.state["run_id"] = self.client.create_run(number, run_name=name).info.run_id
        write_json(self.file, self.state)
        keys = [(key, str(value)[:500]) for key, value in flat(self.run.config)]
        for first in range(0, len(keys), 100):  # what a server takes at once
            params = [self.entities.Param(key, value) for key, value in keys[first : first + 100]]
            self.client.log_batch(self.state["run_id"], params=params)

    def send(self, step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [self.entities.Metric(_allowed(name), x, now, step) for name, x in values.items()]
        self.client.log_batch(self.state["run_id"], metrics=metrics)

    def send_table(self, step: int, tag: str, columns: Sequence[str], rows: Rows) -> None:
        file = f"{_allowed(tag)}/step_{step:08d}.md"
        self.client.log_text(self.state["run_id"], markdown_table(columns, rows), file)

    def send_image(self, step: int, tag: str, pixels: NDArray[np.uint8]) -> None:
        self.client.log_image(self.state["run_id"], pixels, f"{_allowed(tag)}/step_{step:08d}.png")

    def send_final(self, step: int, scores: Mapping[str, float]) -> None:
        self.send(step, scores)

    def finish(self, failed: bool) -> None:
        self.client.set_terminated(self.state["run_id"], "FAILED" if failed else "FINISHED")


def _allowed(name: str) -> str:
    """Return a name with letters that MLflow accepts: chrfpp for chrf++."""
    return re.sub(r"[^\w./: -]", "_", name.replace("+", "p"))


class Trackio(Logging):
    """Trackio, on this machine or, as TRACKIO_SPACE_ID or TRACKIO_SERVER_URL say, elsewhere."""

    name = "trackio"

    def start(self) -> None:
        with contextlib.redirect_stdout(sys.stderr):  # stdout is for results
            self.library = importlib.import_module("trackio")
            self.opened = self.library.init(
                project=self.cfg.project,
                name=self.title,
                resume="allow",
                config=dict(flat(self.run.config)),
                embed=False,
                auto_log_cpu=False,
                auto_log_gpu=False,
            )

    def send_final(self, step: int, scores: Mapping[str, float]) -> None:
        self.opened.log(dict(scores), step=step)

    def finish(self, failed: bool) -> None:
        with contextlib.redirect_stdout(sys.stderr):
            self.opened.finish()
