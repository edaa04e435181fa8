"""The words of the demo corpus.

Lists and look-ups only: the forms of a word are computed in `forms`, which also explains the tags.
Every word has one translation in its place, so that an English sentence determines the German one: "you" is
"du", "know" is "kennen" with an object and "wissen" with a clause, and there is no verb whose past looks like
its present ("read", "put").
"""

from __future__ import annotations

from functools import cache

from scripts.demo_corpus.forms import (
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
    read_adjective,
    read_irregular,
    read_noun,
    read_verb,
)

_NOUNS = """
man men; Mann Männer m; PU
woman women; Frau Frauen f; PU
child children; Kind Kinder n; P
boy; Junge Jungen m n; PU
girl; Mädchen Mädchen n; PU
teacher; Lehrer Lehrer m; P
doctor; Arzt Ärzte m; P
friend; Freund Freunde m; P
neighbour; Nachbar Nachbarn m n; P
student; Student Studenten m en; P
farmer; Bauer Bauern m n; PU
queen; Königin Königinnen f; PU
mother; Mutter - f; PK
father; Vater - m; PK
brother; Bruder Brüder m; PK
sister; Schwester Schwestern f; PK
daughter; Tochter Töchter f; PK
dog; Hund Hunde m; A
cat; Katze Katzen f; A
horse; Pferd Pferde n; A
bird; Vogel Vögel m; AU
cow; Kuh Kühe f; A
mouse mice; Maus Mäuse f; AU
bear; Bär Bären m en; AU
apple; Apfel Äpfel m; F
cake; Kuchen Kuchen m; F
egg; Ei Eier n; F
potato; Kartoffel Kartoffeln f; F
pear; Birne Birnen f; F
nut; Nuss Nüsse f; F
bread; Brot - n; M
cheese; Käse - m; M
soup; Suppe - f; MX
water; Wasser - n; DX
milk; Milch - f; DX
coffee; Kaffee - m; DX
tea; Tee - m; DX
book; Buch Bücher n; TCI
letter; Brief Briefe m; TCI
story; Geschichte Geschichten f; T
poem; Gedicht Gedichte n; T
picture; Bild Bilder n; OI
ball; Ball Bälle m; OI
chair; Stuhl Stühle m; OVS; on auf
lamp; Lampe Lampen f; OVI
car; Auto Autos n; OVW
bicycle; Fahrrad Fahrräder n; OVW
clock; Uhr Uhren f; OVI
key; Schlüssel Schlüssel m; OI
coat; Mantel Mäntel m; OWI
hat; Hut Hüte m; OI
bag; Tasche Taschen f; OCI
knife knives; Messer Messer n; OWI
bottle; Flasche Flaschen f; OWCI
flower; Blume Blumen f; OI
shirt; Hemd Hemden n; OWI
window; Fenster Fenster n; CW
door; Tür Türen f; CW
table; Tisch Tische m; S; on auf
bed; Bett Betten n; S; on auf
tree; Baum Bäume m; BU
garden; Garten Gärten m; LGN; in in; into in
city; Stadt Städte f; LHENJ; in in; to in
house; Haus Häuser n; LHGB; in in; into in
kitchen; Küche Küchen f; LG; in in; into in
room; Zimmer Zimmer n; LG; in in; into in
park; Park Parks m; LN; in in; to in
forest; Wald Wälder m; LNU; in in; into in
village; Dorf Dörfer n; LHENJ; in in; to in
school; Schule Schulen f; LB; at in; to in
library; Bibliothek Bibliotheken f; LB; in in; to in
church; Kirche Kirchen f; LB; in in; into in
hotel; Hotel Hotels n; LHEB; in in; to in
market; Markt Märkte m; LNU; at auf; to auf
station; Bahnhof Bahnhöfe m; LEBU; at an; to zu
beach; Strand Strände m; LENUJ; on an; to an
lake; See Seen m; LENUJ; at an; to an
"""
NOUNS = [read_noun(line) for line in _NOUNS.strip().splitlines()]

