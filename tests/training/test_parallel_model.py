"""A compiled model in training: the losses and gradients of plain code, at lengths as they come."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from nmt import kernels
from nmt.data.batches.batching import collate
from nmt.data.encoded_pairs import EncodedPairs
from nmt.models.base import TranslationModel
from nmt.runtime_config import RuntimeConfig
from nmt.training.parallel_model import ParallelModel
from tests.training.objectives.test_objective import cross_entropy


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("backend", "bf16"), [("aot_eager", False), ("aot_eager", True), ("inductor", False)]
)
def test_one_compiled_graph_trains_batches_of_all_lengths(
    pairs: EncodedPairs,
    tiny_model: Callable[..., TranslationModel],
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
    bf16: bool,
) -> None:
    """Forward and backward, by the compiler that a training uses; no length is rounded up for it."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    model = tiny_model(encoder_layers=1, decoder_layers=1)
    plain, compiled = (ParallelModel(model, cross_entropy(), RuntimeConfig(compile=x)) for x in (False, True))
    by_length = np.argsort(pairs.tgt_lengths)
    torch._dynamo.utils.counters.clear()
    with kernels.disabled():
        for number, indices in enumerate((by_length[:7], by_length[5:18], by_length[20:31], by_length[30:])):
            batch = collate(pairs, indices)
            assert number < 2 or batch.tgt_out.shape[1] % 8
            found = []
            for wrapped in (plain, compiled):
                model.zero_grad()
                with torch.autocast("cpu", enabled=bf16):
                    loss, _ = wrapped(batch, 1)
                loss.backward()
                found.append([loss.detach(), *(x.grad for x in model.parameters())])
            tolerance = 0.05 if bf16 else 1e-4
            assert_close(found[1], found[0], rtol=tolerance, atol=tolerance)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
