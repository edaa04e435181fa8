"""Schedule-Free AdamW (Defazio et al. 2024, The Road Less Scheduled): an average in place of a decay.

Three points move together: the iterate z, its average x over all updates, and y = beta1 x + (1 - beta1) z,
at which gradients are taken. The weights of the model in training are y, and z is a state of the optimizer.
The model that is validated and saved is x, which is also a moving average of y, and kept as such.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nmt.training.optimizers.ema import part_of_process
from nmt.training.optimizers.optimizer import OneByOne, parameter_groups
from nmt.training.optimizers.optimizer_configs import ScheduleFreeConfig

ITERATE, SECOND_MOMENT, COUNT, WEIGHT_SUM = "iterate", "exp_avg_sq", "step", "weight_sum"


class ScheduleFree(OneByOne):
    """Schedule-Free AdamW, whose weights are the points y; each has the state of its own z."""

    def new_state(self, parameter: Tensor) -> dict[str, Tensor]:
        moment = torch.zeros_like(parameter, requires_grad=False)
        sums = {COUNT: torch.zeros(()), WEIGHT_SUM: torch.zeros((), dtype=torch.float64)}
        return {ITERATE: parameter.detach().clone(), SECOND_MOMENT: moment, **sums}

    def update(self, parameter: Tensor, state: dict[str, Tensor], rate: float, weight_decay: float) -> None:
        """Move z by Adam's second moment alone, and y with it (algorithm 1, with the weights lr^2)."""
        assert parameter.grad is not None
        beta1, beta2 = self.betas
        points = (parameter, state[ITERATE], state[SECOND_MOMENT], parameter.grad)
        y, z, moment, gradient = map(part_of_process, points)
        state[COUNT] += 1
        state[WEIGHT_SUM] += rate**2
        share = _share(rate, state[WEIGHT_SUM])
        moment.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
        scale = (moment / (1.0 - beta2 ** float(state[COUNT]))).sqrt_().add_(self.eps)
        direction = (gradient / scale).add_(y, alpha=weight_decay)
        y.lerp_(z, share).add_(direction, alpha=rate * (beta1 * (1.0 - share) - 1.0))
        z.sub_(direction, alpha=rate)

    def decay_of_average(self, step: int) -> float:
        """Return the share of x that the last update keeps where x follows y; `step` is its number.

        With x' = (1 - c) x + c z' and y' = b x' + (1 - b) z', x' is also a mean of x and y'.
        """
        found = [
            _share(group["lr"], self.state[parameter][WEIGHT_SUM])
            for group in self.param_groups
            for parameter in group["params"][:1]
            if group["lr"] and parameter in self.state
        ]
        share = found[0] if found else 0.0
        return (1.0 - share) * (1.0 - self.betas[0]) / (1.0 - self.betas[0] + share * self.betas[0])


def _share(rate: float, weight_sum: Tensor) -> float:
    """Return the share c of the newest iterate in the average; 0 before any has weight."""
    return rate**2 / float(weight_sum) if rate else 0.0


def build_schedule_free(cfg: ScheduleFreeConfig, model: nn.Module) -> torch.optim.Optimizer:
    """Return Schedule-Free AdamW over the parameters of `model`."""
    return ScheduleFree(parameter_groups(model, cfg), cfg.betas, cfg.eps)
