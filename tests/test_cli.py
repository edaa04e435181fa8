"""The command line: help, errors and their exit codes, sweeps, completion."""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

import nmt
from nmt.cli import main
from nmt.config.compose import compose
from nmt.config.overrides import config_dir, parse_flags
from nmt.config.roots import TrainConfig
from nmt.config.stored import save_config
from nmt.config.verb import Verb
from nmt.errors import UserError
from nmt.files import locked
from nmt.verbs import VERBS
from nmt.verbs.configs import GenerateConfig

ROOT = Path(__file__).resolve().parents[1]


def offered(group: str, *others: str) -> str:
    """Return the choices of a group as an error lists them."""
    return ", ".join(sorted([file.stem for file in (config_dir() / group).glob("*.yaml")] + [*others]))


MODELS = offered("model")
VERB_LIST, VERB_CHOICE = ", ".join(VERBS), "|".join(VERBS)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run() -> str:
    """Return a run directory with nothing but its config."""
    (composed,) = compose(VERBS["train"], [])
    Path("outputs/mine").mkdir(parents=True)
    save_config(composed.to_config(TrainConfig), Path("outputs/mine/config.yaml"))
    return "outputs/mine"


def nmt_process(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nmt", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, **options)


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["help"]])
def test_help_names_the_verbs(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert all(re.search(rf"^  {verb} ", out, flags=re.MULTILINE) for verb in VERBS)


def test_no_verb_shows_the_help_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage: nmt VERB" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"nmt {nmt.__version__}\n"


def test_help_of_train_lists_groups_choices_and_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help", "model=transformer_base", "trainer.patience=1"]) == 0
    out = capsys.readouterr().out
    for group in VERBS["train"].groups:
        assert re.search(rf"^  {group} ", out, flags=re.MULTILINE)
        assert all(file.stem in out for file in (config_dir() / group).glob("*.yaml"))
    assert "*transformer_base" in out
    assert "base_transformer" not in out
    assert re.search(r"model\.d_model=512 +Width of the hidden representation\.", out)
    assert re.search(r"trainer\.patience=1 +Stop after", out)
    assert re.search(r"runtime\.compile=false ", out)
    assert re.search(r"seed=1 ", out)
    assert re.search(r"metrics=\[auto\] ", out)


@pytest.mark.parametrize("verb", [name for name, verb in VERBS.items() if verb.opens_run])
def test_help_needs_no_run(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    out = capsys.readouterr().out
    what = "whose tokenizer splits the" if verb == "shortlist" else "; \\[A,B\\] is an ensemble\\."
    assert re.search(rf"^    run= +Run directory ?{what}$", out, flags=re.MULTILINE)
    assert ("*sampling" if verb == "generate" else "*from_run") in out
    assert f"nmt {verb} run=outputs/mine" in out


def test_help_of_evaluate_shows_the_values_of_the_run(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", f"run={run}", "decoding.beam_size=7", "--help"]) == 0
    assert "decoding.beam_size=7" in capsys.readouterr().out


def test_cfg_prints_the_config_and_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--cfg", "job", "--resolve", "seed=5"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert (shown["seed"], shown["model"]["d_model"], shown["run"]) == (5, 128, None)
    assert list(tmp_path.iterdir()) == []


def test_info_shows_how_the_config_is_composed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])  # Hydra shows it as a log
    monkeypatch.setattr(logging.root, "level", logging.root.level)
    assert main(["train", "--info", "defaults"]) == 0
    assert "model/transformer_tiny" in capsys.readouterr().out


def test_a_setting_behind_info_is_not_what_it_shows(tmp_path: Path) -> None:
    for words in (["--info", "data=files"], ["-i", "data=files"], ["data=files", "--info"]):
        flags = parse_flags(VERBS["train"], words)
        assert (flags.info, flags.overrides) == ("all", ["data=files"])
    flags = parse_flags(VERBS["compare"], ["--info", str(tmp_path)])
    assert (flags.info, flags.overrides) == ("all", [f"run='{tmp_path}'"])
    assert parse_flags(VERBS["train"], ["--info", "config", "seed=2"]).info == "config"
    with pytest.raises(UserError, match="invalid choice: 'defualts'"):
        parse_flags(VERBS["train"], ["--info", "defualts"])


def test_verbs_that_write_no_run_do_not_ask_for_its_lock(
    run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """So the corpus of a training can be looked at while it goes on."""
    with locked(Path(run), ""):
        for verb in ("train", "distil", "import"):
            assert main([verb, f"run={run}", "seed=x"]) == 2
            assert f"{run} is in use by process" in capsys.readouterr().err
        for verb in ("doctor", "prepare"):
            assert main([verb, f"run={run}", "seed=x"]) == 2
            assert capsys.readouterr().err.startswith("error: seed must be a whole number, but is 'x'")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            "trian",
            f"there is no verb 'trian'; did you mean 'train'?; the verbs are {VERB_LIST}",
        ),
        ("help trian", f"there is no verb 'trian'; did you mean 'train'?; the verbs are {VERB_LIST}"),
        ("--help trian", f"there is no verb 'trian'; did you mean 'train'?; the verbs are {VERB_LIST}"),
        ("seed=1", f"the verb comes first: nmt {VERB_CHOICE} seed=1 ..."),
        ("--cfg", f"the verb comes first: nmt {VERB_CHOICE} --cfg ..."),
        ("-sc", "say nmt -sc install=SHELL or uninstall=SHELL, with SHELL one of bash, fish, zsh"),
        (
            "-sc install=ksh",
            "say nmt -sc install=SHELL or uninstall=SHELL, with SHELL one of bash, fish, zsh",
        ),
        (
            "train --foo",
            "--foo is no option; settings are written without dashes, as one word: foo=...; "
            "nmt train --help shows what there is",
        ),
        (
            "train --model.dropout=0.2 --foo",
            "--model.dropout is no option; settings are written without dashes, as one word: "
            "model.dropout=0.2; nmt train --help shows what there is",
        ),
        (
            "train model.dropout = 0.2 seed =3",
            "a setting is one word, without spaces around =; write model.dropout=0.2 seed=3",
        ),
        (
            "train seed=1..3",
            "seed must be a whole number, but is '1..3'; to try each, add -m and write 'seed=range(1,4)'",
        ),
        (
            "train --experimental-rerun x",
            "unrecognized arguments: --experimental-rerun; nmt train --help shows what there is",
        ),
        (
            "train --info -m",
            "--info goes with neither --cfg nor --multirun; nmt train --help shows what there is",
        ),
        (
            "train --cfg all -m",
            "--multirun goes with --cfg job, which shows the trials; nmt train --help shows what there is",
        ),
        ("train --resolve", "--resolve belongs to --cfg; nmt train --help shows what there is"),
        ("train -cd nowhere", "--config-dir nowhere is not a directory"),
        ("train demo", "'demo' is not understood; write key=value, such as trainer.max_steps=500"),
        (
            "train run={a",
            "'run={a' is not understood; quote special characters, for Hydra and for the shell: "
            "\"key='a, b'\"",
        ),
        ("train =5", "'=5' has no key; write key=value"),
        ("train model.num_head=4", "unknown key model.num_head; did you mean model.num_heads?"),
        ("train modle.d_model=4", "unknown key modle; did you mean model?"),
        ("train d_model=4", "unknown key d_model; did you mean model.d_model?"),
        (
            "train batch_tokens=4",
            "unknown key batch_tokens; did you mean trainer.batch_tokens or decoding.batch_tokens?",
        ),
        (
            "train runtime.colour=1",
            "unknown key runtime.colour; "
            "the keys here are device, precision, tf32, threads, kernels, compile, parallel, "
            "timeout_minutes, grace_seconds, requeue",
        ),
        (
            "train schedule.reduce_factor=1",
            "unknown key schedule.reduce_factor; plateau has it, but schedule.name=noam: "
            "choose another with schedule=...",
        ),
        (
            "train data.path=x",
            "unknown key data.path; hub or hub_labels has it, but data.name=demo: "
            "choose another with data=...",
        ),
        (
            "train experiment=multi30k_en_de schedule=noam",
            "experiment/multi30k_en_de.yaml: unknown key schedule.peak_rate; inverse_sqrt or linear or "
            "cosine or wsd or exponential or step or plateau or constant has it, but schedule.name=noam: "
            "choose another with schedule=...",
        ),
        ("train model.d_model=many", "model.d_model must be a whole number, but is 'many'"),
        ("train model.d_model=1.5", "model.d_model must be a whole number, but is 1.5"),
        ("train model.d_model=null", "model.d_model must be a whole number, but is null"),
        (
            "train trainer.eval_every_steps=null",
            "trainer.eval_every_steps must be a number of updates such as 500, or of epochs or target tokens "
            "such as '2 epochs' or '10M tokens', but is null",
        ),
        ("train model.d_model.x=1", "model.d_model must be a whole number, but is a group of keys"),
        ("train model.dropout=x", "model.dropout must be a number, but is 'x'"),
        ("train trainer.max_minutes=x", "trainer.max_minutes must be a number or null, but is 'x'"),
        ("train runtime.compile=x", "runtime.compile must be true or false, but is 'x'"),
        (
            "train model.norm_order=prae",
            "model.norm_order must be one of pre, post, but is 'prae'; did you mean 'pre'?",
        ),
        (
            "train metrics=[blue]",
            "metrics[0] must be one of bleu, spbleu, chrf, chrf++, ter, comet, accuracy, macro_f1, micro_f1, "
            "but is 'blue'; "
            "did you mean 'bleu'?",
        ),
        (
            "train metrics=5",
            "metrics must be a list in brackets, each entry text, but is 5; write metrics=[5]",
        ),
        ("train data.src=[en]", "data.src must be text, but is ['en']"),
        (
            "train runtime=5",
            "runtime must be a group of keys "
            "(device, precision, tf32, threads, kernels, compile, parallel, "
            "timeout_minutes, grace_seconds, requeue), but is 5",
        ),
        (
            "train model=transformer_tini",
            f"there is no model=transformer_tini; did you mean 'transformer_tiny'?; model can be {MODELS}",
        ),
        (
            "train experiment=multi30k_en",
            "there is no experiment=multi30k_en; did you mean 'multi30k_en_de'?; "
            f"experiment can be {offered('experiment')}",
        ),
        (
            "train trainer.max_steps=1e5",
            "trainer.max_steps must be a whole number, but is 100000.0; write 100000",
        ),
        (
            "train trainer.max_epochs=1.5k",
            "trainer.max_epochs must be a whole number or null, but is '1.5k'; write 1500",
        ),
        (
            "train trainer.max_minutes=8h",
            "trainer.max_minutes must be a number or null, but is '8h'; write 480",
        ),
        (
            "train runtime.grace_seconds=1min",
            "runtime.grace_seconds must be a number, but is '1min'; write 60",
        ),
        (
            "train experiment=multi30k",
            "there is no experiment=multi30k; did you mean 'multi30k_en_de'?; "
            f"experiment can be {offered('experiment')}",
        ),
        (
            "train decoding.beam_size=5000",
            "decoding.beam_size must be at most 1,000, but is 5000; the time and memory of a search grow "
            "with it, and translations get worse with very wide beams (Koehn and Knowles 2017)",
        ),
        ("train model=null", f"'model=null': model takes one of {MODELS}"),
        ("train model=[a,b]", f"'model=[a,b]': model takes one of {MODELS}"),
        (
            "train model.name=rnn",
            f"model.name cannot be set by itself: it follows from model=...; model can be {MODELS}",
        ),
        (
            "train schedule.name=cosine",
            "schedule.name cannot be set by itself: it follows from schedule=...; "
            f"schedule can be {offered('schedule')}",
        ),
        (
            "train +model.foo=1",
            "'+model.foo=1': keys can be set, but neither added nor removed; write model.foo=... "
            "(null unsets what may be unset)",
        ),
        (
            "train ~trainer.max_steps",
            "'~trainer.max_steps': keys can be set, but neither added nor removed; "
            "write trainer.max_steps=... (null unsets what may be unset)",
        ),
        (
            "train hydra.run.dir=x",
            "'hydra.run.dir=x': Hydra's own settings cannot be set",
        ),
        (
            "train model.num_heads=2,4",
            "'model.num_heads=2,4' names several values; "
            "add -m to try each, or write a list in brackets [...]",
        ),
        (
            "train -m run=x seed=1,2",
            "run names one directory, but -m starts several runs; set sweep.dir=DIR instead",
        ),
        (
            "train -m seed=interval(1,2)",
            "'seed=interval(1,2)' has infinitely many values; list those to try: seed=A,B, "
            "or search among them: sweep.trials=N",
        ),
        (
            "train -m model.dropout=0.5,range(1,3)",
            "'model.dropout=0.5,range(1,3)': a list holds single values, no range(...) and no interval(...); "
            "write out the values of the one, or leave out the others",
        ),
        (
            "train -m seed=1,2 hydra.sweep.dir=x",
            "'hydra.sweep.dir=x': Hydra's own settings cannot be set; the folder of a sweep is sweep.dir",
        ),
        ("train sweep.parallel=2", "'sweep.parallel=2' is for a sweep; add -m, or leave it out"),
        (
            "train -m seed=1,2 sweep.paralel=2",
            "unknown key sweep.paralel; did you mean sweep.parallel?",
        ),
        (
            "train -m sweep.trials=3",
            "a search needs values to choose from, such as schedule.factor=interval(0.5,2)",
        ),
        (
            "train -m sweep.trials=3 seed=1,2",
            "'seed=1,2': a search does not choose the seed; "
            "leave it out, and sweep it with what the search has found",
        ),
        (
            "train -m seed=1,2 sweep.metric=test.bleu",
            "sweep.metric=test.bleu: what is chosen by the test split is not tested by it any more; "
            "rank by validation.NAME",
        ),
        (
            "train -m seed=1,2 sweep.metric=validation.blue",
            "sweep.metric=validation.blue is not computed; it can be validation.bleu, validation.chrf, "
            "validation.loss, validation.perplexity, or a name of metrics.jsonl such as train/loss"
            "; did you mean 'validation.bleu'?",
        ),
        (
            "train -m seed=1,2 sweep.metric=train/epoch",
            "sweep.metric=train/epoch: it is not known which values are better; "
            "add sweep.direction=maximize or minimize",
        ),
        (
            "train -m seed=1,2 sweep.pruner=median",
            "sweep.pruner=median is for a search; "
            "add sweep.trials=N, or sweep.sampler=grid for every combination",
        ),
        (
            "train -m sweep.trials=3 model.dropout=tag(log,interval(0,0.3))",
            "'model.dropout=tag(log,interval(0,0.3))': "
            "the first number must be positive and below the second",
        ),
        (
            "train -m model=glob(lstm*)",
            f"'model=glob(lstm*)': the pattern matches no choice of model; it can be {MODELS}",
        ),
        (
            "train -m seed=glob(*)",
            "'seed=glob(*)': the pattern matches no choice of seed; list its values: seed=A,B",
        ),
        *(
            (
                f"train -m {key}={numbers}",
                f"'{key}={numbers}' holds no number; write {key}=range(FIRST,END) or range(FIRST,END,STEP): "
                "from FIRST, by steps of STEP, to before END",
            )
            for key, numbers in (
                ("seed", "range(1,3,0)"),
                ("model", "range(1,3,0)"),
                ("trainer.max_steps", "range(0.1,1,0)"),
                ("seed", "range(1,1)"),
            )
        ),
        (
            "train -m model=transformer_tiny,rnn",
            f"there is no model=rnn; did you mean 'rnn_bahdanau'?; model can be {MODELS}",
        ),
        (
            "train data.src=${oc.env:NONE}",
            "data.src cannot be resolved: \"Environment variable 'NONE' not found\"",
        ),
        *(
            (
                f"{verb} {key}=${{data.src}}/x",
                f"{full}=${{data.src}}/x: {full} takes no reference to another key; write out what it names",
            )
            for verb, key, full in (
                ("train", "run", "run"),
                ("train", "init", "init.run"),
                ("distil", "teacher", "teacher"),
                ("evaluate", "run", "run"),
            )
        ),
        ("evaluate run=${oc.env:NONE}", "run cannot be resolved: \"Environment variable 'NONE' not found\""),
        ("train run=", "run must name a directory, but is empty; run=null lets the program name it"),
        ("train seed=???", "seed is missing; set seed=..."),
        (
            "train model.num_heads=3",
            "model.d_model must be divisible by model.num_heads, but 128 % 3 = 2; try model.num_heads=4",
        ),
        ("evaluate", "run is missing; say nmt evaluate run=DIR"),
        (
            "compare",
            "run is missing; say nmt compare outputs/a outputs/b or nmt compare outputs/base "
            "outputs/multirun/mine; nmt runs lists what there is",
        ),
        ("evaluate run=null", "run is missing; say nmt evaluate run=DIR"),
        ("evaluate run=outputs/my", "run=outputs/my is not a directory"),
        ("evaluate run=.", "run=. is not a run directory: it has no config.yaml"),
        (
            "evaluate run=a,b",
            "'run=a,b' names several values; add -m to try each, or write a list in brackets [...]",
        ),
        (
            "translate run=a,b",
            "'run=a,b': nmt translate reads one run, or one list of runs, at a time; call it once for each",
        ),
        ("train run=a,b", "'run=a,b': run names one directory; call nmt train once for each"),
        (
            "compare run=a,b",
            "'run=a,b' names several values; write nmt compare A B, or a list in brackets: run=[A,B]",
        ),
        (
            "distil -m teacher=a,b seed=1,2",  # and nothing of a key that is given
            "'teacher=a,b': nmt distil reads one teacher, or one list of teachers, at a time; call it "
            "once for each",
        ),
        (
            "translate -m run=a",
            "nmt translate reads standard input once and cannot be swept; leave out -m, "
            "or name files: input=... output=...",
        ),
        (
            "rerank -m run=a scorers=[b] stream=true",
            "nmt rerank reads standard input once and cannot be swept; leave out -m, "
            "or name files: input=... output=...",
        ),
        (
            "train trainer.changes={step:5}",
            "trainer.changes must be a list in brackets, but is a group of keys in braces",
        ),
        ("train sets=[a]", "sets must be a group of keys in braces, but is a list in brackets"),
        (f"translate run={'x' * 300}", f"{'x' * 80}...: File name too long"),
        (f"doctor data=files data.train={'x' * 300}", f"{'x' * 80}...: File name too long"),
        ("attention -m run=a", "nmt attention reads standard input once and cannot be swept; leave out -m"),
    ],
)
def test_errors_are_one_readable_message(
    command: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command.split(" ")) == 2
    shown = capsys.readouterr()
    assert shown.err == f"error: {message}\n"
    assert shown.out == ""


