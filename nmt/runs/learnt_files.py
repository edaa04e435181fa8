"""Files that a training learns from beside its data: links between words, vectors of words.

A record in the run in training has the SHA-256 of each, so that the run goes on with no other, and is
reproduced with no other. Vectors are read before the first update alone: a run that goes on may lack them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nmt.config.roots import TrainConfig
from nmt.config.starting import OF_WORDS
from nmt.data.reading.lines import open_bytes, require_file
from nmt.errors import Problems, UserError
from nmt.files import digest_of_stream, path_of, read_json, write_json
from nmt.runs.directory import RunDirectory
from nmt.training.objectives.configs import GuidedAlignmentConfig

ALIGNMENTS = "objective.alignments"


def keep_files(run: RunDirectory, cfg: TrainConfig) -> None:
    """Record the files that a training that begins learns from, if any.

    Raises:
        UserError: a training that goes on has learnt from others, or one that begins lacks some.
    """
    require_same_files(run, cfg)
    begins, problems = not run.checkpoints.steps(), Problems()
    for key, file in _named(cfg):
        if begins or (key == ALIGNMENTS and not _record(run, key).is_file()):  # of an earlier version
            with problems.gathered():
                write_json(_record(run, key), {"sha256": _digest(key, file)})
    problems.refuse()


def require_same_files(run: RunDirectory, cfg: TrainConfig) -> None:
    """Raise `UserError` when a file is not that from which `run`, which has checkpoints, has learnt.

    Earlier versions recorded none.
    """
    for key, file in _named(cfg) if run.checkpoints.steps() else ():
        if not _record(run, key).is_file() or (key != ALIGNMENTS and not file.is_file()):
            continue
        then, now = read_json(_record(run, key), {"sha256": str})["sha256"], _digest(key, file)
        if then != now:
            raise UserError(
                f"{key}={file} has changed since {run.path} began: its SHA-256 was {then[:16]}... then and "
                f"is {now[:16]}... now; restore the file{run.or_anew}"
            )


def _named(cfg: TrainConfig) -> Iterator[tuple[str, Path]]:
    """Yield each file with its key."""
    if isinstance(cfg.objective, GuidedAlignmentConfig) and cfg.objective.alignments is not None:
        yield ALIGNMENTS, path_of(cfg.objective.alignments)
    for key in OF_WORDS:
        if (file := getattr(cfg.init, key)) is not None:
            yield f"init.{key}", path_of(file)


def _record(run: RunDirectory, key: str) -> Path:
    """Return the file of a run: alignments.json, src_embeddings.json or tgt_embeddings.json."""
    return run.path / f"{key.rpartition('.')[2]}.json"


def _digest(key: str, file: Path) -> str:
    """Return the SHA-256 of the text, so that the file may be compressed later."""
    require_file(file, key)
    with open_bytes(file, key) as text:
        return digest_of_stream(text)
