"""The wiring of `nmt train`: what it refuses before the first update."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nmt import kernels
from nmt.cli import main
from tests.verbs.test_debug import TINY


def test_a_format_of_search_that_this_machine_lacks_is_refused_before_the_first_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    with kernels.disabled():
        command = [*TINY, f"run={tmp_path / 'run'}", "runtime.kernels=false", "decoding.precision=int8"]
        assert main(command) == 2
    assert "decoding.precision=int8 needs a torch with oneDNN" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.safetensors"))
