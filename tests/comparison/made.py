"""Run directories written by hand: the files that comparisons read, and no model."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from nmt.comparison.significance import Tested, scores_by, with_tests

SOURCES = ["two men walk", "a dog", "the red house by the sea", "one more", "two dogs run here"]
REFERENCES = [
    "zwei Männer gehen dort",
    "ein Hund sieht uns an",
    "das rote Haus steht am Meer",
    "noch einer mehr bitte",
    "zwei Hunde rennen hier herum",
]
GOOD = [*REFERENCES[:4], "zwei Hunde laufen hier herum"]
BAD = ["zwei Männer gehen", "ein Hund", "das rote Haus am Meer", "noch einer", "Hunde hier"]
BLEU = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"
CHRF = "nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.6.0"


def made_run(
    path: Path,
    *,
    config: Mapping[str, Any] | None = None,
    hypotheses: Sequence[str] = GOOD,
    references: Sequence[str] = REFERENCES,
    sources: Sequence[str] = SOURCES,
    results: Mapping[str, Any] | None = None,
    records: Sequence[Mapping[str, Any]] | None = None,
    finished: bool = True,
) -> Path:
    """Write a run in `path` and return `path`; `config` has full keys that replace those below."""
    plain: dict[str, Any] = {
        "run": str(path),
        "task": "translation",
        "seed": 1,
        "model": {"name": "transformer", "d_model": 8, "dropout": 0.1},
        "data": {"name": "files", "src": "en", "tgt": "de"},
        "trainer": {"max_steps": 40, "best_metric": "bleu", "keep_last": 1},
        "metrics": ["bleu", "chrf"],
    }
    for key, value in (config or {}).items():
        part, _, name = key.rpartition(".")
        (plain[part] if part else plain)[name] = value
    write(path / "config.yaml", yaml.safe_dump(plain))
    for side, lines in (("en", sources), ("de", references)):
        for split in ("validation", "test"):
            write(path / "data" / f"{split}.{side}", lined(lines))
    write(path / "data" / "train.json", json.dumps({"training_pairs": 3, "sha256": "0"}))
    speeds = {"train/tgt_tokens_per_second": 10.0, "train/tflops_per_second": 2.0}
    own = records or [
        {"step": 20, "train/loss": 3.0, "train/nll": 2.5, "train/tokens": 100, **speeds},
        {"step": 20, "valid/loss": 2.0, "valid/bleu": 10.0},
        {"step": 40, "train/loss": 2.0, "train/nll": 1.5, "train/tokens": 300, **speeds},
        {"step": 40, "valid/loss": 1.0, "valid/bleu": 20.0},
    ]
    write(path / "metrics.jsonl", lined([json.dumps(record) for record in own]))
    write(path / "environment.json", json.dumps({"python": "3.11", "packages": {"torch": "2.13.0"}}))
    write(path / "tokenizer.model", "pieces")
    checkpoint = path / "checkpoints" / "step_00000040"
    write(checkpoint / "state.json", json.dumps({"progress": {"step": 40, "tokens": 300, "seconds": 61.0}}))
    header = json.dumps({"w": {"dtype": "F32", "shape": [8, 4], "data_offsets": [0, 128]}}).encode()
    (checkpoint / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(128))
    write(path / "hypotheses" / "validation" / "step_00000040.de", lined(hypotheses))
    if finished:
        for split in ("validation", "test"):
            write(path / "hypotheses" / f"{split}.de", lined(hypotheses))
        write(path / "results.json", json.dumps(made_results() | dict(results or {})))
    return path


def made_export(path: Path) -> Path:
    """Write a run in `path` that has a model alone, as `nmt export` does, and return `path`."""
    made_run(path, finished=False, records=[{"step": 0}])
    checkpoint = (path / "checkpoints" / "step_00000040").rename(path / "checkpoints" / "step_00000000")
    progress = {"step": 0, "tokens": 0, "seconds": 0.0}
    write(checkpoint / "state.json", json.dumps({"progress": progress}))
    write(path / "export.json", "{}")
    return path


def made_results() -> dict[str, Any]:
    return {
        "step": 40,
        "validation": {"loss": 1.0, "perplexity": 2.7},
        "test": {"loss": 1.1, "perplexity": 3.0, "bleu": 19.0},
        "signatures": {"bleu": BLEU, "chrf": CHRF},
        "train_seconds": 62.5,
        "tgt_tokens_per_second": 10.0,
    }


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def lined(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def scored(
    signature: str, systems: Sequence[Sequence[str]], references: Sequence[Sequence[str]], **options: int
) -> list[Tested]:
    """Return the scores of systems by a metric, tested with `samples` and `trials`."""
    return with_tests(scores_by(signature, systems, references), systems, **options)
