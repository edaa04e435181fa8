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
from nmt.data.compression import require_zstandard
from nmt.data.files import FilesData
from nmt.data.pairs import DataConfig, Split
from nmt.data.sources import set_configs
from nmt.data.tokenizer_training import require_moses
from nmt.decoding.metrics import require_computable
from nmt.errors import Problems
from nmt.training.trackers import require_sink


def require_all(cfg: TrainConfig) -> None:
    """Raise one `UserError` with everything that the training, its metrics and its trackers lack here."""
    problems = Problems()
    data = [cfg.data, *set_configs(cfg.sets, cfg.data).values()]
    languages = dict.fromkeys(one.scored_language for one in data)
    for language in languages if cfg.task is not Task.language_model else ():
        for name in cfg.metrics:
            with problems.gathered():
                require_computable([name], language, cfg.scoring)
    for rules in dict.fromkeys([cfg.tokenizer.moses_src, cfg.tokenizer.moses_tgt]):
        with problems.gathered():
            if rules:
                require_moses(rules)
    for name in cfg.tracking.sinks:
        with problems.gathered():
            require_sink(name)
    for row in _filters(cfg.data):
        with problems.gathered():
            if extra := filter_table.FILTERS[row.name].extra:
                extras.require(extra, f"{row.key_prefix}: the filter {row.name}")
    for file in dict.fromkeys(file for one in data for file in _zstandard_files(one)):
        with problems.gathered():
            require_zstandard(file)
    problems.refuse()


def _filters(data: DataConfig) -> Iterator[filter_table.FilterConfig]:
    for one in {id(one): one for one in (data, *data.parts(Split.train).values())}.values():
        yield from filter_table.parsed(f"{one.key_prefix}.filters", one.filters)


def _zstandard_files(data: DataConfig) -> Iterator[Path]:
    """Yield the files of a corpus, and of its weights, whose names end in .zst; others are told when read."""
    for part in data.parts(Split.train).values():
        if isinstance(part, FilesData) and part.weights is not None:
            file = Path(os.path.expanduser(part.weights))
            if file.suffix == ".zst" and file.is_file():
                yield file
    for split in Split:
        for part in data.parts(split).values():
            place = os.path.expanduser(part.place(split) or "")
            for language in (part.src, part.tgt):
                for path in (place.replace("{lang}", language), f"{place}.{language}"):
                    for file in (Path(path), Path(f"{path}.zst")):
                        if file.suffix == ".zst" and file.is_file():
                            yield file
