"""From the command line of one verb to its configs, through Hydra.

Hydra composes, and nothing else: training runs outside of Hydra, and all configs of a sweep but of a search
are known before its first trial starts. Nothing is instantiated from a config: the schema in the defaults
list of a choice states its dataclass.

All verbs but `train` start from the config of their run. That config enters the composition as the choice
`from_run`, which is typed and overridden like any other choice.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import hydra
from hydra.core.config_store import ConfigNode, ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf, open_dict

from nmt.config import help, small_data
from nmt.config.explain import explained, is_missing
from nmt.config.overrides import (
    FROM_RUN,
    choices,
    combinations,
    config_dir,
    parse_flags,
    parse_overrides,
    quoted,
    runs_of,
    swept_values,
    usable,
)
from nmt.config.plain import UserFiles
from nmt.config.registry import SCHEMA_PREFIX, VARIANTS
from nmt.config.roots import Root, Task, TrainConfig, check, to_config
from nmt.config.small_data import Setting
from nmt.config.starting import VocabularyUse, following, kept
from nmt.config.stored import fingerprint, load_config, to_plain
from nmt.config.sweeps import (
    PREFIX,
    Dimension,
    SweepConfig,
    dimension,
    file_name,
    sweep_config,
    sweep_folder,
    trial_names,
)
from nmt.config.verb import Verb
from nmt.containment import require_contained
from nmt.errors import Problems, UserError, first_of, suggest, tell

WITHOUT = tuple(
    f"~hydra/{group}"
    for group in (
        *("output", "launcher", "sweeper", "help"),
        *("hydra_help", "job_logging", "hydra_logging", "env"),
    )
)
"""Overrides without what Hydra adds for itself and nothing here uses: a quarter of its time."""


@dataclass
class Composed:
    """One config as Hydra composed it, not yet checked."""

    cfg: DictConfig
    choices: dict[str, Any]
    """Group -> the choice in force."""
    name: str = ""
    """Name of the trial; empty outside of a sweep."""
    values: Mapping[str, str] = field(default_factory=dict)
    """The values that the sweep sets in this trial, as the command line has them."""
    arguments: tuple[str, ...] = ()
    """The command that is the trial alone, after the verb."""
    folder: Path | None = None
    """Run directory of the trial, for a verb that trains."""

    @property
    def is_rehearsal(self) -> bool:
        """Whether a training is only tried, with debug=... or dry_run=true, and has no scores."""
        return bool(self.cfg.get("debug") or self.cfg.get("dry_run"))

    def to_config(self, root: type[Root]) -> Root:
        """Return the dataclasses; raise `UserError` for values that are missing or out of range.

        Keys that the rules for small data are to choose have the values for a usual corpus.
        """
        return to_config(_keys_of(root, _closed(self.cfg)), root)

    def checked(self, verb: Verb) -> None:
        """Raise `UserError` where the config of `verb` does not hold, before its code is imported."""
        cfg = self.to_config(verb.config_class())
        if isinstance(cfg, TrainConfig) and not verb.data_from:  # else it depends on other runs
            check(cfg)

    def to_training(self) -> tuple[TrainConfig, Path]:
        """Return the checked config of a training, and its run directory; read the data if it decides."""
        cfg = self.to_config(TrainConfig)
        check(cfg)
        if settings := self.chosen():
            cfg = to_config(_keys_of(TrainConfig, small_data.filled(self.cfg, settings)), TrainConfig)
            check(cfg)
        return cfg, self.run_dir(cfg)

    def chosen(self) -> list[Setting]:
        """Choose what the config leaves open by the training data, and say why on standard error."""
        missing = small_data.open_keys(self.cfg)
        if not missing:
            return []
        training = _keys_of(TrainConfig, self.cfg)
        cfg = to_config(_closed(training), TrainConfig)
        if {*missing} <= {*small_data.WITHOUT_RECIPE}:
            settings, model = small_data.without_recipe(cfg, training)
            if model:
                self.choices = self.choices | {"model": model}
            if told := [one for one in settings if one.reason]:
                tell(self._defaults(told))
            return settings
        census = small_data.counted(cfg)
        settings = small_data.settings_for(census, training)
        for line in small_data.remarks(census, training, settings):
            tell(line)
        return [setting for setting in settings if setting.key in missing]

    def _defaults(self, settings: Sequence[Setting]) -> str:
        """Return the line on what a training takes that leaves this open, and how others are chosen."""
        shown = dict[str, str]()
        for one in settings:
            is_of_model = one.key in small_data.MODEL
            shown["model" if is_of_model else one.key] = (
                f"{self.choices['model'] if is_of_model else one.value} ({one.reason})"
            )
        line = " and ".join(f"{key}={value}" for key, value in shown.items())
        if small_data.VOCABULARY not in shown:
            return f"by the corpus: {line}"
        return (
            f"without a recipe: {line}; set {' and '.join(shown)} for others, or take "
            "experiment=small_data, which chooses by the pairs, up to some hundred thousand of them"
        )

    def run_dir(self, cfg: TrainConfig) -> Path:
        """Return the run directory of a training that begins with this config."""
        if cfg.run is not None:
            return Path(cfg.run)
        languages = [cfg.data.src, cfg.data.tgt] if cfg.task is Task.translation else [cfg.data.tgt]
        data = file_name("-".join([str(self.choices.get("data")), *languages]))
        model = str(self.choices.get("model")).removeprefix(SCHEMA_PREFIX)
        return _found_again(Path("outputs", data), file_name(model), cfg)


def _keys_of(root: type[Any], cfg: DictConfig) -> DictConfig:
    """Return a config without the keys that `root` does not have, such as those of one verb alone."""
    return OmegaConf.masked_copy(cfg, [part.name for part in dataclasses.fields(root)])


def _closed(cfg: DictConfig) -> DictConfig:
    """Return `cfg` with values for a usual corpus where the rules for small data are to choose."""
    with explained():
        if not small_data.open_keys(cfg):
            return cfg
        return small_data.filled(cfg, small_data.settings_for(small_data.NOMINAL, cfg))


def _found_again(folder: Path, name: str, cfg: TrainConfig) -> Path:
    """Return the directory of the run of `cfg` in `folder`, even one stored under old keys, or a new one."""
    mark = fingerprint(cfg)
    new = folder / f"{name}-{mark}"
    for file in sorted(folder.glob(f"{name}-*/config.yaml")) if not new.exists() else []:
        with suppress(UserError):  # is no config of this version
            if fingerprint(load_config(file)) == mark:
                return file.parent
    return new


def compose(verb: Verb, argv: Sequence[str]) -> list[Composed]:
    """Return the config that the arguments, which are no sweep, make, or none after showing help.

    Raises:
        UserError: the arguments make no config; the message has all that is wrong with them.
    """
    flags, overrides, problems = _read(verb, argv)
    stored = None
    if verb.run_key and verb.run_key not in _refused(flags, overrides):
        with problems.gathered():
            stored = _stored(verb, runs_of(overrides, verb.run_key), flags)
    if flags.help or flags.cfg is not None or flags.info is not None or (verb.run_key and stored is None):
        problems.refuse()
    line = _line({o.get_key_element(): o.get_value_element_as_str() for o in _kept(flags, overrides)}, flags)
    line = [*_implied(verb, line), *line]
    with _hydra(verb, stored) as hydra_app:
        if flags.help:
            found = _composed(verb, line)
            groups = {group: choices(verb, group, flags) for group in verb.groups}
            for key, group in verb.mounts.items():
                groups[key] = choices(verb, group, flags)
                found.choices[key] = found.choices.get(f"{group}@{key}")
            print(help.render(verb, found.cfg, found.choices, groups, flags.topics))
        elif flags.cfg is not None:
            shown = [*line, *(f"{x.key}={x.value}" for x in _composed(verb, line).chosen())]
            hydra_app.show_cfg(verb.name, shown, cfg_type=flags.cfg, package=None, resolve=flags.resolve)
        elif flags.info is not None:
            hydra_app.show_info(flags.info, verb.name, line)
        else:
            with problems.gathered(), explained():
                composed = _composed(verb, line)
                composed.checked(verb)
            if not problems:
                return [composed]
            with problems.gathered():
                _refuse_all(verb, line)
            problems.refuse()
    return []


def _read(verb: Verb, argv: Sequence[str]) -> tuple[argparse.Namespace, list[Override], Problems]:
    """Return the flags, the overrides that can be used, and what is wrong with the others."""
    flags = parse_flags(verb, argv)
    problems, overrides = Problems(), list[Override]()
    for argument in flags.overrides:
        with problems.gathered():
            overrides.append(usable(verb, argument, flags))
    return flags, overrides, problems


def _refused(flags: argparse.Namespace, overrides: Sequence[Override]) -> set[str]:
    """Return the first words of the arguments that cannot be used."""
    return {argument.partition("=")[0] for argument in flags.overrides} - {o.key_or_group for o in overrides}


def _kept(flags: argparse.Namespace, overrides: Sequence[Override]) -> list[Override]:
    """Return the overrides that are not below a choice which cannot be used."""
    refused = _refused(flags, overrides)
    return [o for o in overrides if o.key_or_group.partition(".")[0] not in refused]


def _line(values: Mapping[str, str], flags: argparse.Namespace) -> list[str]:
    """Return the overrides that set `values`, and the folder with the choices of the user."""
    line = [f"{key}={value}" for key, value in values.items()]
    if flags.config_dir is not None:
        folder = f"{UserFiles.scheme()}://{Path(flags.config_dir).absolute()}"
        line.append(f"hydra.searchpath=[{quoted(folder)}]")
    return line


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
    _flags: argparse.Namespace
    _fixed: dict[str, str]
    _tried: dict[str, list[str]]

    @functools.cached_property
    def trials(self) -> list[Composed]:
        """The trials, where every combination is tried; raise `UserError` with all that is wrong with any."""
        if not (rows := combinations(self._tried)):
            raise UserError("the sweep is empty: a pattern matches no choice")
        return self._composed(rows, trial_names(rows))

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
        made, wrong = list[Composed](), dict[str, list[str]]()
        for run, group in itertools.groupby(
            sorted(zip(rows, names, strict=True), key=lambda one: one[0].get(self.verb.run_key, "")),
            key=lambda one: one[0].get(self.verb.run_key) or self._fixed.get(self.verb.run_key),
        ):
            runs = parse_overrides([f"{self.verb.run_key}={run}"]) if run else []
            key = self.verb.run_key
            stored = _stored(self.verb, runs_of(runs, key), self._flags) if key else None
            with _hydra(self.verb, stored):
                for values, name in group:
                    try:
                        made.append(self._checked(name, values))
                    except UserError as error:
                        for problem in error.problems:
                            wrong.setdefault(problem, []).append(name)
        Problems(_of_trials(wrong, len(rows))).refuse()
        return sorted(made, key=lambda trial: list(names).index(trial.name))

    def _checked(self, name: str, values: Mapping[str, str]) -> Composed:
        folder = None if self.verb.opens_run else self.folder / name
        own = {"run": quoted(str(folder))} if folder else {}
        settings = {**self._fixed, **values, **own}
        line = _line(settings, self._flags)
        try:
            line = [*_implied(self.verb, line), *line]
            with explained():
                found = _composed(self.verb, line)
                found.checked(self.verb)
        except UserError as error:
            _refuse_all(self.verb, line)
            raise error
        config_dir = self._flags.config_dir
        arguments = [f"{key}={value}" for key, value in settings.items()]
        options = ["--config-dir", str(config_dir)] if config_dir is not None else []
        return dataclasses.replace(
            found, name=name, values=dict(values), arguments=(*options, *arguments), folder=folder
        )


def _of_trials(wrong: Mapping[str, Sequence[str]], total: int) -> list[str]:
    """Return problems with the names of the trials that have them, unless all have."""
    return [
        problem if len(names) == total else f"{first_of(names, 3)}: {problem}"
        for problem, names in wrong.items()
    ]


def plan(verb: Verb, argv: Sequence[str]) -> Sweep:
    """Return the sweep that the arguments make, with every value checked.

    Raises:
        UserError: the arguments make no sweep; the message has all that is wrong with them.
    """
    flags, overrides, problems = _read(verb, argv)
    settings = [o for o in overrides if o.key_or_group.startswith(PREFIX)]
    cfg = SweepConfig()
    with problems.gathered():
        cfg = sweep_config(settings)
    others = [o for o in _kept(flags, overrides) if o not in settings]
    swept = {o.get_key_element(): o for o in others if o.is_sweep_override()}
    fixed = {o.get_key_element(): o.get_value_element_as_str() for o in others if not o.is_sweep_override()}
    swept = {key: override for key, override in swept.items() if key not in fixed}
    tried = {key: swept_values(verb, override, flags) for key, override in swept.items()}
    if verb.run_key and not {verb.run_key} & {*fixed, *swept, *_refused(flags, overrides)}:
        with problems.gathered():
            _stored(verb, [], flags)
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
    if cfg.is_search and not swept:
        problems.append("a search needs values to choose from, such as schedule.factor=interval(0.5,2)")
    folder = Path(cfg.dir or sweep_folder(verb.name, [*swept], fixed))
    found = Sweep(verb, cfg, folder, [*swept], space, flags.cfg is not None, flags, fixed, tried)
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


def _stored(verb: Verb, runs: Sequence[str], flags: argparse.Namespace) -> TrainConfig | None:
    """Return the config of the first run; None where there is none and help is wanted, which needs none."""
    key = verb.run_key
    if not runs and not flags.help:
        raise UserError(f"{key} is missing; say nmt {verb.name} {key}=DIR{_known_runs()}")
    problems, stored = Problems(), list[TrainConfig]()
    for run in runs:
        with problems.gathered():
            stored.append(load_run(run, key))
    problems.refuse()
    return stored[0] if stored else None


def _implied(verb: Verb, lines: Sequence[str]) -> list[str]:
    """Return overrides that a training takes from the run that it starts from, or from its data."""
    if "init" not in verb.short:
        return []
    typed = {o.key_or_group: o for o in parse_overrides(lines)}
    if init := runs_of(list(typed.values()), "init.run"):
        return _followed(init[0], typed)
    data = typed.get("data")
    has_usual_size = data is None or data.value() not in small_data.CORPORA
    return [] if has_usual_size or {"model", "experiment"} & {*typed} else ["model=by_corpus"]


def _followed(init: str, typed: Mapping[str, Override]) -> list[str]:
    """Return overrides by which a training follows the run `init` that it starts from.

    A run that has begun needs the other no more: it has taken over what there is to follow.
    """
    own = runs_of(list(typed.values()), "run")
    is_gone = not Path(init).exists()
    stored = load_run(own[0]) if is_gone and own and Path(own[0], "config.yaml").is_file() else None
    if stored is None or stored.init.run != str(Path(init)):
        stored = load_run(init, "init")
        encoder, decoder = (_layers(typed.get(f"init.{side}_layers")) for side in ("encoder", "decoder"))
        stored = dataclasses.replace(stored, model=kept(stored.model, (encoder, decoder)))
    use = typed.get("init.vocabulary")
    keeps = use is None or use.value() != VocabularyUse.remap.value
    return following(to_plain(stored), list(typed), keeps_tokenizer=keeps)


def _layers(override: Override | None) -> list[int] | None:
    """Return the numbers of layers that are typed; None where they are none, which the config refuses."""
    value: object = None if override is None else override.value()
    return value if isinstance(value, list) and all(type(n) is int for n in value) else None


def _refuse_all(verb: Verb, lines: Sequence[str]) -> None:
    """Raise `UserError` with all that is wrong with overrides which together make no config.

    Each value is set by itself; those that can be set are then checked together, again and again without
    those to blame, because a component states the first of its values that is out of range. To blame are
    those without which nothing is wrong, and where there are none, those without which the problem is gone.
    """
    overrides = parse_overrides(lines)
    values = [o for o in overrides if o.key_or_group not in verb.groups and not o.is_hydra_override()]
    with explained():
        base = _composed(verb, [str(o.input_line) for o in overrides if o not in values]).cfg

    def problems_of(some: Sequence[Override]) -> list[str]:
        found, cfg = Problems(), copy.deepcopy(base)
        with found.gathered(), explained():
            for override in some:
                OmegaConf.update(cfg, override.key_or_group, override.value(), merge=True)
            to_config(_closed(cfg), verb.config_class())
        left = {is_missing(o.key_or_group) for o in values if not any(o is other for other in some)}
        return [problem for problem in found if problem not in left]

    fit, problems = list[Override](), Problems()
    for override in values:
        with problems.gathered(), explained():
            OmegaConf.update(copy.deepcopy(base), override.key_or_group, override.value(), merge=True)
            fit.append(override)
    while new := [problem for problem in problems_of(fit) if problem not in problems]:
        problems += new
        left = [(o, problems_of([other for other in fit if other is not o])) for o in fit]
        alone = [o for o, found in left if found]
        fit = alone if len(alone) < len(fit) else [o for o, found in left if {*new} <= {*found}]
    problems.refuse()


def outline(verb: Verb, argv: Sequence[str]) -> DictConfig:
    """Return the config that some choices make, unchecked; a run that the verb needs may be missing."""
    flags = parse_flags(verb, [*argv, "--help"])
    overrides = [usable(verb, argument, flags) for argument in flags.overrides]
    stored = _stored(verb, runs_of(overrides, verb.run_key), flags) if verb.run_key else None
    with _hydra(verb, stored):
        return _composed(verb, flags.overrides).cfg


def load_run(run: str, key: str = "run") -> TrainConfig:
    """Return the config of the run directory `run`, which `key` names."""
    path = Path(run)
    if not path.is_dir():
        raise UserError(f"{key}={run} is not a directory{_known_runs(run)}")
    require_contained(path)
    if not (path / "config.yaml").is_file():
        raise UserError(f"{key}={run} is not a run directory: it has no config.yaml{_known_runs(run)}")
    return load_config(path / "config.yaml")


def _known_runs(wanted: str = "") -> str:
    """Return the end of an error message: the run directory nearest to `wanted`, or some that exist."""
    folders = {Path("outputs"), *([Path(wanted), Path(wanted).parent] if wanted else [])}
    patterns = ["*/" * depth + "config.yaml" for depth in (1, 2, 3)]
    found = sorted({str(file.parent) for folder in folders for p in patterns for file in folder.glob(p)})
    listed = f"; there is {', '.join(found[:5])}{', ...' if len(found) > 5 else ''}" if found else ""
    return suggest(wanted, found) or listed


class _Choice(ConfigNode):
    """The schema of one choice, made when Hydra reads it: a command reads a few of more than forty."""

    def __init__(self, part: str, name: str, cls: type) -> None:
        """Name the schema of the dataclass `cls`, without its attribute `node`."""
        self.name, self.group, self.package, self.provider = name, part, None, None
        self.cls: Any = cls

    def __getattr__(self, name: str) -> DictConfig:
        """Make `node`, the one attribute that is missing until Hydra gives it to a copy."""
        if name != "node":
            raise AttributeError(name)
        return _schema(self.cls)


def _register(verb: Verb, stored: TrainConfig | None) -> None:
    """Give Hydra the schema of `verb`, and what the verb takes over from the config of a run."""
    store, taken = ConfigStore.instance(), dict[str, Any]()
    schema: Any = verb.config_class()
    if verb.opens_run:
        stored = stored or _any_config()
        shared = {field.name for field in dataclasses.fields(schema)} & vars(stored).keys()
        taken = {name: getattr(stored, name) for name in shared - {"run", *VARIANTS}}
        open_groups = {key: value for key, value in taken.items() if isinstance(value, dict)}
        taken |= {key: DictConfig(value, flags={"struct": False}) for key, value in open_groups.items()}
        if stored.runtime.device.startswith("cuda"):  # a run is not bound to the GPU it was trained on
            taken["runtime"] = dataclasses.replace(stored.runtime, device="auto")
    for group in verb.groups_from_run:
        store.store(
            group=group, name=FROM_RUN, node=_with_open_mappings(getattr(stored or _any_config(), group))
        )
    store.store(name=f"{SCHEMA_PREFIX}{verb.name}", node=schema(**taken) if taken else _root(schema))


@functools.cache
def _root(schema: type) -> DictConfig:
    """Return the schema of a verb that takes nothing over, once; Hydra copies it."""
    return cast(DictConfig, OmegaConf.structured(schema))


def _any_config() -> TrainConfig:
    """Return a placeholder for the config of a run, for help and completion, which open no run."""
    return TrainConfig(**{part: next(iter(classes.values()))() for part, (_, classes) in VARIANTS.items()})


@functools.cache
def _schema(cls: type) -> DictConfig:
    """Return what `_with_open_mappings` makes of a class, once; Hydra copies what it takes of it."""
    return _with_open_mappings(cls)


def _with_open_mappings(component: object) -> DictConfig:
    """Return a config whose mappings accept new keys, because the keys are names that the user gives."""
    cfg = OmegaConf.structured(component)
    for key in cfg:
        if not OmegaConf.is_missing(cfg, key) and OmegaConf.is_dict(cfg[key]):
            OmegaConf.set_struct(cfg[key], False)
    return cast(DictConfig, cfg)


@contextmanager
def _hydra(verb: Verb, stored: TrainConfig | None) -> Iterator[Any]:
    """Set Hydra up for `verb` and the config of its run; turn the errors of Hydra into `UserError`."""
    store = ConfigStore.instance()
    vars(store)["__deepcopy__"] = lambda _: (
        store
    )  # Hydra copies it for each config, and again what it reads of it
    for part, (_, classes) in VARIANTS.items():
        schemas = store.repo.setdefault(part, {})
        for name, cls in classes.items():
            schemas[f"{SCHEMA_PREFIX}{name}.yaml"] = _Choice(part, f"{SCHEMA_PREFIX}{name}.yaml", cls)
    _register(verb, stored)
    with explained(), hydra.initialize_config_dir(str(config_dir()), job_name="nmt", version_base="1.3"):
        yield GlobalHydra.instance().hydra


def _composed(verb: Verb, lines: list[str]) -> Composed:
    """Let Hydra compose a config."""
    cfg = hydra.compose(verb.name, [*lines, *WITHOUT], return_hydra_config=True)
    found = Composed(cfg, dict(cfg.hydra.runtime.choices))
    with open_dict(cfg):
        del cfg["hydra"]
    return found
