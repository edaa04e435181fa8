"""Errors of Hydra and OmegaConf about a config, each as one readable sentence.

Knows the exceptions of the two libraries and the type hints of the config dataclasses; knows no command line
and ends no process. A sentence gives the full key, the constraint, the actual value and the way out.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    InterpolationResolutionError,
    MissingMandatoryValue,
    OmegaConfBaseException,
    UnsupportedInterpolationType,
    ValidationError,
)

from nmt.config.registry import SCHEMA_PREFIX, VARIANTS
from nmt.config.renames import RENAMED_CHOICES, RENAMED_KEYS, SYNONYMS
from nmt.errors import UserError, suggest

NAMES: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Any: "a value",
}
_AMOUNT = re.compile(r"(?P<number>\d+(?:\.\d*)?(?:[eE]\+?\d{1,2})?) *(?P<unit>[kKmMbBhs]?)(?:in|rs?)?")
_LANGUAGES = re.compile(r"_[a-z]{2}_[a-z]{2}$")
MULTIPLES = {"k": 1e3, "m": 1e6, "b": 1e9}
SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
"""Units of time in seconds."""
_FILE = re.compile(r"In '(?P<file>[^']+)': \w+ raised while composing config")
_RESOLVING = re.compile(r"^\w+ raised while resolving interpolation: ")
_NOISE = (
    "See https://",
    "To append to your",
    "Config search path",
    "provider=",
    "full_key:",
    "object_type=",
    "reference_type=",
)


@contextmanager
def explained() -> Iterator[None]:
    """Turn an exception of Hydra or OmegaConf into a `UserError` that explains it."""
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(explain(error)) from error


def explain(error: Exception) -> str:
    """Return what is wrong and the way out, for an exception of Hydra or OmegaConf."""
    if isinstance(error, OverrideParseException):
        return explain_syntax(error)
    if isinstance(error, MissingConfigException):
        return explain_choice(error)
    cause = error if isinstance(error, OmegaConfBaseException) else error.__cause__ or error.__context__
    if not isinstance(cause, OmegaConfBaseException):
        return _condensed(str(error))
    file = _FILE.match(str(error))
    return (f"{file['file']}.yaml: " if file else "") + explain_key(cause)


def explain_syntax(error: OverrideParseException) -> str:
    """Return what is wrong with an argument that is no override."""
    return (
        f"{error.override!r} is not understood; quote special characters, for Hydra and for the shell: "
        "\"key='a, b'\""
    )


def explain_choice(error: MissingConfigException) -> str:
    """Return the sentence about a choice that does not exist, for an exception of Hydra."""
    if error.missing_cfg_file is None or not error.options:
        return _condensed(str(error))
    group, _, choice = error.missing_cfg_file.rpartition("/")
    return no_such_choice(group, choice, error.options)


def no_such_choice(group: str, choice: str, choices: Iterable[str]) -> str:
    """Return the sentence about a choice that `group` does not have."""
    if now := RENAMED_CHOICES.get(f"{group}={choice.removeprefix(SCHEMA_PREFIX)}"):
        return f"there is no {group}={choice}; a {now.partition('=')[0]} is chosen by {now} now"
    offered = sorted(name for name in choices if not name.startswith(SCHEMA_PREFIX))
    longer = [name for name in offered if name.startswith(f"{choice}_")]
    longer.sort(key=lambda name: _LANGUAGES.search(name) is None)  # the plain recipe of a corpus first
    near = f"; did you mean {longer[0]!r}?" if longer else suggest(choice, offered)
    return f"there is no {group}={choice}{near}; {group} can be {', '.join(offered)}"


def has_no_schema(group: str) -> str:
    """Return the sentence about a file of a group that builds on no dataclass."""
    schemas = ", ".join(f"{SCHEMA_PREFIX}{name}" for name in VARIANTS[group][1])
    return (
        f"the file of {group}=... does not say what its keys are; "
        f"begin it with `defaults: [SCHEMA, _self_]`, where SCHEMA is one of {schemas}"
    )


def is_missing(key: str, hint: Any = None) -> str:
    """Return the sentence about a key without a value; it ends with the choices, where its type has some."""
    return f"{key} is missing; set {key}=..." + (f", {describe(hint)}" if _choices(hint) else "")


def is_of_lack(problem: str) -> bool:
    """Return whether a problem is that a key has no value, and no more."""
    return re.match(r"[\w.@]+ is (missing; set|not set, but) ", problem) is not None


def explain_key(error: OmegaConfBaseException) -> str:
    """Return what is wrong with one key or its value."""
    key = error.full_key or str(error.key)
    reason = _condensed(str(error))
    if isinstance(error, MissingMandatoryValue):
        return is_missing(key, _hint(error))
    if isinstance(error, InterpolationResolutionError | UnsupportedInterpolationType):
        return f"{key} cannot be resolved: {_RESOLVING.sub('', reason)}"
    if isinstance(error, ConfigKeyError | ConfigAttributeError):
        return unknown_key(key, error.parent_node)
    if isinstance(error, ValidationError) and (hint := _hint(error)) is not None:
        return wrong_value(key, hint, error.value)
    if reason == "Cannot merge DictConfig with ListConfig":  # or the other way round
        kinds = ["a list in brackets", "a group of keys in braces"]
        wanted, found = kinds if isinstance(error.parent_node, ListConfig) else kinds[::-1]
        return f"{key} must be {wanted}, but is {found}"
    return f"{key}: {reason}" if error.full_key else reason


def unknown_key(key: str, parent: Any) -> str:
    """Return where the key is to be found: with another choice, in another part, or under another name."""
    if key in RENAMED_KEYS:
        return f"unknown key {key}; it {renamed(key)}"
    prefix, _, leaf = key.rpartition(".")
    named_by = VARIANTS[prefix][0] if prefix in VARIANTS else ""
    siblings = [name for name in _names(parent) if name != named_by]
    everywhere = list(leaves(parent._get_root())) if isinstance(parent, DictConfig) else []
    cousins = [
        name for name in everywhere if name.rpartition(".")[2] == leaf or leaf in SYNONYMS.get(name, ())
    ]
    near = get_close_matches(leaf, siblings, n=1)
    absent = [name for name, others in SYNONYMS.items() if leaf in others and name not in everywhere]
    if named_by and _owners(key):
        hint = f"; {_chosen_otherwise(key, parent)}"
    elif cousins:
        hint = f"; did you mean {' or '.join(cousins)}?"
    elif absent and _owners(absent[0]):
        part, example = absent[0].partition(".")[0], f"{absent[0]}=..."
        other = f"{part}={_owners(absent[0])[0]}"
        hint = f"; {absent[0]} is meant: {_chosen_otherwise(absent[0], parent)}, such as {other} {example}"
    elif near:
        hint = f"; did you mean {prefix}{'.' if prefix else ''}{near[0]}?"
    else:
        hint = f"; the keys here are {', '.join(siblings)}" if siblings else ""
    return f"unknown key {key}{hint}"


def meant_keys(problem: str) -> list[str]:
    """Return the keys that a sentence of `unknown_key` offers instead."""
    found = re.fullmatch(r"unknown key \S+; did you mean (.+)\?", problem)
    return found[1].split(" or ") if found else []


def renamed(key: str, value: str = "...") -> str:
    """Return the end of a sentence on a key of an earlier version: its new name, or what chooses `value`."""
    part, _, name = RENAMED_KEYS[key].rpartition(".")
    if part in VARIANTS and name == VARIANTS[part][0]:
        return f"follows from {part}={value} now"
    return f"is called {RENAMED_KEYS[key]} now"


def _owners(key: str) -> list[str]:
    """Return the choices of the part of `key` whose dataclass has a field of its name."""
    part, _, leaf = key.rpartition(".")
    table = VARIANTS[part][1] if part in VARIANTS else {}
    return [name for name, cls in table.items() if leaf in _keys(cls)]


def _keys(cls: type) -> set[str]:
    """Return the names of the fields that are keys of a config."""
    return {field.name for field in fields(cls) if not field.metadata.get("omegaconf_ignore")}


def _chosen_otherwise(key: str, parent: Any) -> str:
    """Return which choices have `key`, and that another one is chosen."""
    part = key.rpartition(".")[0]
    chooser = f"{part}.{VARIANTS[part][0]}"
    chosen = OmegaConf.select(parent._get_root(), chooser)
    return f"{' or '.join(_owners(key))} has it, but {chooser}={chosen}: choose another with {part}=..."


def wrong_value(key: str, hint: Any, value: Any) -> str:
    """Return the sentence about a value that does not fit the type of its field."""
    shown = (
        "null"
        if value is None
        else "a group of keys"
        if isinstance(value, dict | DictConfig)
        else repr(value)
    )
    near = suggest(value, _choices(hint)) if isinstance(value, str) else ""
    near = near or _in_digits(key, hint, value) or _as_several(key, hint, value)
    return f"{key} must be {describe(hint)}, but is {shown}{near}"


def _in_digits(key: str, hint: Any, value: Any) -> str:
    """Return "; write 480" for an amount such as 1e5, 100k or, of minutes, 8h; nothing for other values."""
    found, kinds = _AMOUNT.fullmatch(str(value)), {*get_args(hint)} or {hint}
    per = next((SECONDS[unit[0]] for unit in ("seconds", "minutes") if key.endswith(unit)), None)
    units = {unit: seconds / per for unit, seconds in SECONDS.items()} if per else MULTIPLES
    unit = found["unit"].lower() if found else None
    if found is None or not {int, float} & kinds or unit not in {"": 1.0, **units}:
        return ""
    number = float(found["number"]) * units.get(unit, 1.0)
    if number.is_integer():
        return f"; write {int(number)}"
    return f"; write {number}" if float in kinds else ""


def _as_several(key: str, hint: Any, value: Any) -> str:
    """Return how to write a list of one, or numbers to try in turn; nothing for other values."""
    if get_origin(hint) is list and isinstance(value, str | int | float):
        return f"; write {key}=[{value}]"
    if hint is int and (found := re.fullmatch(r"(\d+)(?:\.\.+|-|:)(\d+)", str(value))):
        return f"; to try each, add -m and write '{key}=range({found[1]},{int(found[2]) + 1})'"
    return ""


def describe(hint: Any) -> str:
    """Return the values a type hint allows, in words."""
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join("null" if kind is type(None) else describe(kind) for kind in get_args(hint))
    if get_origin(hint) is list:
        return f"a list in brackets, each entry {describe(get_args(hint)[0])}"
    if get_origin(hint) is dict:
        return f"a group of names in braces, each with {describe(get_args(hint)[1])}"
    if is_dataclass(hint):
        return f"a group of keys ({', '.join(f.name for f in fields(hint))})"
    return f"one of {', '.join(_choices(hint))}" if _choices(hint) else NAMES.get(hint, str(hint))


def leaves(cfg: Any, prefix: str = "") -> Iterator[str]:
    """Yield the full keys of all values of a composed config, without Hydra's own."""
    for name in _names(cfg):
        node = None if OmegaConf.is_missing(cfg, name) else cfg._get_node(name)
        if isinstance(node, DictConfig) and not node._is_none():
            yield from leaves(node, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _names(cfg: Any) -> list[str]:
    return [str(name) for name in cfg if name != "hydra"] if isinstance(cfg, DictConfig) else []


def _choices(hint: Any) -> list[str]:
    return [member.name for member in hint] if isinstance(hint, type) and issubclass(hint, Enum) else []


def _hint(error: OmegaConfBaseException) -> Any:
    """Return the type hint of the field that an error is about, or None when there is no such field."""
    if isinstance(error.parent_node, ListConfig):
        return next(iter(get_args(error.ref_type)), None)
    if isinstance(error.parent_node, DictConfig) and get_origin(error.parent_node._metadata.ref_type) is dict:
        return get_args(error.parent_node._metadata.ref_type)[1]
    if error.object_type is None or not is_dataclass(error.object_type):
        return None
    return get_type_hints(error.object_type).get(str(error.key))


def _condensed(message: str) -> str:
    """Return a message as one line, without lines that concern only users of the libraries."""
    lines = [line.strip() for line in message.splitlines()]
    return " ".join(line for line in lines if line and not line.startswith(_NOISE))
