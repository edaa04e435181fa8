"""The environment: every fact is told, and folders that cannot be used are findings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from nmt.disk_cache import can_be_written
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


def test_without_a_home_folder_the_other_folders_are_still_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NMT_CACHE", raising=False)
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    found, *others = environment._folders()
    assert isinstance(found, Finding)
    assert (found.severity, found.remedy) == (Severity.costs, "set NMT_CACHE to a folder")
    assert {"outputs folder", "temporary folder"} <= {getattr(one, "name", "") for one in others}
    assert not can_be_written()


def test_a_gpu_that_is_full_or_broken_is_told_and_the_next_one_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def mem_get_info() -> tuple[int, int]:
        if chosen[-1] == 0:
            raise RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later")
        return 8 << 30, 8 << 30

    @contextlib.contextmanager
    def device(number: int) -> Iterator[None]:
        chosen.append(number)
        yield

    chosen = list[int]()
    stand_ins: dict[str, object] = {
        "is_available": lambda: True,
        "device_count": lambda: 2,
        "device": device,
        "mem_get_info": mem_get_info,
        "is_bf16_supported": lambda including_emulation: True,
        "get_device_name": lambda number: "GPU",
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(f"torch.cuda.{name}", stand_in)
    broken, fact = environment._devices()
    assert isinstance(broken, Finding)
    assert broken.text.startswith("cuda:0 cannot be used: CUDA error: out of memory")
    assert "\n" not in broken.text
    assert isinstance(fact, environment.Fact)
    assert (fact.name, fact.value) == ("cuda:1", "GPU, 8.0 GB, 8.0 GB free, bf16")


def test_a_file_in_place_of_a_folder_is_told(tmp_path: Path) -> None:
    assert environment.probe(tmp_path) == ""
    (tmp_path / "file").touch()
    assert environment.probe(tmp_path / "file").startswith("cannot be written")
