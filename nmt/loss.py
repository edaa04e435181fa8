"""Label-smoothed negative log-likelihood, as a sum.

Nothing here divides: the trainer divides by the target tokens of the whole update. Nothing here knows
padding: the caller passes the rows of real target tokens only. Natural logarithms; label smoothing as in
Szegedy et al. 2016. Shapes: M target tokens, V vocabulary.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from nmt import fused

CPU_CHUNK = 1 << 19
"""Logits handled at a time on CPU: their float32 copies then stay in the cache of a core."""


def projected_nll(
    hidden: Tensor, output: nn.Linear, targets: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """`smoothed_nll` of the logits that `output` makes of hidden states (M, D)."""
    bias = cast("Tensor | None", output.bias)
    if bias is None and fused.can_project_nll(hidden, output.weight):
        return fused.projected_nll(hidden, output.weight, targets, smoothing)
    return smoothed_nll(output(hidden), targets, smoothing)


def smoothed_nll(logits: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Return the label-smoothed loss, and the plain negative log-likelihood, which has no gradient.

    Both are float32 sums over the tokens. A graph can be gone through backwards once.

    Args:
        logits: (M, V), any floating type.
        targets: (M,) token ids.
        smoothing: share of the target probability that is spread evenly over the vocabulary.
    """
    loss, nll = _SmoothedNLL.apply(logits, targets, smoothing)  # type: ignore[no-untyped-call]
    return loss, nll


class _SmoothedNLL(torch.autograd.Function):
    """Computes the gradient with the loss; on CPU by chunks, so that there is no (M, V) float32 tensor."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        vocab_size = logits.shape[1]
        rows = max(1, CPU_CHUNK // vocab_size if logits.device.type == "cpu" else len(logits))
        needs_gradient = ctx.needs_input_grad[0]
        # fp16 would lose small probabilities here: the loss scale comes only in backward.
        exact = torch.float32 if logits.dtype is torch.float16 else logits.dtype
        gradient = torch.empty_like(logits, dtype=exact) if needs_gradient else logits.new_empty(0)
        nll = logits.new_zeros((), dtype=torch.float32)
        uniform = logits.new_zeros((), dtype=torch.float32)  # loss against the even distribution
        for start in range(0, len(logits), rows):
            log_probs = torch.log_softmax(logits[start : start + rows], dim=-1, dtype=torch.float32)
            chunk_targets = targets[start : start + rows, None]
            nll -= log_probs.gather(1, chunk_targets).sum()
            uniform -= log_probs.sum() / vocab_size
            if needs_gradient:
                probs = log_probs.exp_().sub_(smoothing / vocab_size)
                probs.scatter_add_(1, chunk_targets, probs.new_full(chunk_targets.shape, smoothing - 1.0))
                gradient[start : start + rows] = probs
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(nll)
        return (1.0 - smoothing) * nll + smoothing * uniform, nll

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient.mul_(grad_outputs[0]), None, None
