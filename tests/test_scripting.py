"""Training from Python."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import nmt
from nmt import scripting
from nmt.config.compose import compose
from nmt.config.roots import TrainConfig
from nmt.errors import Interrupted, UserError
from nmt.training.optimizers.optimizer_configs import AdamConfig
from nmt.verbs import VERBS

TOY = (
    "experiment=toy_en_fr",
    "trainer.max_steps=3",
    "trainer.log_every_steps=1",
    "trainer.num_samples=0",
    "tracking.sinks=[jsonl]",
    "runtime.device=cpu",
)


def test_a_training_ends_as_a_run_and_the_same_call_finds_it(tmp_path: Path) -> None:
    run = nmt.train(*TOY, run=tmp_path / "run", seed=2)
    assert (run.path, run.cfg.seed) == (tmp_path / "run", 2)
    assert run.results is not None
    assert run.results["step"] == 3
    assert [row["step"] for row in run.metrics if "train/loss" in row] == [1, 2, 3]
    assert [row["step"] for row in run.metrics if "valid/loss" in row] == [3]
    before = (run.path / "results.json").stat().st_mtime_ns
    again = nmt.train(*TOY, run=tmp_path / "run", seed=2)
    assert again.results == run.results
    assert (run.path / "results.json").stat().st_mtime_ns == before
    assert run.evaluate().values == pytest.approx(run.results["test"])


def test_values_reach_the_config_as_they_are() -> None:
    settings: dict[str, Any] = {
        "data": "demo",
        "run": "a b, ${c} 'd' {e}=[f]\\",
        "metrics": ["chrf", "ter"],
        "model": {"tying": "tgt_output"},
        "tokenizer": {"joint": False},
        "optimizer": {"beta2": 1e-7},
        "trainer": {"max_steps": 7, "max_minutes": None},
        "trainer.patience": 4,
    }
    (trial,) = compose(VERBS["train"], [*scripting.written(settings)])
    cfg = trial.to_config(TrainConfig)
    assert cfg.run == settings["run"]
    assert (cfg.metrics, cfg.tokenizer.joint) == (["chrf", "ter"], False)
    assert isinstance(cfg.optimizer, AdamConfig)
    assert cfg.optimizer.beta2 == 1e-7
    assert (cfg.trainer.max_steps, cfg.trainer.max_minutes, cfg.trainer.patience) == (7, None, 4)


def test_what_is_wrong_is_an_exception(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"unknown key trainer.max_stps; did you mean trainer.max_steps\?"):
        nmt.train(trainer={"max_stps": 3})
    with pytest.raises(UserError, match=r"nmt\.train takes GROUP=CHOICE and key=value, but not '-m'"):
        nmt.train("-m", "seed=1,2")
    with pytest.raises(UserError, match=r"debug=\.\.\. and dry_run=true make none"):
        nmt.train("experiment=toy_en_fr", "trainer.max_steps=2", dry_run=True, run=str(tmp_path / "run"))
    with pytest.raises(UserError, match="is no value of a config"):
        nmt.train(seed=object())


def test_it_is_for_the_main_thread() -> None:
    found: list[BaseException] = []

    def call() -> None:
        try:
            nmt.train()
        except UserError as error:
            found.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert "nmt.train must be called in the main thread" in str(found[0])


def test_ctrl_c_is_that_of_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise Interrupted(
            signal.SIGINT, "stopped by SIGINT after step 3; the same command goes on from there"
        )

    monkeypatch.setattr("nmt.scripting.train_run", stopped)
    with pytest.raises(KeyboardInterrupt, match="after step 3"):
        nmt.train(*TOY, run=tmp_path / "run")
