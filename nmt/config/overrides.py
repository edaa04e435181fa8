"""The arguments after the verb: flags, and overrides in Hydra's grammar.

Mistakes that show before anything is composed are refused here. Knows which groups a verb has
and which files are in them; knows no values and no dataclasses.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NoReturn, cast

from hydra.core.override_parser import overrides_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.overrides_visitor import HydraOverrideVisitor
from hydra.core.override_parser.types import ChoiceSweep, Glob, Override, RangeSweep, Sweep, ValueType
from hydra.grammar.gen.OverrideLexer import (  # type: ignore[attr-defined]
    CommonTokenStream,
    InputStream,
    OverrideLexer,
)
from hydra.grammar.gen.OverrideParser import OverrideParser
from omegaconf import OmegaConf

from nmt.config.explain import explained, no_such_choice, renamed
from nmt.config.plain import UserFiles
from nmt.config.registry import SCHEMA_PREFIX, VARIANTS, is_text
from nmt.config.renames import RENAMED_KEYS
from nmt.config.spelling import quoted, shell_word
from nmt.config.sweeps import PREFIX, SweepConfig
from nmt.config.verb import Verb
from nmt.errors import Problems, UserError

FROM_RUN = "from_run"
"""Name of the choice that stands for the settings that the run was trained with."""

_CONVERTED = {OverrideLexer.INT, OverrideLexer.FLOAT, OverrideLexer.BOOL}
_LISTING = ("choice", "shuffle", "sort")
"""Functions of Hydra that list values."""

_REFERENCE = re.compile(r"(?<!\\)\$\{[^:{}]*\}")

INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        if found := re.match(r"unrecognized arguments: --(?P<key>[\w.]+)(=(?P<value>\S*))?(?!\S)", message):
            raise UserError(
                f"--{found['key']} is no option; settings are written without dashes, as one word: "
                f"{found['key']}={found['value'] or '...'}; {self.prog} --help shows what there is"
            )
        raise UserError(f"{message}; {self.prog} --help shows what there is")


def parse_flags(verb: Verb, argv: Sequence[str]) -> argparse.Namespace:
    """Split the arguments into `overrides` and flags, which mean the same as Hydra's flags."""
    parser = _Parser(prog=f"nmt {verb.name}", add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("-c", "--cfg", choices=("job", "hydra", "all"))
    parser.add_argument("--resolve", action="store_true")
    parser.add_argument("-i", "--info", nargs="?", const="all", choices=INFO)
    parser.add_argument("-cd", "--config-dir")
    flags = parser.parse_intermixed_args(_with_what(argv))
    words = flags.overrides if flags.help else []
    flags.topics = [word for word in words if "=" not in word and not (verb.words and _exists(word))]
    arguments = [word for word in flags.overrides if word not in flags.topics]
    if any(word.startswith("=") for word in arguments[1:]):
        joined = re.sub(r" ?= ?", "=", " ".join(arguments))
        raise UserError(f"a setting is one word, without spaces around =; write {joined}")
    arguments = _with_key(verb, arguments) if verb.words else arguments
    flags.overrides = [_mounted(verb, _with_literal_prompt(_at_home(argument))) for argument in arguments]
    if flags.info is not None and (flags.cfg is not None or flags.multirun):
        parser.error("--info goes with neither --cfg nor --multirun")
    if flags.multirun and flags.cfg not in (None, "job"):
        parser.error("--multirun goes with --cfg job, which shows the trials")
    if flags.resolve and flags.cfg is None:
        parser.error("--resolve belongs to --cfg")
    if flags.multirun and verb.words:
        raise UserError(f"nmt {verb.name} starts no training, and is not swept; leave out -m")
    if flags.multirun and verb.models and any(one.startswith(f"{verb.models}=") for one in arguments):
        raise UserError(f"nmt {verb.name} {verb.models}=... is one command, and not swept; leave out -m")
    if flags.multirun and _reads_input(verb, flags.overrides):
        takes_files = {"input", "output"} <= {field.name for field in fields(verb.config_class())}
        files = ", or name files: input=... output=..." if takes_files else ""
        raise UserError(f"nmt {verb.name} reads standard input once and cannot be swept; leave out -m{files}")
    if flags.config_dir is not None and not Path(flags.config_dir).is_dir():
        raise UserError(f"--config-dir {flags.config_dir} is not a directory")
    if flags.config_dir is not None:
        _refuse_group(Path(flags.config_dir))
        _refuse_names_of_ours(Path(flags.config_dir))
    return flags


def _with_what(argv: Sequence[str]) -> list[str]:
    """Return the arguments with `--info=all` for an `--info` before a setting, or what exists: no WHAT."""
    return [
        "--info=all"
        if word in ("-i", "--info") and behind not in INFO and ("=" in behind or _exists(behind))
        else word
        for word, behind in itertools.pairwise([*argv, "--"])
    ]


def _exists(word: str) -> bool:
    """Return whether a word names what is there; what is too long for a name does not."""
    try:
        return Path(word).exists()
    except OSError:
        return False


def _reads_input(verb: Verb, arguments: Sequence[str]) -> bool:
    """Return whether the arguments make a verb read standard input."""
    if verb.stream_key:
        return f"{verb.stream_key}=true" in map(str.lower, arguments)
    return verb.reads_input and not any(argument.startswith("input=") for argument in arguments)


def _with_key(verb: Verb, arguments: Sequence[str]) -> list[str]:
    """Return the arguments with those that have no `=`, or name what exists, as one value of `verb.words`."""
    words = [word for word in arguments if "=" not in word or _exists(word)]
    if words and any(word.startswith(f"{verb.words}=") for word in arguments if word not in words):
        raise UserError(
            f"{words[0]!r} is a value of {verb.words}, which is given, too; write all in one place"
        )
    value = f"[{','.join(map(quoted, words))}]" if len(words) > 1 else "".join(map(quoted, words))
    return [word for word in arguments if word not in words] + [f"{verb.words}={value}"] * bool(words)


def _at_home(argument: str) -> str:
    """Return an argument with the home directory for `~/` where a value begins.

    Shells do so at the start of a word, but few do it behind `KEY=`, and none in a list.
    """
    if argument.startswith("prompt="):  # prose
        return argument
    home = os.path.expanduser("~")
    return re.sub(r"(?<=[=\[,:])( *)~(?=/)", lambda found: found[1] + home, argument)


def _with_literal_prompt(argument: str) -> str:
    """Quote the value of `prompt=...`, which is prose, with commas and all."""
    key, _, text = argument.partition("=")
    return f"prompt={quoted(text)}" if key == "prompt" else argument


def as_typed(key: str, value: str) -> str:
    """Return a setting as it is typed: prose without the quotes that `_with_literal_prompt` has put there."""
    return f"{key}={parse_overrides([f'{key}={value}'])[0].value() if key == 'prompt' else value}"


def _mounted(verb: Verb, argument: str) -> str:
    """Return KEY=CHOICE as Hydra spells the choice of a group for another place: GROUP@KEY=CHOICE.

    A key that is short for another becomes that one.
    """
    key, sign, choice = argument.partition("=")
    if sign and key in verb.short:
        return f"{verb.short[key]}={choice}"
    return f"{verb.mounts[key]}@{key}={choice}" if key in verb.mounts else argument


def _literal(verb: Verb, key: str, value: str) -> str:
    """Return the value of a key with quotes around what is text, such as a path, and Hydra would convert.

    It is a value that Hydra understands.
    """
    if not re.search(r"\d|true|false|inf|nan", value, re.IGNORECASE):
        return value
    lexer = OverrideLexer(InputStream(value))
    lexer.mode(OverrideLexer.VALUE_MODE)
    tree = OverrideParser(CommonTokenStream(lexer)).value()
    for part, parts in reversed([*_converted(tree, key.split("."))]):
        if _is_text(verb, parts):
            begin, end = part.start.start, part.stop.stop + 1
            value = f"{value[:begin]}{quoted(part.getText().strip())}{value[end:]}"
    return value


def _converted(tree: Any, parts: list[str]) -> Iterator[tuple[Any, list[str]]]:
    """Yield what Hydra converts, each with the parts of its key, but for what functions compute with.

    Whole numbers, whose text is the same afterwards, are left out.
    """
    children = [tree.getChild(i) for i in range(tree.getChildCount())]
    if isinstance(tree, OverrideParser.PrimitiveContext):
        tokens = [one.symbol for one in children if one.symbol.type != OverrideLexer.WS]
        is_whole = re.fullmatch("0|-?[1-9][0-9]*", tokens[0].text)
        if len(tokens) == 1 and tokens[0].type in _CONVERTED and not is_whole:
            yield tree, parts
    elif isinstance(tree, OverrideParser.FunctionContext):
        name = children[0].getText()
        for before, child in itertools.pairwise(children):
            is_value = isinstance(child, OverrideParser.ElementContext)
            is_value &= not isinstance(before, OverrideParser.ArgNameContext)
            if is_value and (name in _LISTING or (name == "tag" and child.function())):
                yield from _converted(child, parts)
    else:
        if isinstance(tree, OverrideParser.DictKeyValuePairContext):
            parts = [*parts, children[0].getText().strip()]
        for child in children:
            yield from _converted(child, parts)


def _is_text(verb: Verb, parts: list[str]) -> bool:
    """Return whether a key takes texts, or lists of them."""
    if parts[0] == PREFIX.removesuffix("."):
        return is_text(SweepConfig, parts[1:])
    if parts[0] == verb.models:
        parts = ".".join(parts[2:] or [verb.run_key]).split(".")
    return is_text(verb.config_class(), parts)


def parse_overrides(arguments: Sequence[str]) -> list[Override]:
    """Parse key=value arguments."""
    with explained():
        return [_parsed(argument) for argument in arguments]


@functools.lru_cache(maxsize=1024)
def _parsed(argument: str) -> Override:
    """Parse an argument once: a command asks for each in several places, and a sweep in every trial.

    Hydra makes its reader of values itself, and so is given ours under the name of its own.
    """
    names = vars(overrides_parser)
    usual = names["HydraOverrideVisitor"]
    names["HydraOverrideVisitor"] = _Visitor
    try:
        (override,) = _hydra_parser().parse_overrides([argument])
    except UserError as error:
        raise UserError(f"{argument!r}: {error}") from error
    finally:
        names["HydraOverrideVisitor"] = usual
    return override


@functools.cache
def _hydra_parser() -> OverridesParser:
    return OverridesParser.create()


class _Visitor(HydraOverrideVisitor):
    """Hydra's reader of values, for which each key of a mapping is text: a name such as 1e3 or true, too."""

    def visitDictKey(self, ctx: OverrideParser.DictKeyContext) -> str:  # noqa: N802
        key = super().visitDictKey(ctx)
        return key if isinstance(key, str) else ctx.getText().strip()

    def visitDictContainer(self, ctx: OverrideParser.DictContainerContext) -> Any:  # noqa: N802
        """Return a mapping; Hydra would drop an entry where a later one has its name."""
        names = [self.visitDictKey(pair.dictKey()) for pair in ctx.dictKeyValuePair()]
        for name in names:
            if names.count(name) > 1:
                raise UserError(f"two entries have one name: {name}; give each its own")
        return super().visitDictContainer(ctx)


def runs_of(overrides: Sequence[Override], key: str) -> list[str]:
    """Return the names in the value of the last `key=`: one, several of a list, or none.

    Raises:
        UserError: a name refers to another key, which the config of the run may set, or cannot be resolved.
    """
    values = [override.value() for override in overrides if override.key_or_group == key]
    if not values or values[-1] is None:
        return []
    names = values[-1] if isinstance(values[-1], list) else [values[-1]]
    for name in names:
        if _REFERENCE.search(str(name)):
            raise UserError(f"{key}={name}: {key} takes no reference to another key; write out what it names")
    with explained():
        return [str(OmegaConf.create({key: name})[key]) for name in names]


def _refuse_group(folder: Path) -> None:
    """Refuse the folder of one group, of which nothing would be found, in place of the one above it."""
    whole, groups = folder.absolute(), [one.name for one in config_dir().iterdir() if one.is_dir()]
    has_groups = any((whole / group).is_dir() for group in groups)
    if whole.name in groups and any(whole.glob("*.yaml")) and not has_groups:
        raise UserError(
            f"--config-dir {folder} has the files of a group, {whole.name}, and no groups; name the folder "
            f"above it: --config-dir {folder.parent if folder.name == whole.name else whole.parent}"
        )


def _refuse_names_of_ours(folder: Path) -> None:
    """Refuse a folder with a choice of the name of a bundled one, which Hydra would take instead."""
    bundled = config_dir()
    for group in sorted(one for one in bundled.iterdir() if one.is_dir() and not folder.samefile(bundled)):
        for file in sorted((folder / group.name).rglob("*.yaml")):
            if (bundled / file.relative_to(folder)).is_file():
                choice = file.relative_to(folder / group.name).with_suffix("").as_posix()
                raise UserError(
                    f"{file}: {group.name}={choice} is a choice of nmt itself, which comes first; give the "
                    "file another name"
                )


def config_dir() -> Path:
    """Return the folder of the YAML files: inside the package when installed from a wheel, else beside it."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def choices(verb: Verb, group: str, flags: argparse.Namespace) -> list[str]:
    """Return the choices of a group: its files, also in --config-dir, and `from_run` if a run is opened."""
    folders = [config_dir(), *([Path(flags.config_dir)] if flags.config_dir else [])]
    files = {
        file.relative_to(folder / group).with_suffix("").as_posix()
        for folder in folders
        for file in (folder / group).rglob("*.yaml")
    }
    return sorted(files | ({FROM_RUN} if group in verb.groups_from_run else set()))


def swept_values(verb: Verb, override: Override, flags: argparse.Namespace) -> list[str]:
    """Return the values that an override names, as the command line has them; none for an interval."""
    key = override.get_key_element()
    if override.value_type is ValueType.GLOB_CHOICE_SWEEP:
        names = choices(verb, key, flags) if key in verb.groups else []
        if not (found := cast(Glob, override.value()).filter(names)):
            known = f"it can be {', '.join(names)}" if names else f"list its values: {key}=A,B"
            raise UserError(f"{override.input_line!r}: the pattern matches no choice of {key}; {known}")
        return found
    if override.is_interval_sweep():
        return []
    if override.is_range_sweep():  # no 0.30000000000000004, and no end by way of rounding
        stop = cast(RangeSweep, override.value()).stop
        numbers = [float(f"{x:.12g}") if isinstance(x, float) else x for x in override.sweep_iterator()]
        return [str(x) for x in numbers if x != stop]
    value = override.value()
    if isinstance(value, ChoiceSweep) and any(isinstance(one, Sweep) for one in value.list):
        raise UserError(
            f"{override.input_line!r}: a list holds single values, no range(...) and no interval(...); write "
            "out the values of the one, or leave out the others"
        )
    if override.is_sweep_override():
        texts = override.sweep_string_iterator()  # those of choice(...) have lost their quotes
        return list(dict.fromkeys(_literal(verb, key, text) for text in texts))
    return [override.get_value_element_as_str()]


def combinations(values: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Return every combination of the values of the keys."""
    return [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]


def usable(verb: Verb, argument: str, flags: argparse.Namespace) -> Override:
    """Return an argument as an override, whose line is as typed, and whose texts are.

    Raises:
        UserError: the argument is none, or one that Hydra would accept, or refuse with a bad explanation.
    """
    if "=" not in argument and not argument.startswith("~"):
        raise UserError(f"{argument!r} is not understood; write {_keyed(verb, argument)}")
    (override,) = parse_overrides([argument])
    _refuse_key(verb, override, flags)
    _refuse_sweep(verb, override, flags)
    if override.key_or_group in verb.groups:
        _refuse_choice(verb, override, flags)
    key, sign, value = argument.partition("=")
    (meant,) = parse_overrides([f"{key}{sign}{_literal(verb, key, value)}"])
    return replace(meant, input_line=argument)


def _keyed(verb: Verb, word: str) -> str:
    """Return the setting that a word without a key is likely to be meant as."""
    path, keys = Path(word), {field.name for field in fields(verb.config_class())}
    if not _exists(word):
        return "key=value, such as trainer.max_steps=500"
    if verb.opens_run and (path / "config.yaml").is_file():
        return shell_word("run", word)
    if "input" in keys and path.is_file():
        return shell_word("input", word)
    return "key=value, such as trainer.max_steps=500"


@dataclass
class Arguments:
    """The arguments of a verb."""

    flags: argparse.Namespace
    overrides: list[Override]
    """Those that can be used."""
    problems: Problems
    """What is wrong with the others."""

    @classmethod
    def read(cls, verb: Verb, argv: Sequence[str]) -> Arguments:
        """Return the arguments, each looked at by itself."""
        read = cls(parse_flags(verb, argv), [], Problems())
        for argument in read.flags.overrides:
            with read.problems.gathered():
                read.overrides.append(usable(verb, argument, read.flags))
        mappings = dict[str, set[str]]()
        for one in read.overrides:
            if isinstance(one.value(), dict):
                mappings.setdefault(one.get_key_element(), set()).add(one.get_value_element_as_str())
        read.problems += [
            f"{key} is typed with {len(texts)} mappings; write one: {key}={{A: ..., B: ...}}"
            for key, texts in mappings.items()
            if len(texts) > 1
        ]
        return read

    @property
    def refused(self) -> set[str]:
        """The first words of the arguments that cannot be used."""
        typed = {argument.partition("=")[0] for argument in self.flags.overrides}
        return typed - {override.key_or_group for override in self.overrides}

    @property
    def kept(self) -> list[Override]:
        """The overrides that are not below a choice which cannot be used."""
        refused = self.refused
        return [o for o in self.overrides if o.key_or_group.partition(".")[0] not in refused]


def as_lines(values: Mapping[str, str], flags: argparse.Namespace) -> list[str]:
    """Return the overrides that set `values`, and the folder with the choices of the user."""
    lines = [f"{key}={value}" for key, value in values.items()]
    if flags.config_dir is not None:
        folder = f"{UserFiles.scheme()}://{Path(flags.config_dir).absolute()}"
        lines.append(f"hydra.searchpath=[{quoted(folder)}]")
    return lines


def _refuse_key(verb: Verb, override: Override, flags: argparse.Namespace) -> None:
    key, line = override.key_or_group, override.input_line
    if not key:
        raise UserError(f"{line!r} has no key; write key=value")
    if override.is_add() or override.is_force_add() or override.is_delete():
        raise UserError(
            f"{line!r}: keys can be set, but neither added nor removed; "
            f"write {key}=... (null unsets what may be unset)"
        )
    if re.match(r"hydra\b", key):
        sweeps = "; the folder of a sweep is sweep.dir" if key == "hydra.sweep.dir" else ""
        raise UserError(f"{line!r}: Hydra's own settings cannot be set{sweeps}")
    if key.startswith(PREFIX) and not flags.multirun:
        raise UserError(f"{line!r} is for a sweep; add -m, or leave it out")
    if key in RENAMED_KEYS:
        raise UserError(f"{line!r}: {key} {renamed(key, override.get_value_element_as_str())}")
    part, _, field = key.rpartition(".")
    if part in VARIANTS and field == VARIANTS[part][0]:
        offered = f"; {part} can be {', '.join(choices(verb, part, flags))}" if part in verb.groups else ""
        raise UserError(f"{key} cannot be set by itself: it follows from {part}=...{offered}")
    if key not in verb.groups and (config_dir() / key).is_dir():
        what = f"takes the {key} of its run" if verb.run_key else f"does not choose {key}"
        known = f"it can choose {', '.join(verb.groups)}" if verb.groups else "its keys are in its --help"
        raise UserError(f"{line!r}: nmt {verb.name} {what}; {known}")


def _refuse_sweep(verb: Verb, override: Override, flags: argparse.Namespace) -> None:
    key, line = override.key_or_group, override.input_line
    if key == "run" and flags.multirun and verb.writes_run:
        raise UserError("run names one directory, but -m starts several runs; set sweep.dir=DIR instead")
    if not override.is_sweep_override():
        if _holds_sweep(override.value()):
            raise UserError(f"{line!r}: no part of a value can be several; sweep whole values: {key}=A,B")
        return
    if key == verb.words:
        raise UserError(
            f"{line!r} names several values; write nmt {verb.name} A B, or a list in brackets: {key}=[A,B]"
        )
    if key == "run" and verb.writes_run:
        raise UserError(f"{line!r}: run names one directory; call nmt {verb.name} once for each")
    if key in ("run", verb.run_key) and not (verb.opens_run and (flags.multirun or not verb.reads_input)):
        raise UserError(
            f"{line!r}: nmt {verb.name} reads one {key}, or one list of {key}s, at a time; "
            "call it once for each"
        )
    if not flags.multirun:
        raise UserError(
            f"{line!r} names several values; add -m to try each, or write a list in brackets [...]"
        )
    if override.is_range_sweep() and not _holds_numbers(cast(RangeSweep, override.value())):
        raise UserError(
            f"{line!r} holds no number; write {key}=range(FIRST,END) or range(FIRST,END,STEP): "
            "from FIRST, by steps of STEP, to before END"
        )


def _holds_numbers(numbers: RangeSweep) -> bool:
    """Return whether a range has numbers, and an end."""
    start, stop, step = numbers.start or 0, numbers.stop or 0, numbers.step
    return all(map(math.isfinite, (start, stop, step))) and (stop - start) * step > 0


def _holds_sweep(value: object) -> bool:
    """Return whether a list or a mapping has choice(...), range(...) or the like in it."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, Sweep) or any(map(_holds_sweep, parts))


def _refuse_choice(verb: Verb, override: Override, flags: argparse.Namespace) -> None:
    """Refuse an unknown choice; Hydra would skip an unknown recipe, because recipes are optional."""
    if override.value_type is ValueType.GLOB_CHOICE_SWEEP:
        return
    group, names = override.key_or_group, choices(verb, override.key_or_group, flags)
    for choice in override.sweep_iterator() if override.is_sweep_override() else [override.value()]:
        if not isinstance(choice, str):
            raise UserError(f"{override.input_line!r}: {group} takes one of {', '.join(names)}")
        if choice not in names and not choice.startswith(SCHEMA_PREFIX):
            raise UserError(no_such_choice(group, choice, names))
