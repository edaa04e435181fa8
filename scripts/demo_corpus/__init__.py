"""The generator of the demo corpus: English-German pairs sampled from a grammar, the same on every machine.

    forms               The kinds of words, and how each inflects in both languages.
    lexicon             The words themselves.
    grammar             Sentences: one abstract form each, said in English and in German.
    phrases             Phrases that make sense together, sampled at random.
    __init__            The content of sentences, sampled from a seed.
    __main__            The program that writes the corpus into the package.

This module chooses the content of a sentence: verb, tense, question, dependent clauses. `phrases` chooses the
phrases, and `grammar` says the sentence in either language. The result depends on the seed alone: every
choice is made by one `random.Random`, and nothing iterates over a set.

No English and no German sentence occurs twice in the corpus. The validation and test splits are new
combinations of words, each of which the training split shows in at least `MIN_COUNT` pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

from scripts.demo_corpus import lexicon as lex
from scripts.demo_corpus.forms import Tense, Verb
from scripts.demo_corpus.grammar import (
    Clause,
    Dependent,
    NounPhrase,
    PrepositionalPhrase,
    Sentence,
    relative_pronoun,
)
from scripts.demo_corpus.phrases import Draw

SIZES = {"train": 24_000, "validation": 500, "test": 500}
MIN_COUNT = 20

Pair = tuple[str, str]

_REASONS = (("because", "weil"), ("although", "obwohl"))


def generate(seed: int = 1) -> dict[str, list[Pair]]:
    """Return the (English, German) pairs of the splits "train", "validation" and "test"."""
    pairs: dict[str, str] = {}
    germans: set[str] = set()
    stream = compose(seed)
    while len(pairs) < sum(SIZES.values()):
        english, german = next(stream)
        if english not in pairs and german not in germans:
            pairs[english] = german
            germans.add(german)
    return _split(list(pairs.items()), Random(seed))


def compose(seed: int) -> Iterator[Pair]:
    """Yield (English, German) pairs without end, some of them repeatedly."""
    speaker = _Speaker(Random(seed))
    while True:
        sentence = speaker.sentence()
        yield sentence.english, sentence.german


def split_words(sentence: str) -> list[str]:
    """Return the words of a sentence without its punctuation."""
    return sentence[:-1].replace(",", "").split()


def _split(pairs: list[Pair], rng: Random) -> dict[str, list[Pair]]:
    """Hold out pairs whose words all remain frequent in the training split."""
    rng.shuffle(pairs)
    words = [_distinct_words(*pair) for pair in pairs]
    counts = Counter(word for pair in words for word in pair)
    held_out: list[Pair] = []
    train: list[Pair] = []
    for pair, its_words in zip(pairs, words, strict=True):
        enough = len(held_out) == SIZES["validation"] + SIZES["test"]
        if enough or any(counts[word] <= MIN_COUNT for word in its_words):
            train.append(pair)
        else:
            held_out.append(pair)
            counts.subtract(its_words)
    validation, test = held_out[: SIZES["validation"]], held_out[SIZES["validation"] :]
    return {"train": train, "validation": validation, "test": test}


def _distinct_words(english: str, german: str) -> list[str]:
    """Return the words of a pair, each marked with its language, in the order of their first use."""
    sides = (("en", english), ("de", german))
    return list(dict.fromkeys(f"{side} {word}" for side, sentence in sides for word in split_words(sentence)))


class _Speaker:
    """A speaker, who says one sentence after the other; `draw` holds the random generator."""

    def __init__(self, rng: Random):
        self.draw = Draw(rng)

    # Sentences

    def sentence(self) -> Sentence:
        """Draw a sentence of any kind."""
        self.draw.said.clear()
        say = self.draw.weighted(
            (self.statement, 40),
            (self.contrast, 5),
            (self.yes_no_question, 9),
            (self.word_question, 13),
            (self.subject_relative, 6),
            (self.object_relative, 6),
            (self.reason, 7),
            (self.occasion, 6),
            (self.backward_reference, 6),
            (self.report, 5),
            (self.indirect_question, 4),
        )
        return say()

    def statement(self) -> Sentence:
        """Draw one main clause, often opened by an adverbial; then the German verb precedes the subject."""
        clause = self.clause()
        fronts = []
        if clause.time and clause.time.en not in ("often", "always", "never"):
            fronts.append("time")
        if clause.place and clause.verb.place == "a" and clause.verb is not lex.BE:
            fronts.append("place")
        if fronts and self.draw.chance(0.5):
            clause.front = self.draw.one_of(fronts)
        return Sentence(clause)

    def contrast(self) -> Sentence:
        """Draw two short main clauses in one tense."""
        first = self.clause(extras=0)
        return Sentence(first, contrast=self.clause(tense=first.tense, extras=1))

    def yes_no_question(self) -> Sentence:
        """Draw a question that begins with the finite verb."""
        return Sentence(self.clause(front="", deny=False), question=True)

    def word_question(self) -> Sentence:
        """Draw a question that begins with a question word."""
        return Sentence(self.asking(), question=True)

    def subject_relative(self) -> Sentence:
        """Draw a main clause with a relative clause in the middle."""
        subject = self.draw.noun_phrase("PAOT", plain=True, head=True)
        subject.relative = self.relative(subject)
        return Sentence(self.clause(subject=subject, extras=1))

    def object_relative(self) -> Sentence:
        """Draw a main clause with a relative clause at the end."""
        verb = self.draw.fresh(lex.plain_transitives("PAOTL"))
        head = self.draw.noun_phrase(verb.accusative, head=True)
        head.relative = self.relative(head)
        return Sentence(self.clause(verb, accusative=head, extras=0))

    def reason(self) -> Sentence:
        """Draw a main clause with a clause of reason or concession."""
        main = self.clause(subject=self.draw.person(), extras=1)
        verb = None
        if self.draw.chance(0.15):
            verb = self.draw.fresh(lex.WEATHER)
        elif main.verb is not lex.BE and self.draw.chance(0.4):
            verb = lex.BE
        subject = None if verb in lex.WEATHER else self.draw.again(main.subject)
        clause = self.clause(verb, subject=subject, tense=_same_time(main), extras=1, front="")
        return self.compound(main, *self.draw.one_of(_REASONS), clause)

    def occasion(self) -> Sentence:
        """Draw a main clause with a clause of time or condition."""
        en, de, tense = self.draw.weighted(
            (("if", "wenn", Tense.future), 2),
            (("when", "wenn", Tense.present), 2),
            (("when", "als", Tense.past), 2),
            (("while", "während", None), 1),
            (("before", "bevor", None), 1),
        )
        verb = None if tense else self.draw.fresh(lex.EVENTS)
        main = self.clause(verb, subject=self.draw.person(), tense=tense, extras=1)
        # What happened once is told in the perfect, which does not go with "als"; a state has the preterite.
        if de == "als":
            verb = lex.BE
        else:
            verb = self.draw.fresh(lex.WEATHER if self.draw.chance(0.15) else lex.EVENTS)
        subject = self.draw.again(main.subject) if verb.subjects else None
        extras = 0 if de == "als" else 1
        given: dict[str, Any] = {"subject": subject, "modal": None, "front": ""}
        clause = self.clause(verb, tense=_same_time(main), extras=extras, deny=False, **given)
        return self.compound(main, en, de, clause)

    def compound(self, main: Clause, en: str, de: str, clause: Clause) -> Sentence:
        """Put an adverbial clause behind or before the main clause."""
        main.dependent = Dependent(en, de, clause)
        if self.draw.chance(0.35):
            main.front = "dependent"
        return Sentence(main)

    def backward_reference(self) -> Sentence:
        """Draw a clause about the object of the main clause; "it" has the gender of the German noun."""
        verb = self.draw.fresh(lex.plain_transitives("FMDTOI"))
        thing = self.draw.noun_phrase("".join(tag for tag in verb.accusative if tag in "FMDTOI"))
        main = self.clause(verb, subject=self.draw.person(), accusative=thing, extras=0)
        pronoun, tense = lex.IT[thing.slot], _same_time(main)
        if self.draw.chance(0.5):
            quality = self.draw.one_of(lex.adjectives(thing.noun.tags))
            clause = self.clause(lex.BE, subject=pronoun, predicate=quality, tense=tense, extras=0, front="")
        else:
            verb = self.draw.fresh(lex.plain_transitives(thing.noun.tags))
            subject = self.draw.again(main.subject)
            clause = self.clause(verb, subject=subject, accusative=pronoun, tense=tense, extras=0, front="")
        main.dependent = Dependent(*self.draw.one_of(_REASONS), clause)
        return Sentence(main)

    def report(self) -> Sentence:
        """Draw a main clause with a clause that somebody says or thinks."""
        verb = self.draw.one_of((lex.SAY, lex.BELIEVE, lex.HOPE, lex.KNOW))
        if verb is lex.HOPE:
            tense, told = Tense.present, Tense.future
        else:
            tense = self.draw.one_of((Tense.present, Tense.past))
            told = self.draw.one_of(list(Tense)) if tense is Tense.present else Tense.past
        deny = verb in (lex.BELIEVE, lex.KNOW)
        main = self.clause(verb, subject=self.draw.person(), tense=tense, modal=None, extras=0, deny=deny)
        clause = self.clause(subject=self.draw.again(main.subject), tense=told, extras=1, front="")
        main.dependent = Dependent("that", "dass", clause)
        return Sentence(main)

    def indirect_question(self) -> Sentence:
        """Draw a main clause with a question that somebody cannot answer, or is asked to answer."""
        main = self.clause(lex.KNOW, subject=self.draw.person(), tense=Tense.present, extras=0, deny=False)
        question = self.draw.chance(0.4)
        if question:
            main.front = ""
        main.negated = not question
        if self.draw.chance(0.4):
            main.dependent = Dependent("whether", "ob", self.clause(extras=1, deny=False, front=""))
        else:
            main.dependent = Dependent("", "", self.asking())
        return Sentence(main, question=question)

    # Clauses

    def clause(
        self,
        verb: Verb | None = None,
        *,
        tense: Tense | None = None,
        tags: str = "P",
        extras: int = 2,
        deny: bool = True,
        **given: Any,
    ) -> Clause:
        """Draw a clause.

        `given` fixes slots; `tags` say what a given pronoun stands for; `extras` limits the adverbials;
        `deny` allows a negation.
        """
        subject = given.pop("subject", None)
        if isinstance(subject, NounPhrase):
            tags = subject.noun.tags
        verb = verb or self.verb(tags if subject else "", tense)
        if not subject and verb.subjects:
            subject = self.draw.nominal(verb.subjects, plain=self.draw.chance(0.5))
            tags = subject.noun.tags if isinstance(subject, NounPhrase) else "P"
        tense = tense or self.draw.weighted(
            (Tense.present, 5), (Tense.past, 3), (Tense.future, 0 if verb.lasting else 2)
        )
        clause = Clause(verb, subject or lex.IT["n"], tense, **given)
        able = "P" in tags and verb.event and tense is not Tense.future
        if able and "modal" not in given and self.draw.chance(0.2):
            clause.modal = self.draw.one_of(lex.MODALS[tense])
        self.complete(clause, tags)
        self.situate(clause, extras, tags)
        clause.negated = deny and self.draw.chance(0.15) and _deniable(clause)
        return clause

    def verb(self, tags: str, tense: Tense | None) -> Verb:
        """Draw a verb for a subject with these tags, or for any subject."""
        verbs = lex.verbs("subjects", tags) if tags else lex.VERBS
        if tense is Tense.future:
            verbs = [verb for verb in verbs if not verb.lasting]
        if not verbs or self.draw.chance(0.08 if len(verbs) > 5 else 0.6):
            return lex.BE
        return self.draw.fresh(verbs)

    def complete(self, clause: Clause, tags: str) -> None:
        """Fill the slots that the verb needs."""
        verb = clause.verb
        if verb.accusative and not clause.accusative:
            clause.accusative = self.draw.nominal(verb.accusative, clause.subject)
        if verb.dative and not clause.dative:
            clause.dative = self.draw.nominal(verb.dative, clause.subject, plain=bool(verb.accusative))
        mobile = bool(set(tags) & set("PAIFMD"))
        if verb is lex.BE and not clause.predicate and (self.draw.chance(0.7) or not mobile):
            clause.predicate = self.draw.one_of(lex.adjectives(tags))
            clause.degree = lex.VERY if self.draw.chance(0.3) else None
        needs_place = verb.place in ("l", "g", "o") or (verb is lex.BE and not clause.predicate)
        if needs_place and not clause.place:
            clause.place = self.draw.place(clause, tags)

    def situate(self, clause: Clause, extras: int, tags: str) -> None:
        """Add up to `extras` adverbials that suit the verb."""
        verb, predicate = clause.verb, clause.predicate
        slots = []
        if not (clause.time or verb.lasting or (predicate and "Q" not in predicate.tags)):
            slots.append("time")
        if verb.manner and not clause.manner:
            slots.append("manner")
        if verb.place == "a" and not clause.place and verb is not lex.BE:
            slots.append("place")
        for slot in self.draw.rng.sample(slots, min(extras, len(slots))):
            if slot == "time" and self.draw.chance(0.6):
                clause.time = self.draw.time(clause)
            elif slot == "manner" and self.draw.chance(0.5):
                clause.manner = self.draw.manner(clause)
            elif slot == "place" and self.draw.chance(0.6):
                clause.place = self.draw.place(clause, tags)

    def asking(self) -> Clause:
        """Draw a clause with a question word in front."""
        slots = (("subject", 3), ("accusative", 5), ("dative", 1), ("place", 2), ("manner", 1), ("time", 3))
        slot = self.draw.weighted(*slots)
        if slot == "subject":
            return self.clause(subject=self.draw.asked("P"), extras=1, deny=False)
        if slot == "time" and self.draw.chance(0.6):
            return self.clause(time=lex.WHY, front=slot, extras=1)
        given: dict[str, Any] = {"front": slot, "extras": 1, "deny": False}
        if slot == "time":
            return self.clause(self.draw.fresh(lex.EVENTS), time=lex.WHEN, **given)
        if slot == "accusative":
            verb = self.draw.fresh(lex.verbs("accusative", "PAFMDTOI"))
            return self.clause(verb, accusative=self.draw.asked(verb.accusative), **given)
        if slot == "dative":
            return self.clause(self.draw.fresh(lex.verbs("dative", "P")), dative=lex.WHO, **given)
        if slot == "place":
            verb = self.draw.fresh(lex.verbs("place", "algo"))
            return self.clause(verb, place=lex.WHERE_TO if verb.has_goal else lex.WHERE, **given)
        verb = self.draw.fresh(lex.verbs("manner", "cf"))
        with_whom = PrepositionalPhrase(lex.WITH if "c" in verb.manner else lex.FOR, lex.WHO)
        return self.clause(verb, manner=with_whom, **given)

    def relative(self, head: NounPhrase) -> Clause:
        """Draw a relative clause about `head`."""
        pronoun, tags = relative_pronoun(head), head.noun.tags
        slots = [("subject", 3)]
        slots += [(slot, 2) for slot in ("accusative", "dative") if lex.verbs(slot, tags)]
        slots += [("place", 4)] if "L" in tags else [("manner", 1)] if "P" in tags else []
        slot = self.draw.weighted(*slots)
        if slot == "subject":
            return self.clause(subject=pronoun, tags=tags, extras=1)
        if slot == "manner":
            company = PrepositionalPhrase(self.draw.one_of((lex.WITH, lex.WITHOUT)), pronoun)
            verb = self.draw.fresh(lex.verbs("manner", "c"))
            return self.clause(verb, manner=company, front=slot, extras=0)
        if slot == "place" and head.noun.at:
            verbs = [verb for verb in lex.verbs("place", "al") if set(verb.places) & set(tags)]
            there = PrepositionalPhrase(head.noun.at, pronoun)
            return self.clause(self.draw.fresh(verbs), place=there, front=slot, extras=0)
        given: dict[str, Any] = {slot: pronoun}
        return self.clause(self.draw.fresh(lex.verbs(slot, tags)), front=slot, extras=1, **given)


def _same_time(clause: Clause) -> Tense:
    """Return the tense of an adverbial clause: past with a past, otherwise present."""
    return Tense.past if clause.tense is Tense.past else Tense.present


def _deniable(clause: Clause) -> bool:
    """Tell whether "not" has one clear reading and one place in either language."""
    for phrase in (clause.subject, clause.accusative, clause.dative):
        if isinstance(phrase, NounPhrase) and (phrase.count or phrase.determiner is lex.ALL):
            return False
        if isinstance(phrase, NounPhrase) and lex.MANY in phrase.adjectives:
            return False
    if isinstance(clause.subject, NounPhrase) and not clause.subject.determiner.definite:
        return False
    if clause.manner and (clause.accusative or clause.dative):
        return False
    return not clause.time or clause.time.deniable
