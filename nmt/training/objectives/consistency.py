"""Objectives with a second pass that should predict what the first one predicts: R-Drop and SimCut.

Both passes go through the model as one batch of twice the sentences, each sentence with dropout masks of its
own. The divergence is computed with the loss, some rows of logits at a time. A pass can also be asked to
agree with the moving average of the weights: the mean teacher of Tarvainen and Valpola 2017, which sees every
token, drops nothing out and gets no gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nmt.data.batches.batching import Batch
from nmt.layers.loss import PassFactors
from nmt.training.objectives.configs import CrossEntropyConfig, Teacher
from nmt.training.objectives.objective import LossModule, Objective, cut


class RDrop(Objective):
    """The mean loss of two passes, plus `weight / 2` times the mean of both directions of their divergence.

    That is half of the article's sum, so that the loss keeps the scale of cross-entropy. With the average as
    the teacher there is one pass, whose loss is added to `weight / 2` times its divergence from the teacher.
    """

    def __call__(self, module: LossModule, batch: Batch, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss, the plain negative log-likelihood of the first pass and the divergence `kl`."""
        if self.cfg.teacher is Teacher.ema:
            return self._one_pass(module, batch)
        first, second = (cut(batch, self.cfg.word_dropout) for _ in range(2))
        quarter = self.cfg.weight / 4
        return agreement(module, first, second, self.cfg, PassFactors(0.5, 0.5, quarter, quarter))

    def _one_pass(self, module: LossModule, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return what the call returns, of a pass that should agree with the average of the weights."""
        taught = module.taught_by_average(batch)
        hidden = module.hidden(cut(batch, self.cfg.word_dropout))
        total = 1.0 + self.cfg.weight / 2
        share = 1.0 - 1.0 / total  # of the divergence
        loss, nll, kl = module.imitation(hidden, batch, self.cfg.label_smoothing, share, taught)
        return total * loss, {"nll": nll, "kl": kl}


class SimCut(Objective):
    """The loss of the plain pass, plus `weight` times the divergence of the other pass from it.

    The gradients of the divergence reach both passes. With the average as the teacher, they reach the other
    pass alone, which should agree with what the average predicts for the plain input.
    """

    def __call__(self, module: LossModule, batch: Batch, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss, the plain negative log-likelihood of the first pass and the divergence `kl`."""
        first, second = cut(batch, self.cfg.word_dropout), cut(batch, self.cfg.cut)
        if self.cfg.teacher is Teacher.ema:
            return self._beside_average(module, batch, doubled(first, second))
        return agreement(module, first, second, self.cfg, PassFactors(1.0, 0.0, self.cfg.weight, 0.0))

    def _beside_average(
        self, module: LossModule, batch: Batch, both: Batch
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return what the call returns, of two passes the other of which should agree with the average."""
        taught = module.taught_by_average(batch)
        plain, other = module.hidden(both).unflatten(0, (2, -1))  # (M, D) each
        loss, nll = module.nll(plain, batch, self.cfg.label_smoothing)
        divergence, _, kl = module.imitation(other, batch, 0.0, 1.0, taught)
        return loss + self.cfg.weight * divergence, {"nll": nll, "kl": kl}


def agreement(
    module: LossModule, first: Batch, second: Batch, cfg: CrossEntropyConfig, factors: PassFactors
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of two passes over one batch, `nll` of the first and `kl`, their divergence.

    `kl` is the mean of both directions, whatever the `factors`.
    """
    hidden = module.hidden(doubled(first, second)).unflatten(0, (2, -1))  # (2, M, D)
    loss, nll, kl = module.agreement(hidden, first, cfg.label_smoothing, factors)
    return loss, {"nll": nll, "kl": kl}


def doubled(first: Batch, second: Batch) -> Batch:
    """Return one batch with the sentences of both, which are of one shape, without their weights."""
    tensors = zip(first.tensors[:5], second.tensors[:5], strict=True)
    src, src_mask, tgt_in, tgt_out, rows = (torch.cat(pair) for pair in tensors)
    rows[len(first.rows) :] += first.tgt_in.numel()
    return Batch(src, src_mask, tgt_in, tgt_out, rows)