def test_a_folder_that_may_not_be_entered_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = Path.is_dir

    def refused(path: Path) -> bool:  # as of a user who is not root
        if path.parts[0] == "theirs":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return usual(path)

    monkeypatch.setattr(Path, "is_dir", refused)
    assert main(["translate", "run=theirs/run"]) == 2
    assert capsys.readouterr().err == "error: theirs/run: Permission denied\n"


def test_a_word_without_a_key_gets_the_one_it_is_likely_to_mean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, run = tmp_path / "lines.txt", tmp_path / "run"
    file.write_text("a\n")
    run.mkdir()
    (run / "config.yaml").write_text("seed: 1\n")
    for word, key in ((file, "input"), (run, "run")):
        assert main(["translate", str(word)]) == 2
        assert f"'{word}' is not understood; write {key}={word}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("evaluate", "run is missing; say nmt evaluate run=DIR; there is outputs/mine"),
        ("translate run=outputs/mien", "run=outputs/mien is not a directory; did you mean 'outputs/mine'?"),
        (
            "evaluate run=outputs",
            "run=outputs is not a run directory: it has no config.yaml; did you mean 'outputs/mine'?",
        ),
        (
            "evaluate run=outputs/mine model=transformer_base",
            "'model=transformer_base': nmt evaluate takes the model of its run; it can choose data, decoding",
        ),
        (
            "runs decoding=greedy",
            "'decoding=greedy': nmt runs does not choose decoding; its keys are in its --help",
        ),
        (
            "attention run=outputs/mine views=[blue]",
            "views[0] must be one of page, images, soft, hard, but is 'blue'",
        ),
        ("attention run=outputs/mine layer=0", "layer counts from 1, but is 0; null means all layers"),
        (
            "evaluate run=outputs/mine seed=3",
            "unknown key seed; the keys here are run, checkpoint, encoder_layers, decoder_layers, ensemble, "
            "runtime, decoding, data, "
            "metrics, scoring, sets, testset, read_corpus, domain, confidence",
        ),
        (
            "evaluate run=outputs/mine data=wmt99",
            f"there is no data=wmt99; did you mean 'wmt19'?; data can be {offered('data', 'from_run')}",
        ),
        (
            "evaluate run=outputs/mine decoding.n_best=9",
            "decoding.n_best must not exceed decoding.beam_size, but 9 > 5; try decoding.beam_size=9",
        ),
    ],
)
def test_errors_about_a_run(run: str, command: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command.split(" ")) == 2
    assert capsys.readouterr().err == f"error: {message}\n"


