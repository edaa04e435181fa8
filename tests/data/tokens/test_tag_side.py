"""Tags of target languages in front of targets: as ids, forced in every search, never in the text."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import nmt
from nmt.config.compose import compose
from nmt.data.batches.encode import LineEncoder, encode_pairs, sample_pairs
from nmt.data.parallel_text import ParallelText
from nmt.data.special_ids import EOS_ID
from nmt.data.tokens.adaptation import extended
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.data.tokens.tokenizer_training import TagSide, TokenizerConfig, TokenizerKind
from nmt.decoding.configs import BeamConfig, DecodingConfig, MBRConfig, SamplingConfig
from nmt.errors import UserError
from nmt.runs.opened import Run
from nmt.translation.requests import Request
from nmt.verbs import VERBS

SRC = ["<2de> <bt> a dog", "<2fr> a dog", "<2de> a cat", " "]
TGT = ["ein Hund", "un chien", "eine Katze", ""]
TAGS = ["<2de>", "<2fr>", "<bt>"]
TINY = (
    "data=mixture",
    "data.corpora={there: {name: toy}, back: {name: toy, src: fr, tgt: en}}",
    "data.tgt=fr",
    "data.target_tags=true",
    "tokenizer=char",
    "model=transformer_tiny",
    "model.d_model=16",
    "model.d_ff=16",
    "model.num_heads=2",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "trainer.batch_tokens=512",
    "data.max_tokens=128",
    "trainer.max_steps=2",
    "trainer.eval_every_steps=1",
    "trainer.num_samples=1",
    "tracking.sinks=[jsonl]",
    "decoding=greedy",
    "decoding.max_length_ratio=1",
    "runtime.device=cpu",
)


def tokenizer(side: TagSide, **settings: object) -> Tokenizer:
    values: dict[str, object] = {"kind": TokenizerKind.char, **settings}
    cfg = TokenizerConfig(tag_side=side, **values)  # type: ignore[arg-type]
    return Tokenizer.train(cfg, ParallelText(SRC[:3], TGT[:3]), TAGS)


def spelt(found: Tokenizer, line: str, *, is_src: bool) -> list[str]:
    source = ParallelText([line], ["un chien"])
    pieces = found.src_pieces([line]) if is_src else found.tgt_pieces(source.tgt, source.src)
    return [piece.text for piece in pieces[0] if piece.text.startswith("<") and piece.id != EOS_ID]


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize(
    ("side", "src", "tgt"),
    [
        (TagSide.source, ["<2fr>", "<bt>"], []),
        (TagSide.target, ["<bt>"], ["<2fr>"]),
        (TagSide.both, ["<2fr>", "<bt>"], ["<2fr>"]),
    ],
)
def test_the_side_decides_which_ids_begin_with_the_tag(
    side: TagSide, src: list[str], tgt: list[str], joint: bool
) -> None:
    found = tokenizer(side, joint=joint)
    line = "<2fr> <bt> a dog"
    assert spelt(found, line, is_src=True) == src
    assert spelt(found, line, is_src=False) == tgt
    assert len(found.tgt_start(line)) == len(tgt)


@pytest.mark.parametrize(
    "settings", [{}, {"right_to_left": True}, {"lowercase": True}, {"kind": TokenizerKind.word}]
)
def test_all_ways_to_encode_agree_and_text_has_no_tag(settings: dict[str, object]) -> None:
    found = tokenizer(TagSide.target, **settings)
    listed = found.encode_tgt(TGT, SRC)
    pieces = [[piece.id for piece in line] for line in found.tgt_pieces(TGT, SRC)]
    pairs, _ = encode_pairs(ParallelText(SRC, TGT), found)
    assert listed == pieces
    assert [row.tolist() for row in pairs.tgt.take(range(4))] == listed
    assert [row.tolist() for row in pairs.src.take(range(4))] == found.encode_src(SRC)
    starts = [found.tgt_start(line) for line in SRC]
    assert [ids[: len(start)] for ids, start in zip(listed, starts, strict=True)] == starts
    assert listed[3] == [EOS_ID]
    prepared = [line.lower() if settings.get("lowercase") else line for line in TGT]
    assert [found.decode(ids[:-1]) for ids in listed] == prepared
    bare = [ids[len(start) : -1] for ids, start in zip(listed, starts, strict=True)]
    assert found.encode_tgt(TGT) == [[*ids, EOS_ID] for ids in bare]


def test_sampled_segmentations_begin_with_the_tag_and_a_vanished_target_stays_empty() -> None:
    found, text = (
        tokenizer(TagSide.both, kind=TokenizerKind.unigram, vocab_size=26),
        ParallelText(["<2de> a", "<2fr> a"], ["ein Hund", " "]),
    )
    pairs, _ = sample_pairs(lambda: iter([text]), LineEncoder(found, alpha=0.5, seed=1, epoch=1))
    first, second = pairs.tgt.take([0, 1])
    assert first[:1].tolist() == found.tgt_start("<2de> a")
    assert second.tolist() == [EOS_ID]


def test_a_side_is_another_tokenizer_and_new_tags_are_pieces_of_both_sides() -> None:
    prints = {tokenizer(side).fingerprint for side in TagSide}
    assert len(prints) == 3
    longer = extended(tokenizer(TagSide.target, joint=False), ParallelText(SRC, TGT), 9, ["<2es>"])
    assert longer.tgt_pieces(["un"], ["<2es> a"])[0][0].text == "<2es>"
    with pytest.raises(UserError, match=r"tokenizer.tag_side=target: the tag <2xx> is not in the vocabulary"):
        tokenizer(TagSide.target).tgt_start("<2xx> a dog")
    with pytest.raises(UserError, match=r"tokenizer.tgt_tag=a is in front of every target already"):
        TokenizerConfig(tgt_tag="a", tag_side=TagSide.both)


def test_a_side_without_tags_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"tag_side=target is for the tags of data.target_tags=true, but there"
    ):
        compose(VERBS["train"], ["data=toy", "tokenizer.tag_side=target"])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("runs") / "run"
    return nmt.train(*TINY, "tokenizer.tag_side=target", run=path)


@pytest.mark.parametrize(
    "decoding",
    [BeamConfig(beam_size=1), BeamConfig(beam_size=3), SamplingConfig(n_best=2), MBRConfig(num_samples=3)],
)
def test_every_search_begins_with_the_language_that_is_asked_for(
    trained: Run, decoding: DecodingConfig
) -> None:
    for language in ("fr", "en"):
        start = trained.tokenizer.tgt_start(f"<2{language}> x")
        found = list(trained.translate(["The dog.", "A cat."], decoding, language))
        several = [one for best in found for one in (best, *best.alternatives)]
        assert [one.ids[:1] for one in several] == [start] * len(several)
        assert not any("<2" in one.text for one in several)


def test_the_tag_that_is_given_costs_no_sample_and_no_token_anything(trained: Run) -> None:
    text = "The dog."
    for cfg in (SamplingConfig(n_best=2, temperature=0.01), BeamConfig(beam_size=2)):
        (found,) = trained.translate(text, cfg, "fr", token_scores=True)
        assert "<2fr>" not in found.tokens
        assert len(found.tokens) == len(found.log_probs) == len(found.ids)  # with EOS, without the tag
        length = len(found.log_probs)
        divisor = length if cfg.strategy == "sampling" else (5 + length) / 6
        assert found.score == pytest.approx(sum(found.log_probs) / divisor, abs=1e-4)


def test_the_language_is_given_to_scores_prefixes_and_pictures(trained: Run) -> None:
    (found,) = trained.translate(Request("The dog.", prefix="un"), BeamConfig(beam_size=2), "fr")
    assert found.text.startswith("un")
    (scored,) = trained.score([("The dog.", "Le chien.")], tgt="fr")
    assert len(scored.ids) == len(trained.tokenizer.encode_tgt(["Le chien."])[0])
    (other,) = trained.score([("The dog.", "Le chien.")], tgt="en")
    assert math.isfinite(other.log_prob)
    assert other.log_prob != scored.log_prob
    maps = next(iter(trained.attend("The dog.\tLe chien.", tgt="fr")))
    assert maps.tgt[0].text == "<2fr>"
    assert maps.src[0].text != "<2fr>"
    assert trained.results is not None
    assert trained.evaluate().values == pytest.approx(trained.results["test"])


@pytest.mark.slow
def test_a_resumed_run_is_an_uninterrupted_one_and_another_run_begins_from_it(
    trained: Run, tmp_path: Path
) -> None:
    first = nmt.train(*TINY, "tokenizer.tag_side=target", "trainer.max_steps=1", run=tmp_path / "run")
    assert first.results is not None
    resumed = nmt.train(*TINY, "tokenizer.tag_side=target", run=tmp_path / "run")
    state, expected = resumed.model.state_dict(), trained.model.state_dict()
    assert all((state[name] == expected[name]).all() for name in expected)
    started = nmt.train(*TINY, f"init={trained.path}", run=tmp_path / "other")
    assert started.cfg.tokenizer.tag_side is TagSide.target
    assert started.tokenizer.fingerprint == trained.tokenizer.fingerprint
