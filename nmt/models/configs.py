"""The configs of all models, and the table of families.

Every key of `model` and `ensemble` is here, with its default, range and meaning. Imports no torch: the code
of a row is loaded when a model is built.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from nmt.checks import at_least, positive, within
from nmt.errors import UserError
from nmt.layers.choices import Activation, Norm, NormOrder, Positions, SelfAttention
from nmt.loading import Code


class FactorCombine(Enum):
    """The way from the vectors of a source token and of its factors to one vector."""

    sum = "sum"
    concat = "concat"
    """Concatenated, and mapped to d_model."""


@dataclass
class ModelConfig:
    """The keys that all models have."""

    needs_source: ClassVar[bool] = True
    """Whether there must be a source; a model that needs none can be a language model."""
    has_matrices: ClassVar[bool] = True
    """Whether any layer between embedding and output layer multiplies by a plain matrix."""
    finds_labels_alone: ClassVar[bool] = False
    """Whether the model predicts one token from the source alone, so that it can only classify."""

    name: str = ""
    """Family of the model; chosen together with its other fields by `model=...`."""
    d_model: int = 512
    """Width of the hidden representation."""
    factor_combine: FactorCombine = FactorCombine.sum
    """sum or concat: how the vectors of tokenizer.source_factors join that of their token."""
    factor_width: int = 16
    """Width of the vector of each factor, for factor_combine=concat."""

    def __post_init__(self) -> None:
        at_least(self, "model", 1, "d_model", "factor_width")

    @property
    def shares_vocabulary(self) -> bool:
        """Whether source and target must have one vocabulary."""
        return False

    @property
    def longest(self) -> int | None:
        """Longest source or target in tokens that the positions allow; None where there is no limit."""
        return None

    def keeping(self, encoder: list[int] | None, decoder: list[int] | None) -> ModelConfig:
        """Return the config of a model with these layers alone, counted from 1; None keeps all of a stack.

        Raises:
            UserError: there is no such layer, or the layers of this family cannot be left out.
        """
        raise UserError(
            "encoder_layers and decoder_layers choose among the layers of encoder-decoder Transformers "
            f"(model.name=transformer), but the run has model.name={self.name}; leave them out"
        )

    @property
    def stacks(self) -> list[tuple[int, int, int]]:
        """Layers with weights of their own, width, and width inside the feed-forward blocks, by stack."""
        layers = sum(value for name, value in vars(self).items() if name.endswith("layers"))
        return [(layers, self.d_model, getattr(self, "d_ff", 0))]

    @property
    def attends_to_source(self) -> bool:
        """Whether a target position weighs the positions of the source."""
        return True

    @property
    def longest_text(self) -> int | None:
        """Longest target in tokens where there is no source; None where there is no limit."""
        return self.longest

    @property
    def learns_source(self) -> bool:
        """Whether the model is to predict the source, too, as one text with the target."""
        return False


class Tying(Enum):
    """The matrices that are one, among source embedding, target embedding and output layer."""

    none = "none"
    src_tgt = "src_tgt"
    src_output = "src_output"
    tgt_output = "tgt_output"
    all = "all"

    @property
    def shares_vocabulary(self) -> bool:
        """Whether source and target must have one vocabulary."""
        return self in (Tying.src_tgt, Tying.src_output, Tying.all)


class EmbeddingInit(Enum):
    """Initialisation of the three matrices."""

    normal = "normal"
    """With standard deviation D^-0.5."""
    xavier = "xavier"
    """Uniform, by V + D (Glorot and Bengio 2010)."""


class Init(Enum):
    """Initialisation of the matrices of the layers; biases start from zero."""

    xavier = "xavier"
    """Uniform, by the fan-in and fan-out of each matrix (Glorot and Bengio 2010)."""
    depth_scaled = "depth_scaled"
    """As xavier, but the last matrix of each of the N sublayers of a stack divided by sqrt(N), as in GPT-2
    (Radford et al. 2019, section 2.3)."""


@dataclass
class StackConfig(ModelConfig):
    """Sizes and variations of a stack of attention and feed-forward layers."""

    d_ff: int = 2048
    """Width inside the feed-forward blocks."""
    num_heads: int = 8
    """Attention heads; divides d_model unless d_k and d_v are set."""
    d_k: int | None = None
    """Width of the queries and keys of a head; null: d_model / num_heads."""
    d_v: int | None = None
    """Width of the values of a head; null: d_model / num_heads."""
    num_kv_heads: int | None = None
    """Heads of keys and values, each for as many heads of queries; divides num_heads; null: num_heads."""
    qk_norm: bool = False
    """Whether the queries and keys of a head are divided by their root mean square, with a trained gain."""
    dropout: float = 0.1
    """On the embeddings and on the output of every sublayer."""
    attention_dropout: float = 0.0
    """On the attention weights."""
    activation_dropout: float = 0.0
    """Inside the feed-forward blocks."""
    norm_order: NormOrder = NormOrder.pre
    """pre or post: before each sublayer, or after its residual sum."""
    norm: Norm = Norm.layer_norm
    """layer_norm or rms_norm."""
    norm_eps: float = 1e-5
    """Added to the variance, or to the mean square, in every norm."""
    final_norm: bool | None = None
    """Whether each stack ends in a norm of its own; null: with norm_order=pre only."""
    positions: Positions = Positions.sinusoidal
    """sinusoidal, learned, rotary, alibi, relative (clipped vectors), t5 (buckets) or none."""
    max_positions: int = 1024
    """Longest sequence in tokens, for learned positions only."""
    max_distance: int | None = None
    """Distances from here on are alike, for positions=relative (null: 16) and t5 (null: 128) only."""
    num_buckets: int = 32
    """Number of buckets of distances, for positions=t5 only."""
    activation: Activation = Activation.relu
    """relu, gelu, selu or silu; glu, reglu, geglu, seglu and swiglu have a gate, a third matrix of d_ff."""
    attention_bias: bool = True
    """Whether the projections to queries, keys and values have a bias."""
    attention_output_bias: bool = True
    """Whether the projection of the heads' output has a bias."""
    feed_forward_bias: bool = True
    """Whether the linear maps of the feed-forward blocks have a bias."""
    embedding_scale: bool = True
    """Whether the embeddings of tokens are multiplied by sqrt(d_model)."""
    embedding_norm: bool = False
    """Whether the sum of embedding and position is normalised, before its dropout."""
    embedding_init: EmbeddingInit = EmbeddingInit.normal
    """normal (standard deviation d_model^-0.5) or xavier; also of the output layer."""
    init: Init = Init.xavier
    """xavier or depth_scaled."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, "model", 1, "d_ff", "num_heads", "d_k", "d_v", "num_kv_heads")
        at_least(self, "model", 1, "max_positions", "max_distance")
        within(self, "model", "[0, 1)", "dropout", "attention_dropout", "activation_dropout")
        positive(self, "model", "norm_eps")
        _check_heads(self)
        _check_buckets(self)

    @property
    def longest(self) -> int | None:
        return self.max_positions if self.positions is Positions.learned else None

    @property
    def sees_ahead(self) -> bool:
        """Whether positions of a decoder, too, may attend to later ones."""
        return False

    @property
    def head_widths(self) -> tuple[int, int]:
        """Channels of a head: of its queries and keys, and of its values."""
        share = self.d_model // self.num_heads
        return self.d_k or share, self.d_v or share

    @property
    def embedding_factor(self) -> float:
        """The factor of the embeddings of tokens."""
        return math.sqrt(self.d_model) if self.embedding_scale else 1.0

    @property
    def furthest(self) -> int:
        """The distance from which on distances are not told apart: `max_distance`, or that of the papers."""
        return self.max_distance or (16 if self.positions is Positions.relative else 128)


def _check_heads(cfg: StackConfig, side: str = "") -> None:
    """Raise `UserError` unless the heads of a stack divide its width; `side` begins the names of its keys."""
    if (cfg.d_k is None or cfg.d_v is None) and cfg.d_model % cfg.num_heads:
        divisors = [n for n in range(1, cfg.d_model + 1) if cfg.d_model % n == 0]
        nearest = min(divisors, key=lambda n: (abs(n - cfg.num_heads), -n))
        raise UserError(
            f"model.{side}d_model must be divisible by model.{side}num_heads, but {cfg.d_model} % "
            f"{cfg.num_heads} = {cfg.d_model % cfg.num_heads}; try model.{side}num_heads={nearest}"
        )
    if cfg.num_kv_heads is not None and cfg.num_heads % cfg.num_kv_heads:
        raise UserError(
            f"model.num_kv_heads must divide model.{side}num_heads={cfg.num_heads}, "
            f"but is {cfg.num_kv_heads}; "
            f"try {' or '.join(str(n) for n in range(1, cfg.num_heads) if cfg.num_heads % n == 0) or 1}"
        )
    width, _ = cfg.head_widths
    if cfg.positions is Positions.rotary and width % 2:
        name = f"model.{side}d_model / model.{side}num_heads" if cfg.d_k is None else "model.d_k"
        raise UserError(
            f"{name} must be even with model.positions=rotary, which rotates pairs of channels, "
            f"but is {width}; try model.d_k={width + 1}"
        )


def _check_buckets(cfg: StackConfig) -> None:
    if cfg.num_buckets < 4 or cfg.num_buckets % 2:
        raise UserError(f"model.num_buckets must be even and at least 4, but is {cfg.num_buckets}")
    num_exact = cfg.num_buckets // 2
    if cfg.positions is Positions.t5 and cfg.furthest <= num_exact:
        raise UserError(
            f"model.max_distance must be greater than model.num_buckets / 2 = {num_exact} with "
            f"model.positions=t5, whose first half of buckets are single distances, but is {cfg.furthest}; "
            "raise it or lower model.num_buckets"
        )


@dataclass
class TransformerConfig(StackConfig):
    """Sizes and variations; by default the base model of the paper, but pre-norm."""

    name: str = "transformer"
    encoder_layers: int = 6
    """Depth of the encoder."""
    decoder_layers: int = 6
    """Depth of the decoder."""
    decoder_d_model: int | None = None
    """Width of the decoder; null: d_model. Another width needs tying=tgt_output or none."""
    decoder_d_ff: int | None = None
    """Width inside the feed-forward blocks of the decoder; null: d_ff."""
    decoder_num_heads: int | None = None
    """Attention heads of the decoder; null: num_heads."""
    encoder_sharing: list[int] | None = None
    """For each layer of the encoder, from its input on, the number of its weights: [1,1,2,2] has four layers
    with two sets of weights; null: each layer has its own."""
    decoder_sharing: list[int] | None = None
    """The same for the layers of the decoder."""
    layer_drop: float = 0.0
    """Rate at which each layer of encoder and decoder is left out of a batch in training."""
    tying: Tying = Tying.all
    """none, src_tgt, src_output, tgt_output or all; sharing with the source needs tokenizer.joint=true."""
    output_bias: bool = False
    """Whether the logits have a bias, as in models of Marian."""
    decoder_self_attention: SelfAttention = SelfAttention.attention
    """attention, average or ssru; the last two keep one vector of the past, so all steps cost the same."""
    average_feed_forward: bool = True
    """Whether the mean passes a feed-forward block, for decoder_self_attention=average only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, "model", 1, "encoder_layers", "decoder_layers")
        at_least(self, "model", 1, "decoder_d_model", "decoder_d_ff", "decoder_num_heads")
        within(self, "model", "[0, 1)", "layer_drop")
        _check_heads(self.decoder_stack, "decoder_")
        _check_sharing("encoder", self.encoder_sharing, self.encoder_layers)
        _check_sharing("decoder", self.decoder_sharing, self.decoder_layers)
        if self.tying.shares_vocabulary and self.decoder_stack.d_model != self.d_model:
            raise UserError(
                f"model.tying={self.tying.value} shares one matrix between source and target, but "
                f"model.d_model={self.d_model} and model.decoder_d_model={self.decoder_d_model}; "
                "set model.tying=tgt_output or none"
            )

    @property
    def shares_vocabulary(self) -> bool:
        return self.tying.shares_vocabulary

    def keeping(self, encoder: list[int] | None, decoder: list[int] | None) -> TransformerConfig:
        cfg = copy.copy(self)
        for side, kept in (("encoder", encoder), ("decoder", decoder)):
            if kept is None:
                continue
            depth = getattr(self, f"{side}_layers")
            if not kept or any(not before < n <= depth for before, n in zip([0, *kept], kept, strict=False)):
                raise UserError(
                    f"{side}_layers={kept} must name layers from 1 to {depth}, the depth of the {side}, in "
                    f"ascending order; every other layer is {side}_layers={list(range(1, depth + 1, 2))}"
                )
            sharing = getattr(self, f"{side}_sharing")
            if sharing is not None:
                used = list(dict.fromkeys(sharing[n - 1] for n in kept))
                setattr(cfg, f"{side}_sharing", [used.index(sharing[n - 1]) + 1 for n in kept])
            setattr(cfg, f"{side}_layers", len(kept))
        return cfg

    @property
    def decoder_stack(self) -> TransformerConfig:
        """The config of the decoder, whose sizes are those of its stack."""
        cfg = copy.copy(self)
        cfg.d_model = self.decoder_d_model or self.d_model
        cfg.d_ff = self.decoder_d_ff or self.d_ff
        cfg.num_heads = self.decoder_num_heads or self.num_heads
        return cfg

    @property
    def encoder_order(self) -> list[int]:
        """For each layer of the encoder the number of its weights, from 0 on."""
        return [n - 1 for n in self.encoder_sharing or range(1, self.encoder_layers + 1)]

    @property
    def decoder_order(self) -> list[int]:
        """For each layer of the decoder the number of its weights, from 0 on."""
        return [n - 1 for n in self.decoder_sharing or range(1, self.decoder_layers + 1)]

    @property
    def stacks(self) -> list[tuple[int, int, int]]:
        own = self.decoder_stack
        return [
            (len(set(self.encoder_order)), self.d_model, self.d_ff),
            (len(set(self.decoder_order)), own.d_model, own.d_ff),
        ]


