"""The operations of training, against what torch counts in one step."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from nmt import kernels
from nmt.models import build_model
from nmt.models.configs import (
    ConvolutionalConfig,
    DecoderOnlyConfig,
    ModelConfig,
    RnnConfig,
    TransformerConfig,
)
from nmt.runtime_config import Precision
from nmt.training.flops import Meter, peak

SOURCE, TARGET, VOCAB_SIZE = (3, 10), (3, 11), 400
CPU = torch.device("cpu")
CONFIGS: dict[str, ModelConfig] = {
    "transformer": TransformerConfig(
        name="transformer", d_model=64, encoder_layers=3, decoder_layers=2, d_ff=256
    ),
    "convolutional": ConvolutionalConfig(name="convolutional", d_model=64),
    "decoder-only": DecoderOnlyConfig(name="decoder_only", d_model=64),
    "rnn": RnnConfig(name="rnn", d_model=64),
}


@pytest.mark.parametrize("name", CONFIGS)  # each loses more than the tolerance without its output layer
def test_operations_are_those_that_torch_counts(name: str) -> None:
    model = build_model(CONFIGS[name], src_vocab_size=VOCAB_SIZE, tgt_vocab_size=VOCAB_SIZE)
    src, tgt = torch.randint(4, VOCAB_SIZE, SOURCE), torch.randint(4, VOCAB_SIZE, TARGET)
    counter = FlopCounterMode(display=False)
    with kernels.disabled(), counter:
        hidden = model(src, torch.ones(SOURCE, dtype=torch.bool), tgt)
        torch.autograd.backward(model.output(hidden).sum())
    counted = counter.get_total_flops()
    estimated = Meter(model, CPU, Precision.fp32).flops(src.numel(), tgt.numel())
    assert estimated == pytest.approx(counted, rel=0.1)


def test_utilisation_is_the_share_of_what_the_device_could_do(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model(CONFIGS["transformer"], src_vocab_size=VOCAB_SIZE, tgt_vocab_size=VOCAB_SIZE)
    assert Meter(model, CPU, Precision.bf16).rates(3e12, 2.0) == {"tflops_per_second": 1.5}
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4-80GB")
    cuda = torch.device("cuda")
    assert Meter(model, cuda, Precision.bf16).rates(312e12, 2.0) == {"tflops_per_second": 156.0, "mfu": 0.5}
    assert "mfu" not in Meter(model, cuda, Precision.fp32).rates(312e12, 2.0)
    for name, value in (
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA L40", 181e12),
        ("NVIDIA A10G", 70e12),
        ("NVIDIA RTX A1000", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 3090 Ti", None),
        ("GRID A100-10C", None),
        ("NVIDIA T400 4GB", None),
    ):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device, name=name: name)
        assert peak(cuda) == value
