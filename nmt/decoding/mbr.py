"""Minimum Bayes risk decoding: of many translations, the one with the most utility if the others were right.

Candidates are samples, the hypotheses of a beam, or both, of one model or of each member of an ensemble. They
are the references, too. Equal texts are one candidate, which counts as often as it was found.
`draw_candidates` knows no text; `translate` hands the text of what was found to `rank`.

Kumar and Byrne 2004. Samples as candidates: Eikema and Aziz 2020. Epsilon sampling: Freitag et al. 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum

import numpy as np
from torch import Tensor

from nmt.checks import at_least
from nmt.decoding.beam_search import BeamConfig, LengthPenalty
from nmt.decoding.graph_search import search
from nmt.decoding.hypotheses import DecodingConfig, Hypothesis
from nmt.decoding.sampling import DrawingConfig, draw_samples
from nmt.decoding.utility import Utility, expected_utility
from nmt.errors import UserError
from nmt.models.base import TranslationModel


class ReferenceWeights(Enum):
    """How much a candidate counts as a reference."""

    count = "count"
    """As often as it was found."""
    probability = "probability"
    """By its probability under the model, over that of all candidates."""


@dataclass
class MBRConfig(DrawingConfig):
    """Minimum Bayes risk decoding: the candidate that is most like all candidates."""

    strategy: str = "mbr"
    epsilon: float = 0.02
    num_samples: int = 64
    """Samples of a sentence, drawn as with `decoding=sampling`; 0: none."""
    beam_size: int = 0
    """Hypotheses of beam search that are candidates, too; 0: none."""
    length_penalty: LengthPenalty = BeamConfig.length_penalty
    """gnmt, average or none: that of the beam."""
    length_penalty_alpha: float = BeamConfig.length_penalty_alpha
    """Strength of the length penalty of the beam; 0 switches it off."""
    pool_models: bool = False
    """Find candidates with each model of an ensemble, and take all of them; false: with the ensemble."""
    utility: Utility = Utility.chrf
    """chrf or bleu: what a candidate is worth where another is the reference."""
    aggregate: bool = False
    """One reference in place of all: their mean as counts of n-grams, which is faster for many candidates."""
    reference_weights: ReferenceWeights = ReferenceWeights.count
    """count or probability: how much a candidate counts as a reference."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, "decoding", 0, "num_samples", "beam_size")
        found = self.num_samples + self.beam_size
        if not found:
            raise UserError("decoding=mbr needs candidates; set decoding.num_samples or decoding.beam_size")
        if self.n_best > found:
            raise UserError(
                "decoding.n_best must not exceed decoding.num_samples + decoding.beam_size, but "
                f"{self.n_best} > {found}; try decoding.num_samples={self.n_best - self.beam_size}"
            )
        if self.beam_size:
            self.beam()

    @property
    def rows_per_sentence(self) -> int:
        return max(self.num_samples, self.beam_size)

    def beam(self) -> BeamConfig:
        """Return the config of the beam search whose hypotheses are candidates."""
        shared = {field.name: getattr(self, field.name) for field in fields(DecodingConfig)}
        penalty = {"length_penalty": self.length_penalty, "length_penalty_alpha": self.length_penalty_alpha}
        own = {"strategy": BeamConfig.strategy, "n_best": self.beam_size, "beam_size": self.beam_size}
        return BeamConfig(**(shared | penalty | own))


def draw_candidates(
    model: TranslationModel, src: Tensor, src_mask: Tensor, cfg: MBRConfig
) -> list[list[Hypothesis]]:
    """Return all candidates of every sentence as they were found: equal ones again and again.

    `src` (B, S) ids, `src_mask` (B, S) bool. To be called without gradients, with the model in eval mode.
    """
    found: list[list[Hypothesis]] = [[] for _ in range(len(src))]
    for number, member in enumerate(model.members if cfg.pool_models else [model]):
        if cfg.num_samples:
            own = replace(cfg, seed=cfg.seed + number)
            _add(found, draw_samples(member, src, src_mask, own, cfg.num_samples))
        if cfg.beam_size:
            _add(found, search(member, src, src_mask, cfg.beam()))
    return found


def _add(found: list[list[Hypothesis]], more: list[list[Hypothesis]]) -> None:
    for sentence, hypotheses in zip(found, more, strict=True):
        sentence.extend(hypotheses)


def rank(hypotheses: Sequence[Hypothesis], texts: Sequence[str], cfg: MBRConfig) -> list[tuple[int, float]]:
    """Return places in `texts` and expected utilities of the `n_best` best texts, best first, each text once.

    `texts` are those of `hypotheses`. Of equally good texts the one that was found first is first.
    """
    places = dict[str, int]()
    counts, log_probs = dict[str, int](), dict[str, float]()
    for place, (hypothesis, text) in enumerate(zip(hypotheses, texts, strict=True)):
        places.setdefault(text, place)
        counts[text] = counts.get(text, 0) + 1
        log_probs[text] = max(hypothesis.log_prob, log_probs.get(text, -np.inf))
    weights = np.array(list(counts.values()), np.float64)
    if cfg.reference_weights is ReferenceWeights.probability:
        weights = np.exp(np.array(list(log_probs.values())) - max(log_probs.values()))
    utilities = expected_utility(list(places), weights.tolist(), cfg.utility, aggregate=cfg.aggregate)
    best = np.argsort(-utilities, kind="stable")[: cfg.n_best].tolist()
    first = list(places.values())
    return [(first[i], float(utilities[i])) for i in best]
