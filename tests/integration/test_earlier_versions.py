"""Runs made by an earlier version still open, score the same and go on; their keys have new names.

`tests/fixtures/run_0_1` is a whole run of version 0.1, `configs_0_1` the stored configs of its recipes, and
`run_0_1_adam` a run of the first version that says in its manifests which one it is. A run of a later version
is stored likewise: that of a command below, without tensorboard/ and without what names a machine, and the
losses of the ten updates after it.
"""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from nmt.config.compose import compose
from nmt.config.renames import RENAMED_CHOICES, RENAMED_KEYS, migrate
from nmt.config.stored import difference, load_config
from nmt.errors import UserError
from nmt.verbs import VERBS
from tests.integration.conftest import Command

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
CONFIGS = sorted((FIXTURES / "configs_0_1").glob("*.yaml"))
LOSS_AT_150 = 0.04862593
"""What version 0.1 validated with when its run of 100 updates was prolonged to 150."""
LOSSES_FROM_101 = [
    0.6564423056209788,
    0.6992928561042336,
    0.6556197334738338,
    0.698880251716165,
    0.6332874298095703,
    0.6476476332720589,
    0.6408816505880917,
    0.6198389389935661,
    0.6707252614638385,
    0.6293017443488625,
]
"""What version 0.1 logged for the ten updates after those that it had saved; on its machine, bit for bit."""

COMMAND = shlex.split("""
data=toy experiment=none model=transformer_tiny model.d_model=16 model.d_ff=32 model.num_heads=2
model.encoder_layers=1 model.decoder_layers=1 tokenizer=word data.max_tokens=32 data.scored_split=validation
optimizer=muon optimizer.iterations=3
schedule=linear schedule.peak_rate=0.02 schedule.warmup_steps=10 schedule.decay_steps=200
objective.label_smoothing=0.05 trainer.accumulate=2 trainer.batch_tokens=64 trainer.eval_every_steps=50
trainer.save_every_steps=50 trainer.log_every_steps=25 trainer.keep_last=1 trainer.patience=0
decoding.length_penalty_alpha=0.7 decoding.n_best=2
runtime.kernels=false runtime.precision=fp32 runtime.device=cpu
""")
"""The command that made the run, with the keys of today."""

CHANGED = ("optimizer", "schedule.decay_steps", "schedule=", "decoding")
ADAM_COMMAND = [
    *(word for word in COMMAND if not word.startswith(CHANGED)),
    *("optimizer=adam", "schedule=inverse_sqrt", "tokenizer.normalization=identity", "decoding=greedy"),
]
ADAM_LOSSES_FROM_51 = [
    1.114531909718233,
    1.0290531831629135,
    1.024532205918256,
    1.1268240984748392,
    0.9503005532657399,
    0.9531683080336627,
    0.9193718854118796,
    0.9208032944623161,
    0.9239422293270335,
    0.9688296598546645,
]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return shutil.copytree(FIXTURES / "run_0_1", tmp_path / "run")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_stored_config_is_that_of_the_recipe_today(path: Path) -> None:
    stored = load_config(path)
    if path.stem in ("mixture", "sampling", "multi30k_fast"):  # no recipes, or another one today
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


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def losses(lines: list[dict[str, Any]], first: int) -> list[float]:
    """Return the training losses of ten steps."""
    found = {line["step"]: line["train/loss"] for line in lines if "train/loss" in line}
    return [found[step] for step in range(first, first + 10)]


@pytest.mark.fault(15)
def test_a_run_goes_on_as_it_would_have(run: Path, nmt: Command) -> None:
    done = nmt("train", f"run={run}", *COMMAND, "trainer.log_every_steps=1", "trainer.max_steps=150")
    assert done.returncode == 0, done.stderr
    assert "going on after step 100" in done.stderr
    lines = metrics(run)
    # Muon rounds its products to bf16 where the processor multiplies that faster.
    assert losses(lines, 101) == pytest.approx(LOSSES_FROM_101, rel=2e-4)
    assert lines[-1]["step"] == 150
    assert lines[-1]["valid/loss"] == pytest.approx(LOSS_AT_150, rel=0.01)


