"""Scores with 95% intervals, and tests of their differences: those of sacreBLEU, on its own statistics.

Scores of labels and COMET have tests of their own, in `paired_tests`.

A metric is built from the signature that a run has stored, so that what is compared is what was scored.
Paired bootstrap (Koehn 2004) and paired approximate randomisation (Riezler and Maxwell 2005) ask how often
sentences like these would show a difference like this by chance. They know nothing of the chance in training:
runs of other seeds do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sacrebleu
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest, Result

from nmt.comparison.paired_tests import Lines, PairedScores, PredictedLabels, ScoreOn, SentenceScores
from nmt.errors import UserError
from nmt.metrics import comet
from nmt.metrics.label_scores import metric_in

PARALLEL_FROM = 8
"""Number of runs from which the tests are made by several processes."""


@dataclass
class Tested:
    """The score of one run by one metric; p values are of its difference from the first run."""

    value: float
    interval: float
    """Half of the width of the 95% interval."""
    difference: float | None = None
    """The score minus that of the first run; None for the first."""
    bootstrap_p: float | None = None
    randomisation_p: float | None = None
    bootstrap_holm: float | None = None
    """`bootstrap_p` corrected for the number of runs that are tested (Holm 1979)."""
    randomisation_holm: float | None = None


def scorer_of(signature: str, references: Sequence[Lines] | None = None) -> Any:
    """Return the metric of sacreBLEU that a signature describes, with the references cached in it.

    Raises:
        UserError: the signature is of no metric of sacreBLEU.
    """
    facts = dict(part.partition(":")[::2] for part in signature.split("|"))
    yes = {name: value in ("yes", "lc") for name, value in facts.items()}
    number = int(facts["nrefs"]) if facts.get("nrefs", "").isdigit() else None
    caches = None if references is None else [list(lines) for lines in references[:number]]
    try:
        if "nc" in facts:
            return CHRF(
                char_order=int(facts["nc"]),
                word_order=int(facts["nw"]),
                lowercase=yes["case"],
                whitespace=yes["space"],
                eps_smoothing=not yes["eff"],
                references=caches,
            )
        if "smooth" in facts:
            method, _, value = facts["smooth"].removesuffix("]").partition("[")
            return BLEU(
                lowercase=yes["case"],
                tokenize=facts["tok"],
                smooth_method=method,
                smooth_value=float(value) if value else None,
                effective_order=yes["eff"],
                force=True,  # a remark says which text looks tokenised
                references=caches,
            )
        if "norm" in facts:
            return TER(
                normalized=yes["norm"],
                no_punct=not yes["punct"],
                asian_support=yes["asian"],
                case_sensitive=facts["case"] == "mixed",
                references=caches,
            )
    except (
        KeyError,
        ValueError,
        RuntimeError,
        OSError,
    ) as error:  # such as a tokenizer that is missing
        raise UserError(f"the signature {signature} cannot be scored here: {error}") from error
    raise UserError(f"the signature {signature} is of no metric of sacreBLEU")


def rules_of(signature: str) -> str:
    """Return a signature without the version of sacreBLEU."""
    return "|".join(part for part in signature.split("|") if not part.startswith("version:"))


def version_note(stored: str, signature: str) -> str:
    """Return a remark where another version than that of `signature` computed a score that is stored."""
    both = (dict(part.partition(":")[::2] for part in one.split("|")) for one in (stored, signature))
    then, now = (facts.get("version") for facts in both)
    if then is None or then == now:  # labels have no version
        return ""
    library = "COMET" if comet.model_in(signature) else "sacreBLEU"
    return f"stored scores are of {library} {then}, those here of {now}"


class CorpusScores:
    """Several systems and a metric of sacreBLEU, which tests them by its own statistics of sentences."""

    def __init__(self, signature: str, systems: Sequence[Lines], references: Sequence[Lines]):
        self._metric = scorer_of(signature, references)
        self.signature = f"{rules_of(signature)}|version:{sacrebleu.__version__}"
        self._systems = [list(lines) for lines in systems]

    def score_on(self, number: int) -> ScoreOn:
        """Return the function that scores one of the systems on some of the sentences."""
        rows = np.array(self._metric._extract_corpus_statistics(self._systems[number], None))
        score = self._metric._compute_score_from_stats
        return lambda chosen: float(score(rows[chosen].sum(axis=0).tolist()).score)

    def bootstrapped(self, samples: int) -> list[Result]:
        """Return score, interval and p value of each system by paired bootstrap."""
        return self._tested("bs", samples)

    def randomised(self, trials: int) -> list[Result]:
        """Return score and p value of each system by approximate randomisation."""
        return self._tested("ar", trials)

    def _tested(self, kind: str, number: int) -> list[Any]:
        named: list[tuple[str, Lines]] = [(str(place), lines) for place, lines in enumerate(self._systems)]
        jobs = 0 if len(named) >= PARALLEL_FROM else 1
        metrics: Mapping[str, Any] = {"metric": self._metric}
        test = PairedTest(named, metrics, None, test_type=kind, n_samples=number, n_jobs=jobs)
        (found,) = [found for name, found in test()[1].items() if name != "System"]
        return found


def scores_by(
    signature: str, systems: Sequence[Lines], references: Sequence[Lines], sources: Lines = ()
) -> CorpusScores | PairedScores:
    """Return what scores the translations, or the labels, of several systems by the metric of a signature.

    `sources` are read by COMET alone.

    Raises:
        UserError: the signature is of no metric that can be computed here.
    """
    if (of_labels := metric_in(signature)) is not None:
        return PredictedLabels(of_labels, references[0], systems)
    if model := comet.model_in(signature):
        comet.require_model(model)
        number = len(systems)
        scores = comet.sentence_scores(
            [*sources] * number, [line for lines in systems for line in lines], [*references[0]] * number
        )
        return SentenceScores(np.array(scores.values).reshape(number, -1), scores.signature)
    return CorpusScores(signature, systems, references)


def with_tests(
    scores: CorpusScores | PairedScores, systems: Sequence[Lines], *, samples: int, trials: int
) -> list[Tested]:
    """Return the scores of all systems, the first of which the others are tested against.

    `trials` is the number of trials of approximate randomisation, 0 for none.
    """
    results = scores.bootstrapped(samples)
    randomised = scores.randomised(trials) if trials and len(systems) > 1 else None
    rows = [Tested(float(one.score), float(one.ci or 0.0)) for one in results]
    for number, row in enumerate(rows[1:], start=1):
        row.difference = row.value - rows[0].value
        differing = sum(a != b for a, b in zip(systems[0], systems[number], strict=True))
        row.bootstrap_p = _p_value(row, results[number], differing)
        row.randomisation_p = _p_value(row, randomised[number], differing) if randomised else None
    corrected = holm([row.bootstrap_p for row in rows])
    for row, p in zip(rows, corrected, strict=True):
        row.bootstrap_holm = p
    for row, p in zip(rows, holm([row.randomisation_p for row in rows]), strict=True):
        row.randomisation_holm = p
    return rows


def _p_value(row: Tested, result: Any, differing: int) -> float:
    """Return the p value of a test of translations of which so many are `differing`.

    An exact test, which swaps them in all ways, finds a difference as large in 2 of 2^n ways at least.
    sacreBLEU counts larger ones alone, and would call that of one sentence, or of none, significant.
    """
    return 1.0 if row.difference == 0 else max(float(result.p_value), 2.0 ** (1 - differing))


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Return p values corrected for their number by the step-down rule of Holm; None stays None."""
    order = sorted((p, number) for number, p in enumerate(values) if p is not None)
    corrected: list[float | None] = [None] * len(values)
    highest = 0.0
    for rank, (p, number) in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * p))
        corrected[number] = highest
    return corrected
