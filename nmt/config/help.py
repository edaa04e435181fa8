"""The text of `nmt VERB --help [PART]`: groups with their choices, keys with their values and docstrings.

The docstring of a field is the string below it in the source of its dataclass, where a reader of the code
finds it, too. Knows dataclasses and composed configs; runs nothing.
"""

from __future__ import annotations

import ast
import inspect
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from itertools import pairwise
from typing import Any, cast, get_type_hints

import yaml
from omegaconf import MISSING, DictConfig, OmegaConf, open_dict

from nmt.config.explain import leaves
from nmt.config.registry import VARIANTS
from nmt.config.renames import SYNONYMS
from nmt.config.sweeps import SweepConfig
from nmt.config.verb import Verb
from nmt.errors import UserError, suggest

KEY_WIDTH = 40
Fits = Callable[[str, str], bool]
"""Whether a key, given in full, and its docstring are to be shown."""

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


def with_sweep(verb: Verb, cfg: DictConfig) -> DictConfig:
    """Return the config of `verb` with the settings of its sweeps, if it has any."""
    if verb.words:
        return cfg
    cfg = cfg.copy()
    with open_dict(cfg):
        cfg["sweep"] = OmegaConf.structured(SweepConfig)
    return cfg


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
    cfg = with_sweep(verb, cfg)
    if topics:
        return "\n\n".join("\n".join(_topic(verb, topic, cfg, choices, groups)) for topic in topics)
    examples = "".join(f"  {example}\n" for example in verb.examples)
    info = "config, defaults, defaults-tree, searchpath, plugins"
    root = OmegaConf.get_type(cfg)
    known = {*leaves(cfg)}
    first = [key for key in verb.first_keys if key in known]
    parts = [
        _filled(summary(root)),
        USAGE.format(verb=verb.name, examples=examples, info=info),
        *(["groups (GROUP=CHOICE; * is in force):"] if groups else []),
        *(_group(group, names, choices.get(group)) for group, names in groups.items()),
        *(["\nkeys that are changed first:"] if first else []),
        *(_of_key(cfg, key) for key in first),
        *([""] if groups or first else []),
        _filled(
            f"keys (key=value; the values are those in force; nmt {verb.name} --help PART shows one part, "
            "--help WORD the keys that have to do with it):"
        ),
        *_keys(cfg),
    ]
    return "\n".join(parts)


def _topic(
    verb: Verb, topic: str, cfg: DictConfig, choices: Mapping[str, Any], groups: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    """Yield the help of one part, or else of keys: of that name, or that have to do with a word.

    Raises:
        UserError: there are none.
    """
    part = None if OmegaConf.is_missing(cfg, topic) else OmegaConf.select(cfg, topic)
    if topic in groups:
        yield f"{topic}=CHOICE (* is in force):"
        yield _group(topic, groups[topic], choices.get(topic))
    if isinstance(part, DictConfig):
        cls = OmegaConf.get_type(part)
        doc = summary(cls) if is_dataclass(cls) else _doc_of(cfg, topic)
        yield _filled(f"{topic}: {doc}", "\n  ", "    ")
        yield from _keys(part, f"{topic}.")
        yield from _keys_elsewhere(topic, cfg)
        return
    keys = list(_search(cfg, lambda key, _: topic in (key, key.rpartition(".")[2])))
    if not keys and topic not in groups:
        keys = list(_about(topic, cfg))
    if not keys and topic not in groups:
        names = [*groups, *(str(name) for name in cfg if isinstance(cfg._get_node(name), DictConfig))]
        known = [*names, *leaves(cfg), *(key.rpartition(".")[2] for key in leaves(cfg))]
        kind, listed = ("parts", names) if names else ("keys", list(leaves(cfg)))
        raise UserError(
            f"nmt {verb.name} has no part or key {topic!r}{suggest(topic, known)}; "
            f"the {kind} are {', '.join(dict.fromkeys(listed))}"
        )
    yield from keys


def _about(word: str, cfg: DictConfig) -> Iterator[str]:
    """Yield the keys with a word in their name here or in other toolkits, then those that speak of it."""
    begins = re.compile(rf"(?<![^\W_]){re.escape(word)}", re.IGNORECASE)  # lr is not in already

    def is_named(key: str, _: str) -> bool:
        return any(map(begins.search, (key.rpartition(".")[2], *SYNONYMS.get(key, ()))))

    def is_told(key: str, doc: str) -> bool:
        return begins.search(doc) is not None and not is_named(key, doc)

    named, told = list(_search(cfg, is_named)), list(_search(cfg, is_told))
    yield from [f"keys with {word!r} in their name, here or in other toolkits:", *named] if named else []
    yield from ["\n" * bool(named) + f"keys with {word!r} in their description:", *told] if told else []


def _search(cfg: DictConfig, fits: Fits) -> Iterator[str]:
    """Yield the keys that fit: those in force, then those that other choices have."""
    yield from (_of_key(cfg, key) for key in leaves(cfg) if fits(key, _doc_of(cfg, key)))
    yield from (line for name in cfg for line in _keys_elsewhere(str(name), cfg, fits))


def _keys_elsewhere(part: str, cfg: DictConfig, fits: Fits = lambda key, doc: True) -> Iterator[str]:
    """Yield the keys of `part` that fit and that only other choices have, with the values by default."""
    named_by, classes = VARIANTS.get(part, ("", {}))
    chosen = field_docs(cast(type, OmegaConf.get_type(cfg, part))) if classes else {}
    owners = dict[str, list[str]]()
    for name, cls in classes.items():
        default = _plain(OmegaConf.structured(cls))
        for key, doc in field_docs(cls).items():
            if key not in chosen and fits(f"{part}.{key}", doc):
                owners.setdefault(_key(f"{part}.{key}={_shown(default[key])}", doc), []).append(name)
    for names in dict.fromkeys(map(tuple, owners.values())):
        yield _filled(f"with {part}.{named_by}={', '.join(names)} also:", "\n  ", "    ")
        yield from (line for line, own in owners.items() if tuple(own) == names)


def _of_key(cfg: DictConfig, key: str) -> str:
    """Return the paragraph of one key, given in full."""
    part, _, name = key.rpartition(".")
    home = OmegaConf.select(cfg, part) if part else cfg
    return _key(f"{key}={_shown(_plain(home)[name])}", _doc_of(cfg, key))


def _doc_of(cfg: DictConfig, key: str) -> str:
    part, _, name = key.rpartition(".")
    cls = OmegaConf.get_type(OmegaConf.select(cfg, part) if part else cfg)
    return field_docs(cls).get(name, "") if is_dataclass(cls) else ""


def summary(cls: Any) -> str:
    """Return the first paragraph of the docstring of `cls`, on one line."""
    return " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())


def _filled(text: str, first: str = "", others: str = "") -> str:
    """Return a text in lines that fit the terminal, which begin with `first` and `others`."""
    width = shutil.get_terminal_size().columns
    return textwrap.fill(text, width, initial_indent=first, subsequent_indent=others, break_on_hyphens=False)


def _group(group: str, names: Sequence[str], chosen: Any) -> str:
    shown = ", ".join(f"*{name}" if name == chosen else name for name in names)
    return _filled(shown, f"  {group:<11} ", " " * 14)


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
        doc = docs.get(name) or summary(OmegaConf.get_type(cfg[name]))
        yield _filled(f"{prefix}{name}: {doc}", "\n  ", "    ")
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
