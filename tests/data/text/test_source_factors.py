"""Source factors: their values, packed into ids, and models that read them in every verb."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import nmt
from nmt.config.compose import compose
from nmt.data.batches.encode import encode_pairs
from nmt.data.parallel_text import ParallelText
from nmt.data.special_ids import EOS_ID, UNK_ID
from nmt.data.text.source_factors import CASES, FACTORS, POSITIONS, num_ids, small, texts_of
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.data.tokens.tokenizer_training import TokenizerConfig, TokenizerKind
from nmt.decoding.configs import BeamConfig
from nmt.errors import UserError
from nmt.models import build_model
from nmt.models.configs import FactorCombine, RnnConfig, TransformerConfig
from nmt.models.vocabulary import add_factors
from nmt.runs.opening import open_run
from nmt.runtime_config import RuntimeConfig
from nmt.verbs import VERBS
from tests.runs.untrained import untrained

LINES = ["The DOG sees  İstanbul", "a McDog 7", "", "the dog sees  istanbul"]
BOTH = ["case", "position"]


def tokenizer(kind: TokenizerKind = TokenizerKind.bpe, factors: list[str] | None = None) -> Tokenizer:
    cfg = TokenizerConfig(kind=kind, vocab_size=40, source_factors=BOTH if factors is None else factors)
    return Tokenizer.train(cfg, ParallelText(LINES, LINES))


def values(found: Tokenizer, line: str) -> list[tuple[str, ...]]:
    (ids,) = found.encode_src([line])
    assert ids[-1] == EOS_ID
    size, told = found.src_vocab_size, []
    for number in ids[:-1]:
        rest, names = number // size, []
        for name in found.cfg.source_factors:
            kinds = FACTORS[name].values
            names.append(kinds[rest % len(kinds)])
            rest //= len(kinds)
        assert rest == 0
        told.append(tuple(names))
    return told


def test_the_values_of_a_factor_are_those_of_its_definition() -> None:
    texts = ["The", " DOG", "mcD", "McDOG", "A", "7", "ß"]
    assert [CASES[i] for i in FACTORS["case"].of(texts, texts)] == [
        "title",
        "upper",
        "mixed",
        "mixed",
        "title",
        "none",
        "lower",
    ]
    spelt = ["▁the", "▁d", "o", "g", "▁7"]
    assert [POSITIONS[i] for i in FACTORS["position"].of(spelt, spelt)] == [
        "whole",
        "begin",
        "inside",
        "end",
        "whole",
    ]
    assert texts_of("The İ", ["the", " ", "i"]) == ["The", " ", "İ"]
    assert small("The İ") == "the i"


@pytest.mark.parametrize("kind", list(TokenizerKind))
def test_ids_hold_the_piece_and_its_values_and_a_line_has_the_pieces_of_its_small_letters(
    kind: TokenizerKind,
) -> None:
    if kind is TokenizerKind.unigram:
        kind = TokenizerKind.char
    found = tokenizer(kind)
    upper, lower = found.encode_src(["THE DOG"])[0], found.encode_src(["the dog"])[0]
    size = found.src_vocab_size
    assert [i % size for i in upper] == [i % size for i in lower]
    assert upper != lower
    assert {case for case, _ in values(found, "the dog")} <= {"lower", "none"}
    assert {case for case, _ in values(found, "THE DOGS")} <= {"upper", "title", "none"}
    pairs, _ = encode_pairs(ParallelText(LINES, LINES), found)
    listed = found.encode_src(LINES)
    assert [row.tolist() for row in pairs.src.take(range(4))] == listed
    assert [[piece.id for piece in line] for line in found.src_pieces(LINES)] == listed
    assert max(map(max, listed)) < found.num_src_ids == num_ids(size, BOTH)
    assert found.encode_tgt(["The"]) != found.encode_tgt(["the"])


@pytest.mark.parametrize("kind", [TokenizerKind.bpe, TokenizerKind.char, TokenizerKind.word])
def test_characters_dropped_in_front_of_a_line_leave_its_pieces_their_values(kind: TokenizerKind) -> None:
    found = tokenizer(kind)
    expected = found.encode_src(["The DOG sees"])
    assert found.encode_src([" The DOG sees "]) == found.encode_src(["\u200b  The DOG sees"]) == expected


def test_sampled_pieces_have_places_in_words() -> None:
    found = tokenizer(factors=["position"])
    sampled = found.sample_src(["the dog sees"], alpha=0.5, seed=1)
    ids = sampled.take([0])[0].tolist()
    assert ids[-1] == EOS_ID
    plain = Tokenizer(TokenizerConfig(kind=TokenizerKind.bpe), found.src_model, found.tgt_model)
    same = plain.sample_src(["the dog sees"], alpha=0.5, seed=1).take([0])[0].tolist()
    assert [i % found.src_vocab_size for i in ids] == same
    assert all(i // found.src_vocab_size > 0 for i in ids[:-1])


@pytest.mark.parametrize("combine", list(FactorCombine))
@pytest.mark.parametrize("tying", ["all", "none"])
def test_the_vector_of_a_token_is_joined_by_those_of_its_values(combine: FactorCombine, tying: str) -> None:
    cfg = TransformerConfig(
        d_model=8,
        d_ff=8,
        num_heads=2,
        encoder_layers=1,
        decoder_layers=1,
        factor_combine=combine,
        factor_width=6,
    )
    cfg.tying = type(cfg.tying)[tying]
    torch.manual_seed(1)
    plain = build_model(cfg, src_vocab_size=9, tgt_vocab_size=9)
    torch.manual_seed(1)
    model = build_model(cfg, src_vocab_size=9, tgt_vocab_size=9)
    add_factors(model, (5, 3), cfg)
    own = model.state_dict()
    assert all(torch.equal(x, own[name]) for name, x in plain.state_dict().items())
    tokens: Any = model.get_submodule("src_embedding.tokens")
    assert (tokens.weight is model.output.weight) == (tying == "all")
    assert tokens.factors[0].weight.shape == (5, 8 if combine is FactorCombine.sum else 6)
    ids = torch.tensor([[4, 4 + 9 * 2, 4 + 9 * (2 + 5 * 1), -1]])
    found = tokens(ids)[0]
    rows = [(4, 0, 0), (4, 2, 0), (4, 2, 1)]
    for vector, (token, first, second) in zip(found, rows, strict=False):
        parts = [tokens.weight[token], tokens.factors[0].weight[first], tokens.factors[1].weight[second]]
        expected = sum(parts) if combine is FactorCombine.sum else tokens.map(torch.cat(parts))
        torch.testing.assert_close(vector, expected)
    assert not found[3].any()  # word dropout


def test_models_without_a_table_of_sources_are_refused_and_others_are_not() -> None:
    add_factors(build_model(RnnConfig(d_model=8), src_vocab_size=9, tgt_vocab_size=9), (5,), RnnConfig())
    for overrides, error in (
        (["model=gpt"], "needs a model with an encoder"),
        (["tokenizer.source_factors=[cases]"], "'cases' is no factor; the factors are case, position"),
        (["tokenizer.source_factors=[case,case]"], "'case' is there twice"),
        (
            ["tokenizer.source_factors=[case]", "tokenizer.sampling_alpha=0.1"],
            "needs tokenizer.sampling_alpha=0",
        ),
    ):
        with pytest.raises(UserError, match=error):
            compose(VERBS["train"], ["data=toy", "tokenizer.source_factors=[position]", *overrides])


def test_a_tag_with_capitals_is_one_piece_of_sources_in_small_letters() -> None:
    lines = ["ab ba"] * 5
    cfg = TokenizerConfig(kind=TokenizerKind.bpe, vocab_size=14, source_factors=["case"])
    tok = Tokenizer.train(cfg, ParallelText(lines, lines), tags=["<2deu_Latn>"])
    (pieces,) = tok.src_pieces(["<2deu_Latn> ab"])
    assert "<2deu_latn>" in [piece.text for piece in pieces]
    assert UNK_ID not in [piece.id for piece in pieces]


def test_a_run_with_factors_translates_scores_and_trains(tmp_path: Path) -> None:
    factors = "tokenizer.source_factors=[case,position]"
    run = open_run(untrained(tmp_path / "run", factors), runtime_cfg=RuntimeConfig(device="cpu"))
    upper, lower = run.translate(["Ab ba", "ab ba"], BeamConfig(beam_size=2))
    assert upper.ids
    assert upper.score != lower.score
    first, second = run.score([("Ab ba", "ab"), ("ab ba", "ab")])
    assert first.log_prob != second.log_prob
    maps = next(iter(run.attend("Ab ba\tab")))
    assert maps.src[-1].id == EOS_ID
    started = nmt.train(
        "data=toy",
        "tokenizer=char",
        factors,
        "model=transformer_tiny",
        "model.d_model=8",
        "model.d_ff=8",
        "model.num_heads=2",
        "model.factor_combine=concat",
        "data.max_tokens=128",
        "trainer.batch_tokens=256",
        "trainer.max_steps=1",
        "trainer.num_samples=0",
        "decoding=greedy",
        "tracking.sinks=[jsonl]",
        "runtime.device=cpu",
        run=tmp_path / "trained",
    )
    assert started.results is not None
    assert open_run(tmp_path / "trained").evaluate().values == pytest.approx(started.results["test"])
