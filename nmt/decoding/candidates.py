"""The step from a model to a beam: the best continuations of a sentence by one token.

Shapes: B sentences in search, K hypotheses of one, N = B * K, D width of the hidden states, V vocabulary.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt import kernels
from nmt.data.special_ids import BOS_ID, EOS_ID, PAD_ID
from nmt.kernels.fused import Linear, is_dense, is_plain
from nmt.layers.low_precision import LowPrecisionLinear
from nmt.models.base import TranslationModel

BLOCK_SIZE = 64
"""Tokens in a block of the vocabulary, which is searched only if its maximum is among the largest."""
FEW_ROWS = 8
"""Hypotheses for which the kernels multiply by the float32 weights of the output faster than torch."""


class Candidates(NamedTuple):
    """The best continuations of each sentence, best first; -inf where there is none."""

    log_probs: Tensor
    """(B, num), of the hypothesis and the token together."""
    parents: Tensor
    """(B, num), the number k of the hypothesis."""
    tokens: Tensor
    """(B, num)"""


def best_candidates(
    model: TranslationModel, hidden: Tensor, before: Tensor, ending: Tensor, num: int
) -> Candidates:
    """Return the `num` most probable continuations of each sentence, fewer only where K * V is less.

    `hidden` (N, D) are hidden states of the model, `before` (B, K) log probabilities of the hypotheses. No
    hypothesis continues with PAD or BOS, and one of a sentence that is `ending` (B,) only with EOS.

    Here alone is it decided whether a kernel chooses; a kernel returns no scores but the best.
    """
    if found := _read_by_kernel(getattr(model, "output", None), hidden):
        rules = (before.contiguous(), _forbidden(found[2]), ending, EOS_ID, num)
        return Candidates(*torch.ops.nmt.best_of_hidden(hidden, *found, *rules))
    logits = model.project(hidden)
    if kernels.usable(logits):
        rules = (before.contiguous(), _forbidden(logits.shape[1]), ending, EOS_ID, num)
        return Candidates(*torch.ops.nmt.best_of_logits(logits.contiguous(), *rules))
    return best_sums(before, allowed_log_probs(logits, ending), num)


def _read_by_kernel(output: object, hidden: Tensor) -> tuple[Tensor, Tensor | None, int] | None:
    """Return weight, bias and V of the output, where a kernel multiplies fastest; None where torch does."""
    if isinstance(output, LowPrecisionLinear):
        return (output.weight, output.bias, output.out_features) if output.is_packed else None
    if not isinstance(output, Linear) or not is_plain(output, Linear) or len(hidden) > FEW_ROWS:
        return None
    is_read = is_dense(output.weight) and kernels.usable(hidden)
    return (output.weight, output.bias, output.out_features) if is_read else None


def allowed_log_probs(logits: Tensor, ending: Tensor) -> Tensor:
    """Return log probabilities (B, K, V) of logits (N, V): -inf for what `best_candidates` rules out."""
    log_probs = logits.float().log_softmax(dim=-1).view(len(ending), -1, logits.shape[1])
    log_probs[:, :, PAD_ID] = -torch.inf
    log_probs[:, :, BOS_ID] = -torch.inf
    others = torch.arange(log_probs.shape[2], device=log_probs.device) != EOS_ID
    return log_probs.masked_fill_(ending[:, None, None] & others, -torch.inf)


@cache
def _forbidden(vocab_size: int) -> Tensor:
    """Return (V,), True for the tokens that no hypothesis continues with."""
    forbidden = torch.zeros(vocab_size, dtype=torch.bool)
    forbidden[[PAD_ID, BOS_ID]] = True
    return forbidden


def best_sums(before: Tensor, log_probs: Tensor, num: int) -> Candidates:
    """Return the `num` largest before[b, k] + log_probs[b, k, v] of each b with their k and v: (B, num) each.

    The results equal `topk` over all K * V sums, in less time: the best `num` are in the `num` blocks of the
    vocabulary with the largest maxima, so only these blocks are searched. There are at most K * V results.
    """
    num_beams, vocab_size = log_probs.shape[1:]
    if vocab_size % BLOCK_SIZE:
        log_probs = F.pad(log_probs, (0, -vocab_size % BLOCK_SIZE), value=-torch.inf)
    num_blocks = log_probs.shape[2] // BLOCK_SIZE
    blocks = log_probs.view(-1, num_beams * num_blocks, BLOCK_SIZE)
    maxima = blocks.amax(2).view(-1, num_beams, num_blocks) + before[:, :, None]  # (B, K, blocks)
    chosen = maxima.flatten(1).topk(min(num, num_beams * num_blocks)).indices  # (B, num)
    sums = take(blocks, chosen) + before.gather(1, chosen // num_blocks)[:, :, None]  # (B, num, BLOCK_SIZE)
    best, places = sums.flatten(1).topk(min(num, num_beams * vocab_size))  # (B, num)
    chosen = chosen.gather(1, places // BLOCK_SIZE)
    tokens = chosen % num_blocks * BLOCK_SIZE + places % BLOCK_SIZE
    tokens = tokens.clamp(max=vocab_size - 1)  # only -inf may come from the padding
    return Candidates(best, chosen // num_blocks, tokens)


def take(hypotheses: Tensor, places: Tensor) -> Tensor:
    """Return the hypotheses `places` (B, J) of each sentence: (B, J, t) of (B, K, t)."""
    return hypotheses.gather(1, places[:, :, None].expand(-1, -1, hypotheses.shape[2]))
