"""The first pairs of each split as files of their own, for a look at a training that takes no time.

Whatever the source is, the excerpt is plain text, whose training pairs are repaired.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from nmt.data import filter_table
from nmt.data.configs import DataConfig
from nmt.data.parallel_text import PairStream, Split
from nmt.data.reading import sources
from nmt.data.reading.files import FilesData, TextData
from nmt.files import write_lines

NOT_TAKEN = ("name", "streaming", "fixers", "key_prefix")
SIDES = ("name", "src", "tgt", "src_column", "tgt_column", "documents")
"""Keys of a corpus in plain text besides the places of its splits."""
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

    The other splits are validation and the one that `scored_split` names. Several corpora give as many pairs
    each, and stay several; a mixture has no stages.

    Raises:
        UserError: a split cannot be read.
    """
    splits = {Split.validation, cfg.scored_split} - {Split.train}
    if not isinstance(cfg, sources.MixtureData):
        return _of_corpus(cfg, folder, splits, most_pairs, most_scored)
    corpora, found = dict[str, dict[str, Any]](), list[Excerpt]()
    parts, scored = cfg.parts(Split.train), {split: cfg.parts(split) for split in splits}
    for number, (name, part) in enumerate(parts.items()):
        own = {split for split, of_split in scored.items() if name in of_split}
        most = max(1, most_scored // max(map(len, scored.values()), default=1))
        place = folder / f"corpus_{number}"
        place.mkdir()
        found.append(_of_corpus(part, place, own, most_pairs // len(parts), most))
        kept = {key: cfg.corpora[name][key] for key in sources.MIXED if key in cfg.corpora[name]}
        read = {key: getattr(found[-1].data, key) for key in (*SIDES, *(split.value for split in Split))}
        corpora[name] = kept | {key: value for key, value in read.items() if value is not None}
        corpora[name] |= {"fixers": [], "filters": []}  # which may drop all of so few pairs
    filters, left_out = _for_few(cfg)
    data = dataclasses.replace(
        cfg,
        corpora=corpora,
        scored=list(dict.fromkeys(name for of_split in scored.values() for name in of_split)),
        filters=filters,
        fixers=[],
        stages=[],
        streaming=False,
    )
    whole = all(one.is_whole for one in found)
    return Excerpt(data, sum(one.num_pairs for one in found), whole, left_out)


def _of_corpus(
    cfg: DataConfig, folder: Path, splits: Iterable[Split], most_pairs: int, most_scored: int
) -> Excerpt:
    """Write the excerpt of one corpus, with `splits` besides its training pairs."""
    head = list(itertools.islice(_pairs(sources.stream(cfg, Split.train)), most_pairs + 1))
    _write(folder / "train", head[:most_pairs])
    for split in splits:
        first = list(itertools.islice(_pairs(sources.stream(cfg, split)), LOOKED_AT))
        found = [pair for pair in first if all(map(str.strip, pair))] or first
        found = found if cfg.has_source else first[:200]
        scored = sorted(found, key=lambda pair: len(pair[0] + pair[1]))[:most_scored]
        _write(folder / split.value, scored if cfg.has_source else found)
    names = {
        split.value: _place(cfg, folder / split.value)
        for split in Split
        if (folder / f"{split.value}.tgt").exists()
    }
    filters, left_out = _for_few(cfg)
    data = dataclasses.replace(_config(cfg, names), filters=filters)
    return Excerpt(data, len(head[:most_pairs]), len(head) <= most_pairs, left_out)


def _for_few(cfg: DataConfig) -> tuple[list[Any], list[str]]:
    """Return the filters of a corpus that go with a part of it, and the names of the others."""
    rows = filter_table.parsed(f"{cfg.key_prefix}.filters", cfg.filters, streaming=cfg.streaming)
    others = [row.counts_pairs or getattr(row, "earlier", False) for row in rows]
    kept = [entry for entry, is_other in zip(cfg.filters, others, strict=True) if not is_other]
    return kept, [row.name for row, is_other in zip(rows, others, strict=True) if is_other]


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
