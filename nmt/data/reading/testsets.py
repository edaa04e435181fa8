"""Test sets that sacreBLEU knows by name, such as wmt22, downloaded and cached by sacreBLEU itself.

Its cache is $SACREBLEU, by default ~/.sacrebleu: NAME/NAME.SRC-TGT.src, NAME/NAME.SRC-TGT.ref and the like.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nmt.data.configs import DataConfig
from nmt.data.parallel_text import PairStream, ParallelText, Split, chunked, stamp_of_files
from nmt.data.reading.lines import read_lines
from nmt.errors import UserError, suggest


@dataclass
class TestsetData(DataConfig):
    """Test sets of sacreBLEU by name, to score on: they have no training pairs."""

    __test__ = False  # no class of tests

    name: str = "sacrebleu"
    train: str | None = None
    """Always null: test sets are not for training."""
    validation: str | None = None
    """Name of the test set that is scored during training, such as wmt21."""
    test: str | None = None
    """Name of the test set that is scored at the end, such as wmt22."""
    reference: int = 0
    """Reference that is the first, where the test set has several; all of them count."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.train is not None:
            raise UserError(f"{self.key_prefix}.train: test sets of sacreBLEU are not for training")

    def key(self, split: Split) -> str:
        """Return the full config key of the name of a test set."""
        return "testset" if self.key_prefix == "testset" else super().key(split)

    def further_references(self, split: Split) -> list[DataConfig]:
        """Return configs whose target side is one further reference each."""
        count = len(_files(self, split)) - 1
        return [replace(self, reference=(self.reference + number) % count) for number in range(1, count)]


def stream(cfg: TestsetData, split: Split) -> PairStream:
    """Return the source and one reference of a test set, which is downloaded if it is not in the cache."""
    src, *refs = _files(cfg, split)
    if not 0 <= cfg.reference < len(refs):
        raise UserError(
            f"{cfg.key_prefix}.reference must be from 0 to {len(refs) - 1}, but is {cfg.reference}"
        )
    tgt, key = refs[cfg.reference], cfg.key(split)

    def chunks() -> Iterator[ParallelText]:
        sides = [list(read_lines(side, key)) for side in (src, tgt)]
        if len(sides[0]) != len(sides[1]):
            raise UserError(
                f"{key}: {src} has {len(sides[0]):,} lines but {tgt} has {len(sides[1]):,}; "
                f"remove {src.parent}, so that sacreBLEU makes it anew"
            )
        for pairs in chunked(zip(*sides, strict=True)):
            yield ParallelText([src for src, _ in pairs], [tgt for _, tgt in pairs])

    return PairStream(lambda: stamp_of_files([src, tgt], cfg.name), chunks)


def _files(cfg: TestsetData, split: Split) -> list[Path]:
    """Return the file of the source and those of the references.

    Raises:
        UserError: sacreBLEU has no such test set, or cannot download it.
    """
    from sacrebleu.dataset import DATASETS  # takes a while

    key, name, pair = cfg.key(split), cfg.place(split) or "", f"{cfg.src}-{cfg.tgt}"
    if name not in DATASETS:
        raise UserError(f"{key}: sacreBLEU has no test set {name!r}{suggest(name, DATASETS)}")
    testset = DATASETS[name]
    if pair not in testset.langpairs:
        others = [other for other, known in DATASETS.items() if pair in known.langpairs]
        raise UserError(
            f"{key}={name} has no {pair}, only {', '.join(testset.langpairs)}; "
            f"test sets with {pair}: {', '.join(others) or 'none'}"
        )
    try:
        return [Path(testset.get_source_file(pair)), *map(Path, testset.get_reference_files(pair))]
    except (OSError, SystemExit) as error:  # no network; a wrong checksum, of which sacreBLEU has told
        raise _not_there(key, testset, pair, error) from error


def _not_there(key: str, testset: Any, pair: str, error: BaseException) -> UserError:
    """Return the error that names the files that would be read."""
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
    raw = _raw_files(testset.langpairs[pair])
    archives = [testset._get_tarball_filename(url) for url in testset.data]
    return UserError(
        f"{key}={testset.name} cannot be downloaded: {reason}; sacreBLEU reads the folder {testset._outdir}; "
        f"copy that of a machine with a network, made by `sacrebleu -t {testset.name} -l {pair} --echo src`, "
        f"with {', '.join(f'raw/{file}' for file in [*archives, *raw])}"
    )


def _raw_files(entry: Mapping[str, Any] | list[str]) -> list[str]:
    """Return the files of a language pair as the list of sacreBLEU has them."""
    files = [str(entry["path"])] if isinstance(entry, Mapping) else entry
    return [re.sub(r"^\d+:", "", file) for file in files]
