"""Convolutional sequence to sequence learning (Gehring et al. 2017).

Encoder and decoder are stacks of convolutions with gated linear units; every layer of the decoder has an
attention of its own (multi-step attention). Every sum of two tensors is multiplied by sqrt(0.5), which keeps
the variance (section 3.4); there are no norms, but every linear map is weight-normalised (Salimans and
Kingma 2016). The paper's mappings between the width of the embeddings and that of the convolutions are kept,
here with one width for both.

Knows token ids and nothing of text, batches or loss. Shapes: B sentences, S source length, T target length,
D d_model, k kernel_size, K beams, N = B * K hypotheses, V target vocabulary.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from nmt.layers.attention import AttentionRole, Recorder
from nmt.layers.blocks import Dropout, module_list
from nmt.layers.choices import Positions
from nmt.layers.positions import LearnedPositions, PositionTable, SinusoidalPositions
from nmt.models.base import State, TranslationModel
from nmt.models.configs import ConvolutionalConfig
from nmt.models.vocabulary import build_vocabulary

EMBEDDING_STD = 0.1  # section 3.5


class Memory(NamedTuple):
    """The encoded source, to which every layer of the decoder attends at every target position."""

    keys: Tensor
    """(B, S, D): the output of the encoder."""
    values: Tensor
    """(B, S, D): keys plus embeddings, scaled by the square root of the sentence's length."""
    mask: Tensor
    """(B, S) bool."""


def merged(x: Tensor, y: Tensor) -> Tensor:
    """Return the sum of x and y, scaled to the variance of one of them."""
    return (x + y) * math.sqrt(0.5)


def with_gradient_scaled(x: Tensor, scale: float) -> Tensor:
    """Return `x`, whose gradient is multiplied by `scale` in backward."""
    constant = x.detach()
    return constant + (x - constant) * scale


def normed_linear(num_inputs: int, num_outputs: int, *, gain: float = 1.0, dropout: float = 0.0) -> nn.Linear:
    """Return a weight-normalised linear map that starts with standard deviation sqrt(gain * p / num_inputs).

    p = 1 - `dropout` is the probability with which its inputs are retained (section 3.5).
    """
    layer = nn.Linear(num_inputs, num_outputs)
    nn.init.normal_(layer.weight, std=math.sqrt(gain * (1.0 - dropout) / num_inputs))
    nn.init.zeros_(layer.bias)
    weight_norm(layer)
    return layer


class Embedding(nn.Module):
    """Map from tokens to vectors of width D: embeddings plus positions of the same size (3.1), dropout."""

    def __init__(self, cfg: ConvolutionalConfig, tokens: nn.Embedding):
        super().__init__()
        self.tokens = tokens
        nn.init.normal_(tokens.weight, std=EMBEDDING_STD)
        self.positions: PositionTable
        if cfg.positions is Positions.learned:
            self.positions = LearnedPositions(cfg.d_model, cfg.max_positions, std=EMBEDDING_STD)
            self.position_scale = 1.0
        else:
            self.positions = SinusoidalPositions(cfg.d_model)
            self.position_scale = EMBEDDING_STD * math.sqrt(2.0)  # the mean square of a sine is a half
        self.dropout = Dropout(cfg.dropout)

    def forward(self, ids: Tensor, start: int | Tensor = 0) -> Tensor:
        """Return (B, T, D) of ids (B, T) at the positions from `start` on."""
        x, positions = self.tokens(ids), self.positions.at(start, ids.shape[1])
        return self.dropout(x + (positions * self.position_scale).to(x.dtype))


