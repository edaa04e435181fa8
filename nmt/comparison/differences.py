"""Keys that differ among runs: of configs and of environments, both as full keys with plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nmt.config.stored import FOUND, PLACE, flat, matches
from nmt.files import read_json

NAMES = ("run", "tracking.*")
"""Keys that say where a training reports to, and nothing about it."""
MINOR = ("runtime.*", "trainer.*_every_steps", "trainer.keep_*", "data.path")
"""Keys that change weights little or not at all."""
FAMILY = ("task", "model.name")
"""Keys that many others follow from."""
SEEDS = ("seed",)
"""Keys that make repetitions of one system differ."""
OF_ONE_RUN = (*NAMES, *SEEDS, *FOUND, *PLACE)
"""Keys that tell no system from another: where a run reports to and is computed, its seed, what it found."""


def differing(facts: Sequence[Mapping[str, Any]], ignored: Sequence[str] = NAMES) -> dict[str, list[Any]]:
    """Return each key whose values differ, with the value of every run, None where a run lacks the key.

    A key that only some runs have, such as one of another version or family, differs only if those do.
    """
    found = {}
    for key in dict.fromkeys(key for one in facts for key in one):
        if len({repr(one[key]) for one in facts if key in one}) > 1 and not matches(key, ignored):
            found[key] = [one.get(key) for one in facts]
    return found


def telling(configs: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return for each run the keys that tell it from the others, those first that tell most.

    Among several runs of one task and model these are the keys that differ among them; what all of them have
    in common follows from the model. The only run of its kind is told by all keys that differ.
    """
    every = differing(configs)
    kinds = [repr([config.get(key) for key in FAMILY]) for config in configs]
    found = {}
    for kind in {*kinds}:
        own = [config for config, other in zip(configs, kinds, strict=True) if other == kind]
        keys = {*FAMILY, *differing(own)} if len(own) > 1 else {*every}
        found[kind] = sorted((key for key in every if key in keys), key=lambda key: _rank(key, configs))
    return [found[kind] for kind in kinds]


def _rank(key: str, configs: Sequence[Mapping[str, Any]]) -> tuple[int, bool, bool]:
    """Return a value that sorts keys: task and model, keys that change weights, those that every run has."""
    return (*FAMILY, key).index(key), matches(key, MINOR), any(key not in config for config in configs)


def flat_environment(run: Path) -> dict[str, Any]:
    """Return the environment.json of a run as full keys with values; empty where there is none."""
    file = run / "environment.json"
    return dict(flat(read_json(file))) if file.is_file() else {}


def system_of(config: Mapping[str, Any]) -> str:
    """Return a text that runs have in common which differ in the keys `OF_ONE_RUN` alone.

    What a run finds for itself, such as the updates of an epoch, follows from the rest and the seed.
    """
    kept = {key: value for key, value in config.items() if not matches(key, OF_ONE_RUN)}
    return repr(sorted(kept.items()))


def shown(value: Any, form: str = "g") -> str:
    """Return a value of a config as it is written on a command line.

    Numbers have six digits, or another `form`, of which an empty one rounds nothing.
    """
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "-"}[value]
    if isinstance(value, float):
        return format(value, form)
    if isinstance(value, list):
        return f"[{','.join(shown(one, form) for one in value)}]"
    return str(value)
