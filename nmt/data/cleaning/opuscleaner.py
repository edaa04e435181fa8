"""The steps of a file of OpusCleaner (github.com/hplt-project/OpusCleaner) as rows of data.filters.

Such a file is {"version": 1, "files": [...], "filters": [{"filter": NAME, "parameters": {...}, "language":
null}, ...]}. Steps that change text have no row here (fixers do that), and steps that only judge have one
where it means the same; `fasttext_filter` becomes `language`, which asks another identifier the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nmt.data import filter_table
from nmt.data.filter_table import FilterConfig, OpusCleanerConfig
from nmt.data.reading.lines import require_file
from nmt.errors import UserError
from nmt.files import path_of

Parameters = Mapping[str, Any]
MAX_FILE_BYTES = 1_000_000


def _ratio(given: Parameters) -> dict[str, Any] | None:
    """Return the row of src_trg_ratio, which divides the shorter side by the longer; none for logarithms."""
    least = given.get("RATIO", 0.6)
    if given.get("LOG") or not isinstance(least, int | float) or not least:
        return None
    return {"name": "ratio", "unit": "words", "max": 1 / least, "short": 0}


STEPS: dict[str, Callable[[Parameters], dict[str, Any] | None]] = {
    "max_length": lambda given: {
        "name": "length",
        "unit": "words",
        "min": given.get("MINLENGTH", 1),
        "max": given.get("MAXLENGTH", 150),
    },
    "max_word_length": lambda given: {"name": "word_length", "max": given.get("MAXWORDLENGTH", 150)},
    "src_trg_ratio": _ratio,
    "fasttext_filter": lambda given: {
        "name": "language",
        "src": given.get("LANG1", "en"),
        "tgt": given.get("LANG2", "en"),
    },
    "remove_empty_lines": lambda given: {},
}
"""Name of a step -> function of its parameters that returns the entry of its row: {} where training pairs are
filtered so anyway, None where no row means the same."""


def expanded(cfg: OpusCleanerConfig) -> list[FilterConfig]:
    """Return the rows of the steps of a file, in order.

    Raises:
        UserError: the file is none of OpusCleaner, or has steps without a row and `skip_unknown` is not set.
    """
    steps = _steps(path_of(cfg.file), f"{cfg.key_prefix}.file")
    found = [(str(step["filter"]), _entry(step)) for step in steps]
    unknown = [name for name, entry in found if entry is None]
    if unknown and not cfg.skip_unknown:
        raise UserError(
            f"{cfg.key_prefix}.file: {cfg.file} has steps that no filter here stands for: "
            f"{', '.join(unknown)}; "
            f"known are {', '.join(STEPS)}; data.fixers repair text; run the others with OpusCleaner, or "
            "leave them out with skip_unknown: true"
        )
    return filter_table.parsed(f"{cfg.key_prefix}.file", [entry for _, entry in found if entry])


def _entry(step: Mapping[str, Any]) -> dict[str, Any] | None:
    row, parameters = STEPS.get(str(step["filter"])), step.get("parameters") or {}
    is_of_pairs = step.get("language") is None
    return row(parameters) if row and is_of_pairs and isinstance(parameters, dict) else None


def _steps(path: Path, key: str) -> list[dict[str, Any]]:
    require_file(path, key)
    try:
        content = json.loads(path.read_bytes()[:MAX_FILE_BYTES])
    except (ValueError, RecursionError) as error:
        raise UserError(f"{key}: {path} is not JSON: {error}") from error
    steps = content.get("filters") if isinstance(content, dict) else None
    if not isinstance(steps, list) or not all(isinstance(step, dict) and "filter" in step for step in steps):
        raise UserError(f"{key}: {path} is no file of OpusCleaner: it needs a list `filters` of steps")
    return steps
