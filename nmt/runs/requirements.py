"""What a training needs besides its data: libraries, files and programs, asked for before it prepares.

Whatever needs an optional library raises the same error when it is used; here all of them are asked at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from nmt import extras
from nmt.config.roots import Task, TrainConfig
from nmt.data import filter_table
from nmt.data.configs import DataConfig
from nmt.data.parallel_text import Split
from nmt.data.reading.compression import require_zstandard
from nmt.data.reading.files import FilesData
from nmt.data.reading.lines import require_file
from nmt.data.reading.sources import set_configs
from nmt.data.text.fixers import fixers_of, require_libraries
from nmt.data.tokens.ready_tokenizers import require_library
from nmt.data.tokens.tokenizer_training import require_kept_symbols
from nmt.errors import Problems
from nmt.files import path_of
from nmt.metrics.scoring import require_computable
from nmt.runs.teachers import require_teachers
from nmt.training.objectives.configs import GuidedAlignmentConfig, MinimumRiskConfig
from nmt.training.tracking.remote_sinks import require_sink


def require_all(cfg: TrainConfig) -> None:
    """Raise one `UserError` with everything that the training, its metrics and its trackers lack here."""
    problems = Problems()
    data = [cfg.data, *set_configs(cfg.sets, cfg.data).values()]
    parts = {**cfg.data.parts(Split.validation), **cfg.data.parts(Split.test)}.values()
    each = [part.tgt for part in parts if cfg.data.tags]
    languages = dict.fromkeys([*(one.scored_language for one in data), *each])
    for language in languages if cfg.task is not Task.language_model else ():
        for name in cfg.metrics:
            with problems.gathered():
                require_computable([name], language, cfg.scoring)
    for rules, key in {cfg.tokenizer.moses_tgt: "moses_tgt", cfg.tokenizer.moses_src: "moses_src"}.items():
        with problems.gathered():
            require_kept_symbols(key, rules, cfg.tokenizer.symbols)
    with problems.gathered():
        require_library(cfg.tokenizer)
    for name in cfg.tracking.sinks:
        with problems.gathered():
            require_sink(name)
    for row in _filters(cfg.data):
        with problems.gathered():
            if extra := filter_table.FILTERS[row.name].extra:
                extras.require(extra, f"{row.key_prefix}: the filter {row.name}")
    fixers = {one.name: one for part in cfg.data.parts(Split.train).values() for one in fixers_of(part)}
    for fixer in fixers.values():
        with problems.gathered():
            require_libraries([fixer])
    further = [file for row in _filters(cfg.data) for file in row.files.values()]
    if isinstance(cfg.objective, GuidedAlignmentConfig) and cfg.objective.alignments is not None:
        further.append(path_of(cfg.objective.alignments))
        with problems.gathered():
            require_file(further[-1], "objective.alignments")
    named = [*(file for one in data for file in _files(one)), *further]
    for file in dict.fromkeys(file for file in named if file.suffix == ".zst" and file.is_file()):
        with problems.gathered():
            require_zstandard(file)
    if isinstance(cfg.objective, MinimumRiskConfig):
        with problems.gathered():
            require_computable([cfg.objective.metric], cfg.data.scored_language, cfg.scoring)
    with problems.gathered():
        require_teachers(cfg)
    problems.refuse()


def _filters(data: DataConfig) -> Iterator[filter_table.FilterConfig]:
    for one in {id(one): one for one in (data, *data.parts(Split.train).values())}.values():
        yield from filter_table.parsed(f"{one.key_prefix}.filters", one.filters)


def _files(data: DataConfig) -> Iterator[Path]:
    """Yield the files that a corpus and its weights may be in, also where these are compressed."""
    for part in data.parts(Split.train).values():
        if isinstance(part, FilesData) and part.weights is not None:
            yield path_of(part.weights)
    for split in Split:
        for part in data.parts(split).values():
            for place in map(os.path.expanduser, part.places(split)):
                for language in (part.src, part.tgt):
                    for path in (place.replace("{lang}", language), f"{place}.{language}"):
                        yield from (Path(path), Path(f"{path}.zst"))
