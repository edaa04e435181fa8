"""What several test files need: one thread, one seed, a tiny model and random sentences."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from torch import Tensor

from nmt import kernels
from nmt.data.encoded_pairs import EncodedPairs, RaggedIds
from nmt.data.special_ids import EOS_ID
from nmt.models import build_model
from nmt.models.base import TranslationModel
from nmt.models.configs import TransformerConfig
from nmt.runtime import seed_everything

gc.disable()  # until all tests are collected

torch.set_num_threads(1)  # tiny tensors gain nothing from more, and sums are added up in one order

kernels.load()  # built before the clock of a test runs, and in no cache that a test has for itself

# The same examples in every run, and no limit to the time of one: a busy machine is not a failure.
hypothesis.settings.register_profile("nmt", derandomize=True, deadline=None)
hypothesis.settings.load_profile("nmt")

VOCAB_SIZE = 23


def pytest_collection_finish() -> None:
    """Let the garbage collector skip what lives as long as the process: modules and tests."""
    gc.freeze()
    gc.set_threshold(20_000, 50, 50)
    gc.enable()


@pytest.fixture(autouse=True)
def _as_if_alone() -> None:
    """Let a test draw the same numbers and use the same kernels whichever tests ran before it."""
    seed_everything("tests")
    kernels.enable(True)


@pytest.fixture
def tiny_model() -> Callable[..., TranslationModel]:
    """Return a function of config fields that returns a small Transformer, without dropout by default."""

    def build(**fields: Any) -> TranslationModel:
        sizes: dict[str, Any] = {"d_model": 16, "d_ff": 32, "num_heads": 2}
        depth = {"encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0}
        cfg = TransformerConfig(**(sizes | depth | fields))
        return build_model(cfg, src_vocab_size=VOCAB_SIZE, tgt_vocab_size=VOCAB_SIZE)

    return build


@pytest.fixture
def pairs() -> EncodedPairs:
    """Return forty pairs of 2 to 9 random tokens."""
    rng = np.random.default_rng(1)

    def side() -> RaggedIds:
        lengths = rng.integers(2, 10, 40)
        sentences = [[*rng.integers(4, 12, length - 1), EOS_ID] for length in lengths]
        return RaggedIds(np.concatenate(sentences).astype(np.int32), lengths)

    return EncodedPairs(side(), side())


@pytest.fixture
def sentences() -> Callable[[int, int, int], tuple[Tensor, Tensor, Tensor]]:
    """Return a function of (B, S, T) that gives random `src`, `src_mask` with some padding, and `tgt_in`."""

    def draw(B: int, S: int, T: int) -> tuple[Tensor, Tensor, Tensor]:
        src, tgt_in = torch.randint(4, VOCAB_SIZE, (B, S)), torch.randint(4, VOCAB_SIZE, (B, T))
        lengths = torch.randint(1, S + 1, (B,))
        lengths[0] = S
        return src, torch.arange(S) < lengths[:, None], tgt_in

    return draw
