"""Translation memories: the units of a TMX file (versions 1.1 to 1.4b), each with its texts by language.

A file is read block by block, in UTF-8, UTF-16 or an encoding of one byte, as it declares. Of a segment all
text is kept but that of native codes (`bpt`, `ept`, `it`, `ph`, `ut`), which are formatting. The file may
come from a stranger: it cannot define entities, nor name other files that are read. Knows no config.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.parsers import expat

from nmt.data.parallel_text import MAX_LINE_CHARS, one_line
from nmt.data.reading.lines import BLOCK_BYTES, open_bytes
from nmt.errors import UserError

CODES = ("bpt", "ept", "it", "ph", "ut")
"""Elements inside of a segment whose text is a code of the program that the document is from."""


class Unit(NamedTuple):
    """A translation unit."""

    line: int
    """The line where it begins, from 1."""
    texts: list[tuple[str, str]]
    """Its languages, as `named` writes them, and what it is in each."""
    properties: dict[str, str]
    """The values of its `prop` elements, by type."""

    def values(self, column: str) -> list[tuple[str, str]]:
        """Return the texts in a language, or in its varieties if it is none, or the property of that type.

        `en` means `en` where it is there, else `en-US` or `en-GB`: there may be several, or none.
        """
        language = named(column)
        found = [one for one in self.texts if one[0] == language]
        found = found or [one for one in self.texts if one[0].startswith(f"{language}-")]
        if not found and column in self.properties:
            return [(column, self.properties[column])]
        return found


def named(language: str) -> str:
    """Return the code of a language in one spelling: EN_us is en-us."""
    return language.lower().replace("_", "-")


def read_units(path: Path, key: str) -> Iterator[Unit]:
    """Yield the units of a file, plain or compressed; errors name `key`, the config key.

    Raises:
        UserError: the file is unreadable, no XML, or no TMX.
    """
    reader = _Reader(f"{key}: {path}")
    with open_bytes(path, key) as file:
        while block := file.read(BLOCK_BYTES):
            yield from reader.units_of(block)
    yield from reader.units_of(b"", is_last=True)


class _Reader:
    """A parser of XML, and where in the file it is."""

    def __init__(self, where: str):
        self._where = where
        self._parser = expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.StartElementHandler = self._begin
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._add
        self._parser.EntityDeclHandler = self._refuse_definition
        self._parser.SkippedEntityHandler = self._refuse_entity
        self._units = list[Unit]()
        self._unit: Unit | None = None
        self._is_root = True
        self._language: str | None = None
        """That of the `tuv` element around, if there is one."""
        self._property: str | None = None
        self._text: list[str] | None = None
        """What has been read of the segment, or property, around; None outside of one."""
        self._length = 0
        """Its characters, of which no more are kept than a line may have."""
        self._codes = 0
        """Elements with native codes around."""

    def units_of(self, block: bytes, *, is_last: bool = False) -> list[Unit]:
        """Return the units that end in the next bytes of the file."""
        try:
            self._parser.Parse(block, is_last)
        except expat.ExpatError as error:
            reason = expat.errors.messages[error.code]
            raise UserError(
                f"{self._where}:{error.lineno}: not XML: {reason} at character {error.offset + 1}"
            ) from error
        except (LookupError, ValueError) as error:  # of the encoding
            raise UserError(
                f"{self._where}:1: {error}; convert the file to UTF-8, and say so there"
            ) from error
        found, self._units = self._units, []
        return found

    def _error(self, what: str) -> UserError:
        return UserError(f"{self._where}:{self._parser.CurrentLineNumber}: {what}")

    def _begin(self, name: str, attributes: dict[str, str]) -> None:
        if self._is_root and name != "tmx":
            raise self._error(f"not TMX, but XML with <{name}> around it")
        self._is_root = False
        if name in CODES:
            self._codes += 1
        elif name == "tu":
            self._unit = Unit(self._parser.CurrentLineNumber, [], {})
        elif name == "tuv" and self._unit is not None:
            language = attributes.get("xml:lang") or attributes.get("lang")
            if not language:
                raise self._error("<tuv> says no language; give it xml:lang=...")
            self._language = named(language)
        elif name == "seg" and self._language is not None:
            self._text, self._length = [], 0
        elif name == "prop" and self._unit is not None and self._language is None:
            self._property, self._text, self._length = attributes.get("type", ""), [], 0

    def _end(self, name: str) -> None:
        if name in CODES:
            self._codes -= 1
        elif name == "tu" and self._unit is not None:
            self._units.append(self._unit)
            self._unit = None
        elif name == "tuv":
            self._language = None
        elif name in ("seg", "prop") and self._text is not None and self._unit is not None:
            text = one_line("".join(self._text)[: MAX_LINE_CHARS + 1])
            if name == "seg" and self._language is not None:
                self._unit.texts.append((self._language, text))
                self._text = None
            elif name == "prop" and self._property is not None:
                self._unit.properties[self._property] = text
                self._property = self._text = None

    def _add(self, text: str) -> None:
        if self._text is not None and not self._codes and self._length <= MAX_LINE_CHARS:
            self._text.append(text)
            self._length += len(text)

    def _refuse_definition(self, name: str, *_: object) -> None:
        raise self._error(f"the entity {name!r} is defined here, which is not read; write its text instead")

    def _refuse_entity(self, name: str, _: bool) -> None:
        raise self._error(f"the entity &{name}; is not known; write its character instead")
