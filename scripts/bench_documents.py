"""What context is worth: trainings without it, with that of sources (2+1), and with that of both sides (2+2).

    python scripts/bench_documents.py pronouns FOLDER     documents whose pronouns need the sentence before
    python scripts/bench_documents.py captions FOLDER PREFIX     PREFIX.train.en and so on, as documents of 4

The pronouns are those of a rule: a document names a thing, and then speaks of it. English says "it",
German er, sie or es by the gender of the noun, so that a model of single sentences can only guess. What is
printed is the share of right pronouns, and BLEU. Captions do not need each other: context must cost nothing.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import nmt
from nmt.data.parallel_text import Split
from nmt.files import write_lines


class Noun(NamedTuple):
    """A noun of both languages, with its German article and pronouns (nominative and accusative)."""

    en: str
    de: str
    article: str
    he: str
    him: str


MASCULINE, FEMININE, NEUTER = ("Der", "Er", "ihn"), ("Die", "Sie", "sie"), ("Das", "Es", "es")
NOUNS = [
    Noun(en, de, *gender)
    for gender, words in (
        (
            MASCULINE,
            "table Tisch,chair Stuhl,spoon Löffel,key Schlüssel,ball Ball,hat Hut,tree Baum,coat Mantel",
        ),
        (
            FEMININE,
            "lamp Lampe,door Tür,bag Tasche,clock Uhr,bottle Flasche,cup Tasse,map Karte,flower Blume",
        ),
        (NEUTER, "book Buch,house Haus,car Auto,bed Bett,knife Messer,boat Boot,window Fenster,picture Bild"),
    )
    for en, de in (word.split() for word in words.split(","))
]
ADJECTIVES = [
    ("new", "neu"),
    ("old", "alt"),
    ("big", "groß"),
    ("small", "klein"),
    ("red", "rot"),
    ("green", "grün"),
    ("cheap", "billig"),
    ("heavy", "schwer"),
    ("clean", "sauber"),
    ("beautiful", "schön"),
]
PEOPLE = ["Anna", "Peter", "Maria", "Paul", "Eva", "Max"]
VERBS = [("sees", "sieht"), ("buys", "kauft"), ("wants", "will"), ("has", "hat"), ("sells", "verkauft")]
VARIANTS = {"none": (), "2+1": ("data.context=2",), "2+2": ("data.context=2", "data.context_target=true")}
TINY = (
    "model=transformer_tiny",
    "model.dropout=0.0",
    "model.d_model=64",
    "model.d_ff=128",
    "model.encoder_layers=2",
    "model.decoder_layers=1",
    "tokenizer=word",
    "schedule.warmup_steps=100",
    "trainer.batch_tokens=1024",
    "trainer.patience=0",
)


def documents(count: int, seed: int) -> Iterator[list[tuple[str, str]]]:
    """Yield documents of three pairs, of which all but the first need one before them."""
    draw = random.Random(seed)
    for _ in range(count):
        noun = draw.choice(NOUNS)
        (a, x), (b, y) = draw.sample(ADJECTIVES, 2)
        who, (sees, sieht) = draw.choice(PEOPLE), draw.choice(VERBS)
        yield [
            (f"The {noun.en} is {a}.", f"{noun.article} {noun.de} ist {x}."),
            (f"It is {b}.", f"{noun.he} ist {y}."),
            (f"{who} {sees} it.", f"{who} {sieht} {noun.him}."),
        ]


def write_documents(place: Path, found: Sequence[Sequence[tuple[str, str]]]) -> None:
    """Write pairs as two files, with a blank line behind each document."""
    for number, language in enumerate(("en", "de")):
        lines = [line for pairs in found for line in (*(pair[number] for pair in pairs), "")]
        write_lines(place.with_name(f"{place.name}.{language}"), lines)


def right_pronouns(run: nmt.Run, hypotheses: Sequence[str]) -> tuple[int, int]:
    """Return how many of the test sentences with a pronoun have the right one, and how many there are."""
    kept = run.directory.kept_text(Split.test, run.cfg.data)
    assert kept is not None
    refs = [line.rpartition("<brk>")[2].strip() for line in kept.tgt]
    articles = ("Der", "Die", "Das", "")  # "": the end of a document, a pair as others without context
    wanted = [(h, r) for h, r in zip(hypotheses, refs, strict=True) if r.partition(" ")[0] not in articles]
    pronouns = {"Er", "Sie", "Es", "ihn.", "sie.", "es."}
    right = sum(pronouns & set(h.split()) == pronouns & set(r.split()) for h, r in wanted)
    return right, len(wanted)


def pronouns(folder: Path, steps: int) -> None:
    """Train all variants on documents of pronouns, and print the share of right ones."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (name, count) in enumerate({"train": 3000, "validation": 100, "test": 200}.items()):
        write_documents(folder / name, list(documents(count, seed)))
    places = [f"data.{name}={folder / name}" for name in ("train", "validation", "test")]
    for name, context in VARIANTS.items():
        common = (
            "data=files",
            *places,
            *TINY,
            f"trainer.max_steps={steps}",
            f"trainer.eval_every_steps={steps}",
        )
        run = nmt.train(*common, *context, f"run={folder / 'runs' / name}")
        scores = run.evaluate()
        right, count = right_pronouns(run, scores.hypotheses)
        print(
            f"{name:<6} right pronouns {right / count:.1%} of {count}  BLEU {scores.values['bleu']:.1f}",
            flush=True,
        )


def captions(folder: Path, prefix: str, steps: int) -> None:
    """Train without and with context on pairs of files as documents of four, and print BLEU."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train", "validation", "test"):
        sides = [
            Path(f"{prefix}.{name}.{language}").read_text("utf-8").splitlines() for language in ("en", "de")
        ]
        pairs = list(zip(*sides, strict=True))
        write_documents(folder / name, [pairs[i : i + 4] for i in range(0, len(pairs), 4)])
    places = [f"data.{name}={folder / name}" for name in ("train", "validation", "test")]
    # As many pairs in a batch need more tokens when sources have three sentences.
    for name, tokens in (("none", 2048), ("2+1", 5120)):
        sizes = (
            f"trainer.batch_tokens={tokens}",
            f"trainer.max_steps={steps}",
            f"trainer.eval_every_steps={steps}",
        )
        given = ("experiment=multi30k_fast", "data=files", *places, *sizes, *VARIANTS[name])
        run = nmt.train(*given, f"run={folder / 'runs' / name}")
        print(f"{name:<6} BLEU {run.evaluate().values['bleu']:.2f}", flush=True)


def main() -> None:
    """Run the benchmark that is named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("pronouns", "captions"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("prefix", nargs="?")
    parser.add_argument("--steps", type=int, default=600)
    given = parser.parse_args()
    if given.what == "pronouns":
        pronouns(given.folder, given.steps)
    elif given.prefix is None:
        parser.error("captions needs the PREFIX of the files")
    else:
        captions(given.folder, given.prefix, given.steps)


if __name__ == "__main__":
    main()
