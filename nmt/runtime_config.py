"""The config of `nmt.runtime` (device, number format, threads), and the number of processes; no torch."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import Enum

from nmt.checks import not_negative, positive
from nmt.errors import UserError


def num_processes() -> int:
    """Return how many processes torchrun has started, of which this is one; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def require_one_process(what: str) -> None:
    """Raise `UserError` unless this process, for which `what` stands, is alone."""
    if num_processes() > 1:
        raise UserError(f"{what} runs in one process; start it without torchrun")


class Parallel(Enum):
    """Ways in which several processes share a model."""

    ddp = "ddp"
    fsdp = "fsdp"


class Precision(Enum):
    """Number format of matrix products; weights and their updates are always float32."""

    auto = "auto"
    bf16 = "bf16"
    fp16 = "fp16"
    fp32 = "fp32"
    int8 = "int8"
    """In search alone, on CPU."""


@dataclass
class RuntimeConfig:
    """The device, number format and threads of all arithmetic."""

    device: str = "auto"
    """auto (CUDA when there is one), cpu, cuda or cuda:N."""
    precision: Precision = Precision.auto
    """Number format in training: auto, bf16, fp16 or fp32; search has `decoding.precision`.

    auto is bf16 where the hardware multiplies bf16 numbers (on CPU with AMX, or AVX-512 with bf16), else fp16
    on CUDA and fp32 on CPU. A training that goes on on another CPU keeps its format.
    """
    tf32: bool = False
    """Multiply fp32 matrices of a GPU in TF32: faster, with 10 bits of 23 after the point."""
    threads: int = 0
    """CPU threads of one operation; 0 leaves the choice to torch."""
    kernels: bool = True
    """Use kernels in C++ on CPU, built at first use, where there is a compiler; false: plain torch."""
    compile: bool = False
    """Compile the model with `torch.compile` for training."""
    parallel: Parallel = Parallel.ddp
    """ddp (each process holds all weights) or fsdp (each holds a part of weights and optimizer state)."""
    timeout_minutes: float = 5.0
    """Minutes without a sign of life after which one of several processes counts as lost."""
    grace_seconds: float = 25.0
    """Longest time from a signal (SIGINT, SIGTERM, SIGUSR1) to the end of the process."""
    requeue: bool = False
    """After SIGUSR1 and a checkpoint, `scontrol requeue` the job of Slurm."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise UserError(f"runtime.device must be auto, cpu, cuda or cuda:N, but is {self.device!r}")
        if self.precision is Precision.int8:
            raise UserError(
                "runtime.precision must be auto, bf16, fp16 or fp32, but is int8, which is too coarse to "
                "train in; for search use decoding.precision=int8"
            )
        not_negative(self, "runtime", "threads")
        positive(self, "runtime", "timeout_minutes", "grace_seconds")
