"""Embeddings that begin from vectors of words: which pieces get which, and what is refused."""

from __future__ import annotations

import gzip
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from nmt.cli import main
from nmt.config.compose import compose
from nmt.config.roots import TrainConfig
from nmt.config.starting import InitConfig
from nmt.config.stored import fingerprint
from nmt.data.special_ids import EOS_ID
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.data.tokens.tokenizer_training import SPACE
from nmt.errors import UserError
from nmt.models.base import TranslationModel
from nmt.runs.embeddings import begin_embeddings
from nmt.runs.opened import initial_model
from nmt.runs.opening import open_run
from nmt.verbs import VERBS
from tests.runs.untrained import GPT, RNN, TRANSFORMER, untrained, untrained_classifier

D = 8
"""Width of the tiny models."""


def vectors(file: Path, **of_words: float) -> str:
    """Write a file in which all numbers of the vector of a word are one, and return its path."""
    file.write_text("".join(f"{word} {' '.join([str(x)] * D)}\n" for word, x in of_words.items()))
    return str(file)


def begun(run: Path, **init: Any) -> tuple[TranslationModel, TranslationModel, Tokenizer, list[str]]:
    """Return the model of a run before its first update, with and without vectors, and what was said."""
    opened, said = open_run(run), list[str]()
    before, after = (initial_model(opened.cfg, opened.tokenizer) for _ in range(2))
    begin_embeddings(after, opened.tokenizer, InitConfig(**init), said.append)
    return before, after, opened.tokenizer, said


def table(model: TranslationModel, side: str) -> torch.Tensor:
    names = f"{side}_embedding", "embedding"
    named = model.named_parameters(remove_duplicate=False)
    return next(x.detach() for name, x in named if name.startswith(names) and len(x) > D)


@pytest.mark.parametrize("family", [TRANSFORMER, RNN, GPT], ids=["transformer", "rnn", "gpt"])
def test_pieces_begin_from_their_vectors(family: tuple[str, ...], tmp_path: Path) -> None:
    is_gpt = family is GPT
    task = ("task=language_model",) if is_gpt else ("model.tying=none", "tokenizer.joint=false")
    run = untrained(tmp_path / "run", "tokenizer=word", f"model.d_model={D}", *task, model=family)
    side = "tgt" if is_gpt else "src"
    file = vectors(tmp_path / "vectors.txt", ab=1.0, nothing=5.0, ca=-3.0)
    before, after, tokenizer, said = begun(run, **{f"{side}_embeddings": file})
    texts = [text.removeprefix(SPACE) for text in tokenizer.tgt_spellings(range(tokenizer.tgt_vocab_size))]
    old, new = table(before, side), table(after, side)
    scale = float(old.square().mean().sqrt()) / math.sqrt((1 + 9) / 2)
    assert {"ab", "ca"} < {*texts}
    for i, text in enumerate(texts):
        value = {"ab": scale, "ca": -3 * scale}.get(text)
        torch.testing.assert_close(new[i], old[i] if value is None else torch.full((D,), value))
    number = len(texts) - EOS_ID - 1
    told = f"init.{side}_embeddings: 2 of {number} pieces begin from {file}, its numbers times {scale:.3g}"
    assert said == [told]
    others = after.state_dict()
    changed = [name for name, x in before.state_dict().items() if not torch.equal(x, others[name])]
    assert len(changed) == (2 if is_gpt else 1)  # the output layer is the same matrix


def test_the_spelling_comes_before_the_word_and_the_word_before_its_small_letters(tmp_path: Path) -> None:
    lines = ["Ab ab ca", "Ca ca", "Da da ca"] * 9
    run = untrained(tmp_path / "run", "tokenizer=bpe", "tokenizer.vocab_size=24", lines=lines)
    of_words = {f"{SPACE}Ab": 1.0, "Ab": 2.0, "ab": 3.0, "Ca": 4.0, "ca": 5.0, "da": 6.0}
    file = vectors(tmp_path / "vectors.txt", **of_words)
    _, after, tokenizer, _ = begun(run, src_embeddings=file)
    texts, new = tokenizer.src_spellings(range(tokenizer.src_vocab_size)), table(after, "src")
    found = {
        text.removeprefix(SPACE): float(new[i, 0]) for i, text in enumerate(texts) if text.startswith(SPACE)
    }
    ratios = {
        text: round(x / found["Ab"], 3) for text, x in found.items() if text in ("Ab", "Ca", "ca", "Da")
    }
    assert ratios == {"Ab": 1.0, "Ca": 4.0, "ca": 5.0, "Da": 6.0}


