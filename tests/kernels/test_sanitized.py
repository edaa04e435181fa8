"""The kernels in a library that watches memory and undefined behaviour, with many random shapes.

Three of the libraries are those of processors with AVX-512 or VNNI, whose instructions `emulated.h` has in
plain C++: every machine can test all of the code.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = (
    *("test_arguments.py", "test_not_finite.py", "test_fused.py", "test_search_kernels.py"),
    "test_encoder_layers.py",
)
NUM_CALLS = 200
SANITIZERS = (
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
    "-g1",
    "-O1",
)
EMULATED = Path(__file__).with_name("emulated.h")
GCC = shutil.which("g++")


def _library(name: str) -> str:
    found = subprocess.run([str(GCC), f"-print-file-name={name}"], check=True, capture_output=True, text=True)
    return found.stdout.strip()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(sys.platform != "linux" or not GCC, reason="needs g++ on Linux")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", ""),
        ("", "-mno-avx512f"),
        (f"-include '{EMULATED}'", "-march=x86-64-v3 -Wno-psabi"),
        (f"-DNMT_SKYLAKE -include '{EMULATED}'", "-march=x86-64-v3 -Wno-psabi"),
        (f"-DNMT_ALDERLAKE -include '{EMULATED}'", "-march=x86-64-v3 -Wno-psabi"),
    ],
    ids=[
        "this processor",
        "short vectors",
        "emulated AVX-512 and AMX",
        "emulated first AVX-512",
        "emulated VNNI of AVX",
    ],
)
def test_the_kernels_under_sanitizers(before: str, after: str, tmp_path: Path) -> None:
    """Masked loads of AVX-512 and loads of tiles are watched where they are emulated."""
    compiler = tmp_path / "c++"
    compiler.write_text(f'#!/bin/sh\nexec {GCC} {before} "$@" {after} {" ".join(SANITIZERS)}\n')
    compiler.chmod(0o755)
    environment = {
        **os.environ,
        "CXX": str(compiler),
        "NMT_CACHE": str(tmp_path / "cache"),
        "NMT_RANDOM_CALLS": str(NUM_CALLS),
        "OMP_NUM_THREADS": "1",
        "LD_PRELOAD": " ".join(map(_library, ("libasan.so", "libubsan.so", "libstdc++.so.6"))),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:detect_stack_use_after_return=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    tests = [str(Path(__file__).with_name(name)) for name in TESTS]
    plugins = ["-p", "no:cacheprovider", "-p", "no:xdist", "--timeout=0"]  # a test may take minutes here
    command = [sys.executable, "-m", "pytest", "-q", "-x", *plugins, *tests]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    assert "error" not in result.stderr
