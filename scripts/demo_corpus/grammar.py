"""Abstract sentences of the demo corpus, and their words in English and in German.

A `Sentence` is a tree of clauses whose slots hold phrases; it belongs to neither language. `Sentence.english`
and `Sentence.german` say the same tree, so that a pair is a translation by construction. This module does not
choose sentences (the `__init__` does) and takes the forms of single words from `forms`.

German word order is one fixed instance of what the language allows, in topological fields (Drach,
Grundgedanken der deutschen Satzlehre, 1937):

    main clause   front, finite verb, subject, midfield, prefix or participle or infinitive, afterfield
    yes/no        finite verb, subject, midfield, prefix or participle or infinitive, afterfield
    dependent     conjunction or front, subject, midfield, all verbs with the finite one last, afterfield
    midfield      definite objects, time, "nicht", manner, location, indefinite objects, predicate, goal
    afterfield    relative clause of an object, "dass" clause, adverbial clause, embedded question

Object pronouns follow a subject pronoun and precede a subject noun ("Heute sieht mich der Mann"), except
"sie" and "es", which would look like the subject there. A negated indefinite object takes "kein" instead of
"nicht".
"""

from __future__ import annotations

from dataclasses import dataclass

from scripts.demo_corpus import lexicon as lex
from scripts.demo_corpus.forms import (
    ARTICLE,
    STRONG,
    WEAK,
    Adjective,
    Adverb,
    Agreement,
    Case,
    Determiner,
    Noun,
    Preposition,
    Pronoun,
    Tense,
    Verb,
)

SUBJECT, OBJECT, AFTER_PREPOSITION = 0, 1, 2
"""Roles that English pronouns distinguish: he, him; that, which."""


@dataclass
class NounPhrase:
    """A noun with determiner, number, adjectives and relative clause."""

    noun: Noun
    determiner: Determiner = lex.THE
    plural: bool = False
    count: int = 0
    """Spoken as a number word; 0 is no number."""
    adjectives: tuple[Adjective, ...] = ()
    relative: Clause | None = None

    @property
    def agreement(self) -> Agreement:
        """Third person, singular or plural."""
        return Agreement.plural if self.plural else Agreement.singular

    @property
    def slot(self) -> str:
        """Gender, or "p" in the plural: the key of every German ending."""
        return "p" if self.plural else self.noun.gender


Nominal = NounPhrase | Pronoun


@dataclass
class PrepositionalPhrase:
    """A preposition and the phrase that it governs."""

    preposition: Preposition
    phrase: Nominal


@dataclass
class Dependent:
    """A dependent clause with its conjunction in either language; an embedded question has none."""

    en: str
    de: str
    clause: Clause


Adverbial = Adverb | PrepositionalPhrase
Filler = Nominal | Adverbial | Dependent


@dataclass
class Clause:
    """A verb and its slots."""

    verb: Verb
    subject: Nominal
    tense: Tense = Tense.present
    modal: Verb | None = None
    negated: bool = False
    accusative: Nominal | None = None
    dative: Nominal | None = None
    predicate: Adjective | None = None
    degree: Adverb | None = None
    time: Adverb | None = None
    manner: Adverbial | None = None
    place: Adverbial | None = None
    dependent: Dependent | None = None
    front: str = "subject"
    """The slot that opens the clause, such as a question word or a relative pronoun. It is empty in a yes/no
    question and after a conjunction."""

    @property
    def opening(self) -> Filler | None:
        """The filler of the front slot, if there is one."""
        return getattr(self, self.front) if self.front else None

    def inside(self, slot: str) -> bool:
        """Tell whether `slot` is filled and has not moved to the front."""
        return slot != self.front and getattr(self, slot) is not None


@dataclass
class Sentence:
    """One main clause, or two joined by "but"."""

    clause: Clause
    contrast: Clause | None = None
    question: bool = False

    @property
    def english(self) -> str:
        """The sentence in English."""
        words = _english_clause(self.clause, inverted=self.question and self.clause.front != "subject")
        if self.contrast:
            words += " , but " + _english_clause(self.contrast)
        return _punctuate(words.replace(" can not ", " cannot "), self.question)

    @property
    def german(self) -> str:
        """The sentence in German."""
        words = _german_clause(self.clause)
        if self.contrast:
            words += " , aber " + _german_clause(self.contrast)
        return _punctuate(words, self.question)


def relative_pronoun(head: NounPhrase) -> Pronoun:
    """Return the pronoun that agrees with `head`: "who" or "that", and der/die/das in the three cases."""
    en = ("who", "whom", "whom") if "P" in head.noun.tags else ("that", "that", "which")
    nominative, accusative, dative = ARTICLE[head.slot]
    return Pronoun(en, (nominative, accusative, "denen" if head.plural else dative), head.agreement)


