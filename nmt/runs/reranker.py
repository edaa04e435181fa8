"""Candidates of a run, scored by other runs: the features for choosing among them.

What a run can score is found from its config: a model of the same direction (from right to left, perhaps)
scores the candidate given the source; one of the opposite direction scores the source given the candidate
(noisy channel: Yee et al. 2019, Ng et al. 2019); a language model scores the candidate alone. A model for
several directions does all of these that it can. Right-to-left: Liu et al. 2016, Sennrich et al. 2016.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nmt.config.roots import Task
from nmt.data.configs import domain_tag
from nmt.data.documents import composed, current_of_each
from nmt.data.reading.mixture import domain_of, without_front
from nmt.decoding.configs import DecodingConfig
from nmt.errors import Log, UserError
from nmt.runs.opened import Run
from nmt.translation.requests import Request
from nmt.translation.reranking import Floats, chosen
from nmt.translation.translate import Translation

VERSION = 2
"""Increased when a feature is computed otherwise, so that weights tuned for the old one are not used."""
FLOOR = -50.0
"""The log probability per token that a candidate counts with when a scorer cannot read it."""


@dataclass
class Feature:
    """The log probability per token of a candidate, or of its source, under a run."""

    kind: str
    """forward, right_to_left, reverse or language_model."""
    run: Run

    @property
    def name(self) -> str:
        """The kind and the run directory."""
        return f"{self.kind} {self.run.directory.path}"


class Reranker:
    """A run that finds candidates, and the runs that score them."""

    def __init__(
        self,
        run: Run,
        scorers: Sequence[Run],
        decoding: DecodingConfig,
        tgt: str | None,
        domain: str | None = None,
    ):
        run.require_task(Task.translation)
        run.asking_for(tgt, [], domain)
        self.run, self.decoding, self.tgt, self.domain = run, decoding, tgt, domain
        self.direction = direction(run, tgt)
        self.features = [feature for scorer in scorers for feature in features_of(scorer, self.direction)]

    @property
    def names(self) -> list[str]:
        """Names of the features: the score of the search, those of the scorers, and the length in characters
        for each character of the source.
        """
        return ["score", *(feature.name for feature in self.features), "length"]

    def candidates(self, lines: Sequence[str], warn: Log) -> list[list[Translation]]:
        """Return the different translations that search finds for each line as it is, best first."""
        asking = map(Request, self.run.asking_for(self.tgt, lines, self.domain))
        asked = self.run.fitted(asking, self.decoding)
        found = self.run.translated_requests(asked, self.decoding, range(1, len(lines) + 1), warn=warn)
        return [_different(one) for one in found]

    def values(
        self, lines: Sequence[str], candidates: Sequence[Sequence[Translation]], warn: Log
    ) -> list[Floats]:
        """Return the features (candidates, F) of each line, in the order of `names`."""
        counts = [len(several) for several in candidates]
        open_lines = [line for line, count in zip(lines, counts, strict=True) for _ in range(count)]
        texts = [candidate.text for several in candidates for candidate in several]
        columns = [[candidate.score for several in candidates for candidate in several]]
        for feature in self.features:
            columns.append(self._scored(feature, open_lines, texts, warn))
        sentences = current_of_each(list(without_front(open_lines)))
        columns.append([len(text) / max(len(line), 1) for line, text in zip(sentences, texts, strict=True)])
        return np.split(np.array(columns).T, np.cumsum(counts)[:-1])

    def best(self, lines: Sequence[str], weights: Floats, warn: Log, first_line: int = 1) -> list[str]:
        """Return the translation of each line: of each of its parts the candidate that the weights choose."""
        segments = self.run.segments(lines, self.decoding)
        found = self.run.translated_parts(
            segments, self.decoding, self.tgt, domain=self.domain, warn=warn, first_line=first_line
        )
        candidates = list(map(_different, found))
        sources = [composed(one.src, one.context, self.run.cfg.data) for one in segments.requests]
        places = chosen(self.values(sources, candidates, warn), weights)
        best = [several[place] for several, place in zip(candidates, places, strict=True)]
        return [one.text for one in segments.joined(best)]

    def _scored(self, feature: Feature, lines: Sequence[str], texts: Sequence[str], warn: Log) -> list[float]:
        """Return the feature of each pair (line, text); a blank line has nothing to choose from.

        What is scored is the sentence itself. Context in front of the line is for a scorer that has learnt to
        read it, and not to translate it, and a domain for one that knows it.
        """
        src, tgt = self.direction
        data = feature.run.cfg.data
        fronts = [
            front if front.strip() in data.domain_tags.values() else "" for front in self._domains(lines)
        ]
        lines = list(without_front(lines))
        reads_context = feature.kind != "reverse" and data.context and not data.context_target
        lines = lines if reads_context else current_of_each(list(lines))
        pairs = list(zip(lines, texts, strict=True))
        if feature.kind == "reverse":
            pairs, tgt = [(text, line) for line, text in pairs], src
        pairs = [(front + line, text) for front, (line, text) in zip(fronts, pairs, strict=True)]
        asked = tgt if data.tags else None
        messages: list[str] = []  # they count candidates, not lines
        found = feature.run.score(pairs, tgt=asked, warn=messages.append)
        unread = sum(not one.ids and bool(line.strip()) for one, line in zip(found, lines, strict=True))
        if unread:
            warn(f"{unread:,} candidates cannot be read by {feature.name}; they count {FLOOR} per token")
        return [max(one.per_token, FLOOR) for one in found]

    def _domains(self, lines: Sequence[str]) -> list[str]:
        """Return the tag of the domain of each line, of its own or that of all, with a space behind it."""
        tag = f"{domain_tag(self.domain)} " if self.domain else ""
        return [(domain_of(line) or tag) if line.strip() else "" for line in lines]


def _different(best: Translation) -> list[Translation]:
    """Return a translation and its alternatives, without those whose text is that of an earlier one."""
    found: dict[str, Translation] = {}
    for translation in (best, *best.alternatives):
        found.setdefault(translation.text, translation)
    return list(found.values())


def direction(run: Run, tgt: str | None) -> tuple[str, str]:
    """Return source and target language of a run, of several the first with the target `tgt`."""
    return next(pair for pair in run.cfg.data.languages if tgt in (None, pair[1]))


def features_of(scorer: Run, wanted: tuple[str, str]) -> list[Feature]:
    """Return what a run can score for translations in the direction `wanted`.

    Raises:
        UserError: the run can score nothing of that direction.
    """
    src, tgt = wanted
    cfg, found = scorer.cfg, list[str]()
    if cfg.task is Task.language_model:
        found = ["language_model"] if cfg.data.tgt == tgt else []
        does = f"models {cfg.data.tgt}, the data.tgt of its training"
    else:
        if (src, tgt) in cfg.data.languages:
            found.append("right_to_left" if cfg.tokenizer.right_to_left else "forward")
        if (tgt, src) in cfg.data.languages:
            found.append("reverse")
        does = " and ".join(f"translates {a} to {b}" for a, b in dict.fromkeys(cfg.data.languages))
    if not found:
        raise UserError(
            f"scorers: {scorer.directory.path} {does}, and can score no translation from {src} to {tgt}; "
            f"name runs that translate {src} to {tgt} or {tgt} to {src}, or language models trained with "
            f"data.tgt={tgt}"
        )
    return [Feature(kind, scorer) for kind in found]
