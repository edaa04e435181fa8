"""Kernels in C++ for what torch is slow at on CPU: built at first use, then cached; optional everywhere.

    __init__            Builds and loads the library, and says whether it can be used.
    fused               Steps of training in one pass over memory: the kernels, or plain torch.

`training.cpp`, `attention.cpp` and `products.cpp` serve `fused`; `decode.cpp`, `encoder.cpp`, `step.cpp` and
`int8.cpp` serve search. Each kernel has a definition in plain torch, against which it is tested, and which
takes over where there is no compiler or the tensors do not suit the kernel. Each checks its arguments
(`arguments.h`) and raises an error that names the argument, its value and what was expected; what is not
finite passes through it as through plain torch.
Nothing here knows a model.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import itertools
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from nmt.disk_cache import cache_dir, entry_name, open_entry, write_entry
from nmt.errors import UserError
from nmt.files import sync

FOLDER = Path(__file__).parent
UNITS = {
    "training": ("training.cpp", "attention.cpp", "products.cpp"),
    "search": ("decode.cpp", "int8.cpp"),
    "step": ("step.cpp",),
    "encoder": ("encoder.cpp",),
}
"""Files that are compiled together, since reading the headers of torch takes longer than most of them."""
HEADERS = (
    *("torch.h", "lanes.h", "deal.h", "tiles.h", "packing.h", "products.h", "panels.h"),
    *("int8.h", "linear.h", "layers.h", "heads.h", "arguments.h", "dropout.h"),
)
LIBRARY = "library.so"
LONGEST_BUILD = 1800.0
"""Seconds that the compilers may take: a minute of the processor, many times that beside other work."""
FLAGS = (
    *("-O3", "-march=native", "-mprefer-vector-width=512", "-fopenmp", "-fno-math-errno", "-std=c++20"),
    "-DAT_PER_OPERATOR_HEADERS",  # headers of torch include no operators but those that are named
)


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
    """Return whether kernels of search may be given `x`: float32 on CPU, where no gradient is wanted.

    Compiled code uses none of the kernels.
    """
    if x.device.type != "cpu" or torch.compiler.is_compiling() or torch.is_grad_enabled():
        return False
    return x.dtype is torch.float32 and load()


def usable_in_training(x: Tensor) -> bool:
    """Return whether kernels of training may be given `x`: float32 or bfloat16 on CPU, gradients on.

    Compiled code uses none of these either.
    """
    if x.device.type != "cpu" or torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return False
    return x.dtype in (torch.float32, torch.bfloat16) and load()


def has_tiles() -> bool:
    """Return whether the kernels multiply numbers of 16 bits on this processor."""
    return load() and bool(torch.ops.nmt.has_tiles())


def most_int8_weight() -> int:
    """Return the largest weight of 8 bits that the kernels multiply on this processor; 0 if they do not."""
    return int(torch.ops.nmt.most_int8_weight()) if load() else 0


def has_int8() -> bool:
    """Return whether the kernels multiply numbers of 8 bits on this processor."""
    return most_int8_weight() > 0


def has_panels() -> bool:
    """Return whether the kernels multiply float32 numbers faster than torch on this processor."""
    return load() and bool(torch.ops.nmt.has_panels())


@functools.cache
def problem() -> str:
    """Build the library unless it is cached, and load it; return what prevented that, or an empty string."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"they are for Linux on x86-64, not {sys.platform} on {platform.machine()}"
    command = compiler()
    if not command:
        return "there is no C++ compiler; install g++ 11 or later"
    name = " ".join(command)
    try:
        torch.ops.load_library(str(_library(command)))
    except subprocess.CalledProcessError as error:
        return f"{name} failed with {_reason(error.stderr)}; they need g++ 11 or later, which CXX may name"
    except subprocess.TimeoutExpired:
        return f"{name} was not done after {LONGEST_BUILD / 60:.0f} minutes"
    except OSError as error:  # where torch cannot load the library, the error behind its own says why
        return f"they cannot be built or loaded: {error.__cause__ or error}"
    except UserError as error:
        return f"they cannot be built: {error}"
    return ""


def _reason(errors: str) -> str:
    """Return the line of what a compiler wrote that says why it failed."""
    lines = [line for line in errors.splitlines() if line.strip()]
    own = [line for line in lines if "error" in line and not line.startswith("collect2:")]
    return next(iter([*own, *lines]), "no reason given")


def _in_english() -> dict[str, str]:
    """Return the environment of a compiler whose errors `_reason` can read."""
    return {**os.environ, "LC_ALL": "C"}


