"""From the command line of one verb to its configs: what Hydra does for this program.

Hydra only composes. The function it is given keeps the config and returns, so that training runs outside
of Hydra and all configs of a sweep are known before its first trial starts. Nothing is instantiated from a
config: which dataclass a choice has is stated by the schema in its defaults list.

`nmt evaluate`, `translate` and `attention` start from the config of their run. It enters the composition as
the choice `from_run`, and so is typed and overridden like any other.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import hydra
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nmt.config import help
from nmt.config.explain import explain
from nmt.config.overrides import (
    FROM_RUN,
    GROUPS,
    choices,
    config_dir,
    hydra_arguments,
    parse_flags,
    parse_overrides,
    refuse_misuse,
    run_of,
)
from nmt.config.registry import SCHEMA_PREFIX, VARIANTS
from nmt.config.roots import (
    AttentionVerbConfig,
    EvaluateConfig,
    GenerateConfig,
    Root,
    Task,
    TrainConfig,
    TranslateConfig,
    check,
    to_config,
)
from nmt.config.stored import fingerprint, load_config
from nmt.data.sources import DemoData
from nmt.decoding import BeamConfig
from nmt.errors import UserError, suggest

MAX_NAME = 120
"""Longest name of a directory made from a config."""


@dataclass
class Composed:
    """One config as Hydra composed it, not yet checked."""

    cfg: DictConfig
    choices: dict[str, Any]
    """Group -> the choice in force."""
    name: str = ""
    """What the sweep sets in this trial; empty outside of a sweep."""
    sweep_dir: str = ""

    def to_config(self, root: type[Root]) -> Root:
        """Return the dataclasses; raise `UserError` for values that are missing or out of range."""
        try:
            return to_config(self.cfg, root)
        except OmegaConfBaseException as error:
            raise UserError(explain(error)) from error

    def to_training(self) -> tuple[TrainConfig, Path]:
        """Return the checked config of a training, and its run directory."""
        cfg = self.to_config(TrainConfig)
        check(cfg)
        return cfg, self._run_dir(cfg)

    def _run_dir(self, cfg: TrainConfig) -> Path:
        if self.name:
            return Path(self.sweep_dir, self.name)
        if cfg.run is not None:
            return Path(cfg.run)
        languages = [cfg.data.src, cfg.data.tgt] if cfg.task is Task.translation else [cfg.data.tgt]
        data = file_name("-".join([str(self.choices.get("data")), *languages]))
        return Path("outputs", data, f"{file_name(str(self.choices.get('model')))}-{fingerprint(cfg)}")


def compose(verb: str, argv: Sequence[str]) -> list[Composed]:
    """Return the config that the arguments make, those of a sweep, or none when they ask to show something.

    Raises:
        UserError: the arguments make no config.
    """
    flags = parse_flags(verb, argv)
    overrides = parse_overrides(flags.overrides)
    refuse_misuse(verb, overrides, flags)
    run = run_of(overrides)
    if verb != "train" and run is None and not flags.help:
        raise UserError(f"run is missing; say nmt {verb} run=DIR{_known_runs()}")
    register(load_run(run) if verb != "train" and run is not None else None)
    found = _hydra(verb, hydra_arguments(flags), overrides)
    if flags.help:
        groups = {group: choices(verb, group, flags) for group in GROUPS[verb]}
        print(help.render(verb, found[0].cfg, found[0].choices, groups))
        return []
    if flags.multirun and not found:
        raise UserError("the sweep is empty: a pattern matches no choice")
    return found


def complete(verb: str, request: Sequence[str]) -> None:
    """Print what a shell asks for; $COMP_LINE is the line typed so far, without the verb."""
    register(None)
    _hydra(verb, ["--shell-completion", *request], [])


def load_run(run: str) -> TrainConfig:
    """Return the config of the run directory `run`."""
    path = Path(run)
    if not path.is_dir():
        raise UserError(f"run={run} is not a directory{_known_runs(run)}")
    if not (path / "config.yaml").is_file():
        raise UserError(f"run={run} is not a run directory: it has no config.yaml{_known_runs(run)}")
    return load_config(path / "config.yaml")


def _known_runs(wanted: str = "") -> str:
    """Name the run directory nearest to `wanted`, or some of those there are."""
    places = {Path("outputs"), *([Path(wanted), Path(wanted).parent] if wanted else [])}
    patterns = ["*/" * depth + "config.yaml" for depth in (1, 2, 3)]
    found = sorted({str(file.parent) for place in places for p in patterns for file in place.glob(p)})
    listed = f"; there is {', '.join(found[:5])}{', ...' if len(found) > 5 else ''}" if found else ""
    return suggest(wanted, found) or listed


def register(stored: TrainConfig | None) -> None:
    """Give Hydra the schema of every choice, and what a verb takes over from the config of a run."""
    store = ConfigStore.instance()
    store.store(name=f"{SCHEMA_PREFIX}train", node=TrainConfig)
    for part, (_, classes) in VARIANTS.items():
        for name, cls in classes.items():
            store.store(group=part, name=f"{SCHEMA_PREFIX}{name}", node=_with_open_mappings(cls))
    if stored is None:  # help and completion need no run
        stored = TrainConfig(data=DemoData(), decoding=BeamConfig())
    runtime = stored.runtime
    if runtime.device.startswith("cuda"):  # a run is not bound to the GPU it was trained on
        runtime = dataclasses.replace(runtime, device="auto")
    store.store(name=f"{SCHEMA_PREFIX}evaluate", node=EvaluateConfig(runtime=runtime, metrics=stored.metrics))
    store.store(name=f"{SCHEMA_PREFIX}translate", node=TranslateConfig(runtime=runtime))
    store.store(name=f"{SCHEMA_PREFIX}generate", node=GenerateConfig(runtime=runtime))
    store.store(name=f"{SCHEMA_PREFIX}attention", node=AttentionVerbConfig(runtime=runtime))
    store.store(group="data", name=FROM_RUN, node=_with_open_mappings(stored.data))
    store.store(group="decoding", name=FROM_RUN, node=stored.decoding)


def _with_open_mappings(component: object) -> DictConfig:
    """A config whose mappings take new keys: those are names that the user gives."""
    cfg = OmegaConf.structured(component)
    for key in cfg:
        if not OmegaConf.is_missing(cfg, key) and OmegaConf.is_dict(cfg[key]):
            OmegaConf.set_struct(cfg[key], False)
    return cast(DictConfig, cfg)


def _hydra(verb: str, arguments: Sequence[str], overrides: Sequence[Override]) -> list[Composed]:
    """Let Hydra compose, or show what a flag asks for, and return what it composed."""
    found: list[Composed] = []

    def keep(cfg: DictConfig) -> None:
        settings = HydraConfig.get()
        composed = Composed(cfg, dict(settings.runtime.choices))
        if "--multirun" in arguments:
            composed.name, composed.sweep_dir = settings.sweep.subdir, settings.sweep.dir
        found.append(composed)

    with tempfile.TemporaryDirectory(prefix="nmt-") as scratch, _as_hydra_app(arguments):
        _register_resolvers(overrides, scratch)
        app: Callable[[], None] = hydra.main(str(config_dir()), verb, "1.3")(keep)
        try:
            app()
        except (HydraException, OmegaConfBaseException) as error:
            raise UserError(explain(error)) from error
        except yaml.YAMLError as error:
            raise UserError(f"a config is not YAML: {' '.join(str(error).split())}") from error
    return found


def _register_resolvers(overrides: Sequence[Override], scratch: str) -> None:
    """Define the `${nmt.*}` of configs/: the names of a sweep and its trials, and a directory for neither."""
    swept = [override.key_or_group for override in overrides if override.is_sweep_override()]
    fixed = {o.key_or_group: str(o.input_line) for o in overrides if not o.is_sweep_override()}

    def sweep() -> str:
        # Without the values that are tried, so that trying some more of them finds the finished trials again.
        lines = sorted(line for key, line in fixed.items() if not key.startswith("hydra."))
        return f"{file_name('+'.join(swept) or 'single')}-{_digest(' '.join(lines))}"

    def trial(task: ListConfig) -> str:
        lines = [line.replace("=", "-", 1) for line in task if line.partition("=")[0] not in fixed]
        return file_name("+".join(lines) or "trial")

    resolvers: dict[str, Callable[..., Any]] = {"sweep": sweep, "trial": trial, "scratch": lambda: scratch}
    for name, resolver in resolvers.items():
        OmegaConf.register_new_resolver(f"nmt.{name}", resolver, replace=True)


@contextmanager
def _as_hydra_app(arguments: Sequence[str]) -> Iterator[None]:
    """Let `hydra.main` see these arguments, and raise its errors instead of printing them."""
    argv, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = ["nmt", *arguments]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        sys.argv = argv
        del os.environ["HYDRA_FULL_ERROR"]
        if full_error is not None:
            os.environ["HYDRA_FULL_ERROR"] = full_error


def file_name(text: str) -> str:
    """Return `text` as the name of a directory: not too long, and different for different texts.

    It consists of what Hydra and a shell leave alone, so that `run=NAME` needs no quotes.
    """
    safe = re.sub(r"[^\w.+-]", "_", text, flags=re.ASCII).lstrip(".") or "_"
    if safe == text and len(safe) <= MAX_NAME:
        return safe
    return f"{safe[: MAX_NAME - 9]}-{_digest(text)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
