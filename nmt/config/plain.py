"""YAML as plain data: the one reader of stored configs and of files of --config-dir, whoever wrote them.

What stored configs are written with is here, too, so that a text is read back as that text.
A file holds mappings, lists, numbers and text, and nothing else: no tag, no alias, no key that names code and
no setting of Hydra's own. A file of --config-dir may refer to other keys of the config, as `${data.src}`;
resolvers such as `${oc.env:NAME}` reach outside of the config, and are for the command line alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import yaml
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from omegaconf import OmegaConf
from omegaconf._utils import get_yaml_loader
from omegaconf.errors import OmegaConfBaseException

from nmt.config.explain import explain, no_such_choice
from nmt.config.registry import SCHEMA_PREFIX, VARIANTS
from nmt.errors import UserError, suggest

MAX_FILE_BYTES = 1_000_000
MAX_FILE_DEPTH = 8

_HYDRA = re.compile(r"\bhydra\b")
_NAMES_CODE = re.compile(r"_\w+_")  # of `hydra.utils.instantiate`, which nothing here calls
_RESOLVER = re.compile(r"\$\{.*:", re.DOTALL)  # `${${name}:argument}` is one, too


_TEXT, _BOOL = "tag:yaml.org,2002:str", "tag:yaml.org,2002:bool"


class _WithNames(get_yaml_loader()):  # type: ignore[misc]
    """The loader of OmegaConf, for which each key is text: a name such as 1e3 or true, too."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            key.tag = _TEXT
        return super().construct_mapping(node, deep)


Loader: Any = type("Loader", (*([yaml.CSafeLoader] if yaml.__with_libyaml__ else []), _WithNames), {})
"""The loader of configs; with the parser in C where there is one, which is ten times as fast.

Of words, true and false alone are truth values: no is Norwegian.
"""
Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rows if tag != _BOOL]
    for first, rows in Loader.yaml_implicit_resolvers.items()
}
Loader.add_implicit_resolver(_BOOL, re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))

_Dumper: Any = type("Dumper", (yaml.SafeDumper,), {})
_Dumper.yaml_implicit_resolvers = {
    first: [*rows, *Loader.yaml_implicit_resolvers.get(first, [])]
    for first, rows in yaml.SafeDumper.yaml_implicit_resolvers.items()
}
_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(_TEXT, text, style='"' if "\x85" in text else None),
)


class UserFiles(FileConfigSource):
    """The folder of --config-dir, as a place where Hydra finds choices."""

    @staticmethod
    def scheme() -> str:
        """Return what stands before `://` in the search path of Hydra."""
        return "nmt-user"

    def load_config(self, config_path: str) -> ConfigResult:
        """Return the content of `config_path`, such as model/mine; raise `UserError` when it is not plain."""
        file = Path(self.path, self._normalize_file_name(config_path))
        with named(file):
            parts = PurePosixPath(config_path).parts
            if ".." in parts or parts[0] == "hydra":
                raise UserError("the choices of a group are files in the folder of that group")
            text = read_text(file)
            header = self._get_header_dict(text[:512])
            if header.get("package") not in (None, "_global_", "_group_"):
                raise UserError(
                    "line 1: the keys of a file belong to its group or, after `# @package _global_`, to all, "
                    f"but the package is {header['package']}"
                )
            content = parsed(text, references=True)
            if parts[0] == "experiment" and header.get("package") != "_global_":
                raise UserError("line 1 must be `# @package _global_`: a recipe sets keys of all groups")
            chosen = dict(replaced_choices(content))
            for group, choice in chosen.items():
                self._require_choice(group, choice)
            if header.get("package") == "_global_":
                _require_chosen(content, chosen)
            return ConfigResult(self.provider, self.full_path(), OmegaConf.create(content), header)

    def _require_choice(self, group: str, choice: str) -> None:
        """Refuse a choice of another group that there is not; Hydra would not say which file makes it."""
        bundled: Any = GlobalHydra.instance().config_loader()
        places = [*bundled.repository.get_sources(), self]
        groups = {name for place in places for name in place.list("", ObjectType.GROUP)}
        if group not in groups:
            raise UserError(f"there is no group {group}{suggest(group, groups)}")
        known = {name for one in places if one.is_group(group) for name in one.list(group, ObjectType.CONFIG)}
        if choice not in known:
            raise UserError(no_such_choice(group, choice, known))


Plugins.instance().register(UserFiles)


