"""A sweep from its first trial to its table: what is missing is run, whatever happens to single trials."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from nmt.comparison.record import read_run, training_data
from nmt.config import small_data
from nmt.config.composed import Composed
from nmt.config.explain import leaves
from nmt.config.roots import TrainConfig
from nmt.config.stored import PLACE, difference, load_config, matches, may_change
from nmt.config.sweeps import Launcher, Pruner, digest
from nmt.config.trials import Sweep
from nmt.data.parallel_text import stamp_of_files
from nmt.errors import Interrupted, UserError, first_of, in_one_line, tell, visible
from nmt.files import locked
from nmt.loading import loaded
from nmt.runs.directory import RunDirectory
from nmt.sweeps.attempts import ORPHAN_SECONDS, Outcome, Report, Signals
from nmt.sweeps.processes import Action, Processes, TrialRunner
from nmt.sweeps.ranking import Ranking
from nmt.sweeps.records import COSTS, Record, Records, infinite, scores_of
from nmt.sweeps.search import JOURNAL
from nmt.sweeps.slurm import SlurmJobs
from nmt.sweeps.study import MOVABLE, lasting, study_of
from nmt.sweeps.table import label, show
from nmt.training.checkpoint import MANIFEST

FAILED = 3
"""Exit code of a sweep with failed trials."""
POLL_SECONDS = 1.0
"""Time between two looks at the validation curves of a search."""
SLURM_SEARCH = 4
"""Jobs at a time of a search with Slurm, unless sweep.parallel says otherwise."""


def sweep(plan: Sweep, action: Action, report: Report) -> int:
    """Run what is missing, print the table and return the exit code; or only show what would run.

    Raises:
        Interrupted: a signal has arrived; the table has the trials that had begun.
    """
    _require_own_outputs(plan)
    ranking = Ranking.of(plan)
    if plan.is_listed:
        _require_one_that_can_go_on(plan)
        _list(plan, _records(plan, ranking))
        return 0
    with Signals() as signals, _alone(plan.folder, signals):
        drive = _Drive(plan, ranking, action, report, signals)
        drive.run()
        drive.records.write()  # also where nothing was missing: what ranks the trials may be new
        show(drive.records)
    states = [record.state for record in drive.records.trials.values()]
    if signals.first is not None:
        raise Interrupted(
            signals.first,
            f"stopped by {signals.first.name}; {states.count('done')} of {drive.total} trials are done; "
            "the same command goes on from there",
        )
    return FAILED if "failed" in states else 0


class _Drive:
    """A sweep that runs."""

    def __init__(self, plan: Sweep, ranking: Ranking, action: Action, report: Report, signals: Signals):
        self.plan, self.ranking, self.signals = plan, ranking, signals
        self.records = _records(plan, ranking)
        slots = plan.cfg.parallel or 1
        if plan.cfg.launcher is Launcher.slurm:
            slots = (plan.cfg.parallel or SLURM_SEARCH) if plan.space else len(plan.trials)
            at_once = plan.cfg.parallel or slots
            runner: TrialRunner = SlurmJobs(plan.cfg, plan.verb.name, report, plan.folder, slots, at_once)
        else:
            loaded(plan.verb.code)  # once, not in each process
            runner = Processes(slots, plan.cfg.processes, action, report, signals, plan.folder / "logs")
            if slots > 1:
                tell(f"output of the trials: {plan.folder / 'logs'}")
        self.runner = signals.receiver = runner
        self.search = study_of(plan, ranking, slots) if plan.space else None
        self.total = self.search.total() if self.search else len(plan.trials)
        self.numbers: dict[str, int] = {}
        self.pruned: dict[str, str] = {}
        self.running: set[str] = set()
        """The trials of a search that are started, or about to be, and have not ended."""
        self.repeats: dict[str, list[str]] = {}
        """For such a trial others with its values, which wait for its end."""

    def run(self) -> None:
        """Run trials until none is left, or until a signal has arrived and all that run have ended."""
        self._recall()
        todo = self._chosen() if self.search else self._missing()
        while True:
            if self.signals.first is None:
                free = self.runner.slots - len(self.runner.running())
                self._start(list(islice(todo, max(free, 0))))
            if not self.runner.running():
                return
            for name, outcome in self.runner.ended(POLL_SECONDS):
                self._settle(self.records.trials[name], outcome)
            self._prune()

    def _missing(self) -> Iterator[Composed]:
        """Yield the trials that are not finished, where every combination is tried."""
        records = self.records.trials
        taken = self._take_over([record for record in records.values() if _may_have_job(record)])
        for trial in self.plan.trials:
            if records[trial.name].state != "done" and trial.name not in taken:
                yield trial

    def _take_over(self, records: Sequence[Record]) -> list[str]:
        """Take over the jobs that an earlier command has left to Slurm; return the names of their trials."""
        if not isinstance(self.runner, SlurmJobs):
            return []
        taken = self.runner.attach({record.name: record.job for record in records})
        for name in taken:
            record = self.records.trials[name]
            self._say(record, f"is job {record.job} of Slurm")
        return taken

    def _recall(self) -> None:
        """Take note of the trials of a search that earlier commands have begun, and take over their jobs.

        One that is done is run again where its run is gone, or what an evaluation depends on has changed;
        the study gets the value that its run has by now.

        Raises:
            UserError: the run of a trial has another config than the trial has now.
        """
        _require_one_that_can_go_on(self.plan)
        revised, left = dict[str, float | None](), list[Record]()
        for name, known in self.search.known().items() if self.search else ():
            assert self.search is not None
            trial, values = self._tried(name), self.search.values(name)
            if trial is not None:
                _require_same_config(self.plan, trial)
            mark = _mark(self.plan, trial) if trial is not None else ""
            record = self.records.add(name, values, self._folder(name), mark)
            is_recorded = record.state == "done" and trial is not None and not _lacks_output(self.plan, trial)
            state = self.search.state(name)
            if state == "running" and _may_have_job(record):
                left.append(record)
            record.state, record.value = state, known.value if state == "done" else None
            same = self.records.trials.get(self.search.twin(name) or "")
            if same is not None and same.state == state and state in ("done", "pruned"):
                _take(record, same)  # the earlier trial, which was run
            elif state != "running":
                _read(record, self.ranking)
            is_there = is_recorded if record.path is None else _has_results(record.path)
            if state == "done" and (record.value is None or not is_there):
                record.state, record.value, record.scores = "waiting", None, {}
            if state == "done" and record.value != known.value:
                revised[name] = record.value
        if self.search is not None:
            for name in self._take_over(left):
                self.search.go_on(name)
                self.running.add(name)
            self.search.revise(revised)

    def _tried(self, name: str) -> Composed | None:
        """Return a trial of a search; None where its values make no config, as is said when it is run."""
        assert self.search is not None
        with contextlib.suppress(UserError):
            return self.plan.trial(name, self.search.values(name))
        return None

    def _chosen(self) -> Iterator[Composed]:
        """Yield the trials of a search; a choice that makes no config, or one made before, is not run.

        One that is run now is waited for.
        """
        assert self.search is not None
        while (chosen := self.search.next()) is not None:
            values, known = self.search.values(chosen), self.records.trials.get(chosen)
            record = known or self.records.add(chosen, values, self._folder(chosen), "")
            twin = self.search.twin(chosen, self.running)
            if twin in self.running:
                self.repeats.setdefault(twin, []).append(chosen)
                self._say(record, f"waits for {twin}, which has its values")
                continue
            if twin is not None:
                self._repeat(record, self.records.trials[twin])
                continue
            try:
                trial = self.plan.trial(chosen, values)
            except UserError as error:
                self._settle(record, Outcome(reason=in_one_line(str(error))))
                continue
            record.mark = _mark(self.plan, trial)
            self.running.add(chosen)
            yield trial

    def _repeat(self, record: Record, same: Record) -> None:
        """End a trial like another with its values."""
        assert self.search is not None
        _take(record, same)
        if record.state != "stopped":
            self.search.tell(record.name, record.value, pruned=record.state == "pruned")
        self._say(record, f"has {record.reason}")

    def _folder(self, name: str) -> Path | None:
        return self.plan.folder / name if self.plan.verb.writes_run else None

    def _start(self, trials: list[Composed]) -> None:
        """Start trials, unless a signal has arrived since they were chosen."""
        if not trials or self.signals.first is not None:
            return
        for trial in trials:
            record = self.records.trials[trial.name]
            record.state, record.reason = "running", ""
            self._say(record, "starts")
        self.records.write()
        self.runner.start(trials)
        for name in {trial.name for trial in trials} - {*self.runner.running()}:
            self.records.trials[name].state = "waiting"  # a signal came first
        if isinstance(self.runner, SlurmJobs):
            for trial in trials:
                self.records.trials[trial.name].job = self.runner.job_of(trial.name)
            self.records.write()

    def _settle(self, record: Record, outcome: Outcome) -> None:
        """Record the end of an attempt."""
        for cost in COSTS:
            setattr(record, cost, round(getattr(record, cost) + getattr(outcome, cost), 1))
        if outcome.results is not None:
            _finish(record, outcome.results, self.ranking)
        else:
            state = "pruned" if record.name in self.pruned else "stopped" if self.signals.first else "failed"
            record.state, record.reason = state, self.pruned.get(record.name, outcome.reason)
            _count(record)
        if record.state != "failed":  # a run may have refused them
            record.fixed = self.records.fixed
        if self.search is not None and record.state != "stopped":
            if record.state == "done" and record.value is None:
                record.state, record.reason = "failed", f"{self.ranking.metric} was not computed"
            self.search.tell(record.name, record.value, pruned=record.state == "pruned")
        value = "" if record.value is None else f", {label(self.ranking.metric)} {record.value:.2f}"
        told = (
            f" in {record.seconds / 60:.1f} minutes{value}"
            if record.state == "done"
            else f": {record.reason}"
        )
        self._say(record, f"{record.state}{told}")
        self.running.discard(record.name)
        for name in self.repeats.pop(record.name, []):
            self._repeat(self.records.trials[name], record)
        self.records.write()

    def _prune(self) -> None:
        """End the trials whose validation curve the pruner finds hopeless."""
        if self.search is None or self.plan.cfg.pruner is Pruner.none or self.signals.first is not None:
            return
        for name in self.runner.running():
            path = self.records.trials[name].path
            if name in self.pruned or path is None:
                continue
            values = self.ranking.so_far(Path(path))
            if self.search.is_hopeless(name, values, _last_step(Path(path))):
                step, value = list(values.items())[-1]
                self.pruned[name] = (
                    f"{label(self.ranking.metric)} {value:.2f} after step {step} "
                    f"(sweep.pruner={self.plan.cfg.pruner.name})"
                )
                self.runner.signal(signal.SIGTERM, name)

    def _say(self, record: Record, text: str) -> None:
        number = self.numbers.setdefault(record.name, [*self.records.trials].index(record.name) + 1)
        tell(f"[{number}/{self.total}] {record.name} {text}")


def _require_own_outputs(plan: Sweep) -> None:
    """Raise `UserError` where trials would write one file."""
    written = Counter(one for trial in plan.trials for one in _outputs(plan, trial)) if not plan.space else {}
    for key, file in (output for output, number in written.items() if number > 1):
        keys = [_telling(key, plan.trials) for key in plan.keys]
        named = "-".join(f"${{{key}}}" for key in keys)
        raise UserError(
            f"{key}={file} is the same for several trials; "
            + (
                f"name each by what is swept, such as '{key}={Path(file).parent / named}-{Path(file).name}'"
                if all(keys)
                else f"leave out -m, and call nmt {plan.verb.name} once for each"
            )
        )


def _outputs(plan: Sweep, trial: Composed) -> Iterator[tuple[str, str]]:
    """Yield the keys of what a trial writes, and where."""
    for key, name in plan.verb.outputs.items():
        given = OmegaConf.select(trial.cfg, key)
        if given or name:
            yield key, str(given or Path(str(trial.cfg.run), name))


def _telling(key: str, trials: Sequence[Composed]) -> str | None:
    """Return the key whose values tell those of a swept key apart: itself, or one of a group, if any does."""
    group = OmegaConf.select(trials[0].cfg, key)
    if not isinstance(group, DictConfig):
        return key
    chosen = {trial.values[key]: trial.cfg for trial in trials}.values()
    for name in leaves(group, f"{key}."):
        found = [OmegaConf.select(cfg, name) for cfg in chosen]
        if all(isinstance(one, str | int | float) for one in found) and len({*found}) == len(found):
            return name
    return None


def _last_step(run: Path) -> int | None:
    """Return the limit of a training in updates, as its own config has it; None where there is none."""
    steps: object = None
    with contextlib.suppress(UserError):  # the config is damaged, which the training will say
        steps = load_config(RunDirectory(run).config_file).trainer.max_steps
    return steps if isinstance(steps, int) else None


def _records(plan: Sweep, ranking: Ranking) -> Records:
    """Return what is known of the trials, with the state of those that are not to be run again."""
    records = Records(
        plan.folder, plan.verb.name, sys.argv, plan.keys, plan.shared, ranking.metric, ranking.direction
    )
    for trial in plan.trials if not plan.space else ():
        path = None if trial.is_rehearsal else trial.folder
        record = records.add(trial.name, dict(trial.values), path, _mark(plan, trial))
        if trial.folder is not None:
            results = _results(plan, trial, record)
            if results is not None:
                record.fixed = records.fixed
                _finish(record, results, ranking)
            elif record.state == "done":
                record.state, record.value, record.scores = "waiting", None, {}
        elif record.state == "done" and (not plan.verb.opens_run or _lacks_output(plan, trial)):
            record.state = "waiting"  # what a verb without a run reads may have changed
        elif record.state == "done":
            record.value = ranking.value(record)  # an earlier command may have ranked by another metric
        if record.state == "running" and not record.job:
            record.state = "waiting"
    return records


def _lacks_output(plan: Sweep, trial: Composed) -> bool:
    """Return whether a file that a trial has written is gone."""
    return not all(Path(file).exists() for _, file in _outputs(plan, trial))


def _mark(plan: Sweep, trial: Composed) -> str:
    """Return a digest of the config of a trial that opens runs, and of what these runs and its input are.

    What may be otherwise when a search goes on is no part of it.
    """
    if not plan.verb.opens_run:
        return ""
    cfg = trial.cfg
    if plan.space:
        cfg = OmegaConf.masked_copy(cfg, [key for key in map(str, cfg) if not matches(f"{key}.", MOVABLE)])
    values = [OmegaConf.select(trial.cfg, key) for key in ("run", "ensemble.lm", "scorers")]
    runs = [run for value in values for run in (value if OmegaConf.is_list(value) else [value]) if run]
    inputs = [Path(str(one)) for one in [trial.cfg.get("input")] if one]
    stamps = [stamp_of_files(inputs)] if inputs and inputs[0].is_file() else []
    return digest(json.dumps([OmegaConf.to_yaml(cfg), *map(_content, map(str, runs)), *stamps]))


def _content(run: str) -> str:
    """Return the results of a run, or of one that has none the manifests of its weights."""
    directory = RunDirectory(Path(run))
    if directory.results_file.is_file():
        return directory.results_file.read_text(encoding="utf-8", errors="replace")
    manifests = sorted(directory.checkpoints.directory.glob(f"*/{MANIFEST}"))
    return "".join(file.read_text(encoding="utf-8", errors="replace") for file in manifests)


def _results(plan: Sweep, trial: Composed, record: Record) -> dict[str, Any] | None:
    """Return the results of a training that is finished with exactly the config of the trial, or None.

    Where a part of it is left to the corpus, the command must be that which has begun the run: what is
    stored there does not tell who has chosen it.
    """
    assert trial.folder is not None
    if small_data.open_keys(trial.cfg) and lasting(record.fixed or {}) != lasting(plan.shared):
        return None
    run = RunDirectory(trial.folder)
    with contextlib.suppress(UserError):  # the training will say what is wrong
        results = run.results() if _has_results(run.path) and _differences(plan, trial) == [] else None
        return results if results is not None and not infinite(results) else None
    return None


def _has_results(run: str | Path) -> bool:
    return RunDirectory(Path(run)).results_file.is_file()


def _differences(plan: Sweep, trial: Composed) -> list[str] | None:
    """Return how the config of a trial differs from that of its run; None where only the verb can tell.

    Where it was computed does not count, nor what the config leaves to the corpus.
    """
    assert trial.folder is not None
    run = RunDirectory(trial.folder)
    is_training = issubclass(plan.verb.config_class(), TrainConfig) and not plan.verb.data_from
    if not is_training or trial.is_rehearsal:
        return None
    with contextlib.suppress(UserError):  # there is no run yet, or a damaged one
        stored = load_config(run.config_file)
        differing = difference(stored, run.with_found(trial.to_training_like(stored)))
        return [one for one in differing if not matches(one.partition(":")[0], PLACE)]
    return None


def _require_same_config(plan: Sweep, trial: Composed) -> None:
    """Raise `UserError` where a trial of a search has begun with another config, as before a file changed."""
    found = (_differences(plan, trial) if trial.folder is not None else None) or []
    if changed := [one for one in found if not matches(one.partition(":")[0], MOVABLE)]:
        raise UserError(
            f"{plan.folder / JOURNAL} is of a search with other settings; the run {trial.folder} and the "
            f"config of its trial differ in {first_of(changed, 3)}; give those, remove the run to train it "
            "again, or choose another sweep.dir=..."
        )


def _require_one_that_can_go_on(plan: Sweep) -> None:
    """Raise `UserError` where the runs of all trials of a list have begun with another config."""
    if plan.space:  # whose trials are looked at one by one
        return
    found = list[str]()
    for trial in plan.trials:
        has_begun = trial.folder is not None and RunDirectory(trial.folder).checkpoints.steps()
        differing = (_differences(plan, trial) if has_begun else None) or []
        found = [one for one in differing if not may_change(one.partition(":")[0])]
        if not found:
            return
    raise UserError(
        f"{plan.folder} is of a sweep with other settings; its runs and the configs of the trials differ in "
        f"{first_of(found, 3)}; give those, or choose another sweep.dir=..."
    )


def _may_have_job(record: Record) -> bool:
    """Return whether an earlier command may have left a trial to Slurm."""
    return record.state in ("running", "stopped") and bool(record.job)


def _finish(record: Record, results: dict[str, Any], ranking: Ranking) -> None:
    record.state, record.reason = "done", ""
    record.scores = scores_of(results)
    record.value = ranking.value(record)
    _count(record)


def _take(record: Record, same: Record) -> None:
    """Record the end of a trial like another with its values."""
    record.state, record.reason = same.state, f"the values of {same.name}"
    record.scores, record.value, record.path = same.scores, same.value, same.path
    record.mark, record.data = same.mark, same.data


def _read(record: Record, ranking: Ranking) -> None:
    """Record what the run of a trial of a search has of it, whose end the study knows."""
    if record.path is not None and record.state == "done":
        with contextlib.suppress(UserError):  # the run is damaged
            results = RunDirectory(Path(record.path)).results() or {}
            record.scores = {} if infinite(results) else scores_of(results)
            record.value = ranking.value(record)
    _count(record)


def _count(record: Record) -> None:
    """Record the updates and the target tokens of a training, and its time, killed attempts included."""
    if record.path is not None:
        with contextlib.suppress(UserError):  # there is no run, or a damaged one
            run = read_run(Path(record.path))
            record.updates, record.tgt_tokens = run.step, run.tokens
            record.seconds = max(record.seconds, run.seconds or 0.0)
            record.data = training_data(run.path)


@contextlib.contextmanager
def _alone(folder: Path, signals: Signals) -> Iterator[None]:
    """Lock the folder of a sweep; wait for the trials of a killed sweep, which save and hold the lock."""
    limit, told = time.monotonic() + ORPHAN_SECONDS, False
    while True:
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(locked(folder, "choose another sweep.dir=..."))
            except UserError:
                if not _owner_is_gone(folder) or time.monotonic() > limit or signals.first is not None:
                    raise
            else:
                yield
                return
        if not told:
            tell("waiting for the trials of a sweep that was killed, which save")
        told = True
        time.sleep(0.5)


def _owner_is_gone(folder: Path) -> bool:
    """Return whether a process of this machine has locked a folder that is gone, unlike its trials."""
    words = list[str]()
    with contextlib.suppress(OSError):  # the folder cannot be made, or is that of another user
        words = (folder / ".lock").read_text(encoding="utf-8", errors="replace").split()
    if len(words) != 4 or words[0] != "process" or words[3] != os.uname().nodename:
        return False
    return not Path("/proc", words[1]).exists()


def _list(plan: Sweep, records: Records) -> None:
    """Print what a sweep would run."""
    if plan.space:
        print(f"a search of {plan.cfg.trials or 'all'} trials in {plan.folder} by {records.metric}:")
        for key, one in plan.space.items():
            scale = " on a logarithmic scale" if one.log else ""
            print(
                f"  {key}  {', '.join(one.choices) or f'{one.text(one.low)} to {one.text(one.high)}{scale}'}"
            )
        return
    waiting = [record for record in records.trials.values() if record.state != "done"]
    print(f"{len(records.trials)} trials in {plan.folder}, {len(waiting)} to be run:")
    width = max(len(name) for name in records.trials)
    for record in records.trials.values():
        values = "  ".join(f"{key}={value}" for key, value in record.values.items())
        state = {"done": "finished", "waiting": "to run"}.get(record.state, record.state)
        print(visible(f"  {record.name:<{width}}  {state:<8}  {values}"))
