"""The trials of a search, chosen one by one with Optuna (Akiba et al. 2019) by its ask-and-tell interface.

The study is the file study.journal in the folder of the sweep, which optuna-dashboard can show, too. A trial
that was running when a search was killed goes on, with its values and in its run directory; one that has
failed is tried again. Each choice has a seed of its own, so that trials one at a time are the same whether or
not the search was interrupted.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt import extras
from nmt.config.sweeps import Dimension, Direction, Pruner, Sampler, SweepConfig, trial_name
from nmt.errors import UserError

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial, Trial

JOURNAL = "study.journal"
NAME = "name"
"""Attribute of a trial of Optuna: the name of our trial, which several attempts share."""
SETTINGS = "settings"
"""Attribute of a study of Optuna: what all of its trials share, as the command line has it."""
METRIC = "sweep.metric"
"""Setting that the studies of earlier versions have not stored."""


class Search:
    """The study of a search; to be used by one process at a time."""

    def __init__(
        self,
        cfg: SweepConfig,
        space: Mapping[str, Dimension],
        folder: Path,
        direction: Direction,
        *,
        parallel: int,
        first_step: int,
        last_step: int | None,
        settings: Mapping[str, str],
    ):
        """Open the study in `folder`, or begin one; `first_step` and `last_step` are of the validations.

        `settings` are what all trials share.

        Raises:
            UserError: Optuna is not installed, or the study has other dimensions or settings.
        """
        self._optuna = _imported()
        self._cfg, self._space, self._parallel = cfg, dict(space), parallel
        self._distributions = {key: self._distribution(one) for key, one in space.items()}
        folder.mkdir(parents=True, exist_ok=True)
        self._file, self._direction = folder / JOURNAL, direction
        self._pruner = self._pruner_of(first_step, last_step)
        self._study = self._opened()
        self._require_settings(settings)
        self._asked: dict[str, Trial] = {}
        self._planned = self._plan()

    def total(self) -> int:
        """Return the number of trials that the search has in the end."""
        is_grid = self._cfg.sampler is Sampler.grid
        most = len(self.known()) + len(self._untried()) if is_grid else None
        return min(one for one in (self._cfg.trials, most) if one is not None)

    def known(self) -> dict[str, FrozenTrial]:
        """Return the newest attempt at each trial, by the name of the trial."""
        attempts = self._study.get_trials(deepcopy=False)
        return {self._name(one): one for one in attempts if one.params.keys() == self._space.keys()}

    def values(self, name: str) -> dict[str, str]:
        """Return the values that a trial has chosen."""
        return self._texts(self.known()[name].params)

    def next(self) -> str | None:
        """Return the name of a trial to be run: one that was interrupted, has failed, or is new; or None."""
        if self._planned:
            return self._resumed(self._planned.pop(0))
        number = len(self.known())
        if number >= self.total():
            return None
        self._study.sampler = self._sampler(self._cfg.seed + number)
        if self._cfg.sampler is Sampler.grid:
            self._study.enqueue_trial(self._untried()[0])
        return self._ask()

    def go_on(self, name: str) -> None:
        """Take up a trial that an earlier command has left running, and that is to be started no more."""
        self._planned.remove(name)
        self._resumed(name)

    def revise(self, values: Mapping[str, float | None]) -> None:
        """Let trials that are done have other values; one without a value is open, and run again.

        Optuna changes no trial that has ended: the study is written anew, with the trials in their order.
        """
        if not values:
            return
        states, newest = self._optuna.trial.TrialState, {one.number: x for x, one in self.known().items()}
        trials = self._study.get_trials()
        for one in (trial for trial in trials if newest.get(trial.number) in values):
            one.value = values[newest[one.number]]
            if one.value is None:
                one.state, one.datetime_complete, one.intermediate_values = states.RUNNING, None, {}
        draft = self._file.with_name(f"{JOURNAL}.new")
        _mend(draft)
        draft.unlink(missing_ok=True)
        study = self._study_in(draft)
        for key, setting in self._study.user_attrs.items():
            study.set_user_attr(key, setting)
        study.add_trials(trials)
        draft.replace(self._file)
        self._study = self._study_in(self._file)
        self._planned += [name for name, value in values.items() if value is None]
        self._asked = {name: self._handle(self.known()[name]) for name in self._asked}

    def tell(self, name: str, value: float | None, *, pruned: bool = False) -> None:
        """Record the end of a trial: its value, None if it has failed; or that it was pruned."""
        states = self._optuna.trial.TrialState
        state = states.PRUNED if pruned else states.COMPLETE if value is not None else states.FAIL
        with_value = value if state is states.COMPLETE else None
        self._study.tell(self._asked.pop(name).number, with_value, state=state)

    def twin(self, name: str, running: Collection[str] = ()) -> str | None:
        """Return another trial with the same values, and so the same end: done, pruned or `running`."""
        known, states = self.known(), self._optuna.trial.TrialState
        ended, mine = (states.COMPLETE, states.PRUNED), self._texts(known[name].params)
        others = (x for x, one in known.items() if x != name and (x in running or one.state in ended))
        return next((other for other in others if self._texts(known[other].params) == mine), None)

    def is_hopeless(self, name: str, curve: Mapping[int, float], last_step: int | None) -> bool:
        """Return whether the pruner ends a trial, given its curve by step; none that is at its last step."""
        trial = self._asked[name]
        reported = self._study._storage.get_trial(trial._trial_id).intermediate_values
        for step, value in curve.items():
            if step not in reported:
                trial.report(value, step)
        is_over = bool(curve) and last_step is not None and max(curve) >= last_step
        return bool(curve) and not is_over and trial.should_prune()

    def state(self, name: str) -> str:
        """Return how the newest attempt at a trial has ended: done, pruned or failed; or running."""
        states = self._optuna.trial.TrialState
        told = {states.COMPLETE: "done", states.PRUNED: "pruned", states.FAIL: "failed"}
        return told.get(self.known()[name].state, "running")

    def _plan(self) -> list[str]:
        """Return the trials that earlier commands have not finished."""
        states = self._optuna.trial.TrialState
        while self._study.get_trials(deepcopy=False, states=[states.WAITING]):  # a kill came in between
            self._study.tell(self._study.ask(), state=states.FAIL)
        for half in self._study.get_trials(deepcopy=False, states=[states.RUNNING]):
            if half.params.keys() != self._space.keys():
                self._study.tell(half.number, state=states.FAIL)
        return [name for name, one in self.known().items() if one.state in (states.RUNNING, states.FAIL)]

    def _resumed(self, name: str) -> str:
        """Let a trial go on under its name; one that has ended as a new attempt."""
        attempt = self.known()[name]
        if attempt.state.name == "RUNNING":
            self._asked[name] = self._handle(attempt)
            return name
        if attempt.state.name == "FAIL":
            self._study.enqueue_trial(attempt.params, user_attrs={NAME: name})
        return self._ask()

    def _handle(self, attempt: FrozenTrial) -> Trial:
        """Return what reports to the study for an attempt that runs."""
        return self._optuna.trial.Trial(self._study, attempt._trial_id)

    def _ask(self) -> str:
        trial = self._study.ask(self._distributions)
        name = self._name(trial)
        trial.set_user_attr(NAME, name)
        self._asked[name] = trial
        return name

    def _name(self, trial: Trial | FrozenTrial) -> str:
        fixed = trial.user_attrs.get(NAME)
        return fixed or f"{trial.number:03d}+{trial_name(self._texts(trial.params))}"

    def _texts(self, params: Mapping[str, Any]) -> dict[str, str]:
        return {key: one.text(params[key]) for key, one in self._space.items()}

    def _untried(self) -> list[dict[str, Any]]:
        """Return the combinations that no trial has, also none of an earlier command with other values."""
        tried = [self._texts(one.params) for one in self.known().values()]
        return [row for row in self._grid() if self._texts(row) not in tried]

    def _grid(self) -> list[dict[str, Any]]:
        """Return every combination of the values."""
        lists = []
        for key, one in self._space.items():
            if not one.choices and (one.step is None or one.log):
                raise UserError(f"sweep.sampler=grid needs a list of values: {key}=A,B or {key}=range(A,B)")
            count = 0 if one.choices else round((one.high - one.low) / (one.step or 1)) + 1
            steps = [one.low + n * (one.step or 1) for n in range(count)]
            lists.append([*one.choices, *(round(x) if one.whole else float(f"{x:.12g}") for x in steps)])
        return [dict(zip(self._space, row, strict=True)) for row in itertools.product(*lists)]

    def _distribution(self, one: Dimension) -> Any:
        made = self._optuna.distributions
        if one.choices:
            return made.CategoricalDistribution(one.choices)
        if one.whole:
            return made.IntDistribution(round(one.low), round(one.high), one.log, round(one.step or 1))
        return made.FloatDistribution(one.low, one.high, one.log, one.step)

    def _sampler(self, seed: int) -> Any:
        samplers, startup = self._optuna.samplers, self._cfg.startup_trials
        if self._cfg.sampler is Sampler.tpe:
            together = self._parallel > 1
            return samplers.TPESampler(n_startup_trials=startup, seed=seed, constant_liar=together)
        return samplers.RandomSampler(seed=seed)

    def _pruner_of(self, first_step: int, last_step: int | None) -> Any:
        pruners, startup = self._optuna.pruners, self._cfg.startup_trials
        if self._cfg.pruner is Pruner.median:
            return pruners.MedianPruner(n_startup_trials=startup)
        if self._cfg.pruner is Pruner.hyperband:
            return pruners.HyperbandPruner(first_step, last_step or "auto")
        return pruners.NopPruner()

    def _opened(self) -> Study:
        """Return the study in the folder, or a new one; raise `UserError` where it is another."""
        file = self._file
        _mend(file)
        try:
            study = self._study_in(file)
        except (OSError, ValueError, TypeError, KeyError) as error:
            told = f"{type(error).__name__}: {error}"
            raise UserError(
                f"{file} is damaged ({told}); remove it, or choose another sweep.dir=..."
            ) from error
        if study.direction.name != self._direction.name.upper():
            raise UserError(
                f"{file} is of a search that was to {study.direction.name.lower()} another metric; "
                "choose another sweep.dir=..."
            )
        for trial in study.get_trials(deepcopy=False):
            for key, stored in trial.distributions.items():
                self._require_same(key, stored)
        return study

    def _study_in(self, file: Path) -> Study:
        """Return the study in a file, or a new one."""
        journal = self._optuna.storages.journal
        return self._optuna.create_study(
            storage=self._optuna.storages.JournalStorage(journal.JournalFileBackend(str(file))),
            study_name="sweep",
            direction=self._direction.name,
            load_if_exists=True,
            sampler=self._sampler(self._cfg.seed),
            pruner=self._pruner,
        )

    def _require_settings(self, settings: Mapping[str, str]) -> None:
        """Raise `UserError` unless the trials of the study have these settings; a new study keeps them."""
        stored = self._study.user_attrs.get(SETTINGS)
        if stored is None:
            self._study.set_user_attr(SETTINGS, dict(settings))
            return
        stored = {METRIC: settings.get(METRIC), **stored}
        keys = dict.fromkeys([*stored, *settings])
        changed = [
            f"{key}={stored.get(key, 'not set')}" for key in keys if stored.get(key) != settings.get(key)
        ]
        if changed:
            raise UserError(
                f"{self._file} is of a search with other settings, {', '.join(changed)}; give those, or "
                "choose another sweep.dir=..."
            )

    def _require_same(self, key: str, stored: Any) -> None:
        """Raise `UserError` unless a dimension is one that the study can go on with."""
        own = self._distributions.get(key)
        listed = self._optuna.distributions.CategoricalDistribution
        is_same = type(own) is type(stored) and (not isinstance(own, listed) or own == stored)
        if not is_same or getattr(own, "log", None) != getattr(stored, "log", None):
            raise UserError(
                f"{self._file} is of a search in which {key} had other values, {stored}; "
                "give those, or choose another sweep.dir=..."
            )


def _imported() -> Any:
    """Return the library; raise `UserError` where it is not installed."""
    extras.require("search", "a search")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _mend(file: Path) -> None:
    """Remove what a kill has left of a journal: a line cut short, and a lock; no other process uses it."""
    file.with_name(f"{file.name}.lock").unlink(missing_ok=True)
    if file.is_file():
        content = file.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(file, whole)
