"""The wiring of `nmt rerank`: choose among the n-best translations of a run by the scores of other runs.

The weights of the scores are tuned on the validation split, once, and kept in RUN/rerank/HASH.json, where the
hash is one of all that the weights depend on. The same command, or one with another split or with lines to
translate, finds them there.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nmt.config.composed import Composed
from nmt.config.overrides import FROM_RUN
from nmt.config.stored import load_run, to_plain
from nmt.data.documents import current_of_each
from nmt.data.parallel_text import ParallelText, Split
from nmt.data.reading.mixture import untagged, without_front
from nmt.decoding.configs import SPLITTING, BeamConfig
from nmt.errors import Log, UserError, warn
from nmt.files import read_json, require_place, write_json, write_lines
from nmt.metrics.configs import ScoringConfig
from nmt.metrics.scoring import score_line
from nmt.runs.checkpoint_names import identify_checkpoint, with_fixed_checkpoints
from nmt.runs.directory import RunDirectory
from nmt.runs.evaluation_text import evaluation_text
from nmt.runs.opening import open_run, open_runs
from nmt.runs.reranker import VERSION, Reranker
from nmt.translation.evaluate import Scores, score_text
from nmt.translation.reranking import Floats, chosen, tuned
from nmt.translation.translate import Translation
from nmt.verbs.configs import RerankConfig
from nmt.verbs.evaluate import changed_settings, scored_fields
from nmt.verbs.file_job import Answers, LineWork, answer
from nmt.verbs.translate import search_settings

OF_FILES = tuple(f"decoding.{key}" for key in SPLITTING)
"""The settings of a search that tuned weights do not depend on."""
LARGEST = 1e100
"""Bound of weights that are read."""


def run(trial: Composed) -> dict[str, Any]:
    """Rerank lines, or a split with its scores before and after; tune the weights if none are stored."""
    typed = trial.to_config(RerankConfig)
    cfg, facts = with_fixed_checkpoints(typed)
    for scorer in cfg.scorers:
        load_run(scorer, "scorers")  # refuses what is no run, or leads out of it
    if cfg.decoding.n_best < 2:
        width = "decoding.beam_size=20 " if isinstance(cfg.decoding, BeamConfig) else ""
        raise UserError(
            "nmt rerank chooses among several translations, but decoding.n_best=1; "
            f"try {width}decoding.n_best=20"
        )
    named = cfg.read_corpus or trial.choices.get("data") != FROM_RUN
    is_split = cfg.input is None and not cfg.stream
    weights_file = _weights_file(cfg, facts)
    if not is_split and weights_file.is_file():
        answer(cfg, RERANKED)
        return {}
    if not weights_file.is_file():
        require_place(weights_file.parent, "weights are kept in the run; copy it, and name the copy: run=...")
    log: Log = print if is_split else functools.partial(print, file=sys.stderr)
    reranker = _reranker(cfg)
    lists = functools.cache(functools.partial(_Lists.of, reranker, cfg, named))
    if not weights_file.is_file():
        _tune(cfg, lists(Split.validation), weights_file, facts, log)
    weights = _stored(weights_file, reranker)
    log("weights     " + "  ".join(f"{n} {w:.4g}" for n, w in zip(reranker.names, weights, strict=True)))
    if is_split:
        return _reported(typed, lists(cfg.data.scored_split), weights, weights_file.stem, facts)
    answer(cfg, RERANKED)
    return {}


@dataclass
class _Lists:
    """The n-best lists of a split, and their features."""

    pairs: ParallelText
    """The pairs as they are read: with tags and context."""
    text: ParallelText
    """The pairs without the tags of languages."""
    candidates: list[list[Translation]]
    values: list[Floats]
    tgt_lang: str
    scoring: ScoringConfig
    """The rules of the scores, those of the run."""

    @classmethod
    def of(cls, reranker: Reranker, cfg: RerankConfig, named: bool, split: Split) -> _Lists:
        """Translate and score a split."""
        run = reranker.run
        text = evaluation_text(run.directory, run.cfg, cfg.data, split, named=named)
        _, tgt = reranker.direction
        if tag := cfg.data.tags.get(tgt):  # only the lines in this direction
            rows = [i for i, line in enumerate(text.src) if line.startswith(f"{tag} ")]
            further = [[lines[i] for i in rows] for lines in text.references]
            text = ParallelText([text.src[i] for i in rows], [text.tgt[i] for i in rows], further)
            if not rows:
                raise UserError(
                    f"the {split.value} split has no pair with the target {tgt}; name a corpus that has "
                    "some: data=..."
                )
        refs, more = current_of_each(text.tgt), list(map(current_of_each, text.references))
        pairs, text = text, ParallelText(list(untagged(text.src)), refs, more)
        candidates = reranker.candidates(text.src, warn)
        values = reranker.values(text.src, candidates, warn)
        return cls(pairs, text, candidates, values, tgt, run.cfg.scoring)

    def scores(self, cfg: RerankConfig, places: Iterable[int]) -> Scores:
        """Return the scores of the candidates that are at `places` in their lists."""
        hyps = [several[place].text for several, place in zip(self.candidates, places, strict=True)]
        rules: dict[str, Any] = {"more_refs": self.text.references, "scoring": self.scoring}
        sources = current_of_each(list(without_front(self.text.src)))
        return score_text(sources, hyps, self.text.tgt, cfg.metrics, tgt_lang=self.tgt_lang, **rules)

    @property
    def firsts(self) -> list[int]:
        """The places of the translations that the search prefers."""
        return [0] * len(self.candidates)


def _tune(cfg: RerankConfig, lists: _Lists, file: Path, facts: dict[str, Any], log: Log) -> None:
    """Tune weights on the validation split, and store them."""
    texts = [[candidate.text for candidate in several] for several in lists.candidates]
    references = [lists.text.tgt, *lists.text.references]
    weights = tuned(
        lists.values, texts, references, cfg.tune_for, lists.tgt_lang, cfg.tuning_seed, lists.scoring
    )
    before = lists.scores(cfg, lists.firsts).values
    after = lists.scores(cfg, chosen(lists.values, weights)).values
    log(f"{score_line('validation', before)}  as found")
    log(f"{score_line('validation', after)}  reranked; the weights are tuned on it")
    write_json(
        file, {"weights": weights.tolist(), "facts": _facts(cfg, facts), "before": before, "after": after}
    )
    log(f"written     {file}")


def _reported(
    cfg: RerankConfig, lists: _Lists, weights: Floats, mark: str, facts: dict[str, Any]
) -> dict[str, Any]:
    """Print the scores of a split before and after reranking, store the latter, return both."""
    split, directory = cfg.data.scored_split.value, RunDirectory(Path(cfg.runs[0]))
    before, after = lists.scores(cfg, lists.firsts), lists.scores(cfg, chosen(lists.values, weights))
    print(f"{score_line(split, before.values)}  as found")
    print(f"{score_line(split, after.values)}  reranked")
    for name, signature in after.signatures.items():
        print(f"signature   {name}|{signature}")
    name = f"{split}-rerank-{mark}"
    file, record = directory.hypotheses / f"{name}.{lists.tgt_lang}", directory.evaluations / f"{name}.json"
    write_lines(file, after.hypotheses)
    stored = {
        "set": split,
        "split": split,
        "runs": cfg.runs,
        "weights": facts,
        "changed": {"scorers": cfg.scorers} | changed_settings(cfg, load_run(cfg.runs[0])),
        "data": to_plain(cfg.data),
        "decoding": to_plain(cfg.decoding),
        "metrics": cfg.metrics,
        **scored_fields(lists.pairs, after, str(file.relative_to(directory.path))),
    }
    write_json(record, stored)
    print(f"stored      {record}")
    print(f"written     {file}")
    return {split: after.values, f"{split} as found": before.values, "signatures": after.signatures}


def _facts(cfg: RerankConfig, weights_of_run: dict[str, Any]) -> dict[str, Any]:
    """Return all that tuned weights depend on."""
    data = {key: value for key, value in to_plain(cfg.data).items() if key != "scored_split"}
    return {
        **weights_of_run,
        "scorers": [identify_checkpoint(scorer)[1][:16] for scorer in cfg.scorers],
        "tgt": cfg.tgt,
        **({} if cfg.domain is None else {"domain": cfg.domain}),
        "features": VERSION,
        "tune_for": cfg.tune_for,
        "scoring": to_plain(load_run(cfg.runs[0]).scoring),
        "tuning_seed": cfg.tuning_seed,
        "data": data,
        **{key: value for key, value in search_settings(cfg.decoding).items() if key not in OF_FILES},
    }


def _weights_file(cfg: RerankConfig, weights_of_run: dict[str, Any]) -> Path:
    mark = hashlib.sha256(repr(_facts(cfg, weights_of_run)).encode()).hexdigest()[:8]
    return Path(cfg.runs[0]) / "rerank" / f"{mark}.json"


def _stored(file: Path, reranker: Reranker) -> Floats:
    """Return the stored weights; raise `UserError` if there is not one for each feature."""
    weights = read_json(file, {"weights": list[float]})["weights"]
    if len(weights) != len(reranker.names):
        found = f"{len(weights)} weights for {len(reranker.names)} features"
        raise UserError(f"{file} is damaged: it has {found}; remove it to tune them again")
    if not np.abs(weights).max() < LARGEST:  # nor is it NaN
        raise UserError(
            f"{file} is damaged: a weight is no number below {LARGEST:g}; remove it to tune again"
        )
    return np.array(weights)


def _reranker(cfg: RerankConfig) -> Reranker:
    scorers = [open_run(scorer, runtime_cfg=cfg.runtime) for scorer in cfg.scorers]
    return Reranker(open_runs(cfg), scorers, cfg.decoding, cfg.tgt, cfg.domain)


def _open_answers(cfg: RerankConfig) -> Answers:
    reranker = _reranker(cfg)
    weights = _stored(_weights_file(cfg, with_fixed_checkpoints(cfg)[1]), reranker)

    def reranked(lines: list[str], first: int, warn: Log) -> list[str]:
        return reranker.best(lines, weights, warn, first + 1)

    return reranked


def _facts_of_job(cfg: RerankConfig) -> dict[str, Any]:
    file = _weights_file(cfg, with_fixed_checkpoints(cfg)[1])
    weights = read_json(file, {"weights": list[float]})["weights"]
    settings = search_settings(cfg.decoding)
    return {
        "scorers and search": file.stem,
        "weights": [f"{weight:.6g}" for weight in weights],
        **{key: settings[key] for key in OF_FILES},
    }


RERANKED = LineWork("translated and reranked", _open_answers, _facts_of_job)
