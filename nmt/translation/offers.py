"""What a source is offered before it is translated: terms of a glossary, the translation of a similar source.

Knows requests and text, and the marks of `nmt.data`; whether a model was trained with them is asked of the
caller.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from nmt.data.augment.translation_memory import TranslationMemory
from nmt.data.configs import DataConfig
from nmt.data.modifiers import LEAST_LIKENESS
from nmt.data.parallel_text import Split
from nmt.data.reading import files
from nmt.data.reading.compression import without_suffix
from nmt.data.reading.files import FilesData
from nmt.decoding.configs import GlossaryUse
from nmt.errors import UserError
from nmt.translation.requests import Glossary, Request


@dataclass(frozen=True)
class Offers:
    """What all sources are offered; a request may have terms and a match of its own."""

    glossary: Glossary = field(default_factory=lambda: Glossary({}))
    use: GlossaryUse = GlossaryUse.auto
    memory: TranslationMemory | None = None
    least: float = LEAST_LIKENESS
    """Least likeness, over 0 and up to 1, of a line and the source of `memory` that is its match."""
    tgt: str | None = None
    """Language of the glossary and the memory: a request that names another is offered neither."""

    def __post_init__(self) -> None:
        least: object = self.least  # from a caller who may have passed anything
        if not isinstance(least, int | float) or not 0 < least <= 1:
            raise UserError(f"memory_least must be over 0 and at most 1, but is {least!r}")

    def applied(self, request: Request, use: GlossaryUse) -> Request:
        """Return the request with its terms in its source or among its wishes, and its match, if any."""
        match, shared = request.match, self if request.tgt in ("", self.tgt) else NO_OFFERS
        if not match.strip() and shared.memory is not None:
            found = shared.memory.best(request.src, shared.least)
            match = shared.memory.tgt[found.row] if found else ""
        if shared.glossary.terms or request.terms:
            request = shared.glossary.applied(request, use)
        return replace(request, match=match) if match != request.match else request


def use_of(value: GlossaryUse | str) -> GlossaryUse:
    """Return the use of a glossary that `value` names; raise `UserError` if it names none."""
    known = [one.value for one in GlossaryUse]
    if not isinstance(value, GlossaryUse) and value not in known:
        raise UserError(f"glossary_use must be one of {', '.join(known)}, but is {value!r:.80}")
    return GlossaryUse(value)


NO_OFFERS = Offers()


class _MemoryFile(FilesData):
    """The pairs that the key `memory` names."""

    def key(self, split: Split) -> str:
        return self.key_prefix


def read_memory(place: str, data: DataConfig, tgt: str | None) -> TranslationMemory:
    """Read pairs as `data=files` reads them, but .tsv and .csv without a header.

    Their target language is `tgt`, or any that a run of `data` translates into; of several sources the first.

    Raises:
        UserError: a file cannot be read, or has no pair; the run translates into no such language.
    """
    pair = next((pair for pair in data.languages if tgt in (None, pair[1])), None)
    if pair is None:
        raise UserError(f"memory: the run does not translate into {tgt}")
    src, tgt = pair
    cfg = _MemoryFile(src=src, tgt=tgt, train=place, key_prefix="memory")
    if without_suffix(place).endswith((".tsv", ".csv")):
        cfg = replace(cfg, src_column="1", tgt_column="2")
    try:
        text = files.stream(cfg, Split.train).read()
    except UserError as error:  # whose ways out are keys of data=files
        way_out = "; give a .tsv of lines SOURCE TAB TARGET"
        told = (re.sub(r";[^;]*(memory\.|data=)[^;]*$", way_out, problem) for problem in error.problems)
        raise UserError(*told) from error
    return TranslationMemory(zip(text.src, text.tgt, strict=True))
