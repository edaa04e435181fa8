"""Models: one file a family.

Knows token ids; refuses to know text, losses and searches. The modules in import order:

    configs             The configs of all models, and the table of families; no torch.
    base                The contract that every model fulfils.
    kv_cache            Keys and values of earlier positions, to which a step of search appends.
    vocabulary          Embeddings and output layer, and which of them are one matrix.
    stack               Residual sublayers and layers that Transformers are stacked from.
    fused_layers        Layers as the kernels take them that go through a stack in one call; the encoder.
    fused_step          A step of search through all layers of a stack in one call.
    transformer         The encoder-decoder Transformer.
    rnn_attention       Attention of a recurrent decoder: the additive, dot and general scores.
    recurrence          Layers of recurrent cells, over a whole sequence or one position at a time.
    rnn                 The recurrent encoder-decoder, with and without attention.
    convolutional       The convolutional model: gated convolutions, attention in every decoder layer.
    decoder_only        The decoder-only Transformer: one stack over source and target, or over a text.
    encoder             The encoder with a head, for classification.
    ensemble            Several models that predict as one.
    fusion              A translation model and a language model that predict as one.
    narrowed            A model over a part of the vocabulary, another part for each sentence.
    __init__            The one function that builds a model.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nmt.errors import UserError
from nmt.loading import loaded
from nmt.models.configs import MODELS, ModelConfig

if TYPE_CHECKING:
    from nmt.models.base import TranslationModel


def build_model(cfg: ModelConfig, *, src_vocab_size: int, tgt_vocab_size: int) -> TranslationModel:
    """Return a freshly initialised model of the family that `cfg` belongs to.

    Raises:
        UserError: the model is larger than the memory of this machine.
    """
    require_memory(cfg)
    build = loaded(MODELS[cfg.name][1])
    model: TranslationModel = build(cfg, src_vocab_size=src_vocab_size, tgt_vocab_size=tgt_vocab_size)
    return model


def require_memory(cfg: ModelConfig) -> None:
    """Refuse sizes whose matrices, one of each width in every layer, do not fit into memory."""
    layers = sum(num_layers for num_layers, _, _ in cfg.stacks)
    numbers = sum(num_layers * width * max(width, d_ff) for num_layers, width, d_ff in cfg.stacks)
    least = 4 * (numbers + cfg.d_model * (cfg.longest or 0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if least > memory:
        raise UserError(
            f"the weights of {layers} layers with model.d_model={cfg.d_model} need at least "
            f"{least / 2**30:,.0f} GiB, but this machine has {memory / 2**30:,.0f}; choose a smaller model"
        )
