"""All layers of an encoder in one call of a kernel, against the layers one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from nmt import kernels
from nmt.layers.attention import prepared, recorded_attention
from nmt.layers.choices import Activation, Norm, NormOrder, Positions
from nmt.layers.low_precision import in_low_precision
from nmt.models import build_model
from nmt.models.configs import EncoderConfig, Pooling, TransformerConfig
from nmt.models.fused_layers import LONGEST_SOURCE, encoded
from nmt.models.stack import SelfAttentionLayer, through
from nmt.models.transformer import Transformer
from nmt.runtime_config import Precision
from tests.kernels.test_search_kernels import IN_KERNELS

VOCAB_SIZE = 50
LENGTHS = (1, 17, 5, 16, 33, 2, 9)

pytestmark = pytest.mark.skipif(not kernels.load(), reason="the kernels cannot be built here")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Return the shape of x in each call of the kernel from now on."""
    found: list[tuple[int, ...]] = []
    kernel = torch.ops.nmt.encoder_layers

    def counted(x: Tensor, *others: object) -> object:
        found.append(tuple(x.shape))
        return kernel(x, *others)

    monkeypatch.setattr(torch.ops.nmt, "encoder_layers", counted)
    return found


def transformer(**changes: Any) -> Transformer:
    """Return a Transformer in eval mode, whose norms of heads are not the identity."""
    sizes = {"d_model": 24, "d_ff": 40, "num_heads": 3, "encoder_layers": 3, "decoder_layers": 1}
    cfg = TransformerConfig(**{**sizes, **changes})
    model = build_model(cfg, src_vocab_size=VOCAB_SIZE, tgt_vocab_size=VOCAB_SIZE)
    assert isinstance(model, Transformer)
    for name, parameter in model.named_parameters():
        if name.endswith(("query_norm.weight", "key_norm.weight", "bias")):
            nn.init.normal_(parameter)
    return model.eval()


def inputs(model: Transformer) -> tuple[Tensor, Tensor]:
    """Return vectors (B, S, D), and the mask (B, S) of sentences of LENGTHS."""
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    return model.src_embedding(torch.randint(4, VOCAB_SIZE, mask.shape)), mask


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm_order": NormOrder.post, "activation": Activation.gelu},
        {"norm_order": NormOrder.post, "norm": Norm.rms_norm},
        {"activation": Activation.swiglu, "attention_bias": False, "feed_forward_bias": False},
        {"d_k": 6, "d_v": 10},
        {"qk_norm": True, "positions": Positions.rotary},
        {"positions": Positions.rotary, "d_model": 96, "d_ff": 160, "norm_order": NormOrder.post},
        {"encoder_sharing": [1, 2, 1]},
        {"d_model": 64, "d_ff": 128, "num_heads": 2},  # as the tiles of AMX take bytes
    ],
)
@pytest.mark.parametrize("precision", IN_KERNELS)
def test_the_kernel_equals_the_layers_one_by_one(
    changes: dict[str, Any], precision: Precision, calls: list[tuple[int, ...]]
) -> None:
    with torch.inference_mode():
        model = in_low_precision(transformer(**changes), precision)
        assert isinstance(model, Transformer)
        x, mask = inputs(model)
        found = encoded(model.encoder_layers, x, mask, prepared(mask[:, None, None], x))
        assert calls == [(sum(LENGTHS), x.shape[2])]  # nothing of the padding
        assert not found[~mask].any()
        expected = through(model.encoder_layers, x, prepared(mask[:, None, None], x))[mask]
    if precision is Precision.fp32:
        assert_close(found[mask], expected, atol=1e-4, rtol=1e-4)
    else:  # noise in the last bit rounds some inputs the other way
        assert (found[mask] - expected).norm() < 0.01 * expected.norm()


@pytest.mark.parametrize("positions", [Positions.sinusoidal, Positions.rotary])
def test_masks_may_have_holes(positions: Positions, calls: list[tuple[int, ...]]) -> None:
    """As where a part of a source is hidden."""
    model = transformer(positions=positions)
    with torch.inference_mode():
        x, mask = inputs(model)
        mask &= torch.arange(mask.shape[1]) != 3
        arguments = model.encoder_layers, x, prepared(mask[:, None, None], x)
        found = encoded(*arguments[:2], mask, arguments[2])
        assert len(calls) == 1
        assert_close(found[mask], through(*arguments)[mask], atol=1e-4, rtol=1e-4)


