"""The text of `nmt VERB --help`: the groups and their choices, every key with its value and its docstring.

The docstring of a field is the string below it in the source of its dataclass, where a reader of the code
finds it, too. Knows dataclasses and composed configs; runs nothing.
"""

from __future__ import annotations

import ast
import inspect
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import yaml
from omegaconf import MISSING, DictConfig, OmegaConf

from nmt.config.sweeps import SweepConfig
from nmt.config.verb import Verb

KEY_WIDTH = 40

USAGE = """\
usage: nmt {verb} [GROUP=CHOICE ...] [key=value ...] [options]
{examples}
options:
  -h, --help            this text, for the config that the other arguments make
  -c, --cfg job         print the config instead of running; --resolve fills in references
  -m, --multirun        run every combination of values given as key=a,b
  -i, --info [WHAT]     how the config is composed: {info}
  -cd, --config-dir DIR a folder of your own choices, laid out like configs/
"""


def render(
    verb: Verb, cfg: DictConfig, choices: Mapping[str, Any], groups: Mapping[str, Sequence[str]]
) -> str:
    """Return the help of `verb`; `choices` has the choice in force of each group, `groups` all choices."""
    examples = "".join(f"  {example}\n" for example in verb.examples)
    info = "config, defaults, defaults-tree, searchpath, plugins"
    root = OmegaConf.get_type(cfg)
    parts = [
        summary(root),
        USAGE.format(verb=verb.name, examples=examples, info=info),
        "groups (GROUP=CHOICE; * is in force):",
        *(_group(group, names, choices.get(group)) for group, names in groups.items()),
        "\nkeys (key=value; the values are those in force):",
        *_keys(cfg),
        "\n  sweep: Settings of a sweep, for -m.",
        *_keys(OmegaConf.structured(SweepConfig), "sweep."),
    ]
    return "\n".join(parts)


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
    parts = []
    for name in map(str, cfg):
        value = None if OmegaConf.is_missing(cfg, name) else cfg._get_node(name)
        if isinstance(value, DictConfig):
            parts.append(name)
        else:
            yield _key(f"{prefix}{name}={_shown(cfg, name)}", docs.get(name, ""))
    for name in parts:
        yield f"\n  {prefix}{name}: {docs.get(name, '')}"
        yield from _keys(cfg[name], f"{prefix}{name}.")


def _key(key: str, doc: str) -> str:
    width = max(shutil.get_terminal_size().columns, KEY_WIDTH + 40)
    indent = " " * KEY_WIDTH
    text = textwrap.fill(doc, width, initial_indent=indent, subsequent_indent=indent)
    head = f"    {key}"
    return f"{head:<{KEY_WIDTH - 1}} {text.lstrip()}" if len(head) < KEY_WIDTH else f"{head}\n{text}"


def _shown(cfg: DictConfig, name: str) -> str:
    plain = OmegaConf.to_container(cfg, enum_to_str=True)
    value = plain.get(name) if isinstance(plain, dict) else None
    if value == MISSING:
        return ""
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("\n").removesuffix("\n...")


@cache
def field_docs(cls: type) -> dict[str, str]:
    """Return the docstrings of the fields of a dataclass, inherited fields included."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        body = node.body if isinstance(node, ast.ClassDef) else []
        for item, below in pairwise(body):
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                text = below.value if isinstance(below, ast.Expr) else None
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    docs[item.target.id] = " ".join(text.value.split())
    return docs
