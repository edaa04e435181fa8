"""Updates of a training that is only looked at."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from nmt.data.encoded_pairs import EncodedPairs
from nmt.errors import TrainingStopped
from nmt.runtime_config import Precision
from nmt.training.rehearsal import update
from nmt.training.trainer import Trainer
from tests.training.test_trainer import weights


def test_an_update_is_that_of_the_training(trainer: Callable[..., Trainer], pairs: EncodedPairs) -> None:
    indices = np.arange(13)
    trained, looked_at = (trainer(folder=name, ema_decay=0.5) for name in ("trained", "looked_at"))
    trained._update(pairs, [indices])
    trained._read()
    loss = update(looked_at, pairs, indices, 1)
    assert loss == trained.train_state.window["nll"] / trained.train_state.tokens
    torch.testing.assert_close(weights(looked_at), weights(trained), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_gradients_that_are_not_finite_are_told(
    trainer: Callable[..., Trainer], pairs: EncodedPairs, name: str
) -> None:
    made = trainer(precision=Precision[name])
    weight = next(iter(made.parallel_model.trained.parameters()))
    weight.register_hook(lambda gradient: gradient * math.nan)
    with pytest.raises(TrainingStopped, match=r"update 1: the norm of the gradients is nan, at a loss of \d"):
        update(made, pairs, np.arange(13), 1)


def test_an_update_that_overflows_in_fp16_is_left_out(trainer: Callable[..., Trainer], pairs: Any) -> None:
    made = trainer(precision=Precision.fp16)
    made.amp_step.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    before = weights(made)
    update(made, pairs, np.arange(13), 1)
    torch.testing.assert_close(weights(made), before, rtol=0, atol=0)
    assert made.amp_step.scaler.get_scale() == 2.0**39
