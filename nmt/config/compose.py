"""From the command line of one verb to its config, through Hydra.

Hydra composes, and nothing else: training runs outside of Hydra. Nothing is instantiated from a config.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from omegaconf import DictConfig

from nmt.config import help
from nmt.config.blame import is_about, refuse_all
from nmt.config.composed import Composed
from nmt.config.explain import explained, is_missing, is_of_lack
from nmt.config.named_runs import commands_of_models, implied, stored_config
from nmt.config.overrides import (
    Arguments,
    as_lines,
    choices,
    parse_flags,
    runs_of,
    usable,
)
from nmt.config.schemas import finite_defaults, set_up
from nmt.config.verb import Verb
from nmt.errors import Problems, ProblemsOfSome


def compose(verb: Verb, argv: Sequence[str]) -> list[Composed]:
    """Return the config that the arguments, which are no sweep, make, or none after showing help.

    Raises:
        UserError: the arguments make no config; the message has all that is wrong with them.
    """
    read = Arguments.read(verb, argv)
    flags, problems = read.flags, read.problems
    if not flags.help and (commands := commands_of_models(verb, argv, read.overrides)):
        return _composed_each(verb, commands, shows=flags.cfg is not None)
    stored = None
    if verb.run_key and not {verb.run_key, verb.models or verb.run_key} & read.refused:
        with problems.gathered():
            stored = stored_config(verb, runs_of(read.overrides, verb.run_key), flags)
    if flags.help or flags.info is not None or (verb.run_key and stored is None):
        problems.refuse()
    values = {o.get_key_element(): o.get_value_element_as_str() for o in read.kept}
    lines = as_lines(values, flags)
    lines = [*implied(verb, lines, flags), *lines]
    with set_up(verb, stored) as hydra_app:
        if flags.help:
            found = Composed.of(verb, lines)
            groups = {group: choices(verb, group, flags) for group in verb.groups}
            for key, group in verb.mounts.items():
                groups[key] = choices(verb, group, flags)
                found.choices[key] = found.choices.get(f"{group}@{key}")
            print(help.render(verb, found.cfg, found.choices, groups, flags.topics))
        elif flags.info is not None:
            with finite_defaults(str(o.input_line) for o in read.kept):
                hydra_app.show_info(flags.info, verb.name, lines)
        else:
            wrong, made = Problems(), list[Composed]()
            with wrong.gathered(), explained():
                made.append(Composed.of(verb, lines, [*values]))
                made[0].checked(verb)
            if made and flags.cfg is not None:  # which shows what is missing as ???
                wrong[:] = [one for one in wrong if not is_of_lack(one)]
            if made and not (problems or wrong):
                if flags.cfg is None:
                    return made
                shown = [*lines, *(f"{x.key}={x.value}" for x in made[0].chosen())]
                hydra_app.show_cfg(verb.name, shown, cfg_type=flags.cfg, package=None, resolve=flags.resolve)
                return []
            with wrong.gathered():
                refuse_all(verb, lines)
            # What an argument that cannot be used would have set is neither missing nor wrong.
            problems += [_as_called(verb, one) for one in wrong if not is_about(one, read.refused)]
            problems.refuse()
    return []


def _composed_each(verb: Verb, commands: Mapping[str, Sequence[str]], *, shows: bool) -> list[Composed]:
    """Return the config of the first of several models, with those of all; none if it only `shows` them."""
    made, wrong = dict[str, Composed](), ProblemsOfSome()
    for name, argv in commands.items():
        with wrong.gathered(f"{verb.models}.{name}"):
            if shows:
                print(f"--- # {verb.models}.{name}")  # YAML knows several documents
            made.update((name, composed) for composed in compose(verb, argv))
    wrong.refuse(len(commands))
    return [dataclasses.replace(first, models=made) for first in [*made.values()][:1]]


def _as_called(verb: Verb, problem: str) -> str:
    """Return a problem; where the folders that `verb` reads are not named, with how it is called."""
    if problem != is_missing(verb.words):
        return problem
    calls = " or ".join(example.partition("#")[0].strip() for example in verb.examples[:2])
    return f"{verb.words} is missing; say {calls}; nmt runs lists what there is"


def outline(verb: Verb, argv: Sequence[str]) -> DictConfig:
    """Return the config that some choices make, unchecked; a run that the verb needs may be missing."""
    flags = parse_flags(verb, [*argv, "--help"])
    overrides = [usable(verb, argument, flags) for argument in flags.overrides]
    stored = stored_config(verb, runs_of(overrides, verb.run_key), flags) if verb.run_key else None
    values = {o.get_key_element(): o.get_value_element_as_str() for o in overrides}
    with set_up(verb, stored):
        return Composed.of(verb, as_lines(values, flags)).cfg
