"""The kinds of words of the demo corpus, and how each kind inflects in English and in German.

This module knows single words: not which ones there are (`lexicon`), not how they combine (`grammar`).
`Agreement` indexes every conjugation. Tables of German endings are indexed by gender slot ("m", "f", "n", or
"p" for every plural) and then by `Case`. Words are compared by identity.

Tags are letters that say what a noun is, so that verbs and adjectives find company that makes sense: P
person, K relative, A animal, F food, M uncountable food, D drink, X served hot or cold, T text, O object, I
object to hold, V repairable, W washable, C to be opened and closed, L place, H place to live, E place to
drive to, J place worth a journey, G part of a home, N in the open air, S surface, B building or other
landmark, U nobody's own. An adjective has the tags of the nouns it suits, and Q if it tells a passing state.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any


class Case(IntEnum):
    """German case."""

    nominative = 0
    accusative = 1
    dative = 2


class Agreement(IntEnum):
    """Person and number of a subject; "we" and "they" share all forms."""

    i = 0
    you = 1
    singular = 2
    plural = 3


class Tense(Enum):
    """Tense of the English clause. A German past is the perfect, except for verbs that list a preterite."""

    present = "present"
    past = "past"
    future = "future"


Forms = tuple[str, str, str, str]
"""One form for each `Agreement`."""

STRONG = {"m": ("er", "en", "em"), "f": ("e", "e", "er"), "n": ("es", "es", "em"), "p": ("e", "e", "en")}
WEAK = {"m": ("e", "en", "en"), "f": ("e", "e", "en"), "n": ("e", "e", "en"), "p": ("en", "en", "en")}
ARTICLE = {
    "m": ("der", "den", "dem"),
    "f": ("die", "die", "der"),
    "n": ("das", "das", "dem"),
    "p": ("die", "die", "den"),
}


@dataclass(frozen=True, eq=False)
class Preposition:
    """A preposition with the German case that it governs; `goal` marks a destination, not a location."""

    en: str
    de: str
    case: Case = Case.dative
    goal: bool = False


@dataclass(frozen=True, eq=False)
class Noun:
    """A noun; without a German plural it is used in the singular only."""

    en: str
    en_plural: str
    de: str
    de_plural: str
    gender: str
    weak: str
    """Ending of a weak masculine outside the nominative singular ("den Jungen"), else empty."""
    tags: str
    at: Preposition | None = None
    """The preposition of a location; only places and surfaces have one."""
    to: Preposition | None = None

    def german(self, case: Case, plural: bool) -> str:
        """Return the inflected German noun."""
        if plural:
            return self.de_plural + "n" * (case is Case.dative and self.de_plural[-1] not in "ns")
        return self.de if case is Case.nominative else self.de + self.weak


@dataclass(frozen=True, eq=False)
class Determiner:
    """An article or a word in its place; `de` is the stem, empty for "der, die, das" and for no article."""

    en: str
    en_plural: str
    de: str
    definite: bool = True
    mixed: bool = False
    """Declined like "ein", which has no ending in three forms."""

    def german(self, slot: str, case: Case) -> tuple[str, str]:
        """Return the word and the ending it shows: adjectives are weak after an ending, otherwise strong."""
        ending = STRONG[slot][case]
        if not self.de:
            return (ARTICLE[slot][case], ending) if self.definite else ("", "")
        if self.mixed and slot in ("m", "n") and ending in ("er", "es"):
            ending = ""
        return self.de + ending, ending


@dataclass(frozen=True, eq=False)
class Adjective:
    """An adjective: the predicative form, and the stem that takes the endings."""

    en: str
    de: str
    stem: str
    tags: str


@dataclass(frozen=True, eq=False)
class Pronoun:
    """A pronoun. English: as subject, as object, after a preposition. German: by case."""

    en: tuple[str, str, str]
    de: tuple[str, str, str]
    agreement: Agreement = Agreement.singular


@dataclass(frozen=True, eq=False)
class Adverb:
    """An adverb or a fixed phrase."""

    en: str
    de: str
    medial: bool = False
    """Whether the English adverb is beside the verb ("often"), not at the end of the clause."""
    deniable: bool = True
    """Whether the adverb fits a negated clause."""


@dataclass(frozen=True, eq=False)
class Verb:
    """A verb of both languages with what it takes; modal verbs take nothing."""

    en: str
    en_present: Forms
    en_past: Forms
    de: str
    de_present: Forms
    de_past: Forms | None = None
    """Preterite; None where the past is the perfect."""
    participle: str = ""
    prefix: str = ""
    """Separable prefix, included in `de` and `participle` but not in the finite forms."""
    sein: bool = False
    """Whether the perfect has "sein", not "haben"."""
    auxiliary: bool = False
    """Whether English negates the verb and asks with it without "do"."""
    particle: str = ""
    preposition: str = ""
    subjects: str = ""
    """Tags of the subjects of the verb; empty for the weather."""
    accusative: str = ""
    dative: str = ""
    place: str = ""
    """One letter: a if a location is possible, l if it is needed, g needs a goal, o a goal on a surface."""
    places: str = "L"
    manner: str = ""
    """Kinds of manner: s speed, q quiet, l loud, c company, f for somebody, t transport."""
    lasting: bool = False
    """Whether the verb is a state that no day or hour limits ("belong")."""

    @property
    def has_goal(self) -> bool:
        """Whether the verb needs a destination."""
        return self.place in ("g", "o")

    @property
    def event(self) -> bool:
        """Whether the verb is an act at a certain time, which can be planned or allowed."""
        return bool(self.participle and self.subjects and not self.lasting)


def read_verb(english: str, german: str, subjects: str = "P", **frame: Any) -> Verb:
    """Read "get got +up" and "auf|stehen steht gestanden s".

    English: base, past if irregular, particle after +, preposition after =. German: infinitive, third person
    singular, participle, s if the perfect has "sein". `frame` holds the other fields of the verb.
    """
    base, *others = english.split()
    past = next((word for word in others if word[0] not in "+="), _regular_past(base))
    infinitive, third, participle, *sein = german.split()
    prefix, _, stem = infinitive.rpartition("|")
    # The sibilant of a stem swallows the s of the second person: du isst, du tanzt.
    second = third if third[-2] in "sßz" else third[:-1] + "st"
    return Verb(
        en=base,
        en_present=(base, base, add_s(base), base),
        en_past=(past, past, past, past),
        de=prefix + stem,
        de_present=(stem[:-2] + "e", second, third, stem),
        participle=prefix + participle,
        prefix=prefix,
        sein=bool(sein),
        particle=next((word[1:] for word in others if word[0] == "+"), ""),
        preposition=next((word[1:] for word in others if word[0] == "="), ""),
        subjects=subjects,
        **frame,
    )


def read_irregular(english: str, german: str, **frame: Any) -> Verb:
    """Read "have has had" and "haben habe hast hat haben hatte hattest hatte hatten".

    Either language: base, four present forms, four past forms. English may also be base, third person, past.
    """
    base, *forms = english.split()
    if len(forms) == 2:
        third, past = forms
        forms = [base, base, third, base, past, past, past, past]
    infinitive, *german_forms = german.split()
    return Verb(
        en=base,
        en_present=_four(forms[:4]),
        en_past=_four(forms[4:]),
        de=infinitive,
        de_present=_four(german_forms[:4]),
        de_past=_four(german_forms[4:]),
        **frame,
    )


def read_noun(line: str) -> Noun:
    """Read "boy; Junge Jungen m n; PU" (the last German item is the weak ending) or "city; ...; tags; in in;
    to in".

    An irregular English plural follows its singular; "-" stands for no German plural. A place adds its
    prepositions in English and German, first for being there, then for going there.
    """
    english, german, tags, *places = (part.split() for part in line.split(";"))
    singular, plural, gender, *weak = german
    at, to = None, None
    if places:
        en, de = places[0]
        at = Preposition(en, de)
    if len(places) > 1:
        en, de = places[1]
        to = Preposition(en, de, Case.dative if de == "zu" else Case.accusative, goal=True)
    return Noun(
        en=english[0],
        en_plural=english[1] if len(english) > 1 else add_s(english[0]),
        de=singular,
        de_plural=plural.strip("-"),
        gender=gender,
        weak="".join(weak),
        tags=tags[0],
        at=at,
        to=to,
    )


def read_adjective(line: str) -> Adjective:
    """Read "english german tags", where the German is "teuer/teur" if the stem before an ending differs."""
    english, german, tags = line.split()
    predicative, _, stem = german.partition("/")
    return Adjective(english, predicative, stem or predicative, tags)


def add_s(word: str) -> str:
    """Return the regular plural of a noun, or the third person of a verb."""
    if word.endswith("y") and word[-2] not in "aeou":
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "sh", "ch", "x", "o")) else "s")


def _regular_past(base: str) -> str:
    if base.endswith("y") and base[-2] not in "aeou":
        return base[:-1] + "ied"
    return base + ("d" if base.endswith("e") else "ed")


def _four(forms: list[str]) -> Forms:
    i, you, singular, plural = forms
    return i, you, singular, plural
