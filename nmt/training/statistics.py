"""Statistics of updates, by name: sums on the device until they are read, then means for `metrics.jsonl`.

Three kinds of values come together, all in float64: sums over the target tokens of an update (the loss, and
what the objective names), the norm of the gradients, and the rows of `MEASURES` that `trainer.measures`
chooses. The host waits for the device only where the sums are read. Knows parameters; knows no models and
no batches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from nmt.distributed import ALONE, World
from nmt.loading import loaded
from nmt.runtime import largest, whole
from nmt.training.trainer_config import MEASURES


class Update(NamedTuple):
    """An update as a measure sees it, before the weights change."""

    parameters: dict[str, nn.Parameter]
    """The weights by name, with the gradients of the update, unscaled and clipped."""
    grad_norm: Tensor
    """Norm of all gradients before clipping, a scalar."""

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradients by the name of their weight."""
        return {name: x.grad for name, x in self.parameters.items() if x.grad is not None}


def weight_norm(update: Update) -> Tensor:
    """Return the norm of all weights."""
    return nn.utils.get_total_norm([x.detach() for x in update.parameters.values()])


def largest_gradient(update: Update) -> Tensor:
    """Return the largest absolute value in the gradients."""
    return largest(list(update.gradients().values()))


def layer_grad_norm(update: Update) -> dict[str, Tensor]:
    """Return the norm of the gradients of every layer, such as `encoder.0`, and of the weights outside."""
    layers: dict[str, list[Tensor]] = {}
    for name, gradient in update.gradients().items():
        parts = name.split(".")
        numbers = [i for i, part in enumerate(parts) if part.isdigit()]
        layers.setdefault(".".join(parts[: numbers[0] + 1] if numbers else parts[:1]), []).append(gradient)
    return {layer: nn.utils.get_total_norm(gradients) for layer, gradients in layers.items()}


class BatchSize(NamedTuple):
    """The numbers of a batch of which its padding follows."""

    src_tokens: int
    """Source tokens without padding."""
    src_positions: int
    """Source tokens with padding."""
    tgt_positions: int
    """Target tokens with padding."""


OF_UPDATES = "update/"
"""Prefix of the name of a measure in a window of sums."""
COUNTED = ("tokens", *BatchSize._fields, "norm", "overflows", "steps", "seconds", "flops")
"""Other names in a window; every further name is a sum over target tokens: `loss`, or an objective's."""
COUNT = "count"
"""Name of the sum of the weights of all target tokens, where pairs have weights; else that is `tokens`."""


@dataclass
class Fault:
    """Updates that were left out since the last reading: a loss or a norm of the gradients was not finite."""

    step: int
    """The last of these updates, or the one that was one too many in a row: weights are as it found them."""
    loss: float
    """Nats per target token, in update `step`."""
    norm: float
    """Norm of all gradients of update `step`."""
    updates: int
    """Updates left out since the last reading."""
    tokens: int
    """Their target tokens."""

    def __str__(self) -> str:
        bad_loss = not math.isfinite(self.loss)
        return f"the loss is {self.loss}" if bad_loss else f"the norm of the gradients is {self.norm}"


