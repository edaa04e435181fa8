"""What is asked of the translation of a line: text that it begins with, that it must have, or must not have.

A `Request` is text; `Wishes` makes it ids for one vocabulary, and finds what a translation still lacks. The
last word of a prefix may be unfinished: its characters are given, but not their tokens, so that the model may
finish the word as it would write it. A phrase to avoid is avoided however tokens spell it.

Prefixes by characters: "token healing", and Post and Vilar 2018 for phrases.
"""

from __future__ import annotations

import functools
import heapq
import json
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

from nmt.data.augment.terms import Span, annotated
from nmt.data.modifiers import TERM_MARKS
from nmt.data.reading.lines import read_lines
from nmt.data.special_ids import EOS_ID, UNK_ID
from nmt.data.text.casing import ESCAPE, MARKS, TITLE, UPPER, are_letters
from nmt.data.text.words import UNIT, has_whole, is_whole, is_without_spaces, parts_words
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.data.tokens.tokenizer_training import SPACE
from nmt.decoding.configs import GlossaryUse
from nmt.decoding.hypotheses import EDGE, Wish
from nmt.errors import UserError, suggest

MOST_SPELLINGS = 64
"""Tokenisations of a phrase that are avoided; those of the fewest tokens."""
MOST_HEALED = 8
"""Tokens at the end of a prefix that may be replaced by others of the same characters."""
HALF = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair, which JSON may spell."""
GAP = re.compile(r"\s+")
OFFERED = re.compile(" ?\0")
"""The beginning of what a source offers behind a term, in which `_without_marked` leaves NULs."""


@dataclass
class Request:
    """A line to translate, and what its translation must have."""

    src: str
    """The source."""
    prefix: str = ""
    """The beginning of the translation; its last word may be unfinished, unless a space follows it."""
    must: list[str] = field(default_factory=list)
    """Words or phrases that must appear, in any order."""
    avoid: list[str] = field(default_factory=list)
    """Words or phrases that must not appear."""
    context: list[str] = field(default_factory=list)
    """Sources of the sentences before it, the oldest first, for models trained with data.context."""
    document: str = ""
    """Name of its document; with documents=true the lines of this name before it are its context."""
    terms: dict[str, str] = field(default_factory=dict)
    """Terms of the source and their translations, as lines of a glossary for this request alone."""
    match: str = ""
    """The translation of a similar source, for models trained with matches."""
    domain: str = ""
    """Domain of the text, for models trained with domains; else that of all lines."""
    tgt: str = ""
    """Language to translate into, for models of several; else that of all lines."""
    due: list[str] = field(default_factory=list, metadata={"internal": True})
    """Translations of terms found in the source, which `Translation.unmet` names where they are lacking."""

    def __post_init__(self) -> None:
        for key in ("src", "prefix", "document", "match", "domain", "tgt"):
            _require(isinstance(getattr(self, key), str), key, "a text", getattr(self, key))
        for key, kind in (("must", "words or phrases"), ("avoid", "words or phrases"), ("context", "texts")):
            value: object = getattr(self, key)
            _require(isinstance(value, list | tuple) and _are_texts(value), key, f"a list of {kind}", value)
        of_terms: object = self.terms
        are_terms = isinstance(of_terms, dict) and _are_texts([*of_terms, *of_terms.values()])
        _require(are_terms, "terms", 'an object of texts, such as {"dog": "Hund"}', of_terms)
        for key in ("must", "avoid"):
            if not all(map(str.strip, getattr(self, key))):
                raise UserError(f"{key}: one of the words or phrases is blank")
        if not all(term.strip() and variants(targets) for term, targets in self.terms.items()):
            raise UserError("terms: one of the terms or translations is blank")
        terms = (*self.terms, *self.terms.values())
        for text in (self.src, self.prefix, self.match, *self.must, *self.avoid, *self.context, *terms):
            require_characters(text)

    @classmethod
    def of(cls, line: str | Request) -> Request:
        """Return a line as a request; raise `UserError` for what is neither text nor a request."""
        other: object = line
        if not isinstance(other, str | Request):
            raise UserError(f"a line must be a text or a request, but is {other!r:.80}")
        return cls(other) if isinstance(other, str) else other

    @classmethod
    def from_pair(cls, line: str, name: str) -> Request:
        """Read SOURCE TAB PREFIX; raise `UserError` that names the line, such as "line 3 of the input"."""
        num_tabs = line.count("\t")
        if num_tabs != 1:
            found = f"{num_tabs} TABs" if num_tabs else "no TAB"
            raise UserError(f"{name} has {found}; with prefixes=true a line is SOURCE TAB PREFIX")
        source, _, prefix = line.partition("\t")
        return cls(source, prefix)

    @classmethod
    def from_json(cls, text: str, name: str) -> Request:
        """Read a JSON object with the fields of a request; raise `UserError` that names the line."""
        try:
            values: object = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UserError(f'{name} is no JSON; a line is an object such as {{"src": "A dog."}}') from error
        if not isinstance(values, dict) or not isinstance(values.get("src"), str):
            raise UserError(f'{name} is no object with a text "src", such as {{"src": "A dog."}}')
        known = [one.name for one in fields(cls) if "internal" not in one.metadata]
        for key in values:
            if key not in known:
                raise UserError(f"{name} has the unknown key {key!r}{suggest(key, known)}; there are {known}")
        try:
            return cls(**values)
        except UserError as error:
            raise UserError(f"{name}: {error}") from error


def _are_texts(values: Iterable[object]) -> bool:
    return all(isinstance(one, str) for one in values)


def _require(is_right: bool, key: str, what: str, value: object) -> None:
    """Raise `UserError` unless the value of a field is `what` it must be."""
    if not is_right:
        raise UserError(f"{key} must be {what}, but is {json.dumps(value, default=repr)[:80]}")


def require_text(value: object, name: str) -> None:
    """Raise `UserError`, which calls a value `name`, unless it is a text without what no text has."""
    if not isinstance(value, str):
        raise UserError(f"{name} must be a text, but is {value!r:.80}")
    require_characters(value)


def require_characters(text: str) -> None:
    """Raise `UserError` for text with NUL, or with what is no Unicode, as of undecodable names of files."""
    if "\0" in text:
        raise UserError(f"{text[:40]!a} has a NUL character, which no text has; remove it")
    if HALF.search(text):
        raise UserError(f"{text[:40]!a} has half of a surrogate pair, which is no character")


class Glossary:
    """Terms of the source and their translations; `a|b` are two translations of which one is due."""

    def __init__(self, terms: Mapping[str, str]):
        if not isinstance(terms, Mapping):
            raise UserError(f"glossary must map terms to their translations, but is {terms!r:.80}")
        for pair in cast("Iterable[tuple[Any, Any]]", terms.items()):  # whatever a caller has passed
            if (
                not all(isinstance(text, str) for text in pair)
                or not pair[0].strip()
                or not variants(pair[1])
            ):
                raise UserError(f"glossary: {pair[0]!r} or its translation {pair[1]!r} is no text, or blank")
        self.terms = {_plain_term(term): targets for term, targets in terms.items()}
        self._starting = dict[str, list[_Term]]()
        for term in map(_Term.of, terms):
            for unit in {UNIT.findall(form)[0].casefold() for form in term.words[0]}:
                self._starting.setdefault(unit, []).append(term)

    @classmethod
    def read(cls, path: Path) -> Glossary:
        """Read lines SOURCE TERM, TAB, TARGET TERM; blank lines are passed over.

        Raises:
            UserError: the file cannot be read, a line is no pair, or a term has two translations.
        """
        terms = dict[str, str]()
        for number, line in enumerate(read_lines(path, "glossary"), start=1):
            source, *targets = (part.strip() for part in line.split("\t"))
            source = _plain_term(source)
            if not source and not any(targets):
                continue
            if not source or len(targets) != 1 or not variants(targets[0]):
                raise UserError(f"glossary: line {number} of {path} is not SOURCE TERM, TAB, TARGET TERM")
            if terms.setdefault(source, targets[0]) != targets[0]:
                raise UserError(
                    f"glossary: line {number} of {path} translates {source!r} again, by {targets[0]!r} "
                    f"and not {terms[source]!r}; keep one"
                )
        return cls(terms)

    def spans(self, src: str) -> list[Span]:
        """Return the terms of a source, as whole words; one in small letters is found in any case.

        Of terms that overlap the one that begins first counts, and of those that begin together the longest;
        what the source already offers is passed over.
        """
        return _spans(src, [self])

    def beginning_at(self, src: str, unit: re.Match[str]) -> Iterator[tuple[int, bool, str]]:
        """Yield of each term that begins with a unit of a source, in which what is offered is NULs, where it
        ends, whether it is found in this case alone, and its translations.
        """
        for term in self._starting.get(unit[0].casefold(), ()):
            end = term.end(src, unit.start())
            if end is not None and is_whole(src, unit.start(), end) and not OFFERED.match(src, end):
                yield end, not term.in_any_case, self.terms[term.plain]

    def applied(self, request: Request, use: GlossaryUse) -> Request:
        """Return the request with what its source asks for by the glossary and by its own `terms`.

        The translation of a term that both have is that of the request.
        """
        spans = _spans(request.src, [Glossary(request.terms), self] if request.terms else [self])
        if not spans:
            return replace(request, terms={}) if request.terms else request
        due = list(dict.fromkeys(span.translation for span in spans))
        src, must = request.src, request.must
        if use is not GlossaryUse.constrain:
            src = annotated(src, [span._replace(translation=variants(span.translation)[0]) for span in spans])
        if use is not GlossaryUse.annotate:
            must = list(dict.fromkeys([*must, *(variants(one)[0] for one in due)]))
        return replace(request, src=src, must=must, terms={}, due=due)


class _Term(NamedTuple):
    """A term of a glossary, to be found in sources."""

    plain: str
    words: list[list[str]]
    """Its words, each in all forms in which it is found: its characters composed or not."""
    in_any_case: bool
    """Whether the term is in small letters, and found in others, too."""

    @classmethod
    def of(cls, term: str) -> _Term:
        """Return a term as it is looked for."""
        plain = _plain_term(term)
        forms = (
            (word, *(unicodedata.normalize(form, word) for form in ("NFC", "NFD"))) for word in term.split()
        )
        return cls(plain, [list(dict.fromkeys(several)) for several in forms], plain == plain.lower())

    def end(self, text: str, start: int) -> int | None:
        """Return where the term ends in a text if it begins at `start`, perhaps as a part of longer words."""
        place = start
        for number, forms in enumerate(self.words):
            if number:  # with any spaces in front
                gap = GAP.match(text, place)
                if gap is None:
                    return None
                place = gap.end()
            for form in forms:
                part = text[place : place + len(form)]
                if form == (part.lower() if self.in_any_case else part):
                    place += len(form)
                    break
            else:
                return None
        return place


def _spans(src: str, glossaries: Sequence[Glossary]) -> list[Span]:
    """Return the terms of glossaries in a source; one in several is translated as by the first of them."""
    src, found, place = _without_marked(src), list[Span](), 0
    while unit := UNIT.search(src, place):
        place = unit.end()
        if terms := [term for glossary in glossaries for term in glossary.beginning_at(src, unit)]:
            place, _, targets = max(terms, key=lambda term: term[:2])
            found.append(Span(unit.start(), place, targets))
    return found


def variants(targets: str) -> list[str]:
    """Return the translations of a term, of which each will do; the first one is what is asked for."""
    return [one.strip() for one in targets.split("|") if one.strip()]


def _without_marked(src: str) -> str:
    """Return a source of the same length in which offered translations and their marks are NULs."""
    opening, closing = map(re.escape, TERM_MARKS)
    return re.sub(f"{opening}.*?{closing}", lambda found: "\0" * len(found[0]), src)


def _plain_term(term: str) -> str:
    """Return a term with composed characters and single spaces, as it may be written in another way."""
    return " ".join(unicodedata.normalize("NFC", term).split())


class Wishes:
    """Requests as ids of one vocabulary, and what translations lack."""

    def __init__(self, tokenizer: Tokenizer, avoid: Sequence[str] = ()):
        """Hold phrases to `avoid` in every translation."""
        self.tokenizer, self.avoid = tokenizer, list(avoid)
        self.spellings = _spellings(tokenizer)
        self._avoided = [ids for phrase in self.avoid for ids in self._all_spellings(phrase)]

    def of(self, request: Request) -> Wish:
        """Return the wish for the translation of a line.

        Raises:
            UserError: a prefix is asked of a model that predicts from right to left.
        """
        start = self.tokenizer.tgt_start(request.src)
        prefix, rest = self._beginning(request.prefix)
        must = [ways for ways in map(self.phrase, dict.fromkeys(request.must)) if ways]
        avoided = [*self._avoided, *(ids for phrase in request.avoid for ids in self._all_spellings(phrase))]
        wish = Wish([*start, *prefix], rest, must, avoid=avoided, num_given=len(start))
        if self.tokenizer.cfg.right_to_left:
            return wish
        known = self.spellings
        if known.capitals and self._ends_small(request.prefix):
            wish = replace(wish, capitals=known.capitals, letters=known.letters)
        return replace(wish, word_parts=known.word_parts, word_ends=known.word_ends)

    def unmet(self, request: Request, text: str) -> list[str]:
        """Return the texts of a request that a translation lacks, or that it should not have."""
        begins = text.startswith(self._plain(request.prefix))
        lacking = [phrase for phrase in request.must if not self._is_in(phrase, text)]
        lacking += [
            targets
            for targets in request.due
            if not any(one in lacking or self._is_in(one, text) for one in variants(targets))
        ]
        avoid = dict.fromkeys([*self.avoid, *request.avoid])
        present = [phrase for phrase in avoid if self._is_in(phrase, text)]
        return [*([] if begins else [request.prefix]), *lacking, *present]

    def _is_in(self, phrase: str, text: str) -> bool:
        return has_whole(text, self._plain(phrase))

    def _plain(self, text: str) -> str:
        """Return text as a translation would have it: prepared, normalised, with single spaces."""
        ids = self._ids(text)
        if UNK_ID not in ids:  # a character may be several pieces, its bytes
            return self.tokenizer.decode(ids).strip() or text.strip()
        spelt = "".join(self._spelt(text))
        return self.tokenizer.in_case(spelt.replace(SPACE, " ").strip()) or text.strip()

    def _spelt(self, text: str) -> list[str]:
        """Return the spelling of each token of a text, in the order of the text, unknown ones as they are."""
        pieces = self.tokenizer.tgt_pieces([text])[0][len(self.tokenizer.tgt_start("")) : -1]
        if self.tokenizer.cfg.right_to_left:
            pieces = pieces[::-1]
        return [p.surface.replace(" ", SPACE) if p.id == UNK_ID else p.text for p in pieces]

    def _ids(self, text: str) -> list[int]:
        """Return the ids of a text alone, without what every target begins and ends with."""
        return self.tokenizer.encode_tgt([text])[0][len(self.tokenizer.tgt_start("")) : -1]

    def _turned(self, ids: list[int]) -> list[int]:
        return ids[::-1] if self.tokenizer.cfg.right_to_left else ids

    def phrase(self, phrase: str) -> list[list[int]]:
        """Return the spellings of a phrase, in the order of the model; none if the vocabulary has none.

        A phrase that begins with a sign, such as "!", is spelt with a space in front and without.
        """
        phrase = phrase.strip()  # which is text to some tokenizers
        text = self._as_pieces(phrase)
        joined = [] if _begins_a_word(phrase) else self.spellings.of(text.removeprefix(SPACE), 1)
        spellings = [*map(self._turned, joined)]
        if text.startswith(SPACE) or not joined:
            spellings.insert(0, self._ids(phrase))
        return [ids for ids in spellings if ids and UNK_ID not in ids]

    def _all_spellings(self, phrase: str) -> Iterator[list[int]]:
        """Yield the ids of all spellings of a phrase, with a space in front and without."""
        phrase = phrase.strip()
        text, is_word = self._as_pieces(phrase), _begins_a_word(phrase)
        joined = text.removeprefix(SPACE)
        if not joined:
            return
        if joined != text:
            yield from map(self._turned, self.spellings.of(text, MOST_SPELLINGS))
        for ids in self.spellings.of(joined, MOST_SPELLINGS):
            if is_word:
                yield [*self._turned(ids), EOS_ID] if self.tokenizer.cfg.right_to_left else [EDGE, *ids]
            else:
                yield self._turned(ids)
        for token in self.spellings.containing(joined, int(is_word)):
            if token not in self.tokenizer.tgt_byte_ids:
                yield [token]

    def _as_pieces(self, phrase: str) -> str:
        """Return a phrase as pieces spell it: with a space in front where spaces separate words."""
        text = "".join(self._spelt(phrase))
        return text.removeprefix(SPACE) if is_without_spaces(phrase.strip()) else text

    def _beginning(self, prefix: str) -> tuple[list[int], list[dict[int, int]]]:
        """Return the ids of the finished words of a prefix, and the ways to spell what follows them."""
        if not prefix.strip():
            return [], []
        if self.tokenizer.cfg.right_to_left:
            raise UserError(
                "the run predicts from right to left, from the last word to the first, so that no beginning "
                "of its translations can be given; leave out the prefix, or use a run from left to right"
            )
        is_finished, prefix = prefix[-1].isspace(), prefix.strip()
        ids, texts = self._ids(prefix), self._spelt(prefix)
        if is_finished:
            return ids, self.spellings.ways(SPACE) or []
        words = [place for place, text in enumerate(texts) if text.startswith(SPACE)]
        first = max([len(ids) - MOST_HEALED, *words[-1:]])
        ways = self.spellings.ways("".join(texts[first:]))
        return (ids, []) if ways is None else (ids[:first], ways)

    def _ends_small(self, prefix: str) -> bool:
        """Return whether a prefix ends in a word that is not finished, and has no mark of a capital there."""
        is_finished = not prefix[-1:].strip()
        return not is_finished and are_letters("".join(self._spelt(prefix))[-1:])


def _begins_a_word(phrase: str) -> bool:
    """Return whether a phrase begins with a word, which is one behind a space or a sign only."""
    return parts_words(phrase.strip()[:1])


class _Spelling(NamedTuple):
    """A tokenisation of the beginning of a text."""

    length: int
    token: int = -1
    before: _Spelling | None = None

    @property
    def ids(self) -> list[int]:
        """The tokens."""
        found, way = list[int](), self
        while way.before is not None:
            found.append(way.token)
            way = way.before
        return found[::-1]


OF_WORDS = {*MARKS} - {ESCAPE}
"""Marks that change or continue the word before them."""


class Spellings:
    """The tokens of a vocabulary by their text."""

    def __init__(self, texts: Iterable[tuple[int, str]]):
        self.ids = {text: token for token, text in texts}
        self.texts = sorted(self.ids)
        self.longest = max(map(len, self.texts), default=0)
        self.word_parts = [i for text, i in self.ids.items() if parts_words(text[:1]) or text[:1] in OF_WORDS]
        self.word_ends = [i for text, i in self.ids.items() if parts_words(text[-1:]) or text[-1:] in MARKS]
        self.capitals = [self.ids[mark] for mark in (TITLE, UPPER) if mark in self.ids]
        self.letters = [i for text, i in self.ids.items() if are_letters(text)] if self.capitals else []

    def ways(self, text: str) -> list[dict[int, int]] | None:
        """Return, for each number of characters that are spelt, the next tokens and what they spell then.

        A last token may be longer than the text. None if no tokens spell the text, or it has no characters.
        """
        ways: list[dict[int, int]] = [{} for _ in text]
        for start in reversed(range(len(text))):
            for end in range(start + 1, min(len(text), start + self.longest + 1)):
                if ways[end] and (token := self.ids.get(text[start:end])) is not None:
                    ways[start][token] = end
            for token in self._starting_with(text[start:]):
                ways[start][token] = len(text)
        return ways if ways and ways[0] else None

    @functools.lru_cache(maxsize=1024)  # noqa: B019, the vocabularies are few, and kept anyway
    def of(self, text: str, most: int) -> list[list[int]]:
        """Return the at most `most` tokenisations of a text with the fewest tokens."""
        best: list[list[_Spelling]] = [[_Spelling(0)], *([] for _ in text)]
        for end in range(1, len(text) + 1):
            ways = [
                _Spelling(before.length + 1, token, before)
                for start in range(max(0, end - self.longest), end)
                if (token := self.ids.get(text[start:end])) is not None
                for before in best[start]
            ]
            best[end] = heapq.nsmallest(most, ways, key=lambda way: way.length)
        return [way.ids for way in best[-1]]

    @functools.lru_cache(maxsize=1024)  # noqa: B019
    def containing(self, text: str, start: int) -> list[int]:
        """Return the longer tokens that have a text as a whole word, from their character `start` on."""
        return [
            token
            for longer, token in self.ids.items()
            if text in longer and longer.removeprefix(SPACE) != text and has_whole(longer, text, start)
        ]

    def _starting_with(self, text: str) -> Iterator[int]:
        place = bisect_left(self.texts, text)
        while place < len(self.texts) and self.texts[place].startswith(text):
            yield self.ids[self.texts[place]]
            place += 1


@functools.lru_cache(maxsize=4)
def _spellings(tokenizer: Tokenizer) -> Spellings:
    numbers = range(EOS_ID + 1, tokenizer.tgt_vocab_size)
    return Spellings(zip(numbers, tokenizer.tgt_spellings(numbers), strict=True))
