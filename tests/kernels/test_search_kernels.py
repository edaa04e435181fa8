"""The kernels of search against plain torch, and search that uses them against search that does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from nmt import kernels
from nmt.data.special_ids import BOS_ID, EOS_ID, PAD_ID
from nmt.decoding import candidates
from nmt.decoding.beam_search import beam_search
from nmt.decoding.configs import BeamConfig, SamplingConfig
from nmt.decoding.sampling import sample
from nmt.kernels.fused import Linear
from nmt.layers.attention import recorded_attention
from nmt.layers.blocks import FeedForward
from nmt.layers.choices import Activation, Norm, NormOrder, Positions, SelfAttention
from nmt.layers.low_precision import LowPrecisionLinear, in_low_precision
from nmt.models import build_model
from nmt.models.base import TranslationModel
from nmt.models.configs import DecoderOnlyConfig, TransformerConfig, Tying
from nmt.models.fused_layers import FusedLayers, fused_layers
from nmt.models.fused_step import FusedCache
from nmt.runtime_config import Precision

VOCAB_SIZE = 203

pytestmark = pytest.mark.skipif(not kernels.load(), reason="the kernels cannot be built here")
needs_tiles = pytest.mark.skipif(
    not (kernels.load() and torch.ops.nmt.has_tiles()), reason="this machine has no AMX"
)
needs_int8 = pytest.mark.skipif(not kernels.has_int8(), reason="this machine has no kernel for 8 bits")
IN_KERNELS = [
    Precision.fp32,
    pytest.param(Precision.bf16, marks=needs_tiles),
    pytest.param(Precision.int8, marks=needs_int8),
]
"""Precisions of weights that a kernel multiplies with."""


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("d_k", "d_v"), [(1, 5), (16, 32), (33, 64)])
@pytest.mark.parametrize("parts", [[(1, 1)], [(2, 16), (3, 17)], [(3, 4), (0, 0), (1, 20)]])
def test_keys_and_values_of_a_source(
    dtype: torch.dtype, d_k: int, d_v: int, parts: list[tuple[int, int]]
) -> None:
    longest, packed = max(length for _, length in parts), 2 * (d_k + d_v)
    rows = [torch.randn(num, length, packed) for num, length in parts]
    sides = [
        [x.unflatten(2, (2, x.shape[2] // 2)).transpose(1, 2) for x in one]
        for one in zip(*(x.split([2 * d_k, 2 * d_v], dim=2) for x in rows), strict=True)
    ]
    keys, values = torch.ops.nmt.arrange_source(*sides, longest, dtype is torch.bfloat16)
    whole = [
        torch.cat([F.pad(x, (0, 0, 0, longest - x.shape[2])) for x in one]).to(dtype)  # (B, 2, S, C)
        for one in sides
    ]
    assert_close(keys[:, :, :longest], whole[0].mT.flatten(1, 2), rtol=0, atol=0)
    assert keys.shape[2] == -(-longest // 16) * 16
    assert not keys[:, :, longest:].any()
    assert_close(values, whole[1].transpose(1, 2).flatten(2), rtol=0, atol=0)


@pytest.mark.parametrize("d_k", [1, 7, 8, 16, 24, 33, 64, 128])
@pytest.mark.parametrize("d_v", [5, 32, 128])
@pytest.mark.parametrize(("lengths", "num_rows"), [([1], 1), ([9], 6), ([4, 1, 1], 5)])
@pytest.mark.parametrize(("has_mask", "has_bias"), [(False, False), (True, False), (True, True)])
def test_attention(
    d_k: int, d_v: int, lengths: list[int], num_rows: int, has_mask: bool, has_bias: bool
) -> None:
    num, heads, total = 7, 3, sum(lengths)
    keys = [torch.randn(num_rows, n, heads, d_k).transpose(1, 2) for n in lengths]
    values = [torch.randn(num_rows, n, heads, d_v).transpose(1, 2) for n in lengths]
    rows = torch.randint(num_rows, (num, len(lengths)), dtype=torch.int32)
    queries = torch.randn(num, 1, heads, d_k).transpose(1, 2)
    mask = torch.rand(num_rows, lengths[0]) < 0.5
    mask[:, 0] = True
    bias = torch.randn(1, heads, 1, total)

    added = torch.zeros(num, heads, 1, total) + (bias if has_bias else 0.0)
    if has_mask:
        allowed = F.pad(mask[rows[:, 0].long()], (0, total - lengths[0]), value=True)
        added = added.masked_fill(~allowed[:, None, None], -torch.inf)
    gathered_keys, gathered_values = (
        torch.cat([chunk[rows[:, i].long()] for i, chunk in enumerate(chunks)], dim=2)
        for chunks in (keys, values)
    )
    expected = F.scaled_dot_product_attention(queries, gathered_keys, gathered_values, attn_mask=added)
    found = torch.ops.nmt.attend(
        queries, keys, values, rows, mask if has_mask else None, bias if has_bias else None
    )
    assert_close(found, expected.transpose(1, 2).flatten(2))


@needs_tiles
@pytest.mark.parametrize("num_rows", [1, 5, 16, 17, 32, 100])
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (31, 33), (32, 32), (64, 100), (200, 16)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_products_of_rounded_numbers(num_rows: int, inputs: int, outputs: int, has_bias: bool) -> None:
    linear = nn.Linear(inputs, outputs, bias=has_bias)
    x = torch.randn(num_rows, inputs)
    bias = linear.bias if has_bias else torch.zeros(outputs)
    expected = x.bfloat16().double() @ linear.weight.bfloat16().double().t() + bias
    found = LowPrecisionLinear(linear, Precision.bf16)(x[:, None])
    assert_close(found[:, 0], expected.float(), atol=1e-5, rtol=1e-5)
    with kernels.disabled():
        plain = LowPrecisionLinear(linear, Precision.bf16)(x)
    assert plain.dtype is torch.float32
    assert_close(plain, expected.float(), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("num_rows", [1, 5, 9, 16, 17, 100])
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (31, 33), (32, 64), (64, 100), (200, 16)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_products_of_float32(num_rows: int, inputs: int, outputs: int, has_bias: bool) -> None:
    """In panels where that gains, and as torch has them; what a row gives is its own."""
    linear, x = Linear(inputs, outputs, bias=has_bias), torch.randn(num_rows, inputs)
    bias = linear.bias if has_bias else torch.zeros(outputs)
    expected = (x.double() @ linear.weight.double().t() + bias).float()
    found = linear(x[:, None])[:, 0]
    assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert_close(torch.ops.nmt.linear_map(x, linear.weight, bias, outputs, True), expected.relu())
    if torch.ops.nmt.has_panels() and num_rows > 9:
        assert torch.equal(linear(x[:10]), found[:10])
    x[0, inputs // 2] = torch.nan
    assert linear(x)[0].isnan().all()
    assert linear(x)[1:].isfinite().all()


@needs_int8
@pytest.mark.parametrize("sign", [1, -1])
def test_sums_of_the_largest_numbers_do_not_overflow(sign: int) -> None:
    linear = nn.Linear(2048, 40, bias=False)
    linear.weight.fill_(sign * 0.5)
    x = torch.tensor([[1.0], [-1.0]]).expand(2, 2048)
    assert_close(LowPrecisionLinear(linear, Precision.int8)(x), x @ linear.weight.t())


@needs_int8
@pytest.mark.parametrize("num_rows", [1, 5, 16, 17, 32, 33, 100])
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (64, 31), (64, 33), (99, 70), (128, 64), (320, 70)])
def test_products_of_bytes_are_exact_for_any_number_of_rows(num_rows: int, inputs: int, outputs: int) -> None:
    """Of many rows in tiles of AMX, and of few, and of other sizes, in vectors."""
    linear, x = nn.Linear(inputs, outputs), torch.randn(num_rows, inputs)
    multiply = LowPrecisionLinear(linear, Precision.int8)
    found = multiply(x)
    assert torch.equal(found, torch.cat([multiply(row) for row in x.split(1)]))
    weight = (linear.weight / multiply.scales[:, None]).round()
    largest = x.abs().amax(1, keepdim=True)
    sums = (x * (127 / largest)).round().double() @ weight.double().t()
    expected = sums.float() * (multiply.scales * (largest / 127)) + linear.bias
    assert_close(found, expected, atol=1e-6, rtol=1e-6)
    x[0, 0] = torch.nan
    assert multiply(x)[0].isnan().all()
    assert torch.equal(multiply(x)[1:], found[1:])


class Projection(nn.Module):
    """As much of a model as choosing continuations asks for."""

    def __init__(self, width: int, vocab_size: int, precision: Precision):
        super().__init__()
        linear = Linear(width, vocab_size)
        linear.weight.data = linear.weight.bfloat16().float()
        self.output = linear if precision is Precision.fp32 else LowPrecisionLinear(linear, precision)

    def project(self, hidden: Tensor) -> Tensor:
        return self.output(hidden)


def scores_without_kernels(projection: Projection, hidden: Tensor, before: Tensor, ending: Tensor) -> Tensor:
    """Return the log probability (B, K, V) of every continuation; -inf where it is not allowed."""
    log_probs = projection.project(hidden).log_softmax(-1).view(*before.shape, -1)
    for b, k, v in torch.cartesian_prod(*map(torch.arange, log_probs.shape)).tolist():
        if v in (PAD_ID, BOS_ID) or (ending[b] and v != EOS_ID):
            log_probs[b, k, v] = -torch.inf
    return log_probs + before[:, :, None]


@pytest.mark.parametrize("precision", IN_KERNELS)
@pytest.mark.parametrize("num_beams", [1, 3, 5, 40])
@pytest.mark.parametrize("vocab_size", [11, 64, 203])
def test_the_best_continuations(precision: Precision, num_beams: int, vocab_size: int) -> None:
    num_sentences, width, num = 9, 24, min(2 * num_beams, num_beams * vocab_size)
    projection = Projection(width, vocab_size, precision)
    hidden = torch.randn(num_sentences * num_beams, width).bfloat16().float()
    before = -5 * torch.rand(num_sentences, num_beams)
    before[0, 1:] = -torch.inf
    ending = torch.arange(num_sentences) % 3 == 1
    scores = scores_without_kernels(projection, hidden, before, ending).flatten(1)
    found = candidates.best_candidates(projection, hidden, before, ending, num)  # type: ignore[arg-type]
    best = scores.topk(num).values
    assert_close(found.log_probs, best, atol=1e-5, rtol=1e-5)
    real = best > -torch.inf
    places = found.parents * vocab_size + found.tokens  # of equal scores either may come first
    assert_close(scores.gather(1, places)[real], found.log_probs[real], atol=1e-5, rtol=1e-5)
    assert all(len({*row[kept].tolist()}) == kept.sum() for row, kept in zip(places, real, strict=True))
    assert not (found.tokens[~real] == EOS_ID).any()


@pytest.mark.parametrize("precision", IN_KERNELS)
@pytest.mark.parametrize(("num_sentences", "num_beams"), [(1, 5), (2, 1), (13, 5), (1, 70), (150, 1)])
def test_the_best_continuations_do_not_depend_on_the_number_of_threads(
    precision: Precision, num_sentences: int, num_beams: int
) -> None:
    """Of few sentences and of several blocks of rows, which all threads multiply together."""
    if precision is Precision.fp32:  # torch multiplies more
        num_beams = min(num_beams, candidates.FEW_ROWS)
        num_sentences = min(num_sentences, candidates.FEW_ROWS // num_beams)
    projection = Projection(64, 203, precision)
    hidden = torch.randn(num_sentences * num_beams, 64)
    before, ending = -torch.rand(num_sentences, num_beams), torch.arange(num_sentences) % 3 == 1
    threads, found = torch.get_num_threads(), []
    for num in (1, 2, 3):
        torch.set_num_threads(num)
        try:
            found.append(candidates.best_candidates(projection, hidden, before, ending, 6))  # type: ignore[arg-type]
        finally:
            torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(map(torch.equal, other, found[0]))


def test_a_transposed_output_is_left_to_torch() -> None:
    projection = Projection(24, 203, Precision.fp32)
    state = torch.randn(4, 24), -torch.rand(2, 2), torch.zeros(2, dtype=torch.bool)
    expected = candidates.best_candidates(projection, *state, 4)  # type: ignore[arg-type]
    weight = projection.output.weight
    weight.data = weight.data.t().contiguous().t()
    found = candidates.best_candidates(projection, *state, 4)  # type: ignore[arg-type]
    assert torch.equal(found.tokens, expected.tokens)
    assert_close(found.log_probs, expected.log_probs)


def peaked(model: TranslationModel) -> TranslationModel:
    """Return the model with larger weights, so that its translations are not all alike, and end sometimes."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.mul_(1.5)
    return model.eval()


