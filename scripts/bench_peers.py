"""Install the toolkits that the benchmarks compare with, in environments of their own.

    python scripts/bench_peers.py FOLDER            # all of them
    python scripts/bench_peers.py FOLDER main       # one environment

Every environment has the version of torch that this project runs with. Toolkits whose own limits exclude
that version, or each other, are installed without their dependencies, which are then listed here. An
environment that exists is added to.
"""

from __future__ import annotations

import argparse
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
    torch: str | None = None
    """Version of torch, for an environment that runs with no other."""


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
}


def commands(name: str, folder: Path) -> list[list[str]]:
    """Return the commands that make the environment `name` in `folder`, in order."""
    wanted = ENVIRONMENTS[name]
    home = folder / name
    install = [str(home / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check"]
    # The local part of a version, such as +cpu, names one index; another index does not have it.
    pinned = f"torch=={wanted.torch or torch.__version__.partition('+')[0]}"
    constraints = folder / f"{name}.txt"
    constraints.write_text(f"{pinned}\n", encoding="utf-8")
    steps = [[sys.executable, "-m", "venv", str(home)]] if not (home / "bin" / "python").exists() else []
    steps.append([*install, pinned, "numpy"])
    steps.append([*install, "--constraint", str(constraints), *wanted.packages])
    if wanted.alone:
        steps.append([*install, "--no-deps", *wanted.alone])
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
            code = subprocess.run(command).returncode
            if code:
                sys.exit(code)


if __name__ == "__main__":
    main()