class GatedConvolution(nn.Module):
    """Dropout, a convolution and gated linear units (section 3.2).

    The convolution is one matrix product over windows of k positions side by side, which on a CPU with AMX
    trains in two thirds of the time of `nn.Conv1d`. Padding is left to callers: x has k - 1 more positions.
    """

    def __init__(self, cfg: ConvolutionalConfig):
        super().__init__()
        self.kernel_size = cfg.kernel_size
        self.dropout = Dropout(cfg.dropout)
        self.linear = normed_linear(
            cfg.kernel_size * cfg.d_model, 2 * cfg.d_model, gain=4.0, dropout=cfg.dropout
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, T, D) of x (B, T + k - 1, D)."""
        x = self.dropout(x)
        length = x.shape[1] - self.kernel_size + 1
        windows = torch.cat([x[:, i : i + length] for i in range(self.kernel_size)], dim=-1)  # (B, T, k * D)
        return F.glu(self.linear(windows), dim=-1)


class EncoderLayer(nn.Module):
    """A convolution that sees (k - 1) / 2 positions to either side, as a residual block."""

    def __init__(self, cfg: ConvolutionalConfig):
        super().__init__()
        self.convolution = GatedConvolution(cfg)
        self.reach = cfg.kernel_size // 2

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        """Return (B, S, D) of x (B, S, D), which counts as 0 where `padding` (B, S, 1) is True."""
        windows = F.pad(x.masked_fill(padding, 0.0), (0, 0, self.reach, self.reach))
        return merged(x, self.convolution(windows))


class ConvAttention(Recorder):
    """Dot-product attention of one layer of the decoder to the source (section 3.3, equations 1 and 2)."""

    def __init__(self, d_model: int):
        super().__init__(AttentionRole.cross)
        self.query = normed_linear(d_model, d_model)

    def forward(self, x: Tensor, embedded: Tensor, memory: Memory) -> Tensor:
        """Return contexts (B, T, D), given x (B, T, D) and the embedded target tokens (B, T, D)."""
        scores = merged(self.query(x), embedded) @ memory.keys.transpose(1, 2)
        weights = scores.masked_fill(~memory.mask[:, None, :], -torch.inf).softmax(dim=-1)
        self.record(weights)
        return weights.to(memory.values.dtype) @ memory.values


class DecoderLayer(nn.Module):
    """A convolution that sees k - 1 positions before its own, then attention: one residual block."""

    def __init__(self, cfg: ConvolutionalConfig):
        super().__init__()
        self.convolution = GatedConvolution(cfg)
        self.attention = ConvAttention(cfg.d_model)
        self.reach = cfg.kernel_size - 1

    def forward(self, x: Tensor, embedded: Tensor, memory: Memory) -> Tensor:
        """Return (B, T, D) of x and the embedded target tokens, both (B, T, D)."""
        hidden = self.convolution(F.pad(x, (0, 0, self.reach, 0)))
        return self.read(x, hidden, embedded, memory)

    def read(self, x: Tensor, hidden: Tensor, embedded: Tensor, memory: Memory) -> Tensor:
        """Return the output for input x and its convolution `hidden`, all (B, T, D)."""
        return merged(x, merged(hidden, self.attention(hidden, embedded, memory)))

    def step(self, x: Tensor, embedded: Tensor, memory: Memory, past: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output for x and embedded (N, 1, D) after `past` (N, k - 1, D), and the next `past`.

        `past` are earlier x. The hypotheses of a sentence are K queries over the one copy of its memory.
        """
        window = torch.cat([past, x], dim=1)
        hidden = self.convolution(window)
        B, D = len(memory.mask), x.shape[-1]
        out = self.read(x.view(B, -1, D), hidden.view(B, -1, D), embedded.view(B, -1, D), memory)
        return out.view_as(x), window[:, 1:]


class Convolutional(TranslationModel):
    """See the module's docstring; the contract is in `nmt.models.base`."""

    def __init__(self, cfg: ConvolutionalConfig, *, src_vocab_size: int, tgt_vocab_size: int):
        super().__init__()
        vocabulary = build_vocabulary(
            cfg.tying, cfg.d_model, src_vocab_size=src_vocab_size, tgt_vocab_size=tgt_vocab_size
        )
        self.src_embedding = Embedding(cfg, vocabulary.src)
        self.tgt_embedding = Embedding(cfg, vocabulary.tgt)
        self.output = vocabulary.output
        self.max_length = cfg.longest
        self.encoder_input = normed_linear(cfg.d_model, cfg.d_model, dropout=cfg.dropout)
        self.encoder = module_list(EncoderLayer(cfg) for _ in range(cfg.encoder_layers))
        self.encoder_output = normed_linear(cfg.d_model, cfg.d_model)
        self.decoder_input = normed_linear(cfg.d_model, cfg.d_model, dropout=cfg.dropout)
        self.decoder = module_list(DecoderLayer(cfg) for _ in range(cfg.decoder_layers))
        self.decoder_output = normed_linear(cfg.d_model, cfg.d_model)
        self.dropout = Dropout(cfg.dropout)
        # Each attention sends back a gradient to the encoder, through its keys and through its values.
        self.encoder_gradient_scale = 1.0 / (2 * cfg.decoder_layers)

    def forward(self, src: Tensor, src_mask: Tensor, tgt_in: Tensor) -> Tensor:
        """Return the hidden states (B, T, D) of every target position, given the reference before it."""
        memory = self.encode(src, src_mask)
        embedded = self.tgt_embedding(tgt_in)
        x = self.decoder_input(embedded)
        for layer in self.decoder:  # padding is at the end, which no real position sees
            x = layer(x, embedded, memory)
        return self.dropout(self.decoder_output(x))

    def start(self, src: Tensor, src_mask: Tensor) -> State:
        """Encode the source; before the first target token, every layer of the decoder has seen zeros."""
        memory = self.encode(src, src_mask)
        return State(
            source=memory._asdict(),
            target={
                str(i): memory.keys.new_zeros(len(src), layer.reach, memory.keys.shape[-1])
                for i, layer in enumerate(self.decoder)
            },
        )

    def advance(self, last: Tensor, state: State) -> Tensor:
        """Return the hidden states (N, D) that predict the token after `last` (N,)."""
        memory = Memory(**state.source)
        embedded = self.tgt_embedding(last[:, None], start=state.position)
        x = self.decoder_input(embedded)
        for i, layer in enumerate(self.decoder):
            x, state.target[str(i)] = layer.step(x, embedded, memory, state.target[str(i)])
        state.position += 1
        return self.dropout(self.decoder_output(x[:, 0]))

    def encode(self, src: Tensor, src_mask: Tensor) -> Memory:
        """Return the memory of source ids (B, S)."""
        embedded = self.src_embedding(src)
        x = self.encoder_input(embedded)
        for layer in self.encoder:
            x = layer(x, ~src_mask[:, :, None])
        keys = with_gradient_scaled(self.encoder_output(x), self.encoder_gradient_scale)
        # The context is a mean of m vectors: m * sqrt(1 / m) = sqrt(m) restores their variance (section 3.4).
        num_tokens = src_mask.sum(dim=1)[:, None, None]
        values = merged(keys, embedded) * num_tokens.sqrt()
        return Memory(keys, values.to(keys.dtype), src_mask)