def _check_sharing(side: str, numbers: list[int] | None, num_layers: int) -> None:
    """Raise `UserError` unless `numbers` name the weights of each layer, in the order of their first use."""
    if numbers is None:
        return
    key = f"model.{side}_sharing={numbers}"
    if len(numbers) != num_layers:
        raise UserError(
            f"{key} must have one number for each layer, but has {len(numbers)} for "
            f"model.{side}_layers={num_layers}"
        )
    first_uses = list(dict.fromkeys(numbers))
    if first_uses != list(range(1, len(first_uses) + 1)):
        place = {number: i for i, number in enumerate(first_uses, start=1)}
        raise UserError(
            f"{key} must count weights from 1 in the order of their first use; "
            f"try model.{side}_sharing={[place[number] for number in numbers]}"
        )


class AttentionScore(Enum):
    """Score between a query of the decoder and a source position; none: no attention."""

    none = "none"
    additive = "additive"
    dot = "dot"
    general = "general"


class Cell(Enum):
    """Kind of recurrent cell."""

    rnn = "rnn"
    gru = "gru"
    lstm = "lstm"

    @property
    def num_states(self) -> int:
        """The number M of vectors that a cell hands from one position to the next."""
        return 2 if self is Cell.lstm else 1


@dataclass
class RnnConfig(ModelConfig):
    """Sizes and variations of the recurrent encoder-decoder."""

    name: str = "rnn"
    cell: Cell = Cell.gru
    """rnn, gru or lstm."""
    bidirectional: bool = True
    """Whether half of every encoder layer reads the source from its end."""
    encoder_layers: int = 1
    """Depth of the encoder."""
    decoder_layers: int = 1
    """Depth of the decoder."""
    attention: AttentionScore = AttentionScore.additive
    """none, additive (Bahdanau), dot or general (Luong)."""
    input_feeding: bool = True
    """Whether the input of a step includes the last attentional vector (dot, general) or a summary of the
    source (none); additive needs true, as its context is always an input."""
    dropout: float = 0.1
    """On the embeddings, between layers and on the output of the decoder."""
    tying: Tying = Tying.all
    """none, src_tgt, src_output, tgt_output or all; sharing with the source needs tokenizer.joint=true."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, "model", 1, "encoder_layers", "decoder_layers")
        within(self, "model", "[0, 1)", "dropout")
        if self.bidirectional and self.d_model % 2:
            raise UserError(
                f"model.d_model must be even with model.bidirectional=true, but is {self.d_model}; "
                f"try model.d_model={self.d_model + 1}"
            )
        if self.attention is AttentionScore.additive and not self.input_feeding:
            raise UserError(
                "model.attention=additive needs model.input_feeding=true, but it is false: the context is an "
                "input of the cell; set model.input_feeding=true or model.attention=general"
            )

    @property
    def attends_to_source(self) -> bool:
        return self.attention is not AttentionScore.none

    @property
    def shares_vocabulary(self) -> bool:
        return self.tying.shares_vocabulary


@dataclass
class ConvolutionalConfig(ModelConfig):
    """Sizes and variations; by default the sizes of the paper for WMT'16 English-Romanian."""

    has_matrices: ClassVar[bool] = False

    name: str = "convolutional"
    encoder_layers: int = 20
    """Depth of the encoder."""
    decoder_layers: int = 20
    """Depth of the decoder."""
    kernel_size: int = 3
    """Positions that a convolution sees at once; odd."""
    dropout: float = 0.1
    """On the embeddings, the input of every convolution and the output of the decoder."""
    positions: Positions = Positions.learned
    """learned or sinusoidal."""
    max_positions: int = 1024
    """Longest sequence in tokens, for learned positions only."""
    tying: Tying = Tying.all
    """none, src_tgt, src_output, tgt_output or all; sharing with the source needs tokenizer.joint=true."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.positions not in (Positions.learned, Positions.sinusoidal):
            raise UserError(
                f"model.positions must be learned or sinusoidal in a convolutional model, "
                f"but is {self.positions.value}"
            )
        at_least(self, "model", 1, "encoder_layers", "decoder_layers", "kernel_size", "max_positions")
        within(self, "model", "[0, 1)", "dropout")
        if self.kernel_size % 2 == 0:
            raise UserError(
                "model.kernel_size must be odd, so that the encoder sees as far to the left as to the right, "
                f"but is {self.kernel_size}; try model.kernel_size={self.kernel_size + 1}"
            )

    @property
    def shares_vocabulary(self) -> bool:
        return self.tying.shares_vocabulary

    @property
    def longest(self) -> int | None:
        return self.max_positions if self.positions is Positions.learned else None


class Prefix(Enum):
    """The part of a pair that a position of the source may attend to."""

    bidirectional = "bidirectional"
    """The whole source."""
    causal = "causal"
    """The source up to itself."""


class LossOn(Enum):
    """The tokens of a pair that the model learns to predict."""

    target = "target"
    both = "both"


@dataclass
class DecoderOnlyConfig(StackConfig):
    """Sizes and variations; by default those of GPT for its positions, norms and activation."""

    needs_source: ClassVar[bool] = False

    name: str = "decoder_only"
    num_layers: int = 6
    """Depth of the stack."""
    positions: Positions = Positions.learned
    """learned, sinusoidal, rotary, alibi, relative (clipped vectors), t5 (buckets) or none."""
    activation: Activation = Activation.gelu
    """Non-linearity of the feed-forward blocks."""
    prefix: Prefix = Prefix.bidirectional
    """bidirectional: each source position attends to the whole source; causal: to the source up to itself."""
    loss_on: LossOn = LossOn.target
    """target, or both: the source is then predicted, too, which needs model.prefix=causal."""
    tying: Tying = Tying.all
    """all, or src_tgt for an output layer of its own; source and target always share their embedding."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, "model", 1, "num_layers")
        if self.tying not in (Tying.all, Tying.src_tgt):
            raise UserError(
                "model.tying must be all or src_tgt in a decoder-only model, where source and target are "
                f"one sequence, but is {self.tying.value}"
            )
        if self.loss_on is LossOn.both and self.prefix is Prefix.bidirectional:
            raise UserError(
                "model.loss_on=both needs model.prefix=causal: with model.prefix=bidirectional each position "
                "of the source sees the token that it should predict"
            )

    @property
    def shares_vocabulary(self) -> bool:
        return True

    @property
    def sees_ahead(self) -> bool:
        return self.prefix is Prefix.bidirectional

    @property
    def learns_source(self) -> bool:
        return self.loss_on is LossOn.both

    @property
    def longest(self) -> int | None:
        """Half of the positions that source and target share."""
        whole = super().longest
        return None if whole is None else (whole - 1) // 2

    @property
    def longest_text(self) -> int | None:
        return super().longest