@pytest.mark.fault(32)
def test_all_that_is_wrong_is_said_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Errors of every kind, two of them in one part, and a choice whose keys are no further errors."""
    command = "train data=wmt99 data.path=x bad model.d_modle=3 schedule.factor=fast model.dropout=1.5 "
    command += "model.attention_dropout=7 trainer.accumulate=0 metrics=[blue] seed=??? decoding.beam_size=9"
    assert main(command.split()) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [
        "error: 9 settings cannot be used:",
        f"  - there is no data=wmt99; did you mean 'wmt19'?; data can be {offered('data')}",
        "  - 'bad' is not understood; write key=value, such as trainer.max_steps=500",
        "  - unknown key model.d_modle; did you mean model.d_model?",
        "  - schedule.factor must be a number, but is 'fast'",
        "  - seed is missing; set seed=...",
        "  - model.dropout must be in [0, 1), but is 1.5",
        "  - trainer.accumulate must be at least 1, but is 0",
        "  - metrics[0] must be one of bleu, spbleu, chrf, chrf++, ter, comet, accuracy, macro_f1, micro_f1, "
        "but is 'blue'; "
        "did you mean 'bleu'?",
        "  - model.attention_dropout must be in [0, 1), but is 7.0",
    ]


def test_errors_of_a_sweep_are_said_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "-m", "seed=1,2", "model.d_modle=3", "trainer.accumulate=x"]) == 2
    assert capsys.readouterr().err == (
        "error: 2 settings cannot be used:\n"
        "  - unknown key model.d_modle; did you mean model.d_model?\n"
        "  - trainer.accumulate must be a whole number, but is 'x'\n"
    )


def test_errors_of_the_settings_of_a_sweep_hide_none_of_its_trials(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = (
        "train -m trainer.maxsteps=3 model.dropout=x,2 model=nope sweep.parallel=0 sweep.foo=1 --cfg job"
    )
    assert main(command.replace(" model=nope", "").split()) == 2
    told = capsys.readouterr().err
    assert told.startswith(
        "error: 5 settings cannot be used:\n  - unknown key sweep.foo; the keys here are dir, "
    )
    for line in (
        "sweep.parallel must be at least 1, but is 0",
        "unknown key trainer.maxsteps; did you mean trainer.max_steps?",
        "dropout-x: model.dropout must be a number, but is 'x'",
        "dropout-2: model.dropout must be in [0, 1), but is 2.0",
    ):
        assert f"  - {line}\n" in told
    assert main(command.split()) == 2
    told = capsys.readouterr().err
    assert "there is no model=nope; model can be" in told
    assert "unknown key trainer.maxsteps" in told


def test_a_config_that_is_shown_is_one_that_can_be_used(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ["train", "data=multi3k", "model.num_head=4", "model.dropout=1.5", "metrics=[blue]"]
    assert main([*wrong, "--cfg", "job"]) == 2
    shown = capsys.readouterr()
    assert main(wrong) == 2
    assert (shown.out, shown.err) == ("", capsys.readouterr().err)
    assert shown.err.startswith("error: 4 settings cannot be used:\n")
    missing = ["experiment=toy_en_fr", "objective=distillation", "tokenizer.vocab_size=30"]
    assert main(["train", *missing, "--cfg", "job"]) == 0
    assert "\n  teachers: ???\n" in capsys.readouterr().out  # what is missing
    assert main(["train", "experiment=none", "data=hub", "data.src=en", "data.tgt=de", "--cfg", "job"]) == 0
    assert "\n  dataset: ''\n" in capsys.readouterr().out


def test_errors_in_files_of_the_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "mine" / "model"
    folder.mkdir(parents=True)
    schema = "defaults: [base_transformer, _self_]\n"
    cases = {
        f"{schema}d_modle: 3\n": "model/a.yaml: unknown key model.d_modle; did you mean model.d_model?",
        f"{schema}d_model: x\n": "model/a.yaml: model.d_model must be a whole number, but is 'x'",
        "dropout: 0.1\n": "model/a.yaml: the file of model=... does not say what its keys are; begin it with",
        "defaults: [optional none: nothing]\nname: transformer\n": "model/a.yaml: the file of model=",
        "defaults: [a, _self_]\n": "error: model=a, experiment=none: a file is built on itself, by its",
        "d_model: [3\n": "model/a.yaml is not YAML: while parsing",
        "defaults: [nothing]\n": "In 'model/a': Could not load 'model/nothing'.",
    }
    for content, message in cases.items():
        (folder / "a.yaml").write_text(content, encoding="utf-8")
        assert main(["train", "-cd", "mine", "model=a", "experiment=none"]) == 2
        assert message in capsys.readouterr().err
    (folder / "part.yaml").write_text("dropout: 0.25\n", encoding="utf-8")
    (folder / "a.yaml").write_text("defaults: [transformer_tiny, part, _self_]\n", encoding="utf-8")
    assert main(["train", "-cd", "mine", "model=a", "experiment=none", "--cfg", "job"]) == 0
    assert "  dropout: 0.25\n" in capsys.readouterr().out
    (folder / "a.yaml").write_text("defaults: [a, _self_]\n", encoding="utf-8")
    told = nmt_process("train", "-cd", "mine", "model=a", "--info", "defaults", cwd=tmp_path)
    assert told.returncode == 2
    assert told.stderr.startswith("error: model=a: a file is built on itself, by its own")


def test_a_process_that_fails_prints_no_traceback() -> None:
    result = nmt_process("train", "model.num_head=4")
    assert result.returncode == 2
    assert result.stderr == "error: unknown key model.num_head; did you mean model.num_heads?\n"
    assert result.stdout == ""


def test_a_reader_that_leaves_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        result = subprocess.run(
            [sys.executable, "-m", "nmt", "--help"],
            cwd=ROOT,
            stdout=closed,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    assert (result.returncode, result.stderr) == (128 + signal.SIGPIPE, b"")


def test_an_interrupt_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    OmegaConf.register_new_resolver(
        "test.interrupt", lambda: signal.raise_signal(signal.SIGINT), replace=True
    )
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job may have none
    try:
        assert main(["train", "data.src=${test.interrupt:}"]) == 128 + signal.SIGINT
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "interrupted\n"


TOY_MODULE = '''
"""The wiring of `nmt toy`."""

from dataclasses import dataclass

from nmt.config.roots import RunConfig
from nmt.errors import UserError


@dataclass
class ToyConfig(RunConfig):
    """Say something as often as wanted; decoding and runtime start from those of the run."""

    times: int = 1
    """How often to say it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.times < 1:
            raise UserError(f"times must be at least 1, but is {self.times}")


