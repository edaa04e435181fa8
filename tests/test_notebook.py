"""The notebook of the docs, run cell by cell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).resolve().parents[1] / "docs" / "notebook.ipynb"
QUICK = {
    '"max_steps": 200, "eval_every_steps": 40': '"max_steps": 4, "eval_every_steps": 2, "num_samples": 0'
}


def test_every_cell_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    for slow, quick in QUICK.items():
        assert slow in code
        code = code.replace(slow, quick)
    names: dict[str, Any] = {}
    exec(compile(code, str(NOTEBOOK), "exec"), names)
    assert names["run"].path == Path("outputs/notebook")
    assert names["maps"].cross


def test_outputs_are_small_and_those_of_a_whole_run() -> None:
    assert NOTEBOOK.stat().st_size < 50_000
    outputs = [
        cell["outputs"]
        for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
        if "outputs" in cell
    ]
    assert all(outputs), "a cell shows nothing"
    assert "steps 40 to 200" in json.dumps(outputs)