def transformer(positions: Positions) -> TranslationModel:
    cfg = TransformerConfig(
        d_model=24, d_ff=40, num_heads=3, encoder_layers=2, decoder_layers=2, positions=positions
    )
    return peaked(build_model(cfg, src_vocab_size=VOCAB_SIZE, tgt_vocab_size=VOCAB_SIZE))


def decoder_only(positions: Positions) -> TranslationModel:
    cfg = DecoderOnlyConfig(d_model=24, d_ff=40, num_heads=3, num_layers=2, positions=positions)
    return peaked(build_model(cfg, src_vocab_size=VOCAB_SIZE, tgt_vocab_size=VOCAB_SIZE))


Sentences = tuple[Tensor, Tensor]


@pytest.fixture
def batch() -> Sentences:
    src, lengths = torch.randint(4, VOCAB_SIZE, (12, 9)), torch.arange(12) % 9 + 1
    return src, torch.arange(9) < lengths[:, None]


@pytest.mark.parametrize("make", [transformer, decoder_only])
@pytest.mark.parametrize("positions", Positions)
@pytest.mark.parametrize("beam_size", [1, 4])
def test_search_with_kernels_equals_search_without(
    make: Callable[[Positions], TranslationModel],
    positions: Positions,
    beam_size: int,
    batch: Sentences,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the kernels read the source in several parts."""
    model, cfg = make(positions), BeamConfig(beam_size=beam_size, n_best=beam_size)
    monkeypatch.setattr("nmt.models.transformer.ENCODED_AT_ONCE", 20)
    fast = beam_search(model, *batch, cfg)
    monkeypatch.undo()
    monkeypatch.setattr(kernels, "load", lambda: False)
    plain = beam_search(model, *batch, cfg)
    assert [[h.ids for h in found] for found in fast] == [[h.ids for h in found] for found in plain]
    assert [len(found) for found in fast] == [beam_size] * 12
    for one, other in zip(fast, plain, strict=True):
        assert [h.score for h in one] == pytest.approx([h.score for h in other], abs=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {"norm_order": NormOrder.post, "activation": Activation.gelu},
        {"norm": Norm.rms_norm, "activation": Activation.swiglu, "attention_bias": False},
        {"d_k": 6, "d_v": 10, "activation": Activation.reglu, "feed_forward_bias": False},
        {"qk_norm": True, "positions": Positions.rotary},
        {"qk_norm": True, "d_k": 6, "norm_order": NormOrder.post},
        {"qk_norm": True, "decoder_self_attention": SelfAttention.ssru},
        {"decoder_self_attention": SelfAttention.ssru},
        {"decoder_self_attention": SelfAttention.ssru, "norm_order": NormOrder.post, "norm": Norm.rms_norm},
        {"decoder_d_model": 32, "decoder_d_ff": 24, "decoder_num_heads": 4, "tying": Tying.none},
        {"decoder_d_model": 30, "tying": Tying.none, "decoder_self_attention": SelfAttention.ssru},
        {"decoder_sharing": [1, 1]},
    ],
)
@pytest.mark.parametrize("precision", IN_KERNELS)
def test_a_step_in_one_call_equals_the_layers_one_by_one(
    changes: dict[str, Any], precision: Precision, batch: Sentences, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every hypothesis of a sentence in the batch, and with one row alone."""
    cfg = TransformerConfig(d_model=24, d_ff=40, num_heads=3, encoder_layers=1, decoder_layers=2, **changes)
    model = peaked(build_model(cfg, src_vocab_size=VOCAB_SIZE, tgt_vocab_size=VOCAB_SIZE))
    for name, parameter in model.named_parameters():
        if name.endswith(("gate_bias", "query_norm.weight", "key_norm.weight")):
            nn.init.normal_(parameter)
    model = in_low_precision(model, precision)
    src, mask = batch

    def logits() -> Tensor:
        found = []
        for num in (len(src), 1):
            state = model.start(src[:num], mask[:num])
            rows = torch.arange(num).repeat_interleave(6)
            state = state.select(rows)
            for _ in range(3):
                found.append(model.step(torch.arange(6 * num) + 4, state))
                state = state.select(torch.arange(6 * num).flip(0).view(num, 6).flip(0).flatten())
        return torch.cat(found)

    assert isinstance(model.start(src, mask), FusedCache)
    fused = logits()
    monkeypatch.setattr(kernels, "load", lambda: False)
    plain = logits()
    if precision is Precision.fp32:
        assert_close(fused, plain, atol=1e-4, rtol=1e-4)
    else:  # keys and values are in bf16, and noise in the last bit rounds some inputs the other way
        assert (fused - plain).norm() < 0.02 * plain.norm()


def test_layers_that_are_hooked_or_watched_are_called(batch: Sentences) -> None:
    model = transformer(Positions.rotary)
    calls: list[nn.Module] = []
    assert isinstance(model.start(*batch), FusedCache)
    with recorded_attention(model):
        assert not isinstance(model.start(*batch), FusedCache)
    src, mask = (x[:2] for x in batch)
    for name in ("decoder.0.feed_forward", "output"):
        handle = model.get_submodule(name).register_forward_hook(lambda module, *_: calls.append(module))
        beam_search(model, src, mask, BeamConfig(beam_size=2))
        handle.remove()
        assert calls.pop() is model.get_submodule(name)
        calls.clear()


class Doubled(FeedForward):
    """A block that the kernel does not know."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_a_block_of_another_class_is_called(batch: Sentences) -> None:
    model = transformer(Positions.sinusoidal)
    model.get_submodule("decoder.1.feed_forward.block").__class__ = Doubled
    state, ids = model.start(*batch), torch.randint(4, VOCAB_SIZE, (12, 3))
    assert not isinstance(state, FusedCache)
    steps = torch.stack([model.step(ids[:, i], state) for i in range(3)], dim=1)
    assert_close(steps, model.project(model(*batch, ids)), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("make", [transformer, decoder_only])
def test_keys_and_values_in_bf16_stay_close(
    make: Callable[[Positions], TranslationModel], batch: Sentences, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As beside packed weights."""
    model, made, ids = make(Positions.rotary), fused_layers, torch.randint(4, VOCAB_SIZE, (12, 4))

    def logits() -> Tensor:
        state = model.start(*batch)
        return torch.stack([model.step(column, state) for column in ids.unbind(1)])

    def rounding(layers: Sequence[Any]) -> FusedLayers:
        found = made(layers)
        assert found is not None
        return replace(found, dtype=torch.bfloat16)

    exact = logits()
    monkeypatch.setattr("nmt.models.fused_step.fused_layers", rounding)
    rough = logits()
    assert not torch.equal(rough, exact)
    assert (rough - exact).norm() < 0.01 * exact.norm()


def test_sampling_with_kernels_equals_sampling_without(
    batch: Sentences, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, cfg = transformer(Positions.rotary), SamplingConfig(n_best=3)
    fast = sample(model, *batch, cfg)
    monkeypatch.setattr(kernels, "load", lambda: False)
    assert [[h.ids for h in x] for x in fast] == [[h.ids for h in x] for x in sample(model, *batch, cfg)]


@pytest.mark.parametrize("has_kernels", [True, False])
@pytest.mark.parametrize("make", [transformer, decoder_only])
def test_search_in_bf16_stays_close(
    make: Callable[[Positions], TranslationModel],
    has_kernels: bool,
    batch: Sentences,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, cfg = make(Positions.sinusoidal), BeamConfig(beam_size=4)
    exact = beam_search(model, *batch, cfg)
    if not has_kernels:
        monkeypatch.setattr(kernels, "load", lambda: False)
    copied = in_low_precision(model, Precision.bf16)
    rough = beam_search(copied, *batch, cfg)
    assert in_low_precision(model, Precision.fp32) is model
    same = [(one, other) for [one], [other] in zip(rough, exact, strict=True) if one.ids == other.ids]
    assert len(same) >= 8  # a near tie may be decided otherwise
    assert [one.score for one, _ in same] == pytest.approx([other.score for _, other in same], abs=0.05)


def test_a_rounded_copy_shares_what_it_does_not_round() -> None:
    model = transformer(Positions.learned)
    copied = in_low_precision(model, Precision.bf16)
    assert not any(isinstance(module, nn.Linear) for module in copied.modules())
    shared = {id(x) for x in model.parameters()}
    assert {id(x) for x in copied.parameters()} <= shared
    assert isinstance(model.output, nn.Linear)
    assert in_low_precision(copied, Precision.bf16) is copied
