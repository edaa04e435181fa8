"""The convolutional model against the formulas of its paper; its reach, its initial weights, its errors."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from nmt.config.compose import compose
from nmt.errors import UserError
from nmt.layers.blocks import Dropout
from nmt.layers.choices import Positions
from nmt.models import build_model
from nmt.models.base import TranslationModel
from nmt.models.configs import ConvolutionalConfig, Tying
from nmt.models.convolutional import Convolutional, GatedConvolution, normed_linear
from nmt.verbs import VERBS
from tests.models.compiling import assert_one_graph

VOCAB_SIZE = 23

Sentences = Callable[[int, int, int], tuple[Tensor, Tensor, Tensor]]


def config(**fields: Any) -> ConvolutionalConfig:
    sizes: dict[str, Any] = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0}
    return ConvolutionalConfig(**(sizes | {"tying": Tying.none} | fields))


def tiny(**fields: Any) -> Convolutional:
    """Return a small model whose biases and gains make a difference."""
    model = Convolutional(config(**fields), src_vocab_size=VOCAB_SIZE, tgt_vocab_size=VOCAB_SIZE)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def conv1d_of(convolution: GatedConvolution, *, padding: int) -> nn.Conv1d:
    """Return the convolution of torch with the same weights."""
    linear, k = convolution.linear, convolution.kernel_size
    twin = nn.Conv1d(linear.in_features // k, linear.out_features, k, padding=padding)
    twin.weight.data = linear.weight.detach().view(linear.out_features, k, -1).transpose(1, 2)
    twin.bias = linear.bias
    return twin


def test_a_gated_convolution_written_out() -> None:
    convolution, x = GatedConvolution(config(kernel_size=3, d_model=2)), torch.randn(1, 6, 2)
    weight, bias = convolution.linear.weight, torch.randn(4)
    convolution.linear.bias.data = bias
    expected = torch.zeros(1, 4, 2)
    for t in range(4):
        for d in range(2):
            value, gate = (
                bias[c] + sum(weight[c, 2 * i + j] * x[0, t + i, j] for i in range(3) for j in range(2))
                for c in (d, d + 2)
            )
            expected[0, t, d] = value / (1 + torch.exp(-gate))
    assert_close(convolution(x), expected)


@pytest.mark.parametrize("kernel_size", [1, 3, 5])
def test_a_gated_convolution_is_that_of_torch(kernel_size: int) -> None:
    convolution = GatedConvolution(config(kernel_size=kernel_size))
    nn.init.normal_(convolution.linear.bias)
    twin, x = conv1d_of(convolution, padding=0), torch.randn(3, 9, 16)
    assert_close(convolution(x), F.glu(twin(x.transpose(1, 2)), dim=1).transpose(1, 2))


def of_the_paper(model: Convolutional, src: Tensor, tgt_in: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Hidden states (T, D) and attention weights (T, S) of each layer for one sentence, ids (S,) and (T,)."""
    half = math.sqrt(0.5)
    w = model.src_embedding.tokens(src) + model.src_embedding.positions(len(src))
    x = model.encoder_input(w)
    for block in model.encoder:
        conv = conv1d_of(block.convolution, padding=block.convolution.kernel_size // 2)
        x = (x + F.glu(conv(x.T), dim=0).T) * half
    z = model.encoder_output(x)

    g = model.tgt_embedding.tokens(tgt_in) + model.tgt_embedding.positions(len(tgt_in))
    x, m, weights = model.decoder_input(g), len(src), []
    for layer in model.decoder:
        reach = layer.convolution.kernel_size - 1
        conv = conv1d_of(layer.convolution, padding=reach)
        h = F.glu(conv(x.T)[:, : len(tgt_in)], dim=0).T
        d = (h @ layer.attention.query.weight.T + layer.attention.query.bias + g) * half
        a = torch.exp(d @ z.T) / torch.exp(d @ z.T).sum(dim=1, keepdim=True)
        c = m * math.sqrt(1 / m) * (a @ ((z + w) * half))
        x = (x + (h + c) * half) * half
        weights.append(a)
    return model.decoder_output(x), weights


@pytest.mark.parametrize(
    ("kernel_size", "encoder_layers", "decoder_layers"), [(3, 2, 2), (5, 1, 3), (1, 3, 1)]
)
def test_equals_the_formulas_of_the_paper(
    sentences: Sentences, kernel_size: int, encoder_layers: int, decoder_layers: int
) -> None:
    """Sentence by sentence without padding: that of a batch changes nothing, and m is the sentence's own."""
    model = tiny(kernel_size=kernel_size, encoder_layers=encoder_layers, decoder_layers=decoder_layers)
    src, src_mask, tgt_in = sentences(5, 7, 6)
    hidden, maps = model(src, src_mask, tgt_in), model.attention(src, src_mask, tgt_in)
    assert len(maps.cross) == decoder_layers
    assert maps.encoder == maps.decoder == []
    for b, m in enumerate(src_mask.sum(dim=1).tolist()):
        expected, weights = of_the_paper(model, src[b, :m], tgt_in[b])
        assert_close(hidden[b], expected)
        for layer, expected_weights in zip(maps.cross, weights, strict=True):
            assert layer.shape == (5, 1, 6, 7)
            assert_close(layer[b, 0, :, :m], expected_weights)
            assert not layer[b, 0, :, m:].any()


def test_search_keeps_the_source_once_and_the_last_inputs(sentences: Sentences) -> None:
    model = tiny(kernel_size=5).eval()
    src, src_mask, tgt_in = sentences(3, 6, 4)
    state = model.start(src, src_mask)
    assert not any(past.any() for past in state.target.values())  # the causal padding
    model.step(tgt_in[:, 0], state)
    state = state.select(torch.arange(3).repeat_interleave(2))
    model.step(tgt_in[:, 1].repeat_interleave(2), state)
    assert {name: tuple(past.shape) for name, past in state.target.items()} == {
        "0": (6, 4, 16),
        "1": (6, 4, 16),
    }
    assert all(len(tensor) == 3 for tensor in state.source.values())
    assert all(past[:, -2:].any() and not past[:, :2].any() for past in state.target.values())


def gradients(model: Convolutional, scale: float, batch: tuple[Tensor, Tensor, Tensor]) -> dict[str, Tensor]:
    model = copy.deepcopy(model)
    model.encoder_gradient_scale = scale
    torch.autograd.backward(model(*batch).square().sum())
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def test_gradients_of_the_encoder_are_scaled_but_not_those_of_the_embeddings(sentences: Sentences) -> None:
    model, batch = tiny(decoder_layers=3), sentences(3, 6, 5)
    assert model.encoder_gradient_scale == 1 / 6
    scaled, whole, none = (gradients(model, scale, batch) for scale in (1 / 6, 1.0, 0.0))
    for name, gradient in scaled.items():
        if name.startswith("encoder"):
            assert gradient.any()
            assert_close(gradient, whole[name] / 6)
        elif name.startswith("src_embedding"):  # the embeddings that go into the values are not scaled
            assert none[name].any()
            assert_close(gradient, none[name] + (whole[name] - none[name]) / 6)
        else:
            assert_close(gradient, whole[name])


@pytest.mark.parametrize(("kernel_size", "layers", "reach"), [(3, 1, 1), (3, 3, 3), (5, 2, 4), (1, 2, 0)])
def test_the_reach_of_the_convolutions(kernel_size: int, layers: int, reach: int) -> None:
    """`reach` positions to either side of the source, twice that before a position of the target."""
    model = tiny(kernel_size=kernel_size, encoder_layers=layers, decoder_layers=layers)
    ids, mask = torch.arange(VOCAB_SIZE)[None], torch.ones(1, VOCAB_SIZE, dtype=torch.bool)
    keys = model.encode(ids, mask).keys
    (gradient,) = torch.autograd.grad(keys[0, 10].sum(), model.src_embedding.tokens.weight)
    assert gradient.any(dim=1).nonzero().flatten().tolist() == [*range(10 - reach, 11 + reach)]

    hidden = model(ids, mask, ids)
    (gradient,) = torch.autograd.grad(hidden[0, 10].sum(), model.tgt_embedding.tokens.weight)
    assert gradient.any(dim=1).nonzero().flatten().tolist() == [*range(10 - 2 * reach, 11)]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("kernel_size", [3, 5])
def test_initial_weights(kernel_size: int, dropout: float) -> None:
    """Section 3.5: sqrt(4 p / n) before gated linear units, sqrt(p / n) elsewhere, embeddings 0.1."""
    cfg = config(d_model=128, kernel_size=kernel_size, dropout=dropout)
    model = Convolutional(cfg, src_vocab_size=500, tgt_vocab_size=500)
    p, n = 1.0 - dropout, 128
    for name, std in (
        ("encoder.1.convolution.linear", math.sqrt(4 * p / (kernel_size * n))),
        ("decoder.1.convolution.linear", math.sqrt(4 * p / (kernel_size * n))),
        ("encoder_input", math.sqrt(p / n)),
        ("decoder_input", math.sqrt(p / n)),
        ("encoder_output", math.sqrt(1 / n)),
        ("decoder_output", math.sqrt(1 / n)),
        ("decoder.0.attention.query", math.sqrt(1 / n)),
        ("src_embedding.tokens", 0.1),
        ("tgt_embedding.tokens", 0.1),
        ("src_embedding.positions.table", 0.1),
        ("output", math.sqrt(1 / n)),
    ):
        layer = model.get_submodule(name)
        assert isinstance(layer.weight, Tensor)
        assert float(layer.weight.detach().std()) == pytest.approx(std, rel=0.03), name
    assert not any(p.any() for name, p in model.named_parameters() if name.endswith("bias"))


def test_sinusoids_start_as_large_as_the_embeddings() -> None:
    model = Convolutional(
        config(d_model=128, positions=Positions.sinusoidal), src_vocab_size=500, tgt_vocab_size=500
    )
    ids = torch.arange(500)[None]
    positions = (model.src_embedding(ids) - model.src_embedding.tokens(ids)).detach()
    assert float(positions.square().mean().sqrt()) == pytest.approx(0.1, rel=0.01)
    assert model.max_length is None


def test_the_direction_of_a_weight_has_no_length() -> None:
    layer, x = normed_linear(6, 4), torch.randn(5, 6)
    expected = layer(x)
    parameters = dict(layer.named_parameters())
    assert {name: tuple(p.shape) for name, p in parameters.items()} == {
        "bias": (4,),
        "parametrizations.weight.original0": (4, 1),
        "parametrizations.weight.original1": (4, 6),
    }
    parameters["parametrizations.weight.original1"].data *= torch.tensor([[2.0], [0.5], [3.0], [1.0]])
    assert_close(layer(x), expected)
    parameters["parametrizations.weight.original0"].data *= 2.0
    assert_close(layer(x), 2.0 * expected)


def test_a_copy_has_weights_of_its_own(sentences: Sentences) -> None:
    model, batch = tiny(), sentences(3, 5, 4)
    twin, expected = copy.deepcopy(model), model(*batch)
    assert torch.equal(twin(*batch), expected)
    for parameter in twin.parameters():
        parameter.data += 0.1
    assert not torch.allclose(twin(*batch), expected)
    assert torch.equal(model(*batch), expected)


def test_dropout_is_on_embeddings_convolutions_and_output(sentences: Sentences) -> None:
    model = tiny(encoder_layers=3, decoder_layers=2, dropout=0.5)
    seen: list[Dropout] = []
    for module in model.modules():
        if isinstance(module, Dropout):
            module.register_forward_hook(lambda dropout, *_: seen.append(dropout))
    src, src_mask, tgt_in = sentences(8, 20, 20)
    hidden = model(src, src_mask, tgt_in)
    assert seen == [
        model.src_embedding.dropout,
        *(block.convolution.dropout for block in model.encoder),
        model.tgt_embedding.dropout,
        *(layer.convolution.dropout for layer in model.decoder),
        model.dropout,
    ]
    assert {dropout.rate for dropout in seen} == {0.5}
    assert float((hidden == 0).float().mean()) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(
    ("tying", "distinct"),
    [(Tying.none, 3), (Tying.src_tgt, 2), (Tying.src_output, 2), (Tying.tgt_output, 2), (Tying.all, 1)],
)
def test_tying(tying: Tying, distinct: int) -> None:
    model = tiny(tying=tying)
    weights = (model.src_embedding.tokens.weight, model.tgt_embedding.tokens.weight, model.output.weight)
    assert len({id(weight) for weight in weights}) == distinct
    assert config(tying=tying).shares_vocabulary is tying.shares_vocabulary


def test_two_vocabularies(sentences: Sentences) -> None:
    model: TranslationModel = build_model(
        config(tying=Tying.tgt_output), src_vocab_size=VOCAB_SIZE, tgt_vocab_size=31
    )
    assert model.project(model(*sentences(2, 4, 3))).shape == (2, 3, 31)
    message = (
        "model.tying=all shares one matrix between source and target, but the vocabularies have 23 and 31 "
        "entries; set tokenizer.joint=true or model.tying=tgt_output"
    )
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        build_model(config(tying=Tying.all), src_vocab_size=VOCAB_SIZE, tgt_vocab_size=31)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"positions": Positions.rotary},
            "model.positions must be learned or sinusoidal in a convolutional model, but is rotary",
        ),
        ({"d_model": 0}, "model.d_model must be at least 1, but is 0"),
        ({"encoder_layers": 0}, "model.encoder_layers must be at least 1, but is 0"),
        ({"decoder_layers": -2}, "model.decoder_layers must be at least 1, but is -2"),
        ({"kernel_size": 0}, "model.kernel_size must be at least 1, but is 0"),
        ({"max_positions": 0}, "model.max_positions must be at least 1, but is 0"),
        (
            {"kernel_size": 4},
            "model.kernel_size must be odd, so that the encoder sees as far to the left as to the right, "
            "but is 4; try model.kernel_size=5",
        ),
        ({"dropout": 1.0}, "model.dropout must be in [0, 1), but is 1.0"),
        ({"dropout": -0.1}, "model.dropout must be in [0, 1), but is -0.1"),
    ],
)
def test_config_errors(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        ConvolutionalConfig(**fields)


def test_learned_positions_have_an_end(sentences: Sentences) -> None:
    model = tiny(max_positions=4).eval()
    assert model.max_length == config(max_positions=4).longest == 4
    src, src_mask, tgt_in = sentences(2, 4, 4)
    message = re.escape(
        "a sequence of 5 tokens exceeds model.max_positions=4; shorten the text, or train a model with more "
        "positions"
    )
    for too_long in ((2, 5, 4), (2, 4, 5)):
        with pytest.raises(UserError, match=f"^{message}$"):
            model(*sentences(*too_long))
    state = model.start(src, src_mask)
    for last in tgt_in.unbind(1):
        model.step(last, state)
    with pytest.raises(UserError, match=f"^{message}$"):
        model.step(tgt_in[:, 0], state)


@pytest.mark.slow
@pytest.mark.parametrize("positions", [Positions.learned, Positions.sinusoidal])
def test_compiles_into_one_graph_for_all_lengths(sentences: Sentences, positions: Positions) -> None:
    model = tiny(positions=positions)
    assert_one_graph(model, sentences)


@pytest.mark.parametrize(
    ("model", "sizes"), [("conv", (256, 4, 3, 3, 0.2)), ("conv_wmt", (512, 20, 20, 3, 0.1))]
)
def test_sizes_of_the_configs(model: str, sizes: tuple[float, ...]) -> None:
    (composed,) = compose(VERBS["train"], ["experiment=none", f"model={model}"])
    cfg = composed.cfg.model
    assert (cfg.d_model, cfg.encoder_layers, cfg.decoder_layers, cfg.kernel_size, cfg.dropout) == sizes
