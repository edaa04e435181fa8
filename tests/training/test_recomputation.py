"""Gradient checkpointing: the same gradients to the bit, with dropout, and less kept in memory."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nmt import kernels
from nmt.data.batches.batching import collate
from nmt.data.encoded_pairs import EncodedPairs
from nmt.errors import UserError
from nmt.models import build_model
from nmt.models.base import TranslationModel
from nmt.models.configs import (
    ConvolutionalConfig,
    DecoderOnlyConfig,
    ModelConfig,
    RnnConfig,
    TransformerConfig,
)
from nmt.runtime import seed_everything
from nmt.training.checkpoint import num_bytes
from nmt.training.parallel_model import ParallelModel
from nmt.training.recomputation import recompute_layers, stack_layers
from tests.training.objectives.test_objective import cross_entropy

SIZES: dict[str, Any] = {"d_model": 16, "dropout": 0.3}
STACK = {**SIZES, "d_ff": 32, "num_heads": 2, "attention_dropout": 0.2, "activation_dropout": 0.2}
MODELS = [
    TransformerConfig(**STACK, encoder_layers=2, decoder_layers=2),
    TransformerConfig(**STACK, encoder_layers=3, decoder_layers=2, encoder_sharing=[1, 2, 1], layer_drop=0.3),
    DecoderOnlyConfig(**STACK, num_layers=3),
    ConvolutionalConfig(**SIZES, encoder_layers=2, decoder_layers=2),
]


def gradients(
    cfg: ModelConfig, pairs: EncodedPairs, recompute: bool, ema_decay: float = 0.0, bf16: bool = False
) -> tuple[list[Tensor], int]:
    """Return the loss and the gradients of a batch, and the bytes that were kept for the backward pass."""
    seed_everything(1)
    model = build_model(cfg, src_vocab_size=23, tgt_vocab_size=23)
    wrapped = ParallelModel(model, cross_entropy(), recompute=recompute, ema_decay=ema_decay)
    wrapped.module.train()
    kept: dict[int, Tensor] = {}

    def keep(x: Tensor) -> Tensor:
        kept[x.data_ptr()] = x
        return x

    seed_everything(2)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x), torch.autocast("cpu", enabled=bf16):
        loss, _ = wrapped(collate(pairs, np.arange(40)), 1)
    size = num_bytes(kept.values())
    kept.clear()
    loss.backward()
    found = [x.grad for x in wrapped.trained.parameters() if x.grad is not None]
    return [loss.detach(), *found], size


@pytest.mark.parametrize("with_kernels", [True, False])
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("cfg", MODELS, ids=lambda cfg: cfg.name)
def test_gradients_are_the_same_to_the_bit(
    cfg: ModelConfig, bf16: bool, with_kernels: bool, pairs: EncodedPairs
) -> None:
    kernels.enable(with_kernels)
    plain, kept = gradients(cfg, pairs, recompute=False, bf16=bf16)
    again, kept_again = gradients(cfg, pairs, recompute=True, bf16=bf16)
    assert len(plain) == len(again)
    assert all(map(torch.equal, plain, again))
    assert kept_again < 0.6 * kept


def test_the_weights_in_training_are_recomputed_beside_their_average(pairs: EncodedPairs) -> None:
    plain, kept = gradients(MODELS[0], pairs, recompute=False, ema_decay=0.9)
    again, kept_again = gradients(MODELS[0], pairs, recompute=True, ema_decay=0.9)
    assert all(map(torch.equal, plain, again))
    assert kept_again < 0.6 * kept


def test_a_copy_computes_with_its_own_weights(tiny_model: Callable[..., TranslationModel]) -> None:
    model = tiny_model()
    recompute_layers(model)
    copy = deepcopy(model)
    src, mask, tgt = torch.tensor([[5, 6]]), torch.ones(1, 2, dtype=torch.bool), torch.tensor([[2, 7]])
    before = copy(src, mask, tgt)
    with torch.no_grad():
        for x in model.parameters():
            x.zero_()
    assert torch.equal(copy(src, mask, tgt), before)


def test_a_copy_is_freed_without_the_garbage_collector(tiny_model: Callable[..., TranslationModel]) -> None:
    """Each validation makes one, perhaps on a GPU."""
    model = tiny_model()
    recompute_layers(model)
    gc.disable()
    try:
        copy = deepcopy(model)
        weights = [weakref.ref(x) for x in copy.parameters()]
        del copy
        assert not any(weight() is not None for weight in weights)
    finally:
        gc.enable()


def test_a_recurrent_model_is_refused() -> None:
    model = build_model(RnnConfig(d_model=8), src_vocab_size=9, tgt_vocab_size=9)
    with pytest.raises(UserError, match="a recurrent model has no such layers; set it to false"):
        recompute_layers(model)


def test_tables_of_source_factors_are_no_layers() -> None:
    cfg = TransformerConfig(d_model=16, num_heads=2, d_ff=32, encoder_layers=2, decoder_layers=2)
    factors = [torch.nn.Embedding(3, 16)]
    model = build_model(cfg, src_vocab_size=9, tgt_vocab_size=9)
    model.factors = torch.nn.ModuleList(factors)
    assert [type(layer).__name__ for layer in stack_layers(model)] == [
        *["SelfAttentionLayer"] * 2,
        *["DecoderLayer"] * 2,
    ]


def test_what_computes_a_weight_is_no_layer() -> None:
    cfg = ConvolutionalConfig(d_model=8, encoder_layers=2, decoder_layers=1)
    model = build_model(cfg, src_vocab_size=9, tgt_vocab_size=9)
    names = [type(layer).__name__ for layer in stack_layers(model)]
    assert names == ["EncoderLayer", "EncoderLayer", "DecoderLayer"]
