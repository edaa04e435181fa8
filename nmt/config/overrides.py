"""What stands after the verb: flags, and overrides in Hydra's grammar.

Whatever can be seen to be wrong before anything is composed is refused here. Knows which groups a verb has
and which files are in them; knows no values and no dataclasses.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, ValueType
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nmt.config.explain import explain, no_such_choice, renamed
from nmt.config.registry import SCHEMA_PREFIX, VARIANTS
from nmt.config.renames import RENAMED_KEYS
from nmt.errors import UserError

GROUPS = {
    "train": (
        "data",
        "model",
        "tokenizer",
        "optimizer",
        "schedule",
        "objective",
        "trainer",
        "decoding",
        "experiment",
    ),
    "evaluate": ("data", "decoding"),
    "translate": ("decoding",),
    "generate": ("decoding",),
    "attention": ("decoding",),
}
"""The groups from which each verb composes its config."""

READS_INPUT = ("translate", "attention")
"""The verbs whose sentences come from standard input."""

HYDRA_KEYS = ("hydra.sweep.dir",)
"""What a user may set of Hydra itself; the rest is in configs/quiet_hydra.yaml."""

FROM_RUN = "from_run"
"""The choice that stands for what the run was trained with."""

INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; {self.prog} --help shows what there is")


def parse_flags(verb: str, argv: Sequence[str]) -> argparse.Namespace:
    """Split the arguments into `overrides` and the flags of Hydra that this program passes on."""
    parser = _Parser(prog=f"nmt {verb}", add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("-c", "--cfg", choices=("job", "hydra", "all"))
    parser.add_argument("--resolve", action="store_true")
    parser.add_argument("-i", "--info", nargs="?", const="all", choices=INFO)
    parser.add_argument("-cd", "--config-dir")
    flags = parser.parse_intermixed_args(argv)
    flags.overrides = [_with_literal_prompt(argument) for argument in flags.overrides]
    if (flags.cfg is not None) + (flags.info is not None) + flags.multirun > 1:
        parser.error("--cfg, --info and --multirun exclude each other")
    if flags.resolve and flags.cfg is None:
        parser.error("--resolve belongs to --cfg")
    return flags


def hydra_arguments(flags: argparse.Namespace) -> list[str]:
    """Return the same for Hydra, which composes as if to run when it is our help that is asked for."""
    arguments = list(flags.overrides)
    if flags.config_dir is not None:
        arguments += ["--config-dir", flags.config_dir]
    if flags.help:
        return arguments
    if flags.multirun:
        arguments.append("--multirun")
    if flags.cfg is not None:
        arguments += ["--cfg", flags.cfg]
    if flags.resolve:
        arguments.append("--resolve")
    if flags.info is not None:
        arguments += ["--info", flags.info]
    return arguments


def _with_literal_prompt(argument: str) -> str:
    """`prompt=...` in quotes, so that Hydra takes it as it stands: it is prose, with commas and all."""
    key, _, text = argument.partition("=")
    if key != "prompt":
        return argument
    text = re.sub(r"(\\*)(\$\{)", r"\1\1\\\2", text)  # no interpolation
    text = re.sub(r"(\\*)('|$)", lambda found: 2 * found[1] + ("\\'" if found[2] else ""), text)
    return f"prompt='{text}'"


def parse_overrides(arguments: Sequence[str]) -> list[Override]:
    """Parse key=value arguments."""
    try:
        return OverridesParser.create().parse_overrides(list(arguments))
    except HydraException as error:
        raise UserError(explain(error)) from error


def run_of(overrides: Sequence[Override]) -> str | None:
    """Return the value of the last `run=`, or None."""
    values = [override.value() for override in overrides if override.key_or_group == "run"]
    if not values or values[-1] is None:
        return None
    try:
        return str(OmegaConf.create({"run": values[-1]})["run"])
    except OmegaConfBaseException as error:
        raise UserError(explain(error)) from error


def config_dir() -> Path:
    """Where the YAML files are: inside the package when installed from a wheel, else beside it."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def choices(verb: str, group: str, flags: argparse.Namespace) -> list[str]:
    """The choices of a group: its files, also those the user adds, and what stands for the run."""
    places = [config_dir(), *([Path(flags.config_dir)] if flags.config_dir else [])]
    files = {
        file.relative_to(place / group).with_suffix("").as_posix()
        for place in places
        for file in (place / group).rglob("*.yaml")
    }
    return sorted(files | (set() if verb == "train" else {FROM_RUN}))


