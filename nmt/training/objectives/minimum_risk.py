"""Minimum risk training: the expected cost of translations that the model samples (Shen et al. 2016).

The translations of a source are sampled without gradients and without dropout, then scored by one pass with
gradients. Their probabilities to the power `alpha`, scaled to a sum of 1, weigh their costs. The sum over a
batch counts each sentence as often as its reference has tokens, so that the loss per target token is an
expected cost from 0 to 1, to which cross-entropy is added as by Edunov et al. 2018, section 3.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nmt.data.batches.batching import Batch, pad
from nmt.data.special_ids import BOS_ID, PAD_ID
from nmt.training.objectives.objective import Context, LossModule, Objective, cut


class MinimumRisk(Objective):
    """The weighted mean of smoothed cross-entropy and of the expected cost of sampled translations."""

    def __init__(self, cfg: Any, context: Context):
        super().__init__(cfg, context)
        self.sample = context.sampler(cfg.temperature)
        self.costs = context.costs(cfg.metric)

    def __call__(self, module: LossModule, batch: Batch, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss, the plain `nll`, the expected cost `risk` and the plain mean `cost`."""
        hidden = module.hidden(cut(batch, self.cfg.word_dropout))
        loss, nll = module.nll(hidden, batch, self.cfg.label_smoothing)
        if not self.cfg.weight:
            return loss, {"nll": nll}
        groups, costs = self._candidates(module, batch, step)
        log_probs = module.log_probs(repeated(batch, groups))
        lengths = torch.bincount(batch.sentences, minlength=len(groups))
        sizes = [len(group) for group in groups]
        found = risk(log_probs, costs, sizes, self.cfg.alpha)  # (B,)
        mean = torch.stack([part.mean() for part in costs.split(sizes)])
        total = (found * lengths).sum()
        named = {"nll": nll, "risk": total.detach(), "cost": (mean * lengths).sum()}
        return (1 - self.cfg.weight) * loss + self.cfg.weight * total, named

    @torch.no_grad()
    def _candidates(
        self, module: LossModule, batch: Batch, step: int
    ) -> tuple[list[list[list[int]]], Tensor]:
        """Return the different translations of each source, and the costs of all, end to end."""
        was_training, device = module.model.training, batch.src.device
        module.model.eval()
        with torch.autocast(device.type, enabled=False):
            sampled = self.sample(module.model, batch, step, self.cfg.samples)
        module.model.train(was_training)
        lengths = (batch.tgt_out != PAD_ID).sum(1).tolist()
        references = [ids[:n] for ids, n in zip(batch.tgt_out.tolist(), lengths, strict=True)]
        groups, costs = [], []
        for samples, reference in zip(sampled, references, strict=True):
            every = [*samples, reference] if self.cfg.add_reference or not samples else samples
            groups.append([list(ids) for ids in dict.fromkeys(map(tuple, every))])
            costs += self.costs(groups[-1], reference)
        return groups, torch.tensor(costs, device=device)


def repeated(batch: Batch, groups: Sequence[Sequence[Sequence[int]]]) -> Batch:
    """Return the batch of all translations in `groups`, one group for each source of `batch`."""
    device = batch.src.device
    sizes = torch.tensor([len(group) for group in groups], device=device)
    tgt_out, real = (x.to(device) for x in pad([list(ids) for group in groups for ids in group]))
    tgt_in = torch.cat([torch.full_like(tgt_out[:, :1], BOS_ID), tgt_out[:, :-1]], dim=1)
    src, src_mask = (x.repeat_interleave(sizes, dim=0) for x in (batch.src, batch.src_mask))
    return Batch(src, src_mask, tgt_in, tgt_out, rows=real.flatten().nonzero()[:, 0])


def risk(log_probs: Tensor, costs: Tensor, sizes: Sequence[int], alpha: float) -> Tensor:
    """Return the expected cost (B,) of groups of translations, `sizes` of them, that lie end to end."""
    both = zip(log_probs.split(list(sizes)), costs.split(list(sizes)), strict=True)
    return torch.stack([((alpha * p).softmax(0) * cost).sum() for p, cost in both])
