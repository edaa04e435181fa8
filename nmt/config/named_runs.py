"""The runs that a command line names: their configs, and what a training takes over from one of them."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from hydra.core.override_parser.types import Override

from nmt.config import small_data
from nmt.config.overrides import parse_overrides, runs_of
from nmt.config.roots import TrainConfig
from nmt.config.starting import VocabularyUse, following, kept
from nmt.config.stored import known_runs, load_run, to_plain
from nmt.config.verb import Verb
from nmt.errors import Problems, UserError


def stored_config(verb: Verb, runs: Sequence[str], flags: argparse.Namespace) -> TrainConfig | None:
    """Return the config of the first run; None where there is none and help is wanted, which needs none."""
    key = verb.run_key
    if not runs and not flags.help:
        raise UserError(f"{key} is missing; say nmt {verb.name} {key}=DIR{known_runs()}")
    problems, stored = Problems(), list[TrainConfig]()
    for run in runs:
        with problems.gathered():
            stored.append(load_run(run, key))
    problems.refuse()
    return stored[0] if stored else None


def implied(verb: Verb, lines: Sequence[str]) -> list[str]:
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
