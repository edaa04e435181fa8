"""A translation model and a language model that predict as one: the product of their distributions."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from nmt.data.special_ids import BOS_ID, EOS_ID
from nmt.decoding import decode
from nmt.decoding.configs import BeamConfig
from nmt.layers.choices import Positions
from nmt.models.fusion import Fusion, WithoutSource
from nmt.models.narrowed import narrowed
from tests.models.test_contract import build, decoder_only, transformer

SRC = torch.tensor([[5, 6, 7, EOS_ID], [9, EOS_ID, 0, 0]])
MASK = SRC != 0
TGT = torch.tensor([[BOS_ID, 7, 8, 9], [BOS_ID, 4, 5, 6]])


@pytest.mark.parametrize("weight", [0.4, -0.2])
def test_the_distribution_is_the_normalised_product(weight: float) -> None:
    net, lm = build(transformer()).eval(), build(decoder_only()).eval()
    fused = Fusion(net, lm, weight).eval()
    with torch.inference_mode():
        own = net.project(net(SRC, MASK, TGT)).log_softmax(-1)
        text = torch.cat([TGT[:, :1], torch.full((2, 1), EOS_ID), TGT[:, 1:]], dim=1)
        of_lm = lm.project(lm(SRC[:, :0], MASK[:, :0], text)[:, 1:]).log_softmax(-1)
        assert_close(fused.project(fused(SRC, MASK, TGT)), (own + weight * of_lm).log_softmax(-1))


@pytest.mark.parametrize("weight", [0.4, 0.0, -0.2])
def test_forbidden_tokens_stay_forbidden(weight: float) -> None:
    fused = Fusion(build(transformer()).eval(), build(decoder_only()).eval(), weight).eval()
    ids = torch.tensor([0, 1, 2, 3, 7, 8, 9])
    allowed = torch.ones(len(SRC), len(ids), dtype=torch.bool)
    allowed[1, -1] = False
    few = narrowed(fused, ids, allowed)
    with torch.inference_mode():
        log_probs = few.step(torch.full((2,), BOS_ID), few.start(SRC, MASK))
    assert (log_probs == -torch.inf).tolist() == (~allowed).tolist()
    assert_close(log_probs.exp().sum(-1), torch.ones(2))


def test_a_step_equals_the_full_pass_and_beams_keep_their_text() -> None:
    fused = Fusion(build(transformer()).eval(), build(decoder_only()).eval(), 0.4).eval()
    with torch.inference_mode():
        whole = fused.project(fused(SRC, MASK, TGT))
        state, rows = fused.start(SRC, MASK), torch.tensor([1, 0])
        for place in range(2):
            assert_close(fused.step(TGT[:, place], state), whole[:, place], atol=1e-5, rtol=1e-4)
        state = state.select(rows, rows)
        for place in range(2, 4):
            assert_close(fused.step(TGT[rows, place], state), whole[rows, place], atol=1e-5, rtol=1e-4)


def test_no_weight_is_the_translation_model_and_its_attention_is_seen() -> None:
    net = build(transformer()).eval()
    fused = Fusion(net, build(decoder_only()).eval(), 0.0).eval()
    cfg = BeamConfig(beam_size=3, max_length_ratio=1.0, max_length_offset=4, coverage_penalty=0.1)
    with torch.inference_mode():
        found, expected = (decode(one, SRC, MASK, cfg) for one in (fused, net))
    assert [[h.ids for h in best] for best in found] == [[h.ids for h in best] for best in expected]
    assert fused.members == [net]


def test_a_language_model_has_all_its_positions_but_one_and_limits_no_source() -> None:
    lm = build(decoder_only(max_positions=12, positions=Positions.learned)).eval()
    assert lm.max_length == 5  # of source and target alike
    assert WithoutSource(lm).max_length == 11
    free, few = (build(transformer(positions=kind)).eval() for kind in (Positions.alibi, Positions.learned))
    ids, allowed = torch.tensor([0, 1, 2, 3, 7]), torch.ones(len(SRC), 5, dtype=torch.bool)
    for net, limits in ((free, (11, None)), (few, (11, 32)), (Fusion(few, lm, 0.1), (11, 32))):
        fused = Fusion(net, lm, 0.3).eval()
        assert (fused.max_length, fused.max_source) == limits
        assert narrowed(fused, ids, allowed).max_source == limits[1]
    tgt = torch.cat([TGT, TGT[:, 1:], TGT[:, 1:], TGT[:, 1:2]], dim=1)
    assert tgt.shape[1] == 11
    with torch.inference_mode():
        assert Fusion(free, lm, 0.3).eval()(SRC, MASK, tgt).shape[1] == 11
