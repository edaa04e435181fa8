"""The table of formats, and the one function that writes the model of a run as a folder.

Every folder has README.md, the card of the model with a program that uses the folder. Those for other
programs have the SentencePiece models, source.spm and target.spm, which a model that finds labels lacks.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from nmt.data.text import casing
from nmt.data.tokens.tokenizer_training import Case
from nmt.errors import TrainingStopped, UserError
from nmt.exchange import to_ctranslate2, to_huggingface, to_run, to_safetensors
from nmt.exchange.configs import ExportConfig, Format
from nmt.exchange.model_card import model_card
from nmt.exchange.shared import SOURCE, TARGET
from nmt.exchange.usage import ctranslate2_program, huggingface_program, run_program, safetensors_program
from nmt.files import FULL, publish, write_atomically
from nmt.runs.opened import Run


class Exporter(NamedTuple):
    """How a format is written, and used."""

    write: Callable[[Run, ExportConfig, Path], None]
    """Writes the model into a folder; raises `UserError` for a misfit."""
    program: Callable[[Run, int], str]
    """Returns a Python program that uses the folder, given the longest text in tokens."""
    needs_nmt: bool = False
    """Whether nmt reads the folder, so that it has the files of the tokenizer as a run has them."""


FORMATS = {
    Format.ctranslate2: Exporter(to_ctranslate2.write, ctranslate2_program),
    Format.huggingface: Exporter(to_huggingface.write, huggingface_program),
    Format.safetensors: Exporter(to_safetensors.write, safetensors_program),
    Format.nmt: Exporter(to_run.write, run_program, needs_nmt=True),
}


def export(run: Run, cfg: ExportConfig) -> Path:
    """Write the folder `cfg.output`, which appears whole or not at all, and return its path.

    Raises:
        UserError: the format cannot hold the model, its library is missing, or the folder cannot be written.
        TrainingStopped: the disk is full.
    """
    cfg.require_free()
    exporter = FORMATS[cfg.format]
    if None in run.tokenizer.kinds and not exporter.needs_nmt:
        raise UserError(
            f"format={cfg.format.value} has SentencePiece models in its folders, but tokenizer.path="
            f"{run.cfg.tokenizer.path} is a tokenizer of the library tokenizers; format=nmt holds any"
        )
    folder = Path(cfg.output)
    draft = folder.with_name(f".tmp-{folder.name}.{os.getpid()}")
    try:
        draft.mkdir(parents=True)
        if not exporter.needs_nmt:
            _write_pieces(draft, run)
        exporter.write(run, cfg, draft)
        longest = run.cfg.model.longest or run.cfg.decoding.max_source_tokens
        card = model_card(run, cfg, exporter.program(run, longest), longest)
        write_atomically(draft / "README.md", card.encode())
        for file in draft.rglob("*"):  # libraries keep some from all others than the owner
            if file.is_file():
                shutil.copymode(draft / "README.md", file)
        cfg.require_free()
        publish(draft, folder)
    except OSError as error:
        if error.errno in FULL:
            raise TrainingStopped(f"cannot write {folder}: the disk is full") from error
        raise UserError(f"cannot write {folder}: {error.strerror}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def _write_pieces(folder: Path, run: Run) -> None:
    """Write the SentencePiece models, and the program that spells capitals, where the run has it."""
    write_atomically(folder / SOURCE, run.tokenizer.src_model)
    if not run.tokenizer.labels:
        write_atomically(folder / TARGET, run.tokenizer.tgt_model)
    if run.cfg.tokenizer.case is Case.markup:  # of the standard library alone
        write_atomically(folder / "casing.py", Path(casing.__file__).read_bytes())
