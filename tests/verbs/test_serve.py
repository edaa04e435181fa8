"""The wiring of `nmt serve`."""

from __future__ import annotations

from pathlib import Path

import pytest

from nmt.cli import main
from tests.runs.untrained import GPT, untrained


def test_without_its_extra_the_command_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("nmt.extras.find_spec", lambda module: None)
    assert main(["serve", f"run={untrained(tmp_path / 'run')}"]) == 2
    assert "nmt serve needs fastapi and uvicorn: pip install 'nmt[serve]'" in capsys.readouterr().err


def test_a_language_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = untrained(tmp_path / "run", "task=language_model", model=GPT)
    assert main(["serve", f"run={run}"]) == 2
    assert "is a language model and translates nothing" in capsys.readouterr().err
