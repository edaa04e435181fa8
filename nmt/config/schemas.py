"""Hydra for one verb: set up with the schema of every choice, and asked for the config of a command.

The schema in the defaults list of a choice states its dataclass. All verbs but `train` start from the config
of their run, which enters the composition as the choice `from_run`, typed and overridden like any other.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import hydra
import omegaconf
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.defaults_list import DefaultsList, create_defaults_list
from hydra.core.config_store import ConfigNode, ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import DictConfig, Node, OmegaConf

from nmt.config.explain import explained, has_no_schema
from nmt.config.overrides import FROM_RUN, config_dir, parse_overrides
from nmt.config.plain import Loader
from nmt.config.registry import SCHEMA_PREFIX, VARIANTS
from nmt.config.roots import TrainConfig
from nmt.config.verb import Verb
from nmt.errors import UserError


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

    def __deepcopy__(self, memo: Any) -> ConfigNode:
        """Return what Hydra composes with, and changes."""
        return ConfigNode(self.name, copied(self.node), self.group, self.package, self.provider)


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
    name = f"{SCHEMA_PREFIX}{verb.name}.yaml"
    node = OmegaConf.structured(schema(**taken)) if taken else _root(schema)
    store.repo[name] = ConfigNode(name, node, None, None, None)  # where `store.store` puts a copy


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
def _parser_in_c() -> Iterator[None]:
    """Let OmegaConf read files with the parser in C, where there is one; its own takes ten times as long."""
    names = vars(omegaconf._utils)
    usual = names["get_yaml_loader"]
    names["get_yaml_loader"] = lambda: Loader
    try:
        yield
    finally:
        names["get_yaml_loader"] = usual


@contextmanager
def set_up(verb: Verb, stored: TrainConfig | None) -> Iterator[Any]:
    """Set Hydra up for `verb` and the config of its run; turn the errors of Hydra into `UserError`."""
    store = ConfigStore.instance()
    # Hydra copies the store for each config, and again what it reads of it.
    vars(store)["__deepcopy__"] = lambda _: store
    for part, (_, classes) in VARIANTS.items():
        schemas = store.repo.setdefault(part, {})
        for name, cls in classes.items():
            schemas[f"{SCHEMA_PREFIX}{name}.yaml"] = _Choice(part, f"{SCHEMA_PREFIX}{name}.yaml", cls)
    _register(verb, stored)
    with (
        explained(),
        _parser_in_c(),
        hydra.initialize_config_dir(str(config_dir()), job_name="nmt", version_base="1.3"),
    ):
        yield GlobalHydra.instance().hydra


def compose_with_hydra(verb: Verb, lines: Sequence[str]) -> tuple[DictConfig, dict[str, Any]]:
    """Return the config that overrides make, and the choice of each group; Hydra is set up for `verb`.

    As `hydra.compose`, without the config of Hydra itself. What the choices alone make is made once, unless a
    run or a folder of the user has a part in it: each trial of a sweep sets some values in a copy.
    """
    loader = _loader()
    overrides = parse_overrides(lines)
    loader.validate_sweep_overrides_legal(overrides, RunMode.RUN, from_shell=False)
    is_group = loader.repository.group_exists
    values, chosen, has_folder = list[Override](), list[str](), False
    for one in overrides:
        has_folder |= one.is_hydra_override()
        if one.is_hydra_override() or (is_group(one.key_or_group) and not isinstance(one.value(), dict)):
            chosen.append(str(one.input_line))
        else:
            values.append(one)
    source = verb.name, config_dir(), tuple(chosen)
    of_choices = _of_choices.__wrapped__ if has_folder or verb.run_key else _of_choices
    known, choices = of_choices(*source)
    cfg = copied(known)
    loader._apply_overrides_to_config(values, cfg)
    return cfg, dict(choices)


@functools.lru_cache(maxsize=128)
def _of_choices(name: str, folder: Path, lines: tuple[str, ...]) -> tuple[DictConfig, dict[str, Any]]:
    """Return the config that the choices of a verb, files in `folder`, make, and the choice of each group."""
    loader = _loader()
    overrides, repository = loader._parse_overrides_and_create_caching_repo(name, list(lines))
    with finite_defaults(str(o.input_line) for o in overrides if not o.is_hydra_override()):
        defaults = create_defaults_list(repository, name, overrides, prepend_hydra=False, skip_missing=False)
    _require_schemas(defaults)
    cfg = loader._compose_config_from_defaults_list(defaults.defaults, repository)
    OmegaConf.set_struct(cfg, True)
    return cfg, defaults.overrides.known_choices


def _require_schemas(found: DefaultsList) -> None:
    """Raise `UserError` for a choice that builds on no dataclass, before its keys seem to be unknown."""
    files = [one.config_path or "" for one in found.defaults]
    for group in VARIANTS:
        choice = found.overrides.known_choices.get(group)
        has_file = f"{group}/{choice}" in files and choice != FROM_RUN
        if has_file and not any(file.startswith(f"{group}/{SCHEMA_PREFIX}") for file in files):
            raise UserError(f"{group}/{choice}.yaml: {has_no_schema(group)}")


@contextmanager
def finite_defaults(lines: Iterable[str]) -> Iterator[None]:
    """Raise `UserError`, which names `lines`, where Hydra follows the defaults of files without end."""
    try:
        yield
    except RecursionError as error:
        raise UserError(
            f"{', '.join(lines)}: a file is built on itself, by its own `defaults` or by those of a file "
            "that it names there; name another"
        ) from error


def copied(cfg: DictConfig) -> DictConfig:
    """Return a copy of a config, in a quarter of the time that `copy.deepcopy` takes."""
    return cast(DictConfig, _copied_node(cfg, None))


def _copied_node(node: Any, parent: Any) -> Any:
    """Return a copy of a node of OmegaConf and of all below it, as a child of `parent`."""
    made, of_node = object.__new__(type(node)), vars(node)["_metadata"]
    metadata = object.__new__(type(of_node))
    vars(metadata).update(vars(of_node), flags=dict(of_node.flags or {}))
    vars(made).update(vars(node), _metadata=metadata, _parent=parent, _flags_cache=None)
    content = vars(node).get("_content")
    if isinstance(content, dict):
        vars(made)["_content"] = {key: _copied_node(child, made) for key, child in content.items()}
    elif isinstance(content, list):
        vars(made)["_content"] = [_copied_node(child, made) for child in content]
    elif isinstance(content, Node):  # of a union
        vars(made)["_content"] = _copied_node(content, made)
    return made


def _loader() -> ConfigLoaderImpl:
    """Return the part of Hydra that composes."""
    return cast(ConfigLoaderImpl, GlobalHydra.instance().config_loader())
