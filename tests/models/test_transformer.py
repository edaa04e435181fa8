"""The Transformer against the one of torch; its variations, its attention weights, its limits and errors."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from nmt.errors import UserError
from nmt.layers.attention import additive, recorded_attention
from nmt.layers.blocks import NORMS
from nmt.layers.choices import Activation, Norm, NormOrder, Positions
from nmt.layers.positions import sinusoids
from nmt.models import build_model, decoder_only, transformer
from nmt.models.configs import DecoderOnlyConfig, EmbeddingInit, Init, Prefix, TransformerConfig, Tying
from nmt.models.transformer import Transformer
from tests.models.compiling import assert_one_graph

Sentences = Callable[[int, int, int], tuple[Tensor, Tensor, Tensor]]
TinyModel = Callable[..., Transformer]

NAMES_IN_TORCH = (
    (r"^(encoder|decoder)\.(\d)", r"\1.layers.\2"),
    (r"^(encoder|decoder)_norm", r"\1.norm"),
    (r"self_attention\.residual\.norm", "norm1"),
    (r"cross_attention\.residual\.norm", "norm2"),
    (r"^(encoder.*)feed_forward\.residual\.norm", r"\1norm2"),
    (r"^(decoder.*)feed_forward\.residual\.norm", r"\1norm3"),
    (r"self_attention\.attention", "self_attn"),
    (r"cross_attention\.attention", "multihead_attn"),
    (r"attn\.output", "attn.out_proj"),
    (r"feed_forward\.block\.inner", "linear1"),
    (r"feed_forward\.block\.outer", "linear2"),
)

NO_BIASES = {"attention_bias": False, "attention_output_bias": False, "feed_forward_bias": False}


def test_a_source_is_encoded_in_parts_of_similar_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformer, "ENCODED_AT_ONCE", 12)
    mask = torch.arange(9) < torch.tensor([9, 4, 4, 4, 3, 2, 13])[:, None]  # a row longer than all at once
    expected = [(slice(0, 1), 9), (slice(1, 4), 4), (slice(4, 6), 3), (slice(6, 7), 9)]
    assert transformer.parts_by_length(mask) == expected
    assert transformer.parts_by_length(mask[4:6, :6]) == [(slice(None), 6)]
    assert transformer.parts_by_length(mask.to("meta")) == [(slice(None), 9)]
    assert transformer.parts_by_length(torch.zeros(2, 7, dtype=torch.bool)) == [(slice(0, 2), 1)]


def twin_of(model: Transformer, cfg: TransformerConfig) -> nn.Transformer:
    """`torch.nn.Transformer` with the weights of `model`."""
    weights: dict[str, Tensor] = {}
    for name, weight in model.state_dict().items():
        for ours, theirs in NAMES_IN_TORCH:
            name = re.sub(ours, theirs, name)
        weights[name] = weight
    for name in [name for name in weights if ".query." in name]:
        query, key_value = weights.pop(name), weights.pop(name.replace("query", "key_value"))
        weights[name.replace("query.", "in_proj_")] = torch.cat([query, key_value])
    for name in ("src_embedding.tokens.weight", "tgt_embedding.tokens.weight", "output.weight"):
        del weights[name]
    bias = cfg.attention_bias  # with torch, all biases or none
    for name in [name for name in weights if "norm" in name and name.endswith("bias") and not bias]:
        assert not weights.pop(name).any()

    sizes, pre = (cfg.d_model, cfg.num_heads, cfg.d_ff, 0.0), cfg.norm_order is NormOrder.pre
    options: dict[str, Any] = {"activation": cfg.activation.value, "batch_first": True, "norm_first": pre}
    options |= {"bias": bias, "layer_norm_eps": cfg.norm_eps}
    final = pre if cfg.final_norm is None else cfg.final_norm
    norms = [nn.LayerNorm(cfg.d_model, cfg.norm_eps, bias=bias) if final else None for _ in range(2)]
    twin = nn.Transformer(
        cfg.d_model,
        cfg.num_heads,
        custom_encoder=nn.TransformerEncoder(
            nn.TransformerEncoderLayer(*sizes, **options),
            cfg.encoder_layers,
            norms[0],
            enable_nested_tensor=False,
        ),
        custom_decoder=nn.TransformerDecoder(
            nn.TransformerDecoderLayer(*sizes, **options), cfg.decoder_layers, norms[1]
        ),
        batch_first=True,
    )
    twin.load_state_dict(weights)
    return twin


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"activation": Activation.gelu},
        {"activation": Activation.gelu, **NO_BIASES},
        {"final_norm": False},
        {"norm_order": NormOrder.post, "norm_eps": 0.1},
        {"norm_order": NormOrder.post, "activation": Activation.gelu, "final_norm": True},
        {"norm_order": NormOrder.post, **NO_BIASES},
    ],
    ids=str,
)
def test_equals_the_transformer_of_torch(
    sentences: Sentences, fields: dict[str, Any], training: bool
) -> None:
    sizes: dict[str, Any] = {"d_model": 16, "d_ff": 24, "num_heads": 4, "dropout": 0.0}
    cfg = TransformerConfig(**sizes, encoder_layers=2, decoder_layers=3, **fields)
    model = Transformer(cfg, src_vocab_size=23, tgt_vocab_size=23).train(training)
    for name, parameter in model.named_parameters():  # biases and norms that make a difference
        if cfg.attention_bias or not name.endswith("bias"):
            parameter.data += 0.1 * torch.randn_like(parameter)
    src, src_mask, tgt_in = sentences(3, 6, 5)

    embedded = [
        embedding.tokens(ids) * math.sqrt(cfg.d_model) + sinusoids(ids.shape[1], cfg.d_model)
        for embedding, ids in ((model.src_embedding, src), (model.tgt_embedding, tgt_in))
    ]
    hidden_from_torch = twin_of(model, cfg)(
        *embedded,
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(5).isinf(),
        src_key_padding_mask=~src_mask,
        memory_key_padding_mask=~src_mask,
    )
    assert_close(model(src, src_mask, tgt_in), hidden_from_torch)


@pytest.mark.parametrize("positions", Positions)
def test_only_without_positions_is_the_encoder_blind_to_order(
    tiny_model: TinyModel, positions: Positions
) -> None:
    model = tiny_model(positions=positions).eval()
    src, mask = torch.randint(4, 23, (2, 7)), torch.ones(2, 7, dtype=torch.bool)
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    permuted, memory = model.encode(src[:, order], mask)[0], model.encode(src, mask)[0][:, order]
    if positions is Positions.none:
        assert_close(permuted, memory)
    else:
        assert not torch.allclose(permuted, memory, atol=0.01)


@pytest.mark.parametrize("positions", Positions)
def test_only_added_positions_count_from_the_start(tiny_model: TinyModel, positions: Positions) -> None:
    """What is not added to the embeddings gives the same to a sentence behind columns of padding."""
    model = tiny_model(positions=positions).eval()
    src, mask = torch.randint(4, 23, (2, 7)), torch.ones(2, 7, dtype=torch.bool)
    mask[:, :3] = False
    behind, alone = model.encode(src, mask)[0][:, 3:], model.encode(src[:, 3:], mask[:, 3:])[0]
    if positions in (Positions.sinusoidal, Positions.learned):
        assert not torch.allclose(behind, alone, atol=0.01)
    else:
        assert_close(behind, alone)


@pytest.mark.parametrize("kind", [TransformerConfig, DecoderOnlyConfig])
@pytest.mark.parametrize("positions", Positions)
def test_the_masks_of_a_gpu_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
    sentences: Sentences,
    kind: type[TransformerConfig | DecoderOnlyConfig],
    positions: Positions,
) -> None:
    """Hidden states and gradients with masks that are added, made once for all layers."""
    more: dict[str, Any] = {"prefix": Prefix.bidirectional} if kind is DecoderOnlyConfig else {}
    cfg = kind(d_model=16, d_ff=32, num_heads=2, dropout=0.0, positions=positions, **more)
    model = build_model(cfg, src_vocab_size=23, tgt_vocab_size=23).double()
    src, src_mask, tgt_in = sentences(3, 5, 4)
    masks: list[Tensor] = []

    def prepared(mask: Tensor, x: Tensor) -> Tensor:
        masks.append(additive(mask, x.dtype))
        return masks[-1]

    def passed() -> list[Tensor]:
        hidden = model(src, src_mask, tgt_in)
        return [hidden.detach(), *torch.autograd.grad(hidden.square().sum(), [*model.parameters()])]

    expected = passed()
    for module in (transformer, decoder_only):
        monkeypatch.setattr(module, "prepared", prepared)
    assert_close(passed(), expected)
    assert len(masks) == 1


@pytest.mark.parametrize("positions", Positions)
def test_the_embedding_of_rows_that_begin_with_padding(tiny_model: TinyModel, positions: Positions) -> None:
    embedding = tiny_model(positions=positions, embedding_norm=True).eval().src_embedding
    ids = torch.randint(4, 23, (2, 6))
    padded = embedding(ids, padding=torch.tensor([2, 0]))
    assert_close(padded[0, 2:], embedding(ids[:1, 2:])[0])
    assert_close(padded[1], embedding(ids[1:])[0])
    assert_close(embedding(ids[:, 4:], start=4, padding=torch.tensor([2, 0])), padded[:, 4:])


@pytest.mark.parametrize("norm", [None, *Norm])
@pytest.mark.parametrize("scale", [True, False])
def test_embeddings_are_scaled_and_normalised(tiny_model: TinyModel, scale: bool, norm: Norm | None) -> None:
    fields = {"embedding_norm": norm is not None, "norm": norm or Norm.layer_norm, "norm_eps": 0.1}
    embedding, ids = tiny_model(embedding_scale=scale, **fields).src_embedding, torch.randint(4, 23, (2, 5))
    expected = embedding.tokens(ids) * (4.0 if scale else 1.0) + sinusoids(5, 16)
    if norm is not None:
        expected = NORMS[norm](16, 0.1)(expected)
    assert_close(embedding(ids), expected)


def test_attention_weights_on_request(tiny_model: TinyModel, sentences: Sentences) -> None:
    model = tiny_model(encoder_layers=1, decoder_layers=1).eval()
    src, src_mask, tgt_in = sentences(3, 6, 5)
    with recorded_attention(model) as recorded:
        hidden = model(src, src_mask, tgt_in)
    assert_close(hidden, model(src, src_mask, tgt_in))

    to_source, to_target = src_mask[:, None, None, :], torch.ones(5, 5, dtype=torch.bool).tril()
    expected = {
        "encoder": ((3, 2, 6, 6), to_source),
        "decoder": ((3, 2, 5, 5), to_target),
        "cross": ((3, 2, 5, 6), to_source),
    }
    assert set(recorded) == set(expected)
    for role, (shape, mask) in expected.items():
        (weights,) = recorded[role]  # of the call inside the block, not of the one after it
        assert weights.shape == shape
        assert_close(weights.sum(-1), torch.ones(shape[:-1]))
        assert torch.equal(weights > 0, mask.expand(shape))


def test_attention_weights_of_every_step(tiny_model: TinyModel, sentences: Sentences) -> None:
    model = tiny_model(encoder_layers=1, decoder_layers=1).eval()
    src, src_mask, tgt_in = sentences(3, 6, 5)
    with recorded_attention(model) as at_once:
        model(src, src_mask, tgt_in)
    with recorded_attention(model) as by_step:
        state = model.start(src, src_mask)
        for last in tgt_in.unbind(1):
            model.step(last, state)
    assert_close(torch.cat(by_step["cross"], dim=2), at_once["cross"][0])


@pytest.mark.parametrize(
    ("tying", "shared"),
    [
        (Tying.none, []),
        (Tying.src_tgt, ["src_embedding", "tgt_embedding"]),
        (Tying.src_output, ["src_embedding", "output"]),
        (Tying.tgt_output, ["tgt_embedding", "output"]),
        (Tying.all, ["src_embedding", "tgt_embedding", "output"]),
    ],
)
def test_tying_shares_one_matrix(tiny_model: TinyModel, tying: Tying, shared: list[str]) -> None:
    model, other = tiny_model(tying=tying), tiny_model(tying=tying)
    model.load_state_dict(other.state_dict())  # which must not break the sharing
    names = {"src_embedding": ".tokens.weight", "tgt_embedding": ".tokens.weight", "output": ".weight"}
    weights = {name: model.get_parameter(f"{name}{end}") for name, end in names.items()}
    distinct = {id(weight) for weight in weights.values()}
    assert len(distinct) == 3 - max(len(shared) - 1, 0)
    assert len({id(weights[name]) for name in shared}) == min(len(shared), 1)
    assert len([p for p in model.parameters() if p.shape == (23, 16)]) == len(distinct)


@pytest.mark.parametrize("tying", [Tying.none, Tying.tgt_output])
def test_two_vocabularies(sentences: Sentences, tying: Tying) -> None:
    cfg = TransformerConfig(d_model=16, d_ff=32, num_heads=2, encoder_layers=1, decoder_layers=1, tying=tying)
    model = build_model(cfg, src_vocab_size=23, tgt_vocab_size=31)
    assert model.project(model(*sentences(2, 4, 3))).shape == (2, 3, 31)


@pytest.mark.parametrize("tying", [Tying.src_tgt, Tying.src_output, Tying.all])
def test_two_vocabularies_cannot_share_a_matrix(tying: Tying) -> None:
    message = (
        f"model.tying={tying.value} shares one matrix between source and target, but the vocabularies have "
        "23 and 31 entries; set tokenizer.joint=true or model.tying=tgt_output"
    )
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        build_model(TransformerConfig(tying=tying), src_vocab_size=23, tgt_vocab_size=31)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"d_model": 0}, "model.d_model must be at least 1, but is 0"),
        ({"num_heads": -1}, "model.num_heads must be at least 1, but is -1"),
        ({"decoder_layers": 0}, "model.decoder_layers must be at least 1, but is 0"),
        ({"max_positions": 0}, "model.max_positions must be at least 1, but is 0"),
        ({"dropout": 1.0}, "model.dropout must be in [0, 1), but is 1.0"),
        ({"attention_dropout": -0.1}, "model.attention_dropout must be in [0, 1), but is -0.1"),
        ({"activation_dropout": 2.0}, "model.activation_dropout must be in [0, 1), but is 2.0"),
        (
            {"num_kv_heads": 3},
            "model.num_kv_heads must divide model.num_heads=8, but is 3; try 1 or 2 or 4",
        ),
        ({"d_k": 0}, "model.d_k must be at least 1, but is 0"),
        ({"d_v": -2}, "model.d_v must be at least 1, but is -2"),
        ({"max_distance": 0}, "model.max_distance must be at least 1, but is 0"),
        ({"norm_eps": 0.0}, "model.norm_eps must be positive, but is 0.0"),
        (
            {"d_model": 96, "num_heads": 5},
            "model.d_model must be divisible by model.num_heads, but 96 % 5 = 1; try model.num_heads=6",
        ),
        (
            {"d_model": 96, "num_heads": 5, "d_k": 20},
            "model.d_model must be divisible by model.num_heads, but 96 % 5 = 1; try model.num_heads=6",
        ),
        (
            {"d_model": 24, "positions": Positions.rotary},
            "model.d_model / model.num_heads must be even with model.positions=rotary, which rotates pairs "
            "of channels, but is 3; try model.d_k=4",
        ),
        (
            {"d_k": 15, "positions": Positions.rotary},
            "model.d_k must be even with model.positions=rotary, which rotates pairs of channels, but is 15; "
            "try model.d_k=16",
        ),
        ({"num_buckets": 7}, "model.num_buckets must be even and at least 4, but is 7"),
        ({"num_buckets": 2}, "model.num_buckets must be even and at least 4, but is 2"),
        (
            {"num_buckets": 256, "positions": Positions.t5},
            "model.max_distance must be greater than model.num_buckets / 2 = 128 with model.positions=t5, "
            "whose first half of buckets are single distances, but is 128; raise it or lower "
            "model.num_buckets",
        ),
        (
            {"max_distance": 16, "positions": Positions.t5},
            "model.max_distance must be greater than model.num_buckets / 2 = 16 with model.positions=t5, "
            "whose first half of buckets are single distances, but is 16; raise it or lower "
            "model.num_buckets",
        ),
    ],
)
def test_config_errors(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        TransformerConfig(**fields)


def test_heads_need_not_divide_the_width(tiny_model: TinyModel, sentences: Sentences) -> None:
    model = tiny_model(num_heads=3, d_k=4, d_v=7)
    assert model.get_parameter("decoder.0.cross_attention.attention.query.weight").shape == (12, 16)
    assert model.get_parameter("decoder.0.cross_attention.attention.key_value.weight").shape == (33, 16)
    assert model(*sentences(2, 4, 3)).shape == (2, 3, 16)


def test_learned_positions_have_an_end(tiny_model: TinyModel, sentences: Sentences) -> None:
    model = tiny_model(positions=Positions.learned, max_positions=4).eval()
    assert model.max_length == 4
    assert model(*sentences(2, 4, 4)).shape == (2, 4, 16)
    message = re.escape(
        "a sequence of 5 tokens exceeds model.max_positions=4; shorten the text, or train a model with more "
        "positions"
    )
    with pytest.raises(UserError, match=f"^{message}$"):
        model(*sentences(2, 5, 4))
    with pytest.raises(UserError, match=f"^{message}$"):
        model(*sentences(2, 4, 5))
    src, src_mask, tgt_in = sentences(2, 4, 4)
    state = model.start(src, src_mask)
    for last in tgt_in.unbind(1):
        model.step(last, state)
    with pytest.raises(UserError, match=f"^{message}$"):
        model.step(tgt_in[:, 0], state)


def test_sinusoids_have_no_end(tiny_model: TinyModel, sentences: Sentences) -> None:
    """Long sentences first met in inference mode can be trained on afterwards."""
    model = tiny_model(encoder_layers=1, decoder_layers=1)
    assert model.max_length is None
    batch = sentences(1, 600, 700)
    with torch.inference_mode():
        expected = model(*batch).clone()
    hidden = model(*batch)
    assert_close(hidden.detach(), expected)
    torch.autograd.backward(hidden.sum())
    assert not any("positions" in name for name in model.state_dict())


def test_initial_weights(tiny_model: TinyModel) -> None:
    """Matrices that lie side by side in one parameter have each its own fan-out."""
    model = tiny_model(d_model=128, d_ff=256, activation=Activation.swiglu)
    for name, fan_sum in (
        ("decoder.0.cross_attention.attention.query.weight", 128 + 128),
        ("decoder.0.cross_attention.attention.key_value.weight", 128 + 128),
        ("decoder.0.feed_forward.block.inner.weight", 128 + 256),
        ("decoder.0.feed_forward.block.outer.weight", 128 + 256),
    ):
        limit = math.sqrt(6 / fan_sum)
        assert 0.97 * limit < float(model.get_parameter(name).detach().abs().max()) <= limit
    assert float(model.src_embedding.tokens.weight.detach().std()) == pytest.approx(128**-0.5, rel=0.05)


def test_depth_scaled_weights(tiny_model: TinyModel) -> None:
    """What the sublayers of a stack add is divided by the root of their number: 2 or 3 in each layer."""
    sizes = {"encoder_layers": 2, "decoder_layers": 3}
    models = []
    for init in Init:
        torch.manual_seed(1)
        models.append(tiny_model(init=init, **sizes).state_dict())
    plain, scaled = models
    for name, weight in plain.items():
        is_last = name.endswith(("attention.output.weight", "block.outer.weight"))
        factor = (4 if name.startswith("encoder") else 9) ** -0.5 if is_last else 1.0
        assert_close(scaled[name], weight * factor)
    assert len([name for name in plain if name.endswith(("attention.output.weight", "outer.weight"))]) == 13


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("init", EmbeddingInit)
def test_learned_positions_begin_as_large_as_the_embeddings(
    tiny_model: TinyModel, init: EmbeddingInit, scale: bool
) -> None:
    model = tiny_model(embedding_init=init, d_model=128, positions=Positions.learned, embedding_scale=scale)
    embedding = model.src_embedding
    assert embedding.positions is not None
    tokens, positions = embedding.tokens.weight * embedding.scale, embedding.positions.rows
    assert float(positions.detach().std()) == pytest.approx(float(tokens.detach().std()), rel=0.05)


@pytest.mark.parametrize("tying", [Tying.none, Tying.all])
def test_xavier_embeddings(tiny_model: TinyModel, tying: Tying) -> None:
    model = tiny_model(embedding_init=EmbeddingInit.xavier, tying=tying, d_model=128)
    limit = math.sqrt(6 / (23 + 128))
    for weight in (model.src_embedding.tokens.weight, model.tgt_embedding.tokens.weight, model.output.weight):
        assert 0.97 * limit < float(weight.detach().abs().max()) <= limit


@pytest.mark.parametrize(
    "positions", [Positions.sinusoidal, pytest.param(Positions.relative, marks=pytest.mark.slow)]
)
def test_compiles_into_one_graph_for_all_lengths(
    tiny_model: TinyModel, sentences: Sentences, positions: Positions
) -> None:
    """Other positions in test_decoder_only: they act in the embedding or in self-attention, as these two."""
    model = tiny_model(encoder_layers=1, decoder_layers=1, positions=positions)
    assert_one_graph(model, sentences)
