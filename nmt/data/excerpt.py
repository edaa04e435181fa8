"""The first pairs of each split as files of their own, for a look at a training that takes no time.

Whatever the source is, the excerpt is plain text: tags that the source puts in front of lines are part of it,
and training pairs are repaired.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from nmt.data import filter_table, sources
from nmt.data.files import FilesData, TextData
from nmt.data.pairs import DataConfig, PairStream, Split
from nmt.files import write_lines

NOT_TAKEN = ("name", "streaming", "fixers", "key_prefix")
LOOKED_AT = 500
"""Pairs of a split to score among which the shortest are chosen."""
Pair = tuple[str, str]


class Excerpt(NamedTuple):
    """Files with some pairs of each split."""

    data: DataConfig
    """Config that reads the files."""
    num_pairs: int
    """Training pairs in the files."""
    is_whole: bool
    """Whether there are no more training pairs."""
    left_out: Sequence[str] = ()
    """Filters that are left out, because they read something for each pair of the corpus."""


def excerpt(cfg: DataConfig, folder: Path, *, most_pairs: int, most_scored: int) -> Excerpt:
    """Write the first `most_pairs` training pairs and the `most_scored` shortest pairs of the other splits.

    The other splits are validation and the one that `scored_split` names; of several training corpora, each
    gives as many pairs.

    Raises:
        UserError: a split cannot be read.
    """
    streams = list(sources.training_streams(cfg).values())
    heads = [list(itertools.islice(_pairs(stream), most_pairs // len(streams) + 1)) for stream in streams]
    is_whole = all(len(head) <= most_pairs // len(streams) for head in heads)
    pairs = [pair for head in heads for pair in head[: most_pairs // len(streams)]]
    _write(folder / "train", pairs)
    for split in {Split.validation, cfg.scored_split} - {Split.train}:
        read = itertools.chain.from_iterable(map(_pairs, sources.streams(cfg, split).values()))
        first = list(itertools.islice(read, LOOKED_AT))
        found = [pair for pair in first if all(map(str.strip, pair))] or first
        found = found if cfg.has_source else list(itertools.islice(_pairs(sources.stream(cfg, split)), 200))
        scored = sorted(found, key=lambda pair: len(pair[0] + pair[1]))[:most_scored]
        _write(folder / split.value, scored if cfg.has_source else found)
    names = {
        split.value: _place(cfg, folder / split.value)
        for split in Split
        if (folder / f"{split.value}.tgt").exists()
    }
    rows = filter_table.parsed(f"{cfg.key_prefix}.filters", cfg.filters, streaming=cfg.streaming)
    left_out = [row.name for row in rows if row.counts_pairs]
    kept = [entry for entry, row in zip(cfg.filters, rows, strict=True) if not row.counts_pairs]
    return Excerpt(dataclasses.replace(_config(cfg, names), filters=kept), len(pairs), is_whole, left_out)


def _pairs(stream: PairStream) -> Iterator[Pair]:
    for chunk in stream.chunks():
        yield from zip(chunk.src, chunk.tgt, strict=True)


def _write(path: Path, pairs: Iterable[Pair]) -> None:
    src, tgt = zip(*pairs, strict=True)
    write_lines(path.with_name(f"{path.name}.src"), src)
    write_lines(path.with_name(f"{path.name}.tgt"), tgt)


def _place(cfg: DataConfig, path: Path) -> str:
    return f"{path}.{{lang}}" if cfg.has_source else f"{path}.tgt"


def _config(cfg: DataConfig, places: dict[str, Any]) -> DataConfig:
    kept: dict[str, Any] = {
        field.name: getattr(cfg, field.name) for field in fields(DataConfig) if field.name not in NOT_TAKEN
    }
    if not cfg.has_source:
        return TextData(**kept, **places)
    return FilesData(**kept, **places, src_column="src", tgt_column="tgt", documents=False)
