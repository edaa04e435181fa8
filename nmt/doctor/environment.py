"""Facts of the machine and of what is installed, and findings about them; a probe leaves nothing behind."""

from __future__ import annotations

import fcntl
import importlib.metadata
import itertools
import os
import platform
import re
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nmt import __version__
from nmt.disk_cache import cache_dir
from nmt.doctor.findings import Finding, Severity
from nmt.errors import UserError, in_one_line
from nmt.extras import EXTRAS
from nmt.files import FULL, OUTPUTS
from nmt.runs.directory import PACKAGES, cpu_name
from nmt.runtime import cores_allowed

CPU_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
LITTLE_DISK, LITTLE_MEMORY = 5 << 30, 4 << 30
"""Bytes below which a training is told to be tight."""


@dataclass
class Fact:
    """One line about the environment."""

    name: str
    value: str


def environment() -> tuple[list[Fact], list[Finding]]:
    """Return the facts of this machine, and what is wrong with it; the kernels are built if they are not."""
    facts, findings = list[Fact](), list[Finding]()
    for part in (
        _software(),
        _processor(),
        _memory(),
        _devices(),
        _kernels(),
        _folders(),
        _limits(),
        _extras(),
    ):
        for one in part:
            (facts if isinstance(one, Fact) else findings).append(one)  # type: ignore[arg-type]
    return facts, findings


def _finding(severity: Severity, kind: str, text: str, remedy: str) -> Finding:
    return Finding(severity, "environment", kind, text, remedy)


def installed(distribution: str) -> str | None:
    """Return the version of a distribution, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _software() -> Iterator[Fact | Finding]:
    yield Fact("nmt", f"{__version__}, in {Path(__file__).parents[1]}")
    yield Fact("Python", f"{platform.python_version()}, {sys.executable}")
    yield Fact("system", platform.platform())
    versions = {name: installed(name) for name in PACKAGES}
    yield Fact("libraries", ", ".join(f"{name} {version}" for name, version in versions.items() if version))
    for name in [name for name, version in versions.items() if version is None]:
        yield _finding(Severity.breaks, "library", f"{name} is not installed", f"pip install {name}")


def _processor() -> Iterator[Fact | Finding]:
    file = Path("/proc/cpuinfo")
    text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
    flags = re.search(r"^flags\s*: (.*)$", text, re.MULTILINE)
    known = set(flags[1].split()) if flags else set()
    yield Fact("processor", cpu_name())
    if known:
        yield Fact(
            "instructions", ", ".join(flag for flag in CPU_FLAGS if flag in known) or "none that matter"
        )
    cores, quota = cores_allowed(), _quota()
    yield Fact("cores", f"{cores} of {os.cpu_count()} allowed" + (f", a quota of {quota:g}" if quota else ""))
    if known and "avx2" not in known:
        yield _finding(
            Severity.costs, "processor", "the processor lacks AVX2: arithmetic is slow", "use another"
        )
    elif known and not known & {"amx_bf16", "avx512_bf16"}:
        yield _finding(
            Severity.note,
            "bf16",
            "the processor multiplies no bf16 numbers: training on CPU is in float32 (runtime.precision)",
            "",
        )
    if quota and quota < cores:
        yield _finding(
            Severity.costs,
            "quota",
            f"{cores} cores are allowed, but a quota of the control group grants the time of {quota:g}",
            f"set runtime.threads={max(1, int(quota))}: more threads wait for each other",
        )


def _read_words(path: str) -> list[str]:
    """Return the words of a file of the system, none where it is not there."""
    try:
        return Path(path).read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError):
        return []


def _quota() -> float | None:
    """Return the processors' worth of time that the control group grants, or None."""
    words = _read_words("/sys/fs/cgroup/cpu.max")
    return int(words[0]) / int(words[1]) if len(words) == 2 and words[0].isdecimal() else None


def _memory() -> Iterator[Fact | Finding]:
    words = _read_words("/proc/meminfo")
    sizes = {name[:-1]: int(size) << 10 for name, size in itertools.pairwise(words) if size.isdecimal()}
    limit = next(iter(_read_words("/sys/fs/cgroup/memory.max")), "max")
    total, free = sizes.get("MemTotal"), sizes.get("MemAvailable")
    if total is None or free is None:
        return
    bound = int(limit) if limit.isdecimal() and int(limit) < total else None
    limited = f", limited to {gigabytes(bound)}" if bound else ""
    yield Fact("memory", f"{gigabytes(total)}, {gigabytes(free)} available{limited}")
    if min(free, bound or free) < LITTLE_MEMORY:
        yield _finding(
            Severity.costs, "memory", f"little memory: {gigabytes(min(free, bound or free))}",
            "choose a smaller model, or trainer.batch_tokens",
        )  # fmt: skip


