"""Guided alignment: the loss of attention beside an alignment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from nmt.data.batches.batching import collate
from nmt.data.encoded_pairs import EncodedPairs
from nmt.errors import UserError
from nmt.models.base import TranslationModel
from nmt.training.objectives import build_objective
from nmt.training.objectives.configs import CrossEntropyConfig, GuidedAlignmentConfig
from nmt.training.objectives.guided_alignment import chosen
from nmt.training.objectives.objective import Align, LossModule, Places
from tests.training.objectives.test_objective import Silent

LINKS = [(0, 0, 1), (0, 0, 0), (2, 1, 0), (3, 0, 1)]
"""Pair, place in the target, place in the source."""


class Linked(Silent):
    """The context of guided alignment."""

    def aligner(self, alignments: str | None) -> Align:
        assert alignments is None
        return lambda batch: Places(*torch.tensor(LINKS).unbind(1))


@pytest.mark.parametrize(("layer", "head"), [(None, None), (1, 2)])
def test_loss_and_gradients_are_those_of_the_formula(
    pairs: EncodedPairs, tiny_model: Callable[..., TranslationModel], layer: int | None, head: int | None
) -> None:
    model, batch = tiny_model(), collate(pairs, range(8))
    parameters = list(model.parameters())
    cfg = GuidedAlignmentConfig(weight=0.5, layer=layer, head=head)
    module = LossModule(model, build_objective(cfg, Linked()), compiled=False)
    loss, named = module(1, *vars(batch).values())
    gradients = torch.autograd.grad(loss, parameters)

    plain = LossModule(model, build_objective(CrossEntropyConfig(), Silent()), compiled=False)
    expected, _ = plain(1, *vars(batch).values())
    captured: dict[str, Any] = {}
    attention: Any = model.decoder[-1 if layer is None else layer - 1].cross_attention.attention  # type: ignore[index, union-attr]
    attention.register_forward_pre_hook(lambda _, inputs: captured.update(inputs=inputs))
    model(batch.src, batch.src_mask, batch.tgt_in)
    x, keys, _, mask = captured["inputs"]
    scores = attention.queries(x, 0) @ keys.transpose(2, 3) / keys.shape[-1] ** 0.5
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    weights = weights.mean(1) if head is None else weights[:, head - 1]
    one = -(weights[0, 0, 1].log() + weights[0, 0, 0].log()) / 2  # two links of one token share its loss
    alignment = one - weights[2, 1, 0].log() - weights[3, 0, 1].log()
    expected = expected + 0.5 * alignment
    assert_close(named["alignment"], alignment.detach())
    assert float(named["aligned"]) == 3
    assert_close(loss, expected)
    assert_close(gradients, torch.autograd.grad(expected, parameters), rtol=1e-4, atol=1e-5)
    assert attention.recorded is None
    assert not attention.records_gradients


def test_layers_that_share_weights_are_told_apart(
    pairs: EncodedPairs, tiny_model: Callable[..., TranslationModel]
) -> None:
    model, batch = tiny_model(decoder_layers=3, decoder_sharing=[1, 2, 1]).eval(), collate(pairs, range(8))
    maps = model.attention(batch.src, batch.src_mask, batch.tgt_in).cross
    module = LossModule(model, build_objective(CrossEntropyConfig(), Silent()), compiled=False)
    for layer, place in ((1, 0), (2, 1), (3, 2), (None, 2)):
        _, weights = module.attended(batch, *chosen(model, layer))
        assert_close(weights.detach(), maps[place])


def test_a_layer_or_head_that_is_not_there(
    pairs: EncodedPairs, tiny_model: Callable[..., TranslationModel]
) -> None:
    batch = collate(pairs, range(8))
    for cfg, words in (
        (
            GuidedAlignmentConfig(layer=3),
            r"objective.layer must be at most 2, the layers with cross-attention, but is 3",
        ),
        (
            GuidedAlignmentConfig(head=3),
            r"objective.head must be at most 2, the heads of the layer, but is 3",
        ),
    ):
        made = build_objective(cfg, Linked())
        with pytest.raises(UserError, match=words):
            LossModule(tiny_model(), made, compiled=False)(1, *vars(batch).values())
    with pytest.raises(UserError, match=r"objective.head must be at least 1 or null, but is 0"):
        GuidedAlignmentConfig(head=0)
