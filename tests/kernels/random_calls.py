"""Calls of the kernels with random sizes, types and strides, and calls that break one of their rules."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from nmt.layers.choices import Activation

SIZES = (0, 1, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 64, 65)
"""Around the numbers of elements that are handled at once: 8, 16, and 32 or 64 on tiles."""
FLOATS = (torch.float32, torch.bfloat16)
Arguments = list[Any]


class Draw:
    """A source of random sizes and tensors; equal seeds give equal draws."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        torch.manual_seed(seed)

    def size(self, least: int = 0) -> int:
        """Return the size of an axis."""
        return max(least, self.random.choice(SIZES))

    def few(self) -> int:
        """Return a size of which several may be multiplied."""
        return self.random.choice((0, 1, 2, 3, 5))

    def dtype(self) -> torch.dtype:
        """Return a type that kernels of training take."""
        return self.random.choice(FLOATS)

    def rate(self) -> float:
        """Return a rate of dropout."""
        return self.random.choice((0.0, 0.1, 0.9))

    def heads(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return heads whose last axis is the end of a wider one, as packed maps leave it."""
        *others, channels = shape
        before = self.random.choice((0, 0, 3, 16))
        return torch.randn(*others, before + channels).to(dtype)[..., before:]

    def ids(self, *shape: int, below: int, dtype: torch.dtype = torch.int64) -> Tensor:
        """Return ids with the first and the last one among them."""
        ids = torch.randint(below, shape, dtype=dtype)
        ends = torch.tensor([0, below - 1], dtype=dtype)[: ids.numel()]
        ids.view(-1)[: len(ends)] = ends
        return ids

    def tiles(self) -> bool:
        """Return whether all weights are in tiles, which needs a machine that has them."""
        return bool(torch.ops.nmt.has_tiles()) and self.random.choice((True, False))

    def mask(self, *shape: int) -> Tensor | None:
        """Return a mask, or one with axes to expand, or none."""
        if self.random.random() < 0.3:
            return None
        return torch.rand([self.random.choice((1, size)) for size in shape]) < 0.7


def _add_dropout(draw: Draw) -> Arguments:
    shape = draw.size(), draw.size()
    return [*(torch.randn(shape).to(draw.dtype()) for _ in range(2)), draw.rate(), 5]


def _dropout(draw: Draw) -> Arguments:
    return [torch.randn(draw.size(), draw.size()).to(draw.dtype()), draw.rate(), 5, draw.dtype()]


def _relu_dropout(draw: Draw) -> Arguments:
    return [torch.randn(draw.size(), draw.size()).to(draw.dtype()), draw.rate(), 5]


def _relu_dropout_backward(draw: Draw) -> Arguments:
    shape, dtype = (draw.size(), draw.size()), draw.dtype()
    return [*(torch.randn(shape).to(dtype) for _ in range(2)), draw.rate()]


def _layer_norm(draw: Draw) -> Arguments:
    rows, width = draw.size(), draw.size(1)
    weights = torch.randn(width), torch.randn(width)
    return [torch.randn(rows, width).to(draw.dtype()), *weights, 1e-5, draw.dtype()]


def _layer_norm_backward(draw: Draw) -> Arguments:
    rows, width = draw.size() * draw.random.choice((1, 1, 20)), draw.size(1)
    x, grad = (torch.randn(rows, width).to(draw.dtype()) for _ in range(2))
    return [grad, x, torch.randn(width), torch.randn(rows), torch.rand(rows)]


def _rms_norm(draw: Draw) -> Arguments:
    rows, width = draw.size(), draw.size(1)
    return [torch.randn(rows, width).to(draw.dtype()), torch.randn(width), 1e-5, draw.dtype()]


def _rms_norm_backward(draw: Draw) -> Arguments:
    grad, x, weight, _, scale = _layer_norm_backward(draw)
    return [grad, x, weight, scale]


def _rotate(draw: Draw) -> Arguments:
    length, channels = draw.size(), 2 * draw.size()
    x = draw.heads(draw.few(), length, draw.few(), channels, dtype=draw.dtype())
    return [x, torch.randn(length, channels), draw.random.choice((1.0, -1.0))]


def _attention(draw: Draw) -> Arguments:
    num, heads, queries, keys, dtype = draw.few(), draw.few(), draw.size(), draw.size(), draw.dtype()
    d_k, d_v = draw.size(1), draw.size(1)
    shapes = (num, queries, heads, d_k), (num, keys, heads, d_k), (num, keys, heads, d_v)
    mask = draw.mask(num, queries, keys)
    return [*(draw.heads(*shape, dtype=dtype) for shape in shapes), mask, draw.rate(), 5]


def _attention_backward(draw: Draw) -> Arguments:
    *inputs, mask, rate, seed = _attention(draw)
    out, weights = torch.ops.nmt.attention(*inputs, mask, rate, seed)
    return [torch.randn_like(out), *inputs, weights, rate, seed]


def _smoothed_nll(draw: Draw) -> Arguments:
    rows, vocab_size = draw.size(), draw.size(1)
    return [torch.randn(rows, vocab_size).to(draw.dtype()), draw.ids(rows, below=vocab_size), 0.1]


def _attend(draw: Draw) -> Arguments:
    num, heads, d_k, d_v = draw.size(), draw.few() + 1, draw.size(1), draw.size(1)
    chunks = [(draw.few() + 1, draw.random.choice((1, 1, 9))) for _ in range(draw.few() + 1)]
    keys = [draw.heads(rows, heads, length, d_k) for rows, length in chunks]
    values = [draw.heads(rows, heads, length, d_v) for rows, length in chunks]
    rows = torch.stack([draw.ids(num, below=rows, dtype=torch.int32) for rows, _ in chunks], dim=1)
    mask = draw.random.choice((None, torch.rand(chunks[0]) < 0.7))
    bias = draw.random.choice((None, torch.randn(1, heads, 1, sum(length for _, length in chunks))))
    return [draw.heads(num, heads, 1, d_k), keys, values, rows.contiguous(), mask, bias]


def _choice(draw: Draw, num_sentences: int, num_beams: int, vocab_size: int) -> Arguments:
    """Return the rules of `best_of_logits` and `best_of_hidden`."""
    before, ending = -torch.rand(num_sentences, num_beams), torch.rand(num_sentences) < 0.3
    end_id, num = draw.random.choice((0, vocab_size - 1)), draw.random.choice((1, 2, 7, 40))
    return [before, torch.rand(vocab_size) < 0.2, ending, end_id, num]


def _best_of_logits(draw: Draw) -> Arguments:
    num_sentences, num_beams, vocab_size = draw.size(), draw.few(), draw.size(1) * draw.random.choice((1, 5))
    logits = torch.randn(num_sentences * num_beams, vocab_size)
    return [logits, *_choice(draw, num_sentences, num_beams, vocab_size)]


def _linear(draw: Draw) -> Arguments:
    rows, inner, cols = draw.size(), draw.size(), draw.size()
    bias = draw.random.choice((None, torch.randn(cols)))
    return [
        torch.randn(rows, inner).bfloat16(),
        torch.randn(cols, inner),
        bias,
        *draw.random.choice(((), (0.1, 5))),
    ]


def _linear_backward(draw: Draw) -> Arguments:
    x, weight, *_ = _linear(draw)
    grad = torch.randn(len(x), len(weight)).bfloat16()
    return [grad, x, weight, *draw.random.choices((True, False), k=3), draw.random.choice((None, 0.0, 0.1))]


def _projected_nll(draw: Draw) -> Arguments:
    rows, inner, vocab_size = draw.size() * draw.random.choice((1, 1, 40)), draw.size(), draw.size(1)
    hidden, weight = torch.randn(rows, inner).bfloat16(), torch.randn(vocab_size, inner)
    needed = draw.random.choices((True, False), k=2)
    return [hidden, weight, draw.ids(rows, below=vocab_size), 0.1, *needed]


def _linear_map(draw: Draw) -> Arguments:
    rows, inputs, outputs = draw.size(), draw.size(), draw.size()
    bias = draw.random.choice((None, torch.randn(outputs)))
    weight = _weight(draw, outputs, inputs)
    return [torch.randn(rows, inputs), weight, bias, outputs, draw.random.choice((True, False))]


def _weight(draw: Draw, outputs: int, inputs: int) -> Tensor:
    """Return a weight as it is, or packed in one of the ways of this machine."""
    kinds: list[Callable[[], Tensor]] = [lambda: torch.randn(outputs, inputs)]
    if torch.ops.nmt.has_tiles():
        kinds.append(lambda: _in_tiles(outputs, inputs))
    if torch.ops.nmt.most_int8_weight():
        kinds.append(lambda: torch.ops.nmt.pack_int8(_int8(outputs, inputs), torch.rand(outputs)))
    return draw.random.choice(kinds)()


def _in_tiles(outputs: int, inputs: int) -> Tensor:
    packed: Tensor = torch.ops.nmt.pack_weights(torch.randn(outputs, inputs))
    return packed


def _best_of_hidden(draw: Draw) -> Arguments:
    num_sentences, num_beams, vocab_size, inputs = draw.size(), draw.few(), draw.size(1), draw.size()
    bias = draw.random.choice((None, torch.randn(vocab_size)))
    hidden = torch.randn(num_sentences * num_beams, inputs)
    weight = _weight(draw, vocab_size, inputs)
    return [hidden, weight, bias, vocab_size, *_choice(draw, num_sentences, num_beams, vocab_size)]


def _int8(*shape: int) -> Tensor:
    most = torch.ops.nmt.most_int8_weight()
    return torch.randint(-most, most + 1, shape, dtype=torch.int8)


def _pack_int8(draw: Draw) -> Arguments:
    outputs = draw.size()
    return [_int8(outputs, draw.size()), torch.rand(outputs)]


def _with_biases(draw: Draw, shapes: Sequence[tuple[int, ...]], *, in_tiles: bool) -> list[Tensor | None]:
    """Return a weight of each shape, and behind it a bias or None; `in_tiles` is for all maps."""
    weight = _in_tiles if in_tiles else functools.partial(_weight, draw)
    weights = [torch.randn(shape) if len(shape) == 1 else weight(*shape) for shape in shapes]
    biases = [draw.random.choice((None, torch.randn(shape[0]))) for shape in shapes]
    return [x for both in zip(weights, biases, strict=True) for x in both]


def _decoder_step(draw: Draw) -> Arguments:
    num, num_layers, heads, width = draw.size(1), draw.few() + 1, draw.few() + 1, draw.size(1)
    d_k, d_v, d_ff = 2 * draw.size(1), draw.size(1), draw.size(1)
    sides, has_source = heads * (d_k + d_v), draw.random.choice((True, False))
    activation = draw.random.choice([*Activation])
    inner = 2 * d_ff if activation.value.endswith("glu") else d_ff
    own = [(width,), (heads * d_k, width), (sides, width), (width, heads * d_v)]
    cells = draw.random.choice((None, torch.randn(num, num_layers, width)))
    if cells is not None:
        own = [(width,), (2 * width, width)]
    cross = [(width,), (heads * d_k, width), (width, heads * d_v)] if has_source else []
    block = [(width,), (inner, width), (width, d_ff)]
    normed, in_tiles = draw.random.choice((True, False)), draw.tiles()
    weights: list[Tensor | None] = []
    for _ in range(num_layers):
        norms = [torch.randn(d_k) if normed else None for _ in range(3)]
        weights += [*_with_biases(draw, own, in_tiles=in_tiles), *(norms[:2] if cells is None else [])]
        weights += [*_with_biases(draw, cross, in_tiles=in_tiles), *(norms[2:] if has_source else [])]
        weights += _with_biases(draw, block, in_tiles=in_tiles)
    rounds, chunks = (
        draw.random.choice((True, False)),
        [(draw.few() + 1, draw.random.choice((1, 1, 9)))] * draw.few(),
    )
    dtype = torch.bfloat16 if rounds else torch.float32
    past = [torch.randn(num_layers, *chunk, sides).to(dtype) for chunk in chunks]
    places = [draw.ids(num, below=rows, dtype=torch.int32) for rows, _ in chunks]
    columns = 1 + sum(length for _, length in chunks)
    sentences, length = draw.few() + 1, draw.size(1)
    return [
        torch.randn(num, width),
        weights,
        *(
            num_layers,
            heads,
            d_k,
            d_v,
            d_ff,
            draw.random.choice((True, False)),
            draw.random.choice((True, False)),
        ),
        *(1e-5, 1e-6, activation.value, rounds, past),
        torch.stack(places, dim=1).contiguous() if places else torch.zeros(num, 0, dtype=torch.int32),
        torch.rand(chunks[0]) < 0.7 if chunks and draw.random.random() < 0.5 else None,
        draw.random.choice((None, torch.randn(1, d_k))),
        draw.random.choice(([], [torch.randn(1, heads, 1, columns)] * num_layers)),
        [torch.randn(sentences, heads * d_k, -(-length // 16) * 16).to(dtype)] * (num_layers * has_source),
        [torch.randn(sentences, length, heads * d_v).to(dtype)] * (num_layers * has_source),
        torch.rand(sentences, length) < 0.7,
        draw.ids(num, 1, below=sentences, dtype=torch.int32),
        cells,
    ]


def _arrange_source(draw: Draw) -> Arguments:
    heads, length = draw.few() + 1, draw.size()
    parts = [(draw.few(), draw.random.randint(0, length)) for _ in range(draw.few() + 1)]
    sides = [
        [draw.heads(num, heads, own, size) for num, own in parts] for size in (draw.size(1), draw.size(1))
    ]
    return [*sides, length, draw.random.choice((True, False))]


def _encoder_layers(draw: Draw) -> Arguments:
    lengths = torch.tensor([draw.size() for _ in range(draw.few() + 1)])
    num_layers, heads, width = draw.few() + 1, draw.few() + 1, draw.size(1)
    d_k, d_v, d_ff = 2 * draw.size(1), draw.size(1), draw.size(1)
    activation = draw.random.choice([*Activation])
    inner = 2 * d_ff if activation.value.endswith("glu") else d_ff
    own = [(width,), (heads * d_k, width), (heads * (d_k + d_v), width), (width, heads * d_v)]
    block = [(width,), (inner, width), (width, d_ff)]
    normed, in_tiles = draw.random.choice((True, False)), draw.tiles()
    weights: list[Tensor | None] = []
    for _ in range(num_layers):
        weights += _with_biases(draw, own, in_tiles=in_tiles)
        weights += [torch.randn(d_k) if normed else None for _ in range(2)]
        weights += _with_biases(draw, block, in_tiles=in_tiles)
    num = int(lengths.sum())
    return [
        torch.randn(num, width),
        *(weights, num_layers, heads, d_k, d_v, d_ff),
        *(draw.random.choice((True, False)) for _ in range(2)),
        *(1e-5, 1e-6, activation.value, lengths),
        draw.random.choice((None, torch.randn(num, d_k))),
    ]


ANYWHERE: dict[str, Callable[[Draw], Arguments]] = {
    "add_dropout": _add_dropout,
    "dropout": _dropout,
    "relu_dropout": _relu_dropout,
    "relu_dropout_backward": _relu_dropout_backward,
    "layer_norm": _layer_norm,
    "layer_norm_backward": _layer_norm_backward,
    "rms_norm": _rms_norm,
    "rms_norm_backward": _rms_norm_backward,
    "rotate": _rotate,
    "attention": _attention,
    "attention_backward": _attention_backward,
    "smoothed_nll_": _smoothed_nll,
    "attend": _attend,
    "best_of_logits": _best_of_logits,
    "linear_map": _linear_map,
    "best_of_hidden": _best_of_hidden,
    "arrange_source": _arrange_source,
    "decoder_step": _decoder_step,
    "encoder_layers": _encoder_layers,
}
"""Kernels of every machine, each with what draws arguments that it must take."""
ON_TILES: dict[str, Callable[[Draw], Arguments]] = {
    "linear": _linear,
    "linear_backward": _linear_backward,
    "projected_nll": _projected_nll,
}
"""Those of machines with AMX."""
IN_8_BITS: dict[str, Callable[[Draw], Arguments]] = {"pack_int8": _pack_int8}
"""Those of machines with AVX2 or VNNI."""


def _misplaced(x: Tensor) -> Tensor:
    """Return a copy of `x` at an odd address."""
    data = bytearray(x.numel() * x.element_size() + 1)
    return torch.frombuffer(data, dtype=x.dtype, count=x.numel(), offset=1).view(x.shape) if x.numel() else x


DAMAGES: tuple[Callable[[Tensor, random.Random], Tensor], ...] = (
    lambda x, rng: x.to(rng.choice((torch.float64, torch.float16, torch.int32, torch.bool))),
    lambda x, rng: x.new_zeros([n + rng.choice((-1, 0, 1)) if n else n for n in x.shape]),
    lambda x, rng: x.flatten(),
    lambda x, rng: x[None],
    lambda x, rng: x.repeat_interleave(2, -1)[..., ::2],
    lambda x, rng: x.mT.contiguous().mT if x.dim() > 1 else x,
    lambda x, rng: x[:1].expand(x.shape) if len(x) else x,
    lambda x, rng: x[..., :0],
    lambda x, rng: x.to("meta"),
    lambda x, rng: torch.full_like(x, rng.choice((-1, 10**6))) if x.element_size() > 1 else ~x,
    lambda x, rng: torch.full_like(x, torch.nan) if x.is_floating_point() else x,
    lambda x, rng: _misplaced(x),
)
"""What a caller may get wrong about a tensor; some of it is harmless."""


def damaged(arguments: Arguments, rng: random.Random) -> Arguments:
    """Return the arguments with one of them damaged."""
    result = list(arguments)
    damageable = (i for i, x in enumerate(result) if isinstance(x, Tensor | list | int | float))
    place = rng.choice([i for i in damageable if not isinstance(result[i], list) or len(result[i])])
    value = result[place]
    if isinstance(value, Tensor):
        result[place] = rng.choice(DAMAGES)(value, rng)
    elif isinstance(value, list):
        chunk = rng.choice([i for i, x in enumerate(value) if x is not None])
        others = [rng.choice(DAMAGES)(value[chunk], rng)] if rng.random() < 0.8 else []
        result[place] = [*value[:chunk], *others, *value[chunk + 1 :]]
    elif isinstance(value, float):
        result[place] = rng.choice((-1.0, 1.0, torch.nan, torch.inf))
    elif not isinstance(value, bool):
        result[place] = rng.choice((-1, 0, value + 1, 2**31, 2**62))
    return result


def kernels_here() -> dict[str, Callable[[Draw], Arguments]]:
    """Return the kernels that this machine runs."""
    tiles, int8 = torch.ops.nmt.has_tiles(), torch.ops.nmt.most_int8_weight() > 0
    return ANYWHERE | (ON_TILES if tiles else {}) | (IN_8_BITS if int8 else {})
