"""From the command line of one verb to its configs, through Hydra.

Hydra composes, and nothing else: training runs outside of Hydra, and all configs of a sweep are known before
its first trial starts. Nothing is instantiated from a config: the schema in the defaults list of a choice
states its dataclass.

All verbs but `train` start from the config of their run. That config enters the composition as the choice
`from_run`, which is typed and overridden like any other choice.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import hashlib
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf, open_dict

from nmt.config import help, small_data
from nmt.config.explain import explained, is_missing
from nmt.config.overrides import (
    FROM_RUN,
    SWEEP_DIR,
    choices,
    config_dir,
    parse_flags,
    parse_overrides,
    quoted,
    runs_of,
    trials,
    usable,
)
from nmt.config.plain import UserFiles
from nmt.config.registry import SCHEMA_PREFIX, VARIANTS
from nmt.config.roots import Root, Task, TrainConfig, check, to_config
from nmt.config.small_data import Setting
from nmt.config.starting import VocabularyUse, following
from nmt.config.stored import fingerprint, load_config, to_plain
from nmt.config.verb import Verb
from nmt.containment import require_contained
from nmt.errors import Problems, UserError, suggest, visible

MAX_NAME = 120
"""Longest name of a directory made from a config."""


@dataclass
class Composed:
    """One config as Hydra composed it, not yet checked."""

    cfg: DictConfig
    choices: dict[str, Any]
    """Group -> the choice in force."""
    name: str = ""
    """The values that the sweep sets in this trial, as a file name; empty outside of a sweep."""
    sweep_dir: str = ""

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
        census = small_data.counted(to_config(_closed(training), TrainConfig))
        settings = small_data.settings_for(census, training)
        for line in small_data.remarks(census, training, settings):
            print(visible(line), file=sys.stderr, flush=True)
        return [setting for setting in settings if setting.key in missing]

    def run_dir(self, cfg: TrainConfig) -> Path:
        """Return the run directory of a training that begins with this config."""
        if self.name:
            return Path(self.sweep_dir, self.name)
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
    """Return the config that the arguments make, one for each trial of a sweep, or none after showing help.

    Raises:
        UserError: the arguments make no config; the message has all that is wrong with them.
    """
    flags = parse_flags(verb, argv)
    problems, overrides = Problems(), list[Override]()
    for argument in flags.overrides:
        with problems.gathered():
            overrides.append(usable(verb, argument, flags))
    refused = {argument.partition("=")[0] for argument in flags.overrides} - {
        o.key_or_group for o in overrides
    }
    stored = None
    if verb.run_key and verb.run_key not in refused:
        with problems.gathered():
            stored = _stored(verb, runs_of(overrides, verb.run_key), flags)
    if flags.help or flags.cfg is not None or flags.info is not None or (verb.run_key and stored is None):
        problems.refuse()
    kept = [o for o in overrides if o.key_or_group.partition(".")[0] not in refused]
    lines = trials(verb, kept, flags) if flags.multirun else [[str(o.input_line) for o in kept]]
    if not lines:
        raise UserError(*problems, "the sweep is empty: a pattern matches no choice")
    if flags.config_dir is not None:
        folder = f"{UserFiles.scheme()}://{Path(flags.config_dir).absolute()}"
        lines = [[*trial, f"hydra.searchpath=[{quoted(folder)}]"] for trial in lines]
    lines = [[*_followed(verb, trial), *trial] for trial in lines]
    with _hydra(verb, stored) as hydra_app:
        if flags.help:
            found = _composed(verb, lines[0])
            groups = {group: choices(verb, group, flags) for group in verb.groups}
            for key, group in verb.mounts.items():
                groups[key] = choices(verb, group, flags)
                found.choices[key] = found.choices.get(f"{group}@{key}")
            print(help.render(verb, found.cfg, found.choices, groups, flags.topics))
        elif flags.cfg is not None:
            chosen = [f"{x.key}={x.value}" for x in _composed(verb, lines[0]).chosen()]
            shown = [*lines[0], *chosen]
            hydra_app.show_cfg(verb.name, shown, cfg_type=flags.cfg, package=None, resolve=flags.resolve)
        elif flags.info is not None:
            hydra_app.show_info(flags.info, verb.name, lines[0])
        else:
            with problems.gathered(), explained():
                composed = [_composed(verb, trial, overrides if flags.multirun else None) for trial in lines]
                if not flags.multirun:  # a trial that is out of range stops no other
                    composed[0].checked(verb)
            if not problems:
                return composed
            with problems.gathered():
                _refuse_all(verb, lines[0])
            problems.refuse()
    return []


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


def _followed(verb: Verb, lines: Sequence[str]) -> list[str]:
    """Return overrides by which a training follows the run that it starts from, if it starts from one.

    A run that has begun needs the other no more: it has taken over what there is to follow.
    """
    if "init" not in verb.short:
        return []
    typed = {o.key_or_group: o for o in parse_overrides(lines)}
    init = runs_of(list(typed.values()), "init.run")
    if not init:
        return []
    own = runs_of(list(typed.values()), "run")
    is_gone = not Path(init[0]).exists()
    stored = load_run(own[0]) if is_gone and own and Path(own[0], "config.yaml").is_file() else None
    if stored is None or stored.init.run != str(Path(init[0])):
        stored = load_run(init[0], "init")
    use = typed.get("init.vocabulary")
    keeps = use is None or use.value() != VocabularyUse.remap.value
    return following(to_plain(stored), list(typed), keeps_tokenizer=keeps)


def _refuse_all(verb: Verb, lines: Sequence[str]) -> None:
    """Raise `UserError` with all that is wrong with overrides which together make no config.

    Each value is set by itself; those that can be set are then checked together, again and again without
    those to blame, because a component states the first of its values that is out of range.
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
        fit = [o for o in fit if {*new} <= {*problems_of([other for other in fit if other is not o])}]
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


