"""Kernels in C++ for what torch is slow at on CPU: built at first use, then cached; optional everywhere.

    __init__            Builds and loads the library, and says whether it can be used.
    fused               Steps of training in one pass over memory: the kernels, or plain torch.

`training.cpp`, `attention.cpp` and `products.cpp` serve `fused`, `decode.cpp` serves search. Each kernel has
a definition in plain torch, against which it is tested, and which takes over where there is no compiler or
the tensors do not suit the kernel. Nothing here knows a model.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from nmt.disk_cache import cache_dir

FOLDER = Path(__file__).parent
SOURCES = ("training.cpp", "attention.cpp", "products.cpp", "decode.cpp")
HEADERS = ("lanes.h", "tiles.h", "packing.h", "products.h", "heads.h", "dispatch.h", "dropout.h")
FLAGS = ("-O3", "-march=native", "-mprefer-vector-width=512", "-fopenmp", "-fno-math-errno", "-std=c++20")


class _Choice:
    """The choice of this process."""

    wanted = True


def enable(wanted: bool) -> None:
    """Set whether this process may use kernels; by default it may."""
    _Choice.wanted = wanted


@contextlib.contextmanager
def disabled() -> Iterator[None]:
    """Use plain torch while the block runs."""
    before = _Choice.wanted
    enable(False)
    try:
        yield
    finally:
        enable(before)


def load() -> bool:
    """Build the kernels unless they are cached, load them, and return whether this process may use them."""
    return _Choice.wanted and not problem()


def status() -> str:
    """Return in a few words which code runs on CPU, and why."""
    if not _Choice.wanted:
        return "without kernels (runtime.kernels=false)"
    return f"without kernels: {problem()}" if problem() else "with kernels in C++"


def usable(x: Tensor) -> bool:
    """Return whether kernels of search may be given `x`: float32 on CPU, where no gradient is wanted."""
    return x.device.type == "cpu" and x.dtype is torch.float32 and not torch.is_grad_enabled() and load()


def usable_in_training(x: Tensor) -> bool:
    """Return whether kernels of training may be given `x`: float32 or bfloat16 on CPU, gradients on.

    Compiled code uses none of the kernels.
    """
    if x.device.type != "cpu" or torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return False
    return x.dtype in (torch.float32, torch.bfloat16) and load()


@functools.cache
def problem() -> str:
    """Build the library unless it is cached, and load it; return what prevented that, or an empty string."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"they are for Linux on x86-64, not {sys.platform} on {platform.machine()}"
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if not compiler:
        return "there is no C++ compiler; install g++"
    library = cache_dir() / "kernels" / f"{_fingerprint(compiler)}.so"
    try:
        if not library.exists():
            _build(compiler, library)
        torch.ops.load_library(str(library))
    except subprocess.CalledProcessError as error:
        reasons = [line for line in error.stderr.splitlines() if "error" in line] or ["no reason given"]
        return f"{compiler} failed with {reasons[0]}"
    except OSError as error:
        return f"they cannot be built or loaded: {error}"
    return ""


def _fingerprint(compiler: str) -> str:
    """Return a hash of all that the library depends on, the instructions of this processor included."""
    digest = hashlib.sha256(f"{compiler} {torch.__version__}".encode())
    for name in (Path(__file__).name, *SOURCES, *HEADERS):
        digest.update((FOLDER / name).read_bytes())
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("flags"):
            digest.update(line.encode())
            break
    return digest.hexdigest()[:16]


def _build(compiler: str, library: Path) -> None:
    """Compile and link the library; one process does so while others that need the library wait."""
    library.parent.mkdir(parents=True, exist_ok=True)
    with open(library.with_suffix(".lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released with the process, however that ends
        if library.exists():
            return
        print("building the kernels in C++, once; this takes about a minute", file=sys.stderr)
        draft = library.with_suffix(f".{os.getpid()}")
        objects = [library.with_suffix(f".{name}.o") for name in SOURCES]
        abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
        torch_dir = Path(torch.__file__).parent
        headers = f"-isystem{torch_dir / 'include'}"
        compilers = [
            subprocess.Popen(
                [compiler, *FLAGS, "-fPIC", abi, headers, "-c", str(FOLDER / name), "-o", str(file)],
                stderr=subprocess.PIPE,
                text=True,
            )
            for name, file in zip(SOURCES, objects, strict=True)
        ]
        try:
            for process in compilers:
                _, errors = process.communicate()
                if process.returncode:
                    raise subprocess.CalledProcessError(process.returncode, compiler, stderr=errors)
            libraries = (f"-L{torch_dir / 'lib'}", "-ltorch_cpu", "-lc10")
            link = [compiler, "-shared", "-fopenmp", *map(str, objects), *libraries, "-o", str(draft)]
            subprocess.run(link, check=True, capture_output=True, text=True)
            draft.rename(library)
        finally:
            for file in (draft, *objects):
                file.unlink(missing_ok=True)
