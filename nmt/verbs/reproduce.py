"""The wiring of `nmt reproduce`: train a run again from its stored config, and report what differs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from nmt.comparison.configs import ReproduceConfig
from nmt.comparison.record import read_run
from nmt.comparison.reproduction import report, reproduction, require_reproduced
from nmt.config.composed import Composed
from nmt.config.misfits import check
from nmt.config.roots import TrainConfig
from nmt.config.stored import load_run, warn_of_edits
from nmt.data.batches.training_split import TrainingText
from nmt.data.configs import DataConfig
from nmt.data.parallel_text import ParallelText, Split
from nmt.errors import UserError, tell
from nmt.runs.directory import RunDirectory
from nmt.runs.learnt_files import require_same_files
from nmt.runs.start import require_unchanged
from nmt.runs.teachers import require_same_teachers
from nmt.runs.train import train
from nmt.runs.training_data import prepare
from nmt.runtime_config import Precision


class _StoredData:
    """The data of a finished run, which the data of its repetition must equal; nothing is written."""

    def __init__(self, run: RunDirectory):
        self.run, self.path = run, run.path

    def keep_text(self, split: Split, text: ParallelText, data: DataConfig) -> None:
        """Raise `UserError` when the pairs differ from the copy in the run."""
        self.run.require_same_text(split, text, data)

    def require_same_data(self, text: TrainingText) -> None:
        """Raise `UserError` when the training pairs differ from those of the run, by their hash."""
        if (self.path / "data" / "train.json").is_file():
            self.run.require_same_data(text)

    def seal(self) -> None:
        """Raise `UserError` when a file of the run has changed."""
        self.run.verify()


def run(trial: Composed) -> dict[str, Any]:
    """Train a run again, print what agrees and what differs, and return the new scores.

    Raises:
        UserError: the run is not finished, or its data, or what else it learnt from, is not what it was.
        NotReproduced: a score differs by more than `tolerance`.
    """
    cfg = trial.to_config(ReproduceConfig)
    then = Path(cfg.run)
    stored = load_run(cfg.run, tuned=False)
    warn_of_edits(then / "config.yaml")
    beside = then if then.name not in ("", "..") else then.resolve()
    now = Path(cfg.output) if cfg.output is not None else beside.with_name(f"{beside.name}-reproduced")
    record = read_run(then)
    if not record.results:
        raise UserError(
            f"run={then} has no scores to compare with, as its state is {record.state}; reproduce needs the "
            "directory of a finished training"
        )
    if now.exists() and now.samefile(then):
        raise UserError(f"output={now} is the run itself; choose another folder for the repetition")
    if stored.trainer.max_minutes:
        tell(
            f"trainer.max_minutes={stored.trainer.max_minutes:g} ends a training by the clock: the "
            "repetition may have more or fewer updates"
        )
    first = RunDirectory(then, key="")
    again = repetition(stored, first, now)
    check(again)
    _require_same_teaching(again, first, RunDirectory(now))
    _require_same_data(again, first)
    results = train(again, now, "output")
    found = reproduction(then, now)
    print(f"\nrun         {then}\nagain       {now}\n\n{report(found)}")
    require_reproduced(found, cfg.tolerance)
    print(f"reproduced: no score differs by more than tolerance={cfg.tolerance:g}")
    return results


def repetition(stored: TrainConfig, then: RunDirectory, now: Path) -> TrainConfig:
    """Return the config of a repetition, in the number format that `auto` was on the CPU of the run."""
    found = then.precision()
    if stored.runtime.precision is Precision.auto and found in Precision.__members__:
        runtime = dataclasses.replace(stored.runtime, precision=Precision[found])
        stored = dataclasses.replace(stored, runtime=runtime)
    return dataclasses.replace(stored, run=str(now))


def _require_same_teaching(cfg: TrainConfig, then: RunDirectory, now: RunDirectory) -> None:
    """Raise `UserError` unless start, teachers, alignments and vectors of a repetition are those of the run.

    A repetition that is finished is only reported, and one that has begun needs its start no more.
    """
    if now.results() is not None:
        return
    require_unchanged(then, cfg, is_needed=not now.checkpoints.steps())
    require_same_teachers(then, cfg)
    require_same_files(then, cfg)


def _require_same_data(cfg: TrainConfig, run: RunDirectory) -> None:
    """Raise `UserError` unless the data that `cfg` names is that of `run`; what is read is cached."""
    tell(f"comparing the data with that of {run.path}")
    prepare(cfg, _StoredData(run), log=lambda line: None)