class UpdateStatistics:
    """Sums over updates by name, kept on the device so that the host need not wait for every update.

    An update whose loss or norm is not finite on any rank is left out of weights and sums, and `read` reports
    the fault. When more than `tolerated` updates in a row are, then so are all updates after them. With
    `forgives_overflow`, which fp16 needs, a norm that is not finite is counted and no fault.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        forgives_overflow: bool,
        tolerated: int = 0,
        measures: Sequence[str] = (),
        world: World = ALONE,
    ):
        self.forgives_overflow = forgives_overflow
        self.tolerated = tolerated
        self.measures = {name: loaded(MEASURES[name]) for name in measures}
        self.world = world
        self._batch_names: tuple[str, ...] = ()
        self._batches: Tensor | None = None  # sums of this rank over the batches of one update
        self._names: tuple[str, ...] = ()
        self._sums = torch.zeros(0, dtype=torch.float64, device=device)
        self.in_a_row = 0
        """Updates left out in a row, as of the last reading."""
        self._in_a_row = torch.zeros(1, dtype=torch.float64, device=device)
        self._fault = torch.zeros(5, dtype=torch.float64, device=device)  # the fields of a Fault

    def resume(self, in_a_row: int) -> None:
        """Go on after `in_a_row` updates that were left out."""
        self.in_a_row = in_a_row
        self._in_a_row.fill_(in_a_row)

    def forget_batches(self) -> None:
        """Forget the batches of an update that is computed anew."""
        self._batches = None

    def add_batch(self, loss: Tensor, named: dict[str, Tensor], size: BatchSize, *, counts: bool) -> None:
        """Add the sums of one batch to those of the update; a batch that does not count adds zeros.

        `loss` and the `named` sums of the objective are scalars.

        Raises:
            ValueError: the objective gives one of its sums a name that means something else.
        """
        if not self._batch_names:
            if taken := named.keys() & {"loss", *COUNTED}:
                raise ValueError(f"an objective cannot name a sum {' or '.join(sorted(taken))}; it is taken")
            self._batch_names = ("loss", *named, *size._fields)
        loss = loss.detach()
        of_tokens = (x.detach() for x in named.values())
        sums = torch.stack([loss, *of_tokens, *(torch.full_like(loss, number) for number in size)])
        sums = sums if counts else torch.zeros_like(sums)
        self._batches = sums if self._batches is None else self._batches + sums

    def end_update(self, step: int, num_tokens: int, update: Update) -> Tensor:
        """Add an update of `num_tokens` target tokens over all ranks, whose batches were added before.

        Returns:
            A scalar on the device: 1.0 where the update must be left out, else 0.0.
        """
        assert self._batches is not None, "an update has at least one batch"
        sums, self._batches = self.world.all_reduce_sum(self._batches).double(), None
        norm = update.grad_norm.detach().double()
        bad_loss, bad_norm = ~sums[0].isfinite(), ~norm.isfinite()
        is_fault = bad_loss if self.forgives_overflow else bad_loss | bad_norm
        is_over = self._in_a_row[0] > self.tolerated  # nothing counts any more
        what = torch.stack([torch.full_like(norm, step), sums[0] / num_tokens, norm])
        is_fault, is_first = is_fault | is_over, is_fault & ~is_over
        self._in_a_row = torch.where(is_fault, self._in_a_row + 1.0, 0.0)
        counts = torch.stack([torch.ones_like(norm), torch.full_like(norm, num_tokens)]) * is_fault
        self._fault = torch.cat([torch.where(is_first, what, self._fault[:3]), self._fault[3:] + counts])
        left_out = bad_norm | is_fault
        values = {"norm": norm, **self._measured(update)}
        counted = [value.masked_fill(left_out, 0.0) for value in values.values()]
        all_sums = torch.cat([sums.masked_fill(is_fault, 0.0), torch.stack([*counted, left_out.double()])])
        self._names = (*self._batch_names, *values, "overflows")
        self._sums = self._sums + all_sums if len(self._sums) else all_sums
        return left_out.float()

    @torch.no_grad()
    def _measured(self, update: Update) -> dict[str, Tensor]:
        """Return the values of the chosen measures for one update, by their names in a window."""
        values: dict[str, Tensor] = {}
        for name, measure in self.measures.items():
            found = measure(update)
            if isinstance(found, Tensor):
                values[f"{OF_UPDATES}{name}"] = whole(found).double()
            else:
                values |= {f"{OF_UPDATES}{name}/{key}": whole(x).double() for key, x in found.items()}
        return values

    def read(self) -> tuple[dict[str, float], Fault | None]:
        """Return the sums since the last call by name, and the faults; the host waits for the device."""
        values = torch.cat([self._sums, self._fault, self._in_a_row]).tolist()
        *sums, step, loss, norm, updates, tokens, in_a_row = values
        self._sums.zero_()
        self._fault.zero_()
        self.in_a_row = int(in_a_row)
        fault = Fault(int(step), loss, norm, int(updates), int(tokens)) if updates else None
        return dict(zip(self._names, sums, strict=True)), fault


def means(window: dict[str, float]) -> dict[str, float]:
    """Return the means of a window of sums: per target token, as it is weighted, per update and per second.

    `padding_src` and `padding_tgt` are shares of all positions of a side; without sources, the latter alone.
    """
    tokens = window["tokens"] or math.nan  # none where all updates were left out
    updates = max(window["steps"] - window["overflows"], 1)
    of_updates = {name: value for name, value in window.items() if name.startswith(OF_UPDATES)}
    of_tokens = {name: value for name, value in window.items() if name not in {*COUNTED, COUNT, *of_updates}}
    count = window.get(COUNT, tokens) or math.nan
    real, padded = window.get("src_tokens", 0.0), window.get("src_positions")
    return {
        **{name: value / count for name, value in of_tokens.items()},
        "tgt_tokens_per_second": tokens / window["seconds"],
        "grad_norm": window["norm"] / updates,
        **({"padding_src": 1.0 - real / padded} if padded else {}),
        "padding_tgt": 1.0 - tokens / (window["tgt_positions"] or math.nan),
        **{name.removeprefix(OF_UPDATES): value / updates for name, value in of_updates.items()},
    }


def gpu_memory(device: torch.device) -> dict[str, float]:
    """Return the most memory that tensors of this process have taken, in 10^9 bytes; on CPU, nothing."""
    if device.type != "cuda":
        return {}
    return {"gpu_memory_gb": torch.cuda.max_memory_allocated(device) / 1e9}


def measures_in(window: dict[str, float]) -> set[str]:
    """Return the names of the measures that a window holds."""
    return {name.split("/")[1] for name in window if name.startswith(OF_UPDATES)}
