"""Label-smoothed negative log-likelihood, and divergences of two predictions, as sums.

Nothing here divides: the trainer divides by the target tokens of the whole update. Nothing here knows
padding: the caller passes the rows of real target tokens only. Natural logarithms; label smoothing as in
Szegedy et al. 2016. Shapes: M target tokens, D width, V vocabulary.

`smoothed_nll` of given logits is the definition. `projected_nll` starts from hidden states and chooses: the
kernels of `nmt.kernels.fused` on CPU, `smoothed_nll` in fp16, else a loop over some rows at a
time. `projected_agreement` and `projected_imitation` take two distributions for each token, in the same loop.
All compute gradients with the loss, since a second pass over the logits would cost more.

On a GPU the time of a loss is that of reading and writing logits. There smoothing touches none of them: the
smoothed loss is nll + smoothing * (z_target - mean z), and the mean of the logits z = W h + b is mean(W) h +
mean(b), one vector for all tokens. `F.linear_cross_entropy` of torch 2.13 could be used in the same way, but
in bf16 it adds up the loss and the gradient of W in bf16: both are off by percents over many chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.kernels import fused

LOGITS_AT_ONCE, LOGITS_AT_ONCE_ON_CPU = 1 << 26, fused.LOGITS_AT_ONCE
"""Most logits of one matrix product, so that a large vocabulary does not limit the batch."""
VOCABULARY_MULTIPLE = {"cuda": 64}
"""Numbers of logits that matrix products like: where there are fewer, logits of -inf are added for them."""
CPU_CHUNK = 1 << 19
"""Logits handled at a time on CPU: their float32 copies then stay in the cache of a core."""

Rule = Callable[[Tensor, slice, bool], tuple[Tensor, Tensor]]
"""A loss of logits (P, n, V), those of P passes over n target tokens, part of all M: returns sums over the n
tokens, the loss first, and if wanted the gradient of the loss with respect to the logits, which may lack the
last columns where these are 0."""


def projected_nll(
    hidden: Tensor, output: nn.Linear, targets: Tensor, smoothing: float, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the sums of `smoothed_nll` for the logits that `output` makes of hidden states (M, D).

    Each token counts `weights` (M,) times, if they are given. Few logits exist at a time, except in fp16
    without weights. `backward` can be called once.
    """

    def rule(logits: Tensor, part: slice, needs_gradient: bool) -> tuple[Tensor, Tensor]:
        logits = logits[0, :, : output.out_features]
        own = None if weights is None else weights[part]
        sums = _sums(logits, targets[part], smoothing, own, needs_gradient=needs_gradient)
        return torch.stack([sums.loss(smoothing), sums.nll]), sums.gradient[None]

    if weights is None and fused.product_dtype(hidden) is torch.float16:
        return smoothed_nll(output(hidden), targets, smoothing)  # unscaled gradients would be lost in fp16
    matrix, bias = _factors(output)
    if weights is None:
        if bias is None and fused.can_project_nll(hidden, matrix):
            return fused.projected_nll(hidden, matrix, targets, smoothing)
        if hidden.device.type != "cpu":
            return _identity_nll(hidden, matrix, bias, targets, smoothing)
    loss, nll = _projected(hidden[None], matrix, bias, rule, 2)
    return loss, nll


