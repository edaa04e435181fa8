"""Scores of translations against references: one row of `METRICS` each.

The scores of sacreBLEU (Post 2018) are computed on detokenised text against the raw references; they equal
those of the `sacrebleu` command on the written files. Knows text; knows no model and no search.
sacreBLEU is imported when a score is computed: composing a config needs the names alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.errors import UserError, suggest

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric as SacrebleuMetric
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

Lines = Sequence[str]
Counts = NDArray[Any]


class Metric(NamedTuple):
    """A score of the translations of a whole split."""

    label: str
    """Name in score lines and tables."""
    higher_is_better: bool
    score: Callable[[Lines, Lines, Lines, str], tuple[float, str]]
    """Function of sources, hypotheses, references and the target language that returns the value and its
    signature, which says how it was computed. All processes of a training must compute the same value."""


def bleu(sources: Lines, hypotheses: Lines, references: Lines, tgt_lang: str) -> tuple[float, str]:
    """Return BLEU, 0 to 100, and its signature; words are split as is usual for `tgt_lang`.

    Raises:
        UserError: splitting the words of `tgt_lang` needs a package that is not installed.
    """
    return _corpus_score(_bleu_scorer(tgt_lang), hypotheses, references)


def _bleu_scorer(tgt_lang: str) -> BLEU:
    from sacrebleu.metrics.bleu import BLEU

    try:
        return BLEU(trg_lang=tgt_lang)
    except RuntimeError as error:  # Japanese and Korean need an extra package
        reason = " ".join(str(error).split())
        raise UserError(f"BLEU for data.tgt={tgt_lang} needs more than is installed. {reason}") from error


def chrf(sources: Lines, hypotheses: Lines, references: Lines, tgt_lang: str) -> tuple[float, str]:
    """Return chrF, 0 to 100, and its signature."""
    return _corpus_score(_chrf_scorer(), hypotheses, references)


def _chrf_scorer(tgt_lang: str = "") -> CHRF:
    from sacrebleu.metrics.chrf import CHRF

    return CHRF()


def ter(sources: Lines, hypotheses: Lines, references: Lines, tgt_lang: str) -> tuple[float, str]:
    """Return TER, edits per 100 words of the references, and its signature."""
    from sacrebleu.metrics.ter import TER

    return _corpus_score(TER(), hypotheses, references)


def sentence_counts(
    name: str, hypotheses: Lines, references: Lines, tgt_lang: str
) -> tuple[Counts, Callable[[Counts], float]]:
    """Return numbers (sentences, n), and a function from the sum of some of the rows to the metric `name`.

    `name` is one of `SCORERS`.
    """
    scorer: Any = SCORERS[name](tgt_lang)
    rows = scorer._extract_corpus_statistics(list(hypotheses), [list(references)])
    return np.array(rows), lambda sums: float(scorer._compute_score_from_stats(sums.tolist()).score)


def sentence_chrf(hypotheses: Lines, references: Lines) -> list[float]:
    """Return the chrF of each sentence by itself, 0 to 100."""
    counts, score = sentence_counts("chrf", hypotheses, references, "")
    return [score(row) for row in counts]


def _corpus_score(scorer: SacrebleuMetric, hypotheses: Lines, references: Lines) -> tuple[float, str]:
    value = scorer.corpus_score(list(hypotheses), [list(references)]).score
    return float(value), scorer.get_signature().format()


METRICS: dict[str, Metric] = {
    "bleu": Metric("BLEU", True, bleu),
    "chrf": Metric("chrF", True, chrf),
    "ter": Metric("TER", False, ter),
}
"""Name in `metrics` and `trainer.best_metric` -> the metric."""


SCORERS: dict[str, Callable[[str], SacrebleuMetric]] = {
    "bleu": _bleu_scorer,
    "chrf": _chrf_scorer,
}
"""Name of a metric that is a function of sums over sentences -> a function of the target language."""


def require_metrics(names: Sequence[str]) -> None:
    """Raise `UserError` unless `names`, the value of the key `metrics`, are of `METRICS`, each once."""
    for number, name in enumerate(names):
        if name not in METRICS:
            known, near = ", ".join(METRICS), suggest(name, METRICS)
            raise UserError(f"metrics[{number}] must be one of {known}, but is {name!r}{near}")
    if not names or len(set(names)) < len(names):
        raise UserError(f"metrics must name at least one score, and each once, but is [{', '.join(names)}]")


def require_tunable(key: str, name: str) -> None:
    """Raise `UserError` unless `name`, the value of `key`, is one of `SCORERS`."""
    if name not in SCORERS:
        raise UserError(f"{key} must be one of {', '.join(SCORERS)}, but is {name!r}{suggest(name, SCORERS)}")


def default_best(names: Sequence[str]) -> str:
    """Return the first of `names` whose higher values are better; loss when there is none."""
    return next((name for name in names if METRICS[name].higher_is_better), "loss")


def higher_is_better(name: str) -> bool:
    """Return whether higher values of the score `name`, a metric or the loss, are better."""
    return name in METRICS and METRICS[name].higher_is_better


def labelled_scores(values: Mapping[str, float | str]) -> list[str]:
    """Return "BLEU 38.12", "perplexity 5.20" and the like for the `values` of a split that have a label.

    Values that were read from JSON may be "inf" or "nan".
    """
    labels = {name: metric.label for name, metric in METRICS.items()} | {"perplexity": "perplexity"}
    return [f"{label} {float(values[name]):.2f}" for name, label in labels.items() if name in values]