def run(trial):
    """Say it."""
    cfg = trial.to_config(ToyConfig)
    print(f"beam {cfg.decoding.beam_size}, {cfg.runtime.threads} threads " * cfg.times)
    return {"validation": {"bleu": float(cfg.times)}}
'''
TOY_YAML = "defaults: [base_toy, decoding: from_run, _self_]\n"


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Add a verb: a row, a module and a YAML file, and nothing else."""
    (tmp_path / "toy_verb.py").write_text(TOY_MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    shutil.copytree(config_dir(), tmp_path / "configs")
    (tmp_path / "configs" / "toy.yaml").write_text(TOY_YAML, encoding="utf-8")
    for module in ("overrides", "schemas"):
        monkeypatch.setattr(f"nmt.config.{module}.config_dir", lambda: tmp_path / "configs")
    code = "toy_verb.run"
    row = Verb("toy", "say it", "toy_verb.ToyConfig", code, ("decoding",), ("nmt toy run=RUN times=2",))
    monkeypatch.setitem(VERBS, "toy", row)


@pytest.mark.usefixtures("toy")
def test_a_verb_is_a_row_a_module_and_a_yaml_file(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["toy", f"run={run}", "times=2", "decoding.beam_size=3", "runtime.threads=1"]) == 0
    assert capsys.readouterr().out == "beam 3, 1 threads beam 3, 1 threads \n"
    assert main(["toy", "-m", f"run={run}", "times=1,2"]) == 0
    assert re.search(r"^1 +2 +2\.00 .* done", capsys.readouterr().out, flags=re.MULTILINE)
    assert main(["--help"]) == 0
    assert "  toy        say it\n" in capsys.readouterr().out
    assert main(["toy", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "  nmt toy run=RUN times=2\n" in shown
    assert re.search(r"^    times=1 +How often to say it\.$", shown, flags=re.MULTILINE)
    assert re.search(r"^  decoding +beam, \*from_run, greedy, mbr, sampling$", shown, flags=re.MULTILINE)


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("toi", "there is no verb 'toi'; did you mean 'toy'?; the verbs are train, prepare, distil, "),
        ("toy", "run is missing; say nmt toy run=DIR; there is outputs/mine"),
        ("toy run=outputs/mine time=2", "unknown key time; did you mean times?"),
        ("toy run=outputs/mine times=0", "times must be at least 1, but is 0"),
        (
            "toy run=outputs/mine data=toy",
            "'data=toy': nmt toy takes the data of its run; it can choose decoding",
        ),
        ("toy run=outputs/mine decoding=beem", "there is no decoding=beem; did you mean 'beam'?"),
    ],
)
def test_errors_of_a_verb_that_was_added(
    run: str, command: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command.split(" ")) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


def test_completion_answers_a_shell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COMP_LINE", "nmt train optimizer.bet")
    assert main(["-sc", "query=bash"]) == 0
    assert capsys.readouterr().out.split() == ["optimizer.beta1=", "optimizer.beta2="]
    assert main(["-sc", "query=tcsh"]) == 2


WITHOUT_TORCH = """
import sys


class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "datasets", "sacrebleu", "numpy"):
            raise ImportError(f"{name} is blocked")


sys.meta_path.insert(0, Blocked())
from nmt.cli import main
from nmt.verbs import VERBS

assert all(verb.config_class() for verb in VERBS.values())
for line in sys.stdin.read().splitlines():
    print(main(line.split()), file=sys.stderr)
"""


def test_help_completion_and_errors_import_no_torch(run: str, tmp_path: Path) -> None:
    """Nor anything else that takes long."""
    commands = {
        "--help": 0,
        "distil --help": 0,
        "train --help optimizer": 0,
        "train --cfg job": 0,
        "-sc install=bash": 0,
        "-sc query=bash": 0,
        "trian": 2,
        "train model.num_head=4": 2,
        "train model=transformer_bas": 2,
        "train model.dropout=1.5 trainer.measures=[nothing]": 2,
        "train tracking.sinks=[nothing]": 2,
        "train metrics=[blue]": 2,
        "train tokenizer.joint=false": 2,
        f"evaluate run={run} decoding.beam_size=0": 2,
        f"translate run={run}nowhere": 2,
        f"rerank run={run} scorers=[{run}] tune_for=chr": 2,
    }
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH],
        input="\n".join(commands),
        env=os.environ | {"COMP_LINE": "nmt train model.d_m", "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    codes = [int(line) for line in done.stderr.splitlines() if line.isdigit()]
    assert dict(zip(commands, codes, strict=True)) == commands, done.stderr
    assert "model.d_model=" in done.stdout


SETTINGS = [
    "",
    "1",
    "-1",
    "1e400",
    "null",
    "true",
    "foo",
    "???",
    "[]",
    "[1]",
    "{}",
    "{a:1}",
    "${x}",
    "${oc.env:X}",
    "nan",
    "-.inf",
    "100000000",
]
SWEEPS = [
    "a,b",
    "range(1,3)",
    "glob(*)",
    "int(5)",
    "choice(1,2)",
    "interval(1,2)",
    "sort(3,1)",
    "[[",
    "\\",
    "é",
]
NAMES = [
    "run",
    "seed",
    "runtime",
    "model",
    "data",
    "metrics",
    "experiment",
    "hydra",
    "defaults",
    "foo",
    "a..b",
]
KEYS = ["model.dropout", "trainer.max_minutes", "schedule.factor", "decoding.n_best", "tokenizer.kind"]
PATHS = ["model.d_model", "model.name", "model/x", "model@x", "model._target_", "metrics[0]", "hydra.run.dir"]
PARTS = (["", "", "", "+", "++", "~"], NAMES + KEYS + PATHS, ["=", "=", "", "=="], SETTINGS + SWEEPS)
OVERRIDES = st.one_of(
    st.tuples(*map(st.sampled_from, PARTS)).map("".join),
    st.text(alphabet="abc=.,[]{}$:\"'\\~+@ 1\x00é", max_size=8),
)


@pytest.mark.fault(33)
@settings(max_examples=60, deadline=None)
@given(overrides=st.lists(OVERRIDES, min_size=1, max_size=2))
def test_whatever_is_typed_is_a_config_or_an_error(overrides: list[str]) -> None:
    shown = io.StringIO()
    with contextlib.redirect_stderr(shown), contextlib.redirect_stdout(io.StringIO()):
        code = main(["train", *overrides, "--cfg", "job"])
    assert (code, shown.getvalue()[:7]) in ((0, ""), (2, "error: "))


@pytest.mark.fault(33)
@settings(max_examples=10, deadline=None)
@given(overrides=st.lists(OVERRIDES, min_size=1, max_size=4))
def test_whatever_is_typed_can_be_trained_or_is_refused(overrides: list[str]) -> None:
    with contextlib.suppress(UserError):
        for trial in compose(VERBS["train"], overrides):
            trial.to_training()


@pytest.mark.parametrize(
    "prompt",
    [
        "",
        "Hello, world",
        "What's up?",
        "a\nb",
        "A man ",
        "true",
        "a\\b\\",
        "${oc.env:HOME}",
        "'x'",
        '"x" [1,2]',
        "a=b!",
    ],
)
def test_a_prompt_is_taken_as_it_stands(prompt: str, run: str) -> None:
    (composed,) = compose(VERBS["generate"], [f"run={run}", f"prompt={prompt}"])
    assert composed.to_config(GenerateConfig).prompt == prompt
