"""Trials as jobs of Slurm, submitted with submitit as one array.

A job is the command of its trial. It is asked to save some time before its limit, saves, is queued again and
goes on, as `nmt.signals` says; Slurm itself queues a preempted job again. Its end is told in a file of the
folder slurm/ of the sweep, where its output is, too. Jobs outlive the command that has submitted them: the
same command again finds them.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from nmt import extras
from nmt.config.sweeps import SlurmConfig, SweepConfig
from nmt.errors import UserError, in_one_line, warn
from nmt.files import read_json, write_json
from nmt.sweeps.attempts import Outcome, Report, attempt
from nmt.sweeps.records import COSTS

if TYPE_CHECKING:
    from nmt.config.composed import Composed

ENDED = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "TIMEOUT",
)
"""States after which Slurm does not run a job again by itself."""
CANCEL_SECONDS = 30.0
"""Longest time to wait for scancel."""
FILE_SECONDS = 10.0
"""Longest time from the end of a job to the appearance of what it wrote, on a shared disk."""


def run_job(verb: str, arguments: Sequence[str], report: Report, processes: int, file: Path) -> None:
    """Run a trial, in its job, and write its outcome to `file`, with what earlier attempts have cost.

    A trial that was stopped writes only what it has cost, to a file beside it.
    """
    from nmt.config.compose import compose
    from nmt.verbs import VERBS

    def work() -> dict[str, Any]:
        return VERBS[verb].run(compose(VERBS[verb], arguments)[0])

    code, outcome = attempt(work, report, processes)
    spent = file.with_suffix(".spent.json")
    costs = read_json(spent, dict.fromkeys(COSTS, float)) if spent.is_file() else dict.fromkeys(COSTS, 0.0)
    costs = {cost: round(costs[cost] + getattr(outcome, cost), 1) for cost in COSTS}
    if code < 128:
        write_json(file, {**vars(outcome), **costs})
        spent.unlink(missing_ok=True)
    else:
        write_json(spent, costs)
    os._exit(code)  # with no result for submitit, which would make a file of Python's own kind of it


class SlurmJobs:
    """Trials in jobs of Slurm."""

    def __init__(self, cfg: SweepConfig, verb: str, report: Report, folder: Path, slots: int, at_once: int):
        """`at_once` jobs of the array run at a time.

        Raises:
            UserError: submitit is not installed, or this machine has no Slurm.
        """
        self.slots, self._cfg, self._verb, self._report = slots, cfg.slurm, verb, report
        self._processes = cfg.processes
        self._folder, self._at_once = folder / "slurm", at_once
        extras.require("slurm", "sweep.launcher=slurm")
        self._submitit: Any = import_module("submitit")
        self._jobs: dict[str, Any] = {}
        self._gone: dict[str, float] = {}
        self._asked: set[str] = set()
        self._left: set[str] = set()
        self._executor = self._executor_for(cfg.slurm)

    def start(self, trials: Sequence[Composed]) -> None:
        """Submit the trials as one array; raise `UserError` where Slurm refuses it."""
        jobs = []
        try:
            with self._executor.batch():
                for trial in trials:
                    self._file(trial.name).unlink(missing_ok=True)
                    arguments = list(trial.arguments)
                    if trial.folder and not any(x.startswith("runtime.requeue=") for x in arguments):
                        arguments.append("runtime.requeue=true")
                    file = self._file(trial.name).absolute()
                    settings = (self._verb, arguments, self._report, self._processes, file)
                    jobs.append(self._executor.submit(run_job, *settings))
        except (self._submitit.core.utils.FailedJobError, OSError) as error:
            told = in_one_line(str(error))
            raise UserError(f"sweep.launcher=slurm: the jobs cannot be submitted: {told}") from error
        self._jobs |= {trial.name: job for trial, job in zip(trials, jobs, strict=True)}

    def job_of(self, name: str) -> str:
        """Return the number of the job of a running trial."""
        return str(self._jobs[name].job_id)

    def attach(self, numbers: Mapping[str, str]) -> list[str]:
        """Take over the jobs of an earlier command, by trial, that still count; return their trials."""
        jobs = {
            name: self._submitit.SlurmJob(folder=self._folder, job_id=number, tasks=[0])
            for name, number in numbers.items()
        }
        self._ask()
        gone = (*ENDED, "UNKNOWN")
        found = [x for x, job in jobs.items() if self._file(x).is_file() or self._state(job) not in gone]
        self._jobs |= {name: jobs[name] for name in found}
        return found

    def running(self) -> list[str]:
        """Return the names of the trials whose jobs wait or run."""
        return list(self._jobs)

    def ended(self, seconds: float) -> list[tuple[str, Outcome]]:
        """Return the trials whose jobs have ended, after a while; `seconds` count where they are more."""
        limit = time.monotonic() + max(seconds, self._cfg.poll_seconds)
        while time.monotonic() < limit and not self._left:  # a signal may arrive meanwhile
            time.sleep(0.1)
        self._ask()
        found = [(name, self._outcome(name, job)) for name, job in self._jobs.items()]
        ended = [(name, outcome) for name, outcome in found if outcome is not None]
        for name, _ in ended:
            del self._jobs[name]
        return ended

    def signal(self, number: int, name: str | None = None) -> None:
        """Cancel the job of a trial, or all: Slurm sends SIGTERM, and the trial saves.

        Where all are to end, one that cannot be cancelled, or is told so again, is waited for no longer.
        """
        for one, job in list(self._jobs.items()):
            if name not in (None, one):
                continue
            wrong = _cancelled(str(job.job_id))
            if wrong:
                warn(f"scancel {job.job_id} failed: {wrong}")
            if name is None and (wrong or one in self._asked):
                self._left.add(one)
            self._asked.add(one)

    def _outcome(self, name: str, job: Any) -> Outcome | None:
        if self._file(name).is_file():
            kinds = get_type_hints(Outcome)
            content = read_json(self._file(name), kinds)
            return Outcome(**{key: content[key] for key in kinds if key in content})
        if name in self._left:
            return Outcome(reason=f"left to Slurm as job {job.job_id}; the same command finds it again")
        state = self._state(job)
        if state not in ENDED:
            self._gone.pop(name, None)
            return None
        if state in ("COMPLETED", "FAILED"):  # its file is there later than the look for it, or than its end
            now = time.monotonic()
            first = self._gone.setdefault(name, now)
            if first == now or now - first < FILE_SECONDS:
                return None
        return Outcome(reason=f"job {job.job_id} of Slurm: {state}, see {job.paths.stderr}")

    def _ask(self) -> None:
        """Ask Slurm for the states of all jobs, at once."""
        self._submitit.SlurmJob.watcher.update()

    def _state(self, job: Any) -> str:
        """Return the state of a job that Slurm has told last."""
        info = job.watcher.get_info(job.job_id, mode="cache")
        return (str(info.get("State", "")).split() or ["UNKNOWN"])[0].rstrip("+").upper()

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def _executor_for(self, cfg: SlurmConfig) -> Any:
        try:
            executor = self._submitit.SlurmExecutor(folder=self._folder)
        except RuntimeError as error:
            raise UserError(f"sweep.launcher=slurm: {error}") from error
        options = {"signal": f"USR1@{cfg.save_seconds}", "requeue": True, **cfg.options}
        settings = {
            "job_name": "nmt",
            "partition": cfg.partition,
            "account": cfg.account,
            "time": cfg.minutes,
            "cpus_per_task": cfg.cpus,
            "gpus_per_node": cfg.gpus or None,
            "mem": None if cfg.memory_gb is None else f"{round(cfg.memory_gb * 1024)}MB",
            "setup": cfg.setup or None,
            "array_parallelism": self._at_once,
            "additional_parameters": options,
        }
        executor.update_parameters(**{key: value for key, value in settings.items() if value is not None})
        return executor


def _cancelled(job: str) -> str:
    """Cancel a job; return what is wrong where that fails."""
    try:
        done = subprocess.run(
            ["scancel", job], capture_output=True, text=True, check=False, timeout=CANCEL_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stderr.strip() or f"exit code {done.returncode}" if done.returncode else ""
