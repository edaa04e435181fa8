"""A training and its repetition: what agrees, where the difference begins, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nmt.comparison.reproduction import report, reproduction, require_reproduced
from nmt.errors import NotReproduced
from tests.comparison.made import BAD, GOOD, made_run, write

SPEED = {"train/tgt_tokens_per_second": 1.0}


def test_a_run_that_is_its_own_repetition(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a")
    found = reproduction(run, run)
    assert found.misses(0.0) == []
    assert found.first_difference is None
    assert not found.environment
    assert found.translations == {"test": (5, 5), "validation": (5, 5)}
    assert found.num_records == 2
    require_reproduced(found, 0.0)
    text = report(found)
    assert "weights       identical (" in text
    assert "environment   identical" in text
    assert "test BLEU        19.0000  19.0000     +0.0000" in text
    assert "perplexity" not in text  # follows from the loss


def test_the_first_step_that_differs(tmp_path: Path) -> None:
    records = [{"step": step, "train/loss": 3.0 - step / 20, **SPEED} for step in (10, 20, 30)]
    then = made_run(tmp_path / "a", records=records)
    other = [{**record, "train/tgt_tokens_per_second": 7.0} for record in records]
    other[1]["train/loss"] = 9.0
    now = made_run(
        tmp_path / "b", records=other, hypotheses=[*GOOD[:4], BAD[4]], results={"test": {"bleu": 18.5}}
    )
    (now / "checkpoints" / "step_00000040" / "model.safetensors").write_bytes(b"other")
    write(now / "environment.json", json.dumps({"python": "3.12", "command": ["x"]}))
    found = reproduction(then, now)
    assert found.first_difference == (20, "train/loss", 2.0, 9.0)
    text = report(found)
    assert "metrics       differ first at step 20: train/loss 2.0 then, 9.0 now" in text
    assert "validation    4 of 5 translations are identical" in text
    assert "weights       differ: " in text
    assert "tokenizer     identical" in text
    assert "environment   python: 3.11 then, 3.12 now" in text
    require_reproduced(found, 0.5)
    with pytest.raises(NotReproduced, match=r"within tolerance=0.4: test BLEU 19.0000 then, 18.5000 now"):
        require_reproduced(found, 0.4)


def test_a_score_that_is_no_number_agrees_with_none(tmp_path: Path) -> None:
    runs = [made_run(tmp_path / name, results={"test": {"bleu": "nan"}}) for name in ("a", "b")]
    assert reproduction(*runs).misses(100.0) == ["test BLEU"]


def test_without_a_common_score_nothing_is_reproduced(tmp_path: Path) -> None:
    splits: dict[str, dict[str, float]] = {"validation": {}, "test": {}}
    runs = [made_run(tmp_path / name, results=splits) for name in ("a", "b")]
    with pytest.raises(NotReproduced, match="there is no score that both runs have"):
        require_reproduced(reproduction(*runs), 1.0)