def _join(*words: str) -> str:
    return " ".join([word for word in words if word])


def _punctuate(words: str, question: bool) -> str:
    """Attach the commas, merge those that meet, and finish the sentence with a capital and its mark."""
    text = words.replace(" , ,", " ,").removesuffix(" ,").replace(" ,", ",")
    return text[0].upper() + text[1:] + ("?" if question else ".")


# English


def _english(filler: Filler, role: int = OBJECT) -> str:
    if isinstance(filler, NounPhrase):
        return _english_noun_phrase(filler)
    if isinstance(filler, Pronoun):
        return filler.en[role]
    if isinstance(filler, PrepositionalPhrase):
        return _join(filler.preposition.en, _english(filler.phrase, AFTER_PREPOSITION))
    if isinstance(filler, Dependent):
        return _join(filler.en, _english_clause(filler.clause))
    return filler.en


def _english_noun_phrase(phrase: NounPhrase) -> str:
    determiner = phrase.determiner.en_plural if phrase.plural else phrase.determiner.en
    noun = phrase.noun.en_plural if phrase.plural else phrase.noun.en
    number = lex.NUMBERS[phrase.count][0] if phrase.count else ""
    named = _join(number, *[adjective.en for adjective in phrase.adjectives], noun)
    if determiner == "a" and named[0] in "aeiou":
        determiner = "an"
    return _join(determiner, named, _english_clause(phrase.relative) if phrase.relative else "")


def _english_verbs(clause: Clause, inverted: bool) -> tuple[str, str, bool]:
    """Return the finite verb, the rest of the verbs, and whether the finite verb is an auxiliary."""
    verb, agreement, past = clause.verb, clause.subject.agreement, clause.tense is Tense.past
    if clause.tense is Tense.future:
        return "will", verb.en, True
    head, rest = clause.modal or verb, ""
    if clause.modal:
        rest = verb.en if head.auxiliary else "to " + verb.en
    if not head.auxiliary and (clause.negated or inverted):
        do = "did" if past else "does" if agreement is Agreement.singular else "do"
        return do, _join(head.en, rest), True
    return (head.en_past if past else head.en_present)[agreement], rest, head.auxiliary


def _english_objects(clause: Clause) -> str:
    """Return the objects; the particle or preposition of the verb stays when its object is in front."""
    verb = clause.verb
    slot = "accusative" if verb.accusative else "dative"
    direct: Nominal | None = getattr(clause, slot) if clause.inside(slot) else None
    text = _english(direct) if direct else ""
    words = (text, verb.particle) if isinstance(direct, Pronoun) else (verb.particle, text)
    recipient = _english_slot(clause, "dative") if slot == "accusative" and clause.inside("dative") else ""
    return _join(verb.preposition, *words, recipient)


def _english_slot(clause: Clause, slot: str) -> str:
    role = SUBJECT if slot == "subject" else OBJECT
    recipient = slot == "dative" and clause.verb.accusative
    return _join("to" if recipient else "", _english(getattr(clause, slot), role))


def _english_clause(clause: Clause, *, inverted: bool = False) -> str:
    finite, rest, auxiliary = _english_verbs(clause, inverted)
    time = clause.time if clause.inside("time") else None
    medial = time.en if time and time.medial else ""
    negation = "not" if clause.negated else ""
    subject = _english_slot(clause, "subject")
    front = _english_slot(clause, clause.front) if clause.front not in ("", "subject") else ""
    if inverted:
        verbs = _join(finite, subject, negation, medial, rest)
    elif auxiliary:
        verbs = _join(subject, finite, negation, medial, rest)
    else:
        verbs = _join(subject, medial, finite, rest)
    return _join(
        front,
        "," if isinstance(clause.opening, Dependent) else "",
        verbs,
        _english_objects(clause),
        clause.degree.en if clause.degree else "",
        clause.predicate.en if clause.predicate else "",
        *[_english_slot(clause, slot) for slot in ("manner", "place") if clause.inside(slot)],
        time.en if time and not time.medial else "",
        _english_slot(clause, "dependent") if clause.inside("dependent") else "",
    )


# German


def _german(filler: Filler, case: Case = Case.nominative) -> str:
    if isinstance(filler, NounPhrase):
        return _german_noun_phrase(filler, case)
    if isinstance(filler, Pronoun):
        return filler.de[case]
    if isinstance(filler, PrepositionalPhrase):
        return _german_prepositional_phrase(filler)
    if isinstance(filler, Dependent):
        return _join(filler.de, _german_clause(filler.clause, final=True))
    return filler.de


