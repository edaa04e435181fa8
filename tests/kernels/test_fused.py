"""The fused steps of training against their definitions in plain torch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from nmt import kernels
from nmt.kernels import fused
from nmt.kernels.fused import LayerNorm
from nmt.layers.attention import AttentionRole, MultiHeadAttention
from nmt.layers.blocks import Dropout, FeedForward, Residual
from nmt.layers.choices import Activation, NormOrder
from nmt.layers.loss import projected_nll, smoothed_nll
from nmt.layers.positions import sinusoids

pytestmark = pytest.mark.skipif(not kernels.load(), reason="the kernels cannot be built here")
needs_tiles = pytest.mark.skipif(
    not (kernels.load() and torch.ops.nmt.has_tiles()), reason="this machine has no AMX"
)
DTYPES = (torch.float32, torch.bfloat16)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def leaves(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]


def gradients(out: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """Those of a sum whose weights are the same for equal shapes."""
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.dtype)
    return list(torch.autograd.grad(out, inputs, weights))


def assert_near(actual: list[Tensor], expected: list[Tensor], share: float) -> None:
    """Within a share of the largest element of each."""
    for one, other in zip(actual, expected, strict=True):
        assert_close(one.float(), other.float(), atol=share * other.abs().max().item() + 1e-6, rtol=0.0)


@pytest.mark.parametrize("size", [1, 15, 16, 100_003])
@pytest.mark.parametrize("dtype", DTYPES)
def test_dropout_keeps_the_share_and_the_mean(size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(size)
    (x,) = leaves((size,), dtype=dtype)
    with torch.no_grad():
        x.fill_(1.0)
    out = fused.dropout(x, 0.3)
    assert out.dtype is dtype
    kept = out != 0
    assert_close(out[kept], torch.full_like(out[kept], 1 / 0.7))
    if size > 1000:
        assert kept.float().mean().item() == pytest.approx(0.7, abs=0.01)
        neighbours = (kept[1:] & kept[:-1]).float().mean().item()
        assert neighbours == pytest.approx(0.49, abs=0.01)
    (grad,) = torch.autograd.grad(out.sum(), [x])
    assert_close(grad, out.detach())  # of ones: what was dropped has no gradient, the rest is scaled alike


def test_dropout_is_a_function_of_the_seed() -> None:
    (x,) = leaves((1000,))
    masks = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        masks.append(fused.dropout(x, 0.5) != 0)
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_dropout_adds_what_dropout_keeps(dtype: torch.dtype) -> None:
    residual, x = *leaves((7, 33)), *leaves((7, 33), dtype=dtype)
    torch.manual_seed(3)
    out = fused.add_dropout(residual, x, 0.4)
    torch.manual_seed(3)
    expected = residual + fused.dropout(x, 0.4)
    assert_near([out], [expected], 1e-2 if dtype is torch.bfloat16 else 1e-5)
    assert_near(gradients(out, [residual, x]), gradients(expected, [residual, x]), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_relu_dropout_is_dropout_of_relu(dtype: torch.dtype, rate: float) -> None:
    (x,) = leaves((5, 37), dtype=dtype)
    torch.manual_seed(3)
    out = fused.relu_dropout(x, rate)
    torch.manual_seed(3)
    expected = fused.dropout(F.relu(x), rate)
    assert torch.equal(out, expected)
    assert_near(gradients(out, [x]), gradients(expected, [x]), TOLERANCE[dtype])


@pytest.mark.parametrize("width", [3, 16, 40, 257])
@pytest.mark.parametrize("rows", [1, 600])
def test_layer_norm_is_that_of_torch(rows: int, width: int) -> None:
    inputs = leaves((rows, width), (width,), (width,))
    with torch.no_grad():
        inputs[0] += 3.0
    x, weight, bias = inputs
    out = fused.layer_norm(x, weight, bias, 1e-5, feeds_product=False)
    expected = F.layer_norm(x, (width,), weight, bias, 1e-5)
    assert_near([out], [expected], 1e-5)
    assert_near(gradients(out, inputs), gradients(expected, inputs), 1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 3), (600, 40), (7, 5, 4, 32), (2, 257)])
def test_rms_norm_is_that_of_torch(
    shape: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In training and in search, and with the same result where there are no kernels."""
    (x,), (weight,) = leaves(shape, dtype=dtype), leaves(shape[-1:])
    out = fused.rms_norm(x, weight, 1e-5, feeds_product=False)
    expected = F.rms_norm(x.float(), weight.shape, weight, 1e-5).to(dtype)
    assert out.dtype is dtype
    assert_near([out], [expected], TOLERANCE[dtype])
    assert_near(gradients(out, [x, weight]), gradients(expected, [x, weight]), 10 * TOLERANCE[dtype])
    norm = fused.RmsNorm(shape[-1], 1e-5)
    with torch.no_grad():
        norm.weight.copy_(weight)
        found = norm(x)
        monkeypatch.setattr(kernels, "load", lambda: False)
        assert_near([found], [norm(x)], TOLERANCE[dtype])