def compiler() -> list[str]:
    """Return the command of the C++ compiler: CXX, which may have arguments (`ccache g++`), or one found."""
    named = os.environ.get("CXX", "").strip()
    if named:
        return [named] if Path(named).exists() else named.split()
    found = shutil.which("g++") or shutil.which("c++")
    return [found] if found else []


def folder() -> Path:
    """Return the folder of this user's libraries; they are code, so users who share a cache share none."""
    return cache_dir() / f"kernels-{os.getuid()}"


def _library(command: list[str]) -> Path:
    """Return the library, which is built unless the cache has it whole.

    Raises:
        OSError: the compiler cannot be started, or the cache cannot be written or trusted.
        UserError: the cache has no place.
        CalledProcessError: the compiler failed.
        TimeoutExpired: the compiler took longer than LONGEST_BUILD.
    """
    home = folder()
    home.parent.mkdir(parents=True, exist_ok=True)
    home.mkdir(mode=0o700, exist_ok=True)
    entry = home / entry_name("library", *_origin(command))
    _require_private(home)
    if open_entry(entry) is None:
        with _locked(home):  # while another process builds the entry, this one waits
            if open_entry(entry) is None:
                reason = f"those in {entry} are damaged" if entry.exists() else "once"
                print(f"building the kernels in C++, {reason}; this takes half a minute", file=sys.stderr)
                if not write_entry(entry, functools.partial(_build, command)):
                    raise OSError(f"{home} cannot be written")
    _require_private(entry)
    _require_private(entry / LIBRARY)
    return entry / LIBRARY


def _origin(command: list[str]) -> list[object]:
    """Return all that the library depends on, the instructions of this processor included."""
    version = _run([*command, "--version"])
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        processor = next((line for line in lines if line.startswith("flags")), "")
    sources = [(FOLDER / name).read_bytes() for name in (*itertools.chain(*UNITS.values()), *HEADERS)]
    torch_version = (torch.__version__, torch.version.git_version, torch.compiled_with_cxx11_abi())
    return [" ".join(command), version, FLAGS, platform.libc_ver(), torch_version, processor, sources]


def _run(command: list[str]) -> str:
    """Run a command, and return what it writes to standard output."""
    return subprocess.run(
        command,
        check=True,
        capture_output=True,
        timeout=LONGEST_BUILD,
        encoding="utf-8",
        errors="replace",
        env=_in_english(),
    ).stdout


def _require_private(path: Path) -> None:
    """Raise `OSError` if another user owns `path` or may write to it: a library is code that runs."""
    facts = path.stat()
    if facts.st_uid != os.getuid() or facts.st_mode & 0o022:
        raise OSError(f"{path} belongs to another user or can be written by others; remove it")


@contextlib.contextmanager
def _locked(home: Path) -> Iterator[None]:
    """Hold a lock while the block runs, where the file system has locks; it is released with the process."""
    with open(home / ".lock", "a", encoding="utf-8") as lock:
        with contextlib.suppress(OSError):  # without it two processes build at once, and one entry stays
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print("waiting for the kernels in C++, which another process builds", file=sys.stderr)
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(command: list[str], draft: Path) -> None:
    """Compile and link the library in the folder `draft`, and flush it to the disk."""
    draft.chmod(0o700)
    objects = [draft / f"{unit}.o" for unit in UNITS]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    torch_dir = Path(torch.__file__).parent
    headers = f"-isystem{torch_dir / 'include'}"
    deadline = time.monotonic() + LONGEST_BUILD
    compilers: list[subprocess.Popen[str]] = []
    try:
        for (first, *others), file in zip(UNITS.values(), objects, strict=True):
            before = [f"-include{FOLDER / name}" for name in others]
            unit = [*command, *FLAGS, "-fPIC", abi, headers, *before, "-c", str(FOLDER / first)]
            unit += ["-o", str(file)]
            compilers.append(
                subprocess.Popen(
                    unit, stderr=subprocess.PIPE, encoding="utf-8", errors="replace", env=_in_english()
                )
            )
        results = [
            (process.communicate(timeout=max(0.0, deadline - time.monotonic()))[1], process.returncode)
            for process in compilers
        ]
    finally:
        for process in compilers:
            process.kill()  # unless it is done
            with process:  # close its pipe
                process.wait()
    for errors, code in results:
        if code:
            raise subprocess.CalledProcessError(code, command, stderr=errors)
    library = draft / LIBRARY
    libraries = (f"-L{torch_dir / 'lib'}", "-ltorch_cpu", "-lc10")
    link = [*command, "-shared", "-fopenmp", *map(str, objects), *libraries, "-o", str(library)]
    _run(link)
    if not library.is_file():
        raise subprocess.CalledProcessError(0, command, stderr="an error of its own: it wrote no library")
    for file in objects:
        file.unlink()
    library.chmod(0o700)
    sync(library)
