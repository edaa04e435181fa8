"""The environment: every fact is told, and folders that cannot be used are findings."""

from __future__ import annotations

from pathlib import Path

import pytest

from nmt.doctor import environment
from nmt.doctor.findings import Finding, Severity

ROOT = Path(__file__).resolve().parents[2]


def test_facts_are_told_and_nothing_stays_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nmt.kernels.problem", lambda: "there is no C++ compiler; install g++")
    monkeypatch.setattr(environment, "OUTPUTS", Path("outputs"))
    facts, findings = environment.environment()
    names = [fact.name for fact in facts]
    assert {"nmt", "Python", "libraries", "cores", "kernels in C++", "outputs folder", "limits"} <= {*names}
    assert [one.text for one in findings if one.kind == "kernels"] == [
        "no kernels in C++ on CPU: there is no C++ compiler; install g++"
    ]
    assert not any(one.severity is Severity.breaks for one in findings)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_breaks_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        environment,
        "probe",
        lambda folder: "cannot be written: Permission denied" if folder == tmp_path else "",
    )
    monkeypatch.setattr(environment, "OUTPUTS", tmp_path / "new" / "outputs")
    (found,) = [one for one in environment._folders() if getattr(one, "kind", "") == "outputs_folder"]
    assert isinstance(found, Finding)
    assert found.severity is Severity.breaks
    assert found.text == f"{tmp_path}: cannot be written: Permission denied"
    assert found.remedy == "start in a folder that can be written, or set run=..."


def test_a_file_in_place_of_a_folder_is_told(tmp_path: Path) -> None:
    assert environment.probe(tmp_path) == ""
    (tmp_path / "file").touch()
    assert environment.probe(tmp_path / "file").startswith("cannot be written")