def gigabytes(size: int) -> str:
    """Return a size in gigabytes of 2**30 bytes."""
    return f"{size / (1 << 30):.1f} GB"


def _devices() -> Iterator[Fact | Finding]:
    import torch

    weight = torch.ones(2, 2, requires_grad=True)
    (weight @ weight).sum().backward()
    if not torch.cuda.is_available():
        yield Fact("devices", "cpu")
        if shutil.which("nvidia-smi"):
            yield _finding(
                Severity.costs,
                "device",
                f"nvidia-smi is there, but torch {torch.__version__} finds no GPU",
                "install the build of torch for the driver: https://pytorch.org/get-started",
            )
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        try:
            with torch.cuda.device(number):
                free, total = torch.cuda.mem_get_info()
                formats = "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
            name = torch.cuda.get_device_name(number)
        except RuntimeError as error:  # another program has all of it, or it is broken
            yield _finding(
                Severity.breaks,
                "device",
                f"cuda:{number} cannot be used: {in_one_line(str(error))}",
                "choose another with runtime.device=cuda:N, or end the programs that use it (nvidia-smi)",
            )
            continue
        yield Fact(f"cuda:{number}", f"{name}, {gigabytes(total)}, {gigabytes(free)} free, {formats}")
        if free < total // 2:
            yield _finding(
                Severity.costs,
                "device",
                f"cuda:{number}: other programs use {gigabytes(total - free)} of its memory",
                "choose another with runtime.device=cuda:N, or end them",
            )


def _kernels() -> Iterator[Fact | Finding]:
    from nmt import kernels

    problem = kernels.problem()
    yield Fact("compiler", " ".join(kernels.compiler()) or "none")
    yield Fact("kernels in C++", problem or "built and loaded")
    if problem:
        yield _finding(
            Severity.costs,
            "kernels",
            f"no kernels in C++ on CPU: {problem}",
            "without them training and search on CPU are slower; docs/performance.md",
        )


def _folders() -> Iterator[Fact | Finding]:
    caches = list[Path]()
    try:
        caches.append(cache_dir())
    except UserError as error:
        yield _finding(Severity.costs, "cache_folder", str(error), "set NMT_CACHE to a folder")
    for name, folder, way_out in (
        *(("cache", place, "set NMT_CACHE to a folder that can be written") for place in caches),
        ("outputs", Path(OUTPUTS).absolute(), "start in a folder that can be written, or set run=..."),
        ("temporary", Path(tempfile.gettempdir()), "set TMPDIR to a folder that can be written"),
    ):
        there = next(path for path in (folder, *folder.parents) if path.exists())
        problem = probe(there)
        free = shutil.disk_usage(there).free
        new = "" if there == folder else " (will be made)"
        yield Fact(
            f"{name} folder", f"{folder}{new}, {gigabytes(free)} free{', locks' if not problem else ''}"
        )
        if problem:
            worst = Severity.costs if name == "cache" else Severity.breaks
            yield _finding(worst, f"{name}_folder", f"{there}: {problem}", way_out)
        elif free < LITTLE_DISK:
            yield _finding(
                Severity.costs, f"{name}_folder", f"{there} has only {gigabytes(free)} of free disk", way_out
            )


def probe(folder: Path) -> str:
    """Write, flush and lock a file in `folder`, remove it, and return what went wrong."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"nmt doctor")
            file.flush()
            os.fsync(file.fileno())
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return "the disk is full" if error.errno in FULL else f"cannot be written: {error.strerror}"
    return ""


def _limits() -> Iterator[Fact | Finding]:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    seconds, _ = resource.getrlimit(resource.RLIMIT_CPU)
    endless = resource.RLIM_INFINITY
    time = "no limit of processor time" if seconds == endless else f"{seconds:,} s of processor time"
    yield Fact("limits", f"{'any number of' if files == endless else f'{files:,}'} open files, {time}")
    if seconds != endless:
        yield _finding(
            Severity.costs, "limits", f"the process is ended after {seconds:,} s of processor time",
            "raise it with ulimit -t, or say trainer.max_minutes",
        )  # fmt: skip


def _extras() -> Iterator[Fact | Finding]:
    for extra, (distributions, purpose, _) in EXTRAS.items():
        versions = [(name, installed(name)) for name in distributions]
        if all(version for _, version in versions):
            there = ", ".join(f"{name} {version}" for name, version in versions)
        else:
            there = f"missing: pip install 'nmt[{extra}]', for {purpose}"
        yield Fact(f"extra {extra}", there)
