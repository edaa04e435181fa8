"""The words that a shell offers, and the scripts that ask for them."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nmt.cli import SHELLS
from nmt.config.completion import REMOVAL, SCRIPTS, completions
from nmt.verbs import VERBS
from tests.runs.untrained import untrained

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("nmt ", {*VERBS, "help"}),
        ("nmt tr", {"train", "translate"}),
        ("nmt help ev", {"evaluate"}),
        ("nmt nothing mo", set()),
        ("nmt train optimizer.bet", {"optimizer.beta1=", "optimizer.beta2="}),
        ("nmt train optimizer=muon optimizer.it", {"optimizer.iterations="}),
        ("nmt train optimizer.na", set()),
        ("nmt train schedul", {"schedule="} | {f"schedule.{key}=" for key in ("factor", "warmup_steps")}),
        ("nmt train model=transformer_b", {"model=transformer_base", "model=transformer_big"}),
        ("nmt train nothing=1 model=gp", {"model=gpt"}),
        ("nmt evaluate decoding=g", {"decoding=greedy"}),
        ("nmt distil distil.decoding=g", {"distil.decoding=greedy"}),
        ("nmt train runtime.precision=f", {"runtime.precision=fp16", "runtime.precision=fp32"}),
        ("nmt train runtime.compile=", {"runtime.compile=false", "runtime.compile=true"}),
        ("nmt train debug=s", {"debug=smoke"}),
        ("nmt train metrics=[bleu,c", {"metrics=[bleu,chrf", "metrics=[bleu,chrf++", "metrics=[bleu,comet"}),
        ("nmt train tracking.sinks=[j", {"tracking.sinks=[jsonl"}),
        ("nmt train --help opt", {"optimizer"}),
        ("nmt train --mul", {"--multirun"}),
        ("nmt train -m sweep.p", {f"sweep.{key}=" for key in ("parallel", "processes", "pruner")}),
        ("nmt train -m sweep.sampler=g", {"sweep.sampler=grid"}),
        ("nmt train --help sw", {"sweep"}),
        ("nmt compare sw", set()),
        ("nmt serve mod", {"models="}),
        ("nmt train tuned", {"tuned_decoding="}),
        ("nmt train data.scored_split=v", {"data.scored_split=validation"}),
    ],
)
def test_words(line: str, answer: set[str], folder: Path) -> None:
    assert set(completions(VERBS, line)) == answer


def test_runs_and_checkpoints(folder: Path) -> None:
    untrained(folder / "outputs" / "a-b" / "mine")
    (folder / "outputs" / "a-b" / "mine" / "checkpoints" / "step_00000012").mkdir(parents=True)
    assert completions(VERBS, "nmt evaluate run=") == ["run=outputs/", "run=outputs/a-b/mine"]
    assert completions(VERBS, "nmt evaluate run=outputs/a-b/m") == ["run=outputs/a-b/mine"]
    for key in ("train init", "train init.run", "reproduce run"):
        assert completions(VERBS, f"nmt {key}=outputs/a-b/m") == [f"{key.split()[1]}=outputs/a-b/mine"]
    assert completions(VERBS, "nmt compare out") == ["output=", "outputs/", "outputs/a-b/mine"]
    Path("terms.tsv").touch()
    assert completions(VERBS, "nmt translate glossary=te") == ["glossary=terms.tsv"]
    assert completions(VERBS, "nmt distil teacher=[x,outputs/a-b/") == ["teacher=[x,outputs/a-b/mine"]
    steps = completions(VERBS, "nmt evaluate run=outputs/a-b/mine checkpoint=")
    assert "checkpoint=12" in steps
    assert "checkpoint=average" in steps
    assert completions(VERBS, "nmt evaluate run=outputs/a-b/mine data.toy") == []


def test_words_that_are_paths(folder: Path) -> None:
    untrained(folder / "mine" / "seed-1")
    (folder / "mine" / "seed-1" / "hypotheses").mkdir()
    (folder / "mine" / "seed-1" / "hypotheses" / "test.de").touch()
    (folder / "mine.log").touch()
    assert completions(VERBS, "nmt runs mi") == ["mine/"]
    assert completions(VERBS, "nmt compare mi") == ["mine.log", "mine/"]
    assert completions(VERBS, "nmt compare x mine/") == ["mine/seed-1"]
    assert completions(VERBS, "nmt compare mine/seed-1/hypotheses/t") == ["mine/seed-1/hypotheses/test.de"]
    assert completions(VERBS, "nmt reproduce t") == ["tolerance="]
    assert completions(VERBS, "nmt runs --help mi") == []


def test_paths(folder: Path) -> None:
    (folder / "corpus").mkdir()
    (folder / "corpus" / "train.en").touch()
    assert completions(VERBS, "nmt train data=files data.train=co") == ["data.train=corpus/"]
    assert completions(VERBS, "nmt train data=files data.train=corpus/") == ["data.train=corpus/train.en"]
    assert completions(VERBS, f"nmt translate input={folder}/corpus/t") == [f"input={folder}/corpus/train.en"]
    assert completions(VERBS, "nmt train --config-dir ") == ["corpus/"]


@pytest.mark.parametrize("option", ["--config-dir mine", "--config-dir=mine", "-cd mine"])
def test_choices_of_the_user(option: str, folder: Path) -> None:
    (folder / "mine" / "experiment").mkdir(parents=True)
    (folder / "mine" / "experiment" / "multi_own.yaml").touch()
    assert completions(VERBS, f"nmt train {option} experiment=multi_") == ["experiment=multi_own"]
    assert completions(VERBS, f"nmt train {option}/experiment experiment=multi_") == []
    assert completions(VERBS, f"nmt train {option}/nothing model=gp") == ["model=gpt"]


def test_keys_follow_a_choice_of_the_user(folder: Path) -> None:
    (folder / "mine" / "model").mkdir(parents=True)
    (folder / "mine" / "model" / "own.yaml").write_text("defaults: [rnn_luong, _self_]\n")
    for option in ("--config-dir mine", "--config-dir=mine"):
        assert completions(VERBS, f"nmt train {option} model=own model.ce") == ["model.cell="]
        assert completions(VERBS, f"nmt train {option} model=own model.d_f") == []


def test_every_shell_has_its_scripts() -> None:
    assert {*SHELLS} == {*SCRIPTS} == {*REMOVAL}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_understands_its_script(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(SCRIPTS[shell], encoding="utf-8")
    done = subprocess.run([shell, "-n", tmp_path / "script"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_bash_completes_after_an_equals_sign(tmp_path: Path) -> None:
    """Bash itself hands over, and wants, what follows the last =."""
    command = tmp_path / "nmt"
    root, python = map(shlex.quote, (str(ROOT), sys.executable))
    command.write_text(f'#!/bin/sh\nPYTHONPATH={root} exec {python} -m nmt "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    script = f"""PATH={tmp_path}:$PATH
{SCRIPTS["bash"]}
COMP_LINE="nmt train model=gp ignored" COMP_POINT=18
_nmt_complete
printf '<%s>' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("<gpt >", "")
