"""Device, threads, seeds and mixed precision: everything that depends on the machine.

The only module with autocast and loss scaling: `MixedPrecisionStep` scales the loss, unscales and clips the
gradients and updates the weights, unless its caller says that the update is unusable. Knows no model and no
batch; `nmt.training.statistics` judges whether a loss or a norm is finite.

Mixed precision: Micikevicius et al. 2018.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import random
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from nmt import kernels
from nmt.errors import TrainingStopped, UserError, warn
from nmt.runtime_config import Parallel, Precision, RuntimeConfig

SMALLEST_LOSS_SCALE = 2.0**-14

RESERVED = 15 << 27
"""Addresses for tensors on CPU, in bytes: with what else the heap has free at the start, less than the 2 GB
at which glibc returns freed memory to the system, and the huge pages with it."""


def resolve_device(cfg: RuntimeConfig) -> torch.device:
    """Return the device `cfg` asks for; raise `UserError` when this machine lacks it."""
    name = cfg.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    num_devices = torch.cuda.device_count()
    num_processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # of torchrun, on this machine
    if device.type == "cuda" and num_processes > 1:
        if name != "cuda" or num_devices < num_processes:
            raise UserError(
                f"runtime.device={cfg.device} is not enough for the {num_processes} processes that "
                f"work together here: each needs a GPU of its own, and torch sees {num_devices}; "
                "use runtime.device=cuda, and no more processes than GPUs"
            )
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    if device.type == "cuda" and (device.index or 0) >= num_devices:
        way_out = "runtime.device=cuda" if num_devices else "runtime.device=cpu, or a CUDA build of torch"
        raise UserError(
            f"runtime.device={cfg.device} is not available: torch {torch.__version__} sees {num_devices} "
            f"CUDA devices; use {way_out}"
        )
    return device


def resolve_precision(cfg: RuntimeConfig, device: torch.device) -> Precision:
    """Return bf16, fp16 or fp32: what `cfg` asks for, or what suits the device.

    Auto is bf16 also on processors with AVX-512 for bf16 and without AMX: they train twice as fast in it.
    """
    is_auto = cfg.precision is Precision.auto
    precision = _suitable(device, "amx_bf16", "avx512_bf16") if is_auto else cfg.precision
    if precision is Precision.fp16 and cfg.parallel is Parallel.fsdp:
        raise UserError(
            "runtime.parallel=fsdp needs runtime.precision=bf16 or fp32, but it is fp16, "
            "whose loss scale does not work on weights in parts"
        )
    return precision


def precision_of_training(cfg: RuntimeConfig, device: torch.device, begun: str) -> Precision:
    """Return the result of `resolve_precision`, but for auto on CPU the one in which a training has `begun`.

    So auto, which depends on the processor, changes no training midway.
    """
    precision = resolve_precision(cfg, device)
    if cfg.precision is not Precision.auto or device.type != "cpu":
        return precision
    if begun not in (Precision.bf16.value, Precision.fp32.value) or begun == precision.value:
        return precision
    warn(
        f"the run began in {begun} and goes on in it; a new run with runtime.precision=auto would be in "
        f"{precision.value} on this processor"
    )
    return Precision(begun)


def search_precision(precision: Precision | None, device: torch.device) -> Precision:
    """Return bf16, fp16, fp32 or int8: what a search asks for, or what is fastest on the device.

    None is fp32 on CPU, where every machine then finds the same translations, and auto elsewhere.
    """
    precision = precision or (Precision.fp32 if device.type == "cpu" else Precision.auto)
    if precision is Precision.int8 and device.type != "cpu":
        raise UserError(
            f"decoding.precision=int8 is for search on CPU, but the model is on {device}; "
            "use decoding.precision=auto or bf16, or runtime.device=cpu"
        )
    if precision is Precision.int8 and not (kernels.has_int8() or torch.backends.mkldnn.is_available()):
        raise UserError(
            "decoding.precision=int8 needs a torch with oneDNN, or the kernels in C++ and a processor with "
            f"AVX2, but here torch has none and runs {kernels.status()}; use decoding.precision=auto"
        )
    if precision is not Precision.auto:
        return precision
    suitable = _suitable(device, "amx_bf16")
    if suitable is Precision.fp32 and kernels.has_int8():
        return Precision.int8
    return suitable


def _suitable(device: torch.device, *bf16: str) -> Precision:
    """Return what suits the device; `bf16` are the instructions of CPUs for which that is bf16."""
    if device.type == "cuda":
        return Precision.bf16 if torch.cuda.is_bf16_supported(including_emulation=False) else Precision.fp16
    return Precision.bf16 if processor_has(*bf16) else Precision.fp32


def processor_has(*instructions: str) -> bool:
    """Return whether the CPU has one of `instructions`, by the names that torch gives them."""
    capabilities: Mapping[str, object] = getattr(torch.cpu, "get_capabilities", dict)()  # not in torch 2.10
    return any(map(capabilities.get, instructions))


def cores_allowed() -> int:
    """Return the number of processor cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux alone has it
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def prepare(cfg: RuntimeConfig) -> torch.device:
    """Set threads, allocator and current device once per process and return the device."""
    if cfg.threads:
        torch.set_num_threads(cfg.threads)
    kernels.enable(cfg.kernels)
    device = resolve_device(cfg)
    if device.type == "cpu":
        _keep_freed_memory()
        _forget_old_shapes()
        if cfg.precision is Precision.fp16:
            warn(
                "runtime.precision=fp16 is meant for GPUs, and few CPUs multiply such numbers; "
                "use runtime.precision=auto, bf16 or fp32"
            )
    else:
        make_current(device)
        torch.backends.cudnn.allow_tf32 = cfg.tf32  # of recurrent kernels; true where nothing is said
        torch.backends.cuda.matmul.allow_tf32 = cfg.tf32
        torch.backends.cuda.enable_cudnn_sdp(False)  # cuDNN plans anew for every shape: for every batch
    return device