def _german_noun_phrase(phrase: NounPhrase, case: Case, *, denied: bool = False) -> str:
    """Return the phrase without its relative clause. Adjectives are weak after an ending, else strong."""
    slot = phrase.slot
    determiner, ending = (lex.NO if denied else phrase.determiner).german(slot, case)
    endings = (WEAK if ending else STRONG)[slot]
    number = lex.NUMBERS[phrase.count][1] if phrase.count else ""
    adjectives = [adjective.stem + endings[case] for adjective in phrase.adjectives]
    return _join(determiner, number, *adjectives, phrase.noun.german(case, phrase.plural))


def _german_prepositional_phrase(filler: PrepositionalPhrase) -> str:
    preposition, phrase = filler.preposition, filler.phrase
    words = _join(preposition.de, _german(phrase, preposition.case))
    if isinstance(phrase, NounPhrase) and phrase.determiner is lex.THE:
        start, article, rest = words.split(" ", 2)
        contraction = lex.CONTRACTIONS.get(f"{start} {article}")
        return f"{contraction} {rest}" if contraction else words
    return words


def _german_relative(phrase: Nominal | None) -> str:
    if isinstance(phrase, NounPhrase) and phrase.relative:
        return f", {_german_clause(phrase.relative, final=True)} ,"
    return ""


def _german_slot(clause: Clause, slot: str) -> str:
    cases = {"accusative": Case.accusative, "dative": Case.dative}
    words = _german(getattr(clause, slot), cases.get(slot, Case.nominative))
    return _join(words, _german_relative(clause.subject)) if slot == "subject" else words


def _german_verbs(clause: Clause, final: bool) -> tuple[str, str]:
    """Return the finite verb and the verb part that closes the clause."""
    verb, agreement, past = clause.verb, clause.subject.agreement, clause.tense is Tense.past
    if clause.modal:
        return ((past and clause.modal.de_past) or clause.modal.de_present)[agreement], verb.de
    if clause.tense is Tense.future:
        return lex.WERDEN[agreement], verb.de
    if past and not verb.de_past:
        return (lex.BE if verb.sein else lex.HAVE).de_present[agreement], verb.participle
    form = ((past and verb.de_past) or verb.de_present)[agreement]
    return (verb.prefix + form, "") if final else (form, verb.prefix)


def _german_subject_field(clause: Clause) -> str:
    """Return the subject, unless it is in front, with the object pronouns around it."""
    before: list[str] = []
    after: list[str] = []
    for slot, case in (("accusative", Case.accusative), ("dative", Case.dative)):
        phrase = getattr(clause, slot)
        if clause.inside(slot) and isinstance(phrase, Pronoun):
            looks_like_subject = phrase.de[case] == phrase.de[Case.nominative]
            late = looks_like_subject or isinstance(clause.subject, Pronoun)
            (after if late else before).append(phrase.de[case])
    return _join(*before, _german_slot(clause, "subject") if clause.inside("subject") else "", *after)


def _german_midfield(clause: Clause) -> str:
    """Return the words between subject and pronouns and the closing verb."""
    early: list[str] = []
    late: list[str] = []
    denied = False
    # From the object nearest to the verb outwards, so that "kein" goes to the last indefinite one.
    for slot, case in (("accusative", Case.accusative), ("dative", Case.dative)):
        phrase = getattr(clause, slot)
        if not clause.inside(slot) or isinstance(phrase, Pronoun):
            continue
        if phrase.determiner.definite:
            early.insert(0, _german(phrase, case))
        else:
            late.insert(0, _german_noun_phrase(phrase, case, denied=clause.negated and not denied))
            denied = True
    place = clause.place if clause.inside("place") else None
    goal = isinstance(place, PrepositionalPhrase) and place.preposition.goal
    return _join(
        *early,
        _german(clause.time) if clause.time and clause.inside("time") else "",
        "nicht" if clause.negated and not denied else "",
        _german(clause.manner) if clause.manner and clause.inside("manner") else "",
        _german(place) if place and not goal else "",
        *late,
        clause.degree.de if clause.degree else "",
        clause.predicate.de if clause.predicate else "",
        _german(place) if place and goal else "",
    )


def _german_clause(clause: Clause, *, final: bool = False) -> str:
    finite, rest = _german_verbs(clause, final)
    return _join(
        _german_slot(clause, clause.front) if clause.front else "",
        "," if isinstance(clause.opening, Dependent) else "",
        "" if final else finite,
        _german_subject_field(clause),
        _german_midfield(clause),
        rest,
        finite if final else "",
        *[
            _german_relative(getattr(clause, slot))
            for slot in ("dative", "accusative")
            if clause.inside(slot)
        ],
        f", {_german_slot(clause, 'dependent')}" if clause.inside("dependent") else "",
    )
