"""Kernels in C++ for what plain torch is slow at: built at first use, then cached; optional everywhere.

Each has a definition in plain torch, which it is tested against, and which takes over where there is no
compiler or the tensors are not what the kernels are written for.
"""

from __future__ import annotations

import functools
import platform
import sys
from pathlib import Path

import torch
from torch import Tensor

SOURCES = ("decode.cpp",)


@functools.cache
def load() -> bool:
    """Build the kernels unless they are cached, and load them; False where that cannot be done."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    from torch.utils import cpp_extension  # costs time to import

    flags = ["-O3", "-march=native", "-mprefer-vector-width=512", "-fopenmp", "-std=c++20"]
    try:
        cpp_extension.load(
            name="nmt_kernels",
            sources=[str(Path(__file__).parent / name) for name in SOURCES],
            extra_cflags=flags,
            extra_ldflags=["-fopenmp"],
            is_python_module=False,
        )
    except (OSError, RuntimeError):
        return False
    return True


def usable(x: Tensor) -> bool:
    """Whether kernels may be given `x`: float32 on CPU, where no gradient is wanted."""
    return x.device.type == "cpu" and x.dtype is torch.float32 and not torch.is_grad_enabled() and load()
