"""A trainer of a model of a few thousand weights, on forty pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from nmt.data.encoded_pairs import EncodedPairs
from nmt.models.base import TranslationModel
from nmt.runtime import MixedPrecisionStep, seed_everything
from nmt.runtime_config import Precision
from nmt.training.checkpoint import CheckpointStore
from nmt.training.objectives.objective import Objective
from nmt.training.optimizers.optimizer import build_optimizer
from nmt.training.optimizers.optimizer_configs import AdamConfig
from nmt.training.optimizers.schedule_configs import ConstantConfig, ScheduleConfig
from nmt.training.optimizers.schedules import ScheduleContext
from nmt.training.parallel_model import ParallelModel
from nmt.training.trainer import Trainer
from nmt.training.trainer_config import TrainerConfig
from tests.training.objectives.test_objective import cross_entropy

RATE = ConstantConfig(peak_rate=1e-2, warmup_steps=0)


@pytest.fixture
def trainer(
    tmp_path: Path, pairs: EncodedPairs, tiny_model: Callable[..., TranslationModel]
) -> Callable[..., Trainer]:
    """Return a function of trainer fields that returns a trainer; `scores` are those of its validations."""

    def build(
        *,
        scores: Sequence[float] = (),
        schedule: ScheduleConfig = RATE,
        objective: Objective | None = None,
        folder: str = "run",
        dropout: float = 0.0,
        precision: Precision = Precision.fp32,
        **fields: Any,
    ) -> Trainer:
        plain: dict[str, Any] = {"batch_tokens": 40, "log_every_steps": 1, "patience": 0}
        cfg = TrainerConfig(**(plain | {"best_metric": "bleu"} | fields))
        seed_everything(1)
        model = tiny_model(dropout=dropout)
        parallel_model = ParallelModel(model, objective or cross_entropy(), ema_decay=cfg.ema_decay)
        found: Iterator[float] = iter(scores)

        def validate(step: int) -> dict[str, float]:
            score = next(found, 0.0)
            return {"valid/bleu": score, "valid/loss": 100.0 - score}

        return Trainer(
            cfg,
            schedule,
            ScheduleContext(d_model=16),
            parallel_model=parallel_model,
            amp_step=MixedPrecisionStep(
                build_optimizer(AdamConfig(), parallel_model.trained),
                device=torch.device("cpu"),
                precision=precision,
                clip_norm=1.0,
            ),
            pairs_of_epoch=lambda epoch, *stage: pairs,
            validate=validate,
            store=CheckpointStore(tmp_path / folder / "checkpoints"),
            seed=1,
            higher_is_better=cfg.best_metric == "bleu",
        )

    return build
