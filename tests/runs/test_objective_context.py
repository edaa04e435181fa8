"""The text behind ids, for objectives: alignments of words mapped to pieces, and costs of translations."""

from __future__ import annotations

import dataclasses
import gzip
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from nmt import cli
from nmt.config.compose import compose
from nmt.config.roots import TrainConfig
from nmt.data.augment.lexicon import WORD
from nmt.data.batches.batching import Batch, pad
from nmt.data.batches.training_split import TrainingData
from nmt.data.parallel_text import ParallelText
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.data.tokens.tokenizer_training import Case, TagSide, TokenizerConfig, TokenizerKind, prepare_lines
from nmt.decoding.configs import BeamConfig
from nmt.errors import UserError
from nmt.models.base import TranslationModel
from nmt.runs import objective_context
from nmt.runs.objective_context import (
    SPACED,
    UNKNOWN,
    UNKNOWNS,
    RunContext,
    Spelling,
    _parsed,
    _words,
    from_file,
)
from nmt.training.adapting.adaptation import adapt
from nmt.training.adapting.configs import LoraConfig
from nmt.training.adapting.lora import LowRankUpdate
from nmt.verbs import VERBS
from tests.training.objectives.test_objective import trained_in_parts

LINES = ["The old cat sleeps, in the garden.", "A cat  sees the old garden!", "old cats sleep"]


@pytest.mark.parametrize("right_to_left", [False, True])
def test_words_have_the_same_places_in_every_segmentation(right_to_left: bool) -> None:
    cfg = TokenizerConfig(vocab_size=30, right_to_left=right_to_left)
    corpus = LINES + [line.lower() for line in LINES] + ["cats in a garden sleep", "the gardens are old"] * 3
    tokenizer = Tokenizer.train(cfg, ParallelText(corpus, corpus))
    spelling = Spelling(tokenizer, [], is_target=True)
    drawn = [tokenizer.sample_tgt(LINES, alpha=0.1, seed=seed).take(range(3)) for seed in range(5)]
    assert len({tuple(map(int, ids)) for sentences in drawn for ids in sentences}) > len(LINES)
    for encoded in [*drawn, [np.asarray(ids) for ids in tokenizer.encode_tgt(LINES)]]:
        for ids, line in zip(encoded, LINES, strict=True):
            spelt, texts = spelling.read(ids.tolist())
            assert spelt == " ".join(line.split())
            for word in (WORD, SPACED):
                words = word.findall(spelt)
                places = spelling.places(texts, word)
                assert len(places) == len(words)
                for found, own in zip(places, words, strict=True):
                    in_order = sorted(found, reverse=right_to_left)
                    assert own in "".join(spelling.texts[ids[place]] for place in in_order)


def test_source_factors_change_no_text() -> None:
    cfg = TokenizerConfig(kind=TokenizerKind.char, source_factors=["case", "position"])
    tokenizer = Tokenizer.train(cfg, ParallelText(LINES, LINES))
    spelling = Spelling(tokenizer, [], is_target=False)
    assert max(tokenizer.encode_src(LINES)[0]) >= tokenizer.src_vocab_size
    assert spelling.read(tokenizer.encode_src(LINES)[0])[0] == LINES[0].lower()


def test_samples_begin_with_the_tag_of_their_target_and_follow_the_seed(
    tiny_model: Callable[..., TranslationModel],
) -> None:
    src, tgt = ["<2de> a dog", "<2fr> a dog", "<2fr> a cat"], ["ein Hund", "un chien", "un chat"]
    rules = TokenizerConfig(kind=TokenizerKind.char, tag_side=TagSide.target)
    tokenizer = Tokenizer.train(rules, ParallelText(src, tgt), ["<2de>", "<2fr>"])
    (ids, mask), (tgt_out, real) = pad(tokenizer.encode_src(src)), pad(tokenizer.encode_tgt(tgt, src))
    batch = Batch(ids, mask, tgt_out, tgt_out, rows=real.flatten().nonzero()[:, 0])
    (trial,) = compose(VERBS["train"], ["data=toy", "objective=minimum_risk"])
    cfg, _ = trial.to_training()
    model, data = tiny_model().eval(), cast(TrainingData, SimpleNamespace(tokenizer=tokenizer))

    def drawn(seed: int) -> list[list[list[int]]]:
        return RunContext(dataclasses.replace(cfg, seed=seed), data).sampler(1.0)(model, batch, 1, 4)

    for group, line in zip(drawn(1), src, strict=True):
        assert {sample[0] for sample in group} == {*tokenizer.tgt_start(line)}
    assert drawn(1) == drawn(1) != drawn(2)


