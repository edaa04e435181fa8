"""The dropout rates of a model in the course of a training, as `trainer.changes` says.

They are a function of the number of the update alone, so that a run that goes on has the same.
"""

from __future__ import annotations

from torch import nn

from nmt.errors import UserError
from nmt.layers.blocks import Dropout
from nmt.training.trainer_config import TrainerConfig


class DropoutRates:
    """The dropout rates of a model, which follow the updates; the rates that it begins with are kept."""

    def __init__(self, cfg: TrainerConfig, model: nn.Module):
        """Find the rates; raise `UserError` when a factor makes one of them 1 or more."""
        self._cfg = cfg
        self._rates = [(module, module.rate) for module in model.modules() if isinstance(module, Dropout)]
        highest = max((rate for _, rate in self._rates), default=0.0)
        for number, change in enumerate(cfg.all_changes):
            if change.dropout_factor is not None and change.dropout_factor * highest >= 1.0:
                raise UserError(
                    f"trainer.changes[{number}].dropout_factor must be below {1.0 / highest:g}, because the "
                    f"model has a dropout rate of {highest:g}, but is {change.dropout_factor:g}"
                )

    def follow(self, step: int) -> None:
        """Give the model the rates of update `step`."""
        factor = self._cfg.dropout_factor_at(step)
        for module, rate in self._rates:
            module.rate = factor * rate
