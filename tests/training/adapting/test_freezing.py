"""Frozen weights: no gradient, no state, no change, whatever else a training does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from nmt.errors import UserError
from nmt.models.base import TranslationModel
from nmt.training.adapting.freezing import freeze, matching
from nmt.training.optimizers.optimizer import build_optimizer, load_optimizer_tensors, optimizer_tensors
from nmt.training.optimizers.optimizer_configs import AdamConfig, MuonConfig, OptimizerConfig

Model = Callable[..., TranslationModel]


def learning(model: nn.Module) -> set[str]:
    return {name for name, x in model.named_parameters() if x.requires_grad}


def test_patterns_choose_weights(tiny_model: Model) -> None:
    model = tiny_model()
    line = freeze(model, ["encoder.*", "*.residual.norm.*"])
    assert not any(name.startswith("encoder.") or "residual.norm" in name for name in learning(model))
    assert "src_embedding.tokens.weight" in learning(model)
    assert line.startswith("frozen: ")
    assert line.endswith("by trainer.freeze=[encoder.*, *.residual.norm.*]")
    assert freeze(model, []) == ""


def test_a_tied_matrix_is_frozen_by_any_of_its_names(tiny_model: Model) -> None:
    model = tiny_model()
    freeze(model, ["output.*"])
    assert "src_embedding.tokens.weight" not in learning(model)


def test_a_pattern_without_a_weight_is_refused_with_the_nearest(tiny_model: Model) -> None:
    with pytest.raises(UserError) as refused:
        freeze(tiny_model(), ["encodr.*"])
    assert str(refused.value) == (
        "trainer.freeze: no weight has a name like 'encodr.*'; did you mean 'encoder.*'?; there are "
        "src_embedding.*, tgt_embedding.*, output.*, encoder.*, decoder.*, encoder_norm.*, decoder_norm.*"
    )
    assert matching(["b*"], ["a", "bc", "b"], "key") == ["bc", "b"]


def test_something_must_learn(tiny_model: Model) -> None:
    with pytest.raises(UserError, match=r"trainer.freeze=\[\*\] leaves no weight to learn"):
        freeze(tiny_model(), ["*"])


@pytest.mark.parametrize("cfg", [AdamConfig(), MuonConfig()])
def test_frozen_weights_have_no_gradient_and_no_state(tiny_model: Model, cfg: OptimizerConfig) -> None:
    model = tiny_model()
    freeze(model, ["encoder.*", "src_embedding.*"])
    optimizer = build_optimizer(cfg, model)
    src, tgt = torch.randint(4, 20, (2, 5)), torch.randint(4, 20, (2, 6))
    before = {name: x.detach().clone() for name, x in model.named_parameters()}
    for _ in range(2):
        model.project(model(src, torch.ones(2, 5, dtype=torch.bool), tgt)).square().sum().backward()
        assert {name for name, x in model.named_parameters() if x.grad is not None} == learning(model)
        for group in optimizer.param_groups:
            group["lr"] = 0.1
        optimizer.step()
        optimizer.zero_grad()
    changed = {name for name, x in model.named_parameters() if not torch.equal(x, before[name])}
    stored = optimizer_tensors(optimizer, model)
    assert changed <= learning(model)
    assert {name.rpartition("/")[0] for name in stored} <= learning(model)
    other = build_optimizer(cfg, model)
    load_optimizer_tensors(other, model, {name: x.clone() for name, x in stored.items()})
    assert all(torch.equal(x, stored[name]) for name, x in optimizer_tensors(other, model).items())
    assert all(x.grad is None for x in model.parameters())


def test_the_backward_pass_ends_where_all_is_frozen(tiny_model: Model) -> None:
    model: Any = tiny_model()
    freeze(model, ["encoder*", "src_embedding.*"])  # the embeddings are one matrix here
    src, tgt = torch.randint(4, 20, (1, 3)), torch.tensor([[2, 5]])
    memory, _ = model.encode(src, torch.ones(1, 3, dtype=torch.bool))
    assert not memory.requires_grad
    assert model(src, torch.ones(1, 3, dtype=torch.bool), tgt).requires_grad
