"""The phrases of the demo corpus: nouns with determiners and adjectives, pronouns, adverbials.

A phrase is sampled so that it makes sense beside the verb. `__init__` decides on its place in a sentence, and
`grammar` says it in either language.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from random import Random
from typing import NamedTuple, TypeVar

from scripts.demo_corpus import lexicon as lex
from scripts.demo_corpus.forms import Adverb, Determiner, Noun, Pronoun, Tense, Verb
from scripts.demo_corpus.grammar import Clause, Nominal, NounPhrase, PrepositionalPhrase

T = TypeVar("T")
Word = TypeVar("Word", Noun, Verb)


class _Style(NamedTuple):
    """A way to determine a noun."""

    determiners: list[Determiner]
    plural: bool = False
    counted: float = 0.0
    """Probability of a number word."""
    many: bool = False


_UNCOUNTABLE = [
    (_Style([lex.THE]), 4),
    (_Style(lex.POSSESSIVES), 2),
    (_Style([lex.THIS]), 1),
    (_Style([lex.BARE]), 4),
]
_OWNED = [(_Style(lex.POSSESSIVES), 4), (_Style(lex.POSSESSIVES, plural=True, counted=0.3), 1)]
_PLAIN = [
    (_Style([lex.THE]), 9),
    (_Style([lex.A]), 3),
    (_Style([lex.THIS]), 2),
    (_Style([lex.THE], plural=True, counted=0.1), 2),
    (_Style([lex.THIS], plural=True, counted=0.1), 1),
]
_INDEFINITE = [
    (_Style([lex.A]), 3),
    (_Style([lex.BARE], plural=True), 2),
    (_Style([lex.BARE], plural=True, counted=1.0), 3),
    (_Style([lex.BARE], plural=True, many=True), 2),
    (_Style([lex.ALL], plural=True), 1),
]


@cache
def _styles(tags: str, countable: bool, plain: bool, head: bool) -> list[tuple[_Style, int]]:
    """Return the weighted ways to determine a noun with these tags."""
    if "K" in tags:
        return _OWNED if countable else _OWNED[:1]
    if not countable:
        return _UNCOUNTABLE
    owned = [] if head or "U" in tags else _OWNED
    return [*_PLAIN, *owned, *([] if plain else _INDEFINITE)]


class Draw:
    """A sampler with one random generator; no noun and no full verb comes twice in a sentence."""

    def __init__(self, rng: Random):
        self.rng = rng
        self.said: list[Noun | Verb] = []
        """Nouns and verbs of the current sentence."""

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.rng.random() < probability

    def one_of(self, items: Sequence[T]) -> T:
        """Draw one item, each with the same probability."""
        return self.rng.choice(items)

    def weighted(self, *choices: tuple[T, int]) -> T:
        """Draw one item from (item, weight) pairs."""
        items, weights = zip(*choices, strict=True)
        return self.rng.choices(items, weights)[0]

    def fresh(self, words: list[Word]) -> Word:
        """Draw a word that the sentence has not used, or any where all are used."""
        word = self.one_of(words)
        if word in self.said:
            word = self.one_of([other for other in words if other not in self.said] or words)
        self.said.append(word)
        return word

    def person(self) -> Nominal:
        """Draw a subject for the main clause of a compound sentence."""
        return self.nominal("P", plain=True)

    def nominal(self, tags: str, subject: Nominal | None = None, *, plain: bool = False) -> Nominal:
        """Draw a noun phrase or, if it may be a person, a pronoun whose person is not that of `subject`."""
        if "P" not in tags or not self.chance(0.4):
            return self.noun_phrase(tags, plain=plain)
        taken = (lex.I, lex.WE) if subject in (lex.I, lex.WE) else (subject,)
        return self.one_of([pronoun for pronoun in lex.PERSONAL if pronoun not in taken])

    def again(self, subject: Nominal) -> Nominal:
        """Return the pronoun that refers to `subject`, or somebody else."""
        if isinstance(subject, Pronoun):
            return subject
        pronouns = {"p": lex.THEY, "m": lex.HE, "f": lex.SHE}
        if subject.slot in pronouns and self.chance(0.7):
            return pronouns[subject.slot]
        return self.person()

    def asked(self, tags: str) -> Nominal:
        """Draw "who", "what", or a noun phrase with "which" or "how many"."""
        if self.chance(0.6):
            return lex.WHO if "P" in tags and (self.chance(0.7) or not set(tags) - set("PA")) else lex.WHAT
        noun = self.fresh(lex.nouns(tags, "K"))
        phrase = NounPhrase(noun, lex.WHICH, plural=bool(noun.de_plural) and self.chance(0.4))
        if phrase.plural and self.chance(0.6):
            phrase.determiner = lex.HOW_MANY
        elif self.chance(0.3):
            phrase.adjectives = (self.one_of(lex.adjectives(noun.tags, noun.de)),)
        return phrase

    def noun_phrase(self, tags: str, *, plain: bool = False, head: bool = False) -> NounPhrase:
        """Draw a noun with determiner and adjectives: few if `plain`, fit for a relative clause if `head`."""
        noun = self.fresh(lex.nouns(tags, "K" if head else ""))
        style = self.weighted(*_styles(noun.tags, bool(noun.de_plural), plain, head))
        phrase = NounPhrase(noun, self.one_of(style.determiners), style.plural)
        if style.many:
            phrase.adjectives = (lex.MANY,)
        if style.counted and self.chance(style.counted):
            # "The five doctors", but not "the twenty-four doctors".
            numbers = range(2, 6) if phrase.determiner.definite else [*lex.NUMBERS]
            phrase.count = self.one_of(numbers)
        adjectives = lex.adjectives(noun.tags, noun.de)
        if adjectives and self.chance(0.2 if plain else 0.35):
            phrase.adjectives += (self.one_of(adjectives),)
        return phrase

    def time(self, clause: Clause) -> Adverb:
        """Draw an adverbial of time that goes with the tense."""
        if self.chance(0.1):
            en, de = lex.NUMBERS[self.rng.randrange(2, 13)]
            return Adverb(f"at {en} o'clock", f"um {de} Uhr")
        if clause.tense is not Tense.present and self.chance(0.25):
            en, de = self.one_of([*lex.NUMBERS.values()])
            span, spanne = self.one_of(lex.SPANS)
            if clause.tense is Tense.past:
                return Adverb(f"{en} {span} ago", f"vor {de} {spanne}")
            return Adverb(f"in {en} {span}", f"in {de} {spanne}")
        return self.one_of((lex.TIMES_OF_MODALS if clause.modal else lex.TIMES)[clause.tense])

    def manner(self, clause: Clause) -> Adverb | PrepositionalPhrase:
        """Draw a manner, a companion or somebody who benefits."""
        kind = self.one_of(clause.verb.manner)
        if kind in lex.MANNERS:
            return self.one_of(lex.MANNERS[kind])
        if kind == "c" and self.chance(0.2):
            return lex.ALONE
        preposition = lex.FOR if kind == "f" else self.one_of((lex.WITH, lex.WITHOUT))
        return PrepositionalPhrase(preposition, self.nominal("P", clause.subject))

    def place(self, clause: Clause, tags: str) -> PrepositionalPhrase:
        """Draw a location or a destination."""
        verb = clause.verb
        if verb.place == "o":
            return PrepositionalPhrase(lex.ONTO, self.noun_phrase("S", plain=True))
        if verb.en == "go" and self.chance(0.3):
            return PrepositionalPhrase(lex.TO_PERSON, self.noun_phrase("P", plain=True))
        alive = bool(set(tags) & set("PA"))
        if verb.place == "a" and "A" in tags and self.chance(0.15):
            return PrepositionalPhrase(lex.UNDER, self.noun_phrase("S", plain=True))
        if verb.place == "a" and alive and self.chance(0.2):
            return PrepositionalPhrase(self.one_of(lex.LANDMARK), self.noun_phrase("B", plain=True))
        if verb is lex.BE and not alive:
            phrase = self.noun_phrase("S", plain=True)
            under = self.chance(0.3)
        else:
            phrase = self.noun_phrase(verb.places, plain=True)
            under = False
        usual = phrase.noun.to if verb.has_goal else phrase.noun.at
        return PrepositionalPhrase(lex.UNDER if under or not usual else usual, phrase)
