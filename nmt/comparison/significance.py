"""Scores with 95% intervals, and tests of their differences: those of sacreBLEU, on its own statistics.

Scores of labels have tests of their own, in `label_tests`.

A metric is built from the signature that a run has stored, so that what is compared is what was scored.
Paired bootstrap (Koehn 2004) and paired approximate randomisation (Riezler and Maxwell 2005) ask how often
sentences like these would show a difference like this by chance. They know nothing of the chance in training:
runs of other seeds do.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sacrebleu
from numpy.typing import NDArray
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest

from nmt.comparison.label_tests import PredictedLabels
from nmt.decoding.label_scores import metric_in
from nmt.errors import UserError

Lines = Sequence[str]
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


def version_note(signature: str) -> str:
    """Return a remark where another version of sacreBLEU than this one computed the stored score."""
    version = dict(part.partition(":")[::2] for part in signature.split("|")).get("version")
    if version in (None, sacrebleu.__version__):  # a score of labels names none
        return ""
    return f"stored scores are of sacreBLEU {version}, those here of {sacrebleu.__version__}"


def scored(
    signature: str,
    systems: Sequence[Lines],
    references: Sequence[Lines],
    *,
    samples: int,
    trials: int,
) -> list[Tested]:
    """Return the scores of all systems, the first of which the others are tested against.

    `trials` is the number of trials of approximate randomisation, 0 for none.
    """
    metric, results = metric_in(signature), dict[str, list[Any]]()
    for kind, number in (("bs", samples), ("ar", trials)):
        if number and (kind == "bs" or len(systems) > 1):
            if metric is None:
                results[kind] = _tested(signature, systems, references, kind, number)
            else:
                texts = PredictedLabels(metric, references[0], systems)
                results[kind] = (texts.bootstrapped if kind == "bs" else texts.randomised)(number, seed())
    rows = [Tested(float(one.score), float(one.ci)) for one in results["bs"]]
    for number, row in enumerate(rows[1:], start=1):
        row.difference = row.value - rows[0].value
        differing = sum(a != b for a, b in zip(systems[0], systems[number], strict=True))
        row.bootstrap_p = _p_value(row, results["bs"][number], differing)
        row.randomisation_p = _p_value(row, results["ar"][number], differing) if "ar" in results else None
    corrected = holm([row.bootstrap_p for row in rows])
    for row, p in zip(rows, corrected, strict=True):
        row.bootstrap_holm = p
    for row, p in zip(rows, holm([row.randomisation_p for row in rows]), strict=True):
        row.randomisation_holm = p
    return rows


def _tested(
    signature: str, systems: Sequence[Lines], references: Sequence[Lines], kind: str, number: int
) -> list[Any]:
    """Return what sacreBLEU finds for each system: bs is paired bootstrap, ar approximate randomisation."""
    named: list[tuple[str, Lines]] = [(str(place), list(lines)) for place, lines in enumerate(systems)]
    jobs = 0 if len(systems) >= PARALLEL_FROM else 1
    metrics: Mapping[str, Any] = {"metric": scorer_of(signature, references)}
    test = PairedTest(named, metrics, None, test_type=kind, n_samples=number, n_jobs=jobs)
    (found,) = [found for name, found in test()[1].items() if name != "System"]
    return found


def seed() -> int | None:
    """Return the seed of the tests, which is that of sacreBLEU; None draws other numbers each time.

    Raises:
        UserError: the variable of the environment that says it is no seed.
    """
    told = os.environ.get("SACREBLEU_SEED", "12345")
    if told.lower() == "none":
        return None
    if not re.fullmatch(r"\d+", told, re.ASCII):
        raise UserError(f"SACREBLEU_SEED must be a whole number of at least 0, or none, but is {told!r}")
    return int(told)


def score_on(
    signature: str, hypotheses: Lines, references: Sequence[Lines]
) -> Callable[[NDArray[Any]], float]:
    """Return a function from sentences, a mask (N,) or their numbers, to the corpus score of the chosen ones.

    Raises:
        UserError: the signature is of no metric that can be computed here.
    """
    metric = metric_in(signature)
    if metric is not None:
        return PredictedLabels(metric, references[0], [hypotheses]).score_on
    scorer = scorer_of(signature, references)
    rows = np.array(scorer._extract_corpus_statistics(list(hypotheses), None))
    return lambda chosen: float(scorer._compute_score_from_stats(rows[chosen].sum(axis=0).tolist()).score)


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
