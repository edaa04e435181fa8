"""A training and its repetition: what agrees, what differs, and where the difference begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt.comparison.differences import differing, flat_environment, shown
from nmt.comparison.listing import aligned
from nmt.comparison.record import RunRecord, read_run
from nmt.comparison.translations import lines_of
from nmt.errors import NotReproduced, visible
from nmt.files import digest, step_records
from nmt.metrics.scoring import label_of

SPEEDS = ("tgt_tokens_per_second", "tflops_per_second", "mfu", "gpu_memory_gb", "train/seconds")
"""Last parts of the names of measures that differ from one repetition to the next."""
DERIVED = ("perplexity",)
"""Scores that follow from another."""


@dataclass
class Reproduction:
    """The agreement of a run with its repetition."""

    scores: dict[str, tuple[float, float]]
    """Split and metric -> the score then and now."""
    translations: dict[str, tuple[int, int]]
    """Split -> number of identical translations, and of all."""
    digests: dict[str, tuple[str, str]]
    """File -> its SHA-256 then and now; empty where it is missing."""
    num_records: int
    """Records of metrics.jsonl that both have, at equal steps."""
    first_difference: tuple[int, str, Any, Any] | None
    """Step, name and both values of the first measure that differs, speeds left out."""
    environment: dict[str, list[Any]]

    def misses(self, tolerance: float) -> list[str]:
        """Return the names of the scores that differ by more than `tolerance`, or are not numbers."""
        return [name for name, (then, now) in self.scores.items() if not abs(now - then) <= tolerance]


def reproduction(then: Path, now: Path) -> Reproduction:
    """Return how the run in `now` agrees with the one in `then`; both must be finished."""
    before, after = read_run(then), read_run(now)
    num_records, first = _first_difference(then, now)
    return Reproduction(
        scores=dict(_scores(before, after)),
        translations=dict(_translations(before, after)),
        digests={
            "tokenizer": (_tokenizer(then), _tokenizer(now)),
            "weights": (_weights(before), _weights(after)),
        },
        num_records=num_records,
        first_difference=first,
        environment=differing([flat_environment(then), flat_environment(now)], ignored=("command*",)),
    )


def require_reproduced(found: Reproduction, tolerance: float) -> None:
    """Raise `NotReproduced` with the scores that differ by more than `tolerance`, or where there are none."""
    if not found.scores:
        raise NotReproduced("not reproduced: there is no score that both runs have")
    if misses := found.misses(tolerance):
        told = [
            f"{name} {found.scores[name][0]:.4f} then, {found.scores[name][1]:.4f} now" for name in misses
        ]
        raise NotReproduced(f"not reproduced within tolerance={tolerance:g}: {'; '.join(told)}")


def report(found: Reproduction) -> str:
    """Return the agreement as lines for people."""
    rows = [
        [name, f"{then:.4f}", f"{now:.4f}", f"{now - then:+.4f}"]
        for name, (then, now) in found.scores.items()
    ]
    lines = aligned([["score", "then", "now", "difference"], *rows])
    for split, (same, total) in found.translations.items():
        lines.append(f"{split:<14}{same:,} of {total:,} translations are identical")
    for name, (before, after) in found.digests.items():
        if before and after:
            same_bits = before == after
            told = (
                f"identical ({before[:16]})" if same_bits else f"differ: {before[:16]} then, {after[:16]} now"
            )
        else:
            told = "not compared: a file is missing"
        lines.append(f"{name:<14}{told}")
    if found.first_difference is None:
        lines.append(f"{'metrics':<14}identical in {found.num_records:,} records")
    else:
        step, name, before, after = found.first_difference
        lines.append(f"{'metrics':<14}differ first at step {step:,}: {name} {before!r} then, {after!r} now")
    for key, (before, after) in found.environment.items():
        lines.append(f"{'environment':<14}{key}: {shown(before)} then, {shown(after)} now")
    if not found.environment:
        lines.append(f"{'environment':<14}identical")
    return visible("\n".join(lines))


def _scores(before: RunRecord, after: RunRecord) -> Iterator[tuple[str, tuple[float, float]]]:
    ours, theirs = ({"validation": one.validation, **one.tests} for one in (before, after))
    for split, scores in ours.items():
        for name, value in scores.items():
            if name not in DERIVED and split in theirs and name in theirs[split]:
                yield f"{split} {label_of(name)}", (value, theirs[split][name])


def _translations(before: RunRecord, after: RunRecord) -> Iterator[tuple[str, tuple[int, int]]]:
    for file in sorted(before.path.glob(f"hypotheses/*.{before.config.get('data.tgt')}")):
        other = after.path / "hypotheses" / file.name
        if other.is_file():
            ours, theirs = lines_of(file), lines_of(other)
            same = sum(a == b for a, b in zip(ours, theirs, strict=False))
            yield file.stem, (same, max(len(ours), len(theirs)))


def _tokenizer(run: Path) -> str:
    return " ".join(digest(file) for file in sorted(run.glob("tokenizer*.model")))


def _weights(record: RunRecord) -> str:
    """Return the digest of the weights that were scored at the end."""
    name = "average" if record.results.get("averaged_steps") else f"step_{record.scored_step or 0:08d}"
    file = record.path / "checkpoints" / name / "model.safetensors"
    return digest(file) if file.is_file() else ""


def _first_difference(then: Path, now: Path) -> tuple[int, tuple[int, str, Any, Any] | None]:
    """Return the number of records in both metrics.jsonl, and the first measure that differs."""
    ours, theirs = (_measures(run / "metrics.jsonl") for run in (then, now))
    both = [key for key in ours if key in theirs]
    for step, name in both:
        before, after = ours[step, name], theirs[step, name]
        if before != after:
            return len({step for step, _ in both}), (step, name, before, after)
    return len({step for step, _ in both}), None


def _measures(file: Path) -> Mapping[tuple[int, str], Any]:
    """Return the measures of metrics.jsonl by step and name, without speeds."""
    return {
        (one["step"], name): value
        for one in step_records(file)
        for name, value in one.items()
        if name != "step" and not name.endswith(SPEEDS)
    }
