"""What is packed into a wheel, and what is pinned for the environment of the scripts. No network needed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from email import message_from_bytes
from importlib import metadata
from pathlib import Path

import pytest
from hatchling import build
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import nmt

ROOT = Path(__file__).resolve().parents[1]
BROUGHT_BY_TORCH = re.compile(r"nvidia-|cuda-|triton")


def applies(requirement: Requirement, extra: str = "") -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def pins() -> dict[str, SpecifierSet]:
    """Return the lines of constraints.txt that hold for the running Python."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    wanted = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(pin.name): pin.specifier for pin in wanted if applies(pin)}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)  # the build backend builds the project of the current directory
        return folder / build.build_wheel(str(folder))


@pytest.fixture(scope="module")
def requirements(wheel: Path) -> list[Requirement]:
    """Return the requirements of the wheel, the development tools included."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        fields = message_from_bytes(archive.read(name)).get_all("Requires-Dist", [])
    return [requirement for requirement in map(Requirement, fields) if applies(requirement, "dev")]


def test_the_wheel_holds_the_package_its_configs_and_nothing_else(wheel: Path) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())
    kinds = ("*.py", "*.cpp", "*.h")
    modules = {str(path.relative_to(ROOT)) for kind in kinds for path in (ROOT / "nmt").rglob(kind)}
    configs = {f"nmt/{path.relative_to(ROOT)}" for path in (ROOT / "configs").rglob("*.yaml")}
    bundled = {str(path.relative_to(ROOT)) for path in (ROOT / "nmt/data/reading/bundled").iterdir()}
    described = {name for name in packed if ".dist-info/" in name}
    assert "nmt/configs/train.yaml" in configs
    assert packed - described == modules | configs | bundled | {
        "nmt/py.typed",
        "nmt/attention_views/page.html",
        "nmt/comparison/page.html",
        "nmt/doctor/page.html",
        "nmt/serving/page.html",
    }
    assert any(name.endswith("licenses/LICENSE") for name in described)
    assert wheel.name.startswith(f"nmt-{nmt.__version__}-")


def test_the_command_works_from_an_unpacked_wheel(wheel: Path, tmp_path: Path) -> None:
    """Far from the repository, the package finds the configs that travelled with it."""
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = "import nmt, sys; print(nmt.__file__, file=sys.stderr); from nmt.cli import main; sys.exit(main())"
    result = subprocess.run(
        [sys.executable, "-c", code, "train", "--cfg", "job"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr.splitlines()[0] == str(tmp_path / "site" / "nmt" / "__init__.py")
    assert "max_steps:" in result.stdout


def test_every_direct_requirement_is_pinned_within_its_range(requirements: list[Requirement]) -> None:
    assert {"torch", "hydra-core", "pytest"} <= {requirement.name for requirement in requirements}
    for requirement in requirements:
        [pin] = pins()[canonicalize_name(requirement.name)]
        assert pin.operator == "=="
        assert requirement.specifier.contains(pin.version), f"{requirement} does not allow {pin}"


def test_every_package_that_comes_along_is_pinned(requirements: list[Requirement]) -> None:
    """Follows the requirements of what is installed here: no version is left to the day of installation."""
    pending, seen = [requirement.name for requirement in requirements], set[str]()
    while pending:
        name = canonicalize_name(pending.pop())
        if name not in seen and not BROUGHT_BY_TORCH.match(name):
            seen.add(name)
            pending += [r.name for r in map(Requirement, metadata.requires(name) or []) if applies(r)]
    assert seen - pins().keys() == set()
