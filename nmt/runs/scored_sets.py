"""The named corpora of `sets`, which are scored beside the data of a run, each by itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from nmt.config.roots import TrainConfig
from nmt.data.configs import DataConfig
from nmt.data.parallel_text import ParallelText, Split
from nmt.data.reading import sources
from nmt.data.reading.mixture import tagged
from nmt.decoding import DecodingConfig
from nmt.errors import Log
from nmt.files import write_lines
from nmt.runs.directory import RunDirectory
from nmt.runs.evaluation_text import evaluation_text
from nmt.runs.task import TrainedModel
from nmt.runs.tasks import TASKS, Evaluation
from nmt.translation.evaluate import Scores


class ScoredSet(NamedTuple):
    """A split of a named corpus, to score a model on."""

    name: str
    data: DataConfig
    text: ParallelText


def scored_sets(
    run: RunDirectory, cfg: TrainConfig, sets: Mapping[str, DataConfig], split: Split, *, named: bool = True
) -> Iterator[ScoredSet]:
    """Yield the corpora of `sets` that have `split`, from their copies in the run where these are the same.

    `named` is as in `evaluation_text`. Sources have the tags that the model was trained with.
    """
    for name, data in sets.items():
        if sources.has_split(data, split):
            data.require_known(cfg.data)
            text = evaluation_text(run, cfg, data, split, named=named, name=name)
            if data.tgt in cfg.data.tags and not data.tags:
                text = dataclasses.replace(text, src=list(tagged(text.src, cfg.data.tags[data.tgt])))
            yield ScoredSet(name, data, text)


def keep_sets(run: RunDirectory, cfg: TrainConfig, log: Log) -> None:
    """Copy the corpora of `sets` into the run, so that it can be scored without them."""
    for name, data in sources.set_configs(cfg.sets, cfg.data).items():
        for split in (Split.validation, Split.test):
            if sources.has_split(data, split):
                text = TASKS[cfg.task].examples(cfg).view(sources.load(data, split))
                if text != run.kept_text(split, data, name):
                    run.keep_set(name, split, text, data)
                log(f"{name} {split.value} data: {len(text):,} pairs")
    if cfg.sets:
        run.seal()


class SetEvaluations:
    """The evaluation of a model on one split of each corpus of `sets`."""

    def __init__(self, trained: TrainedModel, run: RunDirectory, split: Split, log: Log):
        self.run, self.split, self.is_main = run, split, trained.world.is_main
        sets = sources.set_configs(trained.cfg.sets, trained.cfg.data)
        found = scored_sets(run, trained.cfg, sets, split)
        self._parts = {one.name: Evaluation(on_set(trained, one.data), one.text, log) for one in found}

    def scores(
        self, decoding: DecodingConfig, metrics: Sequence[str], num_pairs: int | None = None
    ) -> dict[str, Scores]:
        """Return the scores of each corpus as `Evaluation.scores` does; all processes must call this."""
        return {name: part.scores(decoding, metrics, num_pairs) for name, part in self._parts.items()}

    def write(self, found: Mapping[str, Scores], where: str) -> None:
        """Write the translations of each corpus to hypotheses/NAME/`where`.LANGUAGE, in the main process."""
        for name, scores in found.items() if self.is_main else ():
            tgt = self._parts[name].trained.cfg.data.tgt
            write_lines(self.run.hypotheses / name / f"{where}.{tgt}", scores.hypotheses)


def on_set(trained: TrainedModel, data: DataConfig) -> Any:
    """Return the model with `data` in the place of what it was trained on: its language decides the words."""
    return dataclasses.replace(trained, cfg=dataclasses.replace(trained.cfg, data=data))