def test_samples_are_drawn_by_plain_maps(
    tiny_model: Callable[..., TranslationModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an update of low rank adds is not computed anew for every token."""
    model, seen = tiny_model().eval(), list[nn.Module]()
    adapt(model, LoraConfig())

    def draw_none(searched: TranslationModel, *_: object) -> list[object]:
        seen.append(searched)
        return []

    monkeypatch.setattr(objective_context, "draw_samples", draw_none)
    cfg = cast(TrainConfig, SimpleNamespace(decoding=BeamConfig(), seed=1))
    data = cast(TrainingData, SimpleNamespace(tokenizer=SimpleNamespace(own_start=tuple)))
    ids = torch.zeros(0, 1, dtype=torch.int64)
    assert RunContext(cfg, data).sampler(1.0)(model, Batch(ids, ids, ids, ids, rows=ids), 1, 4) == []
    assert not any(isinstance(module, LowRankUpdate) for module in seen[0].modules())


def test_a_line_of_an_alignment() -> None:
    assert _parsed("0-0 2-1", (3, 2), "f:1") == [(0, 0), (2, 1)]
    assert _parsed("", (3, 2), "f:1") == []
    with pytest.raises(UserError, match="f:7: '0:1' is no link; write source-target, from 0, as 0-0 2-1"):
        _parsed("0-0 0:1", (3, 2), "f:7")
    with pytest.raises(UserError, match="f:7: the link 3-1 names a word that is not there: the source has 3"):
        _parsed("3-1", (3, 2), "f:7")


@pytest.mark.parametrize(
    "objective", ["guided_alignment", pytest.param("minimum_risk", marks=pytest.mark.slow)]
)
def test_training_in_parts_has_the_bits_of_one(objective: str, tmp_path: Path) -> None:
    metrics = trained_in_parts(tmp_path, f"objective={objective}", "decoding.max_length_ratio=1")
    name, most = ("aligned", 1.0) if objective == "guided_alignment" else ("risk", 1.0)
    assert 0.3 < metrics[-1][f"train/{name}"] <= most


def test_alignments_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "links"
    command = ["train", "experiment=toy_en_fr", "objective=guided_alignment", "model.d_model=16"]
    command += [f"objective.alignments={file}", f"run={tmp_path / 'run'}", "trainer.max_steps=2"]
    command += ["trainer.log_every_steps=1", "decoding.max_length_offset=2", "decoding.max_length_ratio=1"]
    assert cli.main(command) == 2
    assert f"objective.alignments: there is no file {file}" in capsys.readouterr().err
    file.write_text("0-0\n" * 9)
    assert cli.main(command) == 2
    assert "has 9 lines, but the training data has 10 pairs" in capsys.readouterr().err
    file.write_bytes(gzip.compress(b"0-0 1-1\n" * 10))
    assert cli.main(command) == 0

    run, longer = tmp_path / "run", [*command, "trainer.max_steps=3"]
    file.write_text("0-0 1-1\n" * 9 + "0-1 1-0\n")
    capsys.readouterr()
    commands = longer, ["reproduce", f"run={run}"]
    for refused, anew in zip(commands, (", or start anew with another run=...", ""), strict=True):
        assert cli.main(refused) == 2
        told = capsys.readouterr().err
        assert f"error: objective.alignments={file} has changed since {run} began: its SHA-256 was" in told
        assert told.endswith(f"; restore the file{anew}\n")
    assert not (tmp_path / "run-reproduced").exists()
    file.write_text("0-0 1-1\n" * 10)  # the same links, no longer compressed
    assert cli.main(longer) == 0
    (run / "alignments.json").unlink()  # as in a run of an earlier version
    file.write_text("0-0\n" * 10)
    assert cli.main([*command, "trainer.max_steps=4"]) == 0


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"kind": TokenizerKind.word, "lowercase": True},
        {"kind": TokenizerKind.bpe, "case": Case.markup, "byte_fallback": True, "vocab_size": 330},
        {"right_to_left": True, "source_factors": ["case"]},
    ],
)
@pytest.mark.parametrize("strips", [False, True])
def test_links_of_a_file_are_between_its_words_whatever_the_tokenizer_leaves_of_them(
    settings: dict[str, Any], strips: bool, tmp_path: Path
) -> None:
    """A word of punctuation has no link, and one that is parted has those of all its parts."""
    src = ["A well-known DOG - it sleeps .", "- Here", "..."]
    tgt = ["Ein bekannter Hund , er schläft .", "Hier 中", "-"]
    for side, lines in (("en", src), ("de", tgt)):
        (tmp_path / f"text.{side}").write_text("\n".join([*lines, ""]), encoding="utf-8")
    file = tmp_path / "links"
    file.write_text("0-0 1-1 2-2 3-3 4-4 5-5 6-6\n1-0 1-1\n0-0\n")
    files = [f"data.{split}={tmp_path}/text" for split in ("train", "validation", "test")]
    (composed,) = compose(VERBS["train"], ["data=files", "data.src=en", "data.tgt=de", *files])
    rules = TokenizerConfig(**{"kind": TokenizerKind.char, "strip_punctuation": strips, **settings})
    tokenizer = Tokenizer.train(rules, ParallelText(src, tgt[:1]))
    sides = [Spelling(tokenizer, [], is_target=is_target) for is_target in (False, True)]
    align = from_file(file, composed.to_config(TrainConfig), tokenizer, *sides)
    found = []
    for ids in zip(tokenizer.encode_src(src), tokenizer.encode_tgt(tgt), strict=True):
        texts = [side.read(one)[0] for side, one in zip(sides, ids, strict=True)]
        found.append(align(*texts))
    whole = [[(i, i) for i in range(7)], [(1, 0), (1, 1)], [(0, 0)]]
    assert found == (
        [[(0, 0), (1, 1), (2, 1), (3, 2), (4, 3), (5, 4)], [(0, 0), (0, 1)], []] if strips else whole
    )


def test_bytes_of_a_character_are_one_word() -> None:
    """Words have the same numbers in the text, which is aligned, as among the pieces, which are taught."""
    text = ParallelText(["Two big dogs sleep."] * 20, ["Zwei große Hunde schlafen."] * 20)
    rules = TokenizerConfig(kind=TokenizerKind.bpe, byte_fallback=True, vocab_size=300)
    tokenizer = Tokenizer.train(rules, text)
    side = Spelling(tokenizer, [], is_target=False)
    read, pieces = side.read(tokenizer.encode_src(["big 中 dogs 中国."])[0])
    words, places = WORD.findall(read), side.places(pieces, WORD)
    spelt = ["".join(pieces[place] for place in of_word).strip() for of_word in places]
    assert [UNKNOWNS.sub(UNKNOWN, word) for word in spelt] == words == ["big", UNKNOWN, "dogs", UNKNOWN, "."]
    assert list(map(len, spelt)) == [3, 3, 4, 6, 1]


@pytest.mark.parametrize(("language", "case"), [("de", Case.keep), ("de_DE", Case.markup)])
def test_a_tag_in_front_is_no_word_of_a_line(language: str, case: Case, tmp_path: Path) -> None:
    src, tgt, file = ["Two men", "A dog"], ["Zwei Männer", "Ein Hund"], tmp_path / "links"
    for side, lines in (("en", src), (language, tgt)):
        (tmp_path / f"text.{side}").write_text("\n".join([*lines, ""]), encoding="utf-8")
    corpus = ", ".join(f"{split}: {tmp_path}/text" for split in ("train", "validation", "test"))
    tagged = [
        "data.target_tags=true",
        f"data.corpora={{own: {{src: en, tgt: {language}, tag: bt, {corpus}}}}}",
    ]
    (composed,) = compose(VERBS["train"], ["data=mixture", *tagged])
    cfg = composed.to_config(TrainConfig)
    rules = TokenizerConfig(kind=TokenizerKind.char, case=case)
    tokenizer = Tokenizer.train(rules, ParallelText(src, tgt), cfg.data.symbols)
    sides = [Spelling(tokenizer, cfg.data.symbols, is_target=is_target) for is_target in (False, True)]
    file.write_text("0-0 1-1\n" * 2)
    align = from_file(file, cfg, tokenizer, *sides)
    ids = tokenizer.encode_src([f"<2{language}> <bt> Two men"])[0], tokenizer.encode_tgt(["Zwei Männer"])[0]
    texts = [side.read(one)[0] for side, one in zip(sides, ids, strict=True)]
    assert [[texts[0].split()[i], texts[1].split()[j]] for i, j in align(*texts)] == [
        prepare_lines(rules, pair) for pair in (["Two", "Zwei"], ["men", "Männer"])
    ]
    file.write_text("2-0\n" * 2)
    with pytest.raises(
        UserError, match=r":1: the link 2-0 names a word that is not there: the source has 2 words"
    ):
        from_file(file, cfg, tokenizer, *sides)


def test_a_line_whose_words_the_tokenizer_joins_is_refused() -> None:
    side = Spelling(
        Tokenizer.train(TokenizerConfig(kind=TokenizerKind.char), ParallelText(LINES, LINES)),
        [],
        is_target=False,
    )
    words = _words(lambda lines: [[] for _ in lines], side)
    with pytest.raises(UserError, match=r"^f:7: the tokenizer reads 'a :' as 'a:', in which the words"):
        words("a :", "a:", "f:7")


def test_what_does_not_fit_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    guided = ["train", "experiment=toy_en_fr", "objective=guided_alignment"]
    assert cli.main([*guided, "trainer.gradient_checkpointing=true"]) == 2
    assert "trainer.gradient_checkpointing=true drops; set it to false" in capsys.readouterr().err
    risk = ["train", "experiment=toy_en_fr", "objective=minimum_risk"]
    assert cli.main([*risk, "runtime.parallel=fsdp"]) == 2
    assert "objective=minimum_risk translates with all weights in each process" in capsys.readouterr().err
    assert cli.main([*risk, "objective.samples=0"]) == 2
    assert "objective.samples must be positive, but is 0" in capsys.readouterr().err
