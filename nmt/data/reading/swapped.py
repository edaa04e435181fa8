"""Splits whose sides are the other way round than those of the training pairs, judged by their trigrams."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from nmt.data.configs import ColumnsConfig, DataConfig
from nmt.data.parallel_text import ParallelText, Split
from nmt.data.reading import sources
from nmt.data.reading.files import FilesData, is_table
from nmt.data.reading.side_files import names_of_sides
from nmt.disk_cache import entry_name, open_entry, write_entry

FORMAT_VERSION = 1
"""Increased when the judgement or the format of a cache entry changes."""
MOST_LINES = 5_000
"""Lines of each side that are looked at."""
LEAST_DIFFERENCE = 0.3
"""Nats of a trigram by which each side must fit the other side of the training pairs better than its own."""


def are_swapped(trained: ParallelText, scored: ParallelText) -> bool:
    """Return whether each side of `scored` is like the other side of the pairs that are trained on."""
    known = [_trigrams(side) for side in (trained.src, trained.tgt)]
    found = [_trigrams(side) for side in (scored.src, scored.tgt)]
    if not all(map(sum, (counts.values() for counts in (*known, *found)))):
        return False
    gains = (_cost(found[side], known[side]) - _cost(found[side], known[1 - side]) for side in (0, 1))
    return all(gain > LEAST_DIFFERENCE for gain in gains)


def _trigrams(lines: Sequence[str]) -> Counter[str]:
    text = "\n".join(lines[:MOST_LINES])
    return Counter(map("".join, zip(text, text[1:], text[2:], strict=False)))


def _cost(found: Counter[str], known: Counter[str]) -> float:
    """Return the mean negative log probability of the trigrams `found` among those `known`, smoothed."""
    total = known.total() + len(known) + 1
    costs = (count * math.log(total / (known[trigram] + 1)) for trigram, count in found.items())
    return sum(costs) / found.total()


def swapped_parts(cfg: DataConfig, split: Split, cache: Path) -> list[DataConfig]:
    """Return the corpora of `cfg` in which `split` is the other way round than the training pairs.

    The beginnings of both are read, unless the answer is in the cache.
    """
    pairs = [part for part in cfg.parts(split).values() if part.has_source and not part.has_labels]
    return [part for part in pairs if _is_swapped(part, split, cache)]


def _is_swapped(cfg: DataConfig, split: Split, cache: Path) -> bool:
    both = [sources.stream(cfg, one) for one in (Split.train, split)]
    entry = cache / entry_name("swapped", FORMAT_VERSION, *(source.stamp() for source in both))
    if (known := open_entry(entry)) is not None:
        return bool(known["is_swapped"])
    found = are_swapped(*(next(source.chunks()).part(slice(MOST_LINES)) for source in both))
    write_entry(entry, lambda draft: {"is_swapped": found})
    return found


def way_out(cfg: DataConfig, split: Split) -> str:
    """Return what to do where the sides of a split are in each other's language."""
    if not isinstance(cfg, ColumnsConfig):
        return f"swap {cfg.key_prefix}.src and {cfg.key_prefix}.tgt"
    src, tgt = cfg.sides
    columns = f"{cfg.key_prefix}.src_column={tgt} {cfg.key_prefix}.tgt_column={src}"
    names = f"columns {src} and {tgt}"
    place = os.path.expanduser(next(iter(cfg.places(split)), ""))
    if isinstance(cfg, FilesData) and not is_table(place):
        names = "files {} and {}".format(*names_of_sides(place, (src, tgt)))
    return f"swap the names of the {names}; where all splits are the other way round, or set {columns}"
