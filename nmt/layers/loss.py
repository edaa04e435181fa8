"""Label-smoothed negative log-likelihood, as a sum.

Nothing here divides: the trainer divides by the target tokens of the whole update. Nothing here knows
padding: the caller passes the rows of real target tokens only. Natural logarithms; label smoothing as in
Szegedy et al. 2016. Shapes: M target tokens, D width, V vocabulary.

`smoothed_nll` of given logits is the definition. `projected_nll` starts from hidden states and chooses: the
kernel of `nmt.kernels.fused` on CPUs with bf16 tiles, `smoothed_nll` in fp16, else a loop over some rows at a
time. All compute gradients with the loss, since a second pass over the logits would cost more.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.kernels import fused

LOGITS_AT_ONCE, LOGITS_AT_ONCE_ON_CPU = 1 << 26, 1 << 23
"""Most logits of one matrix product, so that a large vocabulary does not limit the batch."""
CPU_CHUNK = 1 << 19
"""Logits handled at a time on CPU: their float32 copies then stay in the cache of a core."""


def projected_nll(
    hidden: Tensor, output: nn.Linear, targets: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Return the sums of `smoothed_nll` for the logits that `output` makes of hidden states (M, D).

    Few logits exist at a time, except in fp16. `backward` can be called once.
    """
    bias = cast("Tensor | None", output.bias)
    if bias is None and fused.can_project_nll(hidden, output.weight):
        return fused.projected_nll(hidden, output.weight, targets, smoothing)
    if fused.product_dtype(hidden) is torch.float16:  # gradients that are not scaled yet would be lost in it
        return smoothed_nll(output(hidden), targets, smoothing)
    factors = (hidden, output.weight, bias)
    wanted = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in factors)
    return _ProjectedNLL.apply(*factors, targets, smoothing, wanted)


def smoothed_nll(logits: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Return the label-smoothed loss, and the plain negative log-likelihood, which has no gradient.

    Both are float32 sums over the tokens. `backward` can be called once.

    Args:
        logits: (M, V), any floating type.
        targets: (M,) token ids.
        smoothing: share of the target probability that is spread evenly over the vocabulary.
    """
    return _SmoothedNLL.apply(logits, targets, smoothing)


class _Sums(NamedTuple):
    """The losses of some rows of logits, summed over the rows, and their gradient."""

    nll: Tensor
    """Negative log-likelihood of the targets."""
    uniform: Tensor
    """Cross-entropy against the even distribution."""
    gradient: Tensor
    """(M, V), of the smoothed loss with respect to the logits; empty where no gradient is wanted."""

    def loss(self, smoothing: float) -> Tensor:
        """Return the label-smoothed loss."""
        return (1.0 - smoothing) * self.nll + smoothing * self.uniform


def _sums(logits: Tensor, targets: Tensor, smoothing: float, *, needs_gradient: bool) -> _Sums:
    """Return the sums of logits (M, V); on CPU chunk by chunk, so that no (M, V) float32 tensor is needed."""
    vocab_size = logits.shape[1]
    rows = max(1, CPU_CHUNK // vocab_size if logits.device.type == "cpu" else len(logits))
    # fp16 would lose small probabilities here: the loss scale comes only in backward.
    exact = torch.float32 if logits.dtype is torch.float16 else logits.dtype
    gradient = torch.empty_like(logits, dtype=exact) if needs_gradient else logits.new_empty(0)
    nll = logits.new_zeros((), dtype=torch.float32)
    uniform = logits.new_zeros((), dtype=torch.float32)
    for start in range(0, len(logits), rows):
        log_probs = torch.log_softmax(logits[start : start + rows], dim=-1, dtype=torch.float32)
        chunk_targets = targets[start : start + rows, None]
        nll -= log_probs.gather(1, chunk_targets).sum()
        uniform -= log_probs.sum() / vocab_size
        if needs_gradient:
            probs = log_probs.exp_().sub_(smoothing / vocab_size)
            probs.scatter_add_(1, chunk_targets, probs.new_full(chunk_targets.shape, smoothing - 1.0))
            gradient[start : start + rows] = probs
    return _Sums(nll, uniform, gradient)


class _SmoothedNLL(fused.OnceDifferentiable):
    """The loss of logits; computes the gradient with the loss."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        sums = _sums(logits, targets, smoothing, needs_gradient=ctx.needs_input_grad[0])
        ctx.save_for_backward(sums.gradient)
        ctx.mark_non_differentiable(sums.nll)
        return sums.loss(smoothing), sums.nll

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient.mul_(grad_outputs[0]), None, None


class _ProjectedNLL(fused.OnceDifferentiable):
    """The loss of hidden states; computes the gradients with it, chunk by chunk, and keeps no logits."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        smoothing: float,
        needs_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        dtype = fused.product_dtype(hidden)
        inputs, weights = hidden.to(dtype), weight.to(dtype)
        biases = None if bias is None else bias.to(dtype)
        gradients = [torch.zeros_like(x) for x in (hidden, weight, bias) if needs_gradient and x is not None]
        sums = hidden.new_zeros(2, dtype=torch.float32)
        most = LOGITS_AT_ONCE_ON_CPU if hidden.device.type == "cpu" else LOGITS_AT_ONCE
        size = max(1, most // len(weight))
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, len(hidden), size):
                rows = inputs[start : start + size]  # (size, D)
                logits = F.linear(rows, weights, biases)  # (size, V)
                chunk = _sums(logits, targets[start : start + size], smoothing, needs_gradient=needs_gradient)
                sums += torch.stack([chunk.loss(smoothing), chunk.nll])
                if needs_gradient:
                    gradients[0][start : start + size] = chunk.gradient @ weights
                    gradients[1] += chunk.gradient.T @ rows
                    for grad_bias in gradients[2:]:
                        grad_bias += chunk.gradient.sum(0, dtype=torch.float32)
        ctx.save_for_backward(*gradients)
        loss, nll = (x.clone() for x in sums)
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight, *grad_bias = (x.mul_(grad_outputs[0]) for x in ctx.saved_tensors)
        return grad_hidden, grad_weight, grad_bias[0] if grad_bias else None, None, None, None
