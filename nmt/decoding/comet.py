"""COMET (Rei et al. 2020), computed by another Python, whose packages do not fit beside those of this one.

The other Python runs `comet_script.py` and answers in JSON. What it is and which model it loads are facts of
the machine and not of a training: no config of a stranger can start a program or load a pickle.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nmt.errors import UserError
from nmt.files import parse_json

PYTHON, MODEL = "NMT_COMET_PYTHON", "NMT_COMET_MODEL"
"""Environment variables: the Python that has COMET, and the name or checkpoint file of a model."""
DEFAULT_MODEL = "Unbabel/wmt22-comet-da"
SCRIPT = Path(__file__).with_name("comet_script.py")


def score(sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    """Return 100 times the mean COMET of the translations, and a signature with its version and its model."""
    rows = [
        {"src": src, "mt": mt, "ref": ref}
        for src, mt, ref in zip(sources, hypotheses, references, strict=True)
    ]
    model = os.environ.get(MODEL, DEFAULT_MODEL)
    answer = _asked({"model": model, "data": rows})
    return 100.0 * float(answer["score"]), f"nrefs:1|model:{model}|scale:100|version:{answer['version']}"


def require() -> None:
    """Raise `UserError` unless the other Python can import COMET; no model is loaded."""
    _asked({"model": None, "data": []})


def _asked(question: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of the other Python."""
    python = os.environ.get(PYTHON)
    if not python:
        raise UserError(
            f"metrics has comet, which runs in an environment of its own: python -m venv comet && "
            f"comet/bin/pip install unbabel-comet 'setuptools<81', then set {PYTHON}=$PWD/comet/bin/python"
        )
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
            f"{MODEL}={os.environ.get(MODEL, DEFAULT_MODEL)} is the model"
        )
    try:
        return parse_json(done.stdout)
    except ValueError as error:
        raise UserError(f"{PYTHON}={python} gives no answer of COMET: {error}") from error
