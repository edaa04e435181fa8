"""The table of model families, and the one function that builds a model."""

from __future__ import annotations

from collections.abc import Callable

from nmt.models.base import ModelConfig, State, TranslationModel
from nmt.models.convolutional import Convolutional, ConvolutionalConfig
from nmt.models.decoder_only import DecoderOnly, DecoderOnlyConfig
from nmt.models.rnn import Rnn, RnnConfig
from nmt.models.transformer import Transformer, TransformerConfig

MODELS: dict[str, tuple[type[ModelConfig], Callable[..., TranslationModel]]] = {
    "rnn": (RnnConfig, Rnn),
    "transformer": (TransformerConfig, Transformer),
    "decoder_only": (DecoderOnlyConfig, DecoderOnly),
    "convolutional": (ConvolutionalConfig, Convolutional),
}

__all__ = ["MODELS", "ModelConfig", "State", "TranslationModel", "build_model"]


def build_model(cfg: ModelConfig, *, src_vocab_size: int, tgt_vocab_size: int) -> TranslationModel:
    """A freshly initialised model of the family `cfg` belongs to."""
    return MODELS[cfg.name][1](cfg, src_vocab_size=src_vocab_size, tgt_vocab_size=tgt_vocab_size)