def _identity_nll(
    hidden: Tensor, matrix: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Return `projected_nll` by the identity for GPUs, in which no logit is touched for the smoothing."""

    def rule(logits: Tensor, part: slice, needs_gradient: bool) -> tuple[Tensor, Tensor]:
        places, logits = targets[part, None], logits[0]
        z = logits.gather(1, places)  # (n, 1), of the targets
        log_probs = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
        found = log_probs.gather(1, places)
        sums = torch.stack([smoothing * z.sum(dtype=torch.float32) - found.sum(), -found.sum()])
        if not needs_gradient:
            return sums, logits
        # Only the gradient at the target is a difference, which must be rounded no more than once.
        gradient = torch.exp(log_probs, out=torch.empty_like(logits, dtype=dtype))
        return sums, gradient.scatter_(1, places, (found.exp() - (1.0 - smoothing)).to(dtype))[None]

    dtype = fused.product_dtype(hidden)
    loss, nll = _projected(hidden[None], matrix, bias, rule, 2)
    if smoothing:
        with torch.autocast(hidden.device.type, enabled=False):
            mean = hidden.sum(0, dtype=torch.float32) @ matrix.mean(0, dtype=torch.float32)
            mean = mean if bias is None else mean + len(hidden) * bias.mean(dtype=torch.float32)
        loss = loss - smoothing * mean
    return loss, nll


class PassFactors(NamedTuple):
    """Factors of the terms of a loss of two passes over the same targets, which predict p and q."""

    nll_p: float
    nll_q: float
    kl_pq: float
    """Of KL(p || q), the sum over v of p(v) log(p(v) / q(v))."""
    kl_qp: float


def projected_agreement(
    hidden: Tensor,
    output: nn.Linear,
    targets: Tensor,
    smoothing: float,
    factors: PassFactors,
    weights: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss of two passes, the plain negative log-likelihood of the first, and their divergence.

    `hidden` (2, M, D), `targets` (M,), `weights` (M,), how often each token counts. The loss is the sum of
    the smoothed losses of both passes and of both divergences, each times its factor; the gradients reach
    both passes. The divergence is the mean of both directions, summed over the tokens. Few logits exist at a
    time. `backward` can be called once.
    """

    def rule(logits: Tensor, part: slice, needs_gradient: bool) -> tuple[Tensor, Tensor]:
        logits = logits[..., : output.out_features]
        own = None if weights is None else weights[part]
        return _agreement(logits, targets[part], smoothing, factors, own, needs_gradient=needs_gradient)

    loss, nll, kl = _projected(hidden, *_factors(output), rule, 3)
    return loss, nll, kl


def projected_imitation(
    hidden: Tensor,
    output: nn.Linear,
    targets: Tensor,
    smoothing: float,
    weight: float,
    taught: Callable[[slice], Tensor],
    weights: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss of a pass with a teacher, its plain negative log-likelihood, and KL(teacher || pass).

    `hidden` (M, D), `targets` (M,), `weights` (M,), how often each token counts; `taught` returns the
    probabilities (n, V) of the teacher for a slice of the tokens, in float32. The loss is `weight` times the
    divergence plus 1 - `weight` times the smoothed loss. Few logits exist at a time. `backward` can be called
    once.
    """

    def rule(logits: Tensor, part: slice, needs_gradient: bool) -> tuple[Tensor, Tensor]:
        logits = logits[0, :, : output.out_features]
        own = None if weights is None else weights[part, None]
        sums = _sums(
            logits,
            targets[part],
            smoothing,
            None if own is None else own[:, 0],
            needs_gradient=needs_gradient,
        )
        log_probs = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
        teacher = taught(part)
        divergence = teacher.xlogy(teacher) - teacher * log_probs
        kl = (divergence if own is None else own * divergence).sum()
        loss = (1.0 - weight) * sums.loss(smoothing) + weight * kl
        gradient = sums.gradient
        if needs_gradient:
            away = log_probs.exp_().sub_(teacher)
            gradient = (1.0 - weight) * gradient + weight * (away if own is None else own * away)
        return torch.stack([loss, sums.nll, kl]), gradient[None]

    loss, nll, kl = _projected(hidden[None], *_factors(output), rule, 3)
    return loss, nll, kl


def _factors(output: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """Return the matrix (V, D), which may be computed whenever it is read, and the bias (V,)."""
    return output.weight, cast("Tensor | None", output.bias)


def _projected(
    hidden: Tensor, matrix: Tensor, bias: Tensor | None, rule: Rule, num_sums: int
) -> tuple[Tensor, ...]:
    """Return the sums of `rule` for the logits hidden matrix^T + bias of hidden states (P, M, D)."""
    return _Projected.apply(hidden, matrix, bias, rule, num_sums, torch.is_grad_enabled())


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


def _sums(
    logits: Tensor,
    targets: Tensor,
    smoothing: float,
    weights: Tensor | None = None,
    *,
    needs_gradient: bool,
) -> _Sums:
    """Return the sums of logits (M, V), each row `weights` (M,) times, if they are given.

    On CPU this goes chunk by chunk, so that no (M, V) float32 tensor is needed.
    """
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
        own = 1.0 if weights is None else weights[start : start + rows, None]
        nll -= (own * log_probs.gather(1, chunk_targets)).sum()
        uniform -= (log_probs if weights is None else own * log_probs).sum() / vocab_size
        if needs_gradient:
            probs = log_probs.exp_().sub_(smoothing / vocab_size)
            probs.scatter_add_(1, chunk_targets, probs.new_full(chunk_targets.shape, smoothing - 1.0))
            gradient[start : start + rows] = probs if weights is None else own * probs
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


def _agreement(
    logits: Tensor,
    targets: Tensor,
    smoothing: float,
    factors: PassFactors,
    of_tokens: Tensor | None,
    *,
    needs_gradient: bool,
) -> tuple[Tensor, Tensor]:
    """Return the sums of `projected_agreement` for logits (2, n, V), and the gradient of the loss.

    Each token counts `of_tokens` (n,) times, if they are given.
    """
    num_tokens, vocab_size = logits.shape[1:]
    rows = max(1, CPU_CHUNK // vocab_size if logits.device.type == "cpu" else num_tokens)
    gradient = torch.empty_like(logits) if needs_gradient else logits.new_empty(0)
    sums = logits.new_zeros(3, dtype=torch.float32)
    weights = torch.stack([sums.new_full((), factor) for factor in factors])  # (4,), not copied from the host
    for start in range(0, num_tokens, rows):
        part = slice(start, start + rows)
        chunk = targets[part, None]  # (rows, 1)
        logs = torch.log_softmax(logits[:, part], dim=-1, dtype=torch.float32)  # (2, rows, V)
        own = 1.0 if of_tokens is None else of_tokens[part, None]  # (rows, 1)
        nll = -(own * logs.gather(2, chunk.expand(2, -1, 1))).sum((1, 2))  # (2,)
        uniform = logs if of_tokens is None else own * logs
        smoothed = (1.0 - smoothing) * nll - smoothing / vocab_size * uniform.sum((1, 2))
        probs, ratio = logs.exp(), logs[0] - logs[1]
        signed = torch.stack([ratio, -ratio])
        kl = (probs * signed).sum(-1, keepdim=True)  # (2, rows, 1): KL(p || q) and KL(q || p)
        divergences = (own * kl).sum((1, 2))
        sums[0] += weights @ torch.cat([smoothed, divergences])
        sums[1] += nll[0]
        sums[2] += divergences.sum() / 2 if of_tokens is not None else kl.sum() / 2
        if needs_gradient:
            nll_weights, kl_weights = weights[:2, None, None], weights[2:, None, None]
            away = probs * (signed - kl) * kl_weights  # of the divergence from the other pass
            away += (probs - probs.flip(0)) * kl_weights.flip(0)  # of that of the other pass from this one
            away += (probs - smoothing / vocab_size) * nll_weights
            hit = (smoothing - 1.0) * nll_weights.expand(2, len(chunk), 1)
            away = away.scatter_add_(2, chunk.expand(2, -1, 1), hit)
            gradient[:, part] = away if of_tokens is None else own * away
    return sums, gradient


def _logits(rows: Tensor, weights: Tensor, biases: Tensor | None) -> Tensor:
    """Return the logits (P, n, V) of hidden states (P, n, D); a GPU does not round them to bf16."""
    if rows.device.type == "cpu" or rows.dtype is not torch.bfloat16:
        return F.linear(rows, weights, biases)
    logits = torch.mm(rows.flatten(0, 1), weights.T, out_dtype=torch.float32)
    return (logits if biases is None else logits.add_(biases)).unflatten(0, rows.shape[:2])


class _Projected(fused.OnceDifferentiable):
    """The loss of hidden states; computes the gradients with it, chunk by chunk, and keeps no logits."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        rule: Rule,
        num_sums: int,
        has_backward: bool,
    ) -> tuple[Tensor, ...]:
        dtype = fused.product_dtype(hidden)
        if dtype is torch.float16:  # gradients that are not scaled yet would be lost in it
            dtype = torch.float32
        missing = -len(weight) % VOCABULARY_MULTIPLE.get(hidden.device.type, 1)
        inputs, weights = hidden.to(dtype), weight.to(dtype)
        biases = None if bias is None else bias.to(dtype)
        if missing:
            weights = F.pad(weights, (0, 0, 0, missing))
            biases = None if biases is None else F.pad(biases, (0, missing))
        grad_hidden, grad_weight, grad_bias = gradients = [
            torch.zeros_like(x) if has_backward and needed and x is not None else None
            for x, needed in zip((hidden, weight, bias), ctx.needs_input_grad[:3], strict=True)
        ]
        needs_gradient = any(x is not None for x in gradients)
        sums = hidden.new_zeros(num_sums, dtype=torch.float32)
        most = LOGITS_AT_ONCE_ON_CPU if hidden.device.type == "cpu" else LOGITS_AT_ONCE
        size = max(1, most // (len(weight) * len(hidden)))
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, hidden.shape[1], size):
                part = slice(start, start + size)
                rows = inputs[:, part]  # (P, size, D)
                logits = _logits(rows, weights, biases)
                if missing:
                    logits[..., len(weight) :] = -torch.inf
                chunk, gradient = rule(logits, part, needs_gradient)
                sums += chunk
                if needs_gradient:
                    gradient = gradient.to(dtype)  # that of a float32 teacher is more exact than the logits
                    flat = gradient.flatten(0, 1)
                    if grad_hidden is not None:
                        grad_hidden[:, part] = gradient @ weights[: gradient.shape[2]]
                    if grad_weight is not None:
                        grad_weight += (flat.T @ rows.flatten(0, 1))[: len(weight)]
                    if grad_bias is not None:
                        grad_bias += flat.sum(0, dtype=torch.float32)[: len(weight)]
        ctx.save_for_backward(*gradients)
        loss, *others = (x.clone() for x in sums)
        ctx.mark_non_differentiable(*others)
        return loss, *others

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        gradients = (None if x is None else x.mul_(grad_outputs[0]) for x in ctx.saved_tensors)
        return *gradients, None, None, None
