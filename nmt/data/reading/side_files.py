"""The files that a path of the config means, perhaps compressed, and the way out where one is not there.

Knows the names of files; knows neither lines nor configs.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from pathlib import Path

from nmt.data.reading.compression import COMPRESSIONS, without_suffix
from nmt.data.reading.lines import require_file, require_no_pipe
from nmt.data.text.scripts import SCRIPTS_OF, language_of
from nmt.errors import UserError

LANG = "{lang}"
"""What stands for the language in a path."""
WILDCARD = re.compile(r"\*+|\?|\[.[^\]]*\]")
"""What makes a path one of several files, as `glob` reads it."""
MAX_SHOWN_NAMES = 3
"""Names of files that an error lists."""

_KNOWN = {language for languages in SCRIPTS_OF.values() for language in languages.split()}
_OF_LANGUAGE_AND_SCRIPT = re.compile("[a-z]{3}_[A-Z][a-z]{3}")  # as FLORES names them


def file_of(place: str, key: str) -> Path:
    """Return the path of the file `place`, also as a compressed one; raise `UserError` when none is there."""
    found = _there(place) or Path(place)
    if found == Path(place):
        require_file(found, key, f"; data=hub data.path={place} reads dataset folders")
    return found


def files_of_sides(place: str, key: str, sides: tuple[str, str], keys: Sequence[str]) -> tuple[Path, Path]:
    """Return the files of plain text that a path means: a prefix, or one with `{lang}` for the side.

    `keys` are those of the languages, if these name the sides.

    Raises:
        UserError: they are not there; names the path, or the languages, that would be.
    """
    require_no_pipe(Path(place), key)
    if Path(place).is_file():
        raise UserError(f"{key}: {place} is {_way_out_of_one_file(Path(place), key, sides)}")
    src, tgt = names = names_of_sides(place, sides)
    if not all(map(_there, names)):
        there = _languages_there(pattern_of(place), sides)
        if keys and len(there) > 1:
            others = [language for language in there if language not in sides]
            both = [side if side in there else others.pop(0) for side in sides]
            wanted = " ".join(f"{own}={side}" for own, side in zip(keys, both, strict=True))
            missing = next(name for name in names if not _there(name))
            raise UserError(
                f"{key}: there is no file {missing}, but there are files for {', '.join(there)}; "
                f"say which languages are meant, such as {wanted}"
            )
        if Path(place).is_dir():
            raise UserError(f"{key}: {place} is a directory; {_way_out_of_folder(Path(place), key, sides)}")
    return file_of(src, key), file_of(tgt, key)


def places_of(place: str, key: str, sides: tuple[str, ...] = ()) -> list[str]:
    """Return the paths that one with `*`, `?` or `[...]` means, in the order of their names; others alone.

    The forms of a file that it names, plain and compressed, are one. With `sides`, files of plain text have
    their names behind the path, or for `{lang}`.

    Raises:
        UserError: no file is named so.
    """
    pattern = pattern_of(place) if sides else place
    names = {side: pattern.replace(LANG, side) for side in sides} or {"": place}
    if not WILDCARD.search(place) or any(map(_there, names.values())):
        return [place]
    ends = ["", *(kind.suffix for kind in COMPRESSIONS)]
    forms = dict[str, set[str]]()
    for side, name in names.items():
        for end in ends:
            for file in glob.glob(name + end):
                found = _with_language(file.removesuffix(end), pattern, side)
                forms.setdefault(without_suffix(found), set()).add(found)
    if not forms:
        raise UserError(f"{key}: no file is named like {' or '.join(names.values())}")
    return [own.pop() if len(own) == 1 else plain for plain, own in sorted(forms.items())]


def _with_language(file: str, pattern: str, side: str) -> str:
    """Return the name of a file, found by `pattern`, with `{lang}` for the side if it has one."""
    parts = [".*".join(map(re.escape, WILDCARD.split(part))) for part in pattern.split(LANG)]
    matched = re.fullmatch(re.escape(side).join(f"({part})" for part in parts), file, re.DOTALL)
    return LANG.join(matched.groups()) if matched else file  # it is matched, as glob has found it


def names_of_sides(place: str, sides: tuple[str, str]) -> tuple[str, str]:
    """Return the names of the two files that a path means, but for suffixes of compression."""
    src, tgt = (pattern_of(place).replace(LANG, side) for side in sides)
    return src, tgt


def pattern_of(place: str) -> str:
    """Return a path with `{lang}`, which ends the name where it is not said."""
    return place if LANG in place else f"{place}.{LANG}"


def _there(place: str) -> Path | None:
    """Return the path of a file, or of a compressed one, if there is one."""
    places = [place, *(f"{place}{kind.suffix}" for kind in COMPRESSIONS)]
    return next((path for path in map(Path, places) if path.exists()), None)


def _is_language(name: str, sides: tuple[str, str]) -> bool:
    return name in sides or language_of(name) in _KNOWN or bool(_OF_LANGUAGE_AND_SCRIPT.fullmatch(name))


def _way_out_of_one_file(file: Path, key: str, sides: tuple[str, str]) -> str:
    """Return what one file is, and which path means two."""
    *front, last = without_suffix(file.name).split(".")
    if front and _is_language(last, sides):
        return (
            f"the text of one side; leave out its language, which is put behind the path: "
            f"{key}={file.with_name('.'.join(front))}"
        )
    return (
        "one file of unknown format; pairs come from one .tsv, .csv, .jsonl or .tmx file, or from two text "
        f"files, whose path is given with {LANG} for the language"
    )


def _languages_there(pattern: str, sides: tuple[str, str]) -> list[str]:
    """Return the languages for which there is a file, sorted."""
    first, *others = pattern.split(LANG)
    rest = "(?P=lang)".join(map(re.escape, others))
    named = re.compile(f"{re.escape(first)}(?P<lang>[^/]+?){rest}")
    files = glob.glob("*".join(map(glob.escape, [first, *others])) + "*")
    matches = [named.fullmatch(without_suffix(file)) or named.fullmatch(file) for file in files]
    return sorted({match["lang"] for match in matches if match and _is_language(match["lang"], sides)})


def _way_out_of_folder(folder: Path, key: str, sides: tuple[str, str]) -> str:
    """Return how files in a folder are named."""
    names, ends = {without_suffix(file.name) for file in folder.iterdir()}, [f".{side}" for side in sides]
    src, tgt = ({name[: -len(end)] for name in names if name.endswith(end)} for end in ends)
    both = [f"{key}={folder / stem}" for stem in sorted(src & tgt)[:MAX_SHOWN_NAMES]]
    if both:
        return f"name what its files begin with: {' or '.join(both)}"
    own = " and ".join(f"NAME.{side}" for side in sides)
    return (
        f"name what its files {own} begin with: {key}={folder / 'NAME'}; data=hub data.path={folder} reads "
        "dataset folders"
    )