@contextmanager
def named(file: Path) -> Iterator[None]:
    """Turn whatever is wrong with the content of `file` into a `UserError` that begins with its name."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{file} is not YAML: {' '.join(str(error).split())}") from error
    except OmegaConfBaseException as error:
        raise UserError(f"{file}: {explain(error)}") from error
    except UserError as error:
        raise UserError(f"{file}: {error}") from error
    except (ValueError, RecursionError) as error:  # of the constructors of YAML
        raise UserError(f"{file}: a value cannot be read: {' '.join(str(error).split())}") from error


def read_plain(file: Path) -> dict[str, Any]:
    """Return the content of a file without any reference; to be called inside of `named`."""
    return parsed(read_text(file))


def read_text(file: Path) -> str:
    """Return the text of a config; to be called inside of `named`."""
    with file.open("rb") as stream:
        data = stream.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise UserError(f"a config is smaller than {MAX_FILE_BYTES:,} bytes, but this file is not")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"a config is UTF-8 text, but byte {error.start} is not") from error


def dumped(plain: object) -> str:
    """Return the YAML of plain data, with quotes around texts that `Loader` or YAML 1.1 takes for others.

    A text with U+0085, which YAML 1.1 takes for the end of a line, has it escaped.
    """
    text: str = yaml.dump(plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return text


def parsed(text: str, *, references: bool = False) -> dict[str, Any]:
    """Return the content of a config; references to other keys only where they are allowed."""
    _require_plain(text, references)
    loader = Loader(text)
    root = loader.get_single_node()
    if not isinstance(root, yaml.MappingNode | None):
        raise UserError("a config is a mapping of keys to values, but this file is not")
    for key in _keys(root):
        if key.value == "hydra" or _NAMES_CODE.fullmatch(str(key.value)):
            raise UserError(
                f"{_line(key)}: a config is plain values, and has no key {key.value}, which "
                f"{'sets up Hydra' if key.value == 'hydra' else 'names code'}; remove it"
            )
    config: dict[str, Any] = loader.construct_document(root) if root else {}
    for key, value in root.value if root else []:
        if key.value == "defaults":
            _require_choices(value, config["defaults"], text)
    return config


def _require_plain(text: str, references: bool) -> None:
    """Refuse what makes YAML more than data: aliases, tags, resolvers, boundless nesting."""
    depth = 0
    for event in yaml.parse(text, Loader=Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_FILE_DEPTH:
            raise UserError(f"{_line(event)}: a config is nested less than {MAX_FILE_DEPTH} deep")
        refers = isinstance(event, yaml.AliasEvent) or getattr(event, "tag", None) is not None
        resolves = isinstance(event, yaml.ScalarEvent) and (
            _RESOLVER.search(event.value) if references else "${" in event.value
        )
        if refers or resolves:
            raise UserError(
                f"{_line(event)}: a config in a file is plain values, but here is {text[_span(event)]}; "
                "write it out"
            )


def _require_choices(node: yaml.Node, defaults: object, text: str) -> None:
    """Refuse a defaults list that chooses anything of Hydra's own, or that Hydra would not understand."""
    values = defaults if isinstance(defaults, list) else [None]
    entries = node.value if isinstance(defaults, list) else [node]
    for entry, value in zip(entries, values, strict=True):
        pair = next(iter(value.items())) if isinstance(value, dict) and len(value) == 1 else (value, "")
        if not (isinstance(pair[0], str) and isinstance(pair[1], str | None)):
            raise UserError(
                f"{_line(entry)}: `defaults` is a list of NAME and GROUP: NAME, such as "
                f"[base_transformer, _self_], but here is {text[_span(entry)].strip()}"
            )
        if any(_HYDRA.search(str(name)) for name in pair):
            raise UserError(f"{_line(entry)}: a config chooses nothing of Hydra's own; remove this default")


def replaced_choices(content: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the groups whose choices the defaults of a file replace, `override /GROUP: CHOICE`, and these."""
    entries = [one for one in content.get("defaults", ()) if isinstance(one, dict)]
    for key, choice in (pair for entry in entries for pair in entry.items()):
        if (found := re.fullmatch(r"override +/(\w+)", key)) and choice and "$" not in choice:
            yield found[1], choice


def _require_chosen(content: Mapping[str, Any], chosen: Collection[str]) -> None:
    """Refuse keys that follow from choices, as a stored config has them, where the file does not choose."""
    stated = {
        part: content[part][name_field]
        for part, (name_field, _) in VARIANTS.items()
        if part not in chosen and isinstance(content.get(part), dict) and name_field in content[part]
    }
    if stated:
        keys = [f"{part}.{VARIANTS[part][0]}" for part in stated]
        choices = [f"override /{part}: {SCHEMA_PREFIX}{name}" for part, name in stated.items()]
        raise UserError(
            f"{' and '.join(keys)} cannot be set by {'itself' if len(keys) == 1 else 'themselves'}: choose "
            f"with `defaults: [{', '.join([*choices, '_self_'])}]`"
        )


def _keys(node: yaml.Node | None) -> Iterator[yaml.Node]:
    """Yield the nodes of all keys."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield key
            yield from _keys(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _keys(value)


def _line(place: yaml.Node | yaml.Event) -> str:
    return f"line {place.start_mark.line + 1 if place.start_mark else 0}"


def _span(place: yaml.Node | yaml.Event) -> slice:
    begin, end = place.start_mark, place.end_mark
    return slice(begin.index, end.index) if begin and end else slice(0, 0)
