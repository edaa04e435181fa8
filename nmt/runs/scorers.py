"""The models of filters of training pairs: finished runs, opened once, that score pairs.

`SCORERS` has a row for each filter that needs models: a function of its config, the opened runs and the
languages of the pairs that returns the function that scores them.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nmt.config.roots import Task
from nmt.data.cleaning.pair_filters import Scorer, Values
from nmt.data.filter_table import ClassifierConfig, CrossEntropyConfig, ModelFilterConfig
from nmt.data.parallel_text import ParallelText
from nmt.errors import UserError
from nmt.runs.checkpoint_names import identify_checkpoint
from nmt.runs.opened import Run
from nmt.runs.opening import open_run
from nmt.runs.pair_classifier import label_probabilities, require_pair_classifier
from nmt.runtime_config import RuntimeConfig


@dataclass(frozen=True)
class RunScorers:
    """The access of filters to trained models; `ModelScorers` of `nmt.data.cleaning` says what it is for."""

    runtime: RuntimeConfig

    def digest(self, cfg: ModelFilterConfig) -> str:
        """Return a hash of the checkpoints of the runs of a filter.

        Raises:
            UserError: a directory holds no run, or a checkpoint is missing.
        """
        found = [identify_checkpoint(run, cfg.checkpoint) for run in cfg.runs]
        return hashlib.sha256(repr(found).encode()).hexdigest()

    def open(self, cfg: ModelFilterConfig, languages: tuple[str, str]) -> Scorer:
        """Return the function that scores pairs of `languages` under the runs of a filter."""
        runs = [open_run(run, cfg.checkpoint, self.runtime) for run in cfg.runs]
        return SCORERS[cfg.name](cfg, runs, languages)


def cross_entropy(cfg: CrossEntropyConfig, runs: Sequence[Run], languages: tuple[str, str]) -> Scorer:
    """Return the scorer of the log probability by token, or of dual conditional cross-entropy.

    The latter is -|h - h'| - (h + h') / 2, h and h' the cross-entropy by token of each direction
    (Junczys-Dowmunt 2018, equation 1). A pair that a model cannot read scores -inf.
    """
    for run, (src, tgt) in zip(runs, (languages, languages[::-1]), strict=False):
        run.require_task(Task.translation)
        if (src, tgt) not in run.cfg.data.languages:
            known = ", ".join("-".join(pair) for pair in run.cfg.data.languages)
            raise UserError(
                f"{cfg.key_prefix}: {run.path} translates {known}, but these pairs are to be scored as "
                f"{src}-{tgt}"
            )

    def forward(text: ParallelText) -> Values:
        found = _per_token(runs[0], list(zip(text.src, text.tgt, strict=True)), languages[1])
        if len(runs) == 1:
            return found
        back = _per_token(runs[1], list(zip(text.tgt, text.src, strict=True)), languages[0])
        readable = np.isfinite(found) & np.isfinite(back)
        found, back = np.where(readable, found, 0.0), np.where(readable, back, 0.0)
        return np.where(readable, (found + back) / 2 - np.abs(found - back), -np.inf)

    return forward


def _per_token(run: Run, pairs: Sequence[tuple[str, str]], tgt: str) -> Values:
    asked = tgt if run.cfg.data.tags else None
    scored = run.score(
        pairs, tgt=asked, warn=lambda message: None
    )  # what cannot be read is dropped, and counted
    return np.array([one.per_token for one in scored])


def classifier(cfg: ClassifierConfig, runs: Sequence[Run], languages: tuple[str, str]) -> Scorer:
    """Return the scorer of the probability of a label under a classifier of pairs."""
    require_pair_classifier(runs[0], cfg.label, languages, cfg.key_prefix)
    return functools.partial(label_probabilities, runs[0], label=cfg.label)


SCORERS: dict[str, Callable[[Any, Sequence[Run], tuple[str, str]], Scorer]] = {
    "cross_entropy": cross_entropy,
    "classifier": classifier,
}
"""Name of a filter -> its code here."""
