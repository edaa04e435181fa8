"""The demo corpus: the same on every machine, no leak, one translation per sentence, and correct German."""

from __future__ import annotations

import gzip
import hashlib
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from nmt.data.parallel_text import Split
from nmt.data.reading.bundled_data import BUNDLED, DemoData
from nmt.data.reading.sources import load
from scripts import demo_corpus as demo
from scripts.demo_corpus import Pair, compose, generate, split_words
from scripts.demo_corpus import lexicon as lex
from scripts.demo_corpus.__main__ import write
from scripts.demo_corpus.forms import Case, Tense, Verb
from scripts.demo_corpus.grammar import (
    Clause,
    Dependent,
    Nominal,
    NounPhrase,
    PrepositionalPhrase,
    Sentence,
    relative_pronoun,
)

# A change of the words, the grammar or the drawing changes the corpus, and with it every score on it.
SHA256 = "52b2006eab5324f5016d5a3eddd289cd813a69ad8f642afc0f5e22940799cd80"

NOUNS = {noun.en: noun for noun in lex.NOUNS}
VERBS = {verb.en: verb for verb in lex.VERBS}
ADJECTIVES = {adjective.en: adjective for adjective in lex.ADJECTIVES}
ADVERBS = {adverb.en: adverb for adverbs in lex.TIMES.values() for adverb in adverbs}
MANNERS = {adverb.en: adverb for adverbs in lex.MANNERS.values() for adverb in adverbs}
MY, HIS = lex.POSSESSIVES[0], lex.POSSESSIVES[2]
PAST, FUTURE = Tense.past, Tense.future


def the(noun: str, *adjectives: str, **fields: Any) -> NounPhrase:
    return NounPhrase(NOUNS[noun], adjectives=tuple(ADJECTIVES[word] for word in adjectives), **fields)


def a(noun: str, *adjectives: str) -> NounPhrase:
    return the(noun, *adjectives, determiner=lex.A)


def bare(noun: str, *adjectives: str, **fields: Any) -> NounPhrase:
    return the(noun, *adjectives, determiner=lex.BARE, **fields)


def at(phrase: NounPhrase) -> PrepositionalPhrase:
    """Return the usual location: in the garden, at the station."""
    assert phrase.noun.at is not None
    return PrepositionalPhrase(phrase.noun.at, phrase)


def to(phrase: NounPhrase) -> PrepositionalPhrase:
    """Return the usual destination: into the garden, to the station."""
    assert phrase.noun.to is not None
    return PrepositionalPhrase(phrase.noun.to, phrase)


def clause(verb: str | Verb, subject: Nominal = lex.I, **slots: Any) -> Clause:
    return Clause(VERBS[verb] if isinstance(verb, str) else verb, subject, **slots)


def inner(en: str, de: str, verb: str | Verb, subject: Nominal = lex.I, **slots: Any) -> Dependent:
    """Return a clause behind a conjunction."""
    return Dependent(en, de, clause(verb, subject, front="", **slots))


def related(head: NounPhrase, verb: str, slot: str, subject: Nominal = lex.I, **slots: Any) -> NounPhrase:
    """`head` with a relative clause whose pronoun fills `slot`, with the usual preposition of a place."""
    head.relative = clause(verb, subject, front=slot, **slots)
    pronoun = relative_pronoun(head)
    filler = PrepositionalPhrase(head.noun.at, pronoun) if slot == "place" and head.noun.at else pronoun
    setattr(head.relative, slot, filler)
    return head


def question(verb: str | Verb, subject: Nominal = lex.I, front: str = "", **slots: Any) -> Sentence:
    return Sentence(clause(verb, subject, front=front, **slots), question=True)


def say(verb: str | Verb, subject: Nominal = lex.I, **slots: Any) -> Sentence:
    return Sentence(clause(verb, subject, **slots))


