"""Devices, seeds, signals, and updates that do not depend on the loss scale or on how a batch is cut."""

from __future__ import annotations

import os
import platform
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from nmt import runtime
from nmt.errors import TrainingStopped, UserError
from nmt.layers.loss import smoothed_nll
from nmt.models.base import TranslationModel
from nmt.runtime import (
    MixedPrecisionStep,
    derive_seed,
    precision_of_training,
    prepare,
    resolve_device,
    resolve_precision,
    seed_everything,
)
from nmt.runtime_config import Parallel, Precision, RuntimeConfig
from nmt.training.optimizers.optimizer import build_optimizer
from nmt.training.optimizers.optimizer_configs import AdamConfig

CPU = torch.device("cpu")

MANY_SHAPES = """
import torch
from nmt.runtime import prepare
from nmt.runtime_config import RuntimeConfig

def resident_mb() -> int:
    return int(open("/proc/self/statm").read().split()[1]) * 4096 >> 20

def multiply(rows: int) -> None:
    torch.mm(torch.randn(rows, 64, dtype=torch.bfloat16), torch.randn(64, 64, dtype=torch.bfloat16))

prepare(RuntimeConfig(device="cpu", threads=1))
for rows in range(1, 101):
    multiply(rows)
before = resident_mb()
for rows in range(101, 401):
    multiply(rows)
print(resident_mb() - before)
"""
"""Prints by how many MB a process grows while it multiplies matrices of 300 shapes, after the first 100."""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_products_of_many_shapes_are_not_all_kept() -> None:
    caches = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"}  # prepare leaves what is set alone

    def growth(**variables: str) -> int:
        environment = {name: value for name, value in os.environ.items() if name not in caches} | variables
        command = [sys.executable, "-c", MANY_SHAPES]
        return int(
            subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
        )

    kept = growth(**dict.fromkeys(caches, "1024"))
    if kept < 60:
        pytest.skip(f"torch keeps only {kept} MB here")
    assert growth() < kept / 3


HUGE_PAGES = """
import re
import torch
from nmt.runtime import prepare
from nmt.runtime_config import RuntimeConfig

prepare(RuntimeConfig(device="cpu"))
tensor = torch.zeros(16 << 20)
number = tensor.data_ptr() + (32 << 20)
with open("/proc/self/smaps", encoding="utf-8") as lines:
    for line in lines:
        if found := re.match("([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(found[1], 16) <= number < int(found[2], 16)
        elif inside and line.startswith("VmFlags:"):
            print("hg" in line.split())
"""
"""Prints whether Linux is asked for huge pages in the middle of a tensor of 64 MB."""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="sets the allocator of glibc")
@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="Linux has no huge pages"
)
@pytest.mark.parametrize(("limit", "asked"), [("unlimited", "True"), ("100000000", "False")])  # KB
def test_tensors_are_in_huge_pages_where_addresses_are_free(limit: str, asked: str) -> None:
    command = ["sh", "-c", f'ulimit -v {limit}; exec "$0" -c "$1"', sys.executable, HUGE_PAGES]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == f"{asked}\n"


def test_auto_device_is_the_gpu_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for available, device in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda available=available: available)
        assert resolve_device(RuntimeConfig()) == torch.device(device)


@pytest.mark.parametrize("device", ["tpu", "mps", "cuda:x", "", "meta"])
def test_unknown_device(device: str) -> None:
    message = f"runtime.device must be auto, cpu, cuda or cuda:N, but is {device!r}"
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        RuntimeConfig(device=device)


@pytest.mark.parametrize(
    ("num_devices", "device", "way_out"),
    [
        (0, "cuda", "runtime.device=cpu, or a CUDA build of torch"),
        (2, "cuda:2", "runtime.device=cuda"),
    ],
)
def test_missing_device(monkeypatch: pytest.MonkeyPatch, num_devices: int, device: str, way_out: str) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_devices)
    message = (
        f"runtime.device={device} is not available: torch {torch.__version__} sees {num_devices} "
        f"CUDA devices; use {way_out}"
    )
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        resolve_device(RuntimeConfig(device=device))


