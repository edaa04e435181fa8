"""Stacks of layers that share weights or are left out, and decoders with sizes of their own."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from nmt.errors import UserError
from nmt.layers.choices import Positions, SelfAttention
from nmt.models import build_model
from nmt.models.base import TranslationModel
from nmt.models.configs import Init, TransformerConfig, Tying
from nmt.models.stack import through
from nmt.models.transformer import Transformer
from nmt.runtime_config import Precision
from nmt.training.flops import Meter

Sentences = Callable[[int, int, int], tuple[Tensor, Tensor, Tensor]]
SIZES: dict[str, Any] = {"d_model": 16, "d_ff": 24, "num_heads": 2, "dropout": 0.0}


def build(**fields: Any) -> Transformer:
    cfg = TransformerConfig(**(SIZES | fields))
    model = build_model(cfg, src_vocab_size=23, tgt_vocab_size=23)
    assert isinstance(model, Transformer)
    return model


def with_weights_of(shared: Transformer) -> Transformer:
    """Return a plain model each of whose layers has the weights that the layer of `shared` uses."""
    orders = {"encoder": shared.encoder_order, "decoder": shared.decoder_order}
    depths = {f"{side}_layers": len(order) for side, order in orders.items()}
    plain = build(positions=Positions.t5, **depths)
    stored = shared.state_dict()
    plain.load_state_dict({name: stored[name_in_shared(name, orders)] for name in plain.state_dict()})
    return plain


def name_in_shared(name: str, orders: dict[str, list[int]]) -> str:
    """Return the name in a model that shares weights of what is `name` in a plain one."""
    side, number, *rest = name.split(".")
    return ".".join([side, str(orders[side][int(number)]), *rest]) if side in orders else name


def test_shared_layers_are_layers_of_equal_weights(sentences: Sentences) -> None:
    """The gradient of a weight is the sum over the layers that use it; attention has a map for each."""
    sharing = {"encoder_sharing": [1, 2, 1], "decoder_sharing": [1, 1, 2, 2]}
    shared = build(positions=Positions.t5, encoder_layers=3, decoder_layers=4, **sharing)
    plain = with_weights_of(shared)
    batch = sentences(3, 6, 5)
    assert torch.equal(shared(*batch), plain(*batch))
    for model in (shared, plain):
        model(*batch).square().sum().backward()
    orders = {"encoder": shared.encoder_order, "decoder": shared.decoder_order}
    sums: dict[str, Tensor] = {}
    for name, x in plain.named_parameters():
        assert x.grad is not None
        own = name_in_shared(name, orders)
        sums[own] = sums.get(own, torch.zeros(())) + x.grad
    assert_close({name: x.grad for name, x in shared.named_parameters()}, sums)
    assert (len(shared.encoder), len(shared.decoder)) == (2, 2)  # so are they stored and counted

    for kind in ("encoder", "decoder", "cross"):
        found, expected = (getattr(model.attention(*batch), kind) for model in (shared, plain))
        assert_close(found, expected)
    flops = [Meter(model, torch.device("cpu"), Precision.fp32).flops(3, 5) for model in (shared, plain)]
    assert flops[0] == flops[1]


def test_the_depth_that_scales_a_stack_counts_shared_layers() -> None:
    torch.manual_seed(1)
    deep = build(encoder_layers=4, encoder_sharing=[1] * 4, init=Init.depth_scaled)
    torch.manual_seed(1)
    shallow = build(encoder_layers=1, init=Init.depth_scaled)
    weights = [model.encoder[0].feed_forward.block.outer.weight for model in (deep, shallow)]
    assert_close(weights[0] * 2, weights[1])


@pytest.mark.parametrize("average_feed_forward", [True, False])
def test_average_attention_is_a_sublayer_without_a_last_matrix(average_feed_forward: bool) -> None:
    models = []
    for init in Init:
        torch.manual_seed(1)
        average = {"decoder_self_attention": SelfAttention.average, "decoder_layers": 4}
        models.append(build(init=init, average_feed_forward=average_feed_forward, **average).state_dict())
    plain, scaled = models
    for name, weight in plain.items():
        is_last = name.startswith("decoder.") and name.endswith(
            ("cross_attention.attention.output.weight", "feed_forward.block.outer.weight")
        )
        if not name.startswith("encoder."):
            assert_close(scaled[name], weight * (12**-0.5 if is_last else 1.0))


def test_a_layer_that_is_left_out_is_the_identity(
    sentences: Sentences, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = sentences(3, 6, 5)
    model = build(encoder_layers=3, decoder_layers=2, layer_drop=0.5).train()
    draws = iter([0.9, 0.1, 0.9, 0.1, 0.9])  # below the rate the layer is left out
    monkeypatch.setattr(random, "random", lambda: next(draws))
    found = model(*batch)
    found.square().sum().backward()
    dropped = [x for layer in (model.encoder[1], model.decoder[0]) for x in layer.parameters()]
    assert not any(x.grad.any() for x in dropped if x.grad is not None)
    assert all(x.grad is not None for x in model.parameters())  # zeros, for which other processes wait

    model.layer_drop, model.encoder_order, model.decoder_order = 0.0, [0, 2], [1]
    assert torch.equal(found, model(*batch))
    model.layer_drop = 1.0
    assert torch.equal(model.eval()(*batch), found)  # in search every layer is there


def test_every_weight_has_a_gradient_where_the_decoder_is_left_out(sentences: Sentences) -> None:
    model = build(encoder_layers=2, decoder_layers=2, layer_drop=0.9999999).train()
    model.output(model(*sentences(3, 6, 5))).square().sum().backward()
    assert all(x.grad is not None for x in model.parameters())


def test_a_rate_of_zero_draws_nothing_and_changes_nothing(sentences: Sentences) -> None:
    before = random.getstate()
    model = build(encoder_layers=2, decoder_layers=2).train()
    model(*sentences(3, 6, 5))
    assert random.getstate() == before
    layers, x = [torch.nn.Linear(4, 4) for _ in range(40)], torch.zeros(1, 4)
    for layer in layers:
        torch.nn.init.constant_(layer.bias, 0.0)
        torch.nn.init.eye_(layer.weight)
    calls = []
    for layer in layers:
        layer.register_forward_hook(lambda *_: calls.append(1))
    through(layers, x, drop=0.25)
    assert 20 <= len(calls) < 40


def test_weights_that_do_not_learn_stay_without_gradient_where_their_layer_is_left_out() -> None:
    layer = torch.nn.Linear(4, 4).requires_grad_(False)
    layer.bias.requires_grad_(True)
    through([layer], torch.zeros(1, 4), drop=0.9999999).sum().backward()
    assert layer.weight.grad is None
    assert layer.bias.grad is not None


def test_a_plain_model_has_the_weights_that_it_had_before_its_decoder_could_differ() -> None:
    torch.manual_seed(3)
    plain: TranslationModel = build()
    torch.manual_seed(3)
    sizes = {"decoder_d_model": 16, "decoder_d_ff": 24, "decoder_num_heads": 2}
    same = build(**sizes, encoder_sharing=[1, 2, 3, 4, 5, 6])
    for (name, x), (other, y) in zip(plain.named_parameters(), same.named_parameters(), strict=True):
        assert name == other
        assert torch.equal(x, y)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"decoder_d_model": 12, "decoder_num_heads": 3},
            "model.tying=all shares one matrix between source and target, but model.d_model=16 and "
            "model.decoder_d_model=12; set model.tying=tgt_output or none",
        ),
        (
            {"decoder_d_model": 13, "tying": Tying.none},
            "model.decoder_d_model must be divisible by model.decoder_num_heads, but 13 % 2 = 1; "
            "try model.decoder_num_heads=1",
        ),
        (
            {"num_kv_heads": 2, "decoder_num_heads": 1},
            "model.num_kv_heads must divide model.decoder_num_heads=1, but is 2; try 1",
        ),
        (
            {"decoder_d_model": 6, "tying": Tying.none, "positions": Positions.rotary},
            "model.decoder_d_model / model.decoder_num_heads must be even with model.positions=rotary, which "
            "rotates pairs of channels, but is 3; try model.d_k=4",
        ),
        ({"decoder_d_ff": 0}, "model.decoder_d_ff must be at least 1, but is 0"),
        ({"layer_drop": 1.0}, "model.layer_drop must be in [0, 1), but is 1.0"),
        (
            {"encoder_layers": 3, "encoder_sharing": [1, 1]},
            "model.encoder_sharing=[1, 1] must have one number for each layer, but has 2 for "
            "model.encoder_layers=3",
        ),
        (
            {"decoder_layers": 4, "decoder_sharing": [2, 0, 2, 7]},
            "model.decoder_sharing=[2, 0, 2, 7] must count weights from 1 in the order of their first use; "
            "try model.decoder_sharing=[1, 2, 1, 3]",
        ),
    ],
    ids=str,
)
def test_what_does_not_fit_together_is_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(text)}$"):
        TransformerConfig(**(SIZES | fields))
