"""What is particular to the decoder-only model; what all models share is in test_contract."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from nmt.data.special_ids import BOS_ID, EOS_ID
from nmt.errors import UserError
from nmt.layers.choices import NormOrder, Positions
from nmt.models import build_model
from nmt.models.configs import DecoderOnlyConfig, LossOn, Prefix, Tying
from nmt.models.decoder_only import DecoderOnly
from tests.models.compiling import assert_one_graph

Sentences = Callable[[int, int, int], tuple[Tensor, Tensor, Tensor]]
TINY = DecoderOnlyConfig(d_model=16, d_ff=32, num_heads=2, num_layers=2, dropout=0.0, max_positions=32)


def build(**changes: Any) -> DecoderOnly:
    model = build_model(replace(TINY, **changes), src_vocab_size=23, tgt_vocab_size=23)
    assert isinstance(model, DecoderOnly)
    return model.eval()


def no_source(num: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(num, 0, dtype=torch.long), torch.zeros(num, 0, dtype=torch.bool)


@pytest.mark.parametrize("norm_order", NormOrder)
@pytest.mark.parametrize("positions", Positions)
def test_a_causal_prefix_is_one_text_with_the_target(norm_order: NormOrder, positions: Positions) -> None:
    """BOS source EOS BOS target, read at once as a target without a source, gives the same states."""
    model = build(prefix=Prefix.causal, norm_order=norm_order, positions=positions)
    src, tgt_in = torch.randint(4, 23, (3, 5)), torch.randint(4, 23, (3, 4))
    src[:, -1], tgt_in[:, 0] = EOS_ID, BOS_ID
    whole = torch.cat([torch.full((3, 1), BOS_ID), src, tgt_in], dim=1)
    expected = model(*no_source(3), whole)[:, -4:]
    assert_close(model(src, torch.ones_like(src, dtype=torch.bool), tgt_in), expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "positions",
    [
        pytest.param(kind, marks=() if kind is Positions.rotary else pytest.mark.slow)
        for kind in Positions
        if kind not in (Positions.sinusoidal, Positions.relative)
    ],
)
def test_compiles_into_one_graph_for_all_lengths(sentences: Sentences, positions: Positions) -> None:
    """Other positions in test_transformer."""
    model = build(num_layers=1, positions=positions)
    assert_one_graph(model, sentences)


def test_a_bidirectional_prefix_sees_the_whole_source(sentences: Sentences) -> None:
    src, src_mask, tgt_in = sentences(2, 5, 3)
    src_mask[:] = True
    for prefix in Prefix:
        maps = build(prefix=prefix).attention(src, src_mask, tgt_in)
        sees_later = [bool(weights.triu(1).any()) for weights in maps.encoder]
        assert sees_later == [prefix is Prefix.bidirectional] * 2


def test_attention_is_cut_into_the_parts_of_the_contract(sentences: Sentences) -> None:
    model = build()
    src, src_mask, tgt_in = sentences(3, 6, 5)
    maps = model.attention(src, src_mask, tgt_in)
    assert [len(part) for part in (maps.encoder, maps.decoder, maps.cross)] == [2, 2, 2]
    for encoder, decoder, cross in zip(maps.encoder, maps.decoder, maps.cross, strict=True):
        assert (encoder.shape, decoder.shape, cross.shape) == ((3, 2, 6, 6), (3, 2, 5, 5), (3, 2, 5, 6))
        assert not cross.masked_select(~src_mask[:, None, None, :]).any()
        assert not decoder.triu(1).any()
        share = cross.sum(-1) + decoder.sum(-1)  # the rest is on BOS before the source
        assert bool((share < 1).all() and (share > 0).all())


def test_attention_does_not_depend_on_the_padding_of_others(sentences: Sentences) -> None:
    model = build()
    src, src_mask, tgt_in = sentences(4, 6, 5)
    together = model.attention(src, src_mask, tgt_in)
    for b, length in enumerate(src_mask.sum(1).tolist()):
        alone = model.attention(src[b : b + 1, :length], src_mask[b : b + 1, :length], tgt_in[b : b + 1])
        for many, one in zip(together.cross, alone.cross, strict=True):
            assert_close(many[b, :, :, :length], one[0])
        for many, one in zip(together.encoder, alone.encoder, strict=True):
            assert_close(many[b, :, :length, :length], one[0])


def test_a_text_is_read_step_by_step() -> None:
    model = build()
    text = torch.randint(4, 23, (2, 7))
    state = model.start(*no_source(2))
    steps = torch.stack([model.step(last, state) for last in text.unbind(1)], dim=1)
    assert_close(steps, model.project(model(*no_source(2), text)))


def test_a_sequence_beyond_the_positions_is_refused() -> None:
    model = build(max_positions=12)
    assert model.max_length == 5  # BOS, 5 of the source, BOS, 4 of the target: EOS is not read
    src = torch.full((1, 5), EOS_ID)
    mask = torch.ones_like(src, dtype=torch.bool)
    model(src, mask, torch.full((1, 6), BOS_ID))
    with pytest.raises(UserError, match=r"a sequence of 13 tokens exceeds model\.max_positions=12"):
        model(src, mask, torch.full((1, 7), BOS_ID))


def test_limits_of_both_tasks() -> None:
    assert (TINY.longest, TINY.longest_text) == (15, 32)
    endless = replace(TINY, positions=Positions.sinusoidal)
    assert (endless.longest, endless.longest_text) == (None, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_layers": 0}, "model.num_layers must be at least 1, but is 0"),
        (
            {"tying": Tying.none},
            "model.tying must be all or src_tgt in a decoder-only model, where source and target are one "
            "sequence, but is none",
        ),
        (
            {"loss_on": LossOn.both},
            "model.loss_on=both needs model.prefix=causal: with model.prefix=bidirectional each position of "
            "the source sees the token that it should predict",
        ),
    ],
)
def test_impossible_configs(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        replace(TINY, **changes)


def test_only_a_model_of_both_learns_the_source() -> None:
    assert not TINY.learns_source
    assert replace(TINY, prefix=Prefix.causal, loss_on=LossOn.both).learns_source
