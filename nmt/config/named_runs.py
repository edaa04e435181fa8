"""The runs that a command line names: their configs, what a training takes over from one of them, and models
by name, each of which is a command of its own.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from nmt.config import small_data
from nmt.config.explain import explained
from nmt.config.overrides import choices, config_dir, parse_overrides, runs_of
from nmt.config.plain import named, parsed, read_plain, read_text
from nmt.config.registry import SCHEMA_PREFIX, VARIANTS
from nmt.config.roots import TrainConfig
from nmt.config.spelling import spelled
from nmt.config.starting import InitConfig, VocabularyUse, following, kept, values_of
from nmt.config.stored import flat, known_runs, load_run, may_change, to_plain, warn_of_edits
from nmt.config.verb import Verb
from nmt.errors import Problems, UserError, tell


def stored_config(verb: Verb, runs: Sequence[str], flags: argparse.Namespace) -> TrainConfig | None:
    """Return the config of the first run; None where there is none and help is wanted, which needs none."""
    key = verb.run_key
    if not runs and not flags.help:
        raise UserError(f"{key} is missing; say nmt {verb.name} {key}=DIR{known_runs()}")
    problems, stored = Problems(), list[TrainConfig]()
    for run in runs:
        with problems.gathered():
            stored.append(_opened(run, key))
    problems.refuse()
    return stored[0] if stored else None


def _opened(run: str, key: str = "run", *, tuned: bool = True) -> TrainConfig:
    """Return what `load_run` does, of a run that the command names; warn where someone has edited it."""
    stored = load_run(run, key, tuned=tuned)
    warn_of_edits(Path(run, "config.yaml"))
    return stored


def commands_of_models(
    verb: Verb, argv: Sequence[str], overrides: Sequence[Override]
) -> dict[str, list[str]]:
    """Return the arguments of each model that `overrides` name, as if it were alone; none if none is named.

    A choice that a model makes for itself, such as decoding=greedy, comes before keys of all.

    Raises:
        UserError: a run is named besides, or a model has no run, a key that all share, or a name that is not
            fit to be a label.
    """
    typed = [o for o in overrides if o.key_or_group.partition(".")[0] == verb.models]
    if not verb.models or not typed:
        return {}
    value, example = typed[-1].value(), f"{verb.models}={{A: RUN, B: RUN}}"
    if len(typed) > 1 or not isinstance(value, dict) or not value or typed[-1].key_or_group != verb.models:
        raise UserError(f"{typed[-1].input_line!r}: write all models at once: {example}")
    if runs_of(overrides, "run"):
        raise UserError(f"run and {verb.models} exclude each other; name the run in {example}, too")
    shared = [word for word in argv if not word.startswith(f"{verb.models}=")]
    found, problems = dict[str, list[str]](), Problems()
    with explained():
        settings = cast(
            "list[object]", OmegaConf.to_container(OmegaConf.create([*value.values()]), resolve=True)
        )
    for name, own in zip(value, settings, strict=True):
        with problems.gathered():
            lines = _settings_of_model(verb, name, own)
            chosen = {key for group in verb.groups if group in lines for key in _stated(group, lines[group])}
            left = [word for word in shared if word.partition("=")[0] not in chosen]
            found[name] = [*left, *(f"{key}={spelled(setting)}" for key, setting in lines.items())]
    problems.refuse()
    return found


def _stated(group: str, choice: object) -> list[str]:
    """Return the keys that a choice of a group states."""
    file = config_dir() / group / f"{choice}.yaml"
    return [f"{group}.{key}" for key in read_plain(file)] if file.is_file() else []


def _settings_of_model(verb: Verb, name: str, value: object) -> dict[str, object]:
    """Return the keys that a model has for itself; `value` is a run, several, or a mapping of keys."""
    key = f"{verb.models}.{name}"
    if not re.fullmatch(r"[\w.+-]+", name):
        raise UserError(f"{key}: the name of a model has letters, digits and . _ + - alone")
    settings = value if isinstance(value, dict) else {"run": value}
    if not settings.get("run"):
        raise UserError(f"{key} has no run; write {key.replace('.', '={', 1)}: {{run: RUN, ...}}}}")
    lines = dict(flat(settings))
    for one in lines:
        if any(one == other or one.startswith(f"{other}.") for other in verb.common):
            raise UserError(f"{key}: all models share {one}; set {one}=... beside {verb.models}={{...}}")
    return lines


def implied(verb: Verb, lines: Sequence[str], flags: argparse.Namespace) -> list[str]:
    """Return overrides that a training takes from its own run, the run that it starts from, or its data."""
    if "init" not in verb.short:
        return []
    typed = {o.key_or_group: o for o in parse_overrides(lines)}
    own = runs_of(list(typed.values()), "run")
    if own and _names_training(verb, typed) and Path(own[0], "config.yaml").is_file():
        return _continued(own[0], [*typed])
    base, lines = "", list[str]()
    if "data" in typed and "experiment" not in typed:
        name = str(typed["data"].value())
        base = _built_on(name, flags)
        known = {name, base} & {*choices(verb, "experiment", flags)}
        if base != name and known == {base} and not verb.data_from:  # where all data has one recipe
            lines = [f"experiment={base}"]
        base = name if name in known else base  # which may have a recipe of its own
    if init := runs_of(list(typed.values()), "init.run"):
        return [*lines, *_followed(init[0], typed)]
    return [*lines, *(["model=by_corpus"] if base in small_data.CORPORA and "model" not in typed else [])]


def _names_training(verb: Verb, typed: Iterable[str]) -> bool:
    """Return whether the `typed` keys of a training are its run, and what may change when it goes on."""
    if verb.data_from:
        return False
    root, training = verb.config_class(), {field.name for field in dataclasses.fields(TrainConfig)}
    own = {field.name for field in dataclasses.fields(root)} - training
    return all(may_change(key) or key.partition(".")[0] in own for key in typed)


def _built_on(data: str, flags: argparse.Namespace) -> str:
    """Return the choice of data, or the schema, that a file of the user begins with; `data` if it is none."""
    seen = list[str]()
    while flags.config_dir is not None and data not in seen:
        seen.append(data)
        file = Path(flags.config_dir, "data", f"{data}.yaml")
        with suppress(UserError), named(file):  # the composition tells what is wrong with it
            listed = parsed(read_text(file), references=True).get("defaults")
            names = [one for one in listed or () if isinstance(one, str) and one != "_self_"]
            data = names[0].removeprefix(SCHEMA_PREFIX) if names else data
    return data


def _continued(run: str, typed: Sequence[str]) -> list[str]:
    """Return overrides for all of the config of `run` but what is `typed`, and say what data it reads."""
    stored = _opened(run, tuned=False)
    data, usual = to_plain(stored.data), to_plain(type(stored.data))
    read = [f"data.{key}={spelled(data[key])}" for key in data if data[key] != usual[key] and key != "name"]
    tell(f"with the config of {run}: {' '.join([f'data={stored.data.name}', *read])}")
    lines = list[str]()
    for part, value in to_plain(stored).items():
        if part in VARIANTS:
            lines.append(f"{part}={SCHEMA_PREFIX}{value.pop(VARIANTS[part][0])}")
        if dataclasses.is_dataclass(getattr(stored, part)):
            lines += values_of(part, value, typed)
        elif part not in typed:
            lines.append(f"{part}={spelled(value)}")
    return lines


def _followed(init: str, typed: Mapping[str, Override]) -> list[str]:
    """Return overrides by which a training follows the run `init` that it starts from.

    A run that has begun needs the other no more: it has taken over what there is to follow.
    """
    own = runs_of(list(typed.values()), "run")
    is_gone = not Path(init).exists()
    stored = load_run(own[0]) if is_gone and own and Path(own[0], "config.yaml").is_file() else None
    if stored is None or stored.init.run != str(Path(init)):
        stored = _opened(init, "init")
        encoder, decoder = (_layers(typed.get(f"init.{side}_layers")) for side in ("encoder", "decoder"))
        stored = dataclasses.replace(stored, model=kept(stored.model, (encoder, decoder)))
    use = typed.get("init.vocabulary")
    keeps = use is None or use.value() != VocabularyUse.remap.value
    weights = typed.get("init.weights")
    chosen: object = ["*"] if weights is None else weights.value()
    is_whole = not isinstance(chosen, list) or InitConfig(weights=chosen).is_whole
    return following(to_plain(stored), list(typed), keeps_tokenizer=keeps, is_whole=is_whole)


def _layers(override: Override | None) -> list[int] | None:
    """Return the numbers of layers that are typed; None where they are none, which the config refuses."""
    value: object = None if override is None else override.value()
    return value if isinstance(value, list) and all(type(n) is int for n in value) else None
