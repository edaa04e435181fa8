"""Floating-point operations of training, counted from the weights, and the utilisation of a GPU.

A token costs 6 operations per weight that it meets: 2 forward and 4 backward (Kaplan et al. 2020, section
2.1). Source tokens meet the weights that read the source alone, target tokens all others: also the weights
with which a decoder reads the source, as if the source had as many tokens. Attention between tokens is left
out, some 1% for sentences; so is padding, which is no work for a model. Model FLOP utilisation is the share
of the device's peak that these operations take (Chowdhery et al. 2022, appendix B).
"""

from __future__ import annotations

import re

import torch
from torch import nn

from nmt.models.base import TranslationModel
from nmt.runtime_config import Precision

PER_WEIGHT = 6
PEAKS = {
    "B200": 2250e12,
    "H200 NVL": 836e12,
    "H200": 989e12,
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "A10": 125e12,
    "A10G": 70e12,
    "RTX A6000": 155e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
    "V100-PCIE": 112e12,
    "V100": 125e12,
    "T4": 65e12,
}
"""Words in the driver's name of a GPU, of which the first that match count -> operations per second of dense
16-bit matrix products with float32 sums, from the data sheet."""


class Meter:
    """A counter of the operations that updates of `model` take."""

    def __init__(self, model: TranslationModel, device: torch.device, precision: Precision):
        tables = {id(table.weight) for table in model.modules() if isinstance(table, nn.Embedding)}
        weights = {
            name: parameter.numel() * model.uses(name)
            for name, parameter in model.named_parameters()
            if parameter.dim() > 1 and id(parameter) not in tables | {id(model.output.weight)}
        }
        source = sum(size for name, size in weights.items() if model.reads_source_alone(name))
        target = sum(weights.values()) - source
        # A model without an encoder reads the source as it reads the target.
        self.per_src_token = PER_WEIGHT * (source or target)
        self.per_tgt_token = PER_WEIGHT * (target + model.output.weight.numel())
        self.peak = None if precision is Precision.fp32 else peak(device)

    def flops(self, src_tokens: int, tgt_tokens: int) -> float:
        """Return the operations of one update over these numbers of tokens."""
        return float(self.per_src_token * src_tokens + self.per_tgt_token * tgt_tokens)

    def rates(self, flops: float, seconds: float) -> dict[str, float]:
        """Return the speed of a device in 10^12 operations per second, and its utilisation if known."""
        rate = flops / seconds
        return {"tflops_per_second": rate / 1e12} | ({"mfu": rate / self.peak} if self.peak else {})


def peak(device: torch.device) -> float | None:
    """Return the operations per second of a GPU in `PEAKS`, else None."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    # The speeds of a slice of a GPU, a virtual GPU or a slower variant of the name are not in the table.
    if {"MIG", "Laptop", "D", "Ti", "SUPER"} & set(name.split()) or re.search(r"-\d+[ABCQ]\b", name):
        return None
    return next((value for part, value in PEAKS.items() if re.search(rf"\b{part}\b", name)), None)
