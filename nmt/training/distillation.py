"""Token-level distillation: the predictions of other runs, beside the references, are what a model learns.

The teachers have the tokenizer of the run; their families and sizes may be others. Their hidden states are
computed once for a batch, their probabilities a few rows at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omegaconf import MISSING
from torch import Tensor

from nmt.checks import within
from nmt.data.batching import Batch
from nmt.errors import UserError
from nmt.training.objective import CrossEntropyConfig, LossModule, Objective, OpenModel, cut, taught_by


@dataclass
class DistillationConfig(CrossEntropyConfig):
    """Word-level knowledge distillation (Kim and Rush 2016, section 3.1) from one run or several."""

    name: str = "distillation"
    teachers: list[str] = MISSING
    """Run directories of the teachers; the student learns the mean of their probabilities."""
    weight: float = 0.5
    """Share of the divergence from the teachers in the loss; the rest is that of the references."""

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, "objective", "[0, 1]", "weight")
        if self.teachers != MISSING and not self.teachers:
            raise UserError("objective.teachers names no run; set objective.teachers=[RUN,...]")


class Distillation(Objective):
    """The weighted mean of the smoothed loss and of the divergence from the teachers' predictions."""

    def __init__(self, cfg: Any, open_model: OpenModel):
        super().__init__(cfg, open_model)
        self.teachers = [open_model(run) for run in cfg.teachers]

    def __call__(self, module: LossModule, batch: Batch, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss, the plain negative log-likelihood of the references and the divergence `kl`."""
        taught = taught_by(self.teachers, batch)
        states, targets = module.hidden(cut(batch, self.cfg.word_dropout)), batch.real(batch.tgt_out)
        loss, nll, kl = module.imitation(states, targets, self.cfg.label_smoothing, self.cfg.weight, taught)
        return loss, {"nll": nll, "kl": kl}
