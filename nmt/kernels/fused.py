"""Steps of training on CPU in one pass over memory each, where plain torch takes several.

Layers say what is computed; which code computes it is decided here and nowhere else. Unless its docstring
says otherwise, a public function falls back on its definition in plain torch wherever the kernels of
`nmt.kernels` cannot be used. A function that is given layers reads their weights only if no layer is wrapped
or hooked.

Matrix products in bf16 use the kernels on processors with AMX: kernels take every shape as it comes, while
torch prepares code for each new shape, and every batch has its own. On other processors torch multiplies.

Shapes: B sentences, T positions of the queries, S of the keys, H heads, C channels of a head, M rows,
D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from nmt import kernels

LOGITS_AT_ONCE = 1 << 23
"""Most logits that the vocabulary loss keeps at a time where torch multiplies."""


def product_dtype(x: Tensor) -> torch.dtype:
    """Return the type of a matrix product of `x`: that of autocast where it is on."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def _has_tiles(dtype: torch.dtype) -> bool:
    return dtype is torch.bfloat16 and bool(torch.ops.nmt.has_tiles())


def _seed() -> int:
    return int(torch.empty((), dtype=torch.int64).random_(-(2**63), None))


def dropout(x: Tensor, rate: float) -> Tensor:
    """Zero elements of `x` with probability `rate` and scale the others to keep the mean.

    On CPU without kernels the mask comes from one random byte per element, several times faster than
    `F.dropout`. The rate is then rounded to a multiple of 1/256, never to 0 or 1, and the scale is that of
    the rounded rate. Compiled code draws its own numbers, fused with what surrounds them.
    """
    if not rate:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, rate)
    if kernels.usable_in_training(x):
        return _Dropout.apply(x, rate)
    threshold = min(max(round(rate * 256), 1), 255)
    num_words = (x.numel() + 7) // 8
    random_bytes = torch.empty(num_words, dtype=torch.int64).random_(-(2**63), None).view(torch.uint8)
    mask = (random_bytes[: x.numel()] >= threshold).view(x.shape)
    return x * (mask * x.new_tensor(256 / (256 - threshold)))


def add_dropout(residual: Tensor, x: Tensor, rate: float) -> Tensor:
    """Return residual + dropout(x)."""
    if not rate or residual.dtype is not torch.float32 or not kernels.usable_in_training(x):
        return residual + dropout(x, rate)
    return _AddDropout.apply(residual, x, rate)


def relu_dropout(x: Tensor, rate: float) -> Tensor:
    """Return dropout(relu(x))."""
    if not kernels.usable_in_training(x):
        return dropout(F.relu(x), rate)
    return _ReluDropout.apply(x, rate)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, *, feeds_product: bool) -> Tensor:
    """Return the norm of the rows of `x`, in the type of `x` or, with `feeds_product`, of matrix products."""
    dtype = product_dtype(x) if feeds_product else x.dtype
    if not kernels.usable_in_training(x) or dtype is torch.float16:
        if x.dtype is torch.float32:  # FSDP may gather the weights in bf16
            weight, bias = weight.float(), bias.float()
        return F.layer_norm(x, weight.shape, weight, bias, eps).to(dtype)  # once for all products
    return _LayerNorm.apply(x, weight, bias, eps, dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, feeds_product: bool) -> Tensor:
    """Return the rows of `x` by the root of their mean squares, times `weight`; types as in `layer_norm`."""
    dtype = product_dtype(x) if feeds_product else x.dtype
    if not (kernels.usable_in_training(x) or kernels.usable(x)) or dtype is torch.float16:
        wide = torch.promote_types(x.dtype, torch.float32)
        return F.rms_norm(x.to(wide), weight.shape, weight.to(wide), eps).to(dtype)
    return _RmsNorm.apply(x, weight, eps, dtype)


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Return x (B, H, T, C) with channels 2i and 2i + 1 rotated as a point around the origin.

    `table` (T, C) has the sine of the angle in column 2i and its cosine in column 2i + 1.
    """
    if (
        x.stride(-1) == 1
        and table.dtype is torch.float32
        and (kernels.usable_in_training(x) or kernels.usable(x))
    ):
        return _Rotation.apply(x.transpose(1, 2), table).transpose(1, 2)
    sine, cosine = table[:, 0::2], table[:, 1::2]
    even, odd = x[..., 0::2], x[..., 1::2]
    points = torch.stack([even * cosine - odd * sine, even * sine + odd * cosine], dim=-1)
    return points.flatten(-2).to(x.dtype)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return (..., N) of x (..., K), weight (N, K) and bias (N,)."""
    if _can_multiply(x, weight):
        return _Linear.apply(x, weight, bias)
    if is_dense(weight) and product_dtype(x) is torch.float32 and kernels.usable(x) and kernels.has_panels():
        y = torch.ops.nmt.linear_map(x.reshape(-1, x.shape[-1]), weight, bias, len(weight), False)
        return y.view(*x.shape[:-1], len(weight))
    return F.linear(x, weight, bias)