_ADJECTIVES = """
old alt PATOLSBC
young jung PA
small klein PAFOLSBC
big groß PAFOLSBC
beautiful schön AOLTB
good gut PTFMD
friendly freundlich PAQ
tired müde/müd PAQ
happy glücklich PQ
ill krank PAQ
clever klug PA
hungry hungrig PAQ
red rot O
white weiß AO
new neu TOSCH
expensive teuer/teur OTFM
fresh frisch FM
hot heiß X
cold kalt X
interesting interessant T
long lang T
quiet ruhig L
"""
ADJECTIVES = [read_adjective(line) for line in _ADJECTIVES.strip().splitlines()]
MANY = Adjective("many", "viel", "viel", "")
"""Declined like an adjective before any other: viele alte Bücher."""

THE = Determiner("the", "the", "")
BARE = Determiner("", "", "", definite=False)
A = Determiner("a", "", "ein", definite=False, mixed=True)
NO = Determiner("", "", "kein", definite=False, mixed=True)
THIS = Determiner("this", "these", "dies")
ALL = Determiner("", "all", "all")
WHICH = Determiner("which", "which", "welch")
HOW_MANY = Determiner("", "how many", "wie viel", definite=False)
_POSSESSIVES = {"my": "mein", "your": "dein", "his": "sein", "her": "ihr", "our": "unser", "their": "ihr"}
POSSESSIVES = [Determiner(en, en, de, mixed=True) for en, de in _POSSESSIVES.items()]

I = Pronoun(("I", "me", "me"), ("ich", "mich", "mir"), Agreement.i)  # noqa: E741
YOU = Pronoun(("you", "you", "you"), ("du", "dich", "dir"), Agreement.you)
HE = Pronoun(("he", "him", "him"), ("er", "ihn", "ihm"))
SHE = Pronoun(("she", "her", "her"), ("sie", "sie", "ihr"))
WE = Pronoun(("we", "us", "us"), ("wir", "uns", "uns"), Agreement.plural)
THEY = Pronoun(("they", "them", "them"), ("sie", "sie", "ihnen"), Agreement.plural)
PERSONAL = [I, I, YOU, YOU, HE, SHE, WE, THEY]
"""The first two have verb forms of their own and come more often."""
IT = {
    "m": Pronoun(("it", "it", "it"), HE.de),
    "f": Pronoun(("it", "it", "it"), SHE.de),
    "n": Pronoun(("it", "it", "it"), ("es", "es", "ihm")),
    "p": THEY,
}
"""The pronoun for a thing, by the gender slot of the noun it stands for."""
WHO = Pronoun(("who", "whom", "whom"), ("wer", "wen", "wem"))
WHAT = Pronoun(("what", "what", "what"), ("was", "was", "was"))

BE = read_irregular(
    "be am are is are was were was were",
    "sein bin bist ist sind war warst war waren",
    auxiliary=True,
    subjects="PAFMDTOL",
    place="a",
)
HAVE = read_irregular(
    "have has had",
    "haben habe hast hat haben hatte hattest hatte hatten",
    subjects="P",
    accusative="AOT",
    lasting=True,
)
KNOW = read_irregular(
    "know knows knew", "wissen weiß weißt weiß wissen wusste wusstest wusste wussten", subjects="P"
)
SAY = read_verb("say said", "sagen sagt gesagt")
BELIEVE = read_verb("believe", "glauben glaubt geglaubt")
HOPE = read_verb("hope", "hoffen hofft gehofft")
WERDEN = ("werde", "wirst", "wird", "werden")

CAN = read_irregular(
    "can can can can can could could could could",
    "können kann kannst kann können konnte konntest konnte konnten",
    auxiliary=True,
)
SHOULD = read_irregular(
    "should should should should should should should should should",
    "sollen sollte solltest sollte sollten sollte solltest sollte sollten",
    auxiliary=True,
)
WANT = read_irregular("want wants wanted", "wollen will willst will wollen wollte wolltest wollte wollten")
MUST = read_irregular("have has had", "müssen muss musst muss müssen musste musstest musste mussten")
MODALS = {Tense.present: [CAN, SHOULD, WANT, MUST], Tense.past: [CAN, WANT, MUST]}

