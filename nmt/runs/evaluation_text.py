"""The pairs that a run is scored on: its own copy, or the corpus that is named."""

from __future__ import annotations

import dataclasses

from nmt.config.roots import TrainConfig
from nmt.data.configs import DataConfig
from nmt.data.parallel_text import ParallelText, Split
from nmt.data.reading import sources
from nmt.data.reading.augmented import AugmentedData
from nmt.errors import UserError
from nmt.runs.directory import RunDirectory
from nmt.runs.tasks import TASKS


def evaluation_text(
    run: RunDirectory, cfg: TrainConfig, data: DataConfig, split: Split, *, named: bool = True, name: str = ""
) -> ParallelText:
    """Return the pairs of `split`: the copy in the run if `data` is the config of its training.

    With a `name` they are those of `sets`, and `data` is the config of that corpus.

    `named` tells whether the user has chosen the corpus, or trusts the run, whose config names it else.

    Raises:
        UserError: the pairs would be read from where only the config of the run, perhaps a stranger's, says.
    """
    own = sources.set_configs(cfg.sets, cfg.data).get(name) if name else cfg.data
    if own and dataclasses.replace(data, scored_split=own.scored_split) == own and split is not Split.train:
        kept = run.kept_text(split, data, name)
        if kept is not None:
            return kept
    if isinstance(data, AugmentedData):
        return sources.modified(evaluation_text(run, cfg, data.of, split, named=named), data)
    if not named:
        require_trusted(run, cfg, data, split)
    return TASKS[cfg.task].examples(cfg).view(sources.load(data, split))


def require_trusted(run: RunDirectory, cfg: TrainConfig, data: DataConfig, split: Split) -> None:
    """Raise `UserError` if the pairs of `split` are where only the config of the run says."""
    all_own = [cfg.data, *sources.set_configs(cfg.sets, cfg.data).values()]
    if unnamed := data.origins & {place for one in all_own for place in one.origins}:
        places = [place for part in data.parts(split).values() for place in part.places(split)]
        place = next((place for place in places if place in unnamed), min(unnamed))
        raise UserError(
            f"{run.path} has no copy of these {split.value} pairs; its config names {place}, which is "
            "not read or downloaded only because a run says so: add read_corpus=true if you trust the run, "
            f"or name a corpus with data={data.name} and its keys"
        )