def make_current(device: torch.device) -> None:
    """Make a GPU the one that pinned memory and questions about "the" GPU concern, in this thread alone."""
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)


@functools.cache  # once: the heap has grown when it is called again
def _keep_freed_memory() -> None:
    """Let glibc reuse large blocks, not return every freed tensor to the system and fault it in again.

    In the main thread, the heap gets RESERVED bytes of addresses, which take no memory until they are used,
    and Linux is asked for huge pages there: a processor keeps the addresses of few pages at hand. Where
    addresses are limited or counted as memory it gets none.
    """
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        return
    trim_threshold, top_pad, mmap_max = -1, -2, -4  # names of malloc.h
    libc = ctypes.CDLL(None)
    libc.mallopt(mmap_max, 0)
    libc.mallopt(trim_threshold, 2**31 - 1)
    libc.mallopt(top_pad, 64 << 20)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    if _are_addresses_free() and (block := libc.malloc(RESERVED)):
        huge_page, advice = 2 << 20, 14  # MADV_HUGEPAGE of mman.h
        start = -(-block // huge_page) * huge_page
        libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(RESERVED - huge_page), advice)
        libc.free(block)


def _are_addresses_free() -> bool:
    """Return whether a process may have as many addresses as it likes, memory or not."""
    import resource  # Windows has no such module

    limits = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    overcommit = Path("/proc/sys/vm/overcommit_memory")
    is_counted = overcommit.exists() and overcommit.read_text(encoding="utf-8").strip() == "2"
    return all(limit == resource.RLIM_INFINITY for limit in limits) and not is_counted


def _forget_old_shapes() -> None:
    """Let oneDNN, and torch's wrapper of it, keep few of the products that they prepare for each shape.

    By default they keep 1,024 each. Nearly every batch has shapes of its own, so that what is kept grows to a
    gigabyte and is never asked for. The variables are read at the first product; what the user has set stays.
    """
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, "64")