class Linear(nn.Linear):
    """`nn.Linear`, trained by kernels where there are some.

    The matrices of several maps of one input may be packed in one parameter, `sizes` rows of each.
    """

    def __init__(self, num_inputs: int, *sizes: int, bias: bool = True):
        super().__init__(num_inputs, sum(sizes), bias=bias)
        self.sizes = list(sizes)

    def forward(self, x: Tensor) -> Tensor:
        """Return (..., N) of x (..., K)."""
        return linear(x, self.weight, self.bias)


class LayerNorm(nn.LayerNorm):
    """`nn.LayerNorm` over the last axis, trained by kernels where there are some."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the norm of x (..., D)."""
        return layer_norm(x, self.weight, self.bias, self.eps, feeds_product=False)


class RmsNorm(nn.RMSNorm):
    """`nn.RMSNorm` over the last axis, computed by kernels where there are some."""

    eps: float

    def forward(self, x: Tensor) -> Tensor:
        """Return the norm of x (..., D), in the type of x."""
        return rms_norm(x, self.weight, self.eps, feeds_product=False)


def is_dense(weight: Tensor) -> bool:
    """Return whether `weight` is as kernels read it: float32 without gaps."""
    return weight.dtype is torch.float32 and weight.is_contiguous()


def is_plain(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Return whether `layer` is a `kind` that is neither wrapped nor hooked: its weights define it."""
    return type(layer) is kind and not layer._forward_hooks and not layer._forward_pre_hooks


def normed_operand(norm: nn.Module, x: Tensor) -> Tensor:
    """Return norm(x) for matrix products alone: in the type to which these will round it anyway."""
    if isinstance(norm, LayerNorm) and is_plain(norm, LayerNorm):
        return layer_norm(x, norm.weight, norm.bias, norm.eps, feeds_product=True)
    if isinstance(norm, RmsNorm) and is_plain(norm, RmsNorm):
        return rms_norm(x, norm.weight, norm.eps, feeds_product=True)
    return norm(x)


def feed_forward(
    x: Tensor, inner: nn.Module, activation: Callable[[Tensor], Tensor], outer: nn.Module, rate: float
) -> Tensor:
    """Return outer(dropout(activation(inner(x)))) of x (..., D)."""
    if activation is not F.relu:
        return outer(dropout(activation(inner(x)), rate))
    if (
        isinstance(inner, Linear)
        and isinstance(outer, Linear)
        and all(is_plain(layer, Linear) and _can_multiply(x, layer.weight) for layer in (inner, outer))
    ):
        return _FeedForward.apply(x, inner.weight, inner.bias, outer.weight, outer.bias, rate)
    return outer(relu_dropout(inner(x), rate))


def _can_multiply(x: Tensor, weight: Tensor) -> bool:
    """Return whether the kernels multiply x by `weight`: on tiles, with dense float32 weights."""
    fits = is_dense(weight) and x.numel() > 0
    return fits and kernels.usable_in_training(x) and _has_tiles(product_dtype(x))


def can_attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> bool:
    """Return whether the kernel takes these: heads of dense channels, and a mask that is no bias."""
    heads_agree = mask is None or (mask.dtype is torch.bool and (mask.dim() < 3 or mask.shape[-3] == 1))
    dense = all(x.stride(-1) == 1 for x in (queries, keys, values))
    same_type = queries.dtype is keys.dtype is values.dtype  # rotation may change the type of some
    return heads_agree and dense and same_type and kernels.usable_in_training(queries)


def attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    rate: float,
    *,
    is_causal: bool = False,
) -> Tensor:
    """Return dropout(softmax(queries keys^T / sqrt(C) + mask)) values: (B, H, T, C).

    `queries` (B, H, T, C), `keys` and `values` (B, H, S, C). The mask expands to (B, H, T, S): True where a
    key may be attended to, or a bias on the scores. `is_causal` says that the mask hides just the later keys,
    for which GPUs have a faster kernel (FlashAttention, Dao et al. 2022).
    """
    if can_attend(queries, keys, values, mask):
        heads = None if mask is None else mask[:, 0] if mask.dim() == 4 else mask
        rows = (x.transpose(1, 2) for x in (queries, keys, values))
        return _Attention.apply(*rows, heads, rate).transpose(1, 2)
    if queries.device.type == "cpu" and torch.is_grad_enabled():  # trains faster than the function of torch
        return dropout(attention_weights(queries, keys, mask), rate).to(values.dtype) @ values
    mask = None if is_causal else mask
    return F.scaled_dot_product_attention(
        queries, keys, values, attn_mask=mask, dropout_p=rate, is_causal=is_causal
    )


def attention_weights(queries: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
    """Return softmax(queries keys^T / sqrt(C) + mask): (B, H, T, S); arguments as in `attention`."""
    scores = (queries * queries.shape[-1] ** -0.5) @ keys.transpose(-2, -1)  # scaled first: fp16 has room
    if mask is not None:
        scores = scores + mask if mask.is_floating_point() else scores.masked_fill(~mask, -torch.inf)
    return scores.softmax(dim=-1)


def attention_cached(
    queries: Tensor,
    keys: list[Tensor],
    values: list[Tensor],
    rows: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """Return `attention` (N, 1, H * C) of queries (N, H, 1, C) over chunks of keys and values (R, H, L, C).

    `rows` (N, chunks) int32 is the row of each query in each chunk, `mask` (R, L) allows columns of the first
    chunk, `bias` expands to (N, H, 1, all columns). Only for where `kernels.usable`: there is no plain code.
    """
    bias = None if bias is None else bias.contiguous()
    return torch.ops.nmt.attend(queries, keys, values, rows, mask, bias)


def can_project_nll(hidden: Tensor, weight: Tensor) -> bool:
    """Return whether `projected_nll` takes these: hidden states whose products are bf16 or float32."""
    fits = is_dense(weight) and hidden.numel() > 0
    return fits and kernels.usable_in_training(hidden) and product_dtype(hidden) is not torch.float16


def projected_nll(hidden: Tensor, weight: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Return the sums of `loss.smoothed_nll` for the logits hidden weight^T; only where `can_project_nll`.

    `hidden` (M, D), `weight` (V, D), `targets` (M,). Logits exist for some rows at a time, never for all.
    """
    loss, nll = _ProjectedNLL.apply(hidden, weight, targets, smoothing)
    return loss, nll


class OnceDifferentiable(torch.autograd.Function):
    """A function that raises an error when second derivatives are asked for, instead of leaving them out."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        once: Any = once_differentiable
        cls.backward = staticmethod(once(cls.backward))  # type: ignore[method-assign]


class _Dropout(OnceDifferentiable):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float) -> Any:
        ctx.rate, ctx.seed = rate, _seed()
        return torch.ops.nmt.dropout(x.contiguous(), rate, ctx.seed, x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        grad = grads[0].contiguous()
        return torch.ops.nmt.dropout(grad, ctx.rate, ctx.seed, grad.dtype), None


class _AddDropout(OnceDifferentiable):
    @staticmethod
    def forward(ctx: Any, residual: Tensor, x: Tensor, rate: float) -> Any:
        ctx.rate, ctx.seed, ctx.dtype = rate, _seed(), x.dtype
        return torch.ops.nmt.add_dropout(residual.contiguous(), x.contiguous(), rate, ctx.seed)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        grad = grads[0].contiguous()
        return grad, torch.ops.nmt.dropout(grad, ctx.rate, ctx.seed, ctx.dtype), None


class _ReluDropout(OnceDifferentiable):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float) -> Any:
        ctx.rate = rate
        out = torch.ops.nmt.relu_dropout(x.contiguous(), rate, _seed() if rate else 0)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (out,) = ctx.saved_tensors
        return torch.ops.nmt.relu_dropout_backward(grads[0].contiguous(), out, ctx.rate), None


class _LayerNorm(OnceDifferentiable):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype) -> Any:
        x = x.contiguous()
        out, mean, scale = torch.ops.nmt.layer_norm(x, weight, bias, eps, dtype)
        ctx.save_for_backward(x, weight, mean, scale)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return *torch.ops.nmt.layer_norm_backward(grads[0].contiguous(), *ctx.saved_tensors), None, None


class _RmsNorm(OnceDifferentiable):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Any:
        x = x.contiguous()
        out, scale = torch.ops.nmt.rms_norm(x, weight, eps, dtype)
        ctx.save_for_backward(x, weight, scale)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return *torch.ops.nmt.rms_norm_backward(grads[0].contiguous(), *ctx.saved_tensors), None, None


class _Linear(OnceDifferentiable):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
        ctx.shape, ctx.dtype = x.shape, x.dtype
        rows = x.reshape(-1, x.shape[-1]).to(torch.bfloat16).contiguous()
        ctx.save_for_backward(rows, weight)
        return torch.ops.nmt.linear(rows, weight, bias).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        rows, weight = ctx.saved_tensors
        grad = grads[0].reshape(-1, len(weight)).contiguous()
        grad_x, *others = torch.ops.nmt.linear_backward(grad, rows, weight, *ctx.needs_input_grad)
        return None if grad_x is None else grad_x.view(ctx.shape).to(ctx.dtype), *others


class _FeedForward(OnceDifferentiable):
    """A feed-forward block with ReLU, whose input to the ReLU is never stored."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        outer: Tensor,
        outer_bias: Tensor | None,
        rate: float,
    ) -> Any:
        ctx.shape, ctx.dtype, ctx.rate = x.shape, x.dtype, rate
        rows = x.reshape(-1, x.shape[-1]).to(torch.bfloat16).contiguous()
        hidden = torch.ops.nmt.linear(rows, weight, bias, rate, _seed() if rate else 0)
        ctx.save_for_backward(rows, weight, hidden, outer)
        return torch.ops.nmt.linear(hidden, outer, outer_bias).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        rows, weight, hidden, outer = ctx.saved_tensors
        backward = torch.ops.nmt.linear_backward
        needs_inner, needs_outer = ctx.needs_input_grad[:3], ctx.needs_input_grad[3:5]
        grad = grads[0].reshape(-1, len(outer)).contiguous()
        grad_inner, *of_outer = backward(grad, hidden, outer, any(needs_inner), *needs_outer, ctx.rate)
        if grad_inner is None:
            return None, None, None, *of_outer, None
        grad_x, *of_inner = backward(grad_inner, rows, weight, *needs_inner)
        return None if grad_x is None else grad_x.view(ctx.shape).to(ctx.dtype), *of_inner, *of_outer, None


