"""The scores of a model on one split: loss and perplexity, and the metrics of its translations.

Validation in training, the test at its end and `nmt evaluate` all score translations by `evaluate_text`, and
labels by `score_text`, so that their scores mean the same.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from nmt.data.batches.batching import Batch
from nmt.data.documents import current_of_each
from nmt.data.parallel_text import ParallelText
from nmt.data.reading.mixture import language_of_tag, split_tag, without_front
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.decoding.configs import DecodingConfig
from nmt.decoding.forcing import ROWS_AT_ONCE
from nmt.distributed import ALONE, World
from nmt.errors import UserError, warn
from nmt.metrics.configs import ScoringConfig
from nmt.metrics.scoring import METRICS, SCORERS, ScoredText, means, require_computable
from nmt.models.base import TranslationModel
from nmt.translation.requests import Request
from nmt.translation.segments import translated_behind_context
from nmt.translation.translate import Translation, evaluating, translate


@dataclass
class Scores:
    """The scores of one set of translations."""

    values: dict[str, float]
    """By metric name, and the means over languages, such as macro_bleu."""
    signatures: dict[str, str]
    """By metric name: how the value was computed."""
    hypotheses: list[str]
    """The scored translations, one line per source line."""
    notes: list[str] = field(default_factory=list)
    """What is shown beside each of them, such as a probability."""
    by_language: dict[str, dict[str, float]] = field(default_factory=dict)
    """Those of sacreBLEU, by target language and metric name, where sources ask for several languages."""
    details: dict[str, Any] = field(default_factory=dict)
    """Scores by label and the confusion matrix; see `nmt.metrics.label_scores.details_of`."""


def evaluate_text(
    model: TranslationModel,
    tokenizer: Tokenizer,
    text: ParallelText,
    cfg: DecodingConfig,
    metrics: Sequence[str],
    *,
    tgt_lang: str,
    device: torch.device,
    scoring: ScoringConfig | None = None,
    world: World = ALONE,
    context_target: bool = False,
    languages: Collection[str] = (),
) -> Scores:
    """Translate `text.src` and score the result against `text.tgt`; the ranks of `world` share the work.

    Scores are those of the sentences themselves, without context; `context_target` tells whether the model
    translates the context, too. Each of `languages`, which tags in front of sources ask for, has its own.
    """
    asked = {name: rows for name, rows in languages_asked_for(text.src).items() if name in languages}
    for language in dict.fromkeys((tgt_lang, *asked)):
        require_computable(metrics, language, scoring or ScoringConfig())

    def translated(lines: Sequence[Request], places: Sequence[int]) -> list[Translation]:
        numbers = [place + 1 for place in places]
        return translate(lines, model, tokenizer, cfg, device=device, world=world, numbers=numbers)

    requests = list(map(Request, text.src))
    if context_target:
        log = warn if world.is_main else _silent
        translations = translated_behind_context(requests, translated, log)
    else:
        translations = translated(requests, range(len(requests)))
    hyps = [translation.text for translation in translations]
    if not world.is_main:  # rank 0 scores for all: a metric may be a model, and take memory and threads
        found: dict[str, Any] = world.broadcast({})
        return Scores(hypotheses=hyps, **found)
    sources, refs = current_of_each(list(without_front(text.src))), current_of_each(text.tgt)
    more = list(map(current_of_each, text.references))
    scores = score_text(sources, hyps, refs, metrics, tgt_lang=tgt_lang, more_refs=more, scoring=scoring)
    columns, of_sacrebleu = (sources, hyps, refs, *more), [name for name in metrics if name in SCORERS]
    for language, rows in asked.items() if len(asked) > 1 and of_sacrebleu else ():
        src, hyp, ref, *others = ([column[row] for row in rows] for column in columns)
        own = score_text(src, hyp, ref, of_sacrebleu, tgt_lang=language, more_refs=others, scoring=scoring)
        scores.by_language[language] = own.values
    scores.values |= means(scores.by_language)
    kept = "values", "signatures", "by_language"
    world.broadcast({name: getattr(scores, name) for name in kept})
    return scores


def languages_asked_for(lines: Iterable[str]) -> dict[str, list[int]]:
    """Return the numbers of the lines that have the tag of a target language in front, by language."""
    found = dict[str, list[int]]()
    for number, line in enumerate(lines):
        if tag := split_tag(line)[0]:
            found.setdefault(language_of_tag(tag), []).append(number)
    return found


def _silent(message: str) -> None:
    """Say nothing: another rank does."""


def score_text(
    srcs: Sequence[str],
    hyps: Sequence[str],
    refs: Sequence[str],
    metrics: Sequence[str],
    *,
    tgt_lang: str,
    more_refs: Sequence[Sequence[str]] = (),
    scoring: ScoringConfig | None = None,
) -> Scores:
    """Score translations into `tgt_lang` by the named metrics.

    `refs` has one reference of each, and each list of `more_refs` another one.
    """
    if not refs:
        raise UserError("there is nothing to score: the split has no sentence pairs")
    text = ScoredText(srcs, hyps, [refs, *more_refs], tgt_lang, scoring or ScoringConfig())
    found = {name: METRICS[name].score(text) for name in metrics}
    values = {name: value for name, (value, _) in found.items()}
    return Scores(values, {name: signature for name, (_, signature) in found.items()}, list(hyps))


def validation_values(
    model: TranslationModel,
    batches: Iterable[Batch],
    *,
    device: torch.device,
    world: World = ALONE,
    accuracy: bool = False,
) -> dict[str, float]:
    """Return the loss and, if asked for, `token_accuracy` of a model on the `batches` of all ranks.

    The loss is the mean negative log-likelihood in nats per target token, EOS counted, without smoothing. The
    `batches` are those of this rank, dealt by `World.shard`; the sums are those of one process, bit for bit.
    The accuracy is the share of these tokens that the model finds more likely than any other, in percent.
    """
    sums, counts, right = [torch.zeros(0, device=device)], [], [torch.zeros(0, device=device)]
    with evaluating(model):
        for batch in (batch.to(device) for batch in batches):
            hidden = batch.real(model(batch.src, batch.src_mask, batch.tgt_in))
            sums.append(model.nll(hidden, batch.targets)[None])
            counts.append(batch.num_tokens)
            if accuracy:
                right.append(_num_right(model, hidden, batch.targets)[None])
    all_counts = sum(world.unshard(counts))
    values = {"loss": sum(world.unshard(torch.cat(sums).tolist())) / all_counts}
    if accuracy:
        values["token_accuracy"] = 100.0 * sum(world.unshard(torch.cat(right).tolist())) / all_counts
    return values


def _num_right(model: TranslationModel, hidden: Tensor, targets: Tensor) -> Tensor:
    """Return how many of `targets` (M,) have the largest logit under hidden states (M, D), as a scalar."""
    parts = zip(hidden.split(ROWS_AT_ONCE), targets.split(ROWS_AT_ONCE), strict=True)
    return torch.stack([(model.project(rows).argmax(-1) == ids).sum().float() for rows, ids in parts]).sum()


def perplexity(nll: float) -> float:
    """Return e to the mean negative log-likelihood per token; infinity where that overflows."""
    return math.exp(nll) if nll < 700.0 else math.inf
