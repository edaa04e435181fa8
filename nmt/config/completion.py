"""Completion of `nmt ...` in bash, zsh and fish: the words that may stand where the cursor is.

Words are completed whole, `key=` included; one that ends in = or / goes on. So are runs and other paths.
Nothing is read but names of files and, where the line names a run, its config.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf

from nmt.config.compose import outline
from nmt.config.explain import leaves
from nmt.config.help import with_sweep
from nmt.config.overrides import choices, parse_flags
from nmt.config.registry import VARIANTS
from nmt.config.roots import NAMED_CHECKPOINTS
from nmt.config.verb import Verb
from nmt.data.parallel_text import Split
from nmt.errors import NmtError
from nmt.files import OUTPUTS, path_of
from nmt.metrics.scoring import MACRO, METRICS, SCORERS
from nmt.training.tracking.configs import SINKS
from nmt.training.trainer_config import MEASURES

OPTIONS = ("--help", "--cfg", "--multirun", "--info", "--config-dir", "--resolve")
RUNS = ("run", "teacher", "scorers", "objective.teachers", "init", "init.run", "ensemble.lm")
"""Keys that name run directories."""
PATHS = (
    "path",
    "train",
    "validation",
    "test",
    "input",
    "output",
    "tgt_path",
    "weights",
    "page",
    "json",
    "dir",
    "src_text",
    "tgt_text",
    "folder",
    "glossary",
    "memory",
    "shortlist",
    "allowed",
    "alignments",
    "src_embeddings",
    "tgt_embeddings",
)
"""Last names of keys that name other files and folders."""
NAMES: dict[str, Iterable[str]] = {
    "metrics": METRICS,
    "objective.metric": SCORERS,
    "trainer.best_metric": ("auto", "loss", *METRICS, *MACRO),
    "trainer.measures": MEASURES,
    "tracking.sinks": SINKS,
}
"""Keys that name rows of a table."""
SCRIPTS = {
    "bash": """\