GOLD = {
    "nominative, dative, accusative": (
        say("give", the("man", "old"), dative=a("child", "small"), accusative=a("apple")),
        "The old man gives an apple to a small child.",
        "Der alte Mann gibt einem kleinen Kind einen Apfel.",
    ),
    "mixed adjectives": (
        say("see", the("friend", "good", determiner=MY), accusative=the("house", "old", determiner=HIS)),
        "My good friend sees his old house.",
        "Mein guter Freund sieht sein altes Haus.",
    ),
    "strong adjectives": (
        say("drink", lex.SHE, accusative=bare("water", "cold")),
        "She drinks cold water.",
        "Sie trinkt kaltes Wasser.",
    ),
    "strong adjectives after a number": (
        say("buy", accusative=bare("book", "old", plural=True, count=21)),
        "I buy twenty-one old books.",
        "Ich kaufe einundzwanzig alte Bücher.",
    ),
    "weak adjectives after all and these": (
        say("help", the("child", "happy", plural=True, determiner=lex.ALL),
            dative=the("cow", "ill", plural=True, determiner=lex.THIS)),
        "All happy children help these ill cows.",
        "Alle glücklichen Kinder helfen diesen kranken Kühen.",
    ),
    "many": (
        say("look", lex.WE, accusative=NounPhrase(NOUNS["nut"], lex.BARE, True, adjectives=(lex.MANY,))),
        "We look for many nuts.",
        "Wir suchen viele Nüsse.",
    ),
    "teuer loses its e": (
        say("have", lex.YOU, accusative=a("car", "expensive")),
        "You have an expensive car.",
        "Du hast ein teures Auto.",
    ),
    "weak masculine noun": (
        say("help", the("neighbour"), dative=the("boy")),
        "The neighbour helps the boy.",
        "Der Nachbar hilft dem Jungen.",
    ),
    "dative plural": (
        say("sleep", the("mouse", plural=True), place=at(the("village", plural=True, count=3))),
        "The mice sleep in the three villages.",
        "Die Mäuse schlafen in den drei Dörfern.",
    ),
    "perfect with haben": (
        say("eat", the("bear"), tense=PAST, accusative=the("pear"), time=ADVERBS["yesterday"]),
        "The bear ate the pear yesterday.",
        "Der Bär hat die Birne gestern gegessen.",
    ),
    "perfect with sein": (
        say("go", the("woman"), tense=PAST, place=to(the("forest"))),
        "The woman went into the forest.",
        "Die Frau ist in den Wald gegangen.",
    ),
    "preterite": (
        say(lex.BE, lex.WE, tense=PAST, predicate=ADJECTIVES["tired"], degree=lex.VERY),
        "We were very tired.",
        "Wir waren sehr müde.",
    ),
    "future": (
        say("travel", tense=FUTURE, time=ADVERBS["tomorrow"], manner=MANNERS["by train"],
            place=to(the("city"))),
        "I will travel by train to the city tomorrow.",
        "Ich werde morgen mit dem Zug in die Stadt reisen.",
    ),
    "inversion after an adverb": (
        say("buy", the("queen"), accusative=a("hat"), time=ADVERBS["today"], front="time"),
        "Today the queen buys a hat.",
        "Heute kauft die Königin einen Hut.",
    ),
    "inversion after a place": (
        say("sing", the("girl"), place=at(the("garden")), front="place"),
        "In the garden the girl sings.",
        "Im Garten singt das Mädchen.",
    ),
    "definite object before, indefinite after the adverbials": (
        say("give", lex.HE, tense=PAST, accusative=a("ball"), dative=the("dog"), time=ADVERBS["often"]),
        "He often gave a ball to the dog.",
        "Er hat dem Hund oft einen Ball gegeben.",
    ),
    "location": (
        say(lex.BE, the("key"), place=at(the("table"))),
        "The key is on the table.",
        "Der Schlüssel ist auf dem Tisch.",
    ),
    "goal": (
        say("lay", lex.SHE, accusative=the("key"), place=PrepositionalPhrase(lex.ONTO, the("table"))),
        "She lays the key on the table.",
        "Sie legt den Schlüssel auf den Tisch.",
    ),
    "prepositions with one case": (
        say("drive", lex.HE, manner=PrepositionalPhrase(lex.WITHOUT, lex.YOU),
            place=to(the("station", "old"))),
        "He drives without you to the old station.",
        "Er fährt ohne dich zum alten Bahnhof.",
    ),
    "separable verb in a main clause": (
        say("pick", the("father", determiner=MY), accusative=the("student")),
        "My father picks up the student.",
        "Mein Vater holt den Studenten ab.",
    ),
    "separable verb in a dependent clause": (
        say("sing", dependent=inner("because", "weil", "get", the("child"))),
        "I sing because the child gets up.",
        "Ich singe, weil das Kind aufsteht.",
    ),
    "separable participle": (
        say("get", tense=PAST, time=ADVERBS["on Monday"], manner=MANNERS["slowly"]),
        "I got up slowly on Monday.",
        "Ich bin am Montag langsam aufgestanden.",
    ),
    "separable infinitive after a modal": (
        say("call", the("doctor"), modal=lex.MUST, accusative=lex.HE),
        "The doctor has to call him.",
        "Der Arzt muss ihn anrufen.",
    ),
    "modal in the past, particle behind a pronoun": (
        say("pick", lex.THEY, modal=lex.WANT, tense=PAST, accusative=lex.SHE),
        "They wanted to pick her up.",
        "Sie wollten sie abholen.",
    ),
    "modal in a dependent clause": (
        say("wait", lex.WE, dependent=inner("although", "obwohl", "sleep", lex.WE, modal=lex.CAN)),
        "We wait although we can sleep.",
        "Wir warten, obwohl wir schlafen können.",
    ),
    "perfect in a dependent clause in front": (
        say("dance", lex.HE, tense=PAST, front="dependent",
            dependent=inner("because", "weil", "find", lex.HE, tense=PAST, accusative=the("clock"))),
        "Because he found the clock, he danced.",
        "Weil er die Uhr gefunden hat, hat er getanzt.",
    ),
    "when with the past": (
        say("stay", lex.WE, tense=PAST, place=at(the("house")), front="dependent",
            dependent=inner("when", "als", lex.BE, lex.WE, tense=PAST, predicate=ADJECTIVES["ill"])),
        "When we were ill, we stayed in the house.",
        "Als wir krank waren, sind wir im Haus geblieben.",
    ),
    "when with the present": (
        say("work", dependent=inner("when", "wenn", "rain", lex.IT["n"])),
        "I work when it rains.",
        "Ich arbeite, wenn es regnet.",
    ),
    "that": (
        say(lex.SAY, lex.SHE, tense=PAST,
            dependent=inner("that", "dass", "come", the("man"), tense=FUTURE, time=ADVERBS["soon"])),
        "She said that the man will come back soon.",
        "Sie hat gesagt, dass der Mann bald zurückkommen wird.",
    ),
    "whether": (
        say(lex.KNOW, negated=True,
            dependent=inner("whether", "ob", "arrive", the("queen"), time=ADVERBS["today"])),
        "I do not know whether the queen arrives today.",
        "Ich weiß nicht, ob die Königin heute ankommt.",
    ),
    "embedded question": (
        question(lex.KNOW, lex.YOU,
                 dependent=Dependent("", "", clause("run", the("dog"), place=lex.WHERE_TO, front="place"))),
        "Do you know where the dog runs?",
        "Weißt du, wohin der Hund läuft?",
    ),
    "relative clause, nominative": (
        say("sleep", related(the("man"), "sing", "subject")),
        "The man who sings sleeps.",
        "Der Mann, der singt, schläft.",
    ),
    "relative clause, accusative, behind the verb": (
        say("find", lex.WE, tense=PAST,
            accusative=related(the("hat"), "look", "accusative", lex.HE, tense=PAST)),
        "We found the hat that he looked for.",
        "Wir haben den Hut gefunden, den er gesucht hat.",
    ),
    "relative clause, dative plural": (
        say("see", accusative=related(bare("woman", plural=True, count=2), "help", "dative")),
        "I see two women whom I help.",
        "Ich sehe zwei Frauen, denen ich helfe.",
    ),
    "relative clause with a preposition": (
        say("see", lex.HE, accusative=related(the("room"), "sleep", "place", the("cat"))),
        "He sees the room in which the cat sleeps.",
        "Er sieht das Zimmer, in dem die Katze schläft.",
    ),
    "nicht": (
        say("see", the("cat"), negated=True, accusative=the("dog"), time=ADVERBS["today"],
            place=at(the("park"))),
        "The cat does not see the dog in the park today.",
        "Die Katze sieht den Hund heute nicht im Park.",
    ),
    "kein": (
        say("buy", lex.SHE, tense=FUTURE, negated=True, accusative=bare("apple", "fresh", plural=True)),
        "She will not buy fresh apples.",
        "Sie wird keine frischen Äpfel kaufen.",
    ),
    "kein on the indefinite object only": (
        say("show", negated=True, modal=lex.CAN, accusative=the("picture"), dative=a("friend")),
        "I cannot show the picture to a friend.",
        "Ich kann das Bild keinem Freund zeigen.",
    ),
    "yes/no question": (
        question("buy", lex.YOU, accusative=a("egg")),
        "Do you buy an egg?",
        "Kaufst du ein Ei?",
    ),
    "who": (
        question("help", lex.WHO, "subject", dative=the("teacher")),
        "Who helps the teacher?",
        "Wer hilft dem Lehrer?",
    ),
    "whom, dative": (
        question("give", lex.YOU, "dative", tense=PAST, accusative=the("flower"), dative=lex.WHO),
        "To whom did you give the flower?",
        "Wem hast du die Blume gegeben?",
    ),
    "which": (
        question("visit", the("child"), "accusative", modal=lex.SHOULD,
                 accusative=the("friend", determiner=lex.WHICH)),
        "Which friend should the child visit?",
        "Welchen Freund sollte das Kind besuchen?",
    ),
    "where": (
        question("live", lex.THEY, "place", place=lex.WHERE),
        "Where do they live?",
        "Wo wohnen sie?",
    ),
    "pronoun before the subject": (
        say("see", the("man"), accusative=lex.I, time=ADVERBS["today"], front="time"),
        "Today the man sees me.",
        "Heute sieht mich der Mann.",
    ),
    "pronoun that could be the subject after it": (
        say("see", the("woman"), accusative=lex.THEY, time=ADVERBS["today"], front="time"),
        "Today the woman sees them.",
        "Heute sieht die Frau sie.",
    ),
    "it has the gender of its noun": (
        say("need", lex.HE, accusative=the("lamp"),
            dependent=inner("because", "weil", lex.BE, lex.IT["f"], predicate=ADJECTIVES["new"])),
        "He needs the lamp because it is new.",
        "Er braucht die Lampe, weil sie neu ist.",
    ),
    "but": (
        Sentence(clause("play", the("dog")), contrast=clause("fall", the("cat"))),
        "The dog plays, but the cat falls asleep.",
        "Der Hund spielt, aber die Katze schläft ein.",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("sentence", "english", "german"), GOLD.values(), ids=GOLD)
def test_the_grammar_says_it_as_a_speaker_would(sentence: Sentence, english: str, german: str) -> None:
    assert (sentence.english, sentence.german) == (english, german)


@pytest.mark.parametrize(
    ("verb", "forms"),
    [
        ("wait", "warte wartest wartet warten gewartet"),
        ("eat", "esse isst isst essen gegessen"),
        ("dance", "tanze tanzt tanzt tanzen getanzt"),
        ("wash", "wasche wäschst wäscht waschen gewaschen"),
        ("invite", "lade lädst lädt laden eingeladen"),
        ("run", "laufe läufst läuft laufen gelaufen"),
    ],
)
def test_verbs_are_conjugated(verb: str, forms: str) -> None:
    assert " ".join([*VERBS[verb].de_present, VERBS[verb].participle]) == forms


@pytest.mark.parametrize(
    ("noun", "forms"),
    [
        ("man", "Mann Mann Mann Männer Männer Männern"),
        ("student", "Student Studenten Studenten Studenten Studenten Studenten"),
        ("car", "Auto Auto Auto Autos Autos Autos"),
        ("table", "Tisch Tisch Tisch Tische Tische Tischen"),
        ("teacher", "Lehrer Lehrer Lehrer Lehrer Lehrer Lehrern"),
    ],
)
def test_nouns_are_declined(noun: str, forms: str) -> None:
    assert " ".join(NOUNS[noun].german(case, plural) for plural in (False, True) for case in Case) == forms


@pytest.fixture(scope="module")
def corpus() -> dict[str, list[Pair]]:
    return generate()


def digest(corpus: dict[str, list[Pair]]) -> str:
    lines = (f"{split}\t{en}\t{de}\n" for split, pairs in corpus.items() for en, de in pairs)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


@pytest.mark.slow
def test_the_corpus_never_changes_unnoticed(corpus: dict[str, list[Pair]]) -> None:
    assert digest(corpus) == SHA256
    assert digest(generate()) == SHA256


@pytest.mark.slow
def test_the_package_ships_what_the_generator_draws(corpus: dict[str, list[Pair]]) -> None:
    assert corpus.keys() == {split.value for split in Split}
    for split in Split:
        text = load(DemoData(), split)
        assert list(zip(text.src, text.tgt, strict=True)) == corpus[split.value]
    assert sum(file.stat().st_size for file in BUNDLED.iterdir()) < 1_000_000


@pytest.mark.slow
def test_the_program_writes_the_files_that_the_package_ships(tmp_path: Path) -> None:
    write(tmp_path)
    for file in BUNDLED.glob("demo.*"):
        assert gzip.decompress((tmp_path / file.name).read_bytes()) == gzip.decompress(file.read_bytes())


def test_another_seed_gives_another_corpus() -> None:
    assert list(islice(compose(2), 100)) != list(islice(compose(1), 100))


def test_the_splits_have_their_sizes_and_share_no_sentence(corpus: dict[str, list[Pair]]) -> None:
    assert {split: len(pairs) for split, pairs in corpus.items()} == demo.SIZES
    assert demo.SIZES["train"] >= 20_000
    for side in (0, 1):
        sentences = [pair[side] for pairs in corpus.values() for pair in pairs]
        assert len(set(sentences)) == len(sentences)


def test_an_english_sentence_has_one_german_sentence() -> None:
    german: dict[str, str] = {}
    for seed in (3, 4):
        for en, de in islice(compose(seed), 10_000):
            assert german.setdefault(en, de) == de


def test_every_word_of_the_other_splits_is_frequent_in_training(corpus: dict[str, list[Pair]]) -> None:
    for side in (0, 1):
        seen = Counter(word for pair in corpus["train"] for word in set(split_words(pair[side])))
        unseen = [*corpus["validation"], *corpus["test"]]
        assert min(seen[word] for pair in unseen for word in split_words(pair[side])) >= demo.MIN_COUNT


def test_every_word_of_the_lexicon_is_in_use(corpus: dict[str, list[Pair]]) -> None:
    seen = Counter(word for en, _ in corpus["train"] for word in split_words(en.lower()))
    counts = {noun.en: seen[noun.en] + seen[noun.en_plural] for noun in lex.NOUNS}
    counts |= {verb.en: sum(seen[form] for form in {*verb.en_present, *verb.en_past}) for verb in lex.VERBS}
    counts |= {adjective.en: seen[adjective.en] for adjective in [*lex.ADJECTIVES, lex.MANY]}
    counts |= {determiner.en: seen[determiner.en] for determiner in [lex.THIS, lex.WHICH, *lex.POSSESSIVES]}
    counts |= {adverb.en: seen[adverb.en] for adverb in [lex.ALONE, lex.VERY, lex.WHERE, lex.WHEN, lex.WHY]}
    counts |= {number: seen[number] for number, _ in lex.NUMBERS.values()}
    assert {word: count for word, count in counts.items() if count < 30} == {}


def test_the_sentences_are_of_moderate_length_and_vocabulary(corpus: dict[str, list[Pair]]) -> None:
    for side, most_words in ((0, 500), (1, 760)):
        words = [split_words(pair[side].lower()) for pair in corpus["train"]]
        assert 8 <= sum(map(len, words)) / len(words) <= 10
        assert max(map(len, words)) <= 30
        assert 400 <= len({word for sentence in words for word in sentence}) <= most_words


def test_sentences_are_punctuated(corpus: dict[str, list[Pair]]) -> None:
    for en, de in corpus["train"]:
        for text in (en, de):
            assert text[0].isupper()
            assert text[-1] in ".?"
            assert not {",,", " ,", "  ", ",.", ",?"} & {text[i : i + 2] for i in range(len(text))}
        assert en[-1] == de[-1]
