"""Token-level distillation: the predictions of other runs, beside the references, are what a model learns.

The teachers have the tokenizer of the run; their families and sizes may be others. Their hidden states are
computed once for a batch, their probabilities a few rows at a time.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from nmt.data.batches.batching import Batch
from nmt.training.objectives.objective import Context, LossModule, Objective, cut, taught_by


class Distillation(Objective):
    """The weighted mean of the smoothed loss and of the divergence from the teachers' predictions."""

    def __init__(self, cfg: Any, context: Context):
        super().__init__(cfg, context)
        self.teachers = [context.open_model(run) for run in cfg.teachers]

    def __call__(self, module: LossModule, batch: Batch, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss, the plain negative log-likelihood of the references and the divergence `kl`."""
        taught = taught_by(self.teachers, batch)
        hidden = module.hidden(cut(batch, self.cfg.word_dropout))
        smoothing, weight = self.cfg.label_smoothing, self.cfg.weight
        loss, nll, kl = module.imitation(hidden, batch, smoothing, weight, taught)
        return loss, {"nll": nll, "kl": kl}
