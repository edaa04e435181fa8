"""The text of `nmt VERB --help [PART]`: groups with their choices, keys with their values and docstrings.

The docstring of a field is the string below it in the source of its dataclass, where a reader of the code
finds it, too. Knows dataclasses and composed configs; runs nothing.
"""

from __future__ import annotations

import ast
import inspect
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from itertools import pairwise
from typing import Any, cast, get_type_hints

import yaml
from omegaconf import MISSING, DictConfig, OmegaConf

from nmt.config.explain import leaves
from nmt.config.registry import VARIANTS
from nmt.config.sweeps import SweepConfig
from nmt.config.verb import Verb
from nmt.errors import UserError, suggest

KEY_WIDTH = 40

USAGE = """\
usage: nmt {verb} [GROUP=CHOICE ...] [key=value ...] [options]
{examples}
options:
  -h, --help [PART ...] this text, or that of some parts or keys, for the config
                        that the other arguments make
  -c, --cfg job         print the config instead of running; --resolve fills in
                        references
  -m, --multirun        run every combination of values given as key=a,b
  -i, --info [WHAT]     how the config is composed:
                        {info}
  -cd, --config-dir DIR a folder of your own choices, laid out like configs/
"""


def render(
    verb: Verb,
    cfg: DictConfig,
    choices: Mapping[str, Any],
    groups: Mapping[str, Sequence[str]],
    topics: Sequence[str] = (),
) -> str:
    """Return the help of `verb`, or of the parts and keys `topics`.

    `choices` has the choice in force of each group, `groups` all choices.
    """
    if topics:
        return "\n\n".join("\n".join(_topic(verb, topic, cfg, choices, groups)) for topic in topics)
    examples = "".join(f"  {example}\n" for example in verb.examples)
    info = "config, defaults, defaults-tree, searchpath, plugins"
    root = OmegaConf.get_type(cfg)
    known = {*leaves(cfg)}
    first = [key for key in verb.first_keys if key in known]
    parts = [
        textwrap.fill(summary(root), shutil.get_terminal_size().columns),
        USAGE.format(verb=verb.name, examples=examples, info=info),
        *(["groups (GROUP=CHOICE; * is in force):"] if groups else []),
        *(_group(group, names, choices.get(group)) for group, names in groups.items()),
        *(["\nkeys that are changed first:"] if first else []),
        *(line for key in first for line in _of_key(cfg, key)),
        *([""] if groups or first else []),
        f"keys (key=value; the values are those in force; nmt {verb.name} --help PART shows one part):",
        *_keys(cfg),
        "\n  sweep: Settings of a sweep, for -m.",
        *_keys(OmegaConf.structured(SweepConfig), "sweep."),
    ]
    return "\n".join(parts)


