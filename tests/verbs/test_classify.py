"""`nmt classify`: which lines of a file are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nmt.decoding.configs import BeamConfig
from nmt.errors import UserError
from nmt.runtime_config import RuntimeConfig
from nmt.translation.translate import LINES_AT_ONCE
from nmt.verbs.classify import LABELS
from nmt.verbs.configs import ClassifyConfig
from nmt.verbs.file_job import answer_file
from tests.runs.untrained import untrained, untrained_classifier


def test_a_line_that_is_no_pair_is_told_before_any_is_classified(tmp_path: Path) -> None:
    run = untrained_classifier(tmp_path / "runs" / "pairs", is_of_pairs=True)
    (tmp_path / "in").write_text("a\tb\n" * LINES_AT_ONCE + "a\n")
    files: dict[str, Any] = {"input": str(tmp_path / "in"), "output": str(tmp_path / "out")}
    cfg = ClassifyConfig(
        run=str(run), decoding=BeamConfig(), runtime=RuntimeConfig(device="cpu", threads=1), **files
    )
    with pytest.raises(UserError, match=f"^line {LINES_AT_ONCE + 1} of the input has no TAB, but the run"):
        answer_file(cfg, LABELS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "runs"]


def test_a_run_that_finds_no_labels_says_so_itself(tmp_path: Path) -> None:
    run = untrained(tmp_path / "run")
    cfg = ClassifyConfig(run=str(run), decoding=BeamConfig())
    assert LABELS.reader(cfg) is None
    with pytest.raises(UserError, match=r"finds no labels, but translates"):
        LABELS.open_answers(cfg)
