"""Which directories a training may take over, and what it leaves alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from nmt.config.compose import compose
from nmt.config.roots import TrainConfig
from nmt.config.stored import load_config
from nmt.errors import UserError
from nmt.runs.directory import RunDirectory
from nmt.training.checkpoint import Checkpoint
from nmt.verbs import VERBS


def config(*overrides: str) -> TrainConfig:
    (composed,) = compose(VERBS["train"], list(overrides))
    return composed.to_training()[0]


def save_step(run: RunDirectory) -> None:
    run.checkpoints.save(Checkpoint(5, {"w": torch.ones(2)}, {}, {}))


def test_a_new_directory_is_claimed_and_known_again_once_trained(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    assert not run.claim(config())
    assert load_config(run.config_file) == config()
    save_step(run)
    assert run.claim(config())
    assert run.claim(config("run=elsewhere"))  # the name of the directory is no part of the run
    assert not run.claim(config("decoding=greedy"))
    with pytest.raises(UserError, match="belongs to a run with another config:\n  seed: 1 -> 2"):
        run.claim(config("seed=2"))


def test_a_start_that_failed_leaves_nothing_behind(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.claim(config())
    (run.path / "tokenizer.model").write_bytes(b"of the failed start")
    assert not run.claim(config("seed=2"))
    assert not (run.path / "tokenizer.model").exists()
    assert load_config(run.config_file).seed == 2


def test_a_directory_that_is_no_run_is_left_alone(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"of the user")
    with pytest.raises(
        UserError, match=r"holds a tokenizer but no config\.yaml, so it is not a run directory"
    ):
        run.claim(config())
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.model"]
    save_step(run)
    with pytest.raises(UserError, match=r"holds checkpoints but no config\.yaml"):
        run.claim(config())
    assert run.checkpoints.steps() == [5]
    assert (tmp_path / "tokenizer.model").read_bytes() == b"of the user"


@pytest.mark.fault(3, 16)
def test_half_written_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.claim(config())
    (run.path / "hypotheses").mkdir()
    dead = [run.path / ".tmp-tokenizer.model.4194305", run.hypotheses / ".tmp-test.de.4194305"]
    dead.append(run.path / f".tmp-config.yaml.{os.getpid()}")  # a number that is in use again
    alive = run.hypotheses / f".tmp-test.de.{os.getppid()}"
    for draft in (*dead, alive):
        draft.touch()
    run.claim(config())
    assert [draft.exists() for draft in (*dead, alive)] == [False, False, False, True]
