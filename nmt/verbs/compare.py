"""The wiring of `nmt compare`: compare runs in a table and on a page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nmt.comparison.comparing import compared
from nmt.comparison.configs import CompareConfig
from nmt.comparison.page import page
from nmt.comparison.summary import summary
from nmt.comparison.translations import entries_of
from nmt.config.composed import Composed
from nmt.errors import UserError, tell, warn
from nmt.files import require_file_place, write_atomically

PAGE = "comparison.html"
"""Name of the page, where none is given."""


def run(trial: Composed) -> dict[str, Any]:
    """Print a comparison, and write its page."""
    cfg = trial.to_config(CompareConfig)
    names = [str(name) for name in cfg.run] if isinstance(cfg.run, list) else [str(cfg.run)]
    if not names or not all(map(str.strip, names)):
        raise UserError("run must name runs to compare: nmt compare A B, or a folder of runs")
    entries = entries_of(names, cfg.split, warn)
    runs = [entry.record.path for entry in entries if entry.record is not None]
    file = Path(cfg.output) if cfg.output is not None else _folder(runs) / PAGE
    require_file_place(file, "output", PAGE)
    found = compared(cfg, entries, _training_words(runs[0]) if cfg.read_corpus else None, tell)
    print(summary(found))
    title = f"Comparison of {len(found.entries)} {found.kinds} on {cfg.split}"
    write_atomically(file, page(title, found).encode())
    print(f"\nwritten     {file}")
    return {}


def _folder(runs: Sequence[Path]) -> Path:
    """Return the folder that all runs are in, or the run where there is only one."""
    return Path(os.path.relpath(os.path.commonpath([run.absolute() for run in runs])))


def _training_words(run: Path) -> dict[str, int]:
    """Return how often each word of the source side is in the training data of a run."""
    from nmt.comparison.breakdown import word_counts
    from nmt.config.stored import load_config
    from nmt.data.parallel_text import Split
    from nmt.data.reading import sources

    cfg = load_config(run / "config.yaml")
    stream = sources.stream(cfg.data, Split.train)
    return word_counts(line for chunk in stream.chunks() for line in chunk.src)
