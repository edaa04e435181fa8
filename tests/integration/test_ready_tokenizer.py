"""A run whose tokenizer is a tokenizer.json of the library `tokenizers`, through the command line."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nmt.runs.opening import open_run
from tests.integration.test_start import MODEL, TRAINING, WORDS

tokenizers: Any = pytest.importorskip("tokenizers")
Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return overrides for thirty pairs, and for a byte-level tokenizer that was trained on their words."""
    folder = tmp_path_factory.mktemp("corpus")
    lines = [" ".join(WORDS[i % 7 :: i % 3 + 1]) for i in range(30)]
    for side in ("en", "de"):
        (folder / f"text.{side}").write_text("".join(f"{line}\n" for line in lines))
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(lines, trainer)
    made.save(str(folder / "tokenizer.json"))
    text = [f"data.{split}={folder}/text" for split in ("train", "validation", "test")]
    return ["data=files", "data.src=en", "data.tgt=de", *text, f"tokenizer.path={folder}/tokenizer.json"]


def train(nmt: Command, run: Path, corpus: list[str], steps: int, *overrides: str) -> str:
    """Train `run` until `steps` and return its messages."""
    own = [*corpus, *MODEL, *TRAINING, f"trainer.max_steps={steps}", *overrides]
    done = nmt("train", f"run={run}", *own)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def run(nmt: Command, corpus: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train four updates."""
    run = tmp_path_factory.mktemp("ready") / "run"
    assert "pieces, with those of nmt" in train(nmt, run, corpus, 4)
    return run


def test_the_run_keeps_a_tokenizer_that_the_library_reads(run: Path, corpus: list[str]) -> None:
    kept = tokenizers.Tokenizer.from_file(str(run / "tokenizer.model"))
    given = tokenizers.Tokenizer.from_file(corpus[-1].partition("=")[2])
    line = " the old house, and a River"
    assert kept.encode(line).tokens == given.encode(line).tokens
    assert open_run(run).tokenizer.src_vocab_size == given.get_vocab_size() + 3  # <|endoftext|> is ours


def test_a_finished_run_goes_on_without_the_file(nmt: Command, run: Path, corpus: list[str]) -> None:
    file = Path(corpus[-1].partition("=")[2])
    kept = file.read_bytes()
    file.unlink()
    try:
        assert "training a" not in train(nmt, run, corpus, 6)
    finally:
        file.write_bytes(kept)
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps[-1] == 6


def test_verbs_read_the_run(nmt: Command, run: Path, tmp_path: Path) -> None:
    line = "the old house 🏠"
    done = nmt("translate", f"run={run}", "decoding=sampling", "decoding.seed=1", stdin=f"{line}\n")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1
    done = nmt("score", f"run={run}", stdin=f"{line}\t{line}\n")
    assert float(done.stdout) < 0, done.stderr
    assert nmt("evaluate", f"run={run}").returncode == 0
    done = nmt("export", f"run={run}", "format=safetensors", f"output={tmp_path / 'out'}")
    assert done.returncode == 2
    assert "tokenizer.path" in done.stderr


def test_a_training_starts_from_the_run(nmt: Command, run: Path, corpus: list[str], tmp_path: Path) -> None:
    text, init = corpus[:-1], f"init={run}"
    training = [*text, *TRAINING, "trainer.max_steps=2"]
    assert nmt("train", f"run={tmp_path / 'kept'}", init, *training).returncode == 0
    assert (tmp_path / "kept/tokenizer.model").read_bytes() == (run / "tokenizer.model").read_bytes()
    done = nmt("train", f"run={tmp_path / 'more'}", init, *training, "init.vocabulary=extend")
    assert done.returncode == 2
    assert "tokenizer.path" in done.stderr
    other = [init, "init.vocabulary=remap", "tokenizer.path=", "tokenizer=bpe", "tokenizer.vocab_size=60"]
    done = nmt("train", f"run={tmp_path / 'other'}", *training, *other)
    assert done.returncode == 0, done.stderr
    assert open_run(tmp_path / "other").tokenizer.src_vocab_size == 60


def test_a_missing_file_is_told_before_the_data_is_read(
    nmt: Command, corpus: list[str], tmp_path: Path
) -> None:
    missing = tmp_path / "none.json"
    done = nmt("train", f"run={tmp_path / 'run'}", *corpus[:-1], f"tokenizer.path={missing}", *MODEL)
    assert done.returncode == 2
    assert f"tokenizer.path={missing} cannot be read: No such file" in done.stderr
