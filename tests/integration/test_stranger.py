"""A run directory from a stranger: whatever its files are, a use ends in one message and touches no other."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.conftest import Command
from tests.integration.test_earlier_versions import COMMAND, FIXTURES

PRECIOUS = "precious\n"
Damage = Callable[[Path], object]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a small run that is finished, made by an earlier version."""
    return shutil.copytree(FIXTURES / "run_0_1", tmp_path / "run")


def refusal(nmt: Command, *arguments: str) -> str:
    """Return the one message of a command that is refused."""
    done = nmt(*arguments, stdin="two dogs\n")
    assert done.returncode == 2, done.stderr
    *_, message = f"\n{done.stderr}".partition("\nerror: ")
    assert 0 < len(message) < 1000, done.stderr
    return message


def command(verb: str, run: Path, steps: int = 100) -> list[str]:
    training = [*COMMAND, f"trainer.max_steps={steps}"] if verb == "train" else []
    return [verb, f"run={run}", *training]


@pytest.mark.fault(37)
@pytest.mark.parametrize(
    ("verb", "name"),
    [
        ("train", ".lock"),
        ("train", "train.log"),
        ("train", "metrics.jsonl"),
        ("train", "results.json"),
        ("train", "checkpoints/step_00000100/state.json"),
        ("evaluate", "data/test.en"),
        ("translate", "tokenizer.model"),
        ("translate", "checkpoints/step_00000100/model.safetensors"),
        ("attention", "config.yaml"),
    ],
)
def test_a_link_to_a_file_of_the_user_is_refused(
    nmt: Command, run: Path, tmp_path: Path, verb: str, name: str
) -> None:
    victim = tmp_path / "victim"
    victim.write_text(PRECIOUS)
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(victim if verb != "train" else os.path.relpath(victim, (run / name).parent))
    message = refusal(nmt, *command(verb, run))
    assert (
        f"{run / name} is a link that leads out of {run}, to {victim}; nothing is read or written" in message
    )
    assert victim.read_text() == PRECIOUS


@pytest.mark.fault(37)
@pytest.mark.parametrize(
    ("verb", "name"),
    [
        ("evaluate", "hypotheses"),
        ("attention", "attention"),
        ("train", "tb"),
        ("train", "checkpoints"),
    ],
)
def test_a_link_to_a_folder_of_the_user_is_refused(
    nmt: Command, run: Path, tmp_path: Path, verb: str, name: str
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    shutil.rmtree(run / name, ignore_errors=True)
    (run / name).symlink_to(victim)
    assert "is a link that leads out of" in refusal(nmt, *command(verb, run))
    assert list(victim.iterdir()) == []


def test_links_that_stay_inside_or_lead_to_the_run_are_followed(
    nmt: Command, run: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(run)
    (run / "newest").symlink_to("checkpoints/step_00000100")
    (run / "other.en").hardlink_to(run / "data" / "test.en")
    done = nmt("evaluate", f"run={tmp_path / 'link'}")
    assert done.returncode == 0, done.stderr


@pytest.mark.fault(37)
def test_a_pipe_is_not_waited_for(nmt: Command, run: Path) -> None:
    (run / "results.json").unlink()
    os.mkfifo(run / "results.json")
    assert "results.json is neither a file nor a folder; remove it" in refusal(nmt, *command("train", run))


def fewer_lines(run: Path) -> None:
    file = run / "data" / "validation.fr"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-3]))


DAMAGES: list[tuple[str, Damage, str]] = [
    ("evaluate", fewer_lines, "validation.en has 10 lines, but {run}/data/validation.fr has 7; restore them"),
    (
        "evaluate",
        lambda run: (run / "data" / "validation.fr").write_bytes(b"caf\xe9\n" * 10),
        "validation.fr is damaged: byte 3 is not UTF-8; restore it",
    ),
    (
        "evaluate",
        lambda run: (run / "data" / "validation.fr").write_bytes(b"a\n" * 10 + b"b"),
        "validation.fr is damaged: its last line has no end; restore it",
    ),
    (
        "evaluate",
        lambda run: (run / "data" / "validation.fr").write_bytes(b"a" * (1 << 21) + b"\n"),
        "validation.fr is damaged: a line has over 1,048,576 characters; restore it",
    ),
    (
        "evaluate",
        lambda run: os.truncate(run / "data" / "validation.fr", 1 << 40),
        "validation.fr is damaged: it has more than 1024 MB; restore it",
    ),
    (
        "train",
        lambda run: (run / "results.json").write_text("{}"),
        "results.json is damaged: step is missing; train_seconds is missing; ",
    ),
    (
        "train",
        lambda run: (run / "results.json").write_text('{"a":' * 100_000),
        "results.json is damaged: it is nested more than",
    ),
    (
        "train",
        lambda run: (run / "data" / "train.json").write_text("{}"),
        "train.json is damaged: training_pairs is missing; sha256 is missing",
    ),
    (
        "train",
        lambda run: (run / "data" / "train.json").write_text("[" * 100_000),
        "train.json is damaged: it is nested more than",
    ),
    (
        "translate",
        lambda run: (run / "MANIFEST.json").write_text('{"tokenizer.model": 7}'),
        "tokenizer.model has changed since the run began: its SHA-256 is",
    ),
]


@pytest.mark.parametrize(("verb", "damage", "message"), DAMAGES)
def test_a_damaged_file_is_one_message(
    nmt: Command, run: Path, verb: str, damage: Damage, message: str
) -> None:
    damage(run)
    steps = 150 if "train.json" in message else 100
    assert message.format(run=run) in refusal(nmt, *command(verb, run, steps))


