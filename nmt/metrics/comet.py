"""COMET (Rei et al. 2020), computed by another Python, whose packages do not fit beside those of this one.

The other Python runs `comet_script.py` and answers in JSON. What it is and which model it loads are facts of
the machine and not of a training: no config of a stranger can start a program or load a pickle.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nmt.errors import UserError
from nmt.files import misfits, parse_json

PYTHON, MODEL = "NMT_COMET_PYTHON", "NMT_COMET_MODEL"
"""Environment variables: the Python that has COMET, and the name or checkpoint file of a model."""
DEFAULT_MODEL = "Unbabel/wmt22-comet-da"
SCRIPT = Path(__file__).with_name("comet_script.py")
ANSWER = {"version": str, "scores": list[float]}
MAX_ANSWER_BYTES = 1 << 28


class SentenceScores(NamedTuple):
    """The scores of translations by COMET, and how they were computed."""

    values: list[float]
    """100 times the COMET of each translation."""
    signature: str

    @property
    def mean(self) -> float:
        """The score of all translations."""
        return sum(self.values) / len(self.values)


def sentence_scores(
    sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]
) -> SentenceScores:
    """Return the score of each translation; what occurs several times is scored once, and so equally."""
    lines = list(zip(sources, hypotheses, references, strict=True))
    distinct = list(dict.fromkeys(lines))
    rows = [{"src": src, "mt": hyp, "ref": ref} for src, hyp, ref in distinct]
    answer = _asked({"model": model(), "data": rows})
    known = dict(zip(distinct, answer["scores"], strict=True))
    return SentenceScores([100.0 * float(known[row]) for row in lines], _signature(answer))


def model() -> str:
    """Return the name or the checkpoint file of the model that the environment names."""
    return os.environ.get(MODEL, DEFAULT_MODEL)


def model_in(signature: str) -> str:
    """Return the model that a signature of COMET names; nothing for that of another metric."""
    return dict(part.partition(":")[::2] for part in signature.split("|")).get("model", "")


def require_model(name: str) -> None:
    """Raise `UserError` unless the environment names a model, too: a signature may be a stranger's."""
    if name != model():
        raise UserError(
            f"it is that of the model {name}, but here the model is {model()}; if you trust the first, "
            f"set {MODEL}={shlex.quote(name)}"
        )


def signature() -> str:
    """Return the signature of scores that would be computed now; no model is loaded.

    Raises:
        UserError: the other Python cannot import COMET.
    """
    return _signature(_asked({"model": None, "data": []}))


def _signature(answer: dict[str, Any]) -> str:
    return f"nrefs:1|model:{model()}|scale:100|version:{answer['version']}"


def _asked(question: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of the other Python."""
    python = os.environ.get(PYTHON)
    if not python:
        raise UserError(
            f"metrics has comet, which runs in an environment of its own: python -m venv comet && "
            f"comet/bin/pip install unbabel-comet 'setuptools<81', then set {PYTHON}=$PWD/comet/bin/python"
        )
    from nmt.memory import release  # which imports torch

    release()  # the other process uses the same GPU
    try:
        done = subprocess.run(
            [python, "-I", str(SCRIPT)], input=json.dumps(question).encode(), capture_output=True
        )
    except OSError as error:
        raise UserError(f"{PYTHON}={python} cannot be started: {error.strerror}") from error
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no reason was given"]
        raise UserError(
            f"COMET in {PYTHON}={python} ended with code {done.returncode}: {lines[-1].strip()}; "
            f"{MODEL}={model()} is the model"
        )
    try:
        answer = parse_json(done.stdout, MAX_ANSWER_BYTES)
        if wrong := misfits(answer, ANSWER):
            raise ValueError(", ".join(wrong))
        wanted, finite = len(question["data"]), sum(map(math.isfinite, answer["scores"]))
        if not wanted == finite == len(answer["scores"]):
            raise ValueError(f"it has {finite:,} finite scores for {wanted:,} translations")
    except ValueError as error:
        raise UserError(f"{PYTHON}={python} gives no answer of COMET: {error}") from error
    return answer