class Pooling(Enum):
    """The way from the states of all source positions to one."""

    mean = "mean"
    """Their mean."""
    first = "first"
    """The state of a token in front of every source."""
    attention = "attention"
    """Their mean with learned weights."""


@dataclass
class EncoderConfig(StackConfig):
    """Sizes and variations of an encoder with a head, for `task=classification`."""

    finds_labels_alone: ClassVar[bool] = True

    name: str = "encoder"
    encoder_layers: int = 6
    """Depth of the encoder."""
    pooling: Pooling = Pooling.mean
    """mean (of the states of all positions), first (the state of a token in front of every source) or
    attention (a mean with learned weights)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, "model", 1, "encoder_layers")

    @property
    def longest(self) -> int | None:
        """All positions, but that of the token in front of the source."""
        whole = super().longest
        return None if whole is None else whole - (self.pooling is Pooling.first)


class Mean(Enum):
    """The mean of several models."""

    probabilities = "probabilities"
    """The arithmetic mean: a token is likely if some model finds it likely."""
    log_probabilities = "log_probabilities"
    """The geometric mean, normalised: a token is likely if no model finds it unlikely."""
    weights = "weights"
    """The mean of the weights, not of the predictions: one model, of one model's cost."""


@dataclass
class EnsembleConfig:
    """Rule by which several models predict as one."""

    mean: Mean = Mean.probabilities
    """probabilities, or log_probabilities: the mean of the models' predictions; weights: one model with the
    mean of their weights, for a run and those that started from it (Wortsman et al. 2022)."""
    weights: list[float] | None = None
    """One positive weight for each run, divided by their sum; null: all are equal."""
    lm: str | None = None
    """Run directory of a language model of the target language that predicts together with the others, with
    their tokenizer; null: none."""
    lm_weight: float = 0.1
    """Power of the probabilities of the language model; below 0 they are taken away."""

    def __post_init__(self) -> None:
        within(self, "ensemble", "(-1, 10)", "lm_weight")
        if self.lm is None and self.lm_weight != EnsembleConfig.lm_weight:
            raise UserError(
                f"ensemble.lm_weight={self.lm_weight} is the weight of a language model, but there is none; "
                "set ensemble.lm, too"
            )
        for weight in self.weights or ():
            if not 0 < weight < math.inf:
                raise UserError(
                    f"ensemble.weights must be positive, but one is {weight}; leave out runs without weight"
                )

    def normalised(self, num_models: int) -> list[float]:
        """Return the weights of the models, which sum to 1; raise `UserError` for another number of them."""
        weights = [1.0] * num_models if self.weights is None else self.weights
        if len(weights) != num_models:
            raise UserError(
                f"ensemble.weights must have one number for each of {num_models} runs, but has {len(weights)}"
            )
        parts = [weight / max(weights) for weight in weights]  # whose sum is finite
        shares = [part / sum(parts) for part in parts]
        if min(shares) == 0.0:
            raise UserError(
                f"ensemble.weights: {min(weights)} is nothing beside {max(weights)}; leave out runs "
                "without weight"
            )
        return shares


MODELS: dict[str, tuple[type[ModelConfig], Code]] = {
    "rnn": (RnnConfig, "nmt.models.rnn.Rnn"),
    "transformer": (TransformerConfig, "nmt.models.transformer.Transformer"),
    "decoder_only": (DecoderOnlyConfig, "nmt.models.decoder_only.DecoderOnly"),
    "convolutional": (ConvolutionalConfig, "nmt.models.convolutional.Convolutional"),
    "encoder": (EncoderConfig, "nmt.models.encoder.Encoder"),
}
