"""What an import consists of, and the weights of stacks that are named as in BART.

Marian, M2M100 and their kin in `transformers` share the names of BART's layers. Shapes: D d_model, V pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nmt.data.reading.mixture import tag_of_language
from nmt.data.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.data.tokens.segmenter import Segmenter
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.errors import UserError
from nmt.exchange.pieces import Numbering, numbering
from nmt.layers.choices import Activation
from nmt.models import require_memory
from nmt.models.configs import TransformerConfig, Tying

NEVER = 30.0
"""Ids that the other program does not have get a bias so much below that of the unknown token."""
ACTIVATIONS = {
    "relu": Activation.relu,
    "gelu": Activation.gelu,
    "selu": Activation.selu,
    "silu": Activation.silu,
    "swish": Activation.silu,
}
"""Names of activations in config.json -> ours."""
STACK_FIELDS: dict[str, Any] = {
    **dict.fromkeys(("d_model", "encoder_layers", "decoder_layers"), int),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), int),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), int),
    **dict.fromkeys(("decoder_start_token_id", "pad_token_id", "eos_token_id"), int),
    "activation_function": str,
    **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), float | None),
    **dict.fromkeys(("scale_embedding", "tie_word_embeddings"), bool | None),
}
"""Fields of config.json that all these models have, with their types."""


@dataclass
class Imported:
    """A model of another program as ours."""

    model: TransformerConfig
    tokenizer: Tokenizer
    weights: dict[str, Tensor]
    """By the names of `Transformer`."""
    tgt: Numbering
    """Our target ids."""
    remarks: list[str]
    """What a user should know about the model."""
    tagged: bool = False
    """Whether a tag in front of a source asks for its target language, as `with_tags` spells it."""


def activation(name: str) -> Activation:
    """Return the activation that config.json names; raise `UserError` for one that we lack."""
    if name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise UserError(f"config.json: activation_function must be one of {known}, but is {name!r}")
    return ACTIVATIONS[name]


def stack_config(settings: Mapping[str, Any], **own: Any) -> TransformerConfig:
    """Return the config of a stack that config.json describes; `own` keys are those of one architecture.

    Raises:
        UserError: the model does not fit into memory.
    """
    cfg = TransformerConfig(
        d_model=settings["d_model"],
        d_ff=settings["encoder_ffn_dim"],
        num_heads=settings["encoder_attention_heads"],
        decoder_d_ff=_unless_equal(settings, "ffn_dim"),
        decoder_num_heads=_unless_equal(settings, "attention_heads"),
        encoder_layers=settings["encoder_layers"],
        decoder_layers=settings["decoder_layers"],
        activation=activation(settings["activation_function"]),
        output_bias=True,
        dropout=settings.get("dropout") or 0.0,
        attention_dropout=settings.get("attention_dropout") or 0.0,
        activation_dropout=settings.get("activation_dropout") or 0.0,
        **own,
    )
    require_memory(cfg)
    return cfg


def _unless_equal(settings: Mapping[str, Any], name: str) -> int | None:
    """Return the setting decoder_NAME, None if encoder_NAME is the same."""
    value: int = settings[f"decoder_{name}"]
    return None if value == settings[f"encoder_{name}"] else value


def numbered(
    settings: Mapping[str, Any], vocabulary: Mapping[str, int], segmenters: Iterable[Segmenter]
) -> Numbering:
    """Return our numbers for a vocabulary whose special rows config.json names; see `pieces.numbering`.

    Raises:
        UserError: the vocabulary has no unknown token.
    """
    if "<unk>" not in vocabulary:
        raise UserError("the vocabulary has no <unk>, the unknown token")
    special = {
        PAD_ID: settings["pad_token_id"],
        UNK_ID: vocabulary["<unk>"],
        BOS_ID: settings["decoder_start_token_id"],
        EOS_ID: settings["eos_token_id"],
    }
    return numbering(vocabulary, segmenters, special)


def with_tags(vocabulary: Mapping[str, int], codes: Mapping[str, str]) -> dict[str, int]:
    """Return a vocabulary in which the pieces of languages, language -> piece, are also spelt as our tags."""
    return {**vocabulary, **{tag_of_language(language): vocabulary[code] for language, code in codes.items()}}


def stack_weights(
    found: Mapping[str, Tensor], cfg: TransformerConfig, order: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of all layers; our channel c of the D is theirs `order[c]`.

    Raises:
        UserError: a weight is missing or has another shape, or there are more layers than `cfg` has.
    """
    source = _Source(found, cfg.d_model, order)
    for side, layers in (("encoder", cfg.encoder_layers), ("decoder", cfg.decoder_layers)):
        if any(name.startswith(f"model.{side}.layers.{layers}.") for name in found):
            raise UserError(
                f"config.json: {side}_layers is {layers}, but the weights have more layers than that"
            )
    for i in range(cfg.encoder_layers):
        ours, theirs = f"encoder.{i}", f"model.encoder.layers.{i}"
        yield from source.attention(f"{ours}.self_attention", theirs, "self_attn")
        yield from source.feed_forward(f"{ours}.feed_forward", theirs)
    for i in range(cfg.decoder_layers):
        ours, theirs = f"decoder.{i}", f"model.decoder.layers.{i}"
        yield from source.attention(f"{ours}.self_attention", theirs, "self_attn")
        yield from source.attention(f"{ours}.cross_attention", theirs, "encoder_attn")
        yield from source.feed_forward(f"{ours}.feed_forward", theirs)
    for side in ("encoder", "decoder"):
        if f"model.{side}.layer_norm.weight" in found:
            yield from source.norm(f"{side}_norm", f"model.{side}.layer_norm")


