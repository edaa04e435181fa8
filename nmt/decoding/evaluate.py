"""How good a model is on one split: loss and perplexity, and sacreBLEU metrics of its translations.

Scores come from sacreBLEU alone (Post 2018), on detokenised text against the raw references, each with its
signature; they equal those of the `sacrebleu` command on the written files. Validation in training, the test
at its end and `nmt evaluate` all come through `evaluate_text`, so that their scores mean the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from sacrebleu.metrics.base import Metric as SacrebleuMetric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from nmt.data.batching import Batch
from nmt.data.pairs import ParallelText
from nmt.data.tokenizer import Tokenizer
from nmt.decoding import DecodingConfig
from nmt.decoding.translate import evaluating, translate
from nmt.distributed import ALONE, World
from nmt.errors import UserError
from nmt.layers.loss import projected_nll
from nmt.models.base import TranslationModel


class Metric(Enum):
    """Corpus scores of sacreBLEU, 0 to 100; for ter less is better, and it may exceed 100."""

    bleu = "bleu"
    chrf = "chrf"
    ter = "ter"


@dataclass
class Scores:
    """The scores of one set of translations."""

    values: dict[str, float]
    """By metric name."""
    signatures: dict[str, str]
    """How each value was computed, in sacreBLEU's own words."""
    hypotheses: list[str]
    """What was scored, one line per source line."""


def evaluate_text(
    model: TranslationModel,
    tokenizer: Tokenizer,
    text: ParallelText,
    cfg: DecodingConfig,
    metrics: Sequence[Metric],
    *,
    tgt_lang: str,
    device: torch.device,
    world: World = ALONE,
) -> Scores:
    """Translate `text.src` and score the result against `text.tgt`; the ranks of `world` share the work."""
    translations = translate(text.src, model, tokenizer, cfg, device=device, world=world)
    return score_text([t.text for t in translations], text.tgt, metrics, tgt_lang=tgt_lang)


def score_text(
    hyps: Sequence[str], refs: Sequence[str], metrics: Sequence[Metric], *, tgt_lang: str
) -> Scores:
    """Score translations against one reference each; BLEU splits words as is usual for `tgt_lang`."""
    if not refs:
        raise UserError("there is nothing to score: the split has no sentence pairs")
    values, signatures = {}, {}
    for metric in metrics:
        scorer = _scorer(metric, tgt_lang)
        values[metric.value] = float(scorer.corpus_score(list(hyps), [list(refs)]).score)
        signatures[metric.value] = scorer.get_signature().format()
    return Scores(values, signatures, list(hyps))


def _scorer(metric: Metric, tgt_lang: str) -> SacrebleuMetric:
    if metric is Metric.chrf:
        return CHRF()
    if metric is Metric.ter:
        return TER()
    try:
        return BLEU(trg_lang=tgt_lang)
    except RuntimeError as error:  # Japanese and Korean need an extra package
        reason = " ".join(str(error).split())
        raise UserError(f"BLEU for data.tgt={tgt_lang} needs more than is installed. {reason}") from error


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
            _, nll = projected_nll(hidden, model.output, batch.real(batch.tgt_out), 0.0)
            sums.append(nll[None])
            counts.append(batch.num_tokens)
    all_sums: list[float] = world.unshard(torch.cat(sums).tolist())
    all_counts = world.unshard(counts)
    return sum(all_sums) / sum(all_counts)


def perplexity(nll: float) -> float:
    """Return e to the mean negative log-likelihood per token; infinity where that overflows."""
    return math.exp(nll) if nll < 700.0 else math.inf
