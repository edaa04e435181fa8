"""A language model through the command line: trained on a text file, scored, and asked to go on."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from tests.integration.conftest import Command

CYCLE = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Days in their order, three on a line, so that a line tells the next."""
    path = tmp_path_factory.mktemp("text") / "days.txt"
    days = [CYCLE[i % 7] for i in range(3 * 600)]
    lines = [" ".join(days[i : i + 3]) for i in range(0, len(days), 3)]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def overrides(text: Path) -> list[str]:
    return [
        "task=language_model",
        "data=text",
        f"data.train={text}",
        "data.max_tokens=32",
        "tokenizer=char",
        "model=gpt",
        "model.d_model=32",
        "model.d_ff=64",
        "model.num_layers=2",
        "model.max_positions=32",
        "schedule=inverse_sqrt",
        "schedule.peak_rate=0.01",
        "schedule.warmup_steps=50",
        "trainer.batch_tokens=512",
        "trainer.max_steps=300",
        "trainer.eval_every_steps=150",
        "runtime.device=cpu",
    ]


@pytest.fixture(scope="module")
def trained(nmt: Command, overrides: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "days"
    done = nmt("train", f"run={run}", *overrides)
    assert done.returncode == 0, done.stderr
    assert f"nmt generate run={run}" in done.stdout
    return run


def test_learns_the_text_and_reports_the_recorded_perplexity(nmt: Command, trained: Path) -> None:
    recorded = json.loads((trained / "results.json").read_text())["validation"]
    assert recorded["perplexity"] == pytest.approx(math.exp(recorded["loss"]))
    assert recorded["perplexity"] < 1.6  # a window may begin anywhere, so its first characters are a guess
    done = nmt("evaluate", f"run={trained}")
    assert f"perplexity {recorded['perplexity']:.2f}" in done.stdout


def test_goes_on_as_the_text_does(nmt: Command, trained: Path) -> None:
    done = nmt("generate", f"run={trained}", "prompt=monday tuesday", "max_tokens=60", "decoding.top_k=1")
    assert done.returncode == 0, done.stderr
    *days, _ = done.stdout.split()  # the last may be cut off
    assert len(days) > 6
    assert days == [CYCLE[i % 7] for i in range(len(days))]


def test_samples_are_a_function_of_the_seed(nmt: Command, trained: Path) -> None:
    options = ["max_tokens=40", "decoding.temperature=3"]
    first, again, other = (
        nmt("generate", f"run={trained}", *options, f"decoding.seed={seed}").stdout for seed in (1, 1, 2)
    )
    assert first == again != other


def test_lines_are_made_one_by_one(nmt: Command, trained: Path) -> None:
    options = [f"run={trained}", "decoding.temperature=0.5"]
    done = nmt("generate", *options, "lines=300")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 300
    assert {line.split()[0] for line in lines} >= {*CYCLE}  # not the same line again and again
    in_order = [" ".join((CYCLE * 2)[start : start + 5]) for start in range(7)]
    assert sum(any(days.startswith(line) for days in in_order) for line in lines) > 240
    assert nmt("generate", *options, "lines=7").stdout.splitlines() == lines[:7]


def test_lines_begin_with_the_prompt(nmt: Command, trained: Path) -> None:
    options = ["lines=4", "prompt=monday tu", "decoding.temperature=0"]
    done = nmt("generate", f"run={trained}", *options)
    assert done.stdout == "monday tuesday wednesday\n" * 4
    assert nmt("generate", f"run={trained}", *options, "max_tokens=3").stdout == "monday tuesd\n" * 4


def test_what_lines_cannot_begin_with_is_refused(nmt: Command, trained: Path) -> None:
    for prompt, why in (
        ("monday\ntuesday", r"the prompt of lines is the beginning of one line, but 'monday\ntuesday' has a"),
        (
            "monday " * 9,
            "tokens, and the model sees data.max_tokens=32 at most, two of them before the prompt",
        ),
    ):
        done = nmt("generate", f"run={trained}", f"prompt={prompt}", "lines=1")
        assert done.returncode == 2, prompt
        assert why in done.stderr
    assert "lines must be at least 1, but is 0" in nmt("generate", f"run={trained}", "lines=0").stderr


def test_verbs_of_the_other_task_say_so(nmt: Command, trained: Path) -> None:
    for verb in ("translate", "attention"):
        done = nmt(verb, f"run={trained}", stdin="x\n")
        assert done.returncode == 2
        assert "is a language model and translates nothing; nmt generate run=" in done.stderr
    done = nmt("generate", f"run={trained}", "decoding=beam")
    assert done.returncode == 2
    assert "nmt generate needs decoding=sampling, but has beam" in done.stderr


def test_targets_of_a_parallel_corpus_are_a_text(
    nmt: Command, overrides: list[str], copy_corpus: Path, tmp_path: Path
) -> None:
    data = ["data=files", "data.src=a", "data.tgt=b", f"data.train={copy_corpus}/train"]
    data += [f"data.validation={copy_corpus}/validation", f"data.test={copy_corpus}/test"]
    others = [override for override in overrides if not override.startswith(("data=", "data.train="))]
    done = nmt("train", *others, *data, "trainer.max_steps=5", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    line = r"^test +perplexity \d+\.\d\d  token accuracy \d+\.\d\d$"
    assert re.search(line, done.stdout, flags=re.MULTILINE)
    assert [path.parent.name for path in tmp_path.glob("outputs/*/*")] == ["files-b"]


def test_generate_wants_a_language_model(nmt: Command, tiny: list[str], tmp_path: Path) -> None:
    run = tmp_path / "translates"
    assert nmt("train", f"run={run}", *tiny, "trainer.max_steps=1").returncode == 0
    done = nmt("generate", f"run={run}")
    assert done.returncode == 2
    assert "is no language model, but translates: nmt translate run=" in done.stderr
