"""Bidirectional training, then one direction, through the command line; and stages of a stream."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from nmt.config.compose import compose
from nmt.config.roots import TrainConfig
from nmt.config.stored import load_config
from nmt.data.parallel_text import Split
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.errors import UserError
from nmt.verbs import VERBS
from tests.integration.conftest import Command
from tests.integration.test_resume import killed_and_resumed, outcome

BOTH_WAYS = [
    "data=mixture",
    "data.corpora={forward: {name: toy}, backward: {name: toy, src: fr, tgt: en, tag: back}}",
    "data.tgt=fr",
    "data.stages=[{until: 0.25, weights: {forward: 1, backward: 1}}, {weights: {forward: 1}}]",
]
MODEL = [
    "tokenizer=word",
    "model=transformer_tiny",
    "model.d_model=16",
    "model.d_ff=32",
    "model.num_heads=2",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "schedule=constant",
    "schedule.peak_rate=0.01",
    "schedule.warmup_steps=0",
    "decoding=greedy",
    "data.max_tokens=16",
    "trainer.batch_tokens=48",
    "trainer.log_every_steps=1",
    "runtime.device=cpu",
]
STEPS = ["trainer.max_steps=20", "trainer.eval_every_steps=10", "trainer.save_every_steps=5"]
STREAM = ["data.streaming=true", "data.buffer_pairs=8", "data.temperature=null"]


@pytest.fixture(scope="module")
def trained(nmt: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("stages") / "run"
    done = nmt("train", f"run={run}", *BOTH_WAYS, *MODEL, *STEPS)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert "stage 1 until step 5: forward 50.0%, backward 50.0%" in lines, done.stderr
    assert "stage 2: forward 100.0%" in lines
    assert "validation data: 10 pairs, up to 10 of them also in the training data" in lines
    assert f"nmt translate run={run} < source.txt" in done.stdout  # no tgt is asked for
    return run


def test_the_metrics_tell_the_stage(trained: Path) -> None:
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    stages = {line["step"]: line["train/stage"] for line in lines if "train/loss" in line}
    assert stages == {step: 1 if step <= 5 else 2 for step in range(1, 21)}


def test_the_run_translates_the_direction_of_the_last_stage(nmt: Command, trained: Path) -> None:
    done = nmt("translate", f"run={trained}", stdin="i am tired\n")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 1), done.stderr
    assert nmt("translate", f"run={trained}", "tgt=fr", stdin="i am tired\n").stdout == done.stdout
    done = nmt("translate", f"run={trained}", "tgt=en", stdin="je suis\n")
    assert (done.returncode, "tgt=en: the run translates into fr" in done.stderr) == (2, True), done.stderr
    assert nmt("evaluate", f"run={trained}").returncode == 0
    assert (trained / "hypotheses" / "test.fr").exists()
    done = nmt("evaluate", f"run={trained}", "data=toy", "data.src=fr", "data.tgt=en")
    assert "the run translates en to fr, but data is fr to en" in done.stderr
    tokenizer = Tokenizer.load(load_config(trained / "config.yaml").tokenizer, trained)
    pieces = tokenizer.src_pieces(["<back> je"])[0]
    assert pieces[0].text == "\N{LOWER ONE EIGHTH BLOCK}<back>"


def test_a_share_of_the_training_fixes_its_length(nmt: Command, trained: Path) -> None:
    done = nmt("train", f"run={trained}", *BOTH_WAYS, *MODEL, *STEPS)
    assert "is finished" in done.stdout, done.stderr
    done = nmt("train", f"run={trained}", *BOTH_WAYS, *MODEL, *STEPS, "trainer.max_steps=40")
    assert (done.returncode, "trainer.max_steps: 20 -> 40" in done.stderr) == (2, True), done.stderr
    done = nmt(
        "train", f"run={trained}x", *BOTH_WAYS, *MODEL, "trainer.max_steps=null", "trainer.max_epochs=3"
    )
    assert "data.stages[0].until=0.25 is a share of trainer.max_steps, which is null" in done.stderr
    assert done.returncode == 2


@pytest.mark.slow
def test_a_number_of_updates_does_not(nmt: Command, trained: Path, tmp_path: Path) -> None:
    options = [*BOTH_WAYS[:3], BOTH_WAYS[3].replace("0.25", "5"), *MODEL, *STEPS]
    first = nmt("train", f"run={tmp_path / 'run'}", *options, "trainer.max_steps=4")
    assert "stage 2 (never: trainer.max_steps is 4): forward 100.0%" in first.stderr, first.stderr
    done = nmt("train", f"run={tmp_path / 'run'}", *options)
    assert done.returncode == 0, done.stderr
    mine, other = (outcome_of(run) for run in (tmp_path / "run", trained))
    assert mine == other


def outcome_of(run: Path) -> list[bytes]:
    last = run / "checkpoints" / "step_00000020"
    return [(last / name).read_bytes() for name in ("model.safetensors", "optimizer.safetensors")]


@pytest.mark.slow
def test_a_stream_has_stages(nmt: Command, tmp_path: Path) -> None:
    """In pieces of a few updates, around the end of the first stage and elsewhere, as in one go."""
    options = [*BOTH_WAYS[:3], BOTH_WAYS[3].replace("0.25", "5"), *MODEL, *STEPS, *STREAM]
    straight = nmt("train", f"run={tmp_path / 'straight'}", *options)
    assert straight.returncode == 0, straight.stderr
    for last in (4, 5, 6, 20):
        done = nmt("train", f"run={tmp_path / 'run'}", *options, f"trainer.max_steps={last}")
        assert done.returncode == 0, done.stderr
    assert outcome_of(tmp_path / "run") == outcome_of(tmp_path / "straight")


DOCS = Path(__file__).resolve().parents[2] / "docs" / "data.md"


def test_the_recipes_of_the_manual_are_configs(tmp_path: Path) -> None:
    command, file = (DOCS.read_text().partition("### Stages")[2].split("```")[i] for i in (1, 3))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "back_translation.yaml").write_text(file)
    chosen = ["--config-dir", str(tmp_path), "data=back_translation", "trainer.max_steps=50000"]
    for arguments, ends in ((shlex.split(command)[2:], [6600]), (chosen, [40_000])):
        (trial,) = compose(VERBS["train"], [word for word in arguments if word != "\n"])
        trial.checked(VERBS["train"])
        cfg = trial.to_config(TrainConfig)
        assert cfg.data.last_updates(cfg.trainer.max_steps) == ends
        assert cfg.data.languages == [("en", "de")]
    assert cfg.data.origin_tags == {"synthetic": "<bt>"}
    assert cfg.data.shares([100, 900]) == [0.5, 0.5]


def test_the_folder_and_the_languages_of_the_recipe_are_said_once() -> None:
    overrides = ["experiment=multi30k_bidirectional", "data.corpora.forward.path=/data", "data.tgt=fr"]
    (trial,) = compose(VERBS["train"], overrides)
    cfg, _ = trial.to_training()
    forward, backward = cfg.data.parts(Split.train).values()
    assert (forward.src, forward.tgt, backward.src, backward.tgt) == ("en", "fr", "fr", "en")
    assert forward.origins == backward.origins == {"/data"}
    assert list(cfg.data.parts(Split.test)) == ["forward"]
    assert cfg.data.last_updates(cfg.trainer.max_steps) == [1650]


@pytest.mark.slow
@pytest.mark.fault(1, 8)
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("step", [4, 5, 6])
def test_a_run_that_is_killed_around_the_end_of_a_stage_goes_on(
    nmt: Command, environment: dict[str, str], tmp_path: Path, step: int, streaming: bool
) -> None:
    options = [*BOTH_WAYS, *MODEL, *STEPS, "trainer.save_every_steps=1", "trainer.keep_last=30"]
    options += [
        "trainer.average=3",
        "trainer.accumulate=2",
        "model.dropout=0.2",
        *(STREAM if streaming else []),
    ]
    straight = nmt("train", f"run={tmp_path / 'straight'}", *options)
    assert straight.returncode == 0, straight.stderr
    run = killed_and_resumed(nmt, options, environment, tmp_path / "run", step)
    assert outcome(run, 20) == outcome(tmp_path / "straight", 20)


def test_stages_at_shares_of_a_limit_with_a_unit_are_refused() -> None:
    with pytest.raises(
        UserError, match=r"data\.stages end at shares of trainer\.max_steps, .* but is '4 epochs'; give that"
    ):
        compose(VERBS["train"], [*BOTH_WAYS, *MODEL, "trainer.max_steps='4 epochs'"])