def test_where_a_row_is_of_both_sides_the_source_comes_first(tmp_path: Path) -> None:
    run = untrained(tmp_path / "run", "tokenizer=word", "model.tying=all")
    of_src, of_tgt = vectors(tmp_path / "a.txt", ab=1.0), vectors(tmp_path / "b.txt", ab=-1.0, ca=-1.0)
    _, after, tokenizer, said = begun(run, src_embeddings=of_src, tgt_embeddings=of_tgt)
    rows = [
        tokenizer.src_spellings(range(tokenizer.src_vocab_size)).index(f"{SPACE}{word}")
        for word in ("ab", "ca")
    ]
    assert table(after, "src")[rows, 0].sign().tolist() == [1, -1]
    assert [line.partition(" of ")[0] for line in said] == [
        "init.src_embeddings: 1",
        "init.tgt_embeddings: 1",
    ]


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    file = vectors(tmp_path / "vectors.txt", nothing=1.0)
    run = untrained(tmp_path / "run", "tokenizer=word")
    with pytest.raises(UserError, match=r"^init.tgt_embeddings: .* has a vector for none of the \d+ pieces"):
        begun(run, tgt_embeddings=file)
    labels = untrained_classifier(tmp_path / "labels")
    with pytest.raises(UserError, match=r"^init.tgt_embeddings: the model has embeddings of src_embedding"):
        begun(labels, tgt_embeddings=file)
    with pytest.raises(
        UserError, match=r"^init.src_embeddings is for a model that begins anew; with init=old"
    ):
        InitConfig(run="old", src_embeddings=file)


def test_a_training_begins_from_them_and_goes_on_without_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = vectors(tmp_path / "vectors.txt", le=1.0, chat=2.0)
    keys = [
        *("train", "data=toy", "experiment=none", "tokenizer=word", "runtime.device=cpu", *TRANSFORMER),
        *("schedule=constant", "schedule.peak_rate=1e-9", "schedule.warmup_steps=0", "decoding=greedy"),
        *("trainer.eval_every_steps=2", "trainer.save_every_steps=2", f"init.tgt_embeddings={file}"),
    ]
    run = tmp_path / "run"
    assert main([*keys, "debug=smoke"]) == 0
    assert main([*keys, "dry_run=true"]) == 0
    assert main([*keys, f"run={run}", "trainer.max_steps=2"]) == 0
    assert capsys.readouterr().err.count("init.tgt_embeddings: 2 of ") == 3
    opened = open_run(run)
    row = opened.tokenizer.tgt_spellings(range(opened.tokenizer.tgt_vocab_size)).index(f"{SPACE}chat")
    values = table(opened.model, "tgt")[row]
    torch.testing.assert_close(values, values[:1].expand(D), atol=1e-6, rtol=0)
    text = Path(file).read_text()
    vectors(Path(file), le=2.0, chat=1.0)
    for refused in ([*keys, f"run={run}", "trainer.max_steps=4"], ["reproduce", f"run={run}"]):
        capsys.readouterr()
        assert main(refused) == 2
        told = capsys.readouterr().err
        assert f"error: init.tgt_embeddings={file} has changed since {run} began: its SHA-256 was" in told
    Path(file).write_bytes(gzip.compress(text.encode()))
    assert main(["reproduce", f"run={run}"]) == 0
    Path(file).rename(tmp_path / "gone")
    assert main([*keys, f"run={run}", "trainer.max_steps=4"]) == 0
    assert "going on after step 2" in capsys.readouterr().err
    assert main([*keys, f"run={run}2", "trainer.max_steps=4"]) == 2
    assert f"init.tgt_embeddings: there is no file {file}" in capsys.readouterr().err


def test_runs_without_them_have_the_directories_they_had() -> None:
    (composed,) = compose(VERBS["train"], ["data=toy"])
    (with_vectors,) = compose(VERBS["train"], ["data=toy", "init.src_embeddings=a.txt"])
    plain, chosen = (one.to_config(TrainConfig) for one in (composed, with_vectors))
    assert fingerprint(plain) != fingerprint(chosen)