@pytest.mark.parametrize("norm_order", NormOrder)
def test_the_residual_stream_stays_float32(norm_order: NormOrder) -> None:
    around, x = Residual(LayerNorm(32), norm_order, dropout=0.1), torch.randn(3, 32)
    seen: list[torch.dtype] = []

    def sublayer(y: Tensor) -> Tensor:
        seen.append(y.dtype)
        return y.bfloat16()

    with torch.autocast("cpu", torch.bfloat16):
        assert around(x, sublayer).dtype is torch.float32
    assert seen == [torch.bfloat16 if norm_order is NormOrder.pre else torch.float32]


@needs_tiles
@pytest.mark.parametrize("shape", [(1, 1, 1), (37, 40, 50), (64, 64, 64), (300, 256, 100), (700, 33, 1030)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_linear_rounds_its_operands_and_nothing_else(shape: tuple[int, int, int], has_bias: bool) -> None:
    rows, inner, cols = shape
    x, weight, bias = leaves((rows, inner), (cols, inner), (cols,))
    inputs = [x, weight, bias] if has_bias else [x, weight]
    with torch.autocast("cpu", torch.bfloat16):
        out = fused.linear(x, weight, bias if has_bias else None)
    assert out.dtype is torch.bfloat16
    expected = F.linear(x.bfloat16().float(), weight.bfloat16().float(), bias if has_bias else None)
    assert_near([out], [expected], 5e-3)
    assert_near(gradients(out, inputs), gradients(expected, inputs), 1e-2)


@needs_tiles
@pytest.mark.parametrize("shape", [(1, 1, 1), (37, 40, 50), (64, 64, 128), (700, 33, 1030)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_feed_forward_is_made_of_its_parts(shape: tuple[int, int, int], bias: bool, rate: float) -> None:
    rows, width, hidden = shape
    block = FeedForward(width, hidden, Activation.relu, dropout=rate, bias=bias)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter)
    (x,) = leaves((rows, width))
    inputs = [x, *block.parameters()]
    with torch.autocast("cpu", torch.bfloat16):
        torch.manual_seed(3)
        out = block(x)
        torch.manual_seed(3)
        between = fused.relu_dropout(fused.linear(x, block.inner.weight, block.inner.bias), rate)
        expected = fused.linear(between, block.outer.weight, block.outer.bias)
    assert_near([out], [expected], 1e-2)
    assert_near(gradients(out, inputs), gradients(expected, inputs), 2e-2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(3, 7, 2, 8), (2, 17, 4, 64), (1, 1, 1, 2), (5, 40, 3, 34)])
def test_points_are_rotated_as_torch_rotates_them(
    sizes: tuple[int, int, int, int], dtype: torch.dtype
) -> None:
    num, length, heads, width = sizes
    (wide,) = leaves((num, length, 2 * heads * width), dtype=dtype)
    x = wide[..., : heads * width].view(num, length, heads, width).transpose(1, 2)  # as packed maps leave it
    table = sinusoids(length + 3, width)[3:]
    out = fused.rotate(x, table)
    with kernels.disabled():
        expected = fused.rotate(x.float(), table)
    assert out.dtype is dtype
    assert_near([out], [expected], TOLERANCE[dtype])
    assert_near(gradients(out, [wide]), gradients(expected, [wide]), TOLERANCE[dtype])
    with torch.no_grad():
        assert_near([fused.rotate(x, table)], [expected], TOLERANCE[dtype])


def test_a_table_of_another_type_is_left_to_torch() -> None:
    x, table = torch.randn(2, 2, 5, 8).bfloat16(), sinusoids(5, 8).bfloat16()
    with kernels.disabled():
        expected = fused.rotate(x, table)
    assert_close(fused.rotate(x, table), expected, rtol=0, atol=0)


@needs_tiles
def test_linear_takes_rows_that_lie_apart() -> None:
    x, weight = torch.randn(50, 3, 64).bfloat16(), torch.randn(32, 64)
    with torch.autocast("cpu", torch.bfloat16):
        out = fused.linear(x[:, 1], weight, None)
    assert_near([out], [F.linear(x[:, 1].float(), weight.bfloat16().float())], 5e-3)


@torch.no_grad()
def test_a_transposed_weight_is_left_to_torch_in_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the kernels multiply float32 numbers faster."""
    monkeypatch.setattr(kernels, "has_panels", lambda: True)
    x, weight = torch.randn(20, 16), torch.randn(16, 33).t()
    assert_near([fused.linear(x, weight, None)], [F.linear(x, weight)], 1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(3, 5, 7, 2, 8), (2, 17, 33, 4, 64), (1, 1, 1, 1, 5)])
@pytest.mark.parametrize("masked", ["nothing", "padding", "causal"])
def test_attention_is_that_of_torch(
    sizes: tuple[int, int, int, int, int], dtype: torch.dtype, masked: str
) -> None:
    num, length, num_keys, heads, width = sizes
    if masked == "causal":
        length = num_keys
    inputs = leaves((num, heads, length, width), *[(num, heads, num_keys, width)] * 2, dtype=dtype)
    mask = None
    if masked == "padding":
        mask = torch.rand(num, 1, 1, num_keys) > 0.3
        mask[..., 0] = True
    elif masked == "causal":
        mask = torch.ones(length, length, dtype=torch.bool).tril()
    assert fused.can_attend(inputs[0], inputs[1], inputs[2], mask)
    out = fused.attention(inputs[0], inputs[1], inputs[2], mask, 0.0)
    query, key, value = (x.float() for x in inputs)
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    assert_near([out], [expected], TOLERANCE[dtype])
    assert_near(gradients(out, inputs), gradients(expected, inputs), TOLERANCE[dtype])


def test_a_mask_of_three_axes_has_heads_first() -> None:
    """As in every sum of tensors: such a mask is no mask of sentences."""
    queries, keys, values = leaves(*[(3, 3, 4, 8)] * 3)
    mask = torch.rand(3, 4, 4) < 0.6
    mask[..., 0] = True
    expected = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
    assert_near([fused.attention(queries, keys, values, mask, 0.0)], [expected], 1e-5)


def test_attention_drops_weights_and_knows_it_in_backward() -> None:
    """With values of one channel per key, the output is the row of weights."""
    queries, keys = leaves((1, 1, 50, 4), (1, 1, 50, 4))
    values = torch.eye(50)[None, None].requires_grad_()
    weights = fused.attention(queries, keys, values, None, 0.0)
    dropped = fused.attention(queries, keys, values, None, 0.5)
    kept = dropped != 0
    assert kept.float().mean().item() == pytest.approx(0.5, abs=0.05)
    assert_close(dropped, 2.0 * weights * kept)
    inputs = [queries, keys]  # the values were used to see the weights
    assert_near(gradients(dropped, inputs), gradients(2.0 * weights * kept, inputs), 1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("rows", [1, 1300])
@pytest.mark.parametrize("vocab_size", [101, 611, 640])  # tiles multiply 256 of it at once, and 32 in place
def test_projected_nll_is_that_of_its_logits(
    monkeypatch: pytest.MonkeyPatch, vocab_size: int, rows: int, smoothing: float, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(fused, "LOGITS_AT_ONCE", 600 * vocab_size)  # the last of three parts has 100 rows
    output = torch.nn.Linear(48, vocab_size, bias=False)
    (hidden,) = leaves((rows, 48))
    targets = torch.randint(vocab_size, (rows,))
    inputs = [hidden, output.weight]
    assert fused.can_project_nll(hidden, output.weight)
    with torch.autocast("cpu", dtype, enabled=dtype is not torch.float32):
        loss, nll = projected_nll(hidden, output, targets, smoothing)
    with kernels.disabled():
        expected, expected_nll = smoothed_nll(output(hidden), targets, smoothing)
    accuracy = 1e-5 if dtype is torch.float32 else 2e-3
    assert_near([loss, nll], [expected, expected_nll], accuracy)
    found, wanted = (list(torch.autograd.grad(2.0 * x, inputs)) for x in (loss, expected))
    assert_near(found, wanted, 10 * accuracy)


@pytest.mark.skipif(not kernels.has_tiles(), reason="the processor has no tiles")
def test_gradients_of_a_large_vocabulary_do_not_depend_on_the_number_of_threads() -> None:
    """Threads share the positions, and so many that the sums of all have no room in the cache at once."""
    hidden, weight = torch.randn(900, 330).bfloat16(), torch.randn(1300, 330)
    targets = torch.randint(1300, (900,))
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        try:
            results.append(torch.ops.nmt.projected_nll(hidden, weight, targets, 0.1, True, True))
        finally:
            torch.set_num_threads(before)
    logits = (hidden.float() @ weight.bfloat16().float().T).bfloat16().float().requires_grad_()
    smoothed_nll(logits, targets, 0.1)[0].backward()
    assert logits.grad is not None
    assert_near([results[0][1].float()], [logits.grad @ weight], 3e-2)
    assert_near([results[0][2]], [logits.grad.T @ hidden.float()], 3e-2)
    for result in results[1:]:
        for one, other in zip(result, results[0], strict=True):
            assert torch.equal(one, other)


def count_results(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Tensor]:
    """Return the list to which each result of a function is added that is not None."""
    function, results = getattr(owner, name), list[Tensor]()

    def counted(*arguments: Any) -> Any:
        found = function(*arguments)
        results.extend(x for x in found if x is not None)
        return found

    monkeypatch.setattr(owner, name, counted)
    return results


def some_frozen(
    compute: Callable[[], Tensor], inputs: list[Tensor], results: list[Tensor]
) -> Iterator[tuple[int, ...]]:
    """Yield the numbers of the inputs that learn, for each choice; their gradients have the bits of all."""
    expected = gradients(compute(), inputs)
    for num in range(1, len(inputs) + 1):
        for learning in itertools.combinations(range(len(inputs)), num):
            for i, x in enumerate(inputs):
                x.requires_grad_(i in learning)
            results.clear()
            found = gradients(compute(), [inputs[i] for i in learning])
            assert all(torch.equal(one, expected[i]) for one, i in zip(found, learning, strict=True))
            yield learning


@needs_tiles
def test_a_map_computes_no_gradient_of_what_is_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    results = count_results(monkeypatch, torch.ops.nmt, "linear_backward")
    x, weight, bias = leaves((40, 33), (50, 33), (50,))

    def compute() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return fused.linear(x, weight, bias)

    for learning in some_frozen(compute, [x, weight, bias], results):
        assert len(results) == len(learning)


@needs_tiles
def test_a_feed_forward_block_computes_no_gradient_of_what_is_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for that between its maps, where something learns before it."""
    results = count_results(monkeypatch, torch.ops.nmt, "linear_backward")
    block = FeedForward(33, 50, Activation.relu, dropout=0.5)
    (x,) = leaves((40, 33))
    inner, outer = block.inner, block.outer

    def compute() -> Tensor:
        torch.manual_seed(3)
        with torch.autocast("cpu", torch.bfloat16):
            return block(x)

    for learning in some_frozen(compute, [x, *inner.parameters(), *outer.parameters()], results):
        assert len(results) == len(learning) + (learning[0] < 3)


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=needs_tiles)])
def test_the_vocabulary_loss_computes_no_gradient_of_what_is_frozen(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_torch = dtype is torch.float32
    owner, name = (fused, "_projected_nll_of_torch") if of_torch else (torch.ops.nmt, "projected_nll")
    results = count_results(monkeypatch, owner, name)
    hidden, weight = leaves((40, 33), (50, 33))
    targets = torch.randint(50, (40,))

    def compute() -> Tensor:
        with torch.autocast("cpu", dtype, enabled=not of_torch):
            return fused.projected_nll(hidden, weight, targets, 0.1)[0]

    for learning in some_frozen(compute, [hidden, weight], results):
        assert len(results) == len(learning) + 1  # and the losses


def assert_blocks_agree(block: Callable[[], Tensor], parameters: list[Tensor]) -> None:
    """Compare a block in bf16 with kernels, and in float32 without."""
    with torch.autocast("cpu", torch.bfloat16):
        out = block()
    with kernels.disabled():
        expected = block()
    assert_near([out], [expected], 3e-2)
    assert_near(gradients(out.float(), parameters), gradients(expected, parameters), 5e-2)


def test_feed_forward_and_attention_agree_with_plain_torch() -> None:
    feed_forward = FeedForward(32, 64, Activation.relu, dropout=0.0)
    around = Residual(LayerNorm(32), NormOrder.pre, dropout=0.0)
    attention = MultiHeadAttention(32, 4, dropout=0.0, role=AttentionRole.encoder)
    x = torch.randn(3, 9, 32)
    mask = torch.ones(3, 1, 1, 9, dtype=torch.bool)
    mask[0, ..., 5:] = False
    for block, module in (
        (lambda: around(x, feed_forward), feed_forward),
        (lambda: around(x, lambda y: attention(y, *attention.keys_values(y), mask)), attention),
    ):
        assert_blocks_agree(block, [*module.parameters(), *around.parameters()])


def test_a_layer_that_is_wrapped_or_hooked_is_called() -> None:
    """Its weights alone would not be what it computes."""
    block, seen = FeedForward(32, 64, Activation.relu, dropout=0.0), []
    x = torch.randn(3, 32)
    with torch.autocast("cpu", torch.bfloat16):
        block.inner.register_forward_hook(lambda *_: seen.append("hook"))
        block(x)

        class Shifted(torch.nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                return super().forward(x) + 1.0

        plain = FeedForward(32, 64, Activation.relu, dropout=0.0)
        before = plain(x)
        plain.outer.__class__ = Shifted  # type: ignore[assignment]
        assert_near([plain(x)], [before + 1.0], 1e-2)
    assert seen == ["hook"]


@needs_tiles
def test_products_of_several_parts_that_stay_in_the_cache() -> None:
    """More columns than are taken at a time, forward and in the gradient of the weight."""
    x, weight = leaves((70, 600), (1100, 600))
    with torch.autocast("cpu", torch.bfloat16):
        out = fused.linear(x, weight, None)
    expected = x.bfloat16().float() @ weight.bfloat16().float().T
    assert_near([out], [expected], 5e-3)
    assert_near(gradients(out, [x, weight]), gradients(expected, [x, weight]), 1e-2)


@pytest.mark.parametrize("sizes", [(2, 1, 90, 2, 40, 24), (2, 33, 5, 1, 16, 64), (1, 70, 70, 3, 48, 48)])
def test_attention_with_dropout_is_the_same_in_bfloat16(sizes: tuple[int, ...]) -> None:
    """T, S and widths of all kinds, with the same weights dropped."""
    num, queries, keys, heads, d_k, d_v = sizes
    shapes = (num, heads, queries, d_k), (num, heads, keys, d_k), (num, heads, keys, d_v)
    exact = leaves(*shapes)
    rounded = [x.detach().bfloat16().requires_grad_() for x in exact]
    results = []
    for inputs in (exact, rounded):
        torch.manual_seed(5)
        out = fused.attention(inputs[0], inputs[1], inputs[2], None, 0.3)
        results.append([out, *gradients(out, inputs)])
    assert_near(results[1], results[0], 3e-2)


def test_without_kernels_the_definition_runs() -> None:
    (x,) = leaves((4, 16))
    with kernels.disabled():
        assert not kernels.load()
        assert "runtime.kernels=false" in kernels.status()
        torch.manual_seed(1)
        plain = Dropout(0.25)(x)
    assert kernels.status() == "with kernels in C++"
    torch.manual_seed(1)
    assert not torch.equal(plain, Dropout(0.25)(x))  # other masks, of the same kind


def test_second_derivatives_are_refused() -> None:
    """They would lack what the kernels have no derivative of."""
    (x,) = leaves((4, 16))
    scale, shift = torch.ones(16, requires_grad=True), torch.zeros(16, requires_grad=True)
    outs = [
        fused.dropout(x, 0.3),
        fused.layer_norm(x, scale, shift, 1e-5, feeds_product=False),
        projected_nll(x, torch.nn.Linear(16, 11), torch.arange(4), 0.1)[0],
    ]
    for out in outs:
        (gradient,) = torch.autograd.grad(out.square().sum(), [x], create_graph=True)
        with pytest.raises(RuntimeError, match="differentiate twice"):
            torch.autograd.backward(gradient.sum())
