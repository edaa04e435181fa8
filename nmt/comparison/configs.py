"""The keys of the verbs of this room; imported before a verb runs, and so without torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from omegaconf import MISSING

from nmt.checks import Texts, at_least, not_negative
from nmt.errors import UserError
from nmt.files import OUTPUTS
from nmt.metrics.scoring import require_metrics


class TableFormat(Enum):
    """Ways to print a table."""

    table = "table"
    json = "json"
    csv = "csv"


@dataclass
class RunsConfig:
    """List the runs in a folder: states, scores, costs, and the keys of the config that differ."""

    folder: str = OUTPUTS
    """Folder whose runs are listed, also those in folders inside; `nmt runs FOLDER` says it, too."""
    state: Texts = None
    """States to list, one or [A,B]: done, running, stopped, failed, killed, unknown, imported, exported,
    new."""
    match: str = "*"
    """Pattern of the names to list, such as *dropout-0.1*."""
    sort: str = "age"
    """Column to sort by: name, state, step, time, age, parameters, a metric such as bleu (best first), or a
    key of the config, such as model.dropout."""
    format: TableFormat = TableFormat.table
    """table for people, json or csv with every score and full keys."""


@dataclass
class CompareConfig:
    """Compare runs: a table here, and a page with curves, tests, sentences, costs and differences."""

    run: Texts = MISSING
    """What to compare, the first of which the others are tested against: runs, folders of runs such as a
    sweep, files in the hypotheses/ of a run, or files of other systems. `nmt compare A B` says it, too."""
    split: str = "validation"
    """Sentences to compare on. To look at test again and again is to choose by it: split=test at the end."""
    metrics: list[str] = field(default_factory=list)
    """Scores to compare by; empty: those that the first run has stored. comet needs NMT_COMET_PYTHON."""
    read_corpus: bool = False
    """Count words in the training data that the first run names, rather than in the sources compared."""
    bootstrap_samples: int = 1000
    """Samples of the sentences for intervals and for paired bootstrap."""
    randomisation_trials: int = 10000
    """Trials of paired approximate randomisation; 0 leaves the test out."""
    max_sentences: int = 30
    """Sentences on the page, of each run, that differ most from those of the first."""
    output: str | None = None
    """Page to write; null: comparison.html in the folder that holds the runs."""

    def __post_init__(self) -> None:
        at_least(self, "", 100, "bootstrap_samples")
        not_negative(self, "", "randomisation_trials", "max_sentences")
        if self.metrics:
            require_metrics(self.metrics)
        for key in ("split", "output"):
            value = getattr(self, key)
            if value is not None and not value.strip():
                raise UserError(f"{key} must be a name, but is empty")


@dataclass
class ReproduceConfig:
    """Train a run again from its stored config, in a folder beside it, and report the difference."""

    run: str = MISSING
    """Run directory to train again; `nmt reproduce DIR` says it, too."""
    output: str | None = None
    """Run directory of the repetition; null: that of the run with -reproduced after its name."""
    tolerance: float = 0.05
    """Largest difference of a score that still counts as agreement, in points of the score."""

    def __post_init__(self) -> None:
        not_negative(self, "", "tolerance")
        if not self.run.strip() or (self.output is not None and not self.output.strip()):
            raise UserError("run and output must name directories, but one is empty")