def refuse_misuse(verb: str, overrides: Sequence[Override], flags: argparse.Namespace) -> None:
    """Raise `UserError` for what Hydra would accept or explain badly."""
    if flags.multirun and verb in READS_INPUT:
        raise UserError(f"nmt {verb} reads standard input once and cannot be swept; leave out -m")
    for override in overrides:
        _refuse_key(verb, override, flags)
        _refuse_sweep(verb, override, flags)
        if override.key_or_group in GROUPS[verb]:
            _refuse_choice(verb, override, flags)


def _refuse_key(verb: str, override: Override, flags: argparse.Namespace) -> None:
    key, line = override.key_or_group, override.input_line
    if not key:
        raise UserError(f"{line!r} has no key; write key=value")
    if override.is_add() or override.is_force_add() or override.is_delete():
        raise UserError(
            f"{line!r}: no key can be added or taken away; write {key}=... (null unsets what may be unset)"
        )
    if re.match(r"hydra\b", key) and key not in HYDRA_KEYS:
        raise UserError(f"{line!r}: of Hydra's own settings only {', '.join(HYDRA_KEYS)} can be set")
    if key in RENAMED_KEYS:
        raise UserError(f"{line!r}: {key} {renamed(key, override.get_value_element_as_str())}")
    part, _, field = key.rpartition(".")
    if part in VARIANTS and field == VARIANTS[part][0]:
        offered = f"; {part} can be {', '.join(choices(verb, part, flags))}" if part in GROUPS[verb] else ""
        raise UserError(f"{key} cannot be set by itself: it follows from {part}=...{offered}")
    if key in GROUPS["train"] and key not in GROUPS[verb]:
        raise UserError(
            f"{line!r}: nmt {verb} takes the {key} of its run; it can choose {', '.join(GROUPS[verb])}"
        )


def _refuse_sweep(verb: str, override: Override, flags: argparse.Namespace) -> None:
    key, line = override.key_or_group, override.input_line
    if key == "run" and flags.multirun and verb == "train":
        raise UserError(
            "run names one directory, but -m starts several runs; set hydra.sweep.dir=DIR instead"
        )
    if not override.is_sweep_override():
        return
    if key == "run" and verb != "train":
        raise UserError(f"{line!r}: nmt {verb} reads one run at a time; call it once for each")
    if not flags.multirun:
        raise UserError(
            f"{line!r} names several values; add -m to try each, or write a list in brackets [...]"
        )
    if override.is_interval_sweep():
        raise UserError(f"{line!r} has no end of values; name those to try: {key}=A,B")


def _refuse_choice(verb: str, override: Override, flags: argparse.Namespace) -> None:
    """Hydra would pass over an unknown recipe: recipes are optional, as not all data has one of its own."""
    if override.value_type is ValueType.GLOB_CHOICE_SWEEP:
        return
    group, names = override.key_or_group, choices(verb, override.key_or_group, flags)
    for choice in override.sweep_iterator() if override.is_sweep_override() else [override.value()]:
        if not isinstance(choice, str):
            raise UserError(f"{override.input_line!r}: {group} takes one of {', '.join(names)}")
        if choice not in names and not choice.startswith(SCHEMA_PREFIX):
            raise UserError(no_such_choice(group, choice, names))
