"""What search, training and evaluation rely on, for every family of models and its variations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from nmt.data.special_ids import BOS_ID
from nmt.decoding.beam_search import beam_search
from nmt.decoding.configs import BeamConfig
from nmt.errors import UserError
from nmt.layers.choices import Activation, Norm, NormOrder, Positions, SelfAttention
from nmt.layers.loss import smoothed_nll
from nmt.models import build_model
from nmt.models.base import State, TranslationModel
from nmt.models.configs import (
    MODELS,
    AttentionScore,
    Cell,
    ConvolutionalConfig,
    DecoderOnlyConfig,
    EmbeddingInit,
    EncoderConfig,
    EnsembleConfig,
    Init,
    LossOn,
    Mean,
    ModelConfig,
    Pooling,
    Prefix,
    RnnConfig,
    TransformerConfig,
    Tying,
)
from nmt.models.ensemble import Ensemble

VOCAB_SIZE = 23
D_MODEL = 16

Sentences = Callable[[int, int, int], tuple[Tensor, Tensor, Tensor]]

transformer = partial(
    TransformerConfig,
    d_model=D_MODEL,
    d_ff=32,
    num_heads=2,
    encoder_layers=2,
    decoder_layers=2,
    dropout=0.0,
    max_positions=32,
)
decoder_only = partial(
    DecoderOnlyConfig, d_model=D_MODEL, d_ff=32, num_heads=2, num_layers=2, dropout=0.0, max_positions=32
)
convolutional = partial(
    ConvolutionalConfig,
    d_model=D_MODEL,
    encoder_layers=2,
    decoder_layers=2,
    dropout=0.0,
    tying=Tying.none,
    max_positions=32,
)
encoder = partial(
    EncoderConfig, d_model=D_MODEL, d_ff=32, num_heads=2, encoder_layers=2, dropout=0.0, max_positions=32
)
post, rms = NormOrder.post, Norm.rms_norm
rnn = partial(RnnConfig, d_model=D_MODEL, dropout=0.0)
deep = partial(rnn, encoder_layers=2, decoder_layers=2)
one_way = partial(rnn, bidirectional=False)
deep_one_way = partial(deep, bidirectional=False)
VARIATIONS: dict[str, dict[str, Callable[[], ModelConfig]]] = {
    "transformer": {
        "plain": transformer,
        "post_norm": partial(transformer, norm_order=post),
        "original": partial(
            transformer,
            norm_order=post,
            norm_eps=1e-6,
            attention_bias=False,
            tying=Tying.none,
            embedding_init=EmbeddingInit.xavier,
        ),
        "llama": partial(
            transformer,
            norm=rms,
            positions=Positions.rotary,
            activation=Activation.swiglu,
            attention_bias=False,
            attention_output_bias=False,
            feed_forward_bias=False,
            embedding_scale=False,
        ),
        "gpt": partial(
            transformer,
            positions=Positions.learned,
            activation=Activation.selu,
            embedding_scale=False,
            embedding_norm=True,
            init=Init.depth_scaled,
        ),
        "t5": partial(
            transformer,
            norm=rms,
            positions=Positions.t5,
            num_buckets=8,
            max_distance=6,
            activation=Activation.geglu,
            d_k=4,
        ),
        "learned_post": partial(transformer, positions=Positions.learned, norm_order=post, final_norm=True),
        "rotary_post": partial(
            transformer, positions=Positions.rotary, norm_order=post, activation=Activation.gelu, d_v=3
        ),
        "rotary_wide_heads": partial(
            transformer, positions=Positions.rotary, num_heads=3, d_k=6, d_v=4, embedding_norm=True
        ),
        "one_head_of_keys": partial(transformer, num_heads=4, num_kv_heads=1, qk_norm=True, norm=rms),
        "few_heads_of_keys": partial(
            transformer, positions=Positions.rotary, num_heads=4, num_kv_heads=2, qk_norm=True, d_v=3
        ),
        "qk_norm": partial(transformer, positions=Positions.t5, num_buckets=8, max_distance=6, qk_norm=True),
        "alibi": partial(transformer, positions=Positions.alibi, num_heads=4, activation=Activation.silu),
        "alibi_post": partial(
            transformer,
            positions=Positions.alibi,
            num_heads=3,
            d_k=5,
            d_v=6,
            norm_order=post,
            norm=rms,
            final_norm=True,
            activation=Activation.reglu,
        ),
        "relative": partial(transformer, positions=Positions.relative, max_distance=2, attention_bias=False),
        "relative_post": partial(
            transformer,
            positions=Positions.relative,
            d_k=6,
            norm_order=post,
            embedding_norm=True,
            activation=Activation.glu,
        ),
        "t5_post": partial(
            transformer,
            positions=Positions.t5,
            norm_order=post,
            init=Init.depth_scaled,
            attention_output_bias=False,
            embedding_scale=False,
        ),
        "no_positions": partial(
            transformer, positions=Positions.none, activation=Activation.seglu, final_norm=False
        ),
        "rms_norm": partial(transformer, norm=rms, final_norm=False, feed_forward_bias=False),
        **{
            f"tying_{tying.value}": partial(transformer, tying=tying)
            for tying in (Tying.src_tgt, Tying.src_output, Tying.tgt_output)
        },
        "deep_encoder": partial(
            transformer, encoder_layers=3, decoder_layers=1, init=Init.depth_scaled, tying=Tying.none
        ),
        "deep_decoder": partial(
            transformer, encoder_layers=1, decoder_layers=3, norm_order=post, positions=Positions.none
        ),
        "own_decoder": partial(
            transformer,
            decoder_d_model=12,
            decoder_d_ff=20,
            decoder_num_heads=3,
            positions=Positions.alibi,
            tying=Tying.tgt_output,
            init=Init.depth_scaled,
        ),
        "own_decoder_post": partial(
            transformer, decoder_d_model=24, decoder_num_heads=1, norm_order=post, tying=Tying.none, norm=rms
        ),
        "few_weights": partial(
            transformer,
            encoder_layers=3,
            decoder_layers=3,
            encoder_sharing=[1, 1, 1],
            decoder_sharing=[1, 2, 1],
            positions=Positions.t5,
        ),
        "layer_dropouts": partial(transformer, layer_drop=0.1, decoder_sharing=[1, 1]),
        "one_head": partial(transformer, num_heads=1, positions=Positions.alibi, embedding_norm=True),
        "ssru": partial(
            transformer,
            decoder_self_attention=SelfAttention.ssru,
            positions=Positions.rotary,
            init=Init.depth_scaled,
        ),
        "average": partial(transformer, decoder_self_attention=SelfAttention.average),
        "average_alone": partial(
            transformer,
            decoder_self_attention=SelfAttention.average,
            average_feed_forward=False,
            norm_order=post,
            positions=Positions.learned,
        ),
        "dropouts": partial(transformer, dropout=0.3, attention_dropout=0.3, activation_dropout=0.3),
        "dropouts_relative": partial(
            transformer,
            attention_dropout=0.3,
            activation_dropout=0.3,
            positions=Positions.relative,
            activation=Activation.swiglu,
        ),
    },
    "decoder_only": {
        "plain": decoder_only,
        "causal": partial(decoder_only, prefix=Prefix.causal),
        "source_learned": partial(decoder_only, prefix=Prefix.causal, loss_on=LossOn.both),
        "post_norm": partial(decoder_only, norm_order=NormOrder.post, positions=Positions.sinusoidal),
        "rotary": partial(decoder_only, positions=Positions.rotary, norm=rms, prefix=Prefix.causal),
        "few_heads_of_keys": partial(decoder_only, num_heads=4, num_kv_heads=2, qk_norm=True),
        "alibi": partial(decoder_only, positions=Positions.alibi, final_norm=False, d_k=4),
        "relative": partial(decoder_only, positions=Positions.relative, norm_order=post, final_norm=True),
        "t5": partial(decoder_only, positions=Positions.t5, activation=Activation.geglu),
        "no_positions": partial(decoder_only, positions=Positions.none, prefix=Prefix.causal),
        "own_output": partial(decoder_only, tying=Tying.src_tgt, activation=Activation.swiglu),
        "deep": partial(decoder_only, num_layers=4, num_heads=4),
        "dropouts": partial(decoder_only, dropout=0.3, attention_dropout=0.3, activation_dropout=0.3),
    },
    "convolutional": {
        "plain": convolutional,
        "sinusoidal": partial(convolutional, positions=Positions.sinusoidal, tying=Tying.src_output),
        "kernel_1": partial(convolutional, kernel_size=1),
        "kernel_5": partial(convolutional, kernel_size=5, tying=Tying.src_tgt),
        "one_layer_each": partial(convolutional, encoder_layers=1, decoder_layers=1),
        "deep_encoder": partial(convolutional, encoder_layers=3, decoder_layers=1),
        "deep_decoder": partial(convolutional, encoder_layers=1, decoder_layers=3, kernel_size=5),
        "tying_all": partial(convolutional, encoder_layers=1, kernel_size=5, tying=Tying.all),
        "dropouts": partial(convolutional, dropout=0.3),
    },
    "encoder": {
        "mean": encoder,
        "first": partial(
            encoder,
            pooling=Pooling.first,
            positions=Positions.learned,
            activation=Activation.gelu,
            embedding_norm=True,
            embedding_scale=False,
        ),
        "attention": partial(encoder, pooling=Pooling.attention, positions=Positions.rotary, norm=rms),
        "post_norm": partial(encoder, norm_order=post, positions=Positions.t5, pooling=Pooling.first),
        "dropouts": partial(encoder, dropout=0.3, attention_dropout=0.2, activation_dropout=0.1),
    },
    "rnn": {
        "plain_rnn": partial(rnn, attention=AttentionScore.none, cell=Cell.rnn),
        "plain_gru": partial(deep_one_way, attention=AttentionScore.none, cell=Cell.gru),
        "plain_lstm": partial(one_way, attention=AttentionScore.none, cell=Cell.lstm),
        "plain_lstm_unfed": partial(rnn, attention=AttentionScore.none, cell=Cell.lstm, input_feeding=False),
        "additive_rnn": partial(deep, attention=AttentionScore.additive, cell=Cell.rnn),
        "additive_gru": partial(rnn, attention=AttentionScore.additive, cell=Cell.gru),
        "additive_lstm": partial(deep_one_way, attention=AttentionScore.additive, cell=Cell.lstm),
        "dot_rnn": partial(one_way, attention=AttentionScore.dot, cell=Cell.rnn, input_feeding=False),
        "dot_gru": partial(rnn, attention=AttentionScore.dot, cell=Cell.gru, decoder_layers=2),
        "dot_lstm": partial(deep, attention=AttentionScore.dot, cell=Cell.lstm, input_feeding=False),
        "general_rnn": partial(one_way, attention=AttentionScore.general, cell=Cell.rnn, encoder_layers=2),
        "general_gru": partial(deep, attention=AttentionScore.general, cell=Cell.gru, input_feeding=False),
        "general_lstm": partial(rnn, attention=AttentionScore.general, cell=Cell.lstm),
        **{
            f"tying_{tying.value}": partial(rnn, tying=tying, cell=cell, attention=attention)
            for tying, cell, attention in (
                (Tying.none, Cell.lstm, AttentionScore.additive),
                (Tying.src_tgt, Cell.gru, AttentionScore.none),
                (Tying.src_output, Cell.gru, AttentionScore.general),
                (Tying.tgt_output, Cell.gru, AttentionScore.dot),
            )
        },
        "dropouts": partial(deep, dropout=0.3),
    },
}
CASES = [
    pytest.param(make, id=f"{family}-{label}")
    for family, variations in VARIATIONS.items()
    for label, make in variations.items()
]
PLAIN = [case for case in CASES if str(case.id).endswith(("-plain", "-plain_rnn"))]
"""One model of every family, for what does not depend on the model, or takes long."""
STEPPING = [
    "transformer-plain",
    "transformer-llama",
    "transformer-learned_post",
    "transformer-one_head_of_keys",
    "transformer-few_heads_of_keys",
    "transformer-alibi_post",
    "transformer-relative",
    "transformer-t5_post",
    "transformer-no_positions",
    "transformer-own_decoder",
    "transformer-few_weights",
    "transformer-ssru",
    "transformer-average",
    "decoder_only-plain",
    "decoder_only-causal",
    "decoder_only-rotary",
    "decoder_only-few_heads_of_keys",
    "decoder_only-alibi",
    "decoder_only-relative",
    "decoder_only-t5",
    "convolutional-plain",
    "convolutional-sinusoidal",
    "convolutional-kernel_1",
    "encoder-mean",
    "encoder-attention",
    "rnn-plain_rnn",
    "rnn-plain_gru",
    "rnn-plain_lstm",
    "rnn-additive_gru",
    "rnn-dot_rnn",
    "rnn-dot_lstm",
    "rnn-general_gru",
]
"""Models that differ in what a step of a search reads and keeps; others differ in weights and sizes."""
SEARCHED = [
    case
    if case.id in STEPPING
    else pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.slow])
    for case in CASES
]
"""All models, those that step as another does marked as slow: for tests that search."""


@dataclass
class Together(ModelConfig):
    """Several models as an ensemble, which only a test describes as one config."""

    parts: list[ModelConfig] = field(default_factory=list)
    rule: EnsembleConfig = field(default_factory=EnsembleConfig)


def every_family() -> list[ModelConfig]:
    """Return one model of every family, each of its own width."""
    return [
        transformer(positions=Positions.learned),
        rnn(d_model=12),
        rnn(d_model=10, attention=AttentionScore.none, cell=Cell.lstm),
        convolutional(d_model=20, max_positions=48),
        decoder_only(d_model=24),
    ]


ENSEMBLES = [
    pytest.param(lambda: Together(parts=every_family()), id="ensemble-probabilities"),
    pytest.param(
        lambda: Together(
            parts=every_family()[::-1],
            rule=EnsembleConfig(Mean.log_probabilities, weights=[1.0, 2.0, 0.5, 3.0, 1.0]),
        ),
        id="ensemble-log_probabilities",
    ),
]


@pytest.fixture(params=[*CASES, *ENSEMBLES])
def config(request: pytest.FixtureRequest) -> ModelConfig:
    """Return the config of a model."""
    found: ModelConfig = request.param()  # a function, so that collecting tests builds nothing
    return found


@pytest.fixture
def model(config: ModelConfig) -> TranslationModel:
    """Return a model in eval mode: dropout must not show."""
    return build(config).eval()


stepping = pytest.mark.parametrize("config", [*SEARCHED, *ENSEMBLES], indirect=True)
"""Models as of the fixture, those that step as another does marked as slow."""


def build(cfg: ModelConfig) -> TranslationModel:
    if isinstance(cfg, Together):
        return Ensemble([build(part) for part in cfg.parts], cfg.rule)
    return build_model(cfg, src_vocab_size=VOCAB_SIZE, tgt_vocab_size=VOCAB_SIZE)


def logits_of(model: TranslationModel, src: Tensor, src_mask: Tensor, tgt_in: Tensor) -> Tensor:
    logits = model.project(model(src, src_mask, tgt_in))
    assert isinstance(logits, Tensor)
    return logits


def test_every_family_is_tested() -> None:
    assert set(VARIATIONS) == set(MODELS)


def test_shapes(model: TranslationModel, sentences: Sentences) -> None:
    src, src_mask, tgt_in = sentences(3, 5, 4)
    hidden = model(src, src_mask, tgt_in)
    assert hidden.shape == (3, 4, model.hidden_size)
    assert model.hidden_size == sum(member.output.in_features for member in model.members)
    assert model.project(hidden).shape == (3, 4, VOCAB_SIZE)
    state = model.start(src, src_mask)
    assert all(len(tensor) == 3 for tensor in (*state.source.values(), *state.target.values()))
    assert state.position == 0
    assert model.step(tgt_in[:, 0], state).shape == (3, VOCAB_SIZE)
    assert state.position == 1


def test_a_gradient_reaches_every_parameter(model: TranslationModel, sentences: Sentences) -> None:
    src, src_mask, tgt_in = sentences(3, 5, 4)
    logits = logits_of(model.train(), src, src_mask, tgt_in)
    loss, _ = smoothed_nll(logits.flatten(0, 1), torch.randint(VOCAB_SIZE, (12,)), 0.1)
    torch.autograd.backward(loss)
    untouched = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert untouched == []


def test_a_position_does_not_see_the_target_after_it(model: TranslationModel, sentences: Sentences) -> None:
    src, src_mask, tgt_in = sentences(3, 5, 6)
    changed = tgt_in.clone()
    changed[:, 4:] = (changed[:, 4:] + 1) % VOCAB_SIZE
    before, after = model(src, src_mask, tgt_in), model(src, src_mask, changed)
    assert_close(before[:, :4], after[:, :4])
    if not model.reads_target:
        assert torch.equal(before, after)
        return
    assert not torch.allclose(before[:, 4:], after[:, 4:], atol=1e-3)


def test_every_source_token_matters(model: TranslationModel, sentences: Sentences) -> None:
    src, src_mask, tgt_in = sentences(1, 5, 3)
    hidden = model(src, src_mask, tgt_in)
    for s in range(5):
        changed = src.clone()
        changed[0, s] = (changed[0, s] + 1) % VOCAB_SIZE
        assert not torch.allclose(model(changed, src_mask, tgt_in), hidden, atol=1e-4)


def test_padding_changes_nothing(model: TranslationModel, sentences: Sentences) -> None:
    src, src_mask, tgt_in = sentences(3, 5, 4)
    longer_src = torch.cat([src, torch.randint(VOCAB_SIZE, (3, 3))], dim=1)  # whatever stands there
    longer_mask = torch.cat([src_mask, torch.zeros(3, 3, dtype=torch.bool)], dim=1)
    longer_tgt = torch.cat([tgt_in, torch.randint(VOCAB_SIZE, (3, 2))], dim=1)
    expected = logits_of(model, src, src_mask, tgt_in)
    assert_close(logits_of(model, longer_src, longer_mask, longer_tgt)[:, :4], expected)
    state = model.start(longer_src, longer_mask)
    assert_close(model.step(tgt_in[:, 0], state), expected[:, 0])


@pytest.mark.parametrize("at_once", [12, pytest.param(1024, marks=pytest.mark.slow)])
def test_step_by_step_equals_forward(
    model: TranslationModel, sentences: Sentences, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmt.models.transformer.ENCODED_AT_ONCE", at_once)
    src, src_mask, tgt_in = sentences(4, 6, 9)
    state = model.start(src, src_mask)
    steps = [model.step(last, state) for last in tgt_in.unbind(1)]
    assert_close(torch.stack(steps, dim=1), logits_of(model, src, src_mask, tgt_in))


@stepping
def test_selecting_equals_reading_the_prefixes_again(model: TranslationModel, sentences: Sentences) -> None:
    """Three beams a sentence that move at random, while sentences leave the batch."""
    B, K = 5, 3
    src, src_mask, _ = sentences(B, 6, 1)
    state = model.start(src, src_mask)
    prefixes = torch.full((B, 1), BOS_ID)
    beams, leaving = 1, {2: [1], 4: [0, 2]}
    for position in range(7):
        logits = model.step(prefixes[:, -1], state)
        rows = torch.arange(len(src)).repeat_interleave(beams)
        assert_close(logits, logits_of(model, src[rows], src_mask[rows], prefixes)[:, -1])

        gone = leaving.get(position, [])
        staying = torch.tensor([b for b in range(len(src)) if b not in gone])
        parents = staying[:, None] * beams + torch.randint(beams, (len(staying), K))
        state = state.select(parents.flatten(), staying if gone else None)
        src, src_mask, beams = src[staying], src_mask[staying], K
        last = torch.randint(4, VOCAB_SIZE, (len(src) * K, 1))
        prefixes = torch.cat([prefixes[parents.flatten()], last], dim=1)
    assert len(src) == B - 3


@stepping
def test_a_sentence_may_be_several(model: TranslationModel, sentences: Sentences) -> None:
    """Groups of two rows: one of the first sentence, three of the third, whose rows may follow any of it."""
    src, src_mask, tgt_in = sentences(3, 6, 2)
    state = model.start(src, src_mask)
    model.step(tgt_in[:, 0], state)
    rows, groups = torch.tensor([0, 0, 2, 2, 2, 2, 2, 2]), torch.tensor([0, 2, 2, 2])
    for last in torch.randint(4, VOCAB_SIZE, (2, 8)):
        state = state.select(rows, groups)
        found = model.step(last, state)
        rows, groups = torch.tensor([1, 0, 6, 7, 2, 3, 4, 4]), torch.tensor([0, 1, 1, 3])
        if state.position == 2:
            first = last
    kept = torch.tensor([0, 0, 2, 2, 2, 2, 2, 2])
    prefixes = torch.stack([tgt_in[kept, 0], first[rows], last], dim=1)
    assert_close(found, logits_of(model, src[kept], src_mask[kept], prefixes)[:, -1])


@stepping
@pytest.mark.parametrize("rows", [None, [2, 2, 0]])
def test_selecting_leaves_the_old_state_as_it_was(
    model: TranslationModel, sentences: Sentences, rows: list[int] | None
) -> None:
    src, src_mask, tgt_in = sentences(3, 5, 2)
    state = model.start(src, src_mask)
    model.step(tgt_in[:, 0], state)
    moved: State = state.select(None if rows is None else torch.tensor(rows))
    model.step(tgt_in[:, 1], moved)
    expected = logits_of(model, src, src_mask, tgt_in)[:, 1]
    assert_close(model.step(tgt_in[:, 1], state), expected)


@pytest.mark.parametrize("make", [*CASES, *ENSEMBLES])
def test_state_dict_round_trip(make: Callable[[], ModelConfig], sentences: Sentences) -> None:
    batch = sentences(3, 5, 4)
    first, second = build(make()).eval(), build(make()).eval()
    assert not torch.equal(logits_of(first, *batch), logits_of(second, *batch))
    second.load_state_dict(first.state_dict())
    assert torch.equal(logits_of(first, *batch), logits_of(second, *batch))


def test_bf16_stays_close(model: TranslationModel, sentences: Sentences) -> None:
    batch = sentences(3, 5, 4)
    with torch.autocast("cpu", torch.bfloat16):
        rough = logits_of(model, *batch)
    assert rough.dtype is (torch.bfloat16 if model.members == [model] else torch.float32)
    assert_close(rough.float(), logits_of(model, *batch), atol=0.1, rtol=0.1)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(*case.values, id=case.id, marks=() if case in PLAIN else pytest.mark.slow)
        for case in CASES
        if "dropouts" not in str(case.id)
    ],
)
def test_overfits_eight_pairs(make: Callable[[], ModelConfig], sentences: Sentences) -> None:
    model = build(make()).train()
    src, _, tgt_out = sentences(8, 5, 5)
    if not model.reads_target:
        tgt_out = tgt_out[:, 1:2]  # a label
    src_mask = torch.ones_like(src, dtype=torch.bool)
    tgt_in = torch.cat([torch.full((8, 1), BOS_ID), tgt_out[:, :-1]], dim=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2, fused=True)
    for _ in range(120):
        optimizer.zero_grad()
        logits = logits_of(model, src, src_mask, tgt_in).flatten(0, 1)
        loss, nll = smoothed_nll(logits, tgt_out.flatten(), 0.0)
        if float(nll) / len(logits) < 1.0:  # nats; that of a guess is 2.9
            return
        torch.autograd.backward(loss / len(logits))
        optimizer.step()
    pytest.fail(f"the last loss is {float(nll) / len(logits)}")


@stepping
@torch.inference_mode()
def test_search_in_a_batch_equals_search_one_by_one(model: TranslationModel, sentences: Sentences) -> None:
    beams = (3, 2) if model.reads_target else (1, 1)  # else tokens in any order are as probable
    cfg = BeamConfig(beam_size=beams[0], n_best=beams[1], max_length_ratio=1.5, max_length_offset=2)
    src, src_mask, _ = sentences(4, 6, 1)
    for b, together in enumerate(beam_search(model, src, src_mask, cfg)):
        length = int(src_mask[b].sum())
        (alone,) = beam_search(model, src[b : b + 1, :length], src_mask[b : b + 1, :length], cfg)
        assert [found.ids for found in together] == [found.ids for found in alone]
        assert_close([found.score for found in together], [found.score for found in alone], atol=1e-4, rtol=0)


def test_attention_maps(model: TranslationModel, config: ModelConfig, sentences: Sentences) -> None:
    src, src_mask, tgt_in = sentences(3, 6, 5)
    if len(model.members) > 1:
        with pytest.raises(UserError, match=r"^attention weights belong to one model, but .* ensemble of 5;"):
            model.attention(src, src_mask, tgt_in)
        return
    maps = model.attention(src, src_mask, tgt_in)
    assert bool(maps.cross) == config.attends_to_source
    for layers, rows, columns in ((maps.encoder, 6, 6), (maps.decoder, 5, 5), (maps.cross, 5, 6)):
        for weights in layers:
            assert (weights.dtype, weights.dim()) == (torch.float32, 4)
            assert (weights.shape[0], *weights.shape[2:]) == (3, rows, columns)
            assert bool((weights >= 0).all() and (weights.sum(-1) <= 1 + 1e-5).all())
    for weights in (*maps.encoder, *maps.cross):
        assert not weights.masked_select(~src_mask[:, None, None, :]).any()
    for weights in maps.decoder:
        assert not weights.triu(1).any()


def test_a_model_larger_than_the_memory_is_refused_before_it_is_built() -> None:
    cfg = TransformerConfig(d_model=65_536, d_ff=65_536, encoder_layers=1_000)
    with pytest.raises(
        UserError, match=r"^the weights of 1006 layers with model\.d_model=65536 need at least"
    ):
        build_model(cfg, src_vocab_size=10, tgt_vocab_size=10)
