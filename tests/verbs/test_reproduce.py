"""The config of a repetition; `tests/integration/test_reproduce.py` goes through the command."""

from __future__ import annotations

from pathlib import Path

from nmt.files import write_json
from nmt.runs.directory import RunDirectory
from nmt.runtime_config import Precision
from nmt.verbs.reproduce import repetition
from tests.runs.test_directory import config


def test_a_repetition_is_in_the_number_format_of_the_run(tmp_path: Path) -> None:
    run, now = RunDirectory(tmp_path), Path("again")
    assert repetition(config(), run, now).runtime.precision is Precision.auto
    for found in (Precision.fp32, Precision.bf16):
        write_json(tmp_path / "environment.json", {"precision": found.value})
        assert repetition(config(), run, now).runtime.precision is found
        assert repetition(config(), run, now).run == "again"
        stated = config("runtime.precision=fp32")
        assert repetition(stated, run, now).runtime.precision is Precision.fp32