VERBS = [
    read_verb("sleep slept", "schlafen schläft geschlafen", "PA", place="a", manner="q"),
    read_verb("play", "spielen spielt gespielt", "PA", place="a", manner="qlc"),
    read_verb("work", "arbeiten arbeitet gearbeitet", place="a", manner="sqc"),
    read_verb("sing sang", "singen singt gesungen", place="a", manner="qlcf"),
    read_verb("dance", "tanzen tanzt getanzt", place="a", manner="sc"),
    read_verb("wait", "warten wartet gewartet", "PA", place="a", manner="qc"),
    read_verb("live", "wohnen wohnt gewohnt", place="l", places="H", manner="c", lasting=True),
    read_verb("stay", "bleiben bleibt geblieben s", "PA", place="l", manner="c"),
    read_verb("rain", "regnen regnet geregnet", "", place="a", places="N"),
    read_verb("snow", "schneien schneit geschneit", "", place="a", places="N"),
    read_verb("get got +up", "auf|stehen steht gestanden s", manner="s"),
    read_verb("fall fell +asleep", "ein|schlafen schläft geschlafen s", "PA", place="a", manner="s"),
    read_verb("arrive", "an|kommen kommt gekommen s", place="a", places="E", manner="c"),
    read_verb("come came +back", "zurück|kommen kommt gekommen s", "PA", manner="sc"),
    read_verb("go went", "gehen geht gegangen s", "PA", place="g", manner="sc"),
    read_verb("run ran", "laufen läuft gelaufen s", "PA", place="g", manner="s"),
    read_verb("drive drove", "fahren fährt gefahren s", place="g", places="E", manner="sc"),
    read_verb("travel travelled", "reisen reist gereist s", place="g", places="J", manner="ct"),
    read_verb("eat ate", "essen isst gegessen", "PA", accusative="FM", place="a", manner="sc"),
    read_verb("drink drank", "trinken trinkt getrunken", accusative="D", place="a", manner="sc"),
    read_verb("buy bought", "kaufen kauft gekauft", accusative="FMDTO", place="a", manner="f"),
    read_verb("see saw", "sehen sieht gesehen", "PA", accusative="PAOL", place="a"),
    read_verb("find found", "finden findet gefunden", accusative="AOT", place="a", manner="s"),
    read_verb("write wrote", "schreiben schreibt geschrieben", accusative="T", place="a", manner="sf"),
    read_verb("love", "lieben liebt geliebt", accusative="PA", lasting=True),
    read_verb("visit", "besuchen besucht besucht", accusative="P", place="a", manner="c"),
    read_verb("need", "brauchen braucht gebraucht", accusative="FMOT", lasting=True),
    read_verb("look =for", "suchen sucht gesucht", accusative="PAOT", place="a", manner="c"),
    read_verb("wash", "waschen wäscht gewaschen", accusative="WA", place="a", manner="sf"),
    read_verb("repair", "reparieren repariert repariert", accusative="V", place="a", manner="sf"),
    read_verb("forget forgot", "vergessen vergisst vergessen", accusative="OT"),
    read_verb("know knew", "kennen kennt gekannt", accusative="PT", lasting=True),
    read_verb("open", "auf|machen macht gemacht", accusative="C", manner="sqf"),
    read_verb("close", "zu|machen macht gemacht", accusative="C", manner="sq"),
    read_verb("call", "an|rufen ruft gerufen", accusative="P", place="a"),
    read_verb("invite", "ein|laden lädt geladen", accusative="P"),
    read_verb("pick +up", "ab|holen holt geholt", accusative="P", place="a", places="E"),
    read_verb("throw threw +away", "weg|werfen wirft geworfen", accusative="IFM", manner="s"),
    read_verb("help", "helfen hilft geholfen", dative="PA", place="a"),
    read_verb("follow", "folgen folgt gefolgt s", "PA", dative="PA", manner="sq"),
    read_verb("listen =to", "zu|hören hört gehört", dative="P", place="a", manner="q"),
    read_verb("belong =to", "gehören gehört gehört", "OT", dative="P", lasting=True),
    read_verb("give gave", "geben gibt gegeben", accusative="FMDOT", dative="P", place="a"),
    read_verb("show", "zeigen zeigt gezeigt", accusative="AOTL", dative="P"),
    read_verb("send sent", "schicken schickt geschickt", accusative="IT", dative="P"),
    read_verb("explain", "erklären erklärt erklärt", accusative="T", dative="P", place="a"),
    read_verb("carry", "tragen trägt getragen", accusative="I", place="g", places="G", manner="sqf"),
    read_verb("lay laid", "legen legt gelegt", accusative="I", place="o", places="S", manner="sq"),
    HAVE,
]
WEATHER = [verb for verb in VERBS if not verb.subjects]
EVENTS = [verb for verb in VERBS if verb.event]

