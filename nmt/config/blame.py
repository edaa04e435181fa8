"""All that is wrong with overrides which together make no config, each with those to blame alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from nmt.config.composed import Composed, closed
from nmt.config.explain import explained, is_missing, meant_keys
from nmt.config.overrides import parse_overrides
from nmt.config.plain import UserFiles, named, parsed, read_text, replaced_choices
from nmt.config.roots import to_config
from nmt.config.schemas import copied
from nmt.config.spelling import spelled
from nmt.config.stored import flat
from nmt.config.verb import Verb
from nmt.errors import Problems, UserError


def is_about(problem: str, keys: Iterable[str]) -> bool:
    """Return whether a problem is that one of `keys` is not set, or names one that is no mere word."""
    unset = tuple(f"{key} {lack}" for key in keys for lack in ("is not set", "is missing;"))
    named = "|".join(re.escape(key) for key in keys if "." in key)
    return problem.startswith(unset) or bool(named and re.search(rf"(?<![\w.])({named})(?!\w|\.\w)", problem))


def refuse_all(verb: Verb, lines: Sequence[str]) -> None:
    """Raise `UserError` with all that is wrong with overrides which together make no config.

    Each value is set by itself; those that can be set are then checked together, again and again without
    those to blame, because a component states the first of its values that is out of range. To blame are
    those without which nothing is wrong, and where there are none, those without which the problem is gone.
    What is then wrong with a key that is to blame, or that an unknown one is meant for, is wrong with its
    default, and not told. The keys of a recipe of the user that makes no config are looked at likewise.
    """
    overrides = parse_overrides(lines)
    try:
        _refuse_values(verb, overrides)
    except _NoBase as error:
        recipe = _Recipe.of(overrides)
        if recipe is None or not any(one.startswith(f"{recipe.name}: ") for one in error.problems):
            raise
        with suppress(_NoBase):
            recipe.refuse(verb, overrides)
        raise error


class _NoBase(UserError):
    """The choices alone make no config."""


def _refuse_values(verb: Verb, overrides: Sequence[Override]) -> None:
    """Do what `refuse_all` does, unless the choices alone make no config; that is a `_NoBase`."""
    values = [o for o in overrides if o.key_or_group not in verb.groups and not o.is_hydra_override()]
    try:
        with explained():
            base = Composed.of(verb, [str(o.input_line) for o in overrides if o not in values]).cfg
    except UserError as error:
        raise _NoBase(*error.problems) from error

    def problems_of(some: Sequence[Override]) -> list[str]:
        found, cfg = Problems(), copied(base)
        with found.gathered(), explained():
            for override in some:
                OmegaConf.update(cfg, override.key_or_group, override.value(), merge=True)
            to_config(closed(cfg), verb.config_class())
        left = tuple(is_missing(o.key_or_group) for o in values if not any(o is other for other in some))
        return [problem for problem in found if not problem.startswith(left)]

    def told(found: Sequence[str], fit: Sequence[Override]) -> list[str]:
        refused = typed - {o.key_or_group for o in fit}
        return [problem for problem in found if not is_about(problem, refused | meant)]

    fit, problems = list[Override](), Problems()
    for override in values:
        with problems.gathered(), explained():
            OmegaConf.update(copied(base), override.key_or_group, override.value(), merge=True)
            fit.append(override)
    typed = {o.key_or_group for o in values}
    meant = {key for problem in problems for key in meant_keys(problem)} - typed
    problems[:] = [
        one for one in problems if not one.startswith(tuple(f"unknown key {key}." for key in meant))
    ]
    while new := [problem for problem in told(problems_of(fit), fit) if problem not in problems]:
        problems += new
        left = [(o, problems_of([other for other in fit if other is not o])) for o in fit]
        alone = [o for o, found in left if found]
        fit = alone if len(alone) < len(fit) else [o for o, found in left if {*new} <= {*found}]
    problems.refuse()


@dataclass
class _Recipe:
    """A recipe in the folder of --config-dir, as the settings that it is."""

    name: str
    content: dict[str, Any]

    @classmethod
    def of(cls, overrides: Sequence[Override]) -> _Recipe | None:
        """Return the recipe of the user that overrides choose, if there is one, and it can be read."""
        values: dict[str, Any] = {o.key_or_group: o.value() for o in overrides}
        folder = str((values.get("hydra.searchpath") or [""])[0]).removeprefix(f"{UserFiles.scheme()}://")
        name = f"experiment/{values.get('experiment')}.yaml"
        with suppress(UserError), named(file := Path(folder, name)):
            return cls(name, parsed(read_text(file), references=True))
        return None

    def refuse(self, verb: Verb, overrides: Sequence[Override]) -> None:
        """Raise `UserError` with all that is wrong with overrides, and with the settings of the recipe."""
        defaults, chosen = self.content.get("defaults", []), dict(replaced_choices(self.content))
        base = [one for one in defaults if isinstance(one, str) and one != "_self_"] or ["none"]
        values = {key: value for key, value in flat(self.content) if key != "defaults"}
        own = {**chosen, **{key: spelled(x) for key, x in values.items() if "${" not in str(x)}}
        typed = {o.key_or_group: o for o in overrides}
        lines = [f"{key}={value}" for key, value in {**own, "experiment": base[0]}.items()]
        others = [o for key, o in typed.items() if key != "experiment"]
        made = [o for o in parse_overrides(lines) if o.key_or_group not in {*typed} - {"experiment"}]
        try:
            _refuse_values(verb, [*made, *others])
        except UserError as error:
            keys = own.keys() - typed.keys()
            told = [f"{self.name}: {one}" if is_about(one, keys) else one for one in error.problems]
            raise type(error)(*told) from error