def test_a_sentence_is_the_same_in_every_batch() -> None:
    model = transformer(positions=Positions.rotary)
    with torch.inference_mode():
        x, mask = inputs(model)
        together = encoded(model.encoder_layers, x, mask, prepared(mask[:, None, None], x))
        for row, length in enumerate(LENGTHS):
            own = x[row : row + 1, :length], mask[row : row + 1, :length]
            alone = encoded(model.encoder_layers, *own, prepared(own[1][:, None, None], own[0]))
            assert_close(together[row, :length], alone[0], atol=1e-5, rtol=1e-5)


def test_layers_that_the_kernel_does_not_know_are_called(calls: list[tuple[int, ...]]) -> None:
    ids, mask = torch.randint(4, VOCAB_SIZE, (2, 7)), torch.ones(2, 7, dtype=torch.bool)
    unknown: list[dict[str, Any]] = [
        {"positions": Positions.alibi},
        {"positions": Positions.t5},
        {"num_kv_heads": 1},
    ]
    with torch.no_grad():
        for changes in unknown:
            transformer(**changes).encode(ids, mask)
        model = transformer()
        model.train().encode(ids, mask)
        model.eval()
        with recorded_attention(model):
            model.encode(ids, mask)
        with torch.autocast("cpu", torch.bfloat16):
            model.encode(ids, mask)
        hooked: list[object] = []
        handle = model.get_submodule("encoder.1").register_forward_hook(lambda *of: hooked.append(of))
        model.encode(ids, mask)
        handle.remove()
    model.encode(ids, mask)  # with gradients
    assert len(hooked) == 1
    assert not calls
    with torch.no_grad():
        model.encode(ids, mask)
    assert calls == [(14, 24)]


class Doubled(SelfAttentionLayer):
    """A layer that the kernel does not know."""

    def forward(self, x: Tensor, mask: Tensor, *, is_causal: bool = False) -> Tensor:
        return 2 * super().forward(x, mask, is_causal=is_causal)


def test_layers_that_are_not_alike_are_called(calls: list[tuple[int, ...]]) -> None:
    model = transformer(positions=Positions.rotary)
    other = transformer(positions=Positions.rotary, norm_order=NormOrder.post, d_ff=16).encoder_layers[0]
    own = transformer(positions=Positions.rotary).encoder_layers[0]
    own.__class__ = Doubled
    with torch.inference_mode():
        x, mask = inputs(model)
        arguments = mask, prepared(mask[:, None, None], x)
        stacks: list[list[Any]] = [[model.encoder_layers[0], layer] for layer in (other, own)]
        for layers in (*stacks, []):
            expected = through(layers, x, arguments[1])
            assert torch.equal(encoded(layers, x, *arguments), expected)
        encoded(model.encoder_layers, x, *arguments, drop=0.5)
        assert not calls


def test_a_long_source_goes_through_the_modules(calls: list[tuple[int, ...]]) -> None:
    """Whose attention is faster there."""
    model = transformer(positions=Positions.rotary)
    with torch.inference_mode():
        for length in (LONGEST_SOURCE, LONGEST_SOURCE + 1):
            model.encode(torch.full((1, length), 7), torch.ones(1, length, dtype=torch.bool))
    assert calls == [(LONGEST_SOURCE, 24)]


@pytest.mark.parametrize("pooling", [*Pooling])
def test_a_classifier_goes_through_the_kernel(pooling: Pooling, calls: list[tuple[int, ...]]) -> None:
    cfg = EncoderConfig(d_model=24, d_ff=40, num_heads=3, encoder_layers=2, pooling=pooling)
    model = build_model(cfg, src_vocab_size=VOCAB_SIZE, tgt_vocab_size=9).eval()
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    batch = torch.randint(4, VOCAB_SIZE, mask.shape), mask, torch.zeros(len(LENGTHS), 1, dtype=torch.int64)
    with torch.inference_mode():
        found = model(*batch)
        with kernels.disabled():
            expected = model(*batch)
    assert len(calls) == 1
    assert_close(found, expected, atol=1e-4, rtol=1e-4)