_nmt_complete() {
    local line="${COMP_LINE:0:COMP_POINT}" word found IFS=$'\\n'
    word="${line##* }"
    found=($(COMP_LINE="$line" nmt -sc query=bash 2>/dev/null))
    local done="${word%"${word##*[=:]}"}"
    [[ "$COMP_WORDBREAKS" == *=* ]] || done=""
    COMPREPLY=()
    for word in "${found[@]}"; do
        [[ "$word" == *[=/] ]] || word="$word "
        COMPREPLY+=("${word#"$done"}")
    done
}
complete -o nospace -F _nmt_complete nmt
""",
    "zsh": """\
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
_nmt_complete() {
    local -a found
    found=("${(@f)$(COMP_LINE="${BUFFER[1,CURSOR]}" nmt -sc query=zsh 2>/dev/null)}")
    compadd -S '' -- ${(M)found:#*[=/]}
    compadd -- ${found:#(*[=/]|)}
}
compdef _nmt_complete nmt
""",
    "fish": """\
function __nmt_complete
    COMP_LINE=(commandline -cp) nmt -sc query=fish 2>/dev/null
end
complete -c nmt -f -a '(__nmt_complete)'
""",
}
"""Shell -> what `eval "$(nmt -sc install=SHELL)"` runs; in fish, `nmt -sc install=fish | source`."""
REMOVAL = {
    "bash": "complete -r nmt; unset -f _nmt_complete",
    "zsh": "compdef -d nmt; unfunction _nmt_complete",
    "fish": "complete -e -c nmt; functions -e __nmt_complete",
}


def completions(verbs: dict[str, Verb], line: str) -> list[str]:
    """Return the words that may end `line`, which is a command up to the cursor."""
    before, word = re.fullmatch(r"(.*?)(\S*)", line, re.DOTALL).groups()  # type: ignore[union-attr]
    words = before.split()[1:]
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"] if len(words) > 1 else words
    if not words or words == ["help"]:
        return _starting(word, verbs if words else [*verbs, "help"])
    if words[0] not in verbs:
        return []
    verb, others = verbs[words[0]], [other for other in words[1:] if "=" in other]
    others += [f"--config-dir={found}" for found in re.findall(r" (?:--config-dir|-cd) +(\S+) ", before)]
    if word.startswith("-"):
        return _starting(word, OPTIONS)
    if "--config-dir" in words[-1:] or "-cd" in words[-1:]:
        return sorted(_paths(word))
    key, equals, value = word.partition("=")
    if not equals:
        cfg = _config(verb, others)
        wanted = {"--help", "-h"} & {*words}
        parts = [str(name) for name in cfg if isinstance(cfg._get_node(name), DictConfig)]
        follow = {f"{part}.{named_by}" for part, (named_by, _) in VARIANTS.items()}  # from the choice
        groups_of_names = [part for part in parts if not cfg[part]]  # which have no keys yet
        known = *leaves(cfg), *_groups(verb), *groups_of_names
        keys = [f"{name}=" for name in known if name not in follow]
        bare = _values(verb, verb.words, word, others) if verb.words and not wanted else []
        return [*_starting(word, {*(parts if wanted else keys)}), *bare]
    return [f"{key}={found}" for found in _values(verb, key, value, others)]


def _starting(word: str, names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(word))


def _groups(verb: Verb) -> dict[str, str]:
    """Return the keys that take a choice, each with its group."""
    return {group: group for group in verb.groups} | dict(verb.mounts)


def _values(verb: Verb, key: str, value: str, others: Sequence[str]) -> list[str]:
    """Return the values of `key` that begin like `value`: in a list, its last entry."""
    done, last = re.fullmatch(r"((?:.*[\[,])?)(.*)", value).groups()  # type: ignore[union-attr]
    if key in _groups(verb):
        return [f"{done}{name}" for name in _starting(last, _choices(verb, key, others))]
    if key in RUNS:
        paths = _paths(last, runs=True, files=verb.words == key)  # translations can be compared, too
        return [f"{done}{name}" for name in sorted({*_runs(last), *paths})]
    if (name := key.rpartition(".")[2]) in PATHS:
        is_folder = name == "folder"
        return [f"{done}{path}" for path in sorted(_paths(last, runs=is_folder, files=not is_folder))]
    if key == "checkpoint":
        return _starting(value, [*NAMED_CHECKPOINTS, *_steps(others)])
    names = list(NAMES.get(key, ())) or _named(_config(verb, others), key)
    return [f"{done}{name}" for name in _starting(last, names)]


def _choices(verb: Verb, key: str, others: Sequence[str]) -> list[str]:
    """Return the choices that `key` takes, those in the folder of --config-dir included."""
    options = [other for other in others if other.startswith("--config-dir=")]
    for words in (options, []):
        with suppress(NmtError):
            return choices(verb, _groups(verb)[key], parse_flags(verb, words))
    return []


def _config(verb: Verb, others: Sequence[str]) -> DictConfig:
    """Return the config that the choices on the line make, as far as they can be made out."""
    choosing = {*_groups(verb), verb.run_key, "--config-dir"}
    chosen = [other for other in others if other.partition("=")[0] in choosing]
    for words in (chosen, []):
        with suppress(NmtError):
            return with_sweep(verb, outline(verb, words))
    return OmegaConf.create()


def _named(cfg: DictConfig, key: str) -> list[str]:
    """Return the values of a key that its type names."""
    part, _, name = key.rpartition(".")
    home = OmegaConf.select(cfg, part) if part else cfg
    cls = OmegaConf.get_type(home) if isinstance(home, DictConfig) else None
    hint = get_type_hints(cls).get(name) if isinstance(cls, type) else None
    return list(_values_of(hint))


def _values_of(hint: Any) -> Iterator[str]:
    if get_origin(hint) in (Union, UnionType, list):
        for kind in get_args(hint):
            yield from _values_of(kind)
    elif hint is bool:
        yield from ("true", "false")
    elif hint is type(None):
        yield "null"
    elif isinstance(hint, type) and issubclass(hint, Enum):
        yield from (member.value if hint is Split else member.name for member in hint)


def _runs(begun: str) -> Iterator[str]:
    """Yield the run directories in outputs/."""
    for depth in (1, 2, 3):
        for file in Path(OUTPUTS).glob("*/" * depth + "config.yaml"):
            if str(file.parent).startswith(begun):
                yield str(file.parent)


def _paths(begun: str, *, runs: bool = False, files: bool = True) -> Iterator[str]:
    """Yield the folders and, if asked for, files that begin so; folders end in /, without those of `runs`."""
    folder, slash, name = begun.rpartition("/")
    parent = path_of(folder or slash or ".")
    with suppress(OSError):
        for path in parent.iterdir():
            if path.name.startswith(name) and (name.startswith(".") or not path.name.startswith(".")):
                is_run = runs and (path / "config.yaml").is_file()
                if path.is_dir() and not is_run:
                    yield f"{folder}{slash}{path.name}/"
                elif is_run or files:
                    yield f"{folder}{slash}{path.name}"


def _steps(others: Sequence[str]) -> list[str]:
    """Return the steps of the checkpoints of the run that the line names."""
    runs = [value for key, _, value in (other.partition("=") for other in others) if key == "run"]
    files = Path(runs[-1], "checkpoints").glob("step_*") if runs else ()
    return [str(int(found[1])) for file in files if (found := re.fullmatch(r"step_(\d+)", file.name))]
