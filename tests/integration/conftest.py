"""A tiny corpus and a tiny model, driven through the command line as a user would."""

from __future__ import annotations

import io
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from nmt import kernels
from nmt.cli import main

Command = Callable[..., "subprocess.CompletedProcess[str]"]

COPYING = [
    "schedule.peak_rate=0.008",
    "trainer.max_steps=300",
    "trainer.eval_every_steps=150",
    "trainer.save_every_steps=75",
    "trainer.log_every_steps=20",
]
"""What it takes to learn to copy."""


def digits(rng: random.Random, low: int, high: int) -> str:
    return " ".join(rng.choice("0123456789") for _ in range(rng.randint(low, high)))


@pytest.fixture(scope="session")
def copy_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Strings of digits, the target the same as the source; no string stands in two splits."""
    folder = tmp_path_factory.mktemp("copy")
    rng = random.Random(1)
    seen: set[str] = set()
    for split, size in (("train", 2000), ("validation", 60), ("test", 60)):
        lines: list[str] = []
        while len(lines) < size:
            line = digits(rng, 3, 8)
            if line not in seen:
                seen.add(line)
                lines.append(line)
        for side in ("a", "b"):
            (folder / f"{split}.{side}").write_text("".join(f"{line}\n" for line in lines))
    return folder


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of a cache with nothing in it but the kernels, which take a minute to build."""
    cache = tmp_path_factory.mktemp("cache")
    if not kernels.problem():  # whatever the last test chose
        (cache / kernels.folder().name).symlink_to(kernels.folder())
    return {
        **os.environ,
        "NMT_CACHE": str(cache),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "NO_COLOR": "1",
    }


@pytest.fixture(scope="session")
def nmt(environment: dict[str, str]) -> Command:
    """Run `nmt ARGUMENTS` in this process, and return what a process of its own would have returned.

    That saves the seconds that torch takes to start. What one process cannot show (signals, kills, several
    ranks, what is imported) has tests that start processes themselves.
    """

    def run(*arguments: str, stdin: str = "", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(3)]
        streams[0].write(stdin)
        streams[0].seek(0)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
                patch.setattr(sys, name, stream)
            patch.setattr(sys, "argv", ["nmt", *arguments])
            patch.chdir(cwd or Path.cwd())
            code = main(list(arguments))
        kernels.enable(True)
        torch.set_num_threads(1)
        out, err = (stream.buffer.getvalue().decode() for stream in streams[1:])
        return subprocess.CompletedProcess(["nmt", *arguments], code, out, err)

    return run


@pytest.fixture(scope="session")
def tiny(copy_corpus: Path) -> list[str]:
    """Return the overrides for a model that learns to copy within seconds."""
    return [
        "data=files",
        "data.src=a",
        "data.tgt=b",
        f"data.train={copy_corpus}/train",
        f"data.validation={copy_corpus}/validation",
        f"data.test={copy_corpus}/test",
        "tokenizer=word",
        "tokenizer.vocab_size=14",
        "model.d_model=32",
        "model.d_ff=64",
        "model.encoder_layers=2",
        "model.decoder_layers=2",
        "model.dropout=0",
        "schedule=inverse_sqrt",
        "schedule.peak_rate=0.008",
        "schedule.warmup_steps=50",
        "trainer.batch_tokens=500",
        "runtime.device=cpu",
        "runtime.precision=fp32",  # the same numbers on every processor
    ]


@pytest.fixture(scope="session")
def trained(nmt: Command, tiny: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a model to copy, and return its run directory."""
    run = tmp_path_factory.mktemp("runs") / "copy"
    done = nmt("train", f"run={run}", *tiny, *COPYING)
    assert done.returncode == 0, done.stderr
    return run