WITH = Preposition("with", "mit")
WITHOUT = Preposition("without", "ohne", Case.accusative)
FOR = Preposition("for", "für", Case.accusative)
LANDMARK = [
    Preposition("behind", "hinter"),
    Preposition("next to", "neben"),
    Preposition("in front of", "vor"),
]
UNDER = Preposition("under", "unter")
ONTO = Preposition("on", "auf", Case.accusative, goal=True)
TO_PERSON = Preposition("to", "zu", goal=True)
CONTRACTIONS = {
    "in dem": "im",
    "in das": "ins",
    "an dem": "am",
    "an das": "ans",
    "zu dem": "zum",
    "zu der": "zur",
}

MANNERS = {
    "s": [Adverb("quickly", "schnell"), Adverb("slowly", "langsam")],
    "q": [Adverb("quietly", "leise")],
    "l": [Adverb("loudly", "laut")],
    "t": [Adverb("by train", "mit dem Zug"), Adverb("by bus", "mit dem Bus")],
}
ALONE = Adverb("alone", "allein")
VERY = Adverb("very", "sehr")
WHERE, WHERE_TO = Adverb("where", "wo"), Adverb("where", "wohin")
WHEN, WHY = Adverb("when", "wann"), Adverb("why", "warum")

_FREQUENCY = [
    Adverb("often", "oft", medial=True, deniable=False),
    Adverb("sometimes", "manchmal", medial=True, deniable=False),
    Adverb("always", "immer", medial=True, deniable=False),
    Adverb("never", "nie", medial=True, deniable=False),
]
_ANY = [
    Adverb("in the evening", "am Abend"),
    Adverb("in the morning", "am Morgen"),
    Adverb("on Monday", "am Montag"),
]
_NOW = [Adverb("today", "heute"), Adverb("now", "jetzt")]
_EARLIER = [Adverb("yesterday", "gestern"), Adverb("last week", "letzte Woche")]
_LATER = [Adverb("tomorrow", "morgen"), Adverb("soon", "bald"), Adverb("next week", "nächste Woche")]
TIMES = {
    Tense.present: [*_FREQUENCY, *_NOW, *_ANY, Adverb("every day", "jeden Tag", deniable=False)],
    Tense.past: [*_FREQUENCY, *_EARLIER, *_EARLIER, *_ANY],
    Tense.future: [*_LATER, *_LATER, *_ANY],
}
TIMES_OF_MODALS = {Tense.present: [*_NOW, *_LATER, *_ANY], Tense.past: TIMES[Tense.past]}
SPANS = [("days", "Tagen"), ("weeks", "Wochen"), ("years", "Jahren")]

_UNITS = """ two zwei, three drei, four vier, five fünf, six sechs, seven sieben, eight acht, nine neun, ten
zehn, eleven elf, twelve zwölf
"""
NUMBERS = {n: (en, de) for n, (en, de) in enumerate((pair.split() for pair in _UNITS.split(",")), start=2)}
NUMBERS |= {20: ("twenty", "zwanzig"), 21: ("twenty-one", "einundzwanzig")}
NUMBERS |= {20 + n: (f"twenty-{NUMBERS[n][0]}", f"{NUMBERS[n][1]}undzwanzig") for n in range(2, 6)}


@cache
def nouns(tags: str, but: str = "") -> list[Noun]:
    """Return the nouns with one of `tags` and none of `but`."""
    return [noun for noun in NOUNS if set(noun.tags) & set(tags) and not set(noun.tags) & set(but)]


@cache
def adjectives(tags: str, noun: str = "") -> list[Adjective]:
    """Return the adjectives for these tags, but none that echoes the German noun ("ein junger Junge")."""
    fits = [adjective for adjective in ADJECTIVES if set(adjective.tags) & set(tags)]
    return [adjective for adjective in fits if adjective.stem[:6] not in noun.lower()]


@cache
def verbs(slot: str, tags: str) -> list[Verb]:
    """Return the verbs whose `slot` (subjects, accusative, dative, place or manner) has one of `tags`."""
    return [verb for verb in VERBS if set(getattr(verb, slot)) & set(tags)]


@cache
def plain_transitives(tags: str) -> list[Verb]:
    """Return the verbs that need an object with one of `tags` and nothing else."""
    return [verb for verb in verbs("accusative", tags) if not (verb.dative or verb.has_goal)]
