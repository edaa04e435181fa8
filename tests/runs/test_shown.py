"""A run as a table for a notebook."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nmt.errors import UserError
from nmt.runs.opening import open_run
from nmt.runs.shown import changes, curve, logged_metrics, run_table
from tests.runs.untrained import untrained

ROWS: list[dict[str, Any]] = [{"step": 5, "valid/bleu": 10.0}, {"step": 6}, {"step": 10, "valid/bleu": None}]


def test_the_table_has_scores_the_curve_and_the_differences(tmp_path: Path) -> None:
    run = open_run(untrained(tmp_path / "a<b"))
    rows = [*ROWS, {"step": 15, "valid/bleu": 30.0}]
    run.cfg.trainer.best_metric = "bleu"
    table = run_table(repr(run), run.cfg, {"validation": {"bleu": 30.0}, "test": {"bleu": 29.0}}, rows)
    assert "a&lt;b" in table
    assert "a<b" not in table
    assert "BLEU 29.00" in table
    assert "from 10 to 30, steps 5 to 15" in table
    assert "<li><code>model.d_model: 8</code></li>" in table
    assert "the training is not finished" in run._repr_html_()
    assert repr(run).endswith(
        f"transformer with {sum(p.numel() for p in run.model.parameters()):,} parameters on cpu)"
    )


def test_only_what_differs_is_listed(tmp_path: Path) -> None:
    cfg = open_run(untrained(tmp_path / "run")).cfg
    listed = dict(line.split(": ", 1) for line in changes(cfg))
    assert listed["model.d_model"] == "8"
    assert "model.tying" not in listed
    assert "seed" not in listed


def test_a_flat_curve_is_a_line() -> None:
    assert 'points="4.0,44.0 236.0,44.0"' in curve([(1, 2.0), (3, 2.0)])


def test_records_are_read_and_damage_is_named(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    assert logged_metrics(file) == []
    file.write_text('{"step": 1, "train/loss": null}\n{"step": 2')
    assert logged_metrics(file) == [{"step": 1, "train/loss": None}]
    file.write_text('{"step": 1}\n{\n')
    with pytest.raises(UserError, match=r"metrics.jsonl, line 2, is damaged"):
        logged_metrics(file)