@pytest.mark.fault(15)
def test_a_run_with_adam_goes_on_as_it_would_have(tmp_path: Path, nmt: Command) -> None:
    run = shutil.copytree(FIXTURES / "run_0_1_adam", tmp_path / "run")
    done = nmt("train", f"run={run}", *ADAM_COMMAND, "trainer.log_every_steps=1", "trainer.max_steps=60")
    assert done.returncode == 0, done.stderr
    assert "going on after step 50" in done.stderr
    assert losses(metrics(run), 51) == pytest.approx(ADAM_LOSSES_FROM_51, rel=1e-5)


CHOSEN = {"optimizer.algorithm": "optimizer=muon", "optimizer.schedule": "schedule=linear"}
"""Keys of earlier versions that are choices now -> what they are called with the value of the run."""


def refusal(*overrides: str) -> str:
    with pytest.raises(UserError) as error:
        compose(VERBS["train"], list(overrides))
    return str(error.value)


@pytest.mark.parametrize("old", [key for key in RENAMED_KEYS if key not in CHOSEN])
def test_a_renamed_key_is_refused_with_its_new_name(old: str) -> None:
    assert refusal(f"{old}=1") == f"'{old}=1': {old} is called {RENAMED_KEYS[old]} now"


@pytest.mark.parametrize(("old", "new"), CHOSEN.items())
def test_a_key_that_became_a_choice_is_refused_with_it(old: str, new: str) -> None:
    value = new.partition("=")[2]
    assert refusal(f"{old}={value}") == f"'{old}={value}': {old} follows from {new} now"


@pytest.mark.parametrize(("old", "new"), RENAMED_CHOICES.items())
def test_a_schedule_is_no_optimizer(old: str, new: str) -> None:
    assert refusal(old) == f"there is no {old}; a schedule is chosen by {new} now"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "optimizer: {warmup_steps: 7}",
            "mine.yaml: unknown key optimizer.warmup_steps; it is called schedule.warmup_steps now",
        ),
        (
            "optimizer: {algorithm: muon}",
            "mine.yaml: unknown key optimizer.algorithm; it follows from optimizer=... now",
        ),
        (
            "defaults: [override /optimizer: linear]",
            "there is no optimizer=linear; a schedule is chosen by schedule=linear now",
        ),
    ],
)
def test_a_file_of_the_user_is_told_the_new_names(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "experiment" / "mine.yaml"
    file.parent.mkdir()
    file.write_text(f"# @package _global_\n{text}\n")
    assert refusal("experiment=mine", f"--config-dir={tmp_path}").endswith(message)


@pytest.mark.parametrize(
    ("algorithm", "kept"), [("muon", {"name": "muon", "rms": 0.2}), ("adam", {"name": "adam"})]
)
def test_what_was_stored_for_muon_alone_is_dropped_elsewhere(algorithm: str, kept: dict[str, Any]) -> None:
    plain = {"optimizer": {"schedule": "noam", "algorithm": algorithm, "muon_rms": 0.2, "warmup_steps": 9}}
    migrate(plain)
    assert plain == {"optimizer": kept, "schedule": {"name": "noam", "warmup_steps": 9}}


def test_a_key_under_both_names_is_refused(tmp_path: Path) -> None:
    text = (FIXTURES / "configs_0_1" / "demo.yaml").read_text()
    file = tmp_path / "config.yaml"
    file.write_text(f"{text}\nschedule: {{warmup_steps: 3}}\n")
    with pytest.raises(
        UserError, match=r"unknown key optimizer\.warmup_steps; it is called schedule\.warmup_steps now"
    ):
        load_config(file)
