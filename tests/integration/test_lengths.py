"""A training whose lengths are typed in epochs and target tokens, from the command line."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from nmt import cli
from nmt.config.stored import load_config

COMMAND = shlex.split("""
train experiment=none data=toy data.max_tokens=32 trainer.batch_tokens=32 tokenizer=word
model.d_model=16 model.num_heads=2 model.encoder_layers=1 model.decoder_layers=1 trainer.num_samples=0
schedule=linear decoding=greedy tracking.sinks=[train_log] trainer.max_steps=null trainer.max_epochs=4
""")
UNITS = [
    "schedule.warmup_steps=0.5 epochs",
    "schedule.decay_steps=4 epochs",
    "trainer.eval_every_steps=2epochs",
    "trainer.save_every_steps=60 tokens",
]


def weights(run: Path, step: int) -> bytes:
    return (run / f"checkpoints/step_{step:08d}/model.safetensors").read_bytes()


def test_a_run_counts_once_and_goes_on_by_the_same_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, whole, plain, ended = (tmp_path / name for name in ("run", "whole", "plain", "ended"))
    assert cli.main([*COMMAND, *UNITS, f"run={whole}"]) == 0
    assert (
        "schedule.decay_steps='4 epochs' is about 12 updates of 3 an epoch"
        in (whole / "train.log").read_text()
    )
    stored = load_config(whole / "config.yaml")
    assert stored.trainer.epoch_steps == 3
    assert str(stored.trainer.eval_every_steps) == "2epochs"
    assert stored.trainer.update_tokens == 23  # 68 tokens, end of sentence included, in three updates

    assert cli.main([*COMMAND, *UNITS, f"run={run}", "trainer.max_epochs=2"]) == 0
    assert cli.main([*COMMAND, *UNITS, f"run={run}"]) == 0
    assert weights(run, 12) == weights(whole, 12)

    limit = ["schedule.decay_steps=null", "trainer.max_steps=4 epochs", "trainer.max_epochs=null"]
    assert cli.main([*COMMAND, *UNITS, *limit, f"run={ended}"]) == 0  # the decay follows the limit
    assert weights(ended, 12) == weights(whole, 12)

    same = ["schedule.warmup_steps=2", "schedule.decay_steps=12"]
    every = ["trainer.eval_every_steps=6", "trainer.save_every_steps=3"]
    assert cli.main([*COMMAND, *same, *every, f"run={plain}"]) == 0
    assert weights(plain, 12) == weights(whole, 12)

    capsys.readouterr()
    assert cli.main([*COMMAND, *UNITS, f"run={run}", "trainer.epoch_steps=5"]) == 2
    assert "trainer.epoch_steps: 3 -> 5" in capsys.readouterr().err


def test_a_stream_has_no_epochs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits = ["data.streaming=true", "trainer.max_epochs=null", "trainer.max_steps=3"]
    assert cli.main([*COMMAND, *UNITS[1:2], *limits, f"run={tmp_path / 'run'}"]) == 2
    assert (
        "schedule.decay_steps='4 epochs' counts passes over the training split, but data.streaming=true has "
        "none; give a number of updates, or of tokens such as '10M tokens'" in capsys.readouterr().err
    )
