"""The scores of a model on one split: loss and perplexity, and the metrics of its translations.

Validation in training, the test at its end and `nmt evaluate` all use `evaluate_text`, so that their scores
mean the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from nmt.data.batching import Batch
from nmt.data.mixture import untagged
from nmt.data.pairs import ParallelText
from nmt.data.tokenizer import Tokenizer
from nmt.decoding.configs import DecodingConfig
from nmt.decoding.metrics import METRICS
from nmt.decoding.translate import evaluating, translate
from nmt.distributed import ALONE, World
from nmt.errors import UserError
from nmt.models.base import TranslationModel


@dataclass
class Scores:
    """The scores of one set of translations."""

    values: dict[str, float]
    """By metric name."""
    signatures: dict[str, str]
    """By metric name: how the value was computed."""
    hypotheses: list[str]
    """The scored translations, one line per source line."""


def evaluate_text(
    model: TranslationModel,
    tokenizer: Tokenizer,
    text: ParallelText,
    cfg: DecodingConfig,
    metrics: Sequence[str],
    *,
    tgt_lang: str,
    device: torch.device,
    world: World = ALONE,
) -> Scores:
    """Translate `text.src` and score the result against `text.tgt`; the ranks of `world` share the work."""
    translations = translate(text.src, model, tokenizer, cfg, device=device, world=world)
    hyps = [translation.text for translation in translations]
    return score_text(list(untagged(text.src)), hyps, text.tgt, metrics, tgt_lang=tgt_lang)


def score_text(
    srcs: Sequence[str], hyps: Sequence[str], refs: Sequence[str], metrics: Sequence[str], *, tgt_lang: str
) -> Scores:
    """Score translations into `tgt_lang` against one reference each, by the named metrics."""
    if not refs:
        raise UserError("there is nothing to score: the split has no sentence pairs")
    found = {name: METRICS[name].score(srcs, hyps, refs, tgt_lang) for name in metrics}
    values = {name: value for name, (value, _) in found.items()}
    return Scores(values, {name: signature for name, (_, signature) in found.items()}, list(hyps))


def validation_loss(
    model: TranslationModel, batches: Iterable[Batch], *, device: torch.device, world: World = ALONE
) -> float:
    """Return the mean negative log-likelihood in nats per target token, EOS counted, without smoothing.

    Each rank of `world` takes its part of `batches`; the sum is that of one process, bit for bit.
    """
    sums, counts = [torch.zeros(0, device=device)], []
    with evaluating(model):
        for batch in (batch.to(device) for batch in world.shard(batches)):
            hidden = batch.real(model(batch.src, batch.src_mask, batch.tgt_in))
            sums.append(model.nll(hidden, batch.real(batch.tgt_out))[None])
            counts.append(batch.num_tokens)
    all_sums: list[float] = world.unshard(torch.cat(sums).tolist())
    all_counts = world.unshard(counts)
    return sum(all_sums) / sum(all_counts)


def perplexity(nll: float) -> float:
    """Return e to the mean negative log-likelihood per token; infinity where that overflows."""
    return math.exp(nll) if nll < 700.0 else math.inf