@functools.cache
def _register_choice(part: str, name: str, cls: type) -> None:
    """Give Hydra the schema of one choice."""
    ConfigStore.instance().store(group=part, name=f"{SCHEMA_PREFIX}{name}", node=_with_open_mappings(cls))


def _register(verb: Verb, stored: TrainConfig | None) -> None:
    """Give Hydra the schema of `verb`, and what the verb takes over from the config of a run."""
    store, schema = ConfigStore.instance(), verb.config_class()
    taken: dict[str, Any] = {}
    if verb.opens_run:
        stored = stored or _any_config()
        shared = {field.name for field in dataclasses.fields(schema)} & vars(stored).keys()
        taken = {name: getattr(stored, name) for name in shared - {"run", *VARIANTS}}
        if stored.runtime.device.startswith("cuda"):  # a run is not bound to the GPU it was trained on
            taken["runtime"] = dataclasses.replace(stored.runtime, device="auto")
    for group in verb.groups_from_run:
        store.store(
            group=group, name=FROM_RUN, node=_with_open_mappings(getattr(stored or _any_config(), group))
        )
    store.store(name=f"{SCHEMA_PREFIX}{verb.name}", node=schema(**taken) if taken else schema)


def _any_config() -> TrainConfig:
    """Return a placeholder for the config of a run, for help and completion, which open no run."""
    return TrainConfig(**{part: next(iter(classes.values()))() for part, (_, classes) in VARIANTS.items()})


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
    for part, (_, classes) in VARIANTS.items():
        for name, cls in classes.items():
            _register_choice(part, name, cls)
    _register(verb, stored)
    with explained(), hydra.initialize_config_dir(str(config_dir()), job_name="nmt", version_base="1.3"):
        yield GlobalHydra.instance().hydra


def _composed(verb: Verb, lines: list[str], swept: Sequence[Override] | None = None) -> Composed:
    """Let Hydra compose a config; in a sweep `lines` are one trial, and `swept` the overrides as typed."""
    cfg = hydra.compose(verb.name, lines, return_hydra_config=True)
    found = Composed(cfg, dict(cfg.hydra.runtime.choices))
    if swept is not None:
        found.name, folder = _names(lines, swept)
        given = any(override.key_or_group == SWEEP_DIR for override in swept)
        found.sweep_dir = cfg.hydra.sweep.dir if given else f"outputs/multirun/{folder}"
    with open_dict(cfg):
        del cfg["hydra"]
    return found


def _names(lines: Sequence[str], overrides: Sequence[Override]) -> tuple[str, str]:
    """Return the name of the trial that sets `lines`, and the name of its sweep."""
    tried = [override.key_or_group for override in overrides if override.is_sweep_override()]
    fixed = {o.key_or_group: str(o.input_line) for o in overrides if not o.is_sweep_override()}
    trial = [line.replace("=", "-", 1) for line in lines if line.partition("=")[0] in {*tried} - fixed.keys()]
    # The sweep's name omits the values that are tried: trying more of them finds the finished trials again.
    rest = sorted(line for key, line in fixed.items() if not key.startswith("hydra."))
    sweep = f"{file_name('+'.join(tried) or 'single')}-{_digest(' '.join(rest))}"
    return file_name("+".join(trial) or "trial"), sweep


def file_name(text: str) -> str:
    """Return `text` as the name of a directory: not too long, and different for different texts.

    It has only characters that Hydra and a shell take literally, so that `run=NAME` needs no quotes.
    """
    safe = re.sub(r"[^\w.+-]", "_", text, flags=re.ASCII).lstrip(".") or "_"
    if safe == text and len(safe) <= MAX_NAME:
        return safe
    return f"{safe[: MAX_NAME - 9]}-{_digest(text)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
