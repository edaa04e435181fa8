"""Neural machine translation, from sentence pairs to BLEU.

The rooms in import order. Each imports only from those above it, and each room's `__init__` lists its modules
in import order, too; a test reads these lists and checks both:

    errors                Errors that a user may meet, each with its exit code.
    extras                The optional libraries, and the error where one is not there.
    progress              Progress of long work, told to whoever listens.
    signals               Requests to stop, granted in good order or by force.
    checks                Ranges of config values, one sentence for each kind.
    streams               The standard streams of the process.
    files                 Files and folders that appear whole.
    containment           Folders of strangers: no name in them leads out of them.
    temporary             Folders for the time of one block, also of killed processes.
    pages                 HTML pages, and text of strangers inside of them.
    disk_cache            Files kept between runs: entries appear whole and are checked when opened.
    loading               The code that a table names, imported at its first use.
    kernels/              C++ for CPU, built at first use, and its plain twin; no model.
    runtime_config        The config of the runtime, and the number of processes; no torch.
    runtime               Device, threads, seeds, mixed precision.
    memory                Memory that is exhausted, recognised.
    distributed           Several processes that work together, and end together.
    data/                 Corpora -> sentence pairs -> ids -> batches; no model.
    metrics/              BLEU and others: translations or labels against references; no model.
    layers/               Blocks that models share; no token id, no text.
    models/               One file a family, and the contract that all of them fulfil.
    training/             The update, its objective and schedule, checkpoints, tracking; no text, no BLEU.
    decoding/             Search over the contract of models; no text, but in minimum Bayes risk.
    translation/          Lines in; translations, scores or labels out; no runs.
    attention_views/      Pictures of attention.
    config/               From the command line to dataclasses, and readable errors.
    runs/                 A run directory, the training that fills it, and what is opened from it.
    exchange/             Models of other programs as runs, and runs in the formats of other programs.
    comparison/           Runs side by side, by their files alone; no weights.
    doctor/               A look at the environment and at a corpus, before anyone trains on it.
    serving/              Trained models behind HTTP, and a page to try them.
    verbs/                One file a verb: wiring only.
    scripting             Training from Python.
    sweeps/               Many trials, each in processes of its own, and their table.
    cli                   `nmt VERB [overrides]`, errors and exit codes.
    __main__              `python -m nmt`.

Shape letters: B sentences, S source length, T target length, D d_model, H heads, K beams, V vocabulary,
N = B * K hypotheses (the beams of a sentence are adjacent: row b * K + k). Batch first everywhere. Masks are
boolean, and True means "may be attended". A step is one update of the weights, counted from 1.

Importing this package costs nothing: the names below load their module, and with it torch, at first use.
"""

from __future__ import annotations

import importlib
import platform
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the names below, for type checkers
    from nmt.data.augment.translation_memory import TranslationMemory as TranslationMemory
    from nmt.data.parallel_text import ParallelText as ParallelText
    from nmt.data.tokens.tokenizer import Tokenizer as Tokenizer
    from nmt.decoding.configs import BeamConfig as BeamConfig
    from nmt.decoding.configs import DecodingConfig as DecodingConfig
    from nmt.decoding.configs import MBRConfig as MBRConfig
    from nmt.decoding.configs import SamplingConfig as SamplingConfig
    from nmt.errors import NmtError as NmtError
    from nmt.errors import TrainingStopped as TrainingStopped
    from nmt.errors import UserError as UserError
    from nmt.models import build_model as build_model
    from nmt.models.base import TranslationModel as TranslationModel
    from nmt.models.configs import EnsembleConfig as EnsembleConfig
    from nmt.runs.opened import Run as Run
    from nmt.runs.opening import ensemble_of as ensemble_of
    from nmt.runs.opening import open_run as open_run
    from nmt.runtime_config import RuntimeConfig as RuntimeConfig
    from nmt.scripting import train as train
    from nmt.training.checkpoint import CheckpointStore as CheckpointStore
    from nmt.translation.requests import Request as Request

__version__ = "0.1.0"

if platform.machine().lower() in ("arm64", "aarch64"):
    # Products of NumPy tell of errors there that did not happen: https://github.com/numpy/numpy/issues/28687
    warnings.filterwarnings("ignore", ".* encountered in matmul", RuntimeWarning, rf"{__name__}\.")

_HOME = {
    "BeamConfig": "decoding.configs",
    "CheckpointStore": "training.checkpoint",
    "DecodingConfig": "decoding.configs",
    "EnsembleConfig": "models.configs",
    "MBRConfig": "decoding.configs",
    "NmtError": "errors",
    "ParallelText": "data.parallel_text",
    "Request": "translation.requests",
    "Run": "runs.opened",
    "RuntimeConfig": "runtime_config",
    "SamplingConfig": "decoding.configs",
    "Tokenizer": "data.tokens.tokenizer",
    "TrainingStopped": "errors",
    "TranslationMemory": "data.augment.translation_memory",
    "TranslationModel": "models.base",
    "UserError": "errors",
    "build_model": "models",
    "ensemble_of": "runs.opening",
    "open_run": "runs.opening",
    "train": "scripting",
}
__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> object:
    """Import a public name from its module when it is first used."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