class _Source:
    """Weights of the other program, taken by name."""

    def __init__(self, found: Mapping[str, Tensor], d_model: int, order: Tensor):
        self._found, self._d_model, self._order = found, d_model, order

    def take(self, name: str, num_axes: int, *turned: int) -> Tensor:
        """Return a weight of so many axes, of which those `turned` are the D channels."""
        if name not in self._found:
            raise UserError(f"the weights have no {name}")
        weight = self._found[name]
        shape = tuple(weight.shape)
        if len(shape) != num_axes:
            raise UserError(f"{name} has the shape {shape}, of {len(shape)} axes in place of {num_axes}")
        if any(shape[axis] != self._d_model for axis in turned):
            raise UserError(f"{name} has the shape {shape}, which does not fit d_model={self._d_model}")
        for axis in turned:
            weight = weight.index_select(axis, self._order)
        return weight

    def attention(self, ours: str, theirs: str, kind: str) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights of a sublayer of attention and of its norm."""
        module = f"{ours}.attention"
        yield f"{module}.query.weight", self.take(f"{theirs}.{kind}.q_proj.weight", 2, 1)
        yield f"{module}.query.bias", self.take(f"{theirs}.{kind}.q_proj.bias", 1)
        keys, values = (self.take(f"{theirs}.{kind}.{x}_proj.weight", 2, 1) for x in "kv")
        yield f"{module}.key_value.weight", torch.cat([keys, values])
        keys, values = (self.take(f"{theirs}.{kind}.{x}_proj.bias", 1) for x in "kv")
        yield f"{module}.key_value.bias", torch.cat([keys, values])
        yield f"{module}.output.weight", self.take(f"{theirs}.{kind}.out_proj.weight", 2, 0)
        yield f"{module}.output.bias", self.take(f"{theirs}.{kind}.out_proj.bias", 1, 0)
        yield from self.norm(f"{ours}.residual.norm", f"{theirs}.{kind}_layer_norm")

    def feed_forward(self, ours: str, theirs: str) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights of a feed-forward sublayer and of its norm."""
        yield f"{ours}.block.inner.weight", self.take(f"{theirs}.fc1.weight", 2, 1)
        yield f"{ours}.block.inner.bias", self.take(f"{theirs}.fc1.bias", 1)
        yield f"{ours}.block.outer.weight", self.take(f"{theirs}.fc2.weight", 2, 0)
        yield f"{ours}.block.outer.bias", self.take(f"{theirs}.fc2.bias", 1, 0)
        yield from self.norm(f"{ours}.residual.norm", f"{theirs}.final_layer_norm")

    def norm(self, ours: str, theirs: str) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights of a norm."""
        yield f"{ours}.weight", self.take(f"{theirs}.weight", 1, 0)
        yield f"{ours}.bias", self.take(f"{theirs}.bias", 1, 0)


def tying(settings: Mapping[str, Any], *, joint: bool = True) -> Tying:
    """Return which matrices of a model are one, given whether its two sides share their embeddings."""
    if settings.get("tie_word_embeddings") is False:
        return Tying.none
    return Tying.all if joint else Tying.tgt_output


def vocabulary_weights(
    found: Mapping[str, Tensor], cfg: TransformerConfig, src: Numbering, tgt: Numbering, order: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """Yield both embeddings and the matrix of the output layer; our channel c of the D is theirs `order[c]`.

    Raises:
        UserError: one is missing, or does not fit the vocabulary.
    """
    shared, output = "model.shared.weight", "lm_head.weight"
    encoder, decoder = (f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder"))
    names = {
        Tying.all: [[shared, encoder, decoder, output]] * 3,
        Tying.tgt_output: [[encoder, shared], *[[decoder, shared, output]] * 2],
        Tying.none: [[encoder, shared], [decoder, shared], [output]],
    }
    ours = ("src_embedding.tokens.weight", "tgt_embedding.tokens.weight", "output.weight")
    taken = dict[str, Tensor]()
    for name, theirs, numbers in zip(ours, names[cfg.tying], (src, tgt, tgt), strict=True):
        if theirs[0] not in taken:  # what is tied is one tensor
            taken[theirs[0]] = _embedded(found, theirs, numbers.rows, order)
        yield name, taken[theirs[0]]


def _embedded(found: Mapping[str, Tensor], names: list[str], rows: list[int], order: Tensor) -> Tensor:
    """Return the rows of the first matrix (V, D) that is there under one of `names`.

    Raises:
        UserError: there is none, or it has fewer rows.
    """
    for name in names:
        if name in found:
            shape = tuple(found[name].shape)
            if len(shape) != 2 or shape[0] <= max(rows) or shape[1] != len(order):
                raise UserError(f"{name} has the shape {shape}, which does not fit the vocabulary")
            return found[name][torch.tensor(rows)][:, order]
    raise UserError(f"the weights have none of {', '.join(names)}")


def never_predicted(bias: Tensor, numbers: Numbering) -> Tensor:
    """Return the bias (V,) of the logits, so low for ids that the other program lacks that none is found."""
    bias, found, again = bias.clone(), dict[int, int](), list[int]()
    for number, row in enumerate(numbers.rows):
        if number > EOS_ID and row in found:  # a piece that is added, or spelt in a second way
            spelling = numbers.spellings[number - EOS_ID - 1]
            is_tag = found[row] > EOS_ID and spelling.startswith("<2")  # which targets begin with
            again.append(found[row] if is_tag else number)
        found.setdefault(row, number)
    bias[[PAD_ID, BOS_ID, *again]] = bias[UNK_ID] - NEVER
    return bias
