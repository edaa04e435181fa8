"""Minimum risk training: the expected cost of sampled translations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F
from torch.testing import assert_close

from nmt.data.batches.batching import collate
from nmt.data.encoded_pairs import EncodedPairs
from nmt.data.special_ids import BOS_ID, EOS_ID
from nmt.models.base import TranslationModel
from nmt.training.objectives import build_objective
from nmt.training.objectives.configs import CrossEntropyConfig, MinimumRiskConfig
from nmt.training.objectives.objective import Costs, LossModule, Sample
from tests.training.objectives.test_objective import Silent

SAMPLES = [[[5, 6, EOS_ID], [7, EOS_ID], [7, EOS_ID]], [[EOS_ID], [4, 4, 4, 4, 4, EOS_ID]]]


def unused(*asked: Any) -> Any:
    raise AssertionError("nothing is to be asked")


@dataclass
class Sampled(Silent):
    """The context of minimum risk training."""

    sample: Sample
    cost: Costs

    def sampler(self, temperature: float) -> Sample:
        assert temperature == MinimumRiskConfig.temperature
        return self.sample

    def costs(self, metric: str) -> Costs:
        assert metric == MinimumRiskConfig.metric
        return self.cost


def test_loss_and_gradients_are_those_of_the_article(
    pairs: EncodedPairs, tiny_model: Callable[..., TranslationModel]
) -> None:
    model, batch = tiny_model().train(), collate(pairs, range(2))
    parameters = list(model.parameters())
    updates = []

    def sampled(of: TranslationModel, batch: Any, step: int, num: int) -> list[list[list[int]]]:
        assert not of.training
        assert not torch.is_grad_enabled()
        updates.append(step)
        return SAMPLES

    context = Sampled(sampled, lambda found, reference: [len(ids) / 10 for ids in found])
    cfg = MinimumRiskConfig(weight=0.25, alpha=0.5)
    module = LossModule(model, build_objective(cfg, context), compiled=False)
    loss, named = module(3, *vars(batch).values())
    assert model.training
    gradients = torch.autograd.grad(loss, parameters)

    plain = LossModule(model, build_objective(CrossEntropyConfig(), Silent()), compiled=False)
    cross_entropy, _ = plain(3, *vars(batch).values())
    risk = torch.zeros(())
    for row, group in enumerate(([[5, 6, EOS_ID], [7, EOS_ID]], SAMPLES[1])):  # equal samples count once
        length = int((batch.tgt_out[row] != 0).sum())
        reference = batch.tgt_out[row, :length].tolist()
        scores = []
        for ids in (*group, reference):
            tgt_in = torch.tensor([[BOS_ID, *ids[:-1]]])
            hidden = model(batch.src[row : row + 1], batch.src_mask[row : row + 1], tgt_in)[0]
            scores.append(-F.cross_entropy(model.output(hidden), torch.tensor(ids), reduction="sum"))
        costs = torch.tensor([len(ids) / 10 for ids in (*group, reference)])
        risk = risk + length * ((0.5 * torch.stack(scores)).softmax(0) * costs).sum()
    expected = 0.75 * cross_entropy + 0.25 * risk
    assert_close(named["risk"], risk.detach())
    assert_close(loss, expected)
    assert_close(gradients, torch.autograd.grad(expected, parameters), rtol=1e-4, atol=1e-5)
    module(3, *vars(batch).values())
    module(4, *vars(batch).values())
    assert updates == [3, 3, 4]


def test_without_the_reference_samples_alone_have_costs(
    pairs: EncodedPairs, tiny_model: Callable[..., TranslationModel]
) -> None:
    costed: list[list[list[int]]] = []

    def costs(found: Any, reference: Any) -> list[float]:
        costed.append(list(map(list, found)))
        return [0.0] * len(found)

    context = Sampled(lambda *asked: [SAMPLES[0], []], costs)
    cfg = MinimumRiskConfig(add_reference=False)
    module = LossModule(tiny_model().train(), build_objective(cfg, context), compiled=False)
    batch = collate(pairs, range(2))
    module(1, *vars(batch).values())
    last = batch.tgt_out[1][batch.tgt_out[1] != 0].tolist()
    assert costed == [[[5, 6, EOS_ID], [7, EOS_ID]], [last]]  # a source without a sample has its reference


def test_without_weight_it_is_cross_entropy(
    pairs: EncodedPairs, tiny_model: Callable[..., TranslationModel]
) -> None:
    model, batch = tiny_model(), collate(pairs, range(8))
    context = Sampled(unused, unused)
    losses = [
        LossModule(model, build_objective(cfg, context), compiled=False)(1, *vars(batch).values())[0]
        for cfg in (MinimumRiskConfig(weight=0.0), CrossEntropyConfig())
    ]
    assert torch.equal(*losses)
