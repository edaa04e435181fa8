"""Validations before the end of a training: by which search, of how many pairs, and their scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from nmt import runtime
from nmt.config.roots import Task, TrainConfig, search_of_validations, search_with, tried_values
from nmt.config.spelling import spelled
from nmt.data.parallel_text import ParallelText, Split
from nmt.decoding.configs import DecodingConfig
from nmt.errors import Log, UserError
from nmt.files import write_lines
from nmt.metrics.scoring import MACRO, SCORERS
from nmt.runs.directory import RunDirectory
from nmt.runs.evaluation_text import evaluation_text
from nmt.runs.scored_sets import SetEvaluations
from nmt.runs.task import TrainedModel
from nmt.runs.tasks import TASKS, Evaluation, are_of_several_corpora
from nmt.training.tracking.sinks import Tracker
from nmt.translation.allowed import AllowedTokens
from nmt.translation.evaluate import Scores, languages_asked_for

MOST_LONGER = 0.005
"""Share of references that may be longer than a translation without a warning."""
FEWEST_LONGER = 4
"""Number of references that may, however few there are."""
LONGEST_WORD = 20
"""Characters of a word, in the mean, beyond which a script has no spaces between words."""


class Search(NamedTuple):
    """The translations that a score is of: how they are found, and of which pairs."""

    decoding: DecodingConfig
    num_pairs: int | None = None
    """Pairs that are translated, `Evaluation.some` of each set; None: all."""


def final_search(cfg: TrainConfig) -> Search:
    """Return the search of the scores at the end of a training."""
    return Search(cfg.decoding)


def validation_search(cfg: TrainConfig) -> Search:
    """Return the search of the validations before the end, which choose the best checkpoint."""
    return Search(search_of_validations(cfg), cfg.num_validation_pairs)


def validated_translations(cfg: TrainConfig) -> str:
    """Return what the validations before the end translate, and how; empty where the end does the same."""
    if validation_search(cfg) == final_search(cfg):
        return ""
    pairs = "all" if cfg.num_validation_pairs is None else _some(cfg.num_validation_pairs, cfg)
    keys = [f"{key}={spelled(value)}" for key, value in cfg.validation_decoding.items()]
    return f"{pairs} pairs{' with ' if keys else ''}{' and '.join(keys)}"


def _some(number: int, cfg: TrainConfig) -> str:
    """Return in words which pairs `Evaluation.some` takes."""
    return f"{number:,} evenly spaced" if are_of_several_corpora(cfg.data) else f"the first {number:,}"


def require_searches(cfg: TrainConfig, device: torch.device) -> None:
    """Raise `UserError` where a search of the training is not to be had on `device`."""
    for search in (final_search(cfg), validation_search(cfg)):
        runtime.search_precision(search.decoding.precision, device)


def validator(
    trained: TrainedModel, run: RunDirectory, tracker: Tracker
) -> Callable[[int], dict[str, float]]:
    """Return a function that scores the model on the validation split, like the final evaluation.

    Its search is that of `validation_search`.
    """
    cfg = trained.cfg
    search = validation_search(cfg)
    tried = [search_with(cfg.decoding, values) for values in tried_values(cfg)]
    for decoding in {one.allowed: one for one in (cfg.decoding, search.decoding, *tried)}.values():
        AllowedTokens(decoding, trained.tokenizer, tracker.message)  # a wrong file is told before an update
    text = evaluation_text(run, cfg, cfg.data, Split.validation)
    evaluation = Evaluation(trained, text, tracker.message)
    _require_languages(evaluation.some(search.num_pairs), cfg)
    for doubt in _doubts(evaluation, search.decoding):
        tracker.message(f"warning: {doubt}")
    sets = SetEvaluations(trained, run, Split.validation, tracker.message)

    def validate(step: int) -> dict[str, float]:
        scores = evaluation.scores(search.decoding, cfg.metrics, search.num_pairs)
        if trained.world.is_main:
            with tracker.spared("hypotheses"):
                file = run.hypotheses / "validation" / f"step_{step:08d}.{cfg.data.tgt}"
                write_lines(file, scores.hypotheses)
            TASKS[cfg.task].show(trained, evaluation.some(search.num_pairs), scores, tracker, step)
        of_sets = sets.scores(search.decoding, cfg.metrics, search.num_pairs)
        with tracker.spared("hypotheses"):
            sets.write(of_sets, f"validation/step_{step:08d}")
        named = {"": scores.values} | {f"{name}/": found.values for name, found in of_sets.items()}
        named |= {f"into_{language}/": values for language, values in scores.by_language.items()}
        return {
            f"valid/{name}{key}": value for name, values in named.items() for key, value in values.items()
        }

    return validate


def _doubts(evaluation: Evaluation, decoding: DecodingConfig) -> Iterator[str]:
    """Yield why the scores of translations will tell little, whatever the model learns."""
    cfg, pairs, lines = evaluation.trained.cfg, evaluation.pairs, evaluation.text.tgt
    if cfg.task is not Task.translation or not lines:
        return
    ratio, offset = decoding.max_length_ratio, decoding.max_length_offset
    longer = int((pairs.tgt_lengths > pairs.src_lengths * ratio + offset).sum())
    if longer > max(MOST_LONGER * len(pairs), FEWEST_LONGER) and not decoding.has_minimum:
        yield (
            f"{longer:,} of {len(pairs):,} validation references are longer than a translation may be, which "
            f"has decoding.max_length_ratio={ratio:g} times the tokens of the source and "
            f"decoding.max_length_offset={offset} more; raise one of them"
        )
    if "bleu" in cfg.metrics and cfg.scoring.tokenize is None:
        words = sum(len(line.split()) for line in lines)
        scorer: Any = SCORERS["bleu"](cfg.data.scored_language, cfg.scoring)
        if sum(map(len, lines)) > LONGEST_WORD * words and scorer.tokenizer.signature() == "13a":
            yield (
                "the validation references have hardly any spaces, but BLEU counts words between them; set "
                "scoring.tokenize=char, or metrics=[chrf]"
            )


def _require_languages(text: ParallelText, cfg: TrainConfig) -> None:
    """Raise `UserError` where the best checkpoint is that of a mean over languages, and `text` has one."""
    best, given = cfg.trainer.best_metric, cfg.num_validation_pairs
    languages = [name for name in languages_asked_for(text.src) if name in cfg.data.tags]
    if best in MACRO and len(languages) < 2:
        pairs = f"pairs of num_validation_pairs={given}" if given else "validation pairs"
        raise UserError(
            f"trainer.best_metric={best} is a mean over target languages, but the {pairs} are all into "
            f"{languages[0]}; score more, or set trainer.best_metric={MACRO[best]}"
        )


def scored(trained: TrainedModel, run: RunDirectory, split: Split, search: Search, log: Log) -> Scores:
    """Score the weights in memory on a split."""
    text = evaluation_text(run, trained.cfg, trained.cfg.data, split)
    return Evaluation(trained, text, log).scores(search.decoding, trained.cfg.metrics, search.num_pairs)