@pytest.mark.parametrize(
    ("verb", "name"),
    [
        ("train", "results.json"),
        ("train", "data/train.json"),
        ("train", "data/validation.en"),
        ("train", "MANIFEST.json"),
        ("train", "hypotheses/validation.fr"),
        ("translate", "tokenizer.model"),
        ("attention", "config.yaml"),
        ("attention", "attention/cross_0001.png"),
        ("evaluate", "hypotheses/validation.fr"),
    ],
)
def test_a_folder_in_place_of_a_file_is_one_message(nmt: Command, run: Path, verb: str, name: str) -> None:
    (run / name).unlink(missing_ok=True)
    (run / name).mkdir(parents=True)
    assert str(run) in refusal(nmt, *command(verb, run, 101))
    assert (run / name).is_dir()


@pytest.mark.fault(30)
def test_what_a_run_keeps_is_sealed(nmt: Command, run: Path) -> None:
    """By a training, also one of an earlier version that goes on; a change is refused with the file."""
    assert nmt(*command("train", run, 101)).returncode == 0
    sums = json.loads((run / "MANIFEST.json").read_text())
    assert sorted(sums) == [
        *(f"data/test.{lang}" for lang in ("en", "fr")),
        "data/train.json",
        *(f"data/validation.{lang}" for lang in ("en", "fr")),
        "tokenizer.model",
    ]
    for name, verb in zip(sums, itertools.cycle(["train", "translate", "evaluate"]), strict=False):
        content = (run / name).read_bytes()
        (run / name).write_bytes(content.replace(b"e", b"a", 1))
        message = f"{run / name} has changed since the run began: its SHA-256 is "
        assert message in refusal(nmt, *command(verb, run, 101))
        (run / name).write_bytes(content)
    assert nmt("evaluate", f"run={run}").returncode == 0


def test_a_corpus_is_not_read_because_a_run_says_so(nmt: Command, run: Path, tmp_path: Path) -> None:
    """Neither a file nor a dataset of the hub, unless the command names it."""
    corpus = tmp_path / "corpus"
    for lang in ("en", "fr"):
        shutil.copy(run / "data" / f"test.{lang}", f"{corpus}.{lang}")
    shutil.rmtree(run / "data")
    config = (run / "config.yaml").read_text()
    own, end = config.index("data:\n"), config.index("tokenizer:\n")
    for keys, origin in (
        ("  name: hub\n  src: en\n  tgt: fr\n  dataset: stranger/corpus\n", "stranger/corpus"),
        (f"  name: files\n  src: en\n  tgt: fr\n  validation: {corpus}\n  test: /another\n", str(corpus)),
    ):
        stored = f"data:\n{keys}  scored_split: validation\n  max_tokens: 32\n"
        (run / "config.yaml").write_text(config[:own] + stored + config[end:])
        message = refusal(nmt, "evaluate", f"run={run}")
        assert (
            f"its config names {origin}, which is not read or downloaded only because a run says so"
            in message
        )
        assert refusal(nmt, "evaluate", f"run={run}", "data.max_chars=9") == message
    for way_out in (
        ["read_corpus=true"],
        ["data=files", "data.src=en", "data.tgt=fr", f"data.test={corpus}"],
    ):
        done = nmt("evaluate", f"run={run}", *way_out)
        assert done.returncode == 0, done.stderr


HOSTILE = "<script>alert({number})</script> \x1b[31mred\x1b]0;title\x07 {number} ${{oc.env:HOME}} \u202e"
TINY = shlex.split("""
data=files data.scored_split=validation tokenizer=char tokenizer.vocab_size=60 model=transformer_tiny
model.d_model=16 model.d_ff=16 model.num_heads=2 model.encoder_layers=1 model.decoder_layers=1
trainer.max_steps=1 trainer.num_samples=1 trainer.batch_tokens=1024 decoding=greedy
decoding.max_length_ratio=0.1 runtime.device=cpu
""")


@pytest.mark.fault(38)
def test_text_of_a_corpus_is_text_and_secrets_stay_where_they_are(
    nmt: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = {name: f"secret-of-{name}" for name in ("WANDB_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY")}
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    lines = [HOSTILE.format(number=number) for number in range(40)]
    for side in ("en", "de"):
        (tmp_path / f"train.{side}").write_text("".join(f"{line}\n" for line in lines))
        (tmp_path / f"dev.{side}").write_text("".join(f"{line}\n" for line in lines[:4]))
    data = [f"data.train={tmp_path}/train", f"data.validation={tmp_path}/dev"]
    run = tmp_path / "run"
    shown = [nmt("train", f"run={run}", *TINY, *data), nmt("train", f"run={run}", *TINY, *data)]
    shown.append(nmt("attention", f"run={run}", stdin=f"{lines[0]}\t{lines[1]}\n"))
    for done in shown:
        assert done.returncode == 0, done.stderr
        assert "\x1b" not in done.stdout + done.stderr
    assert "40 of 40 pairs have the same text on both sides; is one side a copy" in shown[0].stderr
    page = (run / "attention" / "attention.html").read_text()
    assert "<script>alert" not in page
    assert "alert(0)" in page.replace("\\u003c", "<")
    assert "\x1b" not in (run / "train.log").read_text()
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert len(files) > 15
    assert [file for file in files if b"secret-of-" in file.read_bytes()] == []
