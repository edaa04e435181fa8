"""A run whose tokenizer is a SentencePiece model of others, through the command line."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import sentencepiece

from nmt.runs.opening import open_run
from tests.integration.test_start import MODEL, TRAINING, WORDS

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def corpus(tmp_path: Path) -> list[str]:
    """Return overrides for thirty pairs with documents, and for a model with the ids of Marian."""
    lines = [" ".join(WORDS[i % 7 :: i % 3 + 1]) for i in range(30)]
    for side in ("en", "de"):
        (tmp_path / f"text.{side}").write_text("".join(f"{line}\n" for line in lines))
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_prefix=str(tmp_path / "agreed"),
        model_type="bpe",
        vocab_size=50,
        bos_id=-1,
        eos_id=0,
        unk_id=1,
        minloglevel=2,
    )
    text = [f"data.{split}={tmp_path}/text" for split in ("train", "validation", "test")]
    return ["data=files", "data.src=en", "data.tgt=de", *text, "data.context=1"]


def test_a_run_takes_the_model_and_is_complete_without_it(
    nmt: Command, corpus: list[str], tmp_path: Path
) -> None:
    file, run = tmp_path / "agreed.model", tmp_path / "run"
    ready = [f"tokenizer.path={file}", "tokenizer.sampling_alpha=0.2"]
    command = ["train", f"run={run}", *corpus, *MODEL, *TRAINING, *ready]
    done = nmt(*command, "trainer.max_steps=2")
    assert done.returncode == 0, done.stderr
    assert f"tokenizer.path={file}: 53 pieces, with those of nmt" in done.stderr  # <pad>, <s> and <brk>
    given = sentencepiece.SentencePieceProcessor(model_file=str(file))
    file.unlink()
    done = nmt(*command, "trainer.max_steps=4")
    assert done.returncode == 0, done.stderr
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 4
    done = nmt("export", f"run={run}", "format=safetensors", f"output={tmp_path / 'out'}")
    assert done.returncode == 0, done.stderr
    kept = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "out/source.spm"))
    line = "the old house, and a River"
    assert kept.encode(line, out_type=str) == given.encode(line, out_type=str)
    assert "| tokenizer | SentencePiece, bpe |" in (tmp_path / "out/README.md").read_text()
    (pieces,) = open_run(run).tokenizer.src_pieces(["a river <brk> the house"])
    assert "<brk>" in [piece.text for piece in pieces]


def test_a_file_that_is_none_is_told_before_the_data_is_read(
    nmt: Command, corpus: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "agreed.vocab"
    done = nmt("train", f"run={tmp_path / 'run'}", *corpus, *MODEL, f"tokenizer.path={file}")
    assert done.returncode == 2
    assert f"error: tokenizer.path={file} is neither a SentencePiece model nor" in done.stderr
    assert "training data" not in done.stderr