def _topic(
    verb: Verb, topic: str, cfg: DictConfig, choices: Mapping[str, Any], groups: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    """Yield the help of one part, or of the keys with one name; raise `UserError` if there is none."""
    part = None if OmegaConf.is_missing(cfg, topic) else OmegaConf.select(cfg, topic)
    keys = [key for key in leaves(cfg) if topic in (key, key.rpartition(".")[2])]
    elsewhere = [] if keys else [line for name in cfg for line in _keys_elsewhere(str(name), cfg, topic)]
    if topic not in groups and not isinstance(part, DictConfig) and not keys and not elsewhere:
        names = [*groups, *(str(name) for name in cfg if isinstance(cfg._get_node(name), DictConfig))]
        known = [*names, *leaves(cfg), *(key.rpartition(".")[2] for key in leaves(cfg))]
        parts = ", ".join(dict.fromkeys(names))
        raise UserError(
            f"nmt {verb.name} has no part or key {topic!r}{suggest(topic, known)}; the parts are {parts}"
        )
    if topic in groups:
        yield f"{topic}=CHOICE (* is in force):"
        yield _group(topic, groups[topic], choices.get(topic))
    if isinstance(part, DictConfig):
        yield f"\n  {topic}: {summary(OmegaConf.get_type(part))}"
        yield from _keys(part, f"{topic}.")
        yield from _keys_elsewhere(topic, cfg)
    else:
        yield from (line for key in keys for line in _of_key(cfg, key))
        yield from elsewhere


def _keys_elsewhere(part: str, cfg: DictConfig, key: str = "") -> Iterator[str]:
    """Yield the keys of `part` that other choices have, or the one of them, with the values by default."""
    named_by, classes = VARIANTS.get(part, ("", {}))
    chosen = cast(type, OmegaConf.get_type(cfg, part)) if classes else None
    for name, cls in classes.items():
        own = {field.name for field in fields(cls)} - {field.name for field in fields(cast(type, chosen))}
        own = {field for field in own if key in ("", field, f"{part}.{field}")}
        if cls is not chosen and own:
            yield f"\n  with {part}.{named_by}={name} also:"
            default, docs = _plain(OmegaConf.structured(cls)), field_docs(cls)
            yield from (
                _key(f"{part}.{key}={_shown(default[key])}", docs.get(key, "")) for key in docs if key in own
            )


def _of_key(cfg: DictConfig, key: str) -> Iterator[str]:
    """Yield the paragraph of one key, given in full."""
    part, _, name = key.rpartition(".")
    home = OmegaConf.select(cfg, part) if part else cfg
    cls = OmegaConf.get_type(home)
    docs = field_docs(cls) if is_dataclass(cls) else {}
    yield _key(f"{key}={_shown(_plain(home)[name])}", docs.get(name, ""))


def summary(cls: Any) -> str:
    """Return the first paragraph of the docstring of `cls`, on one line."""
    return " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())


def _group(group: str, names: Sequence[str], chosen: Any) -> str:
    shown = ", ".join(f"*{name}" if name == chosen else name for name in names)
    width = shutil.get_terminal_size().columns
    return textwrap.fill(shown, width, initial_indent=f"  {group:<11} ", subsequent_indent=" " * 14)


def _keys(cfg: DictConfig, prefix: str = "") -> Iterator[str]:
    """Yield a paragraph for every key: plain keys first, then the parts with a heading each."""
    cls = OmegaConf.get_type(cfg)
    docs = field_docs(cls) if is_dataclass(cls) else {}
    plain, parts = _plain(cfg), []
    for name in map(str, cfg):
        value = None if OmegaConf.is_missing(cfg, name) else cfg._get_node(name)
        if isinstance(value, DictConfig):
            parts.append(name)
        else:
            yield _key(f"{prefix}{name}={_shown(plain[name])}", docs.get(name, ""))
    for name in parts:
        yield f"\n  {prefix}{name}: {docs.get(name, '')}"
        yield from _keys(cfg[name], f"{prefix}{name}.")


def _key(key: str, doc: str) -> str:
    width = max(shutil.get_terminal_size().columns, KEY_WIDTH + 40)
    indent = " " * KEY_WIDTH
    text = textwrap.fill(doc, width, initial_indent=indent, subsequent_indent=indent)
    head = f"    {key}"
    return f"{head:<{KEY_WIDTH - 1}} {text.lstrip()}" if len(head) < KEY_WIDTH else f"{head}\n{text}"


def _plain(cfg: DictConfig) -> dict[str, Any]:
    return cast(dict[str, Any], OmegaConf.to_container(cfg, enum_to_str=True))


def _shown(value: Any) -> str:
    if value == MISSING:
        return ""
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("\n").removesuffix("\n...")


@cache
def field_docs(cls: type) -> dict[str, str]:
    """Return the docstrings of the fields of a dataclass, inherited fields included.

    The values of an enumeration follow where the docstring does not name them.
    """
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        for item, below in pairwise(_bodies(base.__module__).get(base.__name__, ())):
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                text = below.value if isinstance(below, ast.Expr) else None
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    docs[item.target.id] = " ".join(text.value.split())
    hints = get_type_hints(cls)
    return {name: _with_values(doc, hints.get(name)) for name, doc in docs.items()}


def _with_values(doc: str, hint: Any) -> str:
    values = [x.name for x in hint] if isinstance(hint, type) and issubclass(hint, Enum) else []
    return doc if all(value in doc for value in values) else f"{doc} One of {', '.join(values)}."


@cache
def _bodies(module: str) -> dict[str, list[ast.stmt]]:
    """Return the statements of each class of a module."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node.body for node in tree.body if isinstance(node, ast.ClassDef)}
