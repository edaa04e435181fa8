"""The probability of a label, such as `aligned`, of pairs under a run that classifies pairs of texts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nmt.config.roots import Task
from nmt.data.configs import SEPARATOR
from nmt.data.parallel_text import ParallelText
from nmt.data.reading.sources import AlignmentData
from nmt.data.tokens.label_set import named
from nmt.errors import UserError, suggest
from nmt.runs.opened import Run


def require_pair_classifier(run: Run, label: str, languages: tuple[str, str], key: str) -> None:
    """Raise `UserError` unless `run` classifies pairs and has `label`; `key` is that of its config group.

    A run whose training pairs were made by `data=alignment` must have read the same `languages`.
    """
    if run.cfg.task is not Task.classification or SEPARATOR not in run.cfg.data.symbols:
        raise UserError(
            f"{key}.run={run.path} must be a classifier of pairs of texts, but has task={run.cfg.task.value} "
            f"and data={run.cfg.data.name}; experiment=misaligned_pairs trains one"
        )
    own = run.cfg.data.src, run.cfg.data.tgt
    if isinstance(run.cfg.data, AlignmentData) and own != languages:
        raise UserError(
            f"{key}: {run.path} judges pairs of {'-'.join(own)}, but these pairs are {'-'.join(languages)}"
        )
    labels = run.tokenizer.labels
    if label not in labels:
        raise UserError(
            f"{key}.label must be one of the labels of {run.path}, {named(labels)}, but is "
            f"{label!r}{suggest(label, labels)}"
        )


def label_probabilities(run: Run, text: ParallelText, label: str) -> NDArray[np.float64]:
    """Return the probability that each pair has `label`; tabs inside of texts are read as spaces.

    A pair that is longer than the run reads is judged by its beginning, and named in a warning.
    """
    sides = ([line.replace("\t", " ") for line in side] for side in (text.src, text.tgt))
    lines = map("\t".join, zip(*sides, strict=True))
    found = (probabilities[label] for _, probabilities in run.classify(lines))
    return np.fromiter(found, np.float64, len(text))