def derive_seed(*parts: int | str) -> int:
    """Return a 63-bit seed that is a pure function of `parts`, the same on every machine."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def seed_everything(*parts: int | str, rank: int = 0) -> None:
    """Seed torch (all devices) and numpy from `parts` and `rank`, random from `parts`: alike on all ranks.

    Called before every update with (seed, step), so that no random state has to be stored to resume exactly.
    """
    seed = derive_seed(*parts, *([rank] if rank else []))
    # Without a GPU, torch.manual_seed notes the seed and the call stack for each kind that there might be.
    (torch if torch.cuda.is_available() else torch.default_generator).manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(derive_seed(*parts))


class MixedPrecisionStep:
    """One optimizer update in mixed precision: `backward` for each micro-batch, then `clip`, then `step`.

    `precision` is one that `resolve_precision` returned; a `clip_norm` or `clip_value` of 0 turns that off.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        device: torch.device,
        precision: Precision,
        clip_norm: float,
        clip_value: float = 0.0,
    ):
        self.optimizer = optimizer
        self.device = device
        self.precision = precision
        self.clip_norm = clip_norm
        self.clip_value = clip_value
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision is Precision.fp16)
        self.parameters: list[Tensor] = [p for group in optimizer.param_groups for p in group["params"]]

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context for the forward pass."""
        if self.precision is Precision.fp32:
            return nullcontext()
        dtype = torch.bfloat16 if self.precision is Precision.bf16 else torch.float16
        return torch.autocast(self.device.type, dtype)

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of `loss`, scaled against underflow in fp16."""
        self.scaler.scale(loss).backward()

    def clip(self) -> Tensor:
        """Unscale the gradients, clip their values, then their global norm; return the norm before both."""
        self.scaler.unscale_(self.optimizer)
        if not self.clip_value:
            return whole(nn.utils.clip_grad_norm_(self.parameters, self.clip_norm or float("inf")))
        norm = nn.utils.get_total_norm([x.grad for x in self.parameters if x.grad is not None])
        nn.utils.clip_grad_value_(self.parameters, self.clip_value)
        if self.clip_norm:
            nn.utils.clip_grad_norm_(self.parameters, self.clip_norm)
        return whole(norm)

    def step(self, learning_rate: float, unusable: Tensor) -> None:
        """Update the weights, except where `unusable` (a scalar) is 1.0, and clear the gradients.

        The host does not wait for a GPU, which reads `unusable` by itself, where the optimizer is fused.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate * group.get("rate", 1.0)
        step_unless(self.optimizer, unusable)
        self.scaler.update()  # by what `unscale_` has found
        self.optimizer.zero_grad(set_to_none=True)

    def forget(self) -> None:
        """Forget an update that has failed between `clip` and the end of `step`."""
        state = self.scaler.state_dict()
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.scaler.is_enabled())
        self.scaler.load_state_dict(state)
        self.optimizer.zero_grad(set_to_none=True)

    def require_loss_scale(self) -> None:
        """Raise `TrainingStopped` when the loss scale is too small to be the cause of overflows in fp16."""
        scale = self.scaler.get_scale()
        if scale < SMALLEST_LOSS_SCALE:
            raise TrainingStopped(
                f"the fp16 loss scale fell to {scale:.1e}: the gradients overflow whatever the scale; "
                "use runtime.precision=bf16 or fp32, or a lower learning rate"
            )


def whole(tensor: Tensor) -> Tensor:
    """Return `tensor`, gathered if each process holds a part of it; then all processes must call this."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()


def largest(tensors: Sequence[Tensor]) -> Tensor:
    """Return the largest absolute value in some tensors, of which this process may hold a part, or nothing.

    The result is as `whole` takes it.
    """
    from torch.distributed.tensor import DTensor, Partial

    first, parts = tensors[0], [x.to_local() if isinstance(x, DTensor) else x for x in tensors]
    found = torch.stack([x.abs().max() if x.numel() else x.new_zeros(()) for x in parts]).max()
    if not isinstance(first, DTensor):
        return found
    return DTensor.from_local(found, first.device_mesh, [Partial("max")])


def part_of(tensor: Tensor, like: Tensor) -> Tensor:
    """Return the part of a whole `tensor` that this process holds, split as `like` is, on its device."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(like, DTensor):
        return tensor
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def step_unless(optimizer: torch.optim.Optimizer, unusable: Tensor) -> None:
    """Take a step of `optimizer`, or none where `unusable` is 1; fused kernels read that on the device."""
    if getattr(optimizer, "_step_supports_amp_scaling", False):
        optimizer.found_inf = unusable  # type: ignore[attr-defined]  # as `torch.amp.GradScaler` does
        optimizer.step()
        del optimizer.found_inf  # type: ignore[attr-defined]
    elif not unusable.item():
        optimizer.step()
