"""Every family through the command line: it learns to copy, and an interruption leaves no trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.integration.conftest import Command

FAMILIES = {
    "rnn_plain": [
        *("model=rnn_plain", "model.d_model=192", "model.encoder_layers=1", "model.decoder_layers=1"),
        *("trainer.batch_tokens=1024", "schedule.peak_rate=0.003", "schedule.warmup_steps=100"),
    ],
    "rnn_bahdanau": ["model=rnn_bahdanau", "model.d_model=64"],
    "rnn_luong": ["model=rnn_luong", "model.d_model=64"],
    "conv": ["model=conv", "model.d_model=64", "model.encoder_layers=2", "model.decoder_layers=2"],
    "gpt": ["model=gpt", "model.d_model=64", "model.d_ff=128", "model.num_layers=2"],
}
"""Small models; the Transformer is what all other tests here use."""
LIKE_OTHERS = ("rnn_plain", "rnn_bahdanau")
"""Families that share their code with rnn_luong, all but the attention, which has tests of its own."""
every_family = pytest.mark.parametrize(
    "family", [pytest.param(name, marks=pytest.mark.slow if name in LIKE_OTHERS else ()) for name in FAMILIES]
)


@pytest.fixture
def small(tiny: list[str], family: str) -> list[str]:
    """Return the overrides of `tiny` with another model."""
    own = FAMILIES[family]
    return [*(x for x in tiny if not x.startswith("model.")), own[0], "model.dropout=0", *own[1:]]


@pytest.mark.slow  # test_command_line has it for the Transformer, test_contract eight pairs for every family
@every_family
def test_learns_to_copy(nmt: Command, small: list[str], family: str, tmp_path: Path) -> None:
    run = tmp_path / family
    steps = 600 if family == "rnn_plain" else 300
    limits = [f"trainer.{name}={steps}" for name in ("max_steps", "eval_every_steps", "save_every_steps")]
    done = nmt("train", f"run={run}", *small, *limits)
    assert done.returncode == 0, done.stderr
    least = 90 if family == "rnn_plain" else 98  # a single vector has to hold the whole sentence
    assert json.loads((run / "results.json").read_text())["test"]["bleu"] > least
    again = nmt("evaluate", f"run={run}")
    assert done.stdout.split("test ")[1].splitlines()[0] == again.stdout.split("test ")[1].splitlines()[0]


@pytest.mark.parametrize(
    "family", ["gpt", *(pytest.param(x, marks=pytest.mark.slow) for x in FAMILIES if x != "gpt")]
)
def test_a_resumed_training_is_the_uninterrupted_one(
    nmt: Command, small: list[str], family: str, tmp_path: Path
) -> None:
    options = [*small, "model.dropout=0.2", "trainer.save_every_steps=10", "trainer.eval_every_steps=20"]
    for run, limits in (("whole", [20]), ("resumed", [10, 20])):
        for limit in limits:
            done = nmt("train", f"run={tmp_path / run}", *options, f"trainer.max_steps={limit}")
            assert done.returncode == 0, done.stderr
    weights = [
        load_file(tmp_path / run / "checkpoints" / "step_00000020" / "model.safetensors")
        for run in ("whole", "resumed")
    ]
    assert weights[0].keys() == weights[1].keys()
    assert all(weights[0][name].equal(weights[1][name]) for name in weights[0])
