"""`scripts/nmt` and `scripts/test` on a copy of the scripts, from a fresh clone on.

Only Python is replaced: by a program that notes what it is asked to install instead of installing it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from nmt.config.compose import compose
from nmt.verbs import VERBS

ROOT = Path(__file__).resolve().parents[1]
FAKE_PYTHON = """#!/usr/bin/env bash
case "$*" in
    -V) echo "Python ${FAKE_VERSION:-3.14.0}" ;;
    "-m venv "*) echo "venv" >> "$LOG"; mkdir -p "${@: -1}/bin"; cp -- "$0" "${@: -1}/bin/python" ;;
    "-m pip "*)
        echo "this line is pip's"
        echo "${@:3}" >> "$LOG"
        sleep "${PIP_SECONDS:-0}"
        [ "${BREAKS:-}" != "${@: -1}" ] || exit 1
        for tool in nmt ruff mypy pytest; do cp -- "$TOOL" "${0%/*}/$tool"; done ;;
esac
"""
FAKE_TOOL = """#!/usr/bin/env bash
echo "${0##*/} $* in $PWD: $(cat)"
[ "${BREAKS:-}" != "${0##*/}" ] || exit 3
"""
NEEDED = ("bash", "cat", "dirname", "env", "flock", "readlink", "rm", "sha256sum", "shasum")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return the files of a clone that the set-up reads, and beside them a Python that only pretends."""
    root = tmp_path / "a clone"
    shutil.copytree(ROOT / "scripts", root / "scripts")
    for name in ("constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, root)
    for name, text in (("bin/python3.14", FAKE_PYTHON), ("tool", FAKE_TOOL)):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
    return root


def start(clone: Path, script: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start a script from the folder above the clone."""
    here = clone.parent
    ours = {
        "PATH": f"{here / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "LOG": str(here / "log"),
        "TOOL": str(here / "tool"),
    }
    return subprocess.Popen(
        [str(clone / "scripts" / script), *arguments],
        cwd=here,
        env={**os.environ, "NMT_TORCH_INDEX": "", **ours, **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def call(
    clone: Path, script: str, *arguments: str, stdin: str = "", **variables: str
) -> tuple[int, str, str]:
    """Run a script to its end: exit code, stdout, stderr."""
    process = start(clone, script, *arguments, **variables)
    out, err = process.communicate(stdin, timeout=60)
    return process.returncode, out, err


def installed(clone: Path) -> list[str]:
    """Return the calls of Python so far, without the options that all installations share."""
    common = (
        f"install --disable-pip-version-check --no-input --no-compile --constraint {clone}/constraints.txt "
    )
    return [line.replace(common, "") for line in (clone.parent / "log").read_text().splitlines()]


def packages(clone: Path) -> list[str]:
    """Return a whole installation, in its order: the installer, torch on its own, the rest."""
    rest = f"--quiet --no-build-isolation --editable {clone}[dev]"
    return ["--quiet pip hatchling setuptools", "torch", rest]


def test_a_fresh_clone_is_set_up_and_the_command_takes_over(clone: Path) -> None:
    code, out, err = call(clone, "nmt", "translate", "run=x y", stdin="a sentence\n")
    assert code == 0
    assert out == f"nmt translate run=x y in {clone.parent}: a sentence\n"
    assert "this line is pip's" in err
    assert installed(clone) == ["venv", *packages(clone)]


def test_the_second_command_installs_and_prints_nothing(clone: Path) -> None:
    call(clone, "nmt")
    assert call(clone, "nmt", "train") == (0, f"nmt train in {clone.parent}: \n", "")
    assert installed(clone) == ["venv", *packages(clone)]


@pytest.mark.parametrize("script", ["nmt", "test"])
def test_what_python_compiles_is_kept_below_the_environment_where_it_may_not_lie_elsewhere(
    clone: Path, script: str
) -> None:
    tool = clone.parent / "tool"
    tool.write_text('#!/usr/bin/env bash\necho "${PYTHONDONTWRITEBYTECODE-}:${PYTHONPYCACHEPREFIX-}"\n')
    _, forbidden, _ = call(clone, script, PYTHONDONTWRITEBYTECODE="1", PYTHONPYCACHEPREFIX="")
    assert forbidden.splitlines()[-1] == f":{clone}/.venv/pycache"
    _, usual, _ = call(clone, script, PYTHONDONTWRITEBYTECODE="", PYTHONPYCACHEPREFIX="")
    assert usual.splitlines()[-1] == ":"


def test_the_command_works_through_symbolic_links(clone: Path, tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to(clone / "scripts" / "nmt")
    (clone / "scripts" / "two").symlink_to("../../one")
    code, out, _ = call(clone, "two", "train")
    assert (code, out) == (0, f"nmt train in {clone.parent}: \n")


@pytest.mark.parametrize("name", ["constraints.txt", "pyproject.toml"])
def test_changed_requirements_are_installed_into_the_same_environment(clone: Path, name: str) -> None:
    call(clone, "nmt")
    with (clone / name).open("a") as file:
        file.write("# changed\n")
    call(clone, "nmt")
    assert installed(clone) == ["venv", *packages(clone), *packages(clone)]


def test_another_python_or_another_place_means_another_environment(clone: Path) -> None:
    call(clone, "nmt")
    call(clone, "nmt", FAKE_VERSION="3.14.1")
    assert installed(clone) == ["venv", *packages(clone)] * 2
    moved = clone.rename(clone.parent / "moved")
    call(moved, "nmt", FAKE_VERSION="3.14.1")
    assert installed(moved)[-4:] == ["venv", *packages(moved)]


@pytest.mark.parametrize("at", ["torch", "setuptools"])
def test_an_installation_that_was_cut_off_is_taken_up_again(clone: Path, at: str) -> None:
    code, out, err = call(clone, "nmt", "train", BREAKS=at)
    assert (code, out) == (1, "")
    assert err.endswith("nmt: the set-up did not finish; the same command takes it up again\n")
    done = installed(clone)
    code, out, _ = call(clone, "nmt", "train")
    assert (code, out) == (0, f"nmt train in {clone.parent}: \n")
    assert installed(clone) == done + packages(clone)


@pytest.mark.skipif(
    shutil.which("flock") is None, reason="the scripts take turns with flock, which is not here"
)
def test_two_first_commands_at_once_set_up_once(clone: Path) -> None:
    processes = [start(clone, "nmt", "train", PIP_SECONDS="0.2") for _ in range(2)]
    results = [process.communicate("", timeout=60) for process in processes]
    assert [out for out, _ in results] == [f"nmt train in {clone.parent}: \n"] * 2
    assert installed(clone) == ["venv", *packages(clone)]
    assert sum("nmt: waiting for another set-up" in err for _, err in results) == 1


def test_an_index_for_torch_is_asked_for_torch_alone(clone: Path) -> None:
    call(clone, "nmt", NMT_TORCH_INDEX="https://example.org/cpu")
    first, _, rest = packages(clone)
    assert installed(clone) == ["venv", first, "--extra-index-url https://example.org/cpu torch", rest]


def test_without_a_usable_python_the_error_says_what_to_install(clone: Path, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in NEEDED:
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    code, out, err = call(clone, "nmt", "train", PATH=str(tools))
    assert (code, out) == (2, "")
    assert err.startswith(
        "nmt: no usable Python found; nmt needs Python 3.10 to 3.14 with the venv module, and looked on PATH "
        "for python3.14, python3.13, python3.12, python3.11, python3.10 and python3. Install one "
    )
    assert len(err.splitlines()) == 1


def test_the_test_script_runs_every_stage_and_hands_its_arguments_to_pytest(clone: Path) -> None:
    code, out, _ = call(clone, "test", "-k", "resume")
    commands = [line.split(" in ")[0] for line in out.splitlines() if " in " in line]
    assert code == 0
    assert [command.split()[0] for command in commands] == ["ruff", "ruff", "mypy", "pytest"]
    assert commands[-1].endswith("-k resume")
    assert f"in {clone}: " in out


@pytest.mark.parametrize(("stage", "before"), [("ruff", 1), ("mypy", 3), ("pytest", 4)])
def test_the_test_script_ends_with_the_first_failure(clone: Path, stage: str, before: int) -> None:
    code, out, _ = call(clone, "test", BREAKS=stage)
    assert code == 3
    assert out.count("\n== ") == before


def test_the_kubernetes_job_is_whole() -> None:
    """What the operator, the cluster and nmt would refuse, and the times that have to follow each other."""
    job = yaml.safe_load((ROOT / "scripts" / "kubernetes.yaml").read_text(encoding="utf-8"))
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert list(replicas) == ["Master", "Worker"]
    assert replicas["Master"]["replicas"] == 1
    assert replicas["Master"]["template"] == replicas["Worker"]["template"]
    pod = replicas["Master"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["name"] == "pytorch"  # the operator looks for it
    assert {mount["name"] for mount in container["volumeMounts"]} == {one["name"] for one in pod["volumes"]}
    gpus = container["resources"]["limits"]["nvidia.com/gpu"]
    assert job["spec"]["nprocPerNode"] == gpus
    assert container["command"][-3:] == ["-m", "nmt", "train"]
    [trial] = compose(VERBS["train"], container["args"])
    cfg, run = trial.to_training()
    variables = {one["name"]: one["value"] for one in container["env"]}
    shared = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}["shared"]
    assert Path(variables["NMT_CACHE"]).is_relative_to(shared)
    assert run.is_relative_to(shared)
    launcher = float(variables["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"])
    assert cfg.runtime.grace_seconds < launcher < pod["terminationGracePeriodSeconds"]
