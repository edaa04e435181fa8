"""Values of a config as the command line spells them, so that Hydra reads them back as they are."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path

from nmt.errors import UserError


def quoted(text: str) -> str:
    """Return `text` quoted, as a value that Hydra takes literally."""
    text = re.sub(r"(\\*)(\$\{)", r"\1\1\\\2", text)  # no interpolation
    text = re.sub(r"(\\*)('|$)", lambda found: 2 * found[1] + ("\\'" if found[2] else ""), text)
    return f"'{text}'"


def shell_word(key: str, text: object) -> str:
    """Return a setting of a text, such as a path, as it is typed in a shell."""
    is_literal = re.fullmatch(r"(?!null$)[\w./+:@%-]+", str(text), re.ASCII | re.IGNORECASE)
    return shlex.quote(f"{key}={text if is_literal else spelled(str(text))}")


def spelled(value: object) -> str:
    """Return a plain value, or an Enum or a path, as Hydra reads it back."""
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, str | Path):
        text = str(value)
        return quoted(text) if re.search(r"[\"\\$]", text) else f'"{text}"'  # which a shell need not escape
    if value is None or isinstance(value, bool | int | float):
        return "null" if value is None else str(value).lower()
    if isinstance(value, Sequence):
        return f"[{', '.join(map(spelled, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {spelled(inner)}' for key, inner in value.items())}}}"
    raise UserError(f"{value!r} is no value of a config: text, a number, true, false, none or a list")


def unquoted(value: str) -> str:
    """Return a value of the command line, for people: a plain text without the quotes around it."""
    return re.sub(r"(?<![^\[,:])'(?!null')([\w.+-]+)'", r"\1", value, flags=re.ASCII | re.IGNORECASE)
