"""From the command line of a sweep to its trials: all of them, or for a search the values that they may have.

All configs of a sweep but of a search are known before its first trial starts.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra.core.override_parser.types import Override

from nmt.config.blame import is_about, refuse_all
from nmt.config.composed import Composed
from nmt.config.explain import explained
from nmt.config.named_runs import implied, stored_config
from nmt.config.overrides import (
    Arguments,
    as_lines,
    as_typed,
    combinations,
    parse_overrides,
    runs_of,
    swept_values,
)
from nmt.config.registry import config_keys
from nmt.config.schemas import set_up
from nmt.config.spelling import quoted
from nmt.config.sweeps import (
    PREFIX,
    Dimension,
    SweepConfig,
    dimension,
    file_name,
    recorded_settings,
    recorded_values,
    sweep_config,
    sweep_folder,
    trial_names,
)
from nmt.config.verb import Verb
from nmt.errors import Problems, ProblemsOfSome, UserError


@dataclass
class Sweep:
    """The trials of a sweep: all of them, or for a search the values that they may have."""

    verb: Verb
    cfg: SweepConfig
    folder: Path
    keys: list[str]
    """The swept keys, as typed."""
    space: dict[str, Dimension]
    """The values that a search may try; empty where every combination is tried."""
    is_listed: bool
    """Whether the trials are to be shown, not run."""
    fixed: dict[str, str]
    """The keys that all trials share, as typed."""
    options: dict[str, str]
    """The options that all trials share, of which configs depend: the folder of --config-dir."""
    _flags: argparse.Namespace
    _tried: dict[str, list[str]]

    @property
    def shared(self) -> dict[str, str]:
        """What all trials share: keys and options."""
        return {**self.fixed, **self.options}

    @functools.cached_property
    def trials(self) -> list[Composed]:
        """The trials, where every combination is tried; raise `UserError` with all that is wrong with any."""
        rows = combinations(self._tried)
        recorded, same = recorded_values(self.folder), recorded_settings(self.folder)
        earlier = {name: values for name, values in recorded.items() if file_name(name) == name}
        names = trial_names(rows, earlier)
        for number, row in enumerate(rows):
            known = same.get(frozenset({**self.shared, **row}.items()))
            if known in earlier:  # perhaps with other keys swept
                names[number] = known
        return self._composed(rows, names)

    @functools.cached_property
    def example(self) -> Composed:
        """A trial of the sweep, composed to see what all of them share.

        Raises:
            UserError: an end of a dimension of a search can be used with no end of the others.
        """
        if not self.space:
            return self.trials[0]
        most, problems = max((len(one.ends) for one in self.space.values()), default=0), Problems()
        for key, own in self.space.items():
            for end in own.ends:
                found = Problems()
                for turn in range(most):
                    others = {k: one.ends[turn % len(one.ends)] for k, one in self.space.items()}
                    found.clear()
                    with found.gathered():
                        example = self.trial("example", others | {key: end})
                        break
                problems += [problem for problem in found if problem not in problems]
        problems.refuse()
        return example

    def trial(self, name: str, values: Mapping[str, str]) -> Composed:
        """Return the trial of a search that sets `values`; raise `UserError` for values out of range."""
        return self._composed([values], [name])[0]

    def _composed(self, rows: Sequence[Mapping[str, str]], names: Sequence[str]) -> list[Composed]:
        """Compose and check each trial; raise `UserError` with all that is wrong with any of them."""
        made, wrong = list[Composed](), ProblemsOfSome()
        for run, group in itertools.groupby(
            sorted(zip(rows, names, strict=True), key=lambda one: one[0].get(self.verb.run_key, "")),
            key=lambda one: one[0].get(self.verb.run_key) or self.fixed.get(self.verb.run_key),
        ):
            runs = parse_overrides([f"{self.verb.run_key}={run}"]) if run else []
            key = self.verb.run_key
            stored = stored_config(self.verb, runs_of(runs, key), self._flags) if key else None
            with set_up(self.verb, stored):
                for values, name in group:
                    with wrong.gathered(name):
                        made.append(self._checked(name, values))
        wrong.refuse(len(rows))
        return sorted(made, key=lambda trial: list(names).index(trial.name))

    def _checked(self, name: str, values: Mapping[str, str]) -> Composed:
        folder = self.folder / name if self.verb.writes_run else None
        own = {"run": quoted(str(folder))} if folder else {}
        settings = {**self.fixed, **values, **own}
        lines = as_lines(settings, self._flags)
        try:
            lines = [*implied(self.verb, lines, self._flags), *lines]
            with explained():
                found = Composed.of(self.verb, lines, [*self.fixed, *values])
                found.checked(self.verb)
        except UserError as error:
            refuse_all(self.verb, lines)
            raise error
        arguments = [as_typed(key, value) for key, value in settings.items()]
        options = [word for key, value in self.options.items() for word in (f"--{key}", value)]
        return dataclasses.replace(
            found, name=name, values=dict(values), arguments=(*options, *arguments), folder=folder
        )


def plan(verb: Verb, argv: Sequence[str]) -> Sweep:
    """Return the sweep that the arguments make, with every value checked.

    Raises:
        UserError: the arguments make no sweep; the message has all that is wrong with them.
    """
    read = Arguments.read(verb, argv)
    flags, problems = read.flags, read.problems
    settings = [o for o in read.overrides if o.key_or_group.startswith(PREFIX)]
    cfg = SweepConfig()
    with problems.gathered():
        cfg = sweep_config(settings)
        if cfg.processes > 1 and not verb.shared:
            raise UserError(
                f"sweep.processes={cfg.processes}: nmt {verb.name} runs in one process; leave it out, or run "
                "several trials at a time with sweep.parallel=N"
            )
    others = [o for o in read.kept if o not in settings]
    typed = {o.get_key_element(): o for o in others}  # the last of each key
    swept = {key: o for key, o in typed.items() if o.is_sweep_override()}
    fixed = {key: o.get_value_element_as_str() for key, o in typed.items() if key not in swept}
    tried = dict[str, list[str]]()
    for key, override in swept.items():
        with problems.gathered():
            tried[key] = swept_values(verb, override, flags)
    swept = {key: override for key, override in swept.items() if key in tried}
    if verb.run_key and not {verb.run_key} & {*fixed, *swept, *read.refused}:
        with problems.gathered():
            stored_config(verb, [], flags)
    space = dict[str, Dimension]()
    for key, override in swept.items():
        with problems.gathered():
            if cfg.is_search:
                space[key] = _dimension(verb, key, override, tried[key])
            elif override.is_interval_sweep():
                raise UserError(
                    f"{override.input_line!r} has infinitely many values; list those to try: {key}=A,B, "
                    "or search among them: sweep.trials=N"
                )
    if cfg.is_search and not (swept or problems):
        problems.append("a search needs values to choose from, such as schedule.factor=interval(0.5,2)")
    options = {"config-dir": str(Path(flags.config_dir))} if flags.config_dir is not None else {}
    known = config_keys(verb.config_class())
    folder = Path(cfg.dir or sweep_folder(verb.name, [*swept], {**fixed, **options}, known))
    found = Sweep(verb, cfg, folder, [*swept], space, flags.cfg is not None, fixed, options, flags, tried)
    if problems and verb.run_key not in read.refused:  # and what is wrong with the trials
        wrong, listed = Problems(), {key: values for key, values in tried.items() if values}
        with wrong.gathered():
            dataclasses.replace(found, _tried=listed).example.checked(verb)
        problems += [one for one in wrong if not is_about(one, read.refused) and one not in problems]
    problems.refuse()
    if found.example.is_rehearsal:
        if space:
            raise UserError(
                "debug=... and dry_run=true give no scores to search by; leave them out, or leave out "
                "sweep.trials and list values to try"
            )
        found.folder = folder / "rehearsal"  # so that the files of the sweep itself stay as they are
    return found


def _dimension(verb: Verb, key: str, override: Override, tried: Sequence[str]) -> Dimension:
    """Return the values of a key in a search."""
    if key in ("seed", verb.run_key):
        raise UserError(
            f"{override.input_line!r}: a search does not choose the {key}; "
            "leave it out, and sweep it with what the search has found"
        )
    return dimension(override, tried)
