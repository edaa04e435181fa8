"""Runs made by an earlier version still open, score the same and go on; their keys have new names.

`tests/fixtures/run_0_1` is a whole run of version 0.1, `configs_0_1` the stored configs of its recipes.
"""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest

from nmt.config.compose import compose
from nmt.config.renames import RENAMED_KEYS
from nmt.config.stored import difference, load_config
from nmt.errors import UserError
from nmt.verbs import VERBS
from tests.integration.conftest import Command

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
CONFIGS = sorted((FIXTURES / "configs_0_1").glob("*.yaml"))
LOSS_AT_150 = 0.04862593
"""What version 0.1 validated with when its run of 100 updates was prolonged to 150."""

COMMAND = shlex.split("""
data=toy experiment=none model=transformer_tiny model.d_model=16 model.d_ff=32 model.num_heads=2
model.encoder_layers=1 model.decoder_layers=1 tokenizer=word data.max_tokens=32 data.scored_split=validation
optimizer=linear optimizer.algorithm=muon optimizer.muon_iterations=3
optimizer.peak_rate=0.02 optimizer.warmup_steps=10 optimizer.decay_steps=200
trainer.label_smoothing=0.05 trainer.accumulate=2 trainer.batch_tokens=64 trainer.eval_every_steps=50
trainer.save_every_steps=50 trainer.log_every_steps=25 trainer.keep_last=1 trainer.patience=0
decoding.length_penalty_alpha=0.7 decoding.n_best=2
runtime.kernels=false runtime.precision=fp32 runtime.device=cpu
""")
"""The command that made the run, with the keys of today."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return shutil.copytree(FIXTURES / "run_0_1", tmp_path / "run")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_stored_config_is_that_of_the_recipe_today(path: Path) -> None:
    stored = load_config(path)
    if path.stem in ("mixture", "sampling"):  # are no recipes
        return
    (trial,) = compose(VERBS["train"], [f"experiment={path.stem}"])
    assert difference(stored, trial.to_training()[0]) == []


def test_a_run_scores_the_same(run: Path, nmt: Command) -> None:
    done = nmt("evaluate", f"run={run}")
    assert done.returncode == 0, done.stderr
    assert "validation  BLEU 100.00  chrF 100.00  perplexity 1.08" in done.stdout


def test_a_finished_run_is_reported(run: Path, nmt: Command) -> None:
    done = nmt("train", f"run={run}", *COMMAND, "trainer.max_steps=100")
    assert done.returncode == 0, done.stderr
    assert f"{run} is finished:" in done.stdout


def test_a_run_goes_on_as_it_would_have(run: Path, nmt: Command) -> None:
    done = nmt("train", f"run={run}", *COMMAND, "trainer.max_steps=150")
    assert done.returncode == 0, done.stderr
    assert "going on after step 100" in done.stderr
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == 150
    assert last["valid/loss"] == pytest.approx(LOSS_AT_150, rel=0.01)


@pytest.mark.parametrize("old", RENAMED_KEYS)
def test_a_renamed_key_is_refused_with_its_new_name(old: str) -> None:
    with pytest.raises(UserError, match=f"{old} is called {RENAMED_KEYS[old]} now"):
        compose(VERBS["train"], [f"{old}=1"])
