"""Damage a part of a corpus, and compare filters: what they find, and BLEU after training on what is left.

    python scripts/bench_filters.py run FOLDER --corpus MULTI30K --french MULTI30K_FR       # everything
    python scripts/bench_filters.py run FOLDER --corpus ... --levels 30 --filters none length --parts judge
    python scripts/bench_filters.py table FOLDER

MULTI30K holds train.jsonl, val.jsonl and test.jsonl with `en` and `de`; MULTI30K_FR the same captions with
`fr`. A level is the percentage of the training pairs that are damaged; validation and test stay clean. The
kinds of damage are not those that the classifier is trained on (`nmt.data.augment.damage`), but for shifted
lines, which come in rows. The classifier, and the model whose cross-entropy is a filter, are trained on the
damaged pairs themselves, as a user would have to. Cross-entropy keeps as many pairs as are true, a number
that a user would have to guess; the classifier keeps what it finds more probably aligned than not, and knows
no number.

A cell is one line of FOLDER/results.jsonl, and the same command again skips the cells that are there. Every
process has one thread; `--updates` is the length of the trainings of translation models.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import benchmarking
import numpy as np

from nmt import open_run
from nmt.data.augment.damage import ALIGNED
from nmt.data.cleaning.filters import filter_pairs
from nmt.data.configs import DataConfig
from nmt.data.parallel_text import ParallelText
from nmt.runs.pair_classifier import label_probabilities

ROW_OF_LINES = 20
"""Lines in a row whose targets are shifted by one."""
MAX_RATIO = 1.8
"""The longest side a pair may have, in characters, as a multiple of the other, by the length rules."""
FILTERS = ("none", "length", "cross_entropy", "classifier")
PARTS = ("judge", "bleu")
MODEL = (
    "model=transformer_tiny",
    "model.encoder_layers=2",
    "model.decoder_layers=2",
    "model.positions=rotary",
    "model.dropout=0.1",
    "optimizer=muon_fast",
    "schedule=linear",
    "schedule.peak_rate=0.005",
    "schedule.warmup_steps=100",
    "tokenizer=bpe",
    "tokenizer.vocab_size=4000",
    "trainer.batch_tokens=2048",
    "trainer.log_every_steps=100",
    "decoding.beam_size=4",
)
"""The translation model of the study: small, so that a study fits into hours of two cores."""
NUMBERS = ["eine", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn"]
WORD_SPREAD = 3.0
"""How far words move in noise of word order, in words."""


class Lines(NamedTuple):
    """A corpus whose targets are damaged."""

    src: list[str]
    tgt: list[str]
    french: list[str]
    nouns: list[str]
    """Capitalised words of the targets, as often as they occur."""


Damage = Callable[[Lines, int, random.Random], str]


def shifted(lines: Lines, row: int, rng: random.Random) -> str:
    """Return the target of the next line."""
    return lines.tgt[(row + 1) % len(lines.tgt)]


def order(lines: Lines, row: int, rng: random.Random) -> str:
    """Return the target with words that moved by a few places, as in raw output of a weak system."""
    words = lines.tgt[row].split()
    places = sorted(range(len(words)), key=lambda place: place + rng.uniform(0, WORD_SPREAD))
    return " ".join(words[place] for place in places)


def language(lines: Lines, row: int, rng: random.Random) -> str:
    """Return a translation into another language."""
    return lines.french[row]


def dropped(lines: Lines, row: int, rng: random.Random) -> str:
    """Return the target without a quarter to a half of its words, none at its ends."""
    words = lines.tgt[row].split()
    inner = list(range(1, len(words) - 1))
    gone = set(rng.sample(inner, min(len(inner), round(len(words) * rng.uniform(0.25, 0.5)))))
    return " ".join(word for place, word in enumerate(words) if place not in gone)


def facts(lines: Lines, row: int, rng: random.Random) -> str:
    """Return the target with a number or one noun changed."""
    words = lines.tgt[row].split()
    numbers = [place for place, word in enumerate(words) if word.lower() in NUMBERS[1:] or word.isdigit()]
    nouns = [place for place, word in enumerate(words) if place and word[:1].isupper()]
    if numbers:
        words[numbers[0]] = rng.choice(NUMBERS[1:])
    elif nouns:
        place = rng.choice(nouns)
        end = "".join(character for character in words[place][-1] if not character.isalnum())
        words[place] = rng.choice(lines.nouns) + end
    return " ".join(words)


def overlap(lines: Lines, row: int, rng: random.Random) -> str:
    """Return the end of the target and the beginning of the next one, as after a wrong sentence split."""
    words, others = lines.tgt[row].split(), lines.tgt[(row + 1) % len(lines.tgt)].split()
    return " ".join(words[len(words) // 2 :] + others[: len(others) // 2])


DAMAGES: Mapping[str, Damage] = {
    "shifted": shifted,
    "order": order,
    "language": language,
    "dropped": dropped,
    "facts": facts,
    "overlap": overlap,
}


def damaged(lines: Lines, level: int) -> tuple[list[str], list[str]]:
    """Return the targets, `level` percent of them damaged, and what was done to each ("" for nothing).

    Each kind has an equal share. A target that a kind leaves as it is counts as true.
    """
    rng = random.Random(level)
    wanted = len(lines.tgt) * level // 100
    kinds = list(DAMAGES)
    chosen: dict[int, str] = {}
    for start in rng.sample(range(0, len(lines.tgt), ROW_OF_LINES), wanted // len(kinds) // ROW_OF_LINES):
        chosen |= dict.fromkeys(range(start, min(start + ROW_OF_LINES, len(lines.tgt))), "shifted")
    free = [row for row in range(len(lines.tgt)) if row not in chosen]
    others = [kind for kind in kinds if kind != "shifted"]
    for number, row in enumerate(rng.sample(free, wanted - len(chosen))):
        chosen[row] = others[number % len(others)]
    targets, done = list(lines.tgt), [""] * len(lines.tgt)
    for row, kind in sorted(chosen.items()):
        targets[row] = DAMAGES[kind](lines, row, rng)
        done[row] = kind if targets[row] != lines.tgt[row] else ""
    return targets, done


def read_split(folder: Path, split: str, language: str) -> list[str]:
    """Return one side of a split of Multi30k."""
    lines = (folder / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
    return [" ".join(json.loads(line)[language].split()) for line in lines]


def write_pairs(prefix: Path, src: Iterable[str], tgt: Iterable[str]) -> None:
    """Write two sides as PREFIX.en and PREFIX.de."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    for side, lines in (("en", src), ("de", tgt)):
        Path(f"{prefix}.{side}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def read_lines(file: Path) -> list[str]:
    """Return the lines of a file."""
    return file.read_text(encoding="utf-8").split("\n")[:-1]


class Study:
    """The folder of a study: corpora, runs and finished cells."""

    def __init__(self, folder: Path, updates: int, classifier: Sequence[str]):
        self.folder, self.updates, self.classifier = folder.resolve(), updates, classifier
        self.results = benchmarking.Results(self.folder / "results.jsonl")

    @property
    def records(self) -> list[dict[str, Any]]:
        """The finished cells."""
        return benchmarking.read([self.results.path]) if self.results.path.exists() else []

    def has(self, **cell: object) -> bool:
        """Return whether a cell is finished."""
        return any(all(record.get(key) == value for key, value in cell.items()) for record in self.records)

    def level(self, level: int) -> Path:
        """Return the folder of a level."""
        return self.folder / f"level{level}"

    def write_corpora(self, corpus: Path, french: Path, levels: Sequence[int]) -> None:
        """Write the damaged training pairs of each level, and the clean splits."""
        if not (self.folder / "test.de").exists():
            for split, name in (("val", "validation"), ("test", "test")):
                write_pairs(self.folder / name, *(read_split(corpus, split, side) for side in ("en", "de")))
        src, tgt = (read_split(corpus, "train", side) for side in ("en", "de"))
        nouns = [word for line in tgt for word in line.split()[1:] if word.isalpha() and word[0].isupper()]
        lines = Lines(src, tgt, read_split(french, "train", "fr"), nouns)
        for level in levels:
            if not (self.level(level) / "damage").exists():
                targets, done = damaged(lines, level)
                write_pairs(self.level(level) / "train", src, targets)
                (self.level(level) / "damage").write_text("".join(f"{kind}\n" for kind in done))

    def pairs(self, level: int) -> ParallelText:
        """Return the training pairs of a level."""
        src, tgt = (read_lines(self.level(level) / f"train.{side}") for side in ("en", "de"))
        return ParallelText(src, tgt)

    def damage(self, level: int) -> list[str]:
        """Return what was done to each training pair of a level."""
        return read_lines(self.level(level) / "damage")

    def train(self, name: str, *overrides: str) -> Path:
        """Train a run, or go on with it; return its directory."""
        run = self.folder / "runs" / name
        command = [sys.executable, "-m", "nmt", "train", f"run={run}", "runtime.threads=1", *overrides]
        variables = os.environ | {"OMP_NUM_THREADS": "1"}
        run.parent.mkdir(parents=True, exist_ok=True)
        with (run.parent / f"{name}.out").open("a") as out:
            subprocess.run(command, check=True, stdout=out, stderr=subprocess.STDOUT, env=variables)
        return run

    def translation_model(self, name: str, prefix: Path, seed: int) -> Path:
        """Return the run of a translation model that is trained on some pairs."""
        return self.train(
            name,
            "data=files",
            f"data.train={prefix}",
            f"data.validation={self.folder / 'validation'}",
            f"data.test={self.folder / 'test'}",
            *MODEL,
            f"seed={seed}",
            f"trainer.max_steps={self.updates}",
            f"trainer.eval_every_steps={self.updates}",
            f"trainer.save_every_steps={self.updates}",
        )

    # What filters find

    def scores(self, level: int, name: str) -> np.ndarray:
        """Return the score that a filter gives to each pair of a level, and keep it in a file."""
        file = self.level(level) / f"{name}.scores.npy"
        if not file.exists():
            np.save(file, getattr(self, f"_by_{name}")(level))
        return np.load(file)

    def _by_cross_entropy(self, level: int) -> np.ndarray:
        run = open_run(self.translation_model(f"level{level}-none-seed1", self.level(level) / "train", 1))
        text = self.pairs(level)
        return np.array([found.per_token for found in run.score(list(zip(text.src, text.tgt, strict=True)))])

    def _by_classifier(self, level: int) -> np.ndarray:
        corpus = f"{{train: {self.level(level) / 'train'}, validation: {self.folder / 'validation'}}}"
        run = open_run(self.train(f"level{level}-classifier", *self.classifier, f"data.corpus={corpus}"))
        return label_probabilities(run, self.pairs(level), ALIGNED)

    def kept(self, level: int, name: str) -> np.ndarray:
        """Return which pairs of a level a filter keeps."""
        text, true = self.pairs(level), np.array([not kind for kind in self.damage(level)])
        if name == "none":
            return np.ones(len(text), bool)
        if name == "length":
            limits = DataConfig(max_ratio=MAX_RATIO)
            each = (ParallelText([src], [tgt]) for src, tgt in zip(text.src, text.tgt, strict=True))
            return np.array([bool(filter_pairs(pair, limits)[0].src) for pair in each])
        scores = self.scores(level, name)
        if name == "classifier":
            return scores >= 0.5
        ranks = np.argsort(np.argsort(-scores, kind="stable"), kind="stable")
        return ranks < true.sum()

    def judge(self, level: int, name: str) -> None:
        """Record what a filter finds in a level: precision and recall of the pairs that it drops."""
        if self.has(kind="judge", level=level, filter=name):
            return
        kinds, kept = np.array(self.damage(level)), self.kept(level, name)
        bad = kinds != ""
        found = (bad & ~kept).sum()
        by_kind = {
            str(kind): round(float((~kept)[kinds == kind].sum() / max(1, (kinds == kind).sum())), 4)
            for kind in DAMAGES
        }
        record = {
            "kind": "judge",
            "level": level,
            "filter": name,
            "pairs": len(kept),
            "damaged": int(bad.sum()),
            "dropped": int((~kept).sum()),
            "precision": round(float(found / max(1, (~kept).sum())), 4),
            "recall": round(float(found / bad.sum()), 4),
            "true_dropped": round(float((~kept)[~bad].mean()), 4),
            "recall_by_kind": by_kind,
        }
        if name in ("cross_entropy", "classifier"):
            record["area"] = round(area_under_curve(-self.scores(level, name), bad), 4)
        self.results.write(record)

    def bleu(self, level: int, name: str, seed: int) -> None:
        """Record the BLEU of a model that is trained on what a filter keeps of a level."""
        cell = {"kind": "bleu", "level": level, "filter": name, "seed": seed, "updates": self.updates}
        if self.has(**cell):
            return
        prefix = self.level(level) / ("train" if name == "none" else f"kept-{name}")
        kept = self.kept(level, name)
        if name != "none":
            text = self.pairs(level)
            left = [
                pair for pair, keep in zip(zip(text.src, text.tgt, strict=True), kept, strict=True) if keep
            ]
            write_pairs(prefix, *zip(*left, strict=True))
        started = time.monotonic()
        run = self.translation_model(f"level{level}-{name}-seed{seed}", prefix, seed)
        scores = json.loads((run / "results.json").read_text())
        self.results.write(
            cell
            | {
                "pairs": int(kept.sum()),
                "validation_bleu": round(scores["validation"]["bleu"], 2),
                "test_bleu": round(scores["test"]["bleu"], 2),
                "wall_seconds": round(time.monotonic() - started),
            }
        )


def area_under_curve(scores: np.ndarray, positive: np.ndarray) -> float:
    """Return the probability that a positive row has a higher score than another one (ROC AUC)."""
    order = np.argsort(scores, kind="stable")
    values, ranks = scores[order], np.empty(len(scores))
    _, start, count = np.unique(values, return_index=True, return_counts=True)
    ranks[order] = np.repeat(start + (count + 1) / 2, count)
    num = int(positive.sum())
    return float((ranks[positive].sum() - num * (num + 1) / 2) / (num * (len(scores) - num)))


def table(records: Sequence[benchmarking.Record]) -> str:
    """Return the tables of a study: what filters find, by kind of damage, and BLEU."""
    judged = [record for record in records if record["kind"] == "judge"]
    header = ["level", "filter", "dropped", "precision", "recall", "true pairs dropped", "AUC", *DAMAGES]
    rows = [
        [
            f"{record['level']}%",
            record["filter"],
            f"{record['dropped']:,}",
            f"{record['precision']:.3f}" if record["dropped"] else "",
            f"{record['recall']:.3f}",
            f"{record['true_dropped']:.3f}",
            f"{record['area']:.3f}" if "area" in record else "",
            *(f"{record['recall_by_kind'][kind]:.2f}" for kind in DAMAGES),
        ]
        for record in sorted(judged, key=lambda record: (record["level"], FILTERS.index(record["filter"])))
    ]
    cells = benchmarking.grouped(
        [record for record in records if record["kind"] == "bleu"], "level", "filter", "updates"
    )
    scored = [
        [
            f"{level}%",
            name,
            f"{updates:,}",
            f"{cell[0]['pairs']:,}",
            str(len(cell)),
            mean_and_spread([record["validation_bleu"] for record in cell]),
            mean_and_spread([record["test_bleu"] for record in cell]),
        ]
        for (level, name, updates), cell in sorted(cells.items(), key=str)
    ]
    names = ["level", "filter", "updates", "pairs", "seeds", "validation BLEU", "test BLEU"]
    return f"{benchmarking.markdown(header, rows)}\n\n{benchmarking.markdown(names, scored)}"


def mean_and_spread(values: Sequence[float]) -> str:
    """Return the mean of values and, of several, their standard deviation."""
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing of a study, or print its tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("--corpus", type=Path, required=True)
    running.add_argument("--french", type=Path, required=True)
    running.add_argument("--levels", nargs="+", type=int, default=[10, 30, 50])
    running.add_argument("--filters", nargs="+", choices=FILTERS, default=list(FILTERS))
    running.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    running.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    running.add_argument("--updates", type=int, default=1500)
    running.add_argument("--classifier", nargs="+", default=["experiment=misaligned_pairs"])
    for each in (running, commands.add_parser("table")):
        each.add_argument("folder", type=Path)
    args = parser.parse_args(arguments)
    if args.command == "table":
        print(table(benchmarking.read([args.folder / "results.jsonl"])))
        return 0
    study = Study(args.folder, args.updates, args.classifier)
    study.write_corpora(args.corpus, args.french, args.levels)
    for level in args.levels:
        for name in args.filters if "judge" in args.parts else ():
            study.judge(level, name)
    for seed in args.seeds:  # so that an unfinished study compares all filters on the first seeds
        for level in args.levels:
            for name in args.filters if "bleu" in args.parts else ():
                study.bleu(level, name, seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
