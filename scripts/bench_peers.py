"""Install the toolkits that the benchmarks compare with, in environments of their own.

    python scripts/bench_peers.py FOLDER            # all of them
    python scripts/bench_peers.py FOLDER main       # one environment

Every environment that needs torch has the version that this project runs with. Toolkits whose own limits
exclude that version, or each other, are installed without their dependencies, which are then listed here. An
environment that exists is added to.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import torch


class Environment(NamedTuple):
    """One virtual environment."""

    packages: tuple[str, ...]
    """Packages installed with their dependencies; none may bring another torch."""
    alone: tuple[str, ...] = ()
    """Packages installed without their dependencies."""
    tools: tuple[str, ...] = ()
    """What must be there to install the others."""
    python: str | None = None
    """Version of Python, for toolkits that run with no newer one."""


ENVIRONMENTS = {
    "main": Environment(
        packages=(
            "transformers==5.23.0",
            "ctranslate2==4.8.5",
            "sentencepiece",
            "numpy",
            # Imports of Eole and OpenNMT-py on the way to a training.
            "configargparse",
            "pydantic",
            "pyonmttok",
            "pyyaml",
            "rich",
            "sacrebleu",
            "safetensors",
            "six",
            "tensorboard",
        ),
        alone=("eole==0.5.3", "OpenNMT-py==3.5.1"),
    ),
    # JoeyNMT requires an old protobuf, which others should not share, and linters that it never imports.
    "joeynmt": Environment(
        packages=(
            "importlib_metadata",
            "matplotlib",
            "packaging",
            "protobuf<3.21",
            "pyyaml",
            "sacrebleu",
            "sentencepiece",
            "subword-nmt",
            "tensorboard",
            "tqdm",
        ),
        alone=("joeynmt==2.3.0",),
    ),
    # The newest fairseq is of 2022. Its source distribution lacks C++ files that its set-up compiles unless
    # it runs at Read the Docs; pip 24.1 refuses the metadata of its OmegaConf, and Python
    # 3.11 its dataclasses.
    "fairseq": Environment(
        packages=(
            "antlr4-python3-runtime==4.8",
            "bitarray",
            "cffi",
            "cython",
            "hydra-core==1.0.7",
            "omegaconf==2.0.6",
            "numpy<2",
            "regex",
            "sacrebleu",
            "tqdm",
        ),
        alone=("fairseq==0.12.2",),
        tools=("pip<24.1", "setuptools<70", "wheel"),
        python="3.10",
    ),
}


def interpreter(version: str | None) -> str:
    """Return the interpreter of a version of Python, by default this one; end the program without it."""
    if version is None:
        return sys.executable
    installed = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python"))
    for found in (shutil.which(f"python{version}"), *map(str, installed)):
        if found and subprocess.run([found, "-c", ""], stderr=subprocess.DEVNULL).returncode == 0:
            return found
    sys.exit(f"Python {version} is needed, but neither python{version} nor one of pyenv is there")


def commands(name: str, folder: Path) -> list[list[str]]:
    """Return the commands that make the environment `name` in `folder`, in order."""
    wanted = ENVIRONMENTS[name]
    home = folder / name
    install = [str(home / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check"]
    steps = []
    if not (home / "bin" / "python").exists():
        steps.append([interpreter(wanted.python), "-m", "venv", str(home)])
    if wanted.tools:
        steps.append([*install, *wanted.tools])
    # The local part of a version, such as +cpu, names one index; another index does not have it.
    pinned = f"torch=={torch.__version__.partition('+')[0]}"
    constraints = folder / f"{name}.txt"
    constraints.write_text(f"{pinned}\n", encoding="utf-8")
    steps.append([*install, pinned, "numpy"])
    steps.append([*install, "--constraint", str(constraints), *wanted.packages])
    if wanted.alone:
        isolated = ["--no-build-isolation"] if wanted.tools else []
        steps.append([*install, "--no-deps", *isolated, *wanted.alone])
    return steps


def main() -> None:
    """Install the environments asked for; end with the exit code of the first step that fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="for example ~/.cache/nmt/bench")
    parser.add_argument("environments", nargs="*", default=list(ENVIRONMENTS), help=", ".join(ENVIRONMENTS))
    args = parser.parse_args()
    unknown = set(args.environments) - ENVIRONMENTS.keys()
    if unknown:
        parser.error(
            f"no such environment: {', '.join(sorted(unknown))}; there are {', '.join(ENVIRONMENTS)}"
        )
    folder = args.folder.expanduser().resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for name in args.environments:
        for command in commands(name, folder):
            print("+", *command, file=sys.stderr, flush=True)
            code = subprocess.run(command, env={**os.environ, "READTHEDOCS": "1"}).returncode
            if code:
                sys.exit(code)


if __name__ == "__main__":
    main()
