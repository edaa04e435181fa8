"""How far a training has come, and what its updates measure.

`TrainState` is what a checkpoint remembers beside tensors; `UpdateStatistics` stay on the device until they
are read. Knows neither batches nor models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class TrainState:
    """Everything but tensors that a run remembers; stored as JSON in every checkpoint."""

    step: int = 0
    epoch: int = 1
    batch: int = 0
    """Batches of this epoch already trained on."""
    digest: str = ""
    """`EncodedPairs.digest` of this epoch."""
    tokens: int = 0
    """Target tokens trained on."""
    seconds: float = 0.0
    """Wall-clock time of training, validation included."""
    update_seconds: float = 0.0
    """Wall-clock time of the updates alone."""
    scores: dict[str, float] = field(default_factory=dict)
    """Validation score by step, larger is better."""
    validations_without_gain: int = 0
    lowest_loss: float | None = None
    """Lowest validation loss."""
    validations_without_lower_loss: int = 0
    num_cuts: int = 0
    """Cuts of the learning rate on a plateau."""
    window: dict[str, float] = field(default_factory=dict)
    """Sums since the last line of metrics: loss, nll, tokens, positions, norm, overflows, steps, seconds and
    flops."""

    def best_steps(self, among: Sequence[int] | None = None) -> list[int]:
        """Validated steps, the highest score first, the earlier of equals first."""
        steps = [int(step) for step in self.scores]
        wanted = steps if among is None else [step for step in steps if step in set(among)]
        return sorted(wanted, key=lambda step: (-self.scores[str(step)], step))

    def means(self) -> dict[str, float]:
        """Of the window, by token, update or second."""
        window = self.window
        return {
            "loss": window["loss"] / window["tokens"],
            "nll": window["nll"] / window["tokens"],
            "tgt_tokens_per_second": window["tokens"] / window["seconds"],
            "grad_norm": window["norm"] / max(window["steps"] - window["overflows"], 1),
            "padding": 1.0 - window["tokens"] / window["positions"],
        }

    def count(self, **news: float) -> None:
        """Add to the window."""
        self.window |= {key: self.window.get(key, 0.0) + value for key, value in news.items()}


@dataclass
class Fault:
    """The first update whose loss, or norm of the gradients, was not finite."""

    step: int
    loss: float
    """Nats per target token."""
    norm: float


class UpdateStatistics:
    """Sums over updates, kept on the device so that the host need not wait for every update.

    An update whose loss or norm is not finite is left out, and so are all after it, until someone reads the
    sums and learns of it; where `forgives_overflow`, as fp16 must, a norm is forgiven and counted.
    """

    def __init__(self, device: torch.device, *, forgives_overflow: bool):
        self.forgives_overflow = forgives_overflow
        self._sums = torch.zeros(5, dtype=torch.float64, device=device)
        self._fault = torch.zeros(3, dtype=torch.float64, device=device)

    def add(self, step: int, sums: Tensor, norm: Tensor, num_tokens: int) -> Tensor:
        """Take in one update; return 1.0, a scalar on the device, where it must be left out, else 0.0.

        `sums` (3,): loss and negative log-likelihood of `num_tokens` target tokens, and padded positions.
        """
        sums, norm = sums.double(), norm.detach().double()
        bad_loss, bad_norm = ~sums[0].isfinite(), ~norm.isfinite()
        is_fault = bad_loss if self.forgives_overflow else bad_loss | bad_norm
        now = torch.stack([torch.full_like(norm, step), sums[0] / num_tokens, norm])
        self._fault = torch.where(is_fault & (self._fault[0] == 0), now, self._fault)
        left_out = bad_norm | (self._fault[0] > 0)
        counted = torch.stack([norm.masked_fill(left_out, 0.0), left_out.double()])
        self._sums += torch.cat([sums, counted])
        return left_out.float()

    def read(self) -> tuple[dict[str, float], Fault | None]:
        """The sums since the last time, by name, and the first fault; the host waits for the device."""
        *sums, step, loss, norm = torch.cat([self._sums, self._fault]).tolist()
        self._sums.zero_()
        names = ("loss", "nll", "positions", "norm", "overflows")
        return dict(zip(names, sums, strict=True)), Fault(int(step), loss, norm) if step else None
