"""The table of the architectures that can be imported."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nmt.errors import UserError, suggest
from nmt.exchange import m2m100, marian
from nmt.exchange.foreign import ForeignFolder
from nmt.exchange.imported import Imported

ARCHITECTURES: dict[str, Callable[[ForeignFolder, str, Sequence[str]], Imported]] = {
    "marian": marian.read,
    "m2m_100": m2m100.read,
}
"""The model_type in config.json -> the function that makes the model of a folder ours."""


def read(folder: ForeignFolder, src: str, targets: Sequence[str]) -> Imported:
    """Return the model of a folder, for the translation of one language into one or several others.

    Raises:
        UserError: the architecture is none of `ARCHITECTURES`, or the folder is damaged or incomplete.
    """
    if "nmt_version" in folder.config:
        raise UserError(
            f"{folder.path} is an export of nmt itself with format=safetensors, for other programs; one with "
            "format=nmt is a run, and needs no import"
        )
    found = str(folder.config.get("model_type"))
    if found not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UserError(
            f"{folder.path / 'config.json'} has model_type={found!r}; those that can be imported are {known}"
            f"{suggest(found, ARCHITECTURES)}"
        )
    return ARCHITECTURES[found](folder, src, targets)
