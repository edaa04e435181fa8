"""Sampling of translations and continuations from the distribution of a model.

A sample is a function of the seed, the sentence and the number of the sample among those of the sentence,
whatever its batch: each sample has its own random numbers, one for each token, made before the first token.

Shapes: B sentences, K samples a sentence, N = B * K, V vocabulary, T tokens of the longest sample allowed.

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
    """Tokens sampled one after the other."""

    strategy: str = "sampling"
    temperature: float = 1.0
    """Divisor of the logits: below 1 likely tokens become likelier, 0 always takes the likeliest."""
    top_k: int | None = None
    """Sample from this many of the likeliest tokens; null: from all."""
    top_p: float = 1.0
    """Sample from the fewest likeliest tokens that together have this probability."""
    seed: int = 1
    """Seed of the samples; the same seed gives the same samples."""

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
    Scores are made of the probabilities of the model, whatever the temperature.
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
        all_log_probs = model.step(last, state).float().log_softmax(dim=-1)  # (N, V)
        last = draw(_allowed(all_log_probs.clone()), numbers[:, t], cfg)  # (N,)
        last = last.masked_fill(limits == t + 1, EOS_ID).masked_fill(ended, PAD_ID)
        tokens.append(last)
        log_probs.append(all_log_probs.gather(1, last[:, None])[:, 0].masked_fill(ended, 0.0))
        ended = ended | (last == EOS_ID)
        if ended.all():
            break
    ids, totals = torch.stack(tokens, dim=1).tolist(), torch.stack(log_probs).sum(0).tolist()
    samples = [_hypothesis(row, total) for row, total in zip(ids, totals, strict=True)]
    groups = (samples[first : first + num] for first in range(0, len(samples), num))
    return [sorted(group, key=lambda found: -found.score) for group in groups]


def continuation(
    model: TranslationModel, prompt: Sequence[int], cfg: SamplingConfig, *, window: int, device: torch.device
) -> Iterator[int]:
    """Yield sampled tokens of a text that begins with `prompt`, one after the other, without end.

    The model sees at most `window` tokens, the first of which is BOS as in training; when it has read that
    many, the model starts again from the last half. To be called without gradients, with the model in eval
    mode.
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
    index = (sums <= numbers[:, None] * sums[:, -1:]).sum(dim=-1).clamp(max=logits.shape[-1] - 1)  # (N,)
    return order.gather(1, index[:, None])[:, 0]


def _allowed(logits: Tensor) -> Tensor:
    """Return float32 `logits`, overwritten if they are float32, without the tokens that no text shows."""
    logits = logits.float()
    for token in (PAD_ID, UNK_ID, BOS_ID):
        logits[:, token] = -torch.inf
    return logits


def _numbers(src: Tensor, src_mask: Tensor, length: int, cfg: SamplingConfig) -> Tensor:
    """Return random numbers (N, length), each row a function of seed, sentence and the sample's number."""
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
