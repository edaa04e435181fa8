"""Sampling: translations and continuations drawn from the distribution of a model.

A sample is a function of the seed, the sentence and its number among the samples of that sentence, whatever
batch it is drawn in: each has random numbers of its own, one for each token, drawn before the first.

Shapes: B sentences, K samples a sentence, N = B * K, V vocabulary, T most tokens of a sample.

Top-k: Fan et al. 2018. Top-p (nucleus): Holtzman et al. 2020.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nmt.checks import finite, within
from nmt.data.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.decoding.hypotheses import DecodingConfig, Hypothesis, length_limits
from nmt.errors import UserError
from nmt.models.base import TranslationModel
from nmt.runtime import derive_seed


@dataclass
class SamplingConfig(DecodingConfig):
    """Tokens drawn one after the other."""

    strategy: str = "sampling"
    temperature: float = 1.0
    """What logits are divided by: below 1 likely tokens become likelier, 0 always takes the likeliest."""
    top_k: int | None = None
    """Draw from this many of the likeliest tokens; null: from all."""
    top_p: float = 1.0
    """Draw from the fewest likeliest tokens that together have this probability."""
    seed: int = 1
    """Another seed draws other tokens; the same draws the same."""

    def __post_init__(self) -> None:
        super().__post_init__()
        finite(self, "decoding", "temperature")
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"decoding.top_k must be at least 1 or null, but is {self.top_k}")
        within(self, "decoding", "(0, 1]", "top_p")


def sample(
    model: TranslationModel, src: Tensor, src_mask: Tensor, cfg: SamplingConfig
) -> list[list[Hypothesis]]:
    """Return `n_best` samples of every sentence, the likeliest per token first.

    `src` (B, S) ids, `src_mask` (B, S) bool. To be called without gradients, with the model in eval mode.
    The probabilities that scores are made of are those of the model, whatever the temperature.
    """
    num = cfg.n_best
    limits = length_limits(src_mask, model.max_length, cfg).repeat_interleave(num)
    numbers = _numbers(src, src_mask, int(limits.max()), cfg)
    state = model.start(src, src_mask)
    state = model.reorder(state, torch.arange(len(src), device=src.device).repeat_interleave(num))
    last = src.new_full((len(limits),), BOS_ID)
    tokens, log_probs = [], []
    ended = torch.zeros_like(last, dtype=torch.bool)
    for t in range(numbers.shape[1]):
        all_log_probs = model.step(last, state).float().log_softmax(dim=-1)
        drawn = draw(_allowed(all_log_probs.clone()), numbers[:, t], cfg)
        drawn = drawn.masked_fill(limits == t + 1, EOS_ID).masked_fill(ended, PAD_ID)
        of_drawn = all_log_probs.gather(1, drawn[:, None])[:, 0]
        tokens.append(drawn)
        log_probs.append(of_drawn.masked_fill(ended, 0.0))
        ended = ended | (drawn == EOS_ID)
        last = drawn
        if ended.all():
            break
    ids, totals = torch.stack(tokens, dim=1).tolist(), torch.stack(log_probs).sum(0).tolist()
    samples = [_hypothesis(row, total) for row, total in zip(ids, totals, strict=True)]
    groups = (samples[first : first + num] for first in range(0, len(samples), num))
    return [sorted(group, key=lambda found: -found.score) for group in groups]


def continuation(
    model: TranslationModel, prompt: Sequence[int], cfg: SamplingConfig, *, window: int, device: torch.device
) -> Iterator[int]:
    """Draw token after token of a text that begins with `prompt`, without end.

    The model sees `window` tokens at most, BOS the first of them as in training; when that many are read, it
    begins anew with the last half.
    To be called without gradients, with the model in eval mode.
    """
    generator = torch.Generator().manual_seed(derive_seed("continuation", cfg.seed))
    nothing = torch.zeros(1, 0, dtype=torch.long, device=device)
    text = list(prompt)
    unread, state = [BOS_ID, *text[1 - window :]], model.start(nothing, nothing.bool())
    while True:
        if state.position + len(unread) > window:
            unread, state = [BOS_ID, *text[-(window // 2) :]], model.start(nothing, nothing.bool())
        for token in unread:
            logits = model.step(torch.tensor([token], device=device), state)
        number = torch.rand(1, generator=generator).to(device)
        token = int(draw(_allowed(logits), number, cfg))
        yield token
        text, unread = [*text[-window:], token], [token]


def draw(logits: Tensor, numbers: Tensor, cfg: SamplingConfig) -> Tensor:
    """Return one token (N,) for each row of `logits` (N, V), decided by `numbers` (N,) from [0, 1)."""
    if cfg.temperature == 0:
        return logits.argmax(dim=-1)
    probs, order = (
        (logits.float() / cfg.temperature).softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
    )
    before = probs.cumsum(dim=-1) - probs
    probs = probs.masked_fill(before >= cfg.top_p, 0.0)
    if cfg.top_k is not None:
        probs[:, cfg.top_k :] = 0.0
    sums = probs.cumsum(dim=-1)
    place = (sums <= numbers[:, None] * sums[:, -1:]).sum(dim=-1).clamp(max=logits.shape[-1] - 1)
    return order.gather(1, place[:, None])[:, 0]


def _allowed(logits: Tensor) -> Tensor:
    """Rule out what no text holds, and what none can show; in place."""
    logits = logits.float()
    for token in (PAD_ID, UNK_ID, BOS_ID):
        logits[:, token] = -torch.inf
    return logits


def _numbers(src: Tensor, src_mask: Tensor, length: int, cfg: SamplingConfig) -> Tensor:
    """(N, length) random numbers, each row a function of the seed, the sentence and the sample's number."""
    rows = []
    for ids, real in zip(src.tolist(), src_mask.tolist(), strict=True):
        sentence = [token for token, is_real in zip(ids, real, strict=True) if is_real]
        for k in range(cfg.n_best):
            generator = torch.Generator().manual_seed(derive_seed("sample", cfg.seed, k, *sentence))
            rows.append(torch.rand(length, generator=generator))
    return torch.stack(rows).to(src.device)


def _hypothesis(ids: list[int], log_prob: float) -> Hypothesis:
    tokens = [token for token in ids if token not in (PAD_ID, EOS_ID)]
    return Hypothesis(tokens, log_prob / (len(tokens) + 1), log_prob)
