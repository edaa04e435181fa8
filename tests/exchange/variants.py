"""Tiny Transformers of every variant, and what this project computes with them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nmt.data.special_ids import BOS_ID, EOS_ID, PAD_ID
from nmt.decoding.beam_search import beam_search
from nmt.decoding.configs import BeamConfig
from nmt.models import build_model
from nmt.models.configs import TransformerConfig
from nmt.models.transformer import Transformer
from tests.conftest import VOCAB_SIZE

SIZES: dict[str, Any] = {"d_model": 16, "d_ff": 32, "num_heads": 2, "encoder_layers": 2, "decoder_layers": 2}
LONGEST = 12
"""Longest translation in tokens, EOS counted."""
NUM_POSITIONS = 24


def variant(**fields: Any) -> tuple[Transformer, TransformerConfig]:
    """Return a tiny model whose norms, biases and tables of positions are far from their initial values."""
    cfg = TransformerConfig(**(SIZES | {"max_positions": NUM_POSITIONS} | fields))
    model = build_model(cfg, src_vocab_size=VOCAB_SIZE, tgt_vocab_size=VOCAB_SIZE).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 or "positions.table" in name:
                parameter.add_(0.5 * torch.randn_like(parameter))
    assert isinstance(model, Transformer)
    return model, cfg


def sources() -> tuple[Tensor, Tensor]:
    """Return ids (B, S) of sources of 1 to 8 tokens and EOS, and their mask."""
    src = torch.randint(4, VOCAB_SIZE, (12, 9))
    for row, length in zip(src, torch.randint(1, 9, (12,)).tolist(), strict=True):
        row[length], row[length + 1 :] = EOS_ID, PAD_ID
    return src, src != PAD_ID


def greedy(model: Transformer, src: Tensor, src_mask: Tensor) -> list[list[int]]:
    """Return our greedy translations of at most `LONGEST` tokens."""
    limits = BeamConfig(beam_size=1, max_length_ratio=0.0, max_length_offset=LONGEST)
    with torch.inference_mode():
        return [best.ids for (best, *_) in beam_search(model, src, src_mask, limits)]


def logits(model: Transformer, src: Tensor, src_mask: Tensor, tgt: Tensor) -> Tensor:
    """Return our logits (B, T + 1, V) for targets (B, T) and EOS."""
    tgt_in = torch.cat([torch.full_like(tgt[:, :1], BOS_ID), tgt], dim=1)
    with torch.no_grad():
        return model.project(model(src, src_mask, tgt_in))
