"""Models for CTranslate2, filled into its specification of a Transformer.

CTranslate2's own converters refuse what the libraries they convert from cannot train: encoders and decoders
with rotary positions, say. Its specification can hold more. What it has no place for is put into the places
that it has, without a change of any score:

- Positions that are added to the embeddings are a table, zero for `model.positions=none`.
- A bias on the scores of attention that depends on the distance alone (ALiBi, T5) is a T5 table with a bucket
  for each distance, in each layer. CTranslate2 before 4.8.3 uses that of the first layer in all of them.
- Heads whose keys and values have different widths are filled up with zeros.
- PAD and BOS, which our searches never predict, get a bias in the output layer.

Shapes: D d_model, H heads, C channels of a head, V vocabulary, L positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nmt.data.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.exchange.configs import ExportConfig, Format
from nmt.exchange.shared import (
    ANY_MODEL,
    library,
    misfits,
    position_table,
    refuse,
    transformer_of,
)
from nmt.layers.attention import AttentionRole, MultiHeadAttention
from nmt.layers.blocks import GATES
from nmt.layers.choices import Activation, Norm, NormOrder, Positions, SelfAttention
from nmt.layers.relative_positions import ClippedPositions
from nmt.models.configs import TransformerConfig
from nmt.models.stack import Embedding
from nmt.models.transformer import DecoderLayer, Transformer
from nmt.runs.agreement import pieces_of
from nmt.runs.opened import Run

Array = NDArray[np.float32]

ACTIVATIONS = {
    Activation.relu: "RELU",
    Activation.gelu: "GELU",
    Activation.silu: "SWISH",
    Activation.glu: "Sigmoid",
    Activation.reglu: "RELU",
    Activation.geglu: "GELU",
    Activation.swiglu: "SWISH",
}
"""Activations that CTranslate2 has -> its names; for those with a gate, that of the gate."""
TABLES = (Positions.sinusoidal, Positions.learned, Positions.none)
"""Kinds of positions that are added to embeddings."""
DISTANCES = (Positions.alibi, Positions.t5)
"""Kinds of positions that are a bias for each distance."""
NEVER = -1e4
"""Bias on the logits of what is never predicted; float16 can hold it."""


def write(run: Run, cfg: ExportConfig, folder: Path) -> None:
    """Write model.bin, config.json and the vocabularies.

    Raises:
        UserError: the format cannot hold the model, or its library is not installed.
    """
    model_cfg = transformer_of(run, cfg)
    refuse(obstacles(run, model_cfg), ANY_MODEL)
    library("ctranslate2", Format.ctranslate2)
    assert isinstance(run.model, Transformer)
    spec = specification(run.model.cpu().float(), model_cfg, run.cfg.decoding.max_source_tokens)
    _set_vocabularies(spec, run)
    spec.validate()
    spec.optimize(quantization=cfg.quantization.value)
    spec.save(str(folder))


def obstacles(run: Run, cfg: TransformerConfig) -> list[str]:
    """Return a phrase for each key of the run that the format cannot hold."""
    held: dict[str, Any] = {
        "activation": ACTIVATIONS,
        "num_kv_heads": [None, *({cfg.num_heads} & {cfg.decoder_stack.num_heads})],
        "qk_norm": [False],
        "decoder_self_attention": [SelfAttention.attention],
    }
    of_text = misfits(run.cfg.tokenizer, "tokenizer", {"source_factors": [[]]}, "format=ctranslate2")
    return misfits(cfg, "model", held, "format=ctranslate2") + of_text


def specification(model: Transformer, cfg: TransformerConfig, num_positions: int) -> Any:
    """Return a `ctranslate2.specs.TransformerSpec` with the weights of `model`, without vocabularies.

    Tables of positions have `num_positions` rows, those that were trained as many as they have.
    """
    from ctranslate2 import specs

    settings: dict[str, Any] = {
        "pre_norm": True,  # the place of the final norm; the order is set below
        "no_final_norm": isinstance(model.encoder_norm, torch.nn.Identity),
        "activation": specs.Activation[ACTIVATIONS[cfg.activation]],
        "layernorm_embedding": cfg.embedding_norm,
        "relative_position": cfg.positions is Positions.relative,
        "relative_attention_bias": cfg.positions in DISTANCES,
        "ffn_glu": cfg.activation in GATES,
        "rms_norm": cfg.norm is Norm.rms_norm,
        "rotary_interleave": True,
    }
    encoder = specs.transformer_spec.TransformerEncoderSpec(cfg.encoder_layers, **settings, **_heads(cfg))
    own = _heads(cfg.decoder_stack)
    decoder = specs.transformer_spec.TransformerDecoderSpec(cfg.decoder_layers, **settings, **own)
    for stack, embedding, layers, norm in (
        (encoder, model.src_embedding, model.encoder_layers, model.encoder_norm),
        (decoder, model.tgt_embedding, model.decoder_layers, model.decoder_norm),
    ):
        stack.pre_norm = cfg.norm_order is NormOrder.pre
        stack.scale_embeddings = cfg.embedding_scale
        _set_norms(stack, embedding, norm)
        if cfg.positions in TABLES:
            stack.position_encodings.encodings = _array(position_table(embedding, num_positions))
        for place, layer in zip(stack.layer, layers, strict=True):
            _set_layer(place, layer, num_positions)
    encoder.embeddings[0].weight = _array(model.src_embedding.tokens.weight)
    decoder.embeddings.weight = _array(model.tgt_embedding.tokens.weight)
    decoder.projection.weight = _array(model.output.weight)
    bias = _maybe(model.output.bias)
    decoder.projection.bias = np.zeros(model.output.out_features, np.float32) if bias is None else bias
    decoder.projection.bias[[PAD_ID, BOS_ID]] = NEVER
    spec = specs.TransformerSpec(encoder, decoder)
    spec.config.layer_norm_epsilon = cfg.norm_eps
    spec.config.add_source_eos = True
    return spec


def _heads(cfg: TransformerConfig) -> dict[str, int | None]:
    """Return the settings of the heads of a stack."""
    wide = max(cfg.head_widths)
    return {
        "num_heads": cfg.num_heads,
        "head_dim": None if wide * cfg.num_heads == cfg.d_model else wide,
        "rotary_dim": cfg.head_widths[0] if cfg.positions is Positions.rotary else None,
    }


def _set_norms(stack: Any, embedding: Embedding, norm: Any) -> None:
    """Fill the norms of a stack that are outside of its layers."""
    if hasattr(stack, "layernorm_embedding"):
        _set_norm(stack.layernorm_embedding, embedding.norm)
    if hasattr(stack, "layer_norm"):
        _set_norm(stack.layer_norm, norm)


def _set_layer(place: Any, layer: Any, num_positions: int) -> None:
    """Fill a layer of the encoder or decoder."""
    _set_attention(place.self_attention, layer.self_attention.attention, num_positions)
    _set_norm(place.self_attention.layer_norm, layer.self_attention.residual.norm)
    if isinstance(layer, DecoderLayer):
        _set_attention(place.attention, layer.cross_attention.attention, num_positions)
        _set_norm(place.attention.layer_norm, layer.cross_attention.residual.norm)
    block = layer.feed_forward.block
    inner = [block.inner.weight, block.inner.bias]
    places = [place.ffn.linear_0]
    if hasattr(place.ffn, "linear_0_noact"):
        places.append(place.ffn.linear_0_noact)
    parts = [(None,) * len(places) if x is None else x.chunk(len(places)) for x in inner]
    for linear, weight, bias in zip(places, *parts, strict=True):
        _set_linear(linear, _array(weight), None if bias is None else _array(bias))
    _set_linear(place.ffn.linear_1, _array(block.outer.weight), _maybe(block.outer.bias))
    _set_norm(place.ffn.layer_norm, layer.feed_forward.residual.norm)


def _set_attention(place: Any, attention: MultiHeadAttention, num_positions: int) -> None:
    """Fill a sublayer of attention, with its relative positions."""
    heads = attention.num_heads
    d_k, d_v = (width // heads for width in attention.widths)
    wide = max(d_k, d_v)
    maps = _wider(attention.query, [d_k], heads, wide) + _wider(attention.key_value, [d_k, d_v], heads, wide)
    if len(place.linear) == 2:  # of self-attention
        _set_linear(place.linear[0], *_joined(maps))
    else:
        _set_linear(place.linear[0], *maps[0])
        _set_linear(place.linear[1], *_joined(maps[1:]))
    output = _filled(_array(attention.output.weight).reshape(-1, heads, d_v), wide, axis=2)
    _set_linear(place.linear[-1], output.reshape(len(output), -1), _maybe(attention.output.bias))
    if d_k != wide:
        place.queries_scale = np.float32(d_k**-0.5)
    if hasattr(place, "relative_position_keys"):
        positions = attention.positions
        assert isinstance(positions, ClippedPositions)
        num_offsets = 2 * positions.before + 1
        place.relative_position_keys = _offset_vectors(positions.keys.weight, num_offsets, wide)
        place.relative_position_values = _offset_vectors(positions.values.weight, num_offsets, wide)
    if hasattr(place, "relative_attention_bias"):
        place.relative_attention_bias = _distance_biases(attention, num_positions)
        place.relative_attention_max_distance = np.int32(2 * num_positions)


def _wider(linear: Any, widths: Sequence[int], heads: int, wide: int) -> list[tuple[Array, Array | None]]:
    """Return weight (H * wide, D) and bias of each of the maps to heads that are packed in `linear`."""
    sizes = [heads * width for width in widths]

    def parts(packed: torch.Tensor | None) -> list[Array | None]:
        if packed is None:
            return [None] * len(widths)
        arrays = [_array(part).reshape(heads, -1, *packed.shape[1:]) for part in packed.split(sizes)]
        return [_filled(array, wide, axis=1).reshape(-1, *packed.shape[1:]) for array in arrays]

    weights = [weight for weight in parts(linear.weight) if weight is not None]
    return list(zip(weights, parts(linear.bias), strict=True))


def _joined(maps: Sequence[tuple[Array, Array | None]]) -> tuple[Array, Array | None]:
    """Return several maps of one input as one."""
    weights, biases = [weight for weight, _ in maps], [bias for _, bias in maps if bias is not None]
    return np.concatenate(weights), np.concatenate(biases) if biases else None


def _filled(array: Array, size: int, axis: int) -> Array:
    """Return `array` with zeros behind, up to `size` along the axis."""
    widths = [(0, size - array.shape[axis] if i == axis else 0) for i in range(array.ndim)]
    return np.pad(array, widths)


def _offset_vectors(table: torch.Tensor, num_offsets: int, wide: int) -> Array:
    """Return (2 K + 1, wide) of the vectors (2 K + 1, C) for offsets -K .. K, or (K + 1, C) for -K .. 0."""
    rows = _array(table)
    hidden = np.zeros((num_offsets - len(rows), rows.shape[1]), np.float32)
    return _filled(np.concatenate([rows, hidden]), wide, axis=1)


def _distance_biases(attention: MultiHeadAttention, num_positions: int) -> Array:
    """Return (buckets, H): the bias of each distance below L = `num_positions`, one bucket each.

    As many buckets follow for longer distances, in which the longest one is repeated. An encoder has both
    again for keys after the query.
    """
    both = attention.role is AttentionRole.encoder
    queries = torch.zeros(
        1, attention.num_heads, num_positions if both else 1, 1
    )  # their number counts alone
    bias = attention.positions.bias(queries, num_positions)
    assert bias is not None
    before, after = bias[0, :, -1].flip(-1), bias[0, :, 0]
    sides = [before, after] if both else [before]
    rows = [torch.cat([side, side[:, -1:].expand(-1, num_positions)], dim=1) for side in sides]
    return _array(torch.cat(rows, dim=1).T.contiguous())


def _set_linear(place: Any, weight: Array, bias: Array | None) -> None:
    place.weight = weight
    if bias is not None:
        place.bias = bias


def _set_norm(place: Any, norm: Any) -> None:
    place.gamma = _array(norm.weight)
    if hasattr(place, "beta"):
        place.beta = _array(norm.bias)


def _array(tensor: torch.Tensor) -> Array:
    """Return a copy, which CTranslate2 may change: quantization works in place."""
    return np.array(tensor.detach().numpy())


def _maybe(tensor: torch.Tensor | None) -> Array | None:
    return None if tensor is None else _array(tensor)


def _set_vocabularies(spec: Any, run: Run) -> None:
    """Give the specification the pieces of both sides, and name the special ones."""
    names = pieces_of(run.tokenizer.tgt_model)
    spec.register_source_vocabulary(pieces_of(run.tokenizer.src_model))
    spec.register_target_vocabulary(names)
    spec.config.unk_token, spec.config.eos_token = names[UNK_ID], names[EOS_ID]
    spec.config.bos_token = spec.config.decoder_start_token = names[BOS_ID]