class _Rotation(OnceDifferentiable):
    """Rotation of x (B, T, H, C)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Tensor) -> Any:
        ctx.save_for_backward(table)
        return torch.ops.nmt.rotate(x, table, 1.0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (table,) = ctx.saved_tensors
        return torch.ops.nmt.rotate(grads[0].contiguous(), table, -1.0), None


class _Attention(OnceDifferentiable):
    """Attention with queries (B, T, H, C), keys and values (B, S, H, C)."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, mask: Any, rate: float) -> Any:
        ctx.rate, ctx.seed = rate, _seed() if rate else 0
        out, weights = torch.ops.nmt.attention(queries, keys, values, mask, rate, ctx.seed)
        ctx.save_for_backward(queries, keys, values, weights)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        queries, keys, values, weights = ctx.saved_tensors
        grad = grads[0].contiguous()
        results = torch.ops.nmt.attention_backward(grad, queries, keys, values, weights, ctx.rate, ctx.seed)
        return *results, None, None


class _ProjectedNLL(OnceDifferentiable):
    """The vocabulary loss; computing the gradients with it is cheaper than keeping or repeating the logits.

    `backward` can be called once.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, smoothing: float) -> Any:
        dtype = product_dtype(hidden)
        kernel = torch.ops.nmt.projected_nll if _has_tiles(dtype) else _projected_nll_of_torch
        losses, *gradients = kernel(
            hidden.to(dtype).contiguous(), weight, targets.contiguous(), smoothing, *ctx.needs_input_grad[:2]
        )
        ctx.save_for_backward(*gradients)
        ctx.dtype = hidden.dtype
        nll, uniform = losses.sum(0).unbind()
        nll = nll.clone()
        ctx.mark_non_differentiable(nll)
        return (1.0 - smoothing) * nll + smoothing * uniform, nll

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        grad_hidden, grad_weight = ctx.saved_tensors
        return (
            None if grad_hidden is None else grad_hidden.to(ctx.dtype) * grads[0],
            None if grad_weight is None else grad_weight.mul_(grads[0]),
            None,
            None,
        )


def _projected_nll_of_torch(
    hidden: Tensor, weight: Tensor, targets: Tensor, smoothing: float, needs_hidden: bool, needs_weight: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return what the kernel `projected_nll` returns, from products of torch in the type of `hidden`."""
    losses, rounded = weight.new_empty(len(hidden), 2), weight.to(hidden.dtype)
    grad_hidden = torch.empty_like(hidden) if needs_hidden else None
    grad_weight = torch.zeros_like(weight) if needs_weight else None
    size = max(1, LOGITS_AT_ONCE // len(weight))
    with torch.autocast("cpu", enabled=False):
        for start in range(0, len(hidden), size):
            part = slice(start, start + size)
            logits = F.linear(hidden[part], rounded)  # which become their gradients
            losses[part] = torch.ops.nmt.smoothed_nll_(logits, targets[part], smoothing)
            if grad_hidden is not None:
                grad_hidden[part] = logits @ rounded
            if grad_weight is not None:
                grad_weight += logits.T @ hidden[part]
    return losses, grad_hidden, grad_weight