def test_negative_threads() -> None:
    with pytest.raises(UserError, match=r"^runtime\.threads must not be negative, but is -1$"):
        RuntimeConfig(threads=-1)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_limits_are_positive(value: float) -> None:
    with pytest.raises(UserError, match=rf"^runtime\.timeout_minutes must be positive, but is {value}$"):
        RuntimeConfig(timeout_minutes=value)
    with pytest.raises(UserError, match=rf"^runtime\.grace_seconds must be positive, but is {value}$"):
        RuntimeConfig(grace_seconds=value)


def test_prepare_sets_the_threads_of_the_process() -> None:
    before = torch.get_num_threads()
    try:
        for threads, expected in ((before + 1, before + 1), (0, before + 1)):  # 0 leaves them as they are
            assert prepare(RuntimeConfig(device="cpu", threads=threads)) == CPU
            assert torch.get_num_threads() == expected
    finally:
        torch.set_num_threads(before)
    assert float(torch.ones(10_000_000).sum()) == 1e7  # large blocks are still to be had


def test_fp32_on_a_gpu_is_rounded_to_tf32_on_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch itself allows TF32 in recurrent kernels, and not in products."""
    monkeypatch.setattr(runtime, "resolve_device", lambda cfg: torch.device("cuda"))
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", lambda enabled: None)
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    try:
        for wanted in (True, False):
            prepare(RuntimeConfig(tf32=wanted))
            assert (matmul.allow_tf32, cudnn.allow_tf32) == (wanted, wanted)
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


@pytest.mark.parametrize("precision", [Precision.bf16, Precision.fp16, Precision.fp32])
def test_a_stated_precision_is_used(precision: Precision) -> None:
    for device in ("cpu", "cuda"):
        assert resolve_precision(RuntimeConfig(precision=precision), torch.device(device)) is precision


@pytest.mark.parametrize(
    ("device", "hardware", "precision"),
    [
        ("cuda", "bf16", Precision.bf16),
        ("cuda", "", Precision.fp16),
        ("cpu", "amx_bf16", Precision.bf16),
        ("cpu", "avx512_bf16", Precision.bf16),
        ("cpu", "avx512_vnni", Precision.fp32),
    ],
)
def test_auto_precision_suits_the_device(
    monkeypatch: pytest.MonkeyPatch, device: str, hardware: str, precision: Precision
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bool(hardware))
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {hardware: True}, raising=False)
    assert resolve_precision(RuntimeConfig(), torch.device(device)) is precision


@pytest.mark.parametrize(
    ("wanted", "device", "begun", "precision"),
    [
        (Precision.auto, "cpu", "", Precision.bf16),
        (Precision.auto, "cpu", "bf16", Precision.bf16),
        (Precision.auto, "cpu", "fp32", Precision.fp32),
        (Precision.auto, "cpu", "fp16", Precision.bf16),  # it began on a GPU
        (Precision.auto, "cuda", "fp32", Precision.bf16),  # it began on a CPU
        (Precision.bf16, "cpu", "fp32", Precision.bf16),
    ],
)
def test_auto_precision_keeps_the_one_in_which_a_training_began(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    wanted: Precision,
    device: str,
    begun: str,
    precision: Precision,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True}, raising=False)
    cfg = RuntimeConfig(precision=wanted)
    assert precision_of_training(cfg, torch.device(device), begun) is precision
    message = (
        "the run began in fp32 and goes on in it; a new run with runtime.precision=auto would be in bf16 on "
        "this processor"
    )
    assert (message in capsys.readouterr().err) == (precision is Precision.fp32)


def test_auto_precision_where_torch_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert resolve_precision(RuntimeConfig(), CPU) is Precision.fp32


def test_the_loss_scale_of_fp16_needs_whole_weights() -> None:
    message = (
        "runtime.parallel=fsdp needs runtime.precision=bf16 or fp32, but it is fp16, "
        "whose loss scale does not work on weights in parts"
    )
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        resolve_precision(RuntimeConfig(precision=Precision.fp16, parallel=Parallel.fsdp), CPU)


@pytest.mark.parametrize(("device", "num_devices"), [("cuda:0", 2), ("auto", 1)])
def test_every_process_needs_a_gpu(monkeypatch: pytest.MonkeyPatch, device: str, num_devices: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_devices)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    message = (
        f"runtime.device={device} is not enough for the 2 processes that work together here: each needs "
        f"a GPU of its own, and torch sees {num_devices}; use runtime.device=cuda, "
        "and no more processes than GPUs"
    )
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        resolve_device(RuntimeConfig(device=device))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device(RuntimeConfig(device="cuda")) == torch.device("cuda", 1)


def test_derived_seeds_are_the_same_everywhere() -> None:
    assert derive_seed(1, 2, "pairs") == 8560526975672288864
    assert len({derive_seed(*parts) for parts in ((1, 2), (2, 1), (12,), (1, 2, "x"))}) == 4
    assert all(0 <= derive_seed(i) < 2**63 for i in range(1000))


def test_seed_everything_seeds_everything() -> None:
    def draw() -> tuple[float, float, float]:
        return float(torch.rand(())), float(np.random.rand()), random.random()

    seed_everything(7, 1)
    first = draw()
    other = draw()
    seed_everything(7, 1)
    assert draw() == first
    seed_everything(7, 2)
    assert not set(draw()) & {*first, *other}
    seed_everything(7, 1, rank=1)
    of_next_rank = draw()
    assert not set(of_next_rank[:2]) & set(first)
    assert of_next_rank[2] == first[2]


def sgd(
    parameters: list[nn.Parameter],
    precision: Precision = Precision.fp32,
    clip_norm: float = 1.0,
    clip_value: float = 0.0,
) -> MixedPrecisionStep:
    """Return a step whose update is minus the gradient; Adam would hide the scale of the gradient."""
    optimizer = torch.optim.SGD(parameters, lr=0.0)
    limits = {"clip_norm": clip_norm, "clip_value": clip_value}
    return MixedPrecisionStep(optimizer, device=CPU, precision=precision, **limits)


def update_of(amp_step: MixedPrecisionStep, weight: nn.Parameter, gradient: Tensor) -> tuple[float, Tensor]:
    """One update by minus the gradient: its norm before clipping, and what it changed."""
    before = weight.detach().clone()
    amp_step.backward((weight * gradient).sum())
    norm = float(amp_step.clip())
    amp_step.step(1.0, torch.zeros(()))
    assert weight.grad is None
    return norm, weight.detach() - before


@pytest.mark.parametrize(
    ("clip_norm", "factor"), [(1.0, 1.0 / 5.0), (10.0, 1.0), (0.0, 1.0)], ids=["clipped", "below", "off"]
)
@pytest.mark.parametrize("scale", [1.0, 65536.0])
def test_gradients_are_clipped_after_unscaling(scale: float, clip_norm: float, factor: float) -> None:
    weight, gradient = nn.Parameter(torch.zeros(2)), torch.tensor([3.0, -4.0])
    amp_step = sgd([weight], Precision.fp16, clip_norm)
    amp_step.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    norm, update = update_of(amp_step, weight, gradient)
    assert norm == pytest.approx(5.0)
    assert_close(update, -factor * gradient)


@pytest.mark.parametrize(
    ("clip_norm", "expected"), [(0.0, [3.0, -3.5]), (1.0, [3.0 / 21.25**0.5, -3.5 / 21.25**0.5])]
)
def test_values_are_clipped_before_their_norm(clip_norm: float, expected: list[float]) -> None:
    weight, gradient = nn.Parameter(torch.zeros(2)), torch.tensor([3.0, -4.0])
    amp_step = sgd([weight], Precision.fp16, clip_norm, clip_value=3.5)
    norm, update = update_of(amp_step, weight, gradient)
    assert norm == pytest.approx(5.0)
    assert_close(update, -torch.tensor(expected))


def test_a_gradient_without_a_finite_value_is_seen_before_values_are_clipped() -> None:
    weight = nn.Parameter(torch.zeros(2))
    norm, _ = update_of(sgd([weight], clip_value=1.0), weight, torch.tensor([1.0, torch.inf]))
    assert norm == torch.inf


def test_the_norm_is_that_of_all_parameters() -> None:
    weights = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    amp_step = sgd(weights)
    amp_step.backward(3.0 * weights[0].sum() + 4.0 * weights[1].sum())
    assert float(amp_step.clip()) == pytest.approx(5.0)
    amp_step.step(2.0, torch.zeros(()))
    assert [float(weight.detach()) for weight in weights] == pytest.approx([-2 * 3 / 5, -2 * 4 / 5])


def test_an_overflow_leaves_the_update_out() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = build_optimizer(AdamConfig(), nn.ParameterList([weight]))
    amp_step = MixedPrecisionStep(optimizer, device=CPU, precision=Precision.fp16, clip_norm=1.0)
    for scale_after, gradient in ((32768.0, 1e35), (32768.0, 1.0)):
        before = weight.detach().clone()
        amp_step.backward((weight * gradient).sum())
        overflowed = ~amp_step.clip().isfinite()
        amp_step.step(0.1, overflowed.float())
        updated = not overflowed
        assert updated == (gradient == 1.0)
        assert torch.equal(weight, before) == (not updated)
        assert weight.isfinite().all()
        assert amp_step.scaler.get_scale() == scale_after
    assert float(optimizer.state[weight]["step"]) == 1.0


def test_an_overflow_that_no_scale_avoids_stops_training() -> None:
    weight = nn.Parameter(torch.ones(2))
    amp_step = sgd([weight], Precision.fp16)
    amp_step.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**-13)
    message = (
        "the fp16 loss scale fell to 3.1e-05: the gradients overflow whatever the scale; "
        "use runtime.precision=bf16 or fp32, or a lower learning rate"
    )

    def overflow() -> None:
        amp_step.backward((weight * torch.inf).sum())
        amp_step.step(0.1, (~amp_step.clip().isfinite()).float())
        amp_step.require_loss_scale()

    overflow()
    with pytest.raises(TrainingStopped, match=f"^{re.escape(message)}$"):
        overflow()
    assert torch.equal(weight, torch.ones(2))


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [(Precision.fp32, torch.float32), (Precision.bf16, torch.bfloat16), (Precision.fp16, torch.float16)],
)
def test_precision_of_the_matrix_products(precision: Precision, dtype: torch.dtype) -> None:
    layer = nn.Linear(3, 2)
    amp_step = sgd(list(layer.parameters()), precision)
    with amp_step.autocast():
        output = layer(torch.randn(4, 3))
    assert output.dtype is dtype
    amp_step.backward(output.float().square().sum())
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype is torch.float32


@pytest.mark.parametrize("precision", [Precision.fp32, Precision.bf16, Precision.fp16])
@pytest.mark.parametrize("num_parts", [2, 4])
def test_micro_batches_equal_one_batch(
    tiny_model: Callable[..., TranslationModel],
    sentences: Callable[[int, int, int], tuple[Tensor, Tensor, Tensor]],
    precision: Precision,
    num_parts: int,
) -> None:
    """Divided by the target tokens of the whole update, although the parts have different numbers of them."""
    src, src_mask, tgt_in = sentences(8, 6, 7)
    tgt_out = torch.randint(4, 23, (8, 7))
    real = torch.arange(7) < torch.arange(1, 9).clamp(max=7)[:, None]

    def updated(num_parts: int) -> dict[str, Any]:
        seed_everything("weights")
        model = tiny_model()
        amp_step = sgd(list(model.parameters()), precision)
        for part in torch.arange(8).chunk(num_parts):
            with amp_step.autocast():
                hidden = model(src[part], src_mask[part], tgt_in[part])[real[part]]
                loss, _ = smoothed_nll(model.project(hidden), tgt_out[part][real[part]], 0.1)
            amp_step.backward(loss / int(real.sum()))
        amp_step.clip()
        amp_step.step(1.0, torch.zeros(()))
        return model.state_dict()

    tolerance = 1e-5 if precision is Precision.fp32 else 2e-2
    assert_close(updated(num_parts), updated(1), atol=tolerance, rtol=tolerance)


def test_fp16_on_a_cpu_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    prepare(RuntimeConfig(device="cpu", precision=Precision.fp16))
    assert "warning: runtime.precision=fp16 is meant for GPUs" in capsys.readouterr().err


MATMUL = """
import platform, warnings
platform.machine = lambda: "{machine}"
import nmt
for module in ("nmt.metrics.utility", "mine"):
    warnings.warn_explicit("divide by zero encountered in matmul", RuntimeWarning, module, 1, module)
"""


@pytest.mark.parametrize(
    ("machine", "told"), [("arm64", ["mine"]), ("x86_64", ["nmt.metrics.utility", "mine"])]
)
def test_products_of_numpy_on_arm_warn_of_nothing_in_our_modules(machine: str, told: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MATMUL.format(machine=machine)], capture_output=True, text=True, check=True
    )
    assert re.findall(r"^(.*):1: RuntimeWarning", done.stderr, re.M) == told
